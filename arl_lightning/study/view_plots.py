"""Which curves share a plot, and in which section it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arl_lightning.study.view_reading import Curve

_STAGES = ("train", "val", "test")
_ENDS = ("_low", "_high")
_SUBJECTS = {
    "score": "reward",
    "reward_std": "reward",
    "approx_kl": "kl",
    "kl_monitor": "kl",
    "error_ratio": "valid_ratio",
    "zero_std_ratio": "valid_ratio",
    "skipped_steps": "grad_norm",
}
_SECTIONS = {
    "Outcome": ("success_rate", "reward", "valid_ratio", "turns"),
    "Answers": ("entropy", "completions"),
    "Update": (
        "loss", "grad_norm", "kl", "ratio", "clip_ratio", "mask", "advantage", "sinking", "denominator",
    ),
    "Watch": ("collapse", "filter"),
    "Cost": ("time", "throughput", "memory"),
}  # fmt: skip
_KNOWN = {subject for subjects in _SECTIONS.values() for subject in subjects}
_MAX_SCALE = 12.0
_MAX_CURVES = 6


@dataclass(frozen=True)
class Plot:
    """Curves of one subject and of like size.

    Attributes:
        title: the subject, or the metric when it is alone.
        names: metrics in the order of the alphabet.
        bands: names of the metrics that bound another one, by its name, lower one first.
    """

    title: str
    names: tuple[str, ...]
    bands: Mapping[str, tuple[str, str]]


def arrange(curves: Mapping[str, Curve]) -> dict[str, list[Plot]]:
    """Plots by section; each curve is in one plot, the ends of intervals in that of their metric.

    Curves of one subject share a plot as long as none is 12 times as large as another, and at most 6 do.
    """
    bands = {name: (f"{name}_low", f"{name}_high") for name in curves if all(f"{name}{end}" in curves for end in _ENDS)}
    ends = {end for pair in bands.values() for end in pair}
    subjects: dict[tuple[str, str], list[str]] = {}
    for name in curves:
        if curves[name] and name not in ends:
            subjects.setdefault(_place(name), []).append(name)
    sections: dict[str, list[Plot]] = {section: [] for section in _SECTIONS}
    for (section, subject), names in sorted(subjects.items(), key=lambda item: _rank(*item[0])):
        groups = _of_like_size(names, curves)
        sections.setdefault(section, []).extend(Plot(_title(subject, group), group, bands) for group in groups)
    return {section: plots for section, plots in sections.items() if plots}


def _place(name: str) -> tuple[str, str]:
    parts = name.split("/")
    subject = parts[0]
    if subject in _STAGES:  # `val/t06/completions/mean_length` is of the completions, as in training
        known = [_SUBJECTS.get(part, part) for part in parts[1:]]
        subject = next((part for part in known if part in _KNOWN), known[0] if subject == "train" else known[-1])
    found = [section for section, subjects in _SECTIONS.items() if subject in subjects]
    return found[0] if found else "More", subject


def _title(subject: str, names: tuple[str, ...]) -> str:
    parts = names[0].split("/") if len(names) == 1 else [subject]
    return " ".join(parts[1:] if parts[0] == "train" else parts).replace("_", " ")


def _rank(section: str, subject: str) -> tuple[int, int, str]:
    if section not in _SECTIONS:
        return len(_SECTIONS), 0, subject
    return list(_SECTIONS).index(section), _SECTIONS[section].index(subject), subject


def _of_like_size(names: list[str], curves: Mapping[str, Curve]) -> list[tuple[str, ...]]:
    sizes = {name: max(map(abs, curves[name].values())) for name in names}
    groups: list[list[str]] = []
    for name in sorted(names, key=lambda name: (-sizes[name], name)):
        full = not groups or len(groups[-1]) == _MAX_CURVES
        if full or 0 < sizes[name] < sizes[groups[-1][0]] / _MAX_SCALE:
            groups.append([])
        groups[-1].append(name)
    return [tuple(sorted(group)) for group in groups]
