"""Numbers over few seeds: bootstrap intervals, paired differences, and aggregates over tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from arl_lightning.envs.extras import load_extra

RESAMPLES = 10_000

Values = Sequence[float] | NDArray[np.float64]


class Estimate(NamedTuple):
    """A value with the ends of its 95 % interval, which are nan where one run cannot tell."""

    value: float
    low: float
    high: float


def mean(strata: Sequence[Values]) -> Estimate:
    """The mean over the means of all strata (tasks), whose runs are resampled within."""
    return _bootstrap(strata, lambda *parts: np.mean([part.mean(-1) for part in parts], axis=0))


def interquartile_mean(strata: Sequence[Values]) -> Estimate:
    """The mean of the middle half of all runs of all strata (tasks), whose runs are resampled within.

    Of n runs, n // 4 are left out at either end, so that with fewer than four it is the mean.

    Source: Agarwal et al., arXiv:2108.13264, sec. 4.3.
    """
    trim_mean = load_extra("scipy.stats", extra="study").trim_mean
    return _bootstrap(strata, lambda *parts: trim_mean(np.concatenate(parts, -1), 0.25, axis=-1))


def probability_of_improvement(strata: Sequence[tuple[Values, Values]]) -> Estimate:
    """How likely a run of the first is above one of the second, ties half, averaged over strata (tasks).

    Runs are drawn independently: 0.5 says nothing between them, and pairing by seed plays no part.

    Source: Agarwal et al., arXiv:2108.13264, sec. 4.3.
    """

    def share(*parts: NDArray[np.float64]) -> Any:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return np.mean([_share_above(ours, theirs) for ours, theirs in pairs], axis=0)

    return _bootstrap([values for pair in strata for values in pair], share)


def _share_above(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Any:
    over = ours[..., :, None] - theirs[..., None, :]
    return ((over > 0) + 0.5 * (over == 0)).mean((-2, -1))


def paired_difference(strata: Sequence[tuple[Values, Values]]) -> Estimate:
    """Mean of first minus second, seed by seed, then over strata (tasks)."""
    return mean([np.subtract(ours, theirs) for ours, theirs in strata])


def paired_p_value(ours: Values, theirs: Values) -> float:
    """Two-sided p of the paired t-test that means are equal; nan with fewer than two pairs, 1 where all are equal."""
    differences = np.subtract(ours, theirs)
    if len(differences) < 2:
        return float("nan")
    if np.ptp(differences) == 0:
        return 1.0 if differences[0] == 0 else 0.0
    return float(load_extra("scipy.stats", extra="study").ttest_rel(ours, theirs).pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """The p-values by name, each as the whole family bears it: Holm's step-down. Those that are nan stay out of it.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    known = sorted((p, name) for name, p in p_values.items() if p == p)  # nan differs from itself
    adjusted = dict(p_values)
    largest = 0.0
    for place, (p, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * p))
        adjusted[name] = largest
    return adjusted


def _bootstrap(strata: Sequence[Values], statistic: Callable[..., Any]) -> Estimate:
    """The statistic and its percentile interval; strata are resampled one by one, always with the same draws."""
    samples = [np.asarray(values, dtype=float) for values in strata]
    value = float(statistic(*samples))
    if any(len(sample) < 2 for sample in samples):
        return Estimate(value, float("nan"), float("nan"))
    interval = (
        load_extra("scipy.stats", extra="study")
        .bootstrap(
            samples,
            lambda *parts, axis: statistic(*parts),  # noqa: ARG005 - always the last
            n_resamples=RESAMPLES,
            vectorized=True,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        .confidence_interval
    )
    return Estimate(value, float(interval.low), float(interval.high))
