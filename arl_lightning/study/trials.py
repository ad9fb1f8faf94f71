"""One trial of a search: numbers drawn, written as an overlay, played, and given up where its course is poor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from arl_lightning.envs.extras import load_extra
from arl_lightning.study.cell_runner import CellRunner
from arl_lightning.study.cells import Cell
from arl_lightning.study.runs import read_curve
from arl_lightning.types import ArlError

FAILED = "failed"
"""User attribute of a trial whose run failed: what it said last."""
_LOOK_S = 10.0


@dataclass(frozen=True)
class Interval:
    """A number between two ends.

    Args:
        keys: what it sets: keys of an overlay joined by dots, `init_args` included, each with a factor for it.
        low: lower end.
        high: upper end.
        log: whether it is drawn evenly in its logarithm.
        first: its value in the first trial, such as the published one; null to have that drawn, too.
    """

    keys: Mapping[str, int | float]
    low: float
    high: float
    log: bool = False
    first: float | None = None


@dataclass(frozen=True)
class Choices:
    """One of several numbers.

    Args:
        keys: what it sets: keys of an overlay joined by dots, `init_args` included, each with a factor for it.
        values: the numbers.
        first: its value in the first trial, one of them; null to have that drawn, too.
    """

    keys: Mapping[str, int | float]
    values: tuple[int | float, ...]
    first: int | float | None = None


Space = Mapping[str, Interval | Choices]


def suggested(trial: Any, space: Space) -> dict[str, int | float]:
    """A number for each name of the space."""
    return {
        name: trial.suggest_categorical(name, found.values)
        if isinstance(found, Choices)
        else trial.suggest_float(name, found.low, found.high, log=found.log)
        for name, found in space.items()
    }


def write_overlay(path: Path, space: Space, numbers: Mapping[str, int | float], note: str) -> None:
    """Leaves a configuration file that sets what the numbers stand for."""
    overlay: dict[str, Any] = {}
    for name, number in numbers.items():
        for key, factor in space[name].keys.items():
            *above, last = key.split(".")
            level = overlay
            for part in above:
                level = level.setdefault(part, {})
            level[last] = number * factor
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {note}\n{yaml.safe_dump(overlay, sort_keys=False)}")


def play(trial: Any, cells: Sequence[Cell], metric: str) -> float:
    """Mean over the cells of the metric's last value.

    Raises:
        ArlError: a run failed; the trial keeps what it said.
        optuna.TrialPruned: the trial was given up.
    """
    runner, values, step = CellRunner(jobs=1), [], 0
    for cell in cells:
        course = Course(trial, cell, metric, step)
        for run, watch in ((cell.start, None), (cell, course)):
            if run is not None and runner.execute(run, watch) == "failed":
                trial.set_user_attr(FAILED, said := run.attempts()[-1]["said"])
                raise ArlError(f"{run.label} failed: {said}")
        if course.poor:
            raise load_extra("optuna", extra="study").TrialPruned
        values.append(course.last())
        step = course.step
    return fmean(values)


class Course:
    """How a run of a trial gets on, told to the trial point by point.

    Args:
        trial: the trial.
        cell: the run, of which the trial may have several, one after the other.
        metric: what is logged and looked at.
        offset: steps that the trial took in earlier runs.
    """

    def __init__(self, trial: Any, cell: Cell, metric: str, offset: int) -> None:
        self.trial = trial
        self.cell = cell
        self.metric = metric
        self.offset = self.step = offset
        self.poor = False
        self._looked_s = time.monotonic()

    def __call__(self) -> bool:
        """Whether the run is to be given up, as far as the points up to now tell."""
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._tell()
            self._looked_s = time.monotonic()
            self.poor = self.trial.should_prune()
        return self.poor

    def last(self) -> float:
        """The last value of the run, which has ended.

        Raises:
            ArlError: it never logged the metric.
        """
        values = self._tell()
        if not values:
            self.trial.set_user_attr(FAILED, said := f"{self.cell.label} logged no {self.metric!r}")
            raise ArlError(f"{said}: choose another metric, or validate more often")
        return values[-1]

    def _tell(self) -> list[float]:
        epochs, values = read_curve(self.cell.folder / "fit", self.metric)
        for epoch, value in zip(epochs, values, strict=True):
            if self.offset + epoch > self.step:
                self.step = self.offset + epoch
                self.trial.report(value, self.step)
        return values
