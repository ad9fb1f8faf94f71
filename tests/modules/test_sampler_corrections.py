"""Correction for a sampler that is not quite the trainer."""

import pytest
import torch

from arl_lightning.modules.sampler_corrections import TruncatedImportance
from arl_lightning.protocols import SamplerCorrection
from arl_lightning.types import ArlError


def test_the_factor_is_the_truncated_ratio_of_trainer_to_sampler() -> None:
    correction: SamplerCorrection = TruncatedImportance(cap=2.0)
    old_NT = torch.tensor([[-1.0, -1.0, -1.0, 0.0]], requires_grad=True)
    sampler_NT = torch.tensor([[-1.0, -0.5, -3.0, 0.0]])
    factors_NT = correction.weigh(old_NT, sampler_NT)
    # exp(0), exp(−0.5), exp(2) = 7.39 cut to 2, and 1 off the action mask, where both are 0
    assert factors_NT[0].tolist() == pytest.approx([1.0, 0.6065307, 2.0, 1.0])
    assert not factors_NT.requires_grad


def test_a_token_that_the_sampler_could_hardly_draw_weighs_the_cap() -> None:
    assert TruncatedImportance(cap=3.0).weigh(torch.tensor([[0.0]]), torch.tensor([[-500.0]])).tolist() == [[3.0]]


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ArlError, match=r"cap is 0\.9"):
        TruncatedImportance(cap=0.9)
