"""The DataModule of reinforcement: every epoch's batches are played by the policy that will learn from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from arl_lightning.datamodules import collation
from arl_lightning.datamodules.conversation import Dialogue
from arl_lightning.datamodules.resampling import collect_groups
from arl_lightning.datamodules.rollout import EpisodeRequest, Player
from arl_lightning.datamodules.rollout_measures import check_errors, measure_clock, measure_episodes, measure_groups
from arl_lightning.datamodules.task import Task
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.protocols import GroupGate, RolloutObserver, RolloutPolicy
from arl_lightning.types import (
    Advantages,
    ArlError,
    Decoding,
    Episode,
    EpisodeGroup,
    Measure,
    Rollout,
    Row,
    TrajectoryBatch,
)


@dataclass(frozen=True)
class HeldOut:
    """A fixed set of tasks that are only ever evaluated.

    Args:
        tasks: number of tasks; seeds count up from 0, and one whose initial state was seen before is left out.
        env_options: options of the environment that choose the held-out split.
        decodings: how responses are drawn, by name; the first reports as `val/...`, further ones as `val/NAME/...`.
        portion: episodes played together.
    """

    tasks: int = 128
    env_options: dict[str, Any] = field(default_factory=lambda: {"split": "validation"})
    decodings: dict[str, Decoding] = field(default_factory=lambda: {"sampled": Decoding()})
    portion: int = 256


class RolloutDataModule(LightningDataModule):
    """Plays groups of episodes each epoch, asks the gates, scores the rows and cuts them into mini-batches.

    Args:
        task: environment and presentation.
        decoding: how training responses are drawn; its temperature is also that of all log-probs.
        groups: tasks a rollout.
        group_size: episodes a task, all from the identical initial state (elsewhere `num_generations`).
        minibatches: optimiser steps a rollout, one pass over its rows.
        sequence: unit of sequence-level ratios, masks and means.
        env_options: options of the environment in training, for example its split.
        validation: held-out tasks of `validate` and of validation during `fit`.
        test: held-out tasks of `test`.
        max_error_share: share of a rollout's episodes that may be unusable: by an error of the environment, a reward that
            is not finite, or a first prompt that does not fit the context.
        seed: root of every draw; linked to `seed_everything`.
    """

    def __init__(
        self,
        task: Task,
        decoding: Decoding,
        groups: int = 16,
        group_size: int = 8,
        minibatches: int = 8,
        sequence: Literal["turn", "episode"] = "turn",
        env_options: dict[str, Any] | None = None,
        validation: HeldOut = HeldOut(),  # noqa: B008 - frozen
        test: HeldOut = HeldOut(tasks=512, env_options={"split": "test"}),  # noqa: B008 - frozen
        max_error_share: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if decoding.temperature <= 0:
            raise ArlError("training needs decoding.temperature > 0: a greedy group has no spread to learn from")
        if min(groups, group_size, minibatches) < 1:
            raise ArlError("groups, group_size and minibatches must be at least 1")
        self.task = task
        self.decoding = decoding
        self.groups = groups
        self.group_size = group_size
        self.minibatches = minibatches
        self.sequence = sequence
        self.env_options = env_options or {}
        self.held_out = {"val": validation, "test": test}
        self.max_error_share = max_error_share
        self.seed = seed
        self._held_out_seeds: dict[str, list[int]] = {}

    # training

    def train_dataloader(self) -> DataLoader[TrajectoryBatch]:
        """This epoch's mini-batches, played just now. The loader has a length, so Lightning never fetches ahead."""
        epoch = self._trainer.current_epoch
        return DataLoader(cast(Any, self._train_batches(epoch)), batch_size=None, shuffle=False)

    def _train_batches(self, epoch: int) -> list[TrajectoryBatch]:
        policy, observers = self._policy, self._observers
        dialogue = self.task.context.bind(policy.tokenizer, self.task.prompt)
        gates = [cb for cb in self._callbacks if isinstance(cb, GroupGate)]
        player = Player(self.task, self.env_options, observers)
        for observer in observers:
            observer.rollout_started("train", epoch, self.groups * self.group_size)
        try:
            play = partial(self._play_groups, player, policy, dialogue, epoch)
            collected = collect_groups(play, gates, self.groups, epoch)
        finally:
            player.close()
        episodes = [episode for group in collected.played for episode in group.episodes]
        check_errors(episodes, self.max_error_share)
        batches = player.clock.time("score", lambda: self._batches(collected.kept, policy, dialogue, epoch))
        tokens = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns)
        measures = {
            **measure_episodes("train", episodes),
            **measure_groups(collected.played),
            **collected.measures,
            **measure_clock(player.clock.seconds, tokens),
        }
        rollout = Rollout("train", epoch, tuple(collected.kept), measures)
        for observer in observers:
            observer.rollout_finished(rollout)
        return batches

    def _play_groups(
        self, player: Player, policy: RolloutPolicy, dialogue: Dialogue, epoch: int, attempt: int, count: int
    ) -> list[EpisodeGroup]:
        seeds = [derive_seed(self.seed, Stream.TRAIN_TASK, epoch, attempt, g) for g in range(count)]
        requests = [
            EpisodeRequest(seed, member, partial(derive_seed, self.seed, Stream.TRAIN_TOKEN, epoch, attempt, g, member))
            for g, seed in enumerate(seeds)
            for member in range(self.group_size)
        ]
        return group_episodes(player.play(requests, policy, dialogue, self.decoding), self.group_size)

    def _batches(
        self, groups: Sequence[EpisodeGroup], policy: RolloutPolicy, dialogue: Dialogue, epoch: int
    ) -> list[TrajectoryBatch]:
        rows = self._rows(groups, dialogue)
        tokens = collation.collate(rows, int(policy.tokenizer.pad_token_id or 0), self.decoding.temperature)
        scores = policy.score(tokens)
        turns = sum(len(episode.turns) for group in groups for episode in group.episodes)
        entropies_PGK = _nest(collation.turn_means(scores.entropies_NT, rows, turns), groups)
        advantages_PGK = policy.estimate_advantages(groups, entropies_PGK)
        flat = [advantage for group in advantages_PGK for episode in group for advantage in episode]
        whole = collation.trajectory_batch(tokens, rows, scores, flat, policy.policy_version)
        seed = derive_seed(self.seed, Stream.SHUFFLE, epoch)
        return collation.minibatches(whole, rows, self.minibatches, seed)

    def _rows(self, groups: Sequence[EpisodeGroup], dialogue: Dialogue) -> list[Row]:
        rows: list[Row] = []
        first_turn = 0
        for number, episode in enumerate(episode for group in groups for episode in group.episodes):
            if episode.usable:
                own = dialogue.rows(episode, first_turn)
                rows += collation.by_episode(own, number) if self.sequence == "episode" else own
            first_turn += len(episode.turns)
        return rows

    # held-out play

    def val_dataloader(self) -> HeldOutLoader:
        """Portions of held-out episodes, played when they are asked for, hence by the weights of that moment."""
        return HeldOutLoader(self, "val")

    def test_dataloader(self) -> HeldOutLoader:
        """Portions of test episodes."""
        return HeldOutLoader(self, "test")

    def held_out_seeds(self, stage: str) -> list[int]:
        """Seeds of the stage's tasks, no two with the same initial state."""
        if stage not in self._held_out_seeds:
            held_out = self.held_out[stage]
            env = self.task.make_env(held_out.env_options)
            seeds: dict[Any, int] = {}
            for seed in range(20 * held_out.tasks):
                if len(seeds) == held_out.tasks:
                    break
                seeds.setdefault(env.reset(seed=seed)[1]["state_key"], seed)
            env.close()
            if len(seeds) < held_out.tasks:
                raise ArlError(
                    f"the held-out split has only {len(seeds)} distinct tasks in {20 * held_out.tasks} seeds, "
                    f"{held_out.tasks} are asked for: lower `tasks` or widen the environment's options"
                )
            self._held_out_seeds[stage] = sorted(seeds.values())
        return self._held_out_seeds[stage]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Episodes stay where they are; tensors move."""
        return batch if isinstance(batch, Rollout) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    @property
    def _trainer(self) -> Any:
        if self.trainer is None:
            raise RuntimeError("RolloutDataModule plays with its Trainer's module: attach it to a Trainer first")
        return self.trainer

    @property
    def _callbacks(self) -> Sequence[object]:
        return cast(Sequence[object], self._trainer.callbacks)

    @property
    def _policy(self) -> RolloutPolicy:
        module = self._trainer.lightning_module
        if not isinstance(module, RolloutPolicy):
            raise ArlError(f"{type(module).__name__} cannot act: RolloutDataModule needs an AgentModule")
        return module

    @property
    def _observers(self) -> list[RolloutObserver]:
        candidates = [self._trainer.lightning_module, *self._callbacks]
        return [candidate for candidate in candidates if isinstance(candidate, RolloutObserver)]


class HeldOutLoader:
    """Plays one portion of held-out tasks with one decoding at a time; its length is known, so nothing is fetched ahead.

    Args:
        data: whose tasks and policy are used.
        stage: `val` or `test`.
    """

    def __init__(self, data: RolloutDataModule, stage: str) -> None:
        self.data = data
        self.stage = stage
        held_out = data.held_out[stage]
        starts = range(0, held_out.tasks, held_out.portion)
        self.items = [(index, name, start) for index, name in enumerate(held_out.decodings) for start in starts]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Rollout]:
        data, held_out = self.data, self.data.held_out[self.stage]
        policy, observers = data._policy, data._observers
        dialogue = data.task.context.bind(policy.tokenizer, data.task.prompt)
        player = Player(data.task, held_out.env_options, observers)
        epoch = data._trainer.current_epoch
        try:
            for index, name, start in self.items:
                stage = self.stage if index == 0 else f"{self.stage}/{name}"
                seeds = data.held_out_seeds(self.stage)[start : start + held_out.portion]
                for observer in observers:
                    observer.rollout_started(stage, epoch, len(seeds))
                requests = [
                    EpisodeRequest(seed, 0, partial(derive_seed, data.seed, Stream.HELD_OUT_TOKEN, index, seed))
                    for seed in seeds
                ]
                episodes = player.play(requests, policy, dialogue, held_out.decodings[name])
                check_errors(episodes, data.max_error_share)
                rollout = Rollout(stage, epoch, tuple(group_episodes(episodes, 1)), measure_episodes(stage, episodes))
                for observer in observers:
                    observer.rollout_finished(rollout)
                yield rollout
        finally:
            player.close()


def group_episodes(episodes: Sequence[Episode], group_size: int) -> list[EpisodeGroup]:
    """Consecutive runs of `group_size` episodes as groups."""
    return [
        EpisodeGroup(episodes[start].task_seed, tuple(episodes[start : start + group_size]))
        for start in range(0, len(episodes), group_size)
    ]


def _nest(by_turn: Sequence[float], groups: Sequence[EpisodeGroup]) -> Advantages:
    values = iter(by_turn)
    return [[[next(values) for _ in episode.turns] for episode in group.episodes] for group in groups]
