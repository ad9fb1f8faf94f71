"""Passes: consecutive, complete, within their budget, and never through a segment."""

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


def test_padding_counts_towards_the_budget() -> None:
    units = [range(i, i + 1) for i in range(4)]
    # rows of 2 and 3 tokens fill 2 × 3 = 6; a third of 4 tokens would make 3 × 4 = 12; 2 × 4 = 8 fits again
    assert pack_units(units, [2, 3, 4, 1], max_tokens=8) == [range(2), range(2, 4)]


def test_a_unit_above_the_budget_goes_alone() -> None:
    assert pack_units([range(1), range(1, 3), range(3, 4)], [1, 9, 9, 1], max_tokens=8) == [
        range(1),
        range(1, 3),
        range(3, 4),
    ]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=12),
    st.integers(1, 40),
)
def test_passes_cover_all_rows_in_order_and_fit(sizes: list[tuple[int, int]], max_tokens: int) -> None:
    units: list[range] = []
    lengths: list[int] = []
    for rows, length in sizes:
        units.append(range(len(lengths), len(lengths) + rows))
        lengths += [length] * rows
    passes = pack_units(units, lengths, max_tokens)
    assert [row for rows in passes for row in rows] == list(range(len(lengths)))
    starts = {unit.start for unit in units}
    for one in passes:
        assert one.start in starts
        assert one in units or len(one) * max(lengths[row] for row in one) <= max_tokens
