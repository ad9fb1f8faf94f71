"""The agent: one exact step a mini-batch, a reference that stays, and errors instead of silent drift."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader

from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.modules.estimators import EMPG, GiGPO, GroupNormalized, LeaveOneOut
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.memory import free_bytes
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.reference import FrozenCopy
from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL, RewardKL
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.protocols import Aggregation, RolloutObserver, RolloutPolicy, SegmentMask
from arl_lightning.types import Advantages, ArlError, Decoding, EpisodeGroup, Scores, TrajectoryBatch

SOURCE = TinyModel(hidden_size=16, layers=1, heads=2, mlp_size=24, max_context=64)
OBJECTIVE = Objective(TokenClip(), TokenMean(), GroupNormalized())
LENGTHS = (4, 9, 9, 6, 12, 5)
SEGMENTS = (0, 1, 1, 2, 3, 4)  # rows 1 and 2 are one segment


def agent(**changes: Any) -> AgentModule:
    sgd = partial(torch.optim.SGD, lr=0.1)
    module = AgentModule(**{"policy": SOURCE, "objective": OBJECTIVE, "optimizer": sgd, **changes})
    module.configure_model()
    return module


def played(drift: float = 0.0) -> TrajectoryBatch:
    """Rows of version 0 of `SOURCE`; with a drift the old policy was another one."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(LENGTHS), max(LENGTHS))
    lengths_N = torch.tensor(LENGTHS)
    places_NT = torch.arange(shape[1]).expand(shape)
    acts_NT = (places_NT >= 2) & (places_NT < lengths_N[:, None])
    zeros_NT = torch.zeros(shape)
    segment_ids_NT = torch.where(acts_NT, torch.tensor(SEGMENTS)[:, None], -1)
    advantages_S = torch.tensor([1.0, -1.0, 0.5, -2.0, -0.5])
    batch = TrajectoryBatch(
        input_ids_NT=torch.randint(5, 100, shape, generator=generator),
        lengths_N=lengths_N,
        action_mask_NT=acts_NT,
        segment_ids_NT=segment_ids_NT,
        behavior_logprobs_NT=zeros_NT,
        old_logprobs_NT=zeros_NT,
        ref_logprobs_NT=zeros_NT,
        advantages_NT=advantages_S[segment_ids_NT] * acts_NT,
        policy_version=0,
    )
    with torch.no_grad():
        logprobs_NT, _ = agent().acting.logprobs(batch)
    old_NT = logprobs_NT + drift * torch.randn(shape, generator=generator) * acts_NT
    ref_NT = logprobs_NT + drift * torch.randn(shape, generator=generator) * acts_NT
    return replace(batch, behavior_logprobs_NT=old_NT, old_logprobs_NT=old_NT, ref_logprobs_NT=ref_NT)


def fit(module: AgentModule, batches: Sequence[TrajectoryBatch], **changes: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 1, **quiet, **changes})
    # Lightning takes a bare list for a collection of loaders
    trainer.fit(module, DataLoader(cast(Any, batches), batch_size=None))
    return trainer


def weights(module: torch.nn.Module | None) -> dict[str, Tensor]:
    assert module is not None
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def moved(module: AgentModule) -> bool:
    return any(
        not torch.equal(weight, weights(agent().policy)[name]) for name, weight in weights(module.policy).items()
    )


def poisoned() -> TrajectoryBatch:
    batch = played()
    return replace(batch, advantages_NT=batch.advantages_NT * math.nan)


def gradient(tokens_per_pass: int, objective: Objective, batch: TrajectoryBatch) -> tuple[Tensor, int]:
    """The whole gradient of one step, read off a step of SGD at rate 1, and the number of passes."""
    module = agent(
        objective=objective,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        gradient_clip=math.inf,
        tokens_per_pass=tokens_per_pass,
        ratio_tolerance=math.inf,
    )
    before = weights(module.policy)
    fit(module, [batch])
    steps = [(before[name] - weight).flatten() for name, weight in weights(module.policy).items()]
    return torch.cat(steps), len(module.passes(batch))


def test_the_module_is_what_a_rollout_asks_for() -> None:
    module = agent()
    assert isinstance(module, RolloutPolicy)
    assert isinstance(module, RolloutObserver)
    assert module.max_context == 64
    assert module.stop_token_ids == {2}


@pytest.mark.parametrize("mask", [None, SequenceMask(delta=0.01)], ids=["all", "masked"])
@pytest.mark.parametrize(
    "aggregation", [TokenMean(), SequenceMean(), SequenceSum(length=8)], ids=lambda a: type(a).__name__
)
def test_the_gradient_does_not_depend_on_the_passes(aggregation: Aggregation, mask: SegmentMask | None) -> None:
    objective = Objective(TokenClip(), aggregation, GroupNormalized(), mask, ReferenceKL(0.1), EntropyBonus(0.1))
    batch = played(drift=0.1)
    whole, one_pass = gradient(1000, objective, batch)
    some, some_passes = gradient(30, objective, batch)
    each, most_passes = gradient(1, objective, batch)
    assert (one_pass, some_passes, most_passes) == (1, 3, 5)  # rows 1 and 2 are never parted
    assert whole.norm() > 0.01
    torch.testing.assert_close(some, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(each, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens_per_pass", [1000, 30, 1])
@pytest.mark.parametrize("aggregation", [TokenMean(), SequenceMean()], ids=lambda a: type(a).__name__)
def test_dropped_segments_are_as_if_they_were_not_there(aggregation: Aggregation, tokens_per_pass: int) -> None:
    batch, mask = played(drift=0.1), SequenceMask(delta=0.01)
    with torch.no_grad():
        logprobs_NT, _ = agent().acting.logprobs(batch)
    keep_NT = mask.keep(logprobs_NT, batch.old_logprobs_NT, batch.advantages_NT, batch.segment_ids_NT)
    kept_rows = keep_NT.any(dim=1).nonzero()[:, 0].tolist()
    assert 0 < len(kept_rows) < len(batch)
    masked, _ = gradient(tokens_per_pass, Objective(TokenClip(), aggregation, GroupNormalized(), mask), batch)
    alone, _ = gradient(1000, Objective(TokenClip(), aggregation, GroupNormalized()), batch.take(kept_rows))
    torch.testing.assert_close(masked, alone, rtol=0, atol=1e-6)


def test_the_step_makes_good_tokens_likelier_and_bad_ones_less() -> None:
    module, batch = agent(), played()
    fit(module, [batch])
    with torch.no_grad():
        gain_NT = module.acting.logprobs(batch)[0] - batch.old_logprobs_NT
    assert (gain_NT * batch.advantages_NT).sum() > 0


def test_the_reference_never_changes_and_is_not_saved() -> None:
    module = agent()
    reference = module.reference
    assert isinstance(reference, FrozenCopy)
    start = weights(reference)
    fit(module, [played()] * 3)
    assert moved(module)
    assert module.reference is reference
    for name, weight in weights(reference).items():
        assert torch.equal(weight, start[name])
    assert not any(weight.requires_grad for weight in reference.parameters())
    assert not reference.training
    assert all(name.startswith("policy.") for name in module.state_dict())


def test_rows_of_another_version_are_refused() -> None:
    with pytest.raises(ArlError, match="played by version 3 of the weights but the epoch began at version 0"):
        fit(agent(), [replace(played(), policy_version=3)])


def test_rows_of_an_epoch_are_those_of_its_beginning() -> None:
    trainer = fit(agent(), [played()] * 2)  # the second step is taken at version 1 with rows of version 0
    assert trainer.global_step == 2
    with pytest.raises(ArlError, match="played by version 0 of the weights but the epoch began at version 1"):
        fit(agent(), [played()], max_epochs=2)


def test_the_first_ratio_of_an_epoch_must_be_one() -> None:
    batch = played()
    shifted = replace(batch, old_logprobs_NT=batch.old_logprobs_NT + 0.01 * batch.action_mask_NT)
    with pytest.raises(ArlError, match=r"every ratio must be 1, but a log ratio is 0\.01"):
        fit(agent(), [shifted])
    nan = replace(batch, old_logprobs_NT=batch.old_logprobs_NT * math.nan)
    with pytest.raises(ArlError, match="a log ratio is nan"):
        fit(agent(), [nan])
    trainer = fit(agent(), [batch, shifted])  # later ratios may differ
    assert trainer.callback_metrics["train/ratio/first_error"] <= 1e-5
    assert fit(agent(ratio_tolerance=0.02), [shifted]).global_step == 1


def test_a_non_finite_gradient_is_skipped_and_counted() -> None:
    module = agent()
    trainer = fit(module, [poisoned()])
    assert (module.skipped_steps, trainer.global_step) == (1, 0)
    assert not moved(module)


def test_a_good_step_ends_the_count() -> None:
    module = agent(max_skipped_steps=2)
    trainer = fit(module, [poisoned(), played(), poisoned(), played()])
    assert (module.skipped_steps, trainer.global_step) == (0, 2)
    assert all(weight.isfinite().all() for weight in weights(module.policy).values())


def test_too_many_skipped_steps_stop_the_run() -> None:
    module = agent(max_skipped_steps=2)
    with pytest.raises(ArlError, match="2 optimiser steps in a row had a non-finite gradient"):
        fit(module, [played(), poisoned(), poisoned(), played()])


def test_a_batch_without_rows_is_no_step() -> None:
    empty_NT = torch.zeros(0, 0)
    empty = TrajectoryBatch(
        input_ids_NT=empty_NT.long(),
        lengths_N=torch.zeros(0, dtype=torch.int64),
        action_mask_NT=empty_NT.bool(),
        segment_ids_NT=empty_NT.long(),
        behavior_logprobs_NT=empty_NT,
        old_logprobs_NT=empty_NT,
        ref_logprobs_NT=empty_NT,
        advantages_NT=empty_NT,
        policy_version=0,
    )
    module = agent()
    trainer = fit(module, [empty])
    assert trainer.global_step == 0
    assert not moved(module)
    assert module.score(empty).logprobs_NT.shape == (0, 0)


@pytest.mark.parametrize("tokens_per_pass", [1000, 30, 1])
def test_scores_are_those_of_the_training_forward_however_they_are_cut(tokens_per_pass: int) -> None:
    module, batch = agent(tokens_per_pass=tokens_per_pass), played()
    fit(module, [batch])
    scores = module.score(batch)
    with torch.no_grad():
        logprobs_NT, entropies_NT = module.acting.logprobs(batch)
    torch.testing.assert_close(scores.logprobs_NT, logprobs_NT, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores.entropies_NT, entropies_NT, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores.ref_logprobs_NT, batch.old_logprobs_NT, rtol=0, atol=1e-6)  # the start
    assert (scores.logprobs_NT - scores.ref_logprobs_NT).abs().max() > 1e-4


def test_the_cache_may_take_what_the_module_says_or_half_of_what_is_free() -> None:
    decoding = Decoding(max_new_tokens=5)
    given = agent(cache_gb=0.5).sampler(decoding, grows=True)
    assert isinstance(given, Sampler)
    assert (given.budget_bytes, given.decoding, given.grows) == (5e8, decoding, True)
    derived = agent().sampler(decoding, grows=False)
    assert isinstance(derived, Sampler)
    assert 1e8 < derived.budget_bytes < free_bytes(torch.device("cpu"))


def test_a_checkpoint_from_the_middle_of_an_epoch_is_refused_by_name(tmp_path: Path) -> None:
    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 1:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    fit(agent(), [played()] * 3, callbacks=[Save()])
    trainer = Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False)
    loader = DataLoader(cast(Any, [played()] * 3), batch_size=None)
    with pytest.raises(ArlError, match="in the middle of an epoch"):
        trainer.fit(agent(), loader, ckpt_path=str(tmp_path / "middle.ckpt"))


def test_only_training_keeps_a_reference() -> None:
    module = AgentModule(policy=SOURCE, objective=OBJECTIVE)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.state.fn = TrainerFn.TESTING
    module._trainer = trainer
    module.configure_model()
    assert module.policy is not None
    assert module.reference is None


class ScoredRows:
    """A loader that has its rows scored when an epoch begins, as a rollout does."""

    def __init__(self, module: AgentModule, batches: int) -> None:
        self.module = module
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[TrajectoryBatch]:
        batch = replace(played(), policy_version=self.module.global_step)
        self.scores = self.module.score(batch)
        yield from [replace(batch, old_logprobs_NT=self.scores.logprobs_NT)] * self.batches


def scored_fit(module: AgentModule, batches: int = 1, epochs: int = 2) -> tuple[Scores, Trainer]:
    loader = ScoredRows(module, batches)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=epochs, enable_model_summary=False, **quiet)  # type: ignore[arg-type]
    trainer.fit(module, cast(Any, loader))
    return loader.scores, trainer


@pytest.mark.parametrize("tokens_per_pass", [1000, 30])
@pytest.mark.parametrize("mask", [None, SequenceMask(delta=0.01)], ids=["all", "masked"])
def test_an_epochs_only_step_learns_the_same_from_its_own_old_log_probs(
    mask: SegmentMask | None, tokens_per_pass: int
) -> None:
    found = []
    for advantage, left in ((GroupNormalized(), True), (EMPG(), False)):  # the rows' advantages are given anyway
        module = agent(objective=replace(OBJECTIVE, advantage=advantage, mask=mask), tokens_per_pass=tokens_per_pass)
        scores, trainer = scored_fit(module)
        assert bool(scores.logprobs_NT.isnan().all()) == bool(scores.entropies_NT.isnan().all()) == left
        assert scores.ref_logprobs_NT.isfinite().all()
        assert float(trainer.callback_metrics["train/ratio/first_error"]) < 1e-5
        assert trainer.global_step == 2
        assert moved(module)
        found.append(weights(module.policy))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


def test_nothing_is_left_to_one_of_several_steps_nor_outside_of_training() -> None:
    module = agent()
    assert scored_fit(module, batches=2, epochs=1)[0].logprobs_NT.isfinite().all()
    module = agent()
    assert scored_fit(module, epochs=1)[0].logprobs_NT.isnan().all()
    assert module.score(played()).logprobs_NT.isfinite().all()


class Unheard:
    """An estimator that does not say what it reads."""

    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        return entropies_PGK


def test_scores_are_read_by_a_reward_penalty_and_by_estimators_that_do_not_deny_it() -> None:
    for estimator in (GroupNormalized(), LeaveOneOut(), GiGPO()):
        assert not replace(OBJECTIVE, advantage=estimator).reads_scores
        assert replace(OBJECTIVE, advantage=estimator, reward_kl=RewardKL(0.1)).reads_scores
    for reader in (EMPG(), EMPG(base=GiGPO()), Unheard()):
        assert replace(OBJECTIVE, advantage=reader).reads_scores
