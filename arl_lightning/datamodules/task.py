"""What is played and how it is put to the model: environment, prompt, parser, context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium

from arl_lightning.datamodules.conversation import Context
from arl_lightning.envs.registration import register_envs
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
    """

    env_id: str
    prompt: PromptFormat
    parser: ActionParser
    context: Context
    env_options: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 15
    format_penalty: float = 0.1

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ArlError(
                f"max_turns={self.max_turns} must be at least 1, or only the environment could end an episode"
            )

    def make_env(self, options: Mapping[str, Any]) -> TextEnv:
        """A new environment; `options` win over the task's own.

        Raises:
            ArlError: for an unknown id or options that the environment refuses.
        """
        register_envs()
        try:
            env = gymnasium.make(self.env_id, disable_env_checker=True, **{**self.env_options, **options})
        except ArlError:
            raise
        except Exception as error:
            raise ArlError(
                f"the environment {self.env_id!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
        return cast(TextEnv, env)

    def look(self, env: TextEnv, seed: int) -> tuple[str, dict[str, Any]]:
        """The start of task `seed` outside of play, where a failing environment has no episode to end.

        Raises:
            ArlError: the environment raised.
        """
        try:
            return env.reset(seed=seed)
        except Exception as error:
            raise ArlError(f"{self.env_id} cannot start task seed {seed}: {type(error).__name__}: {error}") from error
