"""Diagnostics of a step: by hand, and however it is cut into passes."""

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.diagnostics import measure_step
from arl_lightning.types import Measure, PassRecord, StepTotals, TrajectoryBatch

KEPT = StepTotals(4, 2)


def record_of(advantages: list[float], new: tuple[float, float] = (-1.01, -2.03), first_segment: int = 0) -> PassRecord:
    """Rows of a prompt token and the two tokens of methods.md; failures are clipped and dropped."""
    rows = len(advantages)

    def each(*values: float) -> Tensor:
        return torch.tensor([values] * rows, dtype=torch.float32)

    acts_NT = each(0, 1, 1).bool()
    batch = TrajectoryBatch(
        input_ids_NT=each(1, 2, 3).long(),
        lengths_N=torch.full((rows,), 3),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, first_segment + torch.arange(rows)[:, None], -1),
        behavior_logprobs_NT=each(0, -1, -2),
        old_logprobs_NT=each(0, -1, -2),
        ref_logprobs_NT=each(0, -1.2, -1.8),
        advantages_NT=torch.tensor(advantages)[:, None] * acts_NT,
        policy_version=0,
    )
    fails_NT = batch.advantages_NT < 0
    return PassRecord(batch, each(0, *new), each(0, 0.5, 0.7), fails_NT, acts_NT & ~fails_NT)


def test_measures_are_those_counted_by_hand() -> None:
    expected = {
        "train/approx_kl": (0.12, 6),  # 3 · (0.01 + 0.03)
        "train/kl": (0.136677, 6),  # 3 · (0.016959 + 0.028600)
        "train/entropy": (3.6, 6),  # 3 · (0.5 + 0.7)
        "train/clip_ratio/low": (2, 6),
        "train/clip_ratio/high": (0, 6),
        "train/mask/dropped": (2, 6),
        "train/sinking/share": (1, 3),  # A < 0 and s = 0.980199 < 1
        "train/sinking/kl": (0.045559, 2),
        "train/sinking/kl_others": (0.091118, 4),
        "train/advantage/zero": (1, 3),
        "train/advantage/max": (2, 1),
        "train/advantage/std": (1.247219, 1),  # of −1, 2, 0 about 1/3: sqrt((16 + 25 + 1)/9/3)
        "train/denominator/tokens": (4, 1),
        "train/denominator/segments": (2, 1),
        **{f"train/ratio/{who}_{q}": (0.980199, 1) for who in ("rising", "falling") for q in ("p05", "p50", "p95")},
    }
    measures = measure_step([record_of([-1.0, 2.0, 0.0])], KEPT)
    assert set(measures) == set(expected)
    for name, (total, number) in expected.items():
        assert measures[name].total == pytest.approx(total, abs=1e-5), name
        assert measures[name].count == number, name


def test_a_step_measures_the_same_however_it_is_cut() -> None:
    whole = measure_step([record_of([-1.0, 2.0, 0.0, -0.5])], KEPT)
    cut = measure_step(
        [record_of([-1.0]), record_of([2.0, 0.0], first_segment=1), record_of([-0.5], first_segment=3)], KEPT
    )
    assert cut.keys() == whole.keys()
    for name, measure in whole.items():
        assert cut[name].total == pytest.approx(measure.total, abs=1e-6), name
        assert cut[name].count == measure.count, name


def test_quantiles_are_of_segment_ratios_by_the_sign_of_the_advantage() -> None:
    records = [record_of([1.0] * 10, new=(-1.0, -2.0)), record_of([1.0, -1.0], new=(-0.9, -1.9), first_segment=10)]
    measures = measure_step(records, KEPT)
    assert measures["train/ratio/rising_p50"] == Measure(1.0, 1)
    # eleven rising ratios, ten of 1 and one of exp(0.1) = 1.105171; 95 % lies at place 9.5, halfway to it
    assert measures["train/ratio/rising_p95"].total == pytest.approx(1.0525855)
    assert measures["train/ratio/falling_p50"].total == pytest.approx(1.105171)


def test_absent_signs_leave_out_their_quantiles() -> None:
    measures = measure_step([record_of([1.0])], KEPT)
    assert not [name for name in measures if "falling" in name]
    assert measures["train/sinking/kl"] == Measure(0.0, 0)


def test_a_collapsed_policy_is_still_measured_finitely() -> None:
    measures = measure_step([record_of([-1.0, 1.0], new=(-300.0, -300.0))], KEPT)
    assert all(torch.isfinite(torch.tensor(measure.total)) for measure in measures.values())
