"""Signs that a run is about to collapse, as pure decisions over an epoch's numbers and those of epochs before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arl_lightning.functional.robust import slope, spread, trend_score, z_score
from arl_lightning.types import ArlError

Epoch = Mapping[str, float]
"""Numbers of one epoch by full metric name."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of a coming collapse: what says so, in which words, and how many votes it has for danger."""

    name: str
    phrase: str
    votes: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A metric's healthy side.

    Args:
        metric: full metric name.
        limit: the last healthy value.
        above: True when values above `limit` are a sign, False when values below are.
    """

    metric: str
    limit: float
    above: bool

    def breach(self, values: Epoch) -> str | None:
        """A phrase that says how the bound is broken; None while it holds or the metric is absent."""
        value = values.get(self.metric)
        # a NaN is on neither side and must not pass as healthy
        healthy = value is None or (value <= self.limit if self.above else value >= self.limit)
        return None if healthy else f"{self.metric} is {value:.3g}, {'over' if self.above else 'under'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Change:
    """A metric's change against its own past, in robust deviations.

    The deviation is the past's 1.4826 · MAD, at least `floor`, and at least `relative_floor` of the past's median.

    Args:
        metric: full metric name.
        side: where a change is a sign: `above`, `below` or `either`.
        z: deviations from the median of the past at which one epoch is a sign; null does not look at single epochs.
        trend: deviations that the window's slope may add up to from its first to its last epoch; null does not look at
            slopes.
        floor: least deviation, in units of the metric.
        relative_floor: least deviation, as a share of the past's median.
        over: metric to divide by, so that the ratio is looked at; an epoch in which it is not above 0 has no value.
        votes: what the sign counts for danger, at least 1.
    """

    metric: str
    side: Literal["above", "below", "either"] = "either"
    z: float | None = 6.0
    trend: float | None = None
    floor: float = 0.0
    relative_floor: float = 0.0
    over: str | None = None
    votes: int = 1

    def __post_init__(self) -> None:
        if self.side not in ("above", "below", "either"):
            raise ArlError(f"side is {self.side!r}: choose one of above, below, either")
        if min(self.floor, self.relative_floor) < 0 or self.floor + self.relative_floor == 0:
            raise ArlError(
                f"{self.metric} needs a floor or relative_floor above 0: else any change of a still series is a sign"
            )
        if any(threshold is not None and threshold <= 0 for threshold in (self.z, self.trend)) or self.votes < 1:
            raise ArlError(f"{self.metric} needs z and trend above 0, or null, and votes of at least 1")

    @property
    def subject(self) -> str:
        """What is looked at."""
        return self.metric if self.over is None else f"{self.metric} ÷ {self.over}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that are looked at."""
        return (self.metric,) if self.over is None else (self.metric, self.over)

    def value(self, epoch: Epoch) -> float | None:
        """The epoch's value; None when it has none."""
        value = epoch.get(self.metric)
        if value is None or self.over is None:
            return value
        divisor = epoch.get(self.over, 0.0)
        return None if divisor <= 0 else value / divisor

    def change(self, earlier: Sequence[Epoch], values: Epoch, min_history: int) -> str | None:
        """A phrase that says how the epoch departs from the past, or where the window leads; None while it does not.

        Args:
            earlier: the epochs of the window before this one, oldest first.
            values: the epoch in question.
            min_history: fewest earlier values to judge by.
        """
        value = self.value(values)
        if value is None:
            return None
        if not math.isfinite(value):
            return f"{self.subject} is {value}"
        past = [known for epoch in earlier if (known := self.value(epoch)) is not None]
        if len(past) < min_history:
            return None
        middle = sorted(past)[len(past) // 2]
        floor = max(self.floor, self.relative_floor * abs(middle))
        if floor == 0 and spread(past) == 0:
            return None  # a metric that has always been 0 has no scale of its own
        if self.z is not None and self._unhealthy(score := z_score(past, value, floor), self.z):
            return f"{self.subject} is {value:.3g}, {_away(score)} its median of {len(past)} epochs"
        series = [*past, value]
        if self.trend is not None and self._unhealthy(score := trend_score(series, floor), self.trend):
            gone = slope(series) * (len(series) - 1)
            way = "risen" if score > 0 else "fallen"
            return f"{self.subject} has {way} by {abs(gone):.3g} over {len(series)} epochs to {value:.3g}"
        return None

    def _unhealthy(self, score: float, threshold: float) -> bool:
        upwards = score >= threshold and self.side != "below"
        return upwards or (score <= -threshold and self.side != "above")


def _away(score: float) -> str:
    return f"{abs(score):.1f} deviations {'above' if score > 0 else 'below'}"


def breaches(bounds: Sequence[Bound], values: Epoch) -> list[str]:
    """The phrases of all broken bounds, in the order of the bounds."""
    return [phrase for bound in bounds if (phrase := bound.breach(values)) is not None]


def read_signs(
    bounds: Sequence[Bound],
    changes: Mapping[str, Change],
    earlier: Sequence[Epoch],
    values: Epoch,
    min_history: int,
    bound_votes: int,
) -> list[Sign]:
    """All signs of an epoch: broken bounds first, then changes, each in its order.

    Args:
        bounds: limits, whatever the past was.
        changes: changes by name.
        earlier: the epochs of the window before this one, oldest first.
        values: the epoch in question.
        min_history: fewest earlier values to judge a change by.
        bound_votes: votes of a broken bound.
    """
    signs = [
        Sign(f"{bound.metric} bound", phrase, bound_votes)
        for bound in bounds
        if (phrase := bound.breach(values)) is not None
    ]
    signs += [
        Sign(name, phrase, change.votes)
        for name, change in changes.items()
        if (phrase := change.change(earlier, values, min_history)) is not None
    ]
    return signs


USUAL_CHANGES: Mapping[str, Change] = {
    "drift": Change("train/approx_kl", "above", z=6.0, floor=0.01),
    "valid_ratio": Change("train/valid_ratio", "below", z=5.0, trend=6.0, floor=0.02),
    "sinking_kl": Change(
        "train/sinking/kl", "above", z=8.0, floor=0.1, relative_floor=0.1, over="train/sinking/kl_others"
    ),
    "reference_kl": Change("train/kl", "above", z=8.0, floor=0.01, relative_floor=0.2),
    "grad_norm": Change("train/grad_norm", "above", z=8.0, relative_floor=0.25),
    "entropy": Change("train/entropy", "either", z=8.0, relative_floor=0.1),
    "falling_ratios": Change("train/ratio/falling_p05", "below", z=6.0, floor=0.04),
    "rising_ratios": Change("train/ratio/rising_p95", "above", z=6.0, floor=0.04),
    "repeated_tokens": Change("train/completions/repeat_ratio", "above", z=5.0, trend=6.0, floor=0.02),
    "distinct_ngrams": Change("train/completions/distinct_ratio", "below", z=5.0, trend=6.0, floor=0.02),
    "length": Change("train/completions/mean_length", "either", z=6.0, trend=8.0, relative_floor=0.1),
    "group_spread": Change("train/reward_std", "below", z=6.0, relative_floor=0.15),
    "success": Change("train/success_rate", "below", z=4.0, trend=5.0, floor=0.06),
}
"""What `CollapseWarning` looks at unless told otherwise."""
