"""Signs that a run is about to collapse, as pure decisions over an epoch's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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

    def breach(self, values: Mapping[str, float]) -> str | None:
        """A phrase that says how the bound is broken; None while it holds or the metric is absent."""
        value = values.get(self.metric)
        # a NaN is on neither side and must not pass as healthy
        healthy = value is None or (value <= self.limit if self.above else value >= self.limit)
        return None if healthy else f"{self.metric} is {value:.3g}, {'over' if self.above else 'under'} {self.limit:g}"


def breaches(bounds: Sequence[Bound], values: Mapping[str, float]) -> list[str]:
    """The phrases of all broken bounds, in the order of the bounds."""
    return [phrase for bound in bounds if (phrase := bound.breach(values)) is not None]
