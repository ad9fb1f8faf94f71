"""The sequence mask: which segments leave, and its kinship with the sequence clip."""

import math

import pytest
import torch

from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.surrogates import SequenceClip
from arl_lightning.protocols import SegmentMask
from arl_lightning.types import ArlError

OLD_NT = torch.tensor([[-1.0, -2.0]])
NEW_NT = torch.tensor([[-1.01, -2.03]])
ONE_SEGMENT_NT = torch.zeros(1, 2, dtype=torch.int64)


@pytest.mark.parametrize(("advantage", "kept"), [(-1.0, False), (0.0, True), (1.0, True)])
def test_hand_computed_row(advantage: float, kept: bool) -> None:
    # mean(old - new) = (0.01 + 0.03)/2 = 0.02 > 3e-3
    mask: SegmentMask = SequenceMask()
    assert mask.keep(NEW_NT, OLD_NT, torch.full((1, 2), advantage), ONE_SEGMENT_NT).tolist() == [[kept, kept]]


@pytest.mark.parametrize(("advantage", "kept"), [(-1.0, True), (0.0, True), (1.0, False)])
def test_the_mirror_image_drops_the_success_that_the_policy_has_come_to(advantage: float, kept: bool) -> None:
    mask = SequenceMask(advantages="positive")
    advantages_NT = torch.full((1, 2), advantage)
    assert mask.keep(OLD_NT, NEW_NT, advantages_NT, ONE_SEGMENT_NT).tolist() == [[kept, kept]]  # up by 0.02
    assert mask.keep(NEW_NT, OLD_NT, advantages_NT, ONE_SEGMENT_NT).all()  # down by as much


def test_only_two_signs_are_known() -> None:
    with pytest.raises(ArlError, match="'postive'"):
        SequenceMask(advantages="postive")  # type: ignore[arg-type]


def test_drift_is_judged_over_the_whole_segment_across_rows() -> None:
    # segment 5 drifts by (0.04 + 0.04 - 0.08)/3 = 0, segment 6 by 0.04
    new_NT = torch.tensor([[-0.04, -0.04], [0.08, -0.04]])
    ids_NT = torch.tensor([[5, 5], [5, 6]])
    kept_NT = SequenceMask().keep(new_NT, torch.zeros(2, 2), -torch.ones(2, 2), ids_NT)
    assert kept_NT.tolist() == [[True, True], [True, False]]


def test_policy_that_likes_a_failure_more_keeps_it() -> None:
    assert SequenceMask().keep(OLD_NT + 1, OLD_NT, -torch.ones(1, 2), ONE_SEGMENT_NT).all()


def test_turns_of_one_segment_are_judged_by_their_own_advantage() -> None:
    assert SequenceMask().keep(NEW_NT, OLD_NT, torch.tensor([[-1.0, 1.0]]), ONE_SEGMENT_NT).tolist() == [[False, True]]


def test_padding_is_never_kept_and_on_policy_everything_else_is() -> None:
    ids_NT = torch.tensor([[-1, 0]])
    assert SequenceMask(delta=0.0).keep(OLD_NT, OLD_NT, -torch.ones(1, 2), ids_NT).tolist() == [[False, True]]
    assert not SequenceMask().keep(OLD_NT, OLD_NT, torch.ones(1, 2), torch.full((1, 2), -1)).any()


def test_mask_is_made_without_gradient() -> None:
    kept_NT = SequenceMask().keep(NEW_NT.clone().requires_grad_(), OLD_NT, -torch.ones(1, 2), ONE_SEGMENT_NT)
    assert kept_NT.dtype == torch.bool
    assert not kept_NT.requires_grad


def test_mask_drops_exactly_what_the_lower_clip_gives_no_gradient() -> None:
    low = 3e-3
    generator = torch.Generator().manual_seed(0)
    ids_NT = torch.arange(64).unsqueeze(1).expand(64, 5)
    old_NT = -torch.rand(64, 5, generator=generator, dtype=torch.float64)
    new_NT = (old_NT + 0.01 * torch.randn(64, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    advantages_NT = torch.randn(64, 1, generator=generator, dtype=torch.float64).expand(64, 5)

    found = SequenceClip(low=low, high=math.inf).compute(new_NT, old_NT, advantages_NT, ids_NT)
    (gradient_NT,) = torch.autograd.grad(found.loss_NT.sum(), new_NT)
    kept_NT = SequenceMask(delta=-math.log(1 - low)).keep(new_NT, old_NT, advantages_NT, ids_NT)

    assert 0 < kept_NT.sum() < kept_NT.numel()
    assert kept_NT.equal(gradient_NT != 0)
    assert kept_NT.equal(~found.clipped_NT)


@pytest.mark.parametrize("delta", [-1e-3, math.nan])
def test_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(ArlError, match="delta"):
        SequenceMask(delta)
