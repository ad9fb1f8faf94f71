"""Medians instead of means: how unusual a value is, and which way a series goes, untroubled by single outliers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

_MAD_TO_SIGMA = 1.4826
"""Makes the median absolute deviation of normal noise its standard deviation."""


def spread(values: Sequence[float], floor: float = 0.0) -> float:
    """1.4826 · median |value − median|, at least `floor`; of fewer than two values the floor."""
    if not values:
        return floor
    middle = median(values)
    return max(_MAD_TO_SIGMA * median(abs(value - middle) for value in values), floor)


def z_score(earlier: Sequence[float], value: float, floor: float) -> float:
    """How many robust deviations `value` lies above the median of `earlier` (negative: below).

    Args:
        earlier: at least one value to compare with.
        value: the value in question.
        floor: the least deviation assumed, above 0: a series that stood still would make any change infinite.

    Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993
    """
    return (value - median(earlier)) / spread(earlier, floor)


def slope(values: Sequence[float]) -> float:
    """Median of the slopes of all pairs, a step; 0 for fewer than two values.

    Source: Sen, Estimates of the Regression Coefficient Based on Kendall's Tau, J. Am. Stat. Assoc. 63 (1968)
    """
    pairs = combinations(enumerate(values), 2)
    return median([(later - sooner) / (j - i) for (i, sooner), (j, later) in pairs] or [0.0])


def trend_score(values: Sequence[float], floor: float) -> float:
    """How many robust deviations the series has gone from first to last along its slope (negative: down).

    The deviation is that of what the line leaves over, at least `floor`, so that noise without direction scores low.
    """
    step = slope(values)
    rest = [value - step * i for i, value in enumerate(values)]
    return step * (len(values) - 1) / spread(rest, floor)
