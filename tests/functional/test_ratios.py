"""Importance ratios: values, padding, overflow and the clip."""

import math

import pytest
import torch

from arl_lightning.functional.ratios import limit_ratio, log_ratio, ratio, segment_log_ratio

OLD_NT = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
NEW_NT = torch.tensor([[-1.01, -2.03]], dtype=torch.float64)
ONE_SEGMENT_NT = torch.zeros(1, 2, dtype=torch.int64)


def test_hand_computed_ratios() -> None:
    l_NT = log_ratio(NEW_NT, OLD_NT, ONE_SEGMENT_NT >= 0)
    assert l_NT[0].tolist() == pytest.approx([-0.01, -0.03])
    assert ratio(l_NT)[0].tolist() == pytest.approx([0.990050, 0.970446], abs=1e-6)
    # mean (-0.01 - 0.03)/2 = -0.02; exp(-0.02) = 0.980199
    lbar_NT = segment_log_ratio(NEW_NT, OLD_NT, ONE_SEGMENT_NT)
    assert lbar_NT[0].tolist() == pytest.approx([-0.02, -0.02])
    assert ratio(lbar_NT)[0].tolist() == pytest.approx([0.980199] * 2, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_preserved(dtype: torch.dtype) -> None:
    assert segment_log_ratio(NEW_NT.to(dtype), OLD_NT.to(dtype), ONE_SEGMENT_NT).dtype == dtype


def test_bfloat16_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        log_ratio(NEW_NT.bfloat16(), OLD_NT, ONE_SEGMENT_NT >= 0)


def test_padding_of_minus_infinity_is_zero_with_zero_gradient() -> None:
    new_NT = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    old_NT = torch.tensor([[-1.0, -math.inf]])
    log_ratio_NT = log_ratio(new_NT, old_NT, torch.tensor([[True, False]]))
    assert log_ratio_NT.tolist() == [[0.0, 0.0]]
    ratio(log_ratio_NT).sum().backward()  # type: ignore[no-untyped-call]
    assert new_NT.grad is not None
    assert new_NT.grad.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("nats", [-200.0, 0.0, 19.0, 20.0, 21.0, 1000.0])
def test_ratio_is_finite_and_its_gradient_stays(nats: float) -> None:
    l_NT = torch.tensor([[nats]], requires_grad=True)
    value_NT = ratio(l_NT)
    value_NT.sum().backward()  # type: ignore[no-untyped-call]
    assert l_NT.grad is not None
    assert value_NT.isfinite().all()
    # below the guard exp(l), above it exp(20) * (1 + l - 20)
    torch.testing.assert_close(l_NT.grad, torch.tensor([[math.exp(min(nats, 20.0))]]))
    torch.testing.assert_close(value_NT, l_NT.grad * (1 + max(nats - 20, 0)))


def test_limit_binds_only_on_the_side_to_which_the_advantage_pushes() -> None:
    ratio_NT = torch.tensor([[0.5, 1.0, 2.0]])
    raised_NT, high_NT = limit_ratio(ratio_NT, torch.ones(1, 3), low=0.2, high=0.3)
    assert high_NT.tolist() == [[False, False, True]]
    torch.testing.assert_close(raised_NT, torch.tensor([[0.5, 1.0, 1.3]]))
    lowered_NT, low_NT = limit_ratio(ratio_NT, -torch.ones(1, 3), low=0.2, high=0.3)
    assert low_NT.tolist() == [[True, False, False]]
    torch.testing.assert_close(lowered_NT, torch.tensor([[0.8, 1.0, 2.0]]))
    assert not limit_ratio(ratio_NT, torch.zeros(1, 3), low=0.2, high=0.3)[1].any()


def test_limit_is_the_pessimistic_maximum() -> None:
    generator = torch.Generator().manual_seed(0)
    ratio_NT = torch.rand(20, 20, generator=generator) * 2
    advantages_NT = torch.randn(20, 20, generator=generator)
    limited_NT, _ = limit_ratio(ratio_NT, advantages_NT, low=0.2, high=0.3)
    expected_NT = torch.maximum(-advantages_NT * ratio_NT, -advantages_NT * ratio_NT.clamp(0.8, 1.3))
    torch.testing.assert_close(-advantages_NT * limited_NT, expected_NT)
