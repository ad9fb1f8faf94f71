"""Environments at numbered places that are reset and stepped together; one's fault is a value, not an exception."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from arl_lightning.protocols import TextEnv

T = TypeVar("T")

LONGEST_OBSERVATION = 1_000_000
"""Characters; a longer observation is a fault, since no model could read it and a pipe would choke on it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """All that play uses of what an environment shows; reward and the two ends are a step's."""

    observation: str
    info: Mapping[str, Any]
    success: bool
    state_key: Hashable
    task_type: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        """Whether the environment says that the episode is at its end."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Failure:
    """An environment raised, hung or died; `error` is its traceback or says so, the reason on the last line."""

    error: str


Reply = Shown | Failure


class EnvPool(Protocol):
    """Environments at places 0, 1, 2, ..., of which none can disturb another."""

    def reset(self, seeds: Sequence[int]) -> list[Reply]:
        """Place `i` begins task `seeds[i]`; whatever it played before is over."""
        ...

    def step(self, actions: Mapping[int, str]) -> dict[int, Reply]:
        """One step at each of the named places; a place that failed must be reset first."""
        ...

    def close(self) -> None:
        """Frees every environment; may be called twice."""
        ...


def reset_env(env: TextEnv, seed: int) -> Reply:
    """The start of task `seed`, or the failure to show it."""
    return _guarded(lambda: _shown(*env.reset(seed=seed)))


def step_env(env: TextEnv, action: str) -> Reply:
    """What the environment shows after `action`, or its failure."""

    def act() -> Shown:
        observation, reward, terminated, truncated, info = env.step(action)
        return _shown(observation, info, float(reward), bool(terminated), bool(truncated))

    return _guarded(act)


class LocalPool:
    """Environments in this process, made when their place is first used, and anew after a failure.

    Args:
        make: gives a fresh environment at each call.
    """

    def __init__(self, make: Callable[[], TextEnv]) -> None:
        self._make = make
        self._envs: dict[int, TextEnv] = {}

    def reset(self, seeds: Sequence[int]) -> list[Reply]:
        """Place `i` begins task `seeds[i]`."""
        return [self._keep(place, reset_env(self._env(place), seed)) for place, seed in enumerate(seeds)]

    def step(self, actions: Mapping[int, str]) -> dict[int, Reply]:
        """One step at each of the named places."""
        return {place: self._keep(place, step_env(self._envs[place], action)) for place, action in actions.items()}

    def close(self) -> None:
        """Closes every environment."""
        while self._envs:
            self._envs.popitem()[1].close()

    def _env(self, place: int) -> TextEnv:
        if place not in self._envs:
            self._envs[place] = self._make()
        return self._envs[place]

    def _keep(self, place: int, reply: Reply) -> Reply:
        """The reply; a failed environment is given up, since nobody knows what state it is in."""
        if isinstance(reply, Failure):
            close_failed(self._envs.pop(place))
        return reply


def close_failed(env: TextEnv) -> None:
    """Closes an environment whose fault is already reported: what it raises now would be said twice."""
    _guarded(env.close)


def _guarded(act: Callable[[], T]) -> T | Failure:
    try:
        return act()
    except Exception:  # noqa: BLE001 - a foreign environment may raise anything; it is counted and reported
        return Failure(traceback.format_exc())


def _shown(observation: str, info: Mapping[str, Any], *step: Any) -> Shown:
    """What play uses; a missing key or an endless text fails here, as the environment's fault."""
    if len(observation) > LONGEST_OBSERVATION:
        raise ValueError(f"an observation of {len(observation)} characters, at most {LONGEST_OBSERVATION} are read")
    success, task_type = bool(info["success"]), str(info.get("task_type", ""))
    return Shown(observation, info, success, info["state_key"], task_type, *step)
