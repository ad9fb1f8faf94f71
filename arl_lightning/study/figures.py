"""Pictures of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl_lightning.envs.extras import load_extra
from arl_lightning.study.results import SINKING, SUCCESS, VALID, Run
from arl_lightning.study.statistics import Estimate

CURVES = {
    SUCCESS: "success in training, sampled",
    VALID: "share of valid actions",
    SINKING: "KL to the sampler where A<0 and ratio<1, nats a token",
}
DIAGNOSTICS = {
    SUCCESS: "success",
    VALID: "valid actions",
    SINKING: "KL where A<0 and ratio<1",
    "train/kl_monitor/sinking_ratio": "the same over the KL of the rest",
    "train/grad_norm": "gradient norm before clipping",
    "train/entropy": "entropy, nats a token",
}


def draw_curves(runs: Sequence[Run], baseline: str, name: str, path: Path) -> None:
    """One of `CURVES` on one task, a panel a method: every seed, their mean and band, and the baseline's mean."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    tables = {method: _smooth(found, name) for method, found in by_method.items()}
    columns = min(5, len(tables))
    rows = math.ceil(len(tables) / columns)
    figure, axes = _pyplot().subplots(
        rows, columns, figsize=(1 + 2.4 * columns, 2.2 * rows), sharex=True, sharey=True, squeeze=False
    )
    figure.set_layout_engine("constrained")
    for panel, (method, table) in zip(axes.flat, tables.items(), strict=False):
        if baseline in tables and method != baseline:
            panel.plot(tables[baseline].mean(axis=1), color="#969696", linestyle="--", linewidth=1)
        panel.fill_between(table.index, table.min(axis=1), table.max(axis=1), color="#9ecae1", alpha=0.4, linewidth=0)
        panel.plot(table, color="#6baed6", linewidth=0.6)
        panel.plot(table.mean(axis=1), color="#08306b", linewidth=1.6)
        panel.set_title(method, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    axes.flat[0].set_ylim(0, None if name == SINKING else 1)
    for panel in axes.flat[len(tables) :]:
        panel.set_visible(False)
    figure.supxlabel("rollout", fontsize=9)
    figure.supylabel(CURVES[name], fontsize=9)
    _save(figure, path)


def draw_results(
    estimates: Mapping[str, Estimate], values: Mapping[str, Sequence[Sequence[float]]], title: str, path: Path
) -> None:
    """A method a line, best first: a dot a run, the mean, and its interval."""
    plt = _pyplot()
    order = sorted(estimates, key=lambda method: estimates[method].value)
    figure, axes = plt.subplots(figsize=(6, 0.8 + 0.3 * len(order)), layout="constrained")
    for place, method in enumerate(order):
        value, low, high = estimates[method]
        axes.plot((low, high), (place, place), color="#9ecae1", linewidth=6, solid_capstyle="butt")
        runs = [one for stratum in values[method] for one in stratum]
        axes.plot(runs, [place] * len(runs), "o", color="#4292c6", markersize=3, alpha=0.6, markeredgewidth=0)
        axes.plot(value, place, "|", color="#08306b", markersize=12, markeredgewidth=2)
    axes.set_yticks(range(len(order)), order)
    axes.set(xlabel=title, ylim=(-0.6, len(order) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def draw_diagnostics(runs: Sequence[Run], path: Path) -> None:
    """What moved when in the collapsed runs of one method on one task: a line a seed, a dot where it collapsed."""
    shown = {name: title for name, title in DIAGNOSTICS.items() if any(run.curves.get(name) for run in runs)}
    figure, axes = _pyplot().subplots(
        1, len(shown), figsize=(2.8 * len(shown), 2.6), layout="constrained", squeeze=False
    )
    for panel, (name, title) in zip(axes.flat, shown.items(), strict=True):
        for place, run in enumerate(runs):
            points, end = run.curves.get(name, {}), int(run.numbers["collapsed_at"])
            panel.plot(list(points), list(points.values()), f"C{place}", linewidth=1, label=f"seed {run.cell.seed}")
            if end in points:
                panel.plot(end, points[end], f"C{place}o")
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("rollout")
        panel.spines[["top", "right"]].set_visible(False)
    axes.flat[0].legend(fontsize=7, frameon=False)
    _save(figure, path)


def _pyplot() -> Any:
    load_extra("matplotlib", extra="study").use("Agg")
    return load_extra("matplotlib.pyplot", extra="study")


def _smooth(runs: Sequence[Run], name: str) -> Any:
    """Rollouts by runs, as running means of five; a run that has nothing of it is left out."""
    curves = {run.cell.seed: dict(run.curves[name]) for run in runs if name in run.curves}
    return load_extra("pandas", extra="study").DataFrame(curves).rolling(5, min_periods=1).mean()


def _save(figure: Any, path: Path) -> None:
    """With 64 colours, a third of the bytes: reports are committed."""
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
    image = load_extra("PIL.Image", extra="study")
    with image.open(path) as picture:
        small = picture.convert("RGB").quantize(64)
    small.save(path, optimize=True)
