"""The controller of the KL coefficient: its law by hand, its bounds, and that it arrives."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import LightningModule

from arl_lightning.callbacks.kl_control import KLControl, kl_coefficient
from arl_lightning.modules.regularizers import ReferenceKL, RewardKL
from arl_lightning.types import ArlError


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.1, 2.0),
        (0.12, 2.2),  # e = 0.2: 2 · (1 + 0.5 · 0.2)
        (0.09, 1.9),  # e = −0.1
        (9.0, 2.4),  # e cut to 0.4
        (0.0, 1.6),  # e cut to −0.4
        (-0.5, 1.6),
        (math.nan, 2.0),
        (math.inf, 2.0),
    ],
)
def test_the_factor_follows_the_relative_error(kl: float, expected: float) -> None:
    assert KLControl(0.1, gain=0.5, max_error=0.4).next_factor(2.0, kl) == pytest.approx(expected)


def test_the_factor_stays_inside_its_bounds() -> None:
    control = KLControl(0.1, min_factor=0.5, max_factor=3.0)
    high = low = 1.0
    for _ in range(20):
        high, low = control.next_factor(high, 1.0), control.next_factor(low, 0.0)
    assert (high, low) == (3.0, 0.5)


def test_a_kl_that_falls_with_the_coefficient_arrives_at_the_target() -> None:
    control, factor = KLControl(0.1), 1.0
    for _ in range(60):
        factor = control.next_factor(factor, 0.3 / factor)
    assert 0.3 / factor == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(
    "knobs",
    [
        {"target": 0.0},
        {"target": 0.1, "gain": 0.0},
        {"target": 0.1, "gain": 3.0},  # 3 · 0.4 would turn the coefficient's sign
        {"target": 0.1, "max_error": -1.0},
        {"target": 0.1, "min_factor": 0.0},
        {"target": 0.1, "min_factor": 2.0},
        {"target": 0.1, "max_factor": math.inf},
    ],
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, float]) -> None:
    with pytest.raises(ArlError, match="KLControl"):
        KLControl(**knobs)


def module(**slots: Any) -> LightningModule:
    made = LightningModule()
    made.objective = SimpleNamespace(**{"kl": None, "reward_kl": None, **slots})  # type: ignore[assignment]
    return made


def test_the_kl_of_the_loss_is_adjusted_before_that_of_the_reward() -> None:
    kl, reward_kl = ReferenceKL(), RewardKL()
    assert kl_coefficient(module(kl=kl, reward_kl=reward_kl), "X") is kl
    assert kl_coefficient(module(reward_kl=reward_kl), "X") is reward_kl


def test_what_cannot_be_adjusted_is_refused() -> None:
    with pytest.raises(ArlError, match="X needs a module with an objective"):
        kl_coefficient(LightningModule(), "X")
    with pytest.raises(ArlError, match="X finds no KL"):
        kl_coefficient(module(), "X")
    with pytest.raises(ArlError, match="which is 0"):
        kl_coefficient(module(kl=ReferenceKL(0.0)), "X")
