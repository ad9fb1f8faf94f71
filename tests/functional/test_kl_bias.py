"""What each KL estimator's gradient really descends: expectations over a categorical, by enumeration, without noise."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.kl import k1, k2, k3
from arl_lightning.functional.ratios import ratio

Estimator = Callable[[Tensor, Tensor], Tensor]

POLICY_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE_V = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
# In logits the gradient of KL(π ‖ π_ref) is π·(log π/π_ref − KL). The logs are ln 2.5 = 0.916291, ln 1.5 = 0.405465
# and ln(1/3) = −1.098612, the KL 0.360063:
# 0.5 · 0.556228, 0.3 · 0.045402, 0.2 · −1.458675
REVERSE_V = torch.tensor([0.278114, 0.013621, -0.291735], dtype=torch.float64)
# The gradient of KL(π_ref ‖ π) is π − π_ref.
FORWARD_V = torch.tensor([0.3, 0.1, -0.4], dtype=torch.float64)


def gradient(loss_of: Callable[[Tensor], Tensor], policy_V: Tensor = POLICY_V) -> Tensor:
    """Gradient in the logits of the policy; `loss_of` is given its log-probs."""
    logits_V = policy_V.log().requires_grad_()
    (found_V,) = torch.autograd.grad(loss_of(logits_V.log_softmax(-1)), logits_V)
    return found_V


def expected(values_V: Tensor, logprobs_V: Tensor) -> Tensor:
    """Mean under on-policy sampling: the sampler's probabilities carry no gradient."""
    return (logprobs_V.detach().exp() * values_V).sum()


def in_loss(estimator: Estimator, policy_V: Tensor = POLICY_V, reference_V: Tensor = REFERENCE_V) -> Tensor:
    return gradient(lambda logprobs_V: expected(estimator(logprobs_V, reference_V.log()), logprobs_V), policy_V)


def in_reward(estimator: Estimator) -> Tensor:
    """The score-function gradient of a penalty: the estimate is a number, log π carries the gradient."""

    def loss_of(logprobs_V: Tensor) -> Tensor:
        penalty_V = estimator(logprobs_V, REFERENCE_V.log()).detach()
        return expected(penalty_V * logprobs_V, logprobs_V)

    return gradient(loss_of)


def assert_is(found_V: Tensor, expected_V: Tensor) -> None:
    torch.testing.assert_close(found_V, expected_V, atol=2e-6, rtol=0)


def test_exact_gradients_are_the_hand_computed_ones() -> None:
    def reverse(logprobs_V: Tensor) -> Tensor:
        return (logprobs_V.exp() * (logprobs_V - REFERENCE_V.log())).sum()

    def forward(logprobs_V: Tensor) -> Tensor:
        return (REFERENCE_V * (REFERENCE_V.log() - logprobs_V)).sum()

    assert_is(gradient(reverse), REVERSE_V)
    assert_is(gradient(forward), FORWARD_V)


def test_k1_in_the_loss_has_no_gradient() -> None:
    # Σ π ∇log π = ∇ Σ π = 0
    assert_is(in_loss(k1), torch.zeros(3, dtype=torch.float64))


def test_k2_in_the_loss_has_the_exact_gradient() -> None:
    # Σ π · (−d) · ∇log π, the score-function form of ∇KL(π ‖ π_ref)
    assert_is(in_loss(k2), REVERSE_V)


def test_k3_in_the_loss_has_the_gradient_of_the_forward_divergence() -> None:
    # Σ π · (1 − π_ref/π) · ∇log π = −Σ π_ref ∇log π = ∇KL(π_ref ‖ π)
    assert_is(in_loss(k3), FORWARD_V)


def test_k1_in_the_reward_has_the_exact_gradient() -> None:
    assert_is(in_reward(k1), REVERSE_V)


def test_k3_in_the_reward_has_the_difference_of_the_two_gradients() -> None:
    # Σ π · (exp(d) − 1 − d) · ∇log π = Σ π_ref ∇log π − Σ π · d · ∇log π: nearly nothing near the reference
    assert_is(in_reward(k3), REVERSE_V - FORWARD_V)


def test_k3_times_the_ratio_in_the_loss_has_the_exact_gradient() -> None:
    # on-policy w = 1 with gradient ∇log π: (1 − exp(d)) + (exp(d) − d − 1) = −d
    def weighted(logprobs_V: Tensor, ref_logprobs_V: Tensor) -> Tensor:
        return ratio(logprobs_V - logprobs_V.detach()) * k3(logprobs_V, ref_logprobs_V)

    assert_is(in_loss(weighted), REVERSE_V)


def test_bias_of_k3_vanishes_with_the_distance_from_the_reference() -> None:
    # π − π_ref = (1e-4, −1e-4, 0): the gradients are of first order in it, their difference of second
    near_V = REFERENCE_V + torch.tensor([1e-4, -1e-4, 0.0], dtype=torch.float64)
    torch.testing.assert_close(in_loss(k3, near_V), in_loss(k2, near_V), atol=1e-7, rtol=0)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_at_the_reference_no_estimator_pulls(estimator: Estimator) -> None:
    assert_is(in_loss(estimator, REFERENCE_V), torch.zeros(3, dtype=torch.float64))
