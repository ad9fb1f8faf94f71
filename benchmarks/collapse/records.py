"""What is kept of a run, when it counts as collapsed, and which split it belongs to."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
SMOOTHING = 3
"""Epochs that a judged success is the mean of."""
FINAL = 5
"""Epochs at the end that the final success is the mean of."""
RECOVERY = 2 / 3
"""Share of its best that a halved run must end with to have recovered: one that hovers about the half has not."""


class Fate(IntEnum):
    """How a run ended; larger is worse."""

    HEALTHY = 0
    RECOVERED = 1
    COLLAPSED = 2


@dataclass(frozen=True)
class Configuration:
    """What a run is trained by, but for its seed.

    Args:
        method: name of a file in configs/methods.
        start: `weak` or `full`, how long the clone was made to imitate.
        rate: learning rate.
        minibatches: optimiser steps an epoch, so that more are further off-policy.
        overrides: further words of the command line.
    """

    method: str
    start: str
    rate: float
    minibatches: int = 8
    overrides: tuple[str, ...] = ()

    def name(self, seed: int) -> str:
        """The run's name."""
        return f"{self.method}_{self.start}_lr{self.rate:g}_mb{self.minibatches}_s{seed}"


@dataclass(frozen=True)
class Record:
    """One run's numbers.

    Args:
        name: of configuration and seed.
        start: the clone it began with, with its seed.
        split: `fit` for choosing thresholds, `report` for figures.
        command: what was run, from the root of the repository.
        minutes: between the first and the last logged number.
        curves: values of each metric by epoch, None where an epoch has none.
    """

    name: str
    start: str
    split: str
    command: str
    minutes: float
    curves: dict[str, list[float | None]]

    def epochs(self) -> list[dict[str, float]]:
        """What the callback saw, epoch by epoch."""
        count = len(self.curves["train/success_rate"])
        return [
            {name: value for name, curve in self.curves.items() if (value := curve[epoch]) is not None}
            for epoch in range(count)
        ]

    def curve(self, metric: str) -> list[float]:
        """Values of a metric that every epoch has."""
        return [value for value in self.curves[metric] if value is not None]

    def fate(self) -> tuple[Fate, int | None]:
        """How the run ended, and the epoch in which its success, or else its valid ratio, was first halved."""
        fates = [fate(self.curve(metric)) for metric in ("val/success_rate", "train/valid_ratio")]
        worst = max(kind for kind, _ in fates)
        return worst, min((epoch for kind, epoch in fates if kind is worst and epoch is not None), default=None)

    def final_success(self) -> float:
        """Mean success of the last epochs."""
        return mean(self.curve("val/success_rate")[-FINAL:])


def smoothed(values: Sequence[float]) -> list[float]:
    """Means of each epoch and those before it, as far as there are any."""
    return [mean(values[max(0, epoch + 1 - SMOOTHING) : epoch + 1]) for epoch in range(len(values))]


def fate(values: Sequence[float]) -> tuple[Fate, int | None]:
    """What became of a curve, and the first epoch in which its smoothed value was below half of its best so far."""
    curve = smoothed(values)
    halved = next((epoch for epoch, value in enumerate(curve) if value < max(curve[: epoch + 1]) / 2), None)
    if halved is None:
        return Fate.HEALTHY, None
    recovered = mean(values[-FINAL:]) >= RECOVERY * max(curve[: halved + 1])
    return (Fate.RECOVERED if recovered else Fate.COLLAPSED), halved


def write_records(records: Sequence[Record], file: Path) -> None:
    """One line of JSON a run, compressed; equal records give equal bytes."""
    lines = "".join(json.dumps(asdict(record)) + "\n" for record in sorted(records, key=lambda record: record.name))
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read_records(file: Path) -> list[Record]:
    """The runs in the file."""
    return [Record(**json.loads(line)) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
