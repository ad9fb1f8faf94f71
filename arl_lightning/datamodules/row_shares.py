"""Rows divided among the processes by their tokens, and never through a segment."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from arl_lightning.datamodules.crew import Crew, shares
from arl_lightning.functional.microbatches import adjacent_units
from arl_lightning.protocols import RolloutPolicy
from arl_lightning.types import Scores, TokenBatch, TrajectoryBatch


def row_shares(batch: TokenBatch, parts: int) -> list[list[int]]:
    """Rows by the part that they fall to, in ascending order; a part may have none."""
    units = adjacent_units([frozenset(row[row >= 0].tolist()) for row in batch.segment_ids_NT])
    lengths = batch.lengths_N.tolist()
    tokens = [sum(lengths[row] for row in unit) for unit in units]
    return [[row for unit in share for row in units[unit]] for share in shares(tokens, parts)]


def score_rows(batch: TokenBatch, policy: RolloutPolicy, crew: Crew) -> Scores:
    """What the policy says of every row; each process scores its share."""
    if crew.size == 1:
        return policy.score(batch)
    rows_by_rank = row_shares(batch, crew.size)
    parts = crew.gather(lambda: policy.score(batch.take(rows_by_rank[crew.rank])))
    whole = {f.name: torch.zeros(batch.input_ids_NT.shape) for f in fields(Scores)}
    for rows, part in zip(rows_by_rank, parts, strict=True):
        for name, values_NT in whole.items():
            part_NT: Tensor = getattr(part, name)
            values_NT[rows, : part_NT.shape[1]] = part_NT
    return Scores(**whole)


def own_rows(batch: TrajectoryBatch, crew: Crew) -> TrajectoryBatch:
    """This process's rows of a mini-batch.

    Where it would have none, it has one without anything to learn from: every process must take its part in a step,
    whose gradients are summed over all.
    """
    if crew.size == 1 or not len(batch):
        return batch
    rows = row_shares(batch, crew.size)[crew.rank]
    return batch.take(rows) if rows else _without_actions(batch.take([int(batch.lengths_N.argmin())]))


def _without_actions(batch: TrajectoryBatch) -> TrajectoryBatch:
    nothing_NT = torch.zeros_like(batch.old_logprobs_NT)
    return replace(
        batch,
        action_mask_NT=torch.zeros_like(batch.action_mask_NT),
        segment_ids_NT=torch.full_like(batch.segment_ids_NT, -1),
        behavior_logprobs_NT=nothing_NT,
        old_logprobs_NT=nothing_NT,
        ref_logprobs_NT=nothing_NT,
        advantages_NT=nothing_NT,
    )
