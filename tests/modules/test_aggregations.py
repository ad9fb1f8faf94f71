"""Aggregations: hand-computed values, degenerate totals, and invariance to splits, order and padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arl_lightning.functional.segments import count
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.protocols import Aggregation
from arl_lightning.types import ArlError, StepTotals

AGGREGATIONS: list[Aggregation] = [TokenMean(), SequenceMean(), SequenceSum(length=10)]
# Segment 1 has losses 1, 2, 3; segment 4 has 4 in row 0 and 6 in row 1; the rest is padding.
LOSS_NT = torch.tensor([[1.0, 2.0, 3.0, 4.0], [6.0, 99.0, 99.0, 99.0]], dtype=torch.float64)
IDS_NT = torch.tensor([[1, 1, 1, 4], [4, -1, -1, -1]])
ALL_NT = torch.ones(2, 4, dtype=torch.bool)
several_examples = settings(max_examples=30, deadline=None, derandomize=True)


def whole(aggregation: Aggregation, loss_NT: Tensor, mask_NT: Tensor, ids_NT: Tensor) -> Tensor:
    return aggregation.compute(loss_NT, mask_NT, ids_NT, count(mask_NT, ids_NT))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (TokenMean(), 3.2),  # 16/5
        (SequenceMean(), 3.5),  # (6/3 + 10/2)/2
        (SequenceSum(length=10), 0.8),  # 16/(2 · 10)
    ],
)
def test_hand_computed_values(aggregation: Aggregation, expected: float) -> None:
    assert whole(aggregation, LOSS_NT, ALL_NT, IDS_NT).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (TokenMean(), 3.0),  # 6/2 over the kept losses 2 and 4
        (SequenceMean(), 3.0),  # (2/1 + 4/1)/2
        (SequenceSum(length=10), 0.3),  # 6/(2 · 10)
    ],
)
def test_masked_tokens_leave_numerator_and_denominator(aggregation: Aggregation, expected: float) -> None:
    mask_NT = torch.tensor([[False, True, False, True], [False, True, True, True]])
    assert whole(aggregation, LOSS_NT, mask_NT, IDS_NT).item() == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_dropped_segment_leaves_the_denominator(aggregation: Aggregation) -> None:
    mask_NT = IDS_NT == 1
    alone = whole(aggregation, LOSS_NT[:1, :3], mask_NT[:1, :3], IDS_NT[:1, :3])
    torch.testing.assert_close(whole(aggregation, LOSS_NT, mask_NT, IDS_NT), alone)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("totals", [StepTotals(0, 0), StepTotals(5, 2)])
def test_nothing_kept_is_zero_and_still_in_the_graph(aggregation: Aggregation, totals: StepTotals) -> None:
    loss_NT = LOSS_NT.clone().requires_grad_()
    loss = aggregation.compute(loss_NT, ~ALL_NT, IDS_NT, totals)
    (gradient_NT,) = torch.autograd.grad(loss, loss_NT)
    assert loss.item() == 0.0
    assert gradient_NT.eq(0).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_zero_totals_silence_even_kept_tokens(aggregation: Aggregation) -> None:
    assert aggregation.compute(LOSS_NT, ALL_NT, IDS_NT, StepTotals(0, 0)).item() == 0.0


def test_impossible_length_is_refused() -> None:
    with pytest.raises(ArlError, match="length is 0"):
        SequenceSum(length=0)


def rows(seed: int, row_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random losses, mask and ids in which each row holds up to two segments of its own."""
    generator = torch.Generator().manual_seed(seed)
    loss_NT = torch.randn(row_count, 5, generator=generator, dtype=torch.float64)
    mask_NT = torch.rand(row_count, 5, generator=generator) < 0.7
    ids_NT = 2 * torch.arange(row_count).unsqueeze(1) + (torch.arange(5) >= 2)
    is_padding_NT = torch.rand(row_count, 5, generator=generator) < 0.3
    return loss_NT, mask_NT, ids_NT.masked_fill(is_padding_NT, -1)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@several_examples
@given(seed=st.integers(0, 10_000), row_count=st.integers(1, 6), cut=st.integers(0, 6))
def test_any_split_has_the_loss_and_gradient_of_the_whole(
    aggregation: Aggregation, seed: int, row_count: int, cut: int
) -> None:
    loss_NT, mask_NT, ids_NT = rows(seed, row_count)
    totals = count(mask_NT, ids_NT)
    loss_NT.requires_grad_()
    together = aggregation.compute(loss_NT, mask_NT, ids_NT, totals)
    shares = [
        aggregation.compute(loss_NT[part], mask_NT[part], ids_NT[part], totals)
        for part in (slice(0, cut), slice(cut, row_count))
    ]
    torch.testing.assert_close(shares[0] + shares[1], together)
    (expected_NT,) = torch.autograd.grad(together, loss_NT)
    (found_NT,) = torch.autograd.grad(shares[0] + shares[1], loss_NT)
    torch.testing.assert_close(found_NT, expected_NT)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@several_examples
@given(seed=st.integers(0, 10_000), order=st.permutations(range(4)))
def test_order_of_rows_does_not_matter(aggregation: Aggregation, seed: int, order: list[int]) -> None:
    loss_NT, mask_NT, ids_NT = rows(seed, 4)
    permuted = whole(aggregation, loss_NT[order], mask_NT[order], ids_NT[order])
    torch.testing.assert_close(permuted, whole(aggregation, loss_NT, mask_NT, ids_NT))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@several_examples
@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), value=st.sampled_from([0.0, 7.0, float("nan")]))
def test_padding_does_not_matter(aggregation: Aggregation, seed: int, width: int, value: float) -> None:
    loss_NT, mask_NT, ids_NT = rows(seed, 3)
    pad = torch.nn.functional.pad
    padded = whole(
        aggregation,
        pad(loss_NT, (0, width, 0, 1), value=value),
        pad(mask_NT, (0, width, 0, 1), value=True),
        pad(ids_NT, (0, width, 0, 1), value=-1),
    )
    torch.testing.assert_close(padded, whole(aggregation, loss_NT, mask_NT, ids_NT))
