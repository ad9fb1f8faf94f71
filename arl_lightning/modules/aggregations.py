"""Reductions of token losses to one number, with denominators of the whole optimiser step.

Shares of micro-batches with the same `totals` add up to the loss of the whole step, as long as no segment lies in two
micro-batches. When `totals` are 0 the share is exactly 0, with zero gradient, and still part of the graph.
"""

from __future__ import annotations

from torch import Tensor

from arl_lightning.functional.segments import restrict_segments, segment_mean
from arl_lightning.types import ArlError, StepTotals


class TokenMean:
    """Every kept token counts once: long segments weigh more.

    Source: DAPO, arXiv:2503.14476 (token-level loss)
    """

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        """Sum of the kept tokens' losses over the step's number of kept tokens."""
        return _share(_kept_sum(loss_NT, mask_NT, segment_ids_NT), totals.tokens)


class SequenceMean:
    """Every segment counts once: each is the mean over its kept tokens.

    Source: Group Relative Policy Optimization, arXiv:2402.03300, eq. 3
    """

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        """Sum of the segments' mean losses over the step's number of segments that have a kept token."""
        means_S = segment_mean(loss_NT, restrict_segments(segment_ids_NT, mask_NT))
        return _share(means_S.sum(), totals.segments)


class SequenceSum:
    """Every segment's sum of losses over one constant length: no bias towards short or long ones.

    Args:
        length: the constant in tokens, usually the largest response length, at least 1.

    Source: Understanding R1-Zero-Like Training (Dr.GRPO), arXiv:2503.20783
    """

    def __init__(self, length: int) -> None:
        if not length >= 1:
            raise ArlError(f"length is {length}, but the loss is divided by it: set it to the response limit in tokens")
        self.length = length

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        """Sum of the kept tokens' losses over `length` times the step's number of segments that have a kept token."""
        return _share(_kept_sum(loss_NT, mask_NT, segment_ids_NT), totals.segments * self.length)


def _kept_sum(loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor) -> Tensor:
    kept_NT = mask_NT & (segment_ids_NT >= 0)
    return loss_NT.masked_fill(~kept_NT, 0).sum()


def _share(summed: Tensor, denominator: int) -> Tensor:
    return summed / denominator if denominator else summed * 0
