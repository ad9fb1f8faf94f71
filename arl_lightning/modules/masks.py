"""Masks that drop whole segments from the policy term."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from arl_lightning.functional.ratios import segment_log_ratio
from arl_lightning.types import ArlError


class SequenceMask:
    """By default keeps a segment iff A >= 0 or the mean of (log π_old − log π) over its tokens is at most `delta`.

    A failed segment that the policy has already left no longer pushes. Tokens of one segment that differ in
    advantage (episode segments under a turn-level advantage) are judged each by their own advantage.

    Args:
        delta: largest tolerated drift of such a segment, in nats per token, at least 0. At −log(1−low) the mask drops
            exactly what `SequenceClip(low)` gives no gradient, and only the denominator changes; `positive` does the
            same to `high` at log(1+high).
        advantages: sign of the advantages whose segments may leave. `positive` is the mirror image, a control: it drops
            a success that the policy has already come to by more than `delta`, and keeps every failure.

    Source: off-policy sequence masking, DeepSeek-V3.2; setting: ARLArena, arXiv:2602.21534
    """

    def __init__(self, delta: float = 3e-3, advantages: Literal["negative", "positive"] = "negative") -> None:
        if not delta >= 0:
            raise ArlError(f"delta is {delta}, which would drop segments that have not moved: set it to 0 or more")
        if advantages not in ("negative", "positive"):
            raise ArlError(f"advantages is {advantages!r}: set it to 'negative' or 'positive'")
        self.delta = delta
        self._sign = -1 if advantages == "negative" else 1

    @torch.no_grad()
    def keep(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> Tensor:
        """Bool `[N, T]`, True = use it; never True off the action mask."""
        drift_NT = self._sign * segment_log_ratio(logprobs_NT, old_logprobs_NT, segment_ids_NT)
        return (segment_ids_NT >= 0) & ((self._sign * advantages_NT <= 0) | (drift_NT <= self.delta))
