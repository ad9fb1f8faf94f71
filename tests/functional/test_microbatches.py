"""Passes: complete, within their budget, of like lengths, and never through a segment."""

from hypothesis import given
from hypothesis import strategies as st

from arl_lightning.functional.microbatches import adjacent_units, pack_units


def units_of(*segments: set[int]) -> list[range]:
    return adjacent_units([frozenset(row) for row in segments])


def test_neighbours_that_share_a_segment_stay_together() -> None:
    assert units_of({1}, {1, 2}, {2}, {3}, {4}) == [range(3), range(3, 4), range(4, 5)]


def test_rows_without_a_segment_stand_alone() -> None:
    assert units_of(set(), set(), {1}) == [range(1), range(1, 2), range(2, 3)]


def test_no_row_makes_no_unit_and_no_pass() -> None:
    assert units_of() == []
    assert pack_units([], [], max_tokens=10) == []


def test_padding_counts_towards_the_budget_and_like_lengths_share_a_pass() -> None:
    units = [[row] for row in range(4)]
    # longest first: 4 and 3 take 2 × 4 = 8, a third row would make 12; then 2 and 1 take 2 × 2
    assert pack_units(units, [2, 3, 4, 1], max_tokens=8) == [[2, 1], [0, 3]]


def test_a_unit_above_the_budget_goes_alone() -> None:
    assert pack_units([range(1), range(1, 3), range(3, 4)], [1, 9, 9, 1], max_tokens=8) == [[1, 2], [0, 3]]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=12),
    st.integers(1, 40),
)
def test_passes_cover_all_rows_once_and_fit(sizes: list[tuple[int, int]], max_tokens: int) -> None:
    units: list[range] = []
    lengths: list[int] = []
    for rows, length in sizes:
        units.append(range(len(lengths), len(lengths) + rows))
        lengths += [length] * rows
    passes = pack_units(units, lengths, max_tokens)
    assert sorted(row for rows in passes for row in rows) == list(range(len(lengths)))
    for unit in units:
        assert sum(set(unit) <= set(one) for one in passes) == 1  # whole, in one pass
    for one in passes:
        alone = any(one == list(unit) for unit in units)
        assert alone or len(one) * max(lengths[row] for row in one) <= max_tokens
