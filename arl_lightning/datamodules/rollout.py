"""Play: many episodes in lockstep, one batch of responses a turn, only those still going."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from arl_lightning.datamodules.conversation import Dialogue
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.protocols import RolloutPolicy, TextEnv
from arl_lightning.types import INVALID_ACTION, Completion, Decoding, Episode, EpisodeGroup, StopReason, Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to play: the task's seed, the member's number, and the token seed of each turn."""

    task_seed: int
    member: int
    token_seed: Callable[[int], int]


@dataclass
class Clock:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=lambda: {"generate": 0.0, "environment": 0.0, "score": 0.0})

    def time(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, its time booked under `what`."""
        started = time.perf_counter()
        result = work()
        self.seconds[what] += time.perf_counter() - started
        return result


class Seat:
    """An episode under way: the only mutable thing of play."""

    def __init__(self, request: EpisodeRequest, env: TextEnv) -> None:
        self.request = request
        self.env = env
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.error: str | None = None
        self.observation = ""
        self.info: dict[str, Any] = {}
        self.success = False
        self.task_type = ""
        self.state_key: Hashable = ""
        self.fed: Sequence[int] = ()

    def guard(self, act: Callable[[], None]) -> None:
        """Runs a call into the environment; whatever it raises ends this episode and no other."""
        try:
            act()
        except Exception:  # noqa: BLE001 - a foreign environment may raise anything; it is counted and reported
            self.stop = StopReason.ERROR
            self.error = traceback.format_exc()

    def begin(self) -> None:
        """The environment in the state that all members of the group share."""
        self._see(*self.env.reset(seed=self.request.task_seed))

    def advance(self, task: Task, completion: Completion, response: str, action: str | None) -> None:
        """One response carried out; one without an action (None) reaches the environment as `invalid`."""
        shown, key = self.observation, self.state_key
        observation, reward, terminated, truncated, info = self.env.step(INVALID_ACTION if action is None else action)
        self._see(observation, info)
        valid = action is not None and bool(info.get("action_valid", True))
        self.turns.append(
            Turn(
                prompt_ids=tuple(self.fed),
                completion=completion,
                observation=shown,
                response=response,
                action=INVALID_ACTION if action is None else action,
                valid=valid,
                reward=float(reward),
                penalty=0.0 if valid else task.format_penalty,
                state_key=key,
            )
        )
        if terminated or truncated:
            self.stop = StopReason.TERMINATED if terminated else StopReason.TRUNCATED
        elif len(self.turns) == task.max_turns:
            self.stop = StopReason.TURN_LIMIT

    def episode(self) -> Episode:
        """The finished record."""
        assert self.stop is not None
        return Episode(
            task_seed=self.request.task_seed,
            member=self.request.member,
            turns=tuple(self.turns),
            stop=self.stop,
            success=self.success,
            task_type=self.task_type,
            error=self.error,
        )

    def _see(self, observation: str, info: dict[str, Any]) -> None:
        """Takes over what the environment shows; a missing key fails here, as this episode's error."""
        self.observation, self.info = observation, info
        self.success, self.state_key = bool(info["success"]), info["state_key"]
        self.task_type = str(info.get("task_type", ""))


class Player:
    """Plays a task; keeps its environments between calls.

    Args:
        task: what is played.
        env_options: options of this stage, for example its split.
    """

    def __init__(self, task: Task, env_options: Mapping[str, Any]) -> None:
        self.task = task
        self.env_options = env_options
        self.clock = Clock()
        self._envs: list[TextEnv] = []

    def play(
        self, requests: Sequence[EpisodeRequest], scene: Scene, dialogue: Dialogue, decoding: Decoding
    ) -> list[Episode]:
        """One episode a request, in order; the scene's observers are told after every turn."""
        while len(self._envs) < len(requests):
            self._envs.append(self.task.make_env(self.env_options))
        seats = [Seat(request, env) for request, env in zip(requests, self._envs, strict=False)]
        self.clock.time("environment", lambda: self._begin(seats))
        while going := [seat for seat in seats if seat.stop is None]:
            self._turn(going, scene.policy, dialogue, decoding)
            done = [seat for seat in seats if seat.stop is not None]
            for observer in scene.observers:
                observer.rollout_advanced(len(done), sum(seat.success for seat in done), len(going))
        return [seat.episode() for seat in seats]

    def close(self) -> None:
        """Every environment closed."""
        while self._envs:
            self._envs.pop().close()

    def _begin(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            seat.guard(seat.begin)

    def _turn(self, going: Sequence[Seat], policy: RolloutPolicy, dialogue: Dialogue, decoding: Decoding) -> None:
        prompts: list[Sequence[int]] = []
        ready: list[Seat] = []
        for seat in going:
            seat.fed, whole = dialogue.next_prompt(seat.turns, seat.observation, seat.info)
            if len(whole) + decoding.max_new_tokens > policy.max_context:
                seat.stop = StopReason.CONTEXT_LIMIT
                continue
            prompts.append(whole)
            ready.append(seat)
        if not ready:
            return
        seeds = [seat.request.token_seed(len(seat.turns)) for seat in ready]
        completions = self.clock.time("generate", lambda: policy.sample(prompts, seeds, decoding))
        responses = [_read(policy, completion) for completion in completions]
        self.clock.time("environment", lambda: self._step(ready, completions, responses))

    def _step(self, ready: Sequence[Seat], completions: Sequence[Completion], responses: Sequence[str]) -> None:
        for seat, completion, response in zip(ready, completions, responses, strict=True):
            action = self.task.parser.parse(response)  # a fault of the parser is not the environment's
            seat.guard(partial(seat.advance, self.task, completion, response, action))


def _read(policy: RolloutPolicy, completion: Completion) -> str:
    """The response as text, without the stop token that ended it."""
    ids = completion.token_ids[:-1] if completion.finished else completion.token_ids
    return policy.tokenizer.decode(ids)


def group_episodes(episodes: Sequence[Episode], group_size: int) -> list[EpisodeGroup]:
    """Consecutive runs of `group_size` episodes as groups."""
    return [
        EpisodeGroup(episodes[start].task_seed, tuple(episodes[start : start + group_size]))
        for start in range(0, len(episodes), group_size)
    ]
