"""What the doctor examines: a module, its data, its optimiser, and a little play under the run's own options."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.nn import Parameter
from torch.optim import Optimizer

from arl_lightning.datamodules.conversation import FullContext
from arl_lightning.datamodules.demonstrations import DemonstrationDataModule
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.datamodules.task import Task
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.memory_plan import MemoryPlan, Workload, plan_memory
from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.types import ArlError, Episode, Rollout, TokenBatch, TrajectoryBatch

_GROUPS, _GROUP_SIZE = 2, 4
_PROMPT_TOKENS = 1024
"""What an observation and its instructions are taken to be where the tokenizer is not there yet to count them."""
_CONTEXT_TOKENS = 32768
"""The longest conversation that is planned for where the data set no limit to it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much the doctor tries.

    Args:
        turns: turns of an episode.
        response_tokens: tokens of a response.
        env_seconds: what the check of the environment's contract may take.
    """

    turns: int = 3
    response_tokens: int = 128
    env_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Played:
    """A few episodes of the first epoch, and the batch that the data module made of them."""

    episodes: tuple[Episode, ...]
    batch: TrajectoryBatch


@dataclass
class Patient:
    """All that checks look at; what could not be had is None, and `missing` says why.

    Attributes:
        module: the module, its model loaded unless `missing` names it.
        data: the data module; None without one.
        plan: the memory plan.
        trainable: what was trainable when the model was loaded; switching an adapter off and on thaws it.
        optimizer: the module's optimiser over what is trained.
        batch: rows to learn from.
        played: the play that they come from, where the data module plays.
        extent: how much is tried.
        missing: reasons by field.
    """

    module: PolicyModule
    data: LightningDataModule | None
    plan: MemoryPlan | None = None
    trainable: dict[str, Parameter] = field(default_factory=dict)
    optimizer: Optimizer | None = None
    batch: TokenBatch | None = None
    played: Played | None = None
    extent: Extent = field(default_factory=Extent)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def task(self) -> Task | None:
        """What is played or demonstrated; None where the data module has none."""
        task = getattr(self.data, "task", None)
        return task if isinstance(task, Task) else None


def plan_for(trainer: Trainer, module: PolicyModule, data: LightningDataModule | None) -> MemoryPlan:
    """The memory plan of the run that these make together.

    Raises:
        ArlError: the model's size cannot be known before it is loaded.
    """
    workload = Workload(
        episodes=1,
        conversation_tokens=_CONTEXT_TOKENS,
        tokens_per_pass=module.tokens_per_pass,
        autocast=torch.bfloat16 if str(trainer.precision) == "bf16-mixed" else None,
        reference=isinstance(module, AgentModule),
    )
    if isinstance(module, AgentModule) and module.cache_gb is not None:
        workload = replace(workload, cache_bytes=module.cache_gb * 1e9)
    if isinstance(data, RolloutDataModule):
        answers = data.task.max_turns if isinstance(data.task.context, FullContext) else 1
        tokens = answers * (_PROMPT_TOKENS + data.decoding.max_new_tokens)
        workload = replace(
            workload,
            episodes=data.groups * data.group_size,
            conversation_tokens=min(tokens, _CONTEXT_TOKENS),
        )
    elif isinstance(data, DemonstrationDataModule):
        workload = replace(workload, conversation_tokens=2 * _PROMPT_TOKENS)
    return plan_memory(module.source, workload, module.make_optimizer, trainer.strategy.root_device)


def admit(patient: Patient, trainer: Trainer) -> None:
    """Loads the model where the run would have it, makes its optimiser, and plays a little.

    Nothing of the run is written, and no callback of it is told.
    """
    module = patient.module
    trainer.strategy.connect(module)
    module.trainer = trainer
    try:
        module.configure_model()
    except ArlError as error:
        patient.missing["model"] = str(error)
        return
    module.to(trainer.strategy.root_device)
    patient.trainable = module.trainable_parameters()
    if patient.trainable:
        configured = module.configure_optimizers()
        patient.optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    if "rows" in patient.missing:
        return
    try:
        _take_rows(patient)
    except ArlError as error:
        patient.missing["rows"] = str(error)


def _take_rows(patient: Patient) -> None:
    data, recorder = copy.copy(patient.data), _Recorder()
    if data is None:
        patient.missing["rows"] = "there is no data module"
        return
    scene = SimpleNamespace(lightning_module=patient.module, callbacks=[recorder], current_epoch=0, world_size=1)
    data.trainer = cast(Any, scene)
    if isinstance(data, RolloutDataModule) and isinstance(patient.module, AgentModule):
        extent = patient.extent
        data.task = replace(data.task, max_turns=min(data.task.max_turns, extent.turns))
        limit = min(data.decoding.max_new_tokens, extent.response_tokens)
        data.decoding = replace(data.decoding, max_new_tokens=limit)
        data.groups, data.group_size = min(data.groups, _GROUPS), min(data.group_size, _GROUP_SIZE)
        data.minibatches = 1
        data._player = None
        try:
            (batch,) = data.play_epoch()
        finally:
            data.teardown("fit")
        patient.played = Played(recorder.episodes, batch)
        patient.batch = batch
    elif isinstance(data, DemonstrationDataModule):
        patient.batch = next(iter(data.train_dataloader()))
    else:
        patient.missing["rows"] = f"{type(data).__name__} is not known to play or to demonstrate"
    if patient.batch is not None and not len(patient.batch):
        patient.batch = None
        patient.missing["rows"] = "play left no rows: see the environment's contract"


class _Recorder:
    """Keeps the episodes that play left."""

    def __init__(self) -> None:
        self.episodes: tuple[Episode, ...] = ()

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to do."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to do."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """The episodes of all groups."""
        self.episodes = rollout.episodes


def responses(episodes: Sequence[Episode]) -> list[tuple[int, ...]]:
    """The sampled tokens of every turn."""
    return [turn.completion.token_ids for episode in episodes for turn in episode.turns]
