"""Play: many episodes in lockstep, one batch of responses a turn, only those still going."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from arl_lightning.datamodules.conversation import Dialogue
from arl_lightning.datamodules.scene import Scene
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.pool import EnvPool, Failure, Reply, Shown
from arl_lightning.protocols import RolloutPolicy
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

    def __init__(self, request: EpisodeRequest, place: int) -> None:
        self.request = request
        self.place = place
        self.turns: list[Turn] = []
        self.stop: StopReason | None = None
        self.error: str | None = None
        self.shown = Shown("", {}, success=False, state_key="", task_type="")
        self.fed: Sequence[int] = ()

    def see(self, reply: Reply) -> None:
        """Takes over what the environment shows; its failure ends this episode and no other."""
        if isinstance(reply, Failure):
            self.stop, self.error = StopReason.ERROR, reply.error
        else:
            self.shown = reply

    def advance(self, task: Task, completion: Completion, response: str, action: str | None, reply: Reply) -> None:
        """One response carried out; one without an action (None) reached the environment as `invalid`."""
        before = self.shown
        self.see(reply)
        if isinstance(reply, Failure):
            return
        valid = action is not None and bool(reply.info.get("action_valid", True))
        self.turns.append(
            Turn(
                prompt_ids=tuple(self.fed),
                completion=completion,
                observation=before.observation,
                response=response,
                action=INVALID_ACTION if action is None else action,
                valid=valid,
                reward=reply.reward,
                penalty=0.0 if valid else task.format_penalty,
                state_key=before.state_key,
            )
        )
        if reply.over:
            self.stop = StopReason.TERMINATED if reply.terminated else StopReason.TRUNCATED
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
            success=self.shown.success,
            task_type=self.shown.task_type,
            error=self.error,
        )


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
        self._pool: EnvPool | None = None

    def play(
        self, requests: Sequence[EpisodeRequest], scene: Scene, dialogue: Dialogue, decoding: Decoding
    ) -> list[Episode]:
        """One episode a request, in order; the scene's observers are told after every turn."""
        pool = self._pool = self._pool or self.task.open_pool(self.env_options)
        seats = [Seat(request, place) for place, request in enumerate(requests)]
        replies = self.clock.time("environment", lambda: pool.reset([request.task_seed for request in requests]))
        for seat, reply in zip(seats, replies, strict=True):
            seat.see(reply)
        while going := [seat for seat in seats if seat.stop is None]:
            self._turn(going, pool, scene.policy, dialogue, decoding)
            done = [seat for seat in seats if seat.stop is not None]
            for observer in scene.observers:
                observer.rollout_advanced(len(done), sum(seat.shown.success for seat in done), len(going))
        return [seat.episode() for seat in seats]

    def close(self) -> None:
        """Every environment closed."""
        if self._pool is not None:
            self._pool.close()

    def _turn(
        self, going: Sequence[Seat], pool: EnvPool, policy: RolloutPolicy, dialogue: Dialogue, decoding: Decoding
    ) -> None:
        prompts: list[Sequence[int]] = []
        ready: list[Seat] = []
        for seat in going:
            seat.fed, whole = dialogue.next_prompt(seat.turns, seat.shown.observation, seat.shown.info)
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
        actions = [self.task.parser.parse(response) for response in responses]
        told = {
            seat.place: INVALID_ACTION if action is None else action
            for seat, action in zip(ready, actions, strict=True)
        }
        replies = self.clock.time("environment", lambda: pool.step(told))
        for seat, completion, response, action in zip(ready, completions, responses, actions, strict=True):
            seat.advance(self.task, completion, response, action, replies[seat.place])


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
