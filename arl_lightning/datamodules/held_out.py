"""Evaluation: a fixed set of held-out tasks, played whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from arl_lightning.datamodules.rollout import EpisodeRequest, Player
from arl_lightning.datamodules.rollout_measures import check_errors, measure_episodes
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.functional.seeding import Stream, derive_seed
from arl_lightning.types import ArlError, Decoding, Rollout

_SEEDS_PER_TASK = 20
"""Seeds that are looked through for each task before the split counts as too small."""


@dataclass(frozen=True)
class HeldOut:
    """A fixed set of tasks that are only ever evaluated.

    Args:
        tasks: number of tasks; one whose initial state was seen before is left out.
        env_options: options of the environment that choose the held-out split.
        decodings: how responses are drawn, by name; the first reports as `val/...`, further ones as `val/NAME/...`.
            Null for one response drawn as in training.
        portion: episodes played together.
        first_seed: seeds count up from here; another number gives other tasks of the same split.
    """

    tasks: int = 128
    env_options: dict[str, Any] = field(default_factory=dict)
    decodings: dict[str, Decoding] | None = None
    portion: int = 256
    first_seed: int = 0

    def __post_init__(self) -> None:
        if min(self.tasks, self.portion) < 1 or self.decodings == {}:
            raise ArlError("held-out play needs tasks >= 1, portion >= 1 and at least one decoding")

    def seeds(self, task: Task) -> list[int]:
        """Seeds of the tasks, no two with the same initial state.

        Raises:
            ArlError: the split has too few distinct tasks.
        """
        env = task.make_env(self.env_options)
        found: dict[Any, int] = {}
        for seed in range(self.first_seed, self.first_seed + _SEEDS_PER_TASK * self.tasks):
            if len(found) == self.tasks:
                break
            found.setdefault(task.look(env, seed)[1]["state_key"], seed)
        env.close()
        if len(found) < self.tasks:
            raise ArlError(
                f"the held-out split has only {len(found)} distinct tasks in {_SEEDS_PER_TASK * self.tasks} seeds, "
                f"{self.tasks} are asked for: lower `tasks` or widen the environment's options"
            )
        return list(found.values())


class HeldOutLoader:
    """Plays one portion of held-out tasks with one decoding at a time; it has a length, so nothing is fetched ahead.

    Args:
        task: environment and presentation.
        held_out: which tasks.
        decodings: how responses are drawn, by name.
        stage: `val` or `test`.
        scene: gives the scene of the moment at which play begins.
        seed: root of the draws.
        max_error_share: share of a portion's episodes that may be unusable.
    """

    def __init__(
        self,
        task: Task,
        held_out: HeldOut,
        decodings: Mapping[str, Decoding],
        stage: str,
        scene: Callable[[], Scene],
        seed: int,
        max_error_share: float,
    ) -> None:
        self.task = task
        self.held_out = held_out
        self.scene = scene
        self.seed = seed
        self.max_error_share = max_error_share
        self._seeds: list[int] = []
        starts = range(0, held_out.tasks, held_out.portion)
        self._items = [
            (stage if index == 0 else f"{stage}/{name}", index, decoding, start)
            for index, (name, decoding) in enumerate(decodings.items())
            for start in starts
        ]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Rollout]:
        scene = self.scene()
        self._seeds = self._seeds or scene.crew.gather(lambda: self.held_out.seeds(self.task))[0]
        dialogue = self.task.context.bind(scene.policy.tokenizer, self.task.prompt)
        player = Player(self.task, self.held_out.env_options)
        try:
            for stage, index, decoding, start in self._items:
                seeds = self._seeds[start : start + self.held_out.portion]
                scene.announce(stage, len(scene.crew.share([1] * len(seeds))))
                requests_PG = [
                    [EpisodeRequest(seed, 0, partial(derive_seed, self.seed, Stream.HELD_OUT_TOKEN, index, seed))]
                    for seed in seeds
                ]
                groups = tuple(player.play_groups(requests_PG, scene, dialogue, decoding))
                episodes = [episode for group in groups for episode in group.episodes]
                check_errors(episodes, self.max_error_share)
                rollout = Rollout(stage, scene.epoch, groups, measure_episodes(stage, episodes))
                scene.conclude(rollout)
                yield rollout
        finally:
            player.close()
