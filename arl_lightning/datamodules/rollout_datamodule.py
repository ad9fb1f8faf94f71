"""The DataModule of reinforcement: every epoch's batches are played by the policy that will learn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule

from arl_lightning.datamodules import collation
from arl_lightning.datamodules.conversation import Dialogue
from arl_lightning.datamodules.crew import ALONE, Crew
from arl_lightning.datamodules.held_out import HeldOut, HeldOutLoader
from arl_lightning.datamodules.resampling import collect_groups
from arl_lightning.datamodules.rollout import Clock, EpisodeRequest, Player
from arl_lightning.datamodules.rollout_loader import RolloutLoader
from arl_lightning.datamodules.rollout_measures import (
    check_errors,
    measure_clock,
    measure_episodes,
    measure_groups,
    slowest_clock,
)
from arl_lightning.datamodules.row_shares import own_rows, score_rows
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.types import (
    Advantages,
    ArlError,
    Decoding,
    Episode,
    EpisodeGroup,
    Rollout,
    Row,
    TrajectoryBatch,
)


class RolloutDataModule(LightningDataModule):
    """Plays groups of episodes each epoch, asks the gates, scores the rows and cuts them into mini-batches.

    Several processes share the work: each plays its part of the groups, scores its part of the rows and learns from its
    part of every mini-batch. What is drawn, what is filtered and what is learnt do not depend on how many they are.

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
        max_error_share: share of a rollout's episodes that may be unusable: by an error of the environment, a reward
            that is not finite, or a first prompt that does not fit the context.
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
        validation: HeldOut | None = None,
        test: HeldOut | None = None,
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
        self.validation = validation or HeldOut()
        self.test = test or HeldOut()
        self._training = RolloutLoader(self.play_epoch, minibatches, lambda: self._scene().epoch)
        self._crew = ALONE
        self._loaders: dict[str, HeldOutLoader] = {}
        self._player: Player | None = None
        self.max_error_share = max_error_share
        self.seed = seed

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Learns with which processes the work is shared."""
        if self.trainer is not None:
            self._crew = Crew.of(self.trainer)

    # training

    def train_dataloader(self) -> RolloutLoader:
        """Each pass over it plays anew, but for the first one after a resume inside an epoch."""
        return self._training

    def state_dict(self) -> dict[str, Any]:
        """What is left of the epoch under way; no batch at an epoch's end, since the next is played anew."""
        return self._training.rest()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on inside the epoch that the checkpoint is of."""
        self._training.put_back(state_dict)

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002
        """Leaves no environment open, nor a process of one, when play was cut short."""
        self.teardown("fit")

    def play_epoch(self) -> list[TrajectoryBatch]:
        """`minibatches` mini-batches, played by the weights of this moment."""
        scene = self._scene()
        policy, epoch = scene.policy, scene.epoch
        dialogue = self.task.context.bind(policy.tokenizer, self.task.prompt)
        player = self._player = self._player or Player(self.task, self.env_options)
        player.clock = Clock()
        scene.announce("train", len(scene.crew.share([1] * self.groups)) * self.group_size)
        play = partial(self._play_groups, scene, player, dialogue)
        collected = collect_groups(play, scene.gates, self.groups, epoch)
        episodes = [episode for group in collected.played for episode in group.episodes]
        check_errors(episodes, self.max_error_share)
        batches = player.clock.time("score", lambda: self._batches(collected.kept, scene, dialogue))
        tokens = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns)
        slowest = slowest_clock(scene.crew.gather(lambda: player.clock.seconds))
        measures = {
            **measure_episodes("train", episodes),
            **measure_groups(collected.played),
            **collected.measures,
            **measure_clock(slowest, tokens),
        }
        scene.conclude(Rollout("train", epoch, tuple(collected.kept), measures))
        return batches

    def _play_groups(
        self, scene: Scene, player: Player, dialogue: Dialogue, attempt: int, count: int
    ) -> list[EpisodeGroup]:
        epoch = scene.epoch
        seeds = [derive_seed(self.seed, Stream.TRAIN_TASK, epoch, attempt, g) for g in range(count)]
        token_seed = partial(derive_seed, self.seed, Stream.TRAIN_TOKEN, epoch, attempt)
        requests_PG = [
            [EpisodeRequest(seed, member, partial(token_seed, g, member)) for member in range(self.group_size)]
            for g, seed in enumerate(seeds)
        ]
        return player.play_groups(requests_PG, scene, dialogue, self.decoding)

    def _batches(self, groups: Sequence[EpisodeGroup], scene: Scene, dialogue: Dialogue) -> list[TrajectoryBatch]:
        policy = scene.policy
        rows = self._rows(groups, dialogue)
        tokens = collation.collate(rows, int(policy.tokenizer.pad_token_id or 0), self.decoding.temperature)
        scores = score_rows(tokens, policy, scene.crew)
        turns = sum(len(episode.turns) for group in groups for episode in group.episodes)
        turn_of_NT = collation.pad([row.turn_of_token for row in rows], -1, torch.int64)
        entropies_PGK = _nest(collation.turn_means(scores.entropies_NT, turn_of_NT, turns), groups)
        penalties_PGK = _nest(collation.turn_sums(scores.penalties_NT, turn_of_NT, turns), groups)
        advantages_PGK = policy.estimate_advantages(_penalize(groups, penalties_PGK), entropies_PGK)
        flat = [advantage for group in advantages_PGK for episode in group for advantage in episode]
        whole = collation.trajectory_batch(tokens, rows, scores, turn_of_NT, flat, policy.policy_version)
        seed = derive_seed(self.seed, Stream.SHUFFLE, scene.epoch)
        return collation.minibatches(whole, rows, self.minibatches, seed)

    def _rows(self, groups: Sequence[EpisodeGroup], dialogue: Dialogue) -> list[Row]:
        rows: list[Row] = []
        first_turn = 0
        for number, episode in enumerate(episode for group in groups for episode in group.episodes):
            if episode.usable:
                own = dialogue.rows(episode, first_turn)
                if not self.task.learn_from_invalid:
                    void = {first_turn + k for k, turn in enumerate(episode.turns) if not turn.valid}
                    own = collation.without_turns(own, void)
                rows += collation.by_episode(own, number) if self.sequence == "episode" else own
            first_turn += len(episode.turns)
        return rows

    # held-out play

    def val_dataloader(self) -> HeldOutLoader:
        """Portions of held-out episodes, played when they are asked for, hence by the weights of that moment."""
        return self._loader("val", self.validation)

    def test_dataloader(self) -> HeldOutLoader:
        """Portions of test episodes."""
        return self._loader("test", self.test)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:  # noqa: ARG002
        """Of a mini-batch this process learns from its own rows; the loader gives the same whole one to all."""
        return own_rows(batch, self._crew) if isinstance(batch, TrajectoryBatch) else batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Episodes stay where they are; tensors move."""
        return batch if isinstance(batch, Rollout) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def teardown(self, stage: str) -> None:  # noqa: ARG002
        """Closes the environments."""
        if self._player is not None:
            self._player.close()

    def _loader(self, stage: str, held_out: HeldOut) -> HeldOutLoader:
        """One loader a stage, since it knows which of its seeds are distinct tasks."""
        if stage not in self._loaders:
            decodings = held_out.decodings or {"sampled": self.decoding}
            self._loaders[stage] = HeldOutLoader(
                self.task, held_out, decodings, stage, self._scene, self.seed, self.max_error_share
            )
        return self._loaders[stage]

    def _scene(self) -> Scene:
        return Scene.of(self.trainer, self._crew)


def _nest(by_turn: Sequence[float], groups: Sequence[EpisodeGroup]) -> Advantages:
    values = iter(by_turn)
    return [[[next(values) for _ in episode.turns] for episode in group.episodes] for group in groups]


def _penalize(groups: Sequence[EpisodeGroup], penalties_PGK: Advantages) -> list[EpisodeGroup]:
    """The groups with each turn's penalty raised by the policy's own."""
    return [
        replace(group, episodes=tuple(map(_penalize_episode, group.episodes, penalties_GK)))
        for group, penalties_GK in zip(groups, penalties_PGK, strict=True)
    ]


def _penalize_episode(episode: Episode, penalties_K: Sequence[float]) -> Episode:
    pairs = zip(episode.turns, penalties_K, strict=True)
    return replace(episode, turns=tuple(replace(turn, penalty=turn.penalty + penalty) for turn, penalty in pairs))
