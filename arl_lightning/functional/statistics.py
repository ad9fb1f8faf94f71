"""Confidence intervals of rates."""

from __future__ import annotations

import math


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Lower and upper bound of a success probability, within [0, 1]; (0, 1) when nothing was tried.

    Unlike the normal interval it keeps its coverage near 0 and 1 and for few trials.

    Args:
        successes: number of successes, 0 to `trials`.
        trials: number of independent trials.
        z: normal quantile of the coverage; the default covers 95 %.

    Source: Wilson, Probable Inference, J. Am. Stat. Assoc. 22 (1927)
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials is impossible")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    shrink = 1 + z * z / trials
    middle = (rate + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)
