"""The objective: SAMPO's composition on the row of two tokens, and what its other slots add."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from arl_lightning.functional.segments import count
from arl_lightning.modules.aggregations import SequenceMean
from arl_lightning.modules.estimators import GiGPO
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL
from arl_lightning.modules.sampler_corrections import TruncatedImportance
from arl_lightning.modules.surrogates import SequenceClip
from arl_lightning.types import TrajectoryBatch

SAMPO = Objective(SequenceClip(3e-3, 4e-3), SequenceMean(), GiGPO(), SequenceMask(3e-3), ReferenceKL(0.01, "k3"))
NEW = (-1.01, -2.03)
# log ratios −0.01 and −0.03, so s = exp(−0.02) = 0.980199; d = log π_ref − log π = −0.19 and 0.23, so
# k3 = exp(−0.19) + 0.19 − 1 = 0.016959 and exp(0.23) − 0.23 − 1 = 0.028600, on average 0.0227795
KL_LOSS = 0.01 * 0.0227795
# 0.01/2 · (1 − exp(d)) = 0.005 · 0.173041 and 0.005 · −0.258600
KL_GRADIENT = [0.000865205, -0.001293000]


def batch_of(*advantages: float) -> TrajectoryBatch:
    """A prompt token and the two tokens, once a given advantage."""
    rows = len(advantages)

    def each(*values: float) -> Tensor:
        return torch.tensor([values] * rows, dtype=torch.float32)

    acts_NT = each(0, 1, 1).bool()
    return TrajectoryBatch(
        input_ids_NT=each(1, 2, 3).long(),
        lengths_N=torch.full((rows,), 3),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(rows)[:, None], -1),
        behavior_logprobs_NT=each(0, -1, -2),
        old_logprobs_NT=each(0, -1, -2),
        ref_logprobs_NT=each(0, -1.2, -1.8),
        advantages_NT=torch.tensor(advantages)[:, None] * acts_NT,
        policy_version=0,
    )


def compute(objective: Objective, batch: TrajectoryBatch) -> tuple[Tensor, Tensor, Tensor]:
    """The loss as one pass, and its gradient with respect to log-probs and entropies of the action tokens."""
    logprobs_NT = torch.tensor([(0.0, *NEW)] * len(batch)).requires_grad_()
    entropies_NT = torch.tensor([(0.0, 0.5, 0.7)] * len(batch)).requires_grad_()
    kept = count(objective.keep(logprobs_NT.detach(), batch), batch.segment_ids_NT)
    acted = count(batch.action_mask_NT, batch.segment_ids_NT)
    loss, _ = objective.compute(logprobs_NT, entropies_NT, batch, kept, acted)
    gradients = torch.autograd.grad(loss, [logprobs_NT, entropies_NT], allow_unused=True, materialize_grads=True)
    return loss, gradients[0][:, 1:], gradients[1][:, 1:]


def test_sampo_drops_a_failure_that_has_drifted_and_keeps_its_kl() -> None:
    loss, gradient_NT, _ = compute(SAMPO, batch_of(-1.0))
    assert loss.item() == pytest.approx(KL_LOSS, rel=1e-4)
    assert gradient_NT[0].tolist() == pytest.approx(KL_GRADIENT, rel=1e-4)


def test_sampo_pushes_a_success_with_its_sequence_ratio() -> None:
    loss, gradient_NT, _ = compute(SAMPO, batch_of(1.0))
    # −A·s, gradient −s/T = −0.980199/2 a token
    assert loss.item() == pytest.approx(-0.980199 + KL_LOSS, rel=1e-5)
    assert gradient_NT[0].tolist() == pytest.approx([-0.4900993 + kl for kl in KL_GRADIENT], rel=1e-5)


def test_dropped_segments_leave_the_policy_term_but_not_that_of_the_kl() -> None:
    loss, gradient_NT, _ = compute(SAMPO, batch_of(-1.0, 1.0, -1.0, -1.0))
    # policy term over the one kept segment, KL over all four
    assert loss.item() == pytest.approx(-0.980199 + KL_LOSS, rel=1e-5)
    assert gradient_NT[0].tolist() == pytest.approx([kl / 4 for kl in KL_GRADIENT], rel=1e-4)
    assert gradient_NT[1].tolist() == pytest.approx([-0.4900993 + kl / 4 for kl in KL_GRADIENT], rel=1e-5)


def test_a_step_in_which_nothing_is_kept_still_has_a_loss() -> None:
    loss, gradient_NT, _ = compute(replace(SAMPO, kl=None), batch_of(-1.0, -1.0))
    assert loss.item() == 0.0
    assert (gradient_NT == 0).all()


def test_without_a_mask_the_clip_alone_holds_the_failure() -> None:
    objective = replace(SAMPO, mask=None, kl=None)
    batch = batch_of(-1.0)
    assert torch.equal(objective.keep(batch.old_logprobs_NT, batch), batch.action_mask_NT)
    loss, gradient_NT, _ = compute(objective, batch)
    assert loss.item() == pytest.approx(0.997)  # −A·(1 − 3e-3)
    assert (gradient_NT == 0).all()


def test_the_entropy_slot_rewards_entropy() -> None:
    loss, _, gradient_NT = compute(replace(SAMPO, kl=None, entropy=EntropyBonus(0.1)), batch_of(1.0))
    # 0.1 times the mean of 0.5 and 0.7
    assert loss.item() == pytest.approx(-0.980199 - 0.06, rel=1e-5)
    assert gradient_NT[0].tolist() == pytest.approx([-0.05, -0.05])
    _, _, without_NT = compute(SAMPO, batch_of(1.0))
    assert (without_NT == 0).all()


def test_the_sampler_correction_weighs_the_policy_term_only() -> None:
    batch = batch_of(1.0)
    # the sampler gave the second token −2.7: exp(−2 + 2.7) = 2.01, cut to 2; the first agrees and weighs 1
    batch = replace(batch, behavior_logprobs_NT=torch.tensor([[0.0, -1.0, -2.7]]))
    loss, gradient_NT, _ = compute(replace(SAMPO, sampler_correction=TruncatedImportance(2.0)), batch)
    # −s · (1 + 2)/2
    assert loss.item() == pytest.approx(-0.980199 * 1.5 + KL_LOSS, rel=1e-5)
    assert gradient_NT[0].tolist() == pytest.approx(
        [-0.4900993 + KL_GRADIENT[0], -0.9801987 + KL_GRADIENT[1]], rel=1e-5
    )


def test_the_record_says_what_was_clipped_and_kept() -> None:
    batch = batch_of(-1.0, 1.0)
    logprobs_NT = torch.tensor([(0.0, *NEW)] * 2)
    totals = count(batch.action_mask_NT, batch.segment_ids_NT)
    _, record = SAMPO.compute(logprobs_NT.requires_grad_(), torch.zeros(2, 3), batch, totals, totals)
    assert record.clipped_NT.tolist() == [[False, True, True], [False, False, False]]
    assert record.keep_NT.tolist() == [[False, False, False], [False, True, True]]
    assert not record.logprobs_NT.requires_grad
