"""Segments: sums, means and counts over tokens that share an id."""

import math

import torch

from arl_lightning.functional.segments import (
    count,
    expand_segments,
    restrict_segments,
    segment_index,
    segment_mean,
    segment_sum,
)
from arl_lightning.types import StepTotals

# Segment 7 spans both rows; ids need not be dense.
IDS_NT = torch.tensor([[-1, 3, 3, 7], [7, 7, 20, -1]])
VALUES_NT = torch.tensor([[9.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 9.0]])
NO_IDS_NT = torch.full((2, 3), -1)


def test_index_is_dense_and_padding_has_the_spare_bin() -> None:
    index_NT, size = segment_index(IDS_NT)
    assert size == 3
    assert index_NT.tolist() == [[3, 0, 0, 1], [1, 1, 2, 3]]


def test_sum_and_mean_join_rows_of_one_segment() -> None:
    # 1+2, 3+4+5, 6
    assert segment_sum(VALUES_NT, IDS_NT).tolist() == [3.0, 12.0, 6.0]
    assert segment_mean(VALUES_NT, IDS_NT).tolist() == [1.5, 4.0, 6.0]


def test_expanded_value_stands_at_each_token_and_padding_is_zero() -> None:
    expanded_NT = expand_segments(torch.tensor([1.5, 4.0, 6.0]), IDS_NT)
    assert expanded_NT.tolist() == [[0.0, 1.5, 1.5, 4.0], [4.0, 4.0, 6.0, 0.0]]


def test_nan_in_padding_reaches_neither_value_nor_gradient() -> None:
    values_NT = VALUES_NT.masked_fill(IDS_NT < 0, math.nan).requires_grad_()
    segment_mean(values_NT, IDS_NT).sum().backward()  # type: ignore[no-untyped-call]
    assert values_NT.grad is not None
    # one over the segment's count: 1/2, 1/3, 1/1
    expected_NT = torch.tensor([[0, 1 / 2, 1 / 2, 1 / 3], [1 / 3, 1 / 3, 1, 0]])
    torch.testing.assert_close(values_NT.grad, expected_NT)


def test_empty_mask_gives_no_segments_and_zero_gradient() -> None:
    values_NT = torch.ones(2, 3, requires_grad=True)
    mean_S = segment_mean(values_NT, NO_IDS_NT)
    assert mean_S.shape == (0,)
    mean_S.sum().backward()  # type: ignore[no-untyped-call]
    assert values_NT.grad is not None
    assert values_NT.grad.eq(0).all()
    assert expand_segments(mean_S, NO_IDS_NT).tolist() == [[0.0] * 3] * 2


def test_count_takes_kept_tokens_and_the_segments_that_have_one() -> None:
    mask_NT = torch.tensor([[True, True, False, False], [False, True, False, True]])
    # kept action tokens: one of segment 3, one of segment 7; the two True at id -1 are no actions
    assert count(mask_NT, IDS_NT) == StepTotals(tokens=2, segments=2)
    assert restrict_segments(IDS_NT, mask_NT).tolist() == [[-1, 3, -1, -1], [-1, 7, -1, -1]]


def test_count_of_nothing_is_zero() -> None:
    assert count(torch.ones(2, 3, dtype=torch.bool), NO_IDS_NT) == StepTotals(0, 0)
    assert count(torch.zeros(0, 4, dtype=torch.bool), torch.zeros(0, 4, dtype=torch.int64)) == StepTotals(0, 0)
