"""KL estimators: values, expectation, and a gradient that keeps pulling far away."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.kl import k1, k2, k3

LOGPROBS_NT = torch.tensor([[-1.01, -2.03]])
REF_NT = torch.tensor([[-1.2, -1.8]])


def slope(estimator: Callable[[Tensor, Tensor], Tensor], d_nats: float) -> float:
    """Derivative of the estimate in log π, at log π_ref − log π = d."""
    logprob = torch.tensor(-d_nats, requires_grad=True)
    estimator(logprob, torch.tensor(0.0)).backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    return logprob.grad.item()


def test_hand_computed_values() -> None:
    # d = (-0.19, 0.23)
    assert k1(LOGPROBS_NT, REF_NT)[0].tolist() == pytest.approx([0.19, -0.23], abs=1e-6)
    assert k2(LOGPROBS_NT, REF_NT)[0].tolist() == pytest.approx([0.01805, 0.02645], abs=1e-6)
    # exp(-0.19) + 0.19 - 1 = 0.016959; exp(0.23) - 0.23 - 1 = 0.028600
    assert k3(LOGPROBS_NT, REF_NT)[0].tolist() == pytest.approx([0.016959, 0.028600], abs=1e-6)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_equal_logprobs_give_zero_as_off_the_mask(estimator: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert estimator(torch.zeros(1, 3), torch.zeros(1, 3)).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("d_nats", [3.0, 10.0, 30.0])
def test_k3_keeps_pulling_towards_the_reference(d_nats: float) -> None:
    # -(exp(d) - 1) up to the guard at 10 nats, then its slope there
    assert slope(k3, d_nats) == pytest.approx(-math.expm1(min(d_nats, 10.0)), rel=1e-5)


@pytest.mark.parametrize("d_nats", [3.0, 10.0, 30.0])
def test_slopes_of_the_other_estimators(d_nats: float) -> None:
    assert slope(k1, d_nats) == 1.0
    assert slope(k2, d_nats) == pytest.approx(-d_nats)


def test_k3_is_continuous_at_its_guard_and_finite_far_beyond() -> None:
    below, above, far = k3(-torch.tensor([10.0, 10.001, 1e4]), torch.zeros(3)).tolist()
    # exp(10) - 11 = 22015.466; a thousandth of the slope 22025.466 more
    assert below == pytest.approx(22015.466, rel=1e-6)
    assert above == pytest.approx(22015.466 + 22.025, rel=1e-5)
    assert math.isfinite(far)


def test_k3_keeps_its_digits_near_zero_in_float32() -> None:
    # d = 1e-3: d²/2 + d³/6 = 5.0017e-7; exp(d) - 1 - d in float32 would be off by tens of percent
    assert k3(torch.tensor(-1e-3), torch.tensor(0.0)).item() == pytest.approx(5.0017e-7, rel=1e-3)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_unbiased_estimators_average_to_the_divergence(estimator: Callable[[Tensor, Tensor], Tensor]) -> None:
    policy_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference_V = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    # 0.5 ln 2.5 + 0.3 ln 1.5 + 0.2 ln(1/3) = 0.458145 + 0.121640 - 0.219722 = 0.360063
    average = (policy_V * estimator(policy_V.log(), reference_V.log())).sum()
    assert average.item() == pytest.approx(0.360063, abs=1e-6)
