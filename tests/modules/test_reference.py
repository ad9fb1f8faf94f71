"""The reference is the start to the bit, stays it, and holds nothing twice that never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import TokenMean
from arl_lightning.modules.estimators import GroupNormalized
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.reference import AdapterOff, FrozenAdapter, FrozenCopy, freeze_start
from arl_lightning.modules.regularizers import ReferenceKL
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.types import ArlError, TokenBatch, TrajectoryBatch

Load = Callable[..., Policy]
OBJECTIVE = Objective(TokenClip(), TokenMean(), GroupNormalized(), kl=ReferenceKL(0.1))
QLORA: dict[str, Any] = {"dtype": "bfloat16", "quantization": NF4()}


@pytest.fixture(scope="module")
def learnt(load: Load, teach: Callable[[nn.Module], None], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of an adapter that is no longer fresh."""
    folder = tmp_path_factory.mktemp("learnt")
    policy = load(lora=LoRA(r=8))
    teach(policy.model)
    policy.save(folder)
    return str(folder)


@pytest.fixture(params=["whole", "fresh", "fresh_dora", "warm", "fresh_nf4", "warm_nf4"])
def kind(request: pytest.FixtureRequest, tiny_folder: Path, learnt: str) -> tuple[PretrainedModel, type]:
    """How a policy may be made, and the reference that it then has."""
    kinds: dict[str, tuple[dict[str, Any], type]] = {
        "whole": ({}, FrozenCopy),
        "fresh": ({"lora": LoRA(r=8)}, AdapterOff),
        "fresh_dora": ({"lora": LoRA(r=8, dora=True)}, FrozenAdapter),
        "warm": ({"pretrained": learnt}, FrozenAdapter),
        "fresh_nf4": ({**QLORA, "lora": LoRA(r=8)}, AdapterOff),
        "warm_nf4": ({**QLORA, "pretrained": learnt}, FrozenAdapter),
    }
    options, expected = kinds[request.param]
    return PretrainedModel(**{"pretrained": str(tiny_folder), **options}), expected


def agent(source: PretrainedModel) -> AgentModule:
    module = AgentModule(source, OBJECTIVE, partial(torch.optim.AdamW, lr=1e-2), ratio_tolerance=1e-6)
    module.configure_model()
    return module


def played(module: AgentModule, rows: TokenBatch) -> TrajectoryBatch:
    scores = module.score(rows)
    advantages_NT = torch.linspace(-1, 1, rows.input_ids_NT.numel()).view_as(scores.logprobs_NT) * rows.action_mask_NT
    return TrajectoryBatch(
        **vars(rows),
        behavior_logprobs_NT=scores.logprobs_NT,
        old_logprobs_NT=scores.logprobs_NT,
        ref_logprobs_NT=scores.ref_logprobs_NT,
        advantages_NT=advantages_NT,
        policy_version=0,
    )


def fit(module: AgentModule, batch: TrajectoryBatch, steps: int) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader([batch] * steps, batch_size=None))  # type: ignore[arg-type]
    return trainer


def storages(module: nn.Module) -> dict[int, int]:
    """Bytes by address."""
    tensors = [*module.parameters(), *module.buffers()]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def total(module: nn.Module) -> int:
    return sum(storages(module).values())


def test_kl_is_exactly_0_before_the_first_step(kind: tuple[PretrainedModel, type], rows: TokenBatch) -> None:
    source, expected = kind
    module = agent(source)
    assert type(module.reference) is expected
    for training in (False, True):
        module.acting.train(training)
        scores = module.score(rows)
        assert torch.equal(scores.logprobs_NT, scores.ref_logprobs_NT)
        assert (scores.logprobs_NT[rows.action_mask_NT] < 0).all()


def test_the_reference_stays_the_start(kind: tuple[PretrainedModel, type], rows: TokenBatch, tmp_path: Path) -> None:
    module = agent(kind[0])
    batch = played(module, rows)
    trainer = fit(module, batch, steps=3)
    assert trainer.global_step == 3
    scores = module.score(rows)
    assert torch.equal(scores.ref_logprobs_NT, batch.ref_logprobs_NT)
    assert (scores.logprobs_NT - scores.ref_logprobs_NT).abs().max() > 1e-2
    # the start itself, loaded once more
    with torch.no_grad():
        start_NT, _ = Policy(*kind[0].load()).logprobs(rows)
    assert torch.equal(start_NT, batch.ref_logprobs_NT)
    trained = {name for name, weight in module.named_parameters() if weight.requires_grad}
    assert trained == module.state_dict().keys()
    assert all(name.startswith("policy.") and "reference" not in name for name in trained)
    module.export(tmp_path)
    assert not list(tmp_path.rglob("*reference*"))


def test_nothing_that_is_frozen_is_held_twice(kind: tuple[PretrainedModel, type]) -> None:
    source, expected = kind
    policy = Policy(*source.load())
    adapter = sum(p.numel() * p.element_size() for name, p in policy.named_parameters() if "lora_" in name)
    module = agent(source)
    added = total(module) - total(policy)
    costs: dict[type, int] = {FrozenCopy: total(policy), AdapterOff: 0, FrozenAdapter: adapter}
    assert added == costs[expected]


def test_switching_the_adapter_off_after_a_warm_start_would_be_another_model(
    load: Load, learnt: str, rows: TokenBatch
) -> None:
    policy = load(pretrained=learnt)
    with torch.no_grad():
        start_NT = policy.logprobs(rows)[0]
        assert (AdapterOff(policy).logprobs(rows) - start_NT).abs().max() > 0.1
        assert torch.equal(freeze_start(policy).logprobs(rows), start_NT)


def test_asking_the_reference_leaves_the_policy_as_it_was(kind: tuple[PretrainedModel, type], rows: TokenBatch) -> None:
    policy = Policy(*kind[0].load())
    trainable = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    reference = freeze_start(policy)
    # Lightning makes the optimiser before anything is scored
    assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == trainable
    for name, weight in policy.named_parameters():
        if name in trainable:
            weight.data.add_(0.01)
    with torch.no_grad():
        before_NT = policy.logprobs(rows)[0]
        reference.logprobs(rows)
        assert torch.equal(policy.logprobs(rows)[0], before_NT)
    assert {name for name, weight in policy.named_parameters() if weight.requires_grad} == trainable


def test_reinforcement_refuses_dropout_and_cloning_does_not(tiny_folder: Path, learnt: str) -> None:
    with pytest.raises(ArlError, match=r"set model\.policy\.lora\.dropout to 0"):
        agent(PretrainedModel(str(tiny_folder), lora=LoRA(dropout=0.1)))


def test_kl_pulls_back_to_the_start(kind: tuple[PretrainedModel, type], rows: TokenBatch) -> None:
    # with no advantage and the policy moved away, what is left of the loss is KL: steps must lessen it
    module = agent(kind[0])
    batch = played(module, rows)
    fit(module, batch, steps=3)
    far = replace(
        batch, advantages_NT=0 * batch.advantages_NT, old_logprobs_NT=module.score(rows).logprobs_NT, policy_version=0
    )
    before = gap(module, rows)
    moved = AgentModule(kind[0], OBJECTIVE, partial(torch.optim.SGD, lr=0.05), gradient_clip=1.0)
    moved.policy, moved.reference = module.policy, module.reference
    fit(moved, far, steps=4)
    assert gap(moved, rows) < before


def gap(module: AgentModule, rows: TokenBatch) -> float:
    scores = module.score(rows)
    difference_NT: Tensor = (scores.logprobs_NT - scores.ref_logprobs_NT)[rows.action_mask_NT]
    return float(difference_NT.square().mean())
