"""What an optimiser step came to, in one process or in all that took it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor, distributed

from arl_lightning.types import Measure, PassRecord, StepTotals


@dataclass(frozen=True, slots=True)
class StepReport:
    """The passes of an optimiser step.

    Attributes:
        loss: the step's loss, or this process's share of it.
        padding: share of padding among all token positions.
        records: one a pass.
    """

    loss: float
    padding: Measure
    records: Sequence[PassRecord]

    def of_all(self, processes: int) -> StepReport:
        """The whole step's report, the same in every process; its records then lie in main memory."""
        if processes == 1:
            return self
        taught = [record for record in self.records if record.batch.action_mask_NT.any()]
        reports: list[Any] = [None] * processes
        distributed.all_gather_object(reports, replace(self, records=[_in_main_memory(record) for record in taught]))
        return StepReport(
            sum(report.loss for report in reports),
            Measure(sum(report.padding.total for report in reports), sum(report.padding.count for report in reports)),
            [record for report in reports for record in report.records],
        )

    def worst_log_ratio(self) -> float:
        """Largest absolute log ratio of a token to the weights that played it; NaN where one is."""
        gaps = [
            (record.logprobs_NT - record.batch.old_logprobs_NT)[record.batch.action_mask_NT].abs().max()
            for record in self.records
        ]
        return float(torch.stack(gaps).max())


def sum_over_ranks(trainer: Trainer, parts: Sequence[StepTotals]) -> StepTotals:
    """Totals of all passes of all processes."""
    own = sum(parts, StepTotals(0, 0))
    if trainer.world_size == 1:
        return own
    totals = torch.tensor([own.tokens, own.segments], device=trainer.strategy.root_device)
    return StepTotals(*cast(Tensor, trainer.strategy.reduce(totals, reduce_op="sum")).tolist())


def _in_main_memory(record: PassRecord) -> PassRecord:
    tensors = {f.name: value.cpu() for f in fields(record) if isinstance(value := getattr(record, f.name), Tensor)}
    return replace(record, batch=record.batch.to("cpu"), **tensors)
