"""The DataModule of cloning: an expert's episodes, flawed on purpose if asked, as the tokens the agent would see."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from typing import Any, cast

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from arl_lightning.datamodules import collation
from arl_lightning.datamodules.conversation import ChatFormat, Dialogue
from arl_lightning.datamodules.rollout import EpisodeRequest, Seat
from arl_lightning.datamodules.rollout_measures import why_unusable
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.pool import reset_env, step_env
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.protocols import ChatTokenizer, ExpertEnv, TextEnv
from arl_lightning.types import ArlError, Completion, Episode, Row, TokenBatch


class DemonstrationDataModule(LightningDataModule):
    """Mini-batches of demonstrated responses in the same prompts that play uses.

    Args:
        task: environment and presentation; the environment must offer `expert_actions()`.
        episodes: demonstrated episodes, each of a task of its own. Few of them leave the agent mediocre on purpose.
        random_share: probability that a move is a random admissible one instead of the expert's, recorded as made.
        batch_size: rows of an optimiser step.
        steps_per_epoch: optimiser steps an epoch; rows are drawn anew, without replacement while they last.
        env_options: options of the environment that choose the demonstrations' split.
        seed: root of every draw; linked to `seed_everything`.
    """

    def __init__(
        self,
        task: Task,
        episodes: int = 80,
        random_share: float = 0.0,
        batch_size: int = 64,
        steps_per_epoch: int = 20,
        env_options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(episodes, batch_size, steps_per_epoch) < 1 or not 0 <= random_share <= 1:
            raise ArlError("episodes, batch_size and steps_per_epoch must be at least 1 and random_share from 0 to 1")
        self.task = task
        self.episodes = episodes
        self.random_share = random_share
        self.batch_size = batch_size
        self.steps_per_epoch = steps_per_epoch
        self.env_options = env_options or {}
        self.seed = seed
        self._rows: list[Row] = []
        self._resumed: dict[str, int] = {}

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Refuses several processes, which would not sum their gradients over equally many tokens."""
        if self.trainer is not None and self.trainer.world_size > 1:
            raise ArlError("cloning is not divided among processes: use --trainer.devices 1, it takes minutes")

    def train_dataloader(self) -> DataLoader[TokenBatch]:
        """This epoch's mini-batches, drawn by (seed, epoch) from demonstrations that the seed alone decides."""
        trainer = cast(Any, self.trainer)
        tokenizer: ChatTokenizer = trainer.lightning_module.tokenizer
        self._rows = self._rows or self._record(tokenizer)
        rng = random.Random(derive_seed(self.seed, Stream.SHUFFLE, trainer.current_epoch))
        order: list[int] = []
        while len(order) < self.steps_per_epoch * self.batch_size:
            order += rng.sample(range(len(self._rows)), len(self._rows))
        batches = [
            collation.collate(
                [self._rows[i] for i in order[step * self.batch_size : (step + 1) * self.batch_size]],
                int(tokenizer.pad_token_id or 0),
                temperature=1.0,
            )
            for step in range(self.steps_per_epoch)
        ]
        if self._resumed.get("epoch") == trainer.current_epoch:  # Lightning takes only the rest
            done = self._resumed["done"]
            batches = batches[done:] + batches[:done]
        return DataLoader(cast(Any, batches), batch_size=None, shuffle=False)

    def state_dict(self) -> dict[str, int]:
        """How many mini-batches of which epoch are done."""
        trainer = cast(Any, self.trainer)
        done = trainer.fit_loop.epoch_loop.batch_progress.current.processed
        return {"epoch": trainer.current_epoch, "done": done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes on inside the epoch that the checkpoint is of."""
        self._resumed = state_dict

    def _record(self, tokenizer: ChatTokenizer) -> list[Row]:
        """Rows of the demonstrated episodes, no two of which begin in the same state."""
        with closing(self.task.make_env(self.env_options)) as env:
            return self._record_in(env, tokenizer)

    def _record_in(self, env: TextEnv, tokenizer: ChatTokenizer) -> list[Row]:
        expert = getattr(env, "unwrapped", env)  # a wrapper does not show what its environment offers
        if not isinstance(expert, ExpertEnv):
            raise ArlError(f"{self.task.env_id} has no expert_actions(): it cannot demonstrate")
        dialogue = self.task.context.bind(tokenizer, self.task.prompt)
        rows: list[Row] = []
        turns = 0
        seen: set[Any] = set()
        for number in itertools.count():
            if len(seen) == self.episodes:
                break
            if number == 100 * self.episodes:
                raise ArlError(f"only {len(seen)} distinct tasks for {self.episodes} demonstrations: ask for fewer")
            seed = derive_seed(self.seed, Stream.DEMONSTRATION, number)
            rng = random.Random(derive_seed(self.seed, Stream.DEMONSTRATION, number, 1))
            seat = Seat(EpisodeRequest(seed, 0, lambda _: 0), 0)
            seat.see(reset_env(env, seed))
            if seat.shown.state_key not in seen:
                seen.add(seat.shown.state_key)
                episode = self._demonstrate(seat, env, expert, tokenizer, dialogue, rng)
                rows += dialogue.rows(episode, first_turn=turns)
                turns += len(episode.turns)
        return rows

    def _demonstrate(
        self,
        seat: Seat,
        env: TextEnv,
        expert: ExpertEnv,
        tokenizer: ChatTokenizer,
        dialogue: Dialogue,
        rng: random.Random,
    ) -> Episode:
        terminator_id = ChatFormat(tokenizer).terminator_id
        while seat.stop is None:
            actions = expert.expert_actions()
            if not actions or rng.random() < self.random_share:
                actions = seat.shown.info["admissible_actions"] or actions
            if not actions:
                raise ArlError(
                    f"{self.task.env_id} offers neither an expert's nor an admissible action at task seed "
                    f"{seat.request.task_seed}, turn {len(seat.turns) + 1}: it cannot demonstrate there"
                )
            seat.fed, _ = dialogue.next_prompt(seat.turns, seat.shown.observation, seat.shown.info)
            action = rng.choice(actions)
            response = self.task.parser.write(action)
            ids = (*tokenizer.encode(response, add_special_tokens=False), terminator_id)
            completion = Completion(ids, (0.0,) * len(ids), finished=True)
            seat.advance(self.task, completion, response, action, step_env(env, action))
        episode = seat.episode()
        if not episode.usable:
            raise ArlError(
                f"{self.task.env_id} failed in demonstrating task {episode.task_seed}: {why_unusable(episode)}"
            )
        return episode
