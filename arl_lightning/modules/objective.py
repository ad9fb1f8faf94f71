"""The loss in named slots: surrogate, mask, aggregation, advantage, KL, entropy, and correction of the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from arl_lightning.modules.regularizers import EntropyBonus
from arl_lightning.protocols import (
    AdvantageEstimator,
    Aggregation,
    KLRegularizer,
    RewardPenalty,
    SamplerCorrection,
    SegmentMask,
    Surrogate,
)
from arl_lightning.types import PassRecord, StepTotals, TrajectoryBatch


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
        reward_kl: divergence from the reference, taken off the reward instead; null for none.
        sampler_correction: weight for the disagreement between sampler and trainer; null for none.
    """

    surrogate: Surrogate
    aggregation: Aggregation
    advantage: AdvantageEstimator
    mask: SegmentMask | None = None
    kl: KLRegularizer | None = None
    entropy: EntropyBonus | None = None
    reward_kl: RewardPenalty | None = None
    sampler_correction: SamplerCorrection | None = None

    @property
    def reads_scores(self) -> bool:
        """Whether the policy's log-probs or entropies are asked for before the update: by a penalty or an estimator."""
        return self.reward_kl is not None or getattr(self.advantage, "reads_entropies", True)

    def keep(self, logprobs_NT: Tensor, batch: TrajectoryBatch) -> Tensor:
        """Action tokens that the policy term sees under the present policy, bool `[N, T]`."""
        if self.mask is None:
            return batch.action_mask_NT
        return self.mask.keep(logprobs_NT, batch.old_logprobs_NT, batch.advantages_NT, batch.segment_ids_NT)

    def compute(
        self, logprobs_NT: Tensor, entropies_NT: Tensor, batch: TrajectoryBatch, kept: StepTotals, acted: StepTotals
    ) -> tuple[Tensor, PassRecord]:
        """This pass's share of the step's loss, and the record of the pass.

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
        loss_NT = token_loss.loss_NT
        if self.sampler_correction is not None:
            loss_NT = loss_NT * self.sampler_correction.weigh(batch.old_logprobs_NT, batch.behavior_logprobs_NT)
        loss = self.aggregation.compute(loss_NT, keep_NT, batch.segment_ids_NT, kept)
        acts_NT = batch.action_mask_NT
        if self.kl is not None:
            kl_NT = self.kl.compute(logprobs_NT, batch.ref_logprobs_NT)
            loss = loss + self.kl.coefficient * self.aggregation.compute(kl_NT, acts_NT, batch.segment_ids_NT, acted)
        if self.entropy is not None:
            bonus = self.aggregation.compute(entropies_NT, acts_NT, batch.segment_ids_NT, acted)
            loss = loss - self.entropy.coefficient * bonus
        record = PassRecord(batch, logprobs_NT.detach(), entropies_NT.detach(), token_loss.clipped_NT, keep_NT)
        return loss, record
