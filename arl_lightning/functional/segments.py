"""Sums and means over segments: the sets of action tokens that share one id, whatever rows they lie in."""

from __future__ import annotations

import torch
from torch import Tensor

from arl_lightning.types import StepTotals


def segment_index(segment_ids_NT: Tensor) -> tuple[Tensor, int]:
    """Dense index of each token's segment, 0 to S-1 in ascending order of ids, and the number S of segments.

    Off the action mask (id -1) the index is S, so that a sum over S+1 bins keeps padding in a spare last one.
    """
    action_mask_NT = segment_ids_NT >= 0
    present_S, dense = torch.unique(segment_ids_NT[action_mask_NT], return_inverse=True)
    size = present_S.numel()
    index_NT = torch.full_like(segment_ids_NT, size)
    index_NT[action_mask_NT] = dense
    return index_NT, size


def restrict_segments(segment_ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """The ids where `mask_NT` is True, -1 elsewhere: segments made of the kept tokens only."""
    return segment_ids_NT.masked_fill(~mask_NT, -1)


def segment_sum(values_NT: Tensor, segment_ids_NT: Tensor) -> Tensor:
    """Sum `[S]` of the values of each segment's tokens; values off the action mask, NaN included, count for nothing."""
    index_NT, size = segment_index(segment_ids_NT)
    kept_NT = values_NT.masked_fill(segment_ids_NT < 0, 0)
    bins = kept_NT.new_zeros(size + 1).index_add(0, index_NT.flatten(), kept_NT.flatten())
    return bins[:size]


def segment_mean(values_NT: Tensor, segment_ids_NT: Tensor) -> Tensor:
    """Mean `[S]` of the values of each segment's tokens; empty, never NaN, when there is no segment."""
    counts_S = segment_sum(torch.ones_like(values_NT), segment_ids_NT)
    return segment_sum(values_NT, segment_ids_NT) / counts_S


def expand_segments(values_S: Tensor, segment_ids_NT: Tensor) -> Tensor:
    """The segment's value at each of its tokens, `[N, T]`, 0 off the action mask."""
    index_NT, _ = segment_index(segment_ids_NT)
    return torch.cat([values_S, values_S.new_zeros(1)])[index_NT]


def count(mask_NT: Tensor, segment_ids_NT: Tensor) -> StepTotals:
    """Number of kept action tokens, and of segments with at least one of them."""
    kept_ids_NT = restrict_segments(segment_ids_NT, mask_NT)
    _, segments = segment_index(kept_ids_NT)
    return StepTotals(tokens=int((kept_ids_NT >= 0).sum()), segments=segments)
