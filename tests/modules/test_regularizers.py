"""Regularizers: the estimators by name, their gradient on a tiny policy, and their knobs."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL, RewardKL
from arl_lightning.protocols import AdjustableCoefficient, KLRegularizer
from arl_lightning.types import ArlError

LOGPROBS_NT = torch.tensor([[-1.01, -2.03]])
REF_NT = torch.tensor([[-1.2, -1.8]])


@pytest.mark.parametrize(
    ("estimator", "expected_T"),
    [
        ("k1", [0.19, -0.23]),  # -d
        ("k2", [0.01805, 0.02645]),  # d²/2
        ("k3", [0.016959, 0.028600]),  # exp(d) - d - 1
    ],
)
def test_hand_computed_values(estimator: Literal["k1", "k2", "k3"], expected_T: list[float]) -> None:
    regularizer: KLRegularizer = ReferenceKL(estimator=estimator)
    assert regularizer.compute(LOGPROBS_NT, REF_NT)[0].tolist() == pytest.approx(expected_T, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradient_matches_finite_differences(estimator: Literal["k1", "k2", "k3"]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_NTV = torch.randn(1, 2, 4, generator=generator, dtype=torch.float64, requires_grad=True)

    def estimate(logits_NTV: Tensor) -> Tensor:
        return ReferenceKL(estimator=estimator).compute(logits_NTV.log_softmax(-1)[..., 0], REF_NT.double()).mean()

    assert torch.autograd.gradcheck(estimate, (logits_NTV,))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_reference_itself_is_at_distance_zero(estimator: Literal["k1", "k2", "k3"]) -> None:
    assert ReferenceKL(estimator=estimator).compute(REF_NT, REF_NT).tolist() == [[0.0, 0.0]]


def test_the_kl_in_the_reward_costs_its_estimate() -> None:
    new_NT, ref_NT = torch.tensor([[-1.01, -2.03]]), torch.tensor([[-1.2, -1.8]])
    # k1: log π − log π_ref = 0.19 and −0.23; k3 as in methods.md
    assert RewardKL(0.1).penalize(new_NT, ref_NT)[0].tolist() == pytest.approx([0.019, -0.023], abs=1e-6)
    assert RewardKL(0.1, "k3").penalize(new_NT, ref_NT)[0].tolist() == pytest.approx([0.0016959, 0.00286], abs=1e-6)


def test_coefficients_are_readable() -> None:
    assert ReferenceKL().coefficient == 0.01
    assert EntropyBonus().coefficient == 0.001
    assert ReferenceKL(coefficient=0.0).coefficient == 0.0


def test_unknown_estimator_is_refused_with_the_choices() -> None:
    name: Any = "k4"
    with pytest.raises(ArlError, match="k1, k2, k3"):
        ReferenceKL(estimator=name)


@pytest.mark.parametrize("coefficient", [-0.1, math.nan, math.inf])
def test_impossible_coefficients_are_refused(coefficient: float) -> None:
    with pytest.raises(ArlError, match="coefficient"):
        ReferenceKL(coefficient)
    for part in (EntropyBonus, RewardKL):
        with pytest.raises(ArlError, match="coefficient"):
            part(coefficient)


@pytest.mark.parametrize("kind", [ReferenceKL, RewardKL])
def test_each_owner_scales_the_coefficient_by_one_factor_of_its_own(kind: type[ReferenceKL] | type[RewardKL]) -> None:
    kl = kind(0.5)
    assert isinstance(kl, AdjustableCoefficient)
    kl.set_factor("one", 2.0)
    kl.set_factor("other", 8.0)
    assert kl.coefficient == 8.0  # 0.5 · 2 · 8
    kl.set_factor("one", 4.0)
    assert kl.coefficient == 16.0  # in place of the 2
    kl.set_factor("other", 1.0)
    assert kl.coefficient == 2.0


def test_a_scaled_coefficient_is_what_counts() -> None:
    kl = RewardKL(0.1)
    kl.set_factor("one", 10.0)
    assert kl.penalize(LOGPROBS_NT, REF_NT)[0].tolist() == pytest.approx([0.19, -0.23], abs=1e-6)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_factor_is_refused(factor: float) -> None:
    with pytest.raises(ArlError, match="a factor must be above 0 and finite"):
        ReferenceKL().set_factor("one", factor)
