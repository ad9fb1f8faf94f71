"""Cutting rows into passes that fit, never through a segment."""

from __future__ import annotations

from collections.abc import Sequence


def adjacent_units(segments_of_row: Sequence[frozenset[int]]) -> list[range]:
    """Runs of neighbouring rows that share segments: what must stay in one pass."""
    starts = [i for i, now in enumerate(segments_of_row) if i == 0 or not now & segments_of_row[i - 1]]
    stops = [*starts, len(segments_of_row)][1:]  # none where there is no row
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def pack_units(units: Sequence[Sequence[int]], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Units joined, longest first, while rows × longest row stays within `max_tokens`; a larger unit goes alone.

    Rows of like length share a pass, so that little of it is padding.
    """
    longest_first = sorted(units, key=lambda unit: max(lengths[row] for row in unit), reverse=True)
    passes: list[list[int]] = []
    width = 0
    for unit in longest_first:
        if passes and (len(passes[-1]) + len(unit)) * width <= max_tokens:
            passes[-1] += unit
        else:
            passes.append(list(unit))
            width = max(lengths[row] for row in unit)
    return passes
