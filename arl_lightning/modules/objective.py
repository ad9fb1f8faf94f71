"""The loss in named slots: surrogate, mask, aggregation, advantage, KL, entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arl_lightning.functional.kl import k3
from arl_lightning.modules.regularizers import EntropyBonus
from arl_lightning.protocols import AdvantageEstimator, Aggregation, KLRegularizer, SegmentMask, Surrogate
from arl_lightning.types import LossOutput, Measure, StepTotals, TrajectoryBatch


@dataclass(frozen=True)
class Objective:
    """Policy-gradient loss made of exchangeable parts; a later YAML file changes one slot, `null` empties it.

    Args:
        surrogate: importance ratio and its limit.
        aggregation: how token losses become one number.
        advantage: how returns become one advantage a turn.
        mask: which segments the policy term sees; null for all.
        kl: divergence from the reference, added to the loss; null for none.
        entropy: bonus for entropy; null for none.
    """

    surrogate: Surrogate
    aggregation: Aggregation
    advantage: AdvantageEstimator
    mask: SegmentMask | None = None
    kl: KLRegularizer | None = None
    entropy: EntropyBonus | None = None

    def keep(self, logprobs_NT: Tensor, batch: TrajectoryBatch) -> Tensor:
        """Action tokens that the policy term sees under the present policy, bool `[N, T]`."""
        if self.mask is None:
            return batch.action_mask_NT
        return self.mask.keep(logprobs_NT, batch.old_logprobs_NT, batch.advantages_NT, batch.segment_ids_NT)

    def compute(
        self, logprobs_NT: Tensor, entropies_NT: Tensor, batch: TrajectoryBatch, kept: StepTotals, acted: StepTotals
    ) -> LossOutput:
        """This micro-batch's share of the step's loss.

        Args:
            logprobs_NT: log-probs of the present policy, with gradient.
            entropies_NT: entropies of the present policy, with gradient where the entropy slot is filled.
            batch: the rows.
            kept: tokens and segments that `keep` leaves in the whole step.
            acted: tokens and segments under the action mask in the whole step.
        """
        keep_NT = self.keep(logprobs_NT.detach(), batch)
        token_loss = self.surrogate.compute(
            logprobs_NT, batch.old_logprobs_NT, batch.advantages_NT, batch.segment_ids_NT
        )
        loss = self.aggregation.compute(token_loss.loss_NT, keep_NT, batch.segment_ids_NT, kept)
        acts_NT = batch.action_mask_NT
        if self.kl is not None:
            kl_NT = self.kl.compute(logprobs_NT, batch.ref_logprobs_NT)
            loss = loss + self.kl.coefficient * self.aggregation.compute(kl_NT, acts_NT, batch.segment_ids_NT, acted)
        if self.entropy is not None:
            bonus = self.aggregation.compute(entropies_NT, acts_NT, batch.segment_ids_NT, acted)
            loss = loss - self.entropy.coefficient * bonus
        return LossOutput(
            loss, self._measures(logprobs_NT.detach(), entropies_NT.detach(), batch, token_loss.clipped_NT, keep_NT)
        )

    @staticmethod
    @torch.no_grad()
    def _measures(
        logprobs_NT: Tensor, entropies_NT: Tensor, batch: TrajectoryBatch, clipped_NT: Tensor, keep_NT: Tensor
    ) -> dict[str, Measure]:
        acts_NT = batch.action_mask_NT
        falls_NT = acts_NT & (batch.advantages_NT < 0)
        rises_NT = acts_NT & (batch.advantages_NT > 0)
        drift_NT = batch.old_logprobs_NT - logprobs_NT
        tokens = int(acts_NT.sum())

        def mean(values_NT: Tensor, mask_NT: Tensor) -> Measure:
            return Measure(float(values_NT[mask_NT].double().sum()), int(mask_NT.sum()))

        return {
            "train/approx_kl": mean(drift_NT, acts_NT),
            "train/kl": mean(k3(logprobs_NT, batch.ref_logprobs_NT), acts_NT),
            "train/entropy": mean(entropies_NT, acts_NT),
            "train/clip_ratio/low": Measure(float((clipped_NT & falls_NT).sum()), tokens),
            "train/clip_ratio/high": Measure(float((clipped_NT & rises_NT).sum()), tokens),
            "train/mask/dropped": Measure(float((acts_NT & ~keep_NT).sum()), tokens),
            "train/ratio/low_and_negative": Measure(float((falls_NT & (drift_NT > 0)).sum()), tokens),
        }
