"""Baselines and scales of advantages: statistics of at most some hundreds of plain floats.

A group that is empty, has one member, or has equal values gives exactly 0 for every member, by every function here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

from arl_lightning.types import ArlError

Scale = Literal["std", "none"]
Normalizer = Callable[[Sequence[float], Sequence[int]], list[float]]
"""From the values and the integer weights of a group's members to one advantage a member."""

_STD_EPSILON = 1e-6


def mean(values_G: Sequence[float]) -> float:
    """Arithmetic mean with an exact sum, 0 when there are no values."""
    return math.fsum(values_G) / max(len(values_G), 1)


def center(values_G: Sequence[float], weights_G: Sequence[int]) -> list[float]:
    """Values less their mean, in which a value of weight n counts as n equal ones."""
    # A test of equality rather than of rounding: the mean of equal floats need not be that float.
    if len(set(values_G)) < 2:
        return [0.0] * len(values_G)
    total = math.fsum(weight * value for value, weight in zip(values_G, weights_G, strict=True))
    average = total / sum(weights_G)
    return [value - average for value in values_G]


def standardize(
    values_G: Sequence[float], weights_G: Sequence[int], std_floor: float, clip: float | None
) -> list[float]:
    """(value − mean) / (max(std, std_floor) + 1e-6), cut to ±clip; std is the unbiased one, weights count copies."""
    deviations_G = center(values_G, weights_G)
    squares = math.fsum(weight * d * d for d, weight in zip(deviations_G, weights_G, strict=True))
    std = math.sqrt(squares / max(sum(weights_G) - 1, 1))
    bound = math.inf if clip is None else clip
    divisor = max(std, std_floor) + _STD_EPSILON
    return [min(max(d / divisor, -bound), bound) for d in deviations_G]


def normalizer(scale: Scale, std_floor: float, clip: float | None) -> Normalizer:
    """`standardize` with its knobs bound for scale "std", `center` (which has no knobs) for scale "none".

    Raises:
        ArlError: a scale of another name, a negative floor, or a clip that is not positive.
    """
    if not 0 <= std_floor < math.inf:
        raise ArlError(f"std_floor is {std_floor}, but a standard deviation is at least 0: set it to 0 or more")
    if clip is not None and not clip > 0:
        raise ArlError(f"clip is {clip}, which would leave no advantage: set it above 0, or to null for no limit")
    choices: dict[str, Normalizer] = {
        "std": partial(standardize, std_floor=std_floor, clip=clip),
        "none": center,
    }
    if scale not in choices:
        raise ArlError(f"scale is {scale!r}: choose one of {', '.join(choices)}")
    return choices[scale]


def leave_one_out(values_G: Sequence[float]) -> list[float]:
    """Each value less the mean of the others: n/(n−1) · (value − mean)."""
    size = len(values_G)
    factor = size / max(size - 1, 1)
    return [factor * deviation for deviation in center(values_G, [1] * size)]


def discounted_returns(rewards_K: Sequence[float], gamma: float) -> list[float]:
    """R_k = r_k + gamma · R_{k+1} of each turn, the last turn's return being its reward."""
    backwards = accumulate(reversed(rewards_K), lambda later, reward: reward + gamma * later)
    return list(backwards)[::-1]


def anchor_groups(keys: Sequence[Hashable]) -> list[list[int]]:
    """Positions that share a key, one list a key, in order of first appearance."""
    positions: dict[Hashable, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        positions[key].append(position)
    return list(positions.values())


def min_max(values: Sequence[float]) -> list[float]:
    """Values mapped linearly to [0, 1], smallest to 0 and largest to 1; all 0 when they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    width = (high - low) or 1.0
    return [(value - low) / width for value in values]


def entropy_gains(uncertainties: Sequence[float], k: float) -> list[float]:
    """exp(−k·h) over its mean: positive, of mean 1, larger for surer turns.

    Source: Harnessing Uncertainty (EMPG), arXiv:2509.09265, self-calibrating gradient scaling
    """
    confidences = [math.exp(-k * h) for h in uncertainties]
    average = mean(confidences)
    return [confidence / average for confidence in confidences]
