"""The report of a step: what its passes say together; that of several processes is shown in tests/cli/test_ranks.py."""

from __future__ import annotations

import math

import torch

from arl_lightning.modules.step_report import StepReport
from arl_lightning.types import Measure, PassRecord, TrajectoryBatch


def record(new: list[float], old: list[float], acts: list[bool]) -> PassRecord:
    mask_NT, new_NT, old_NT = torch.tensor([acts]), torch.tensor([new]), torch.tensor([old])
    batch = TrajectoryBatch(
        input_ids_NT=torch.ones_like(mask_NT, dtype=torch.int64),
        lengths_N=torch.tensor([len(acts)]),
        action_mask_NT=mask_NT,
        segment_ids_NT=torch.where(mask_NT, 0, -1),
        behavior_logprobs_NT=old_NT,
        old_logprobs_NT=old_NT,
        ref_logprobs_NT=old_NT,
        advantages_NT=torch.zeros_like(old_NT),
        policy_version=0,
    )
    return PassRecord(batch, new_NT, torch.zeros_like(new_NT), torch.zeros_like(mask_NT), mask_NT)


def test_the_report_of_one_process_is_the_whole_steps() -> None:
    report = StepReport(0.5, Measure(1, 4), [record([-1.0], [-1.0], [True])])
    assert report.of_all(1) is report


def test_the_worst_log_ratio_is_that_of_any_action_token_of_any_pass() -> None:
    first = record([-9.0, -1.0, -2.0], [-1.0, -1.0, -2.25], [False, True, True])  # |−2 + 2.25|; the −9 is no action
    second = record([-1.5, -1.0], [-1.0, -1.0], [True, True])  # |−1.5 + 1|
    assert StepReport(0.0, Measure(0, 5), [first]).worst_log_ratio() == 0.25
    assert StepReport(0.0, Measure(0, 5), [second, first]).worst_log_ratio() == 0.5


def test_a_nan_is_the_worst() -> None:
    records = [record([math.nan], [-1.0], [True]), record([-1.0], [-1.0], [True])]
    assert math.isnan(StepReport(0.0, Measure(0, 2), records).worst_log_ratio())
