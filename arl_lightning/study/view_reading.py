"""What a run has left so far: curves from TensorBoard's files, events and episodes from JSON lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from arl_lightning.callbacks.run_log import EVENTS, TRANSCRIPTS, read_lines
from arl_lightning.study.runs import read_log
from arl_lightning.types import ArlError

Curve = dict[int, float]
"""Finite values by epoch, in order."""

_LOG_FILES = "events.out.tfevents*"
_STATES = {"begin": "under way, or killed", "resume": "under way, or killed", "end": "ended", "error": "stopped"}


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells it.

    Attributes:
        name: last part of the folder's path.
        curves: by metric name.
        events: in the order in which they happened, each with `epoch`, `kind` and `text`.
        episodes: lines of `transcripts.jsonl`.
        left_out: episodes that are not among them for want of room.
        config: text of `config.yaml`, empty without one.
    """

    name: str
    curves: dict[str, Curve]
    events: list[dict[str, Any]]
    episodes: list[dict[str, Any]]
    left_out: int
    config: str

    @property
    def last_epoch(self) -> int:
        """The latest epoch of which anything is known; 0 when nothing is."""
        epochs = [epoch for curve in self.curves.values() for epoch in list(curve)[-1:]]
        return max([*epochs, *(episode["epoch"] for episode in self.episodes)], default=0)

    @property
    def state(self) -> str:
        """Whether the run ended, by its last event that says so."""
        known = [_STATES[event["kind"]] for event in self.events if event["kind"] in _STATES]
        return known[-1] if known else "unknown"


def read_run(folder: Path, max_episode_bytes: int) -> RunRecord:
    """The record of the run in `folder`, which may still be going.

    Raises:
        ArlError: the folder is not there, or no run's.
    """
    if not folder.is_dir():
        raise ArlError(f"there is no folder {str(folder)!r}: name the folder of a run, its trainer.default_root_dir")
    if not _is_run(folder):
        inside = sorted(str(child) for child in folder.iterdir() if child.is_dir() and _is_run(child))
        hint = f"name one of {', '.join(inside)}" if inside else "name the folder of a run, its default_root_dir"
        raise ArlError(f"{str(folder)!r} holds no run: {hint}")
    found = [line for line in read_lines(folder / TRANSCRIPTS) if "group" in line]  # older versions wrote none
    episodes = thin(found, max_episode_bytes)
    events = list(read_lines(folder / EVENTS))
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    name = folder.resolve().name
    return RunRecord(name, read_curves(folder), events, episodes, len(found) - len(episodes), text)


def read_curves(folder: Path) -> dict[str, Curve]:
    """All scalars by epoch; where a resumed run logged an epoch again, the later value."""
    if not any(folder.glob(_LOG_FILES)):
        return {}
    log = read_log(folder)
    names = log.Tags()["scalars"]
    if "epoch" not in names:
        return {}
    epoch_of_step = {event.step: round(event.value) for event in log.Scalars("epoch")}
    curves: dict[str, Curve] = {}
    for name in sorted(set(names) - {"epoch"}):
        points = {epoch_of_step[e.step]: e.value for e in log.Scalars(name) if e.step in epoch_of_step}
        curves[name] = {epoch: float(points[epoch]) for epoch in sorted(points) if math.isfinite(points[epoch])}
    return curves


def thin(episodes: Sequence[dict[str, Any]], max_bytes: int) -> list[dict[str, Any]]:
    """Episodes that fit into `max_bytes` of JSON: of every second, fourth, … epoch counted from the last one.

    The first episode of the last epoch stays, however long it is.
    """
    sizes = [len(dumps(episode)) for episode in episodes]
    epochs = sorted({episode["epoch"] for episode in episodes}, reverse=True)
    chosen, stride = list(range(len(episodes))), 1
    while sum(sizes[i] for i in chosen) > max_bytes and len({episodes[i]["epoch"] for i in chosen}) > 1:
        stride *= 2
        chosen = [i for i in chosen if episodes[i]["epoch"] in epochs[::stride]]
    while len(chosen) > 1 and sum(sizes[i] for i in chosen) > max_bytes:
        chosen.pop()
    return [episodes[i] for i in chosen]


def _is_run(folder: Path) -> bool:
    return any(folder.glob(_LOG_FILES)) or (folder / TRANSCRIPTS).is_file()
