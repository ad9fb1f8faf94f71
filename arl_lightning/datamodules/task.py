"""What is played and how it is put to the model: environment, prompt, parser, context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from arl_lightning.datamodules.conversation import Context
from arl_lightning.envs.pool import EnvPool, LocalPool
from arl_lightning.envs.registration import make_text_env
from arl_lightning.envs.workers import ProcessPool, Workers
from arl_lightning.protocols import ActionParser, PromptFormat, TextEnv
from arl_lightning.types import ArlError


@dataclass(frozen=True)
class Task:
    """An environment and its presentation to a language model.

    Args:
        env_id: Gymnasium id of a text environment, for example `arl/Sokoban-v0`, or
            `my_package:MyEnv-v0` to import first.
        prompt: writes the user's message of a turn.
        parser: reads the action out of a response.
        context: whether each turn's prompt is rebuilt (`WindowContext`) or the conversation grows (`FullContext`).
        env_options: keyword arguments of the environment.
        max_turns: responses that an episode may hold, at least 1.
        format_penalty: taken off the reward of each turn without a valid action.
        learn_from_invalid: whether turns without a valid action enter the loss; when not, they still cost their penalty
            and their episode keeps its return (for void answers of tool use, whose gradients are large).
        workers: processes that the environments run in; null for this process, which is faster where a step takes less
            than a millisecond, and waits as long as an environment makes it wait.
        pipeline: cohorts of episodes that take turns: while the environments of one step, in a thread, the responses of
            another are drawn; 2 where steps are as slow as generation. Results do not depend on it.
    """

    env_id: str
    prompt: PromptFormat
    parser: ActionParser
    context: Context
    env_options: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 15
    format_penalty: float = 0.1
    learn_from_invalid: bool = True
    workers: Workers | None = None
    pipeline: int = 1

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ArlError(
                f"max_turns={self.max_turns} must be at least 1, or only the environment could end an episode"
            )
        if self.pipeline < 1:
            raise ArlError(f"pipeline={self.pipeline} must be at least 1: the number of cohorts that take turns")

    def make_env(self, options: Mapping[str, Any]) -> TextEnv:
        """A new environment; `options` win over the task's own.

        Raises:
            ArlError: for an unknown id or options that the environment refuses.
        """
        return make_text_env(self.env_id, {**self.env_options, **options})

    def open_pool(self, options: Mapping[str, Any]) -> EnvPool:
        """Environments to play in, in this process or in workers; they are made when they are needed.

        Args:
            options: keyword arguments of the environments, which win over the task's own.
        """
        make = partial(make_text_env, self.env_id, {**self.env_options, **options})
        return LocalPool(make) if self.workers is None else ProcessPool(make, self.workers)

    def look(self, env: TextEnv, seed: int) -> tuple[str, dict[str, Any]]:
        """The start of task `seed` outside of play, where a failing environment has no episode to end.

        Raises:
            ArlError: the environment raised.
        """
        try:
            return env.reset(seed=seed)
        except Exception as error:
            raise ArlError(f"{self.env_id} cannot start task seed {seed}: {type(error).__name__}: {error}") from error
