"""Surrogates: hand-computed losses, gradients against finite differences, limits and padding."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.segments import count
from arl_lightning.modules.aggregations import SequenceMean, TokenMean
from arl_lightning.modules.surrogates import ClippedWeight, SequenceClip, SoftGate, TokenClip
from arl_lightning.protocols import Surrogate
from arl_lightning.types import ArlError

SURROGATES: list[Surrogate] = [TokenClip(), TokenClip(dual=3.0), SequenceClip(), ClippedWeight(), SoftGate()]
EXACT: list[Surrogate] = [
    TokenClip(),
    TokenClip(0.05, 0.05),
    SequenceClip(0.5, 0.5),
    SequenceClip(0.01, 0.01),
    SoftGate(),
]

OLD_NT = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
NEW_NT = torch.tensor([[-1.01, -2.03]], dtype=torch.float64)
ONE_SEGMENT_NT = torch.zeros(1, 2, dtype=torch.int64)

# Two rows of four positions; segment 4 lies in both rows, the last position of row 0 is padding.
IDS_NT = torch.tensor([[2, 2, 4, -1], [4, 4, 9, 9]])
ADVANTAGES_NT = torch.tensor([[0.7, 0.7, -1.3, 0.0], [-1.3, -1.3, 0.4, 0.4]], dtype=torch.float64)
ACTIONS_NT = torch.tensor([[0, 3, 1, 0], [2, 2, 1, 0]])


def chosen_logprobs(logits_NTV: Tensor) -> Tensor:
    return logits_NTV.log_softmax(-1).gather(-1, ACTIONS_NT.unsqueeze(-1)).squeeze(-1)


def logits(seed: int, width: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return width * torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)


def mean_loss(surrogate: Surrogate, logprobs_NT: Tensor, old_NT: Tensor) -> Tensor:
    loss_NT = surrogate.compute(logprobs_NT, old_NT, ADVANTAGES_NT, IDS_NT).loss_NT
    mask_NT = IDS_NT >= 0
    return TokenMean().compute(loss_NT, mask_NT, IDS_NT, count(mask_NT, IDS_NT))


def gradient(loss_of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss_of(leaf), leaf)
    return found


@pytest.mark.parametrize(
    ("surrogate", "advantage", "expected"),
    [
        (TokenClip(), -1.0, 0.980248),  # (0.990050 + 0.970446)/2, both within [0.8, 1.2]
        (TokenClip(), 1.0, -0.980248),
        (SequenceClip(), -1.0, 0.997),  # s = 0.980199 below 1 - 3e-3
        (SequenceClip(), 1.0, -0.980199),
        (SoftGate(), -1.0, 1.885011),  # 4/1.05 · (σ(-0.010447) + σ(-0.031032))/2 = 3.809524 · 0.494815
        (SoftGate(), 1.0, -1.980248),  # 4 · (σ(-0.009950) + σ(-0.029554))/2 = 4 · 0.495062
        (ClippedWeight(), -1.0, -1.484977),  # (0.990050 · -1.01 + 0.970446 · -2.03)/2
        (ClippedWeight(), 1.0, 1.484977),
    ],
)
def test_hand_computed_means(surrogate: Surrogate, advantage: float, expected: float) -> None:
    advantages_NT = torch.full((1, 2), advantage, dtype=torch.float64)
    loss_NT = surrogate.compute(NEW_NT, OLD_NT, advantages_NT, ONE_SEGMENT_NT).loss_NT
    assert loss_NT.mean().item() == pytest.approx(expected, abs=1e-6)


def segment_mean_gradient(surrogate: Surrogate, advantage: float) -> list[float]:
    def loss_of(logprobs_NT: Tensor) -> Tensor:
        advantages_NT = torch.full((1, 2), advantage, dtype=torch.float64)
        loss_NT = surrogate.compute(logprobs_NT, OLD_NT, advantages_NT, ONE_SEGMENT_NT).loss_NT
        mask_NT = ONE_SEGMENT_NT >= 0
        return SequenceMean().compute(loss_NT, mask_NT, ONE_SEGMENT_NT, count(mask_NT, ONE_SEGMENT_NT))

    gradient_N: list[list[float]] = gradient(loss_of, NEW_NT).tolist()
    return gradient_N[0]


def test_clipped_segment_has_exactly_zero_gradient() -> None:
    assert segment_mean_gradient(SequenceClip(), -1.0) == [0.0, 0.0]


def test_unclipped_segment_shares_its_ratio_among_its_tokens() -> None:
    # -s/T = -0.980199/2
    assert segment_mean_gradient(SequenceClip(), 1.0) == pytest.approx([-0.490099] * 2, abs=1e-6)


def test_clipped_weight_gradient_is_the_weight() -> None:
    # -w·A/T with A = 1: 0.990050/2 and 0.970446/2
    assert segment_mean_gradient(ClippedWeight(), 1.0) == pytest.approx([-0.495025, -0.485223], abs=1e-6)
    # low 0.02 raises the second weight to 0.98, and its gradient stays
    assert segment_mean_gradient(ClippedWeight(low=0.02), 1.0) == pytest.approx([-0.495025, -0.49], abs=1e-6)


@pytest.mark.parametrize("surrogate", EXACT)
@pytest.mark.parametrize("width", [0.01, 0.3])
def test_gradient_is_that_of_the_value(surrogate: Surrogate, width: float) -> None:
    old_NT = chosen_logprobs(logits(0))
    moved_NTV = (logits(0) + logits(1, width)).requires_grad_()

    def loss_of(logits_NTV: Tensor) -> Tensor:
        return mean_loss(surrogate, chosen_logprobs(logits_NTV), old_NT)

    assert torch.autograd.gradcheck(loss_of, (moved_NTV,), eps=1e-7, atol=1e-7)


def test_clipped_weight_gradient_is_that_of_the_frozen_weighted_likelihood() -> None:
    old_NT = chosen_logprobs(logits(0))
    moved_NTV = logits(0) + logits(1, 0.3)
    weight_NT = (chosen_logprobs(moved_NTV) - old_NT).exp().clamp(0.0, 1.2)
    mask_NT = IDS_NT >= 0

    def frozen(logits_NTV: Tensor) -> Tensor:
        return -(weight_NT * ADVANTAGES_NT * chosen_logprobs(logits_NTV))[mask_NT].mean()

    assert torch.autograd.gradcheck(frozen, (moved_NTV.clone().requires_grad_(),))
    found_NTV = gradient(lambda x_NTV: mean_loss(ClippedWeight(), chosen_logprobs(x_NTV), old_NT), moved_NTV)
    torch.testing.assert_close(found_NTV, gradient(frozen, moved_NTV))


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_on_policy_all_surrogates_have_the_policy_gradient(surrogate: Surrogate) -> None:
    at_NTV = logits(0)
    old_NT = chosen_logprobs(at_NTV)
    found_NTV = gradient(lambda x_NTV: mean_loss(surrogate, chosen_logprobs(x_NTV), old_NT), at_NTV)
    # -A·(onehot - p)/7 at each of the 7 action tokens; A is 0 at the padding
    onehot_NTV = torch.nn.functional.one_hot(ACTIONS_NT, 4)
    expected_NTV = -ADVANTAGES_NT.unsqueeze(-1) * (onehot_NTV - at_NTV.softmax(-1)) / 7
    torch.testing.assert_close(found_NTV, expected_NTV)
    assert not surrogate.compute(old_NT, old_NT, ADVANTAGES_NT, IDS_NT).clipped_NT.any()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_padding_is_zero_even_when_it_holds_nan(surrogate: Surrogate) -> None:
    padding_NT = IDS_NT < 0
    new_NT = chosen_logprobs(logits(1)).masked_fill(padding_NT, -math.inf).requires_grad_()
    old_NT = chosen_logprobs(logits(0)).masked_fill(padding_NT, -math.inf)
    found = surrogate.compute(new_NT, old_NT, ADVANTAGES_NT.masked_fill(padding_NT, math.nan), IDS_NT)
    (gradient_NT,) = torch.autograd.grad(found.loss_NT.sum(), new_NT)
    assert found.loss_NT[padding_NT].eq(0).all()
    assert not found.clipped_NT[padding_NT].any()
    assert gradient_NT[padding_NT].eq(0).all()
    assert gradient_NT.isfinite().all()


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_empty_mask_gives_zero_loss_and_zero_gradient(surrogate: Surrogate) -> None:
    logprobs_NT = torch.zeros(1, 2, requires_grad=True)
    found = surrogate.compute(logprobs_NT, torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), -1))
    (gradient_NT,) = torch.autograd.grad(found.loss_NT.sum(), logprobs_NT)
    assert found.loss_NT.tolist() == gradient_NT.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("nats", [-300.0, 300.0])
def test_far_off_policy_is_finite(surrogate: Surrogate, advantage: float, nats: float) -> None:
    logprobs_NT = torch.full((1, 2), nats, requires_grad=True)
    found = surrogate.compute(logprobs_NT, torch.zeros(1, 2), torch.full((1, 2), advantage), ONE_SEGMENT_NT)
    (gradient_NT,) = torch.autograd.grad(found.loss_NT.sum(), logprobs_NT)
    assert found.loss_NT.isfinite().all()
    assert gradient_NT.isfinite().all()


def test_float32_stays_float32() -> None:
    for surrogate in SURROGATES:
        ones_NT = torch.ones(1, 2)
        assert surrogate.compute(-ones_NT, -ones_NT, ones_NT, ONE_SEGMENT_NT).loss_NT.dtype == torch.float32


def test_dual_clip_bounds_what_a_negative_advantage_can_cost() -> None:
    # w = e² = 7.389: without dual -A·w = 7.389, with dual 3 it is 3 and flat; A > 0 is clipped by high alone
    logprobs_NT = torch.full((1, 2), 2.0, requires_grad=True)
    advantages_NT = torch.tensor([[-1.0, 1.0]])
    found = TokenClip(dual=3.0).compute(logprobs_NT, torch.zeros(1, 2), advantages_NT, ONE_SEGMENT_NT)
    (gradient_NT,) = torch.autograd.grad(found.loss_NT.sum(), logprobs_NT)
    torch.testing.assert_close(found.loss_NT, torch.tensor([[3.0, -1.2]]))
    assert found.clipped_NT.all()
    assert gradient_NT.tolist() == [[0.0, 0.0]]
    plain = TokenClip().compute(logprobs_NT, torch.zeros(1, 2), advantages_NT, ONE_SEGMENT_NT)
    assert plain.clipped_NT.tolist() == [[False, True]]


def test_clipped_weight_reports_ratios_outside_its_band_whatever_the_advantage() -> None:
    # w = 1.65, 0.61, 1.11 against [0.7, 1.2]
    logprobs_NT = torch.tensor([[0.5, -0.5, 0.1]])
    ids_NT = torch.tensor([[0, 0, 0]])
    for advantage in (-1.0, 1.0):
        advantages_NT = torch.full((1, 3), advantage)
        found = ClippedWeight(low=0.3, high=0.2).compute(logprobs_NT, torch.zeros(1, 3), advantages_NT, ids_NT)
        assert found.clipped_NT.tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenClip(low=-0.1),
        lambda: TokenClip(low=1.5),
        lambda: TokenClip(high=math.nan),
        lambda: TokenClip(dual=1.0),
        lambda: SequenceClip(high=-1e-3),
        lambda: ClippedWeight(low=2.0),
        lambda: SoftGate(tau_pos=0.0),
        lambda: SoftGate(tau_neg=-1.0),
    ],
)
def test_impossible_knobs_are_refused(make: Callable[[], Surrogate]) -> None:
    with pytest.raises(ArlError):
        make()
