"""Surrogate losses: the importance ratio of each action token and the limit that is put on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arl_lightning.functional.ratios import limit_ratio, log_ratio, ratio, segment_log_ratio
from arl_lightning.types import ArlError, TokenLoss


class TokenClip:
    """Loss max(−A·w, −A·clip(w, 1−low, 1+high)) with each token's own ratio w; 0 off the action mask.

    Args:
        low: how far below 1 the ratio still has a gradient when A < 0, 0 to 1.
        high: how far above 1 the ratio still has a gradient when A > 0, at least 0.
        dual: for A < 0 the ratio above which the gradient is cut as well, above 1; null for no such limit.

    Source: Group Relative Policy Optimization, arXiv:2402.03300, eq. 3; separate bounds: DAPO, arXiv:2503.14476
    """

    def __init__(self, low: float = 0.2, high: float = 0.2, dual: float | None = None) -> None:
        _check_band(low, high)
        if dual is not None and not dual > 1:
            raise ArlError(f"dual is {dual}, which would cut tokens that have not moved: set it above 1, or to null")
        self.low = low
        self.high = high
        self.dual = math.inf if dual is None else dual

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss:
        """Loss and where it is clipped, `[N, T]`; a clipped token has exactly zero gradient."""
        ratio_NT = ratio(log_ratio(logprobs_NT, old_logprobs_NT, segment_ids_NT >= 0))
        limited_NT, clipped_NT = limit_ratio(ratio_NT, advantages_NT, self.low, self.high)
        beyond_dual_NT = (advantages_NT < 0) & (ratio_NT > self.dual)
        limited_NT = limited_NT.masked_fill(beyond_dual_NT, self.dual)
        return _on_actions(-advantages_NT * limited_NT, clipped_NT | beyond_dual_NT, segment_ids_NT)


class SequenceClip:
    """Loss max(−A·ŝ, −A·clip(ŝ, 1−low, 1+high)) with the geometric mean ŝ of the segment's ratios.

    ŝ has the value s = exp(mean log-ratio of the segment) and the gradient s·∇log π of its own token, so that the
    mean over a segment has the gradient of −A·s and tokens of one segment may differ in advantage.

    Args:
        low: how far below 1 the ratio still has a gradient when A < 0, 0 to 1. Much smaller than a token's band.
        high: how far above 1 the ratio still has a gradient when A > 0, at least 0.

    Source: Group Sequence Policy Optimization, arXiv:2507.18071 (GSPO-token)
    """

    def __init__(self, low: float = 3e-3, high: float = 4e-3) -> None:
        _check_band(low, high)
        self.low = low
        self.high = high

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss:
        """Loss and where it is clipped, `[N, T]`; a clipped segment has exactly zero gradient."""
        sequence_ratio_NT = ratio(segment_log_ratio(logprobs_NT.detach(), old_logprobs_NT, segment_ids_NT))
        carrier_NT = log_ratio(logprobs_NT, logprobs_NT.detach(), segment_ids_NT >= 0).exp()  # 1, with ∇log π
        limited_NT, clipped_NT = limit_ratio(sequence_ratio_NT * carrier_NT, advantages_NT, self.low, self.high)
        return _on_actions(-advantages_NT * limited_NT, clipped_NT, segment_ids_NT)


class ClippedWeight:
    """Loss −sg(clip(w, 1−low, 1+high))·A·log π: every token keeps a gradient, whatever its ratio w.

    Only the gradient means anything; the value is not an estimate of the return.

    Args:
        low: how far below 1 the weight may fall, 0 to 1; 1 sets no lower bound.
        high: how far above 1 the weight may rise, at least 0.

    Source: MiniMax-M1 (CISPO), arXiv:2506.13585
    """

    def __init__(self, low: float = 1.0, high: float = 0.2) -> None:
        _check_band(low, high)
        self.low = low
        self.high = high

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss:
        """Loss, and where the ratio lay outside the band, `[N, T]`."""
        action_mask_NT = segment_ids_NT >= 0
        ratio_NT = ratio(log_ratio(logprobs_NT.detach(), old_logprobs_NT, action_mask_NT))
        weight_NT = ratio_NT.clamp(1 - self.low, 1 + self.high)
        loss_NT = -weight_NT * advantages_NT * logprobs_NT.masked_fill(~action_mask_NT, 0)
        return _on_actions(loss_NT, ratio_NT != weight_NT, segment_ids_NT)


class SoftGate:
    """Loss −A·(4/τ)·σ(τ·(w−1)): the gradient fades with the ratio's distance from 1 instead of being cut.

    Args:
        tau_pos: steepness of the gate where A > 0, above 0.
        tau_neg: steepness of the gate where A <= 0, above 0; larger fades faster.

    Source: Soft Adaptive Policy Optimization, arXiv:2511.20347
    """

    def __init__(self, tau_pos: float = 1.0, tau_neg: float = 1.05) -> None:
        for name, tau in (("tau_pos", tau_pos), ("tau_neg", tau_neg)):
            if not 0 < tau < math.inf:
                raise ArlError(f"{name} is {tau}, but the gate divides by it: set it above 0")
        self.tau_pos = tau_pos
        self.tau_neg = tau_neg

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss:
        """Loss `[N, T]`; nothing is ever clipped."""
        ratio_NT = ratio(log_ratio(logprobs_NT, old_logprobs_NT, segment_ids_NT >= 0))
        tau_NT = torch.full_like(ratio_NT, self.tau_neg).masked_fill(advantages_NT > 0, self.tau_pos)
        gate_NT = 4 / tau_NT * torch.sigmoid(tau_NT * (ratio_NT - 1))
        return _on_actions(-advantages_NT * gate_NT, torch.zeros_like(segment_ids_NT, dtype=torch.bool), segment_ids_NT)


def _check_band(low: float, high: float) -> None:
    if not (0 <= low <= 1 and high >= 0):
        raise ArlError(f"the clip band [1 - {low}, 1 + {high}] is no band of ratios: 0 <= low <= 1 and high >= 0")


def _on_actions(loss_NT: Tensor, clipped_NT: Tensor, segment_ids_NT: Tensor) -> TokenLoss:
    action_mask_NT = segment_ids_NT >= 0
    return TokenLoss(loss_NT.masked_fill(~action_mask_NT, 0), clipped_NT & action_mask_NT)
