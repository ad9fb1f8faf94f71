"""Importance ratios of the present policy to the old one, by token and by segment, and their clip."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arl_lightning.functional.segments import expand_segments, segment_mean

RATIO_GUARD_NATS = 20.0
"""Log-ratio above which `ratio` continues linearly: exp(20) is about 4.9e8."""


def log_ratio(logprobs_NT: Tensor, old_logprobs_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Log-ratio log π − log π_old in nats, `[N, T]`, exactly 0 with zero gradient off the mask; dtype as given.

    Raises:
        ValueError: log-probs below float32, whose rounding is larger than a sequence clip band.
    """
    for values_NT in (logprobs_NT, old_logprobs_NT):
        if values_NT.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"log-probs are {values_NT.dtype}: below float32 they err by more than a clip band")
    # Masked before the difference: (-inf) - (-inf) of padding would be NaN, and so would its gradient.
    return logprobs_NT.masked_fill(~mask_NT, 0) - old_logprobs_NT.masked_fill(~mask_NT, 0)


def segment_log_ratio(logprobs_NT: Tensor, old_logprobs_NT: Tensor, segment_ids_NT: Tensor) -> Tensor:
    """Mean log-ratio of the token's segment in nats, at each of its tokens `[N, T]`, 0 off the action mask.

    Source: Group Sequence Policy Optimization, arXiv:2507.18071 (exponent of the sequence ratio).
    """
    log_ratio_NT = log_ratio(logprobs_NT, old_logprobs_NT, segment_ids_NT >= 0)
    return expand_segments(segment_mean(log_ratio_NT, segment_ids_NT), segment_ids_NT)


def ratio(log_ratio_NT: Tensor) -> Tensor:
    """exp(log-ratio), positive and finite for every finite input.

    Above `RATIO_GUARD_NATS` = 20 nats it goes on linearly, exp(20)·(1 + l − 20): value and gradient are continuous
    there, and the gradient stays exp(20) instead of overflowing.
    """
    excess_NT = (log_ratio_NT - RATIO_GUARD_NATS).relu()
    return log_ratio_NT.clamp(max=RATIO_GUARD_NATS).exp() + math.exp(RATIO_GUARD_NATS) * excess_NT


def limit_ratio(ratio_NT: Tensor, advantages_NT: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The ratio r̃ for which −A·r̃ = max(−A·r, −A·clip(r, 1−low, 1+high)), and the bool `[N, T]` where it is clipped.

    Clipped means beyond the bound on the side to which the advantage pushes: there the gradient is exactly zero.
    """
    too_high_NT = (advantages_NT > 0) & (ratio_NT > 1 + high)
    too_low_NT = (advantages_NT < 0) & (ratio_NT < 1 - low)
    clipped_NT = too_high_NT | too_low_NT
    bounded_NT = ratio_NT.clamp(1 - low, 1 + high)
    return torch.where(clipped_NT, bounded_NT, ratio_NT), clipped_NT
