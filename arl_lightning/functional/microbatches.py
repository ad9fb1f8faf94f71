"""Cutting rows into passes that fit, never through a segment."""

from __future__ import annotations

from collections.abc import Sequence


def adjacent_units(segments_of_row: Sequence[frozenset[int]]) -> list[range]:
    """Runs of neighbouring rows that share segments: what must stay in one pass."""
    starts = [i for i, now in enumerate(segments_of_row) if i == 0 or not now & segments_of_row[i - 1]]
    stops = [*starts, len(segments_of_row)][1:]  # none where there is no row
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def pack_units(units: Sequence[range], lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Consecutive units joined while rows × longest row stays within `max_tokens`; a larger unit goes alone."""
    passes: list[range] = []
    longest = 0
    for unit in units:
        unit_longest = max(lengths[row] for row in unit)
        if passes and (unit.stop - passes[-1].start) * max(longest, unit_longest) <= max_tokens:
            passes[-1] = range(passes[-1].start, unit.stop)
            longest = max(longest, unit_longest)
        else:
            passes.append(unit)
            longest = unit_longest
    return passes
