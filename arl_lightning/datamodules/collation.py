"""From rows to padded tensors, and from one rollout's tensors to mini-batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from arl_lightning.functional.microbatches import adjacent_units
from arl_lightning.types import Row, Scores, TokenBatch, TrajectoryBatch


def collate(rows: Sequence[Row], pad_token_id: int, temperature: float) -> TokenBatch:
    """The rows padded on the right."""
    return TokenBatch(
        input_ids_NT=pad([row.token_ids for row in rows], pad_token_id, torch.int64),
        lengths_N=torch.tensor([len(row.token_ids) for row in rows], dtype=torch.int64),
        action_mask_NT=pad([row.action_mask for row in rows], False, torch.bool),
        segment_ids_NT=pad([row.segment_of_token for row in rows], -1, torch.int64),
        temperature=temperature,
    )


def turn_sums(values_NT: Tensor, turn_of_NT: Tensor, turns: int) -> list[float]:
    """Sum of `values_NT` over each turn's action tokens; a turn without tokens has 0."""
    mask_NT = turn_of_NT >= 0
    sums = torch.zeros(turns, dtype=torch.float64).index_add_(0, turn_of_NT[mask_NT], values_NT[mask_NT].double())
    return [float(total) for total in sums]


def turn_means(values_NT: Tensor, turn_of_NT: Tensor, turns: int) -> list[float]:
    """Mean of `values_NT` over each turn's action tokens; a turn without tokens has 0."""
    sums = turn_sums(values_NT, turn_of_NT, turns)
    counts = turn_sums(torch.ones_like(values_NT), turn_of_NT, turns)
    return [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]


def trajectory_batch(
    batch: TokenBatch,
    rows: Sequence[Row],
    scores: Scores,
    turn_of_NT: Tensor,
    turn_advantages: Sequence[float],
    policy_version: int,
) -> TrajectoryBatch:
    """The whole rollout as one batch; each action token has the advantage of its turn."""
    table = torch.tensor([*turn_advantages, 0.0], dtype=torch.float32)  # -1 reads the last entry
    return TrajectoryBatch(
        input_ids_NT=batch.input_ids_NT,
        lengths_N=batch.lengths_N,
        action_mask_NT=batch.action_mask_NT,
        segment_ids_NT=batch.segment_ids_NT,
        temperature=batch.temperature,
        behavior_logprobs_NT=pad([row.behavior_logprobs for row in rows], 0.0, torch.float32),
        old_logprobs_NT=scores.logprobs_NT,
        ref_logprobs_NT=scores.ref_logprobs_NT,
        advantages_NT=table[turn_of_NT],
        policy_version=policy_version,
    )


def minibatches(whole: TrajectoryBatch, rows: Sequence[Row], count: int, seed: int) -> list[TrajectoryBatch]:
    """`count` mini-batches of nearly equal numbers of units, shuffled by `seed`; rows of one segment stay together.

    With fewer units than `count` the last ones are empty, which is no step: the loader's length is known before play.
    """
    units = adjacent_units([frozenset(s for s in row.segment_of_token if s >= 0) for row in rows])
    order = np.random.default_rng(seed).permutation(len(units))
    return [whole.take([row for unit in chunk for row in units[unit]]) for chunk in np.array_split(order, count)]


def by_episode(rows: Sequence[Row], episode: int) -> list[Row]:
    """The rows of one episode with the whole episode as their segment."""
    return [replace(row, segment_of_token=tuple(episode if acts else -1 for acts in row.action_mask)) for row in rows]


def without_turns(rows: Sequence[Row], left_out: Collection[int]) -> list[Row]:
    """The rows with the responses of these turns as mere context; a row that is left with none is dropped."""
    return [row for row in (_without_turns(row, left_out) for row in rows) if any(row.action_mask)]


def _without_turns(row: Row, left_out: Collection[int]) -> Row:
    acts = tuple(turn >= 0 and turn not in left_out for turn in row.turn_of_token)
    return replace(
        row,
        action_mask=acts,
        behavior_logprobs=tuple(x if act else 0.0 for x, act in zip(row.behavior_logprobs, acts, strict=True)),
        turn_of_token=tuple(x if act else -1 for x, act in zip(row.turn_of_token, acts, strict=True)),
        segment_of_token=tuple(x if act else -1 for x, act in zip(row.segment_of_token, acts, strict=True)),
    )


def pad(values: Sequence[Sequence[int | float | bool]], fill: int | float | bool, dtype: torch.dtype) -> Tensor:
    """`[N, T]` with `fill` behind each row's values; no row makes `[0, 0]`."""
    longest = max((len(row) for row in values), default=0)
    padded_NT = torch.full((len(values), longest), fill, dtype=dtype)
    for row, entries in enumerate(values):
        padded_NT[row, : len(entries)] = torch.tensor(entries, dtype=dtype)
    return padded_NT
