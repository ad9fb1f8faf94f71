"""What the cells of a study left: one row of numbers a run, and its curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from arl_lightning.functional.health import Level
from arl_lightning.study.cells import Cell, cell_of
from arl_lightning.study.definition import Study
from arl_lightning.study.runs import read_curves, read_metrics

Curves = Mapping[str, Mapping[int, float]]

SUCCESS, VALID, SINKING = "train/success_rate", "train/valid_ratio", "train/sinking/kl"
LEVEL, ACTIONS = "collapse/level", "collapse/actions"
FALL, WINDOW, LEAST = 0.5, 5, 0.05
COLLAPSE = f"""
A run has collapsed when its success in training, as the mean of {WINDOW} rollouts, falls below {FALL:g} of the best
such mean before (of {LEAST:g} at least), or when the share of valid actions in one rollout falls below {FALL:g} of the
best mean of {WINDOW} rollouts before. It has recovered when neither holds in the last rollout.
"""


@dataclass(frozen=True)
class Run:
    """One cell and what it left.

    Attributes:
        task: the task's name.
        method: the method's name, or `BEFORE`.
        cell: the run itself.
        numbers: measures by name; empty unless the cell is finished.
        curves: what it logged while it trained; empty where it did not train.
    """

    task: str
    method: str
    cell: Cell
    numbers: Mapping[str, float]
    curves: Curves

    def row(self) -> dict[str, Any]:
        """The run as a line of the CSV."""
        attempts = self.cell.attempts()
        last = attempts[-1] if attempts else {}
        return {
            "task": self.task,
            "method": self.method,
            "seed": self.cell.seed,
            "status": self.cell.status(),
            "failures": sum(attempt["exit_code"] not in (0, None) for attempt in attempts),
            "revision": last.get("revision"),
            "dirty": last.get("dirty"),
            **self.numbers,
            "folder": self.cell.folder.name,
        }

    def why(self) -> str:
        """Why it is not finished; empty where it is."""
        failed = [attempt for attempt in self.cell.attempts() if attempt["exit_code"] not in (0, None)]
        match self.cell.status():
            case "failed":
                return f"exit code {failed[-1]['exit_code']} in `arl {failed[-1]['verb']}`: {failed[-1]['said']}"
            case "not run" if self.cell.start is not None and self.cell.start.status() == "failed":
                return f"its start failed: {self.cell.start.attempts()[-1]['said']}"
            case "finished":
                return ""
            case status:
                return status


def read_runs(study: Study, root: Path) -> list[Run]:
    """Every cell of the study, whether it has run or not: none is left out."""
    return [_read(task, method, cell_of(study, task, method, seed, root)) for task, method, seed in study.cells()]


def _read(task: str, method: str, cell: Cell) -> Run:
    if cell.status() != "finished":
        return Run(task, method, cell, {}, {})
    numbers = held_out(read_metrics(cell.folder / "test", "test"))
    if "fit" not in cell.verbs:
        return Run(task, method, cell, numbers, {})
    curves = read_curves(cell.folder / "fit")
    return Run(task, method, cell, {**numbers, **course(curves)}, curves)


def cost(runs: Sequence[Run]) -> tuple[float, int, int]:
    """Hours of all processes with one thread each, failed attempts, and interrupted ones; each start counts once."""
    cells = {cell.folder: cell for run in runs for cell in (run.cell, run.cell.start) if cell is not None}
    attempts = [attempt for cell in cells.values() for attempt in cell.attempts()]
    lasted = [_instant(attempt["ended"]) - _instant(attempt["started"]) for attempt in attempts if attempt["ended"]]
    codes = [attempt["exit_code"] for attempt in attempts]
    interrupted = codes.count(None)
    return sum(lasted) / 3600, len(codes) - codes.count(0) - interrupted, interrupted


def _instant(said: str) -> float:
    return datetime.fromisoformat(said).timestamp()


def held_out(metrics: Mapping[str, float]) -> dict[str, float]:
    """Success and score on held-out tasks by decoding, as `greedy` and `score_greedy`; the first is `sampled`."""
    found = {}
    for kind, names in (("success_rate", "{}"), ("score", "score_{}")):
        for name, value in metrics.items():
            stage, _, last = name.rpartition("/")
            if last == kind:
                decoding = stage.removeprefix("test").strip("/") or "sampled"
                found[names.format(decoding)] = value
    return found


def course(curves: Curves) -> dict[str, float]:
    """How training went, in numbers.

    `first_fifth` and `last_fifth` are mean success in those parts of training, `spread` the standard deviation of
    success over the rollouts of the last, `last_valid` the share of valid actions there, `minutes` what play, scoring
    and updates took. `danger_at` is the rollout, from 1, in which `CollapseWarning` first spoke of danger: nan where it
    never did, and left out where there was none. Runs too short to tell have no `spread` and no collapse.
    """
    success, valid = list(curves[SUCCESS].values()), list(curves[VALID].values())
    fifth = max(1, len(success) // 5)
    steps = _tokens(curves)
    lengths = curves["train/completions/mean_length"]
    seconds = [
        value for what in ("generate", "environment", "score", "update") for value in curves[f"time/{what}_s"].values()
    ]
    return {
        "first_fifth": fmean(success[:fifth]),
        "last_fifth": fmean(success[-fifth:]),
        **({"spread": pstdev(success[-fifth:])} if fifth > 1 else {}),
        **(collapse(success, valid) if len(success) >= 2 * WINDOW else {}),
        **_danger(curves),
        "least_valid": min(valid),
        "last_valid": fmean(valid[-fifth:]),
        "largest_sinking_kl": max(curves.get(SINKING, {0: math.nan}).values()),
        "largest_sinking_ratio": max(curves.get("train/kl_monitor/sinking_ratio", {0: math.nan}).values()),
        "largest_grad_norm": max(curves["train/grad_norm"].values()),
        "last_entropy": list(curves["train/entropy"].values())[-1],
        "minutes": sum(seconds) / 60,
        "sampled_tokens": sum(steps.values()),
        "environment_steps": sum(tokens / lengths[epoch] for epoch, tokens in steps.items()),
    }


def _danger(curves: Curves) -> dict[str, float]:
    if LEVEL not in curves:
        return {}
    acted = curves.get(ACTIONS, {})  # a roll-back, which only danger calls, has lowered the level before it is logged
    signs = [at for at, level in curves[LEVEL].items() if level >= Level.DANGER or acted.get(at, 0.0) > 0]
    return {"danger_at": float(signs[0]) if signs else math.nan}


def _tokens(curves: Curves) -> dict[int, float]:
    """Tokens sampled by epoch; over the mean length of an answer they are the environment's steps."""
    rate, spent = curves["throughput/tokens_per_s"], curves["time/generate_s"]
    return {epoch: rate[epoch] * spent[epoch] for epoch in rate}


def collapse(success: Sequence[float], valid: Sequence[float]) -> dict[str, float]:
    """Whether, in which rollout from 1, and whether it is over in the last one; see `COLLAPSE`."""
    rates, habits = _means(success), _means(valid)
    signs = [
        end
        for end in range(WINDOW, len(success))
        if rates[end] < FALL * max(rates[:end]) >= FALL * LEAST or valid[end] < FALL * max(habits[:end])
    ]
    return {
        "collapsed": float(bool(signs)),
        "collapsed_at": signs[0] + 1 if signs else math.nan,
        "recovered": float(signs[-1] < len(success) - 1) if signs else math.nan,
    }


def _means(values: Sequence[float]) -> list[float]:
    """The mean of `WINDOW` values up to each; 0 where there are not yet as many."""
    return [fmean(values[end + 1 - WINDOW : end + 1]) if end + 1 >= WINDOW else 0.0 for end in range(len(values))]
