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
        slack: how far from its best epoch so far the metric may be, though that is beyond `limit`, so that a run which
            starts outside is judged by its own start until it is well inside; null lets `limit` hold from the start.
    """

    metric: str
    limit: float
    above: bool
    slack: float | None = None

    def breach(self, values: Epoch, best: Epoch | None = None) -> str | None:
        """A phrase that says how the bound is broken; None while it holds or the metric is absent.

        Args:
            values: the epoch in question.
            best: best values so far, this epoch's included.
        """
        value, limit = values.get(self.metric), self._limit((best or {}).get(self.metric))
        # a NaN is on neither side and must not pass as healthy
        healthy = value is None or (value <= limit if self.above else value >= limit)
        return None if healthy else f"{self.metric} is {value:.3g}, {'over' if self.above else 'under'} {limit:.3g}"

    def better(self, one: float | None, other: float | None) -> float | None:
        """The healthier of two values; None and values that are not finite are worse than any."""
        known = [value for value in (one, other) if value is not None and math.isfinite(value)]
        return (min if self.above else max)(known, default=None)

    def _limit(self, best: float | None) -> float:
        if self.slack is None or best is None:
            return self.limit
        return max(self.limit, best + self.slack) if self.above else min(self.limit, best - self.slack)


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
        if value is not None and not math.isfinite(value):
            return f"{self.subject} is {value}"
        scores = self.scores(earlier, values, min_history)
        if scores is None:
            return None
        series = self._series(earlier, values)
        if self.z is not None and self._unhealthy(scores[0], self.z):
            return f"{self.subject} is {value:.3g}, {_away(scores[0])} its median of {len(series) - 1} epochs"
        if self.trend is not None and self._unhealthy(scores[1], self.trend):
            gone = slope(series) * (len(series) - 1)
            way = "risen" if gone > 0 else "fallen"
            return f"{self.subject} has {way} by {abs(gone):.3g} over {len(series)} epochs to {value:.3g}"
        return None

    def scores(self, earlier: Sequence[Epoch], values: Epoch, min_history: int) -> tuple[float, float] | None:
        """Deviations of the epoch from its past, and of the window's slope; None where there is nothing to judge.

        Args:
            earlier: the epochs of the window before this one, oldest first.
            values: the epoch in question.
            min_history: fewest earlier values to judge by.
        """
        *past, value = self._series(earlier, values) or [math.nan]
        if len(past) < min_history or not math.isfinite(value):
            return None
        middle = sorted(past)[len(past) // 2]
        floor = max(self.floor, self.relative_floor * abs(middle))
        if floor == 0 and spread(past) == 0:
            return None  # a metric that has always been 0 has no scale of its own
        return z_score(past, value, floor), trend_score([*past, value], floor)

    def _series(self, earlier: Sequence[Epoch], values: Epoch) -> list[float]:
        """All values that there are; empty when the epoch has none."""
        if self.value(values) is None:
            return []
        return [known for epoch in (*earlier, values) if (known := self.value(epoch)) is not None]

    def _unhealthy(self, score: float, threshold: float) -> bool:
        upwards = score >= threshold and self.side != "below"
        return upwards or (score <= -threshold and self.side != "above")


def _away(score: float) -> str:
    return f"{abs(score):.1f} deviations {'above' if score > 0 else 'below'}"


def read_signs(
    bounds: Sequence[Bound],
    changes: Mapping[str, Change],
    earlier: Sequence[Epoch],
    values: Epoch,
    min_history: int,
    bound_votes: int,
    best: Epoch | None = None,
) -> list[Sign]:
    """All signs of an epoch: broken bounds first, then changes, each in its order.

    Args:
        bounds: limits, which hold without a past too.
        changes: changes by name.
        earlier: the epochs of the window before this one, oldest first.
        values: the epoch in question.
        min_history: fewest earlier values to judge a change by.
        bound_votes: votes of a broken bound.
        best: best values so far, by metric of a bound, this epoch's included.
    """
    signs = [
        Sign(f"{bound.metric} bound", phrase, bound_votes)
        for bound in bounds
        if (phrase := bound.breach(values, best)) is not None
    ]
    signs += [
        Sign(name, phrase, change.votes)
        for name, change in changes.items()
        if (phrase := change.change(earlier, values, min_history)) is not None
    ]
    return signs


USUAL_CHANGES: Mapping[str, Change] = {
    "drift": Change("train/approx_kl", "above", z=2.7, trend=2.0, floor=0.01),
    "valid_ratio": Change("train/valid_ratio", "below", z=5.0, trend=6.0, floor=0.02),
    "sinking_kl": Change(
        "train/sinking/kl", "above", z=7.2, trend=6.6, floor=0.1, relative_floor=0.1, over="train/sinking/kl_others"
    ),
    "reference_kl": Change("train/kl", "above", z=10.4, trend=8.4, floor=0.01, relative_floor=0.2, votes=2),
    "grad_norm": Change("train/grad_norm", "above", z=8.0, relative_floor=0.25),
    "entropy": Change("train/entropy", "either", z=8.0, relative_floor=0.1),
    "falling_ratios": Change("train/ratio/falling_p05", "below", z=3.0, trend=2.7, floor=0.04),
    "rising_ratios": Change("train/ratio/rising_p95", "above", z=2.0, trend=2.0, floor=0.04),
    "repeated_tokens": Change("train/completions/repeat_ratio", "above", z=5.0, trend=6.0, floor=0.02),
    "distinct_ngrams": Change("train/completions/distinct_ratio", "below", z=5.0, trend=6.0, floor=0.02),
    "length": Change("train/completions/mean_length", "either", z=6.0, trend=8.0, relative_floor=0.1),
    "group_spread": Change("train/reward_std", "below", z=3.1, trend=4.3, relative_floor=0.15),
    "reward": Change("train/reward", "below", z=4.0, trend=5.4, floor=0.05, relative_floor=0.1),
    "success": Change("train/success_rate", "below", z=4.1, trend=4.8, floor=0.06),
}
"""What `CollapseWarning` looks at unless told otherwise.

Thresholds of drift, KL, ratios, spread, reward and success are what 2 % of the epochs of healthy runs reach in
`benchmarks/collapse`; the others saw no collapse there and were set by hand.
"""
