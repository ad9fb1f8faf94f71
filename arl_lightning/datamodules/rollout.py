"""Play: many episodes in lockstep, one batch of responses a turn, only those still going."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
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
        self.prompt: Sequence[int] = ()

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
        """One episode a request, in order; the scene's observers are told after every round of turns."""
        self._pool = self._pool or self.task.open_pool(self.env_options)
        game = _Game(self.task, self._pool, scene.policy, dialogue, decoding, self.clock)
        seats = [Seat(request, place) for place, request in enumerate(requests)]
        for turns in game.rounds(seats):
            done = [seat for seat in seats if seat.stop is not None]
            for observer in scene.observers:
                observer.rollout_advanced(len(done), sum(seat.shown.success for seat in done), turns)
        return [seat.episode() for seat in seats]

    def play_groups(
        self, requests_PG: Sequence[Sequence[EpisodeRequest]], scene: Scene, dialogue: Dialogue, decoding: Decoding
    ) -> list[EpisodeGroup]:
        """One group a list of requests, in order; each process plays its share of them, and comes to know all."""

        def play(numbers: Sequence[int]) -> list[EpisodeGroup]:
            own_PG = [requests_PG[number] for number in numbers]
            episodes = iter(self.play([request for own_G in own_PG for request in own_G], scene, dialogue, decoding))
            return [EpisodeGroup(own_G[0].task_seed, tuple(islice(episodes, len(own_G)))) for own_G in own_PG]

        return scene.crew.divide([len(requests_G) for requests_G in requests_PG], play)

    def close(self) -> None:
        """Every environment closed."""
        if self._pool is not None:
            self._pool.close()


@dataclass(frozen=True, slots=True)
class _Step:
    """Actions on their way to the environments, and where they came from."""

    seats: Sequence[Seat]
    completions: Sequence[Completion]
    responses: Sequence[str]
    actions: Sequence[str | None]
    replies: Future[dict[int, Reply]]


class _Game:
    """One call of play: in each round every cohort of seats takes a turn, while the others' environments step."""

    def __init__(
        self,
        task: Task,
        pool: EnvPool,
        policy: RolloutPolicy,
        dialogue: Dialogue,
        decoding: Decoding,
        clock: Clock,
    ) -> None:
        self.task = task
        self.pool = pool
        self.policy = policy
        self.dialogue = dialogue
        self.decoding = decoding
        self.clock = clock
        self.sampler = policy.sampler(decoding, grows=dialogue.grows)

    def rounds(self, seats: Sequence[Seat]) -> Iterator[int]:
        """Plays all seats to their end; gives the number of turns that each round took."""
        cohorts = [seats[first :: self.task.pipeline] for first in range(self.task.pipeline)]
        under_way: dict[int, _Step] = {}
        with ThreadPoolExecutor(1) if self.task.pipeline > 1 else _Inline() as executor:
            seeds = [seat.request.task_seed for seat in seats]
            for seat, reply in zip(
                seats, self._environment(executor.submit(self.pool.reset, seeds).result), strict=True
            ):
                seat.see(reply)
            while any(seat.stop is None for seat in seats):
                turns = 0
                for number, cohort in enumerate(cohorts):
                    if number in under_way:
                        self._receive(under_way.pop(number))
                    if ready := self._ready(cohort):
                        step = self._act(ready, executor)
                        turns += len(ready)
                        if step.replies.done():
                            self._receive(step)
                        else:
                            under_way[number] = step
                yield turns

    def _ready(self, cohort: Sequence[Seat]) -> list[Seat]:
        """The seats of the cohort that can speak now, those in front first; the others wait until room is free."""
        going = [seat for seat in cohort if seat.stop is None]
        for seat in going:
            seat.fed, seat.prompt = self.dialogue.next_prompt(seat.turns, seat.shown.observation, seat.shown.info)
            if len(seat.prompt) + self.decoding.max_new_tokens > self.policy.max_context:
                self._end(seat, StopReason.CONTEXT_LIMIT)
        fitting = [seat for seat in going if seat.stop is None]
        places = [seat.place for seat in fitting]
        return fitting[: self.sampler.admit(places, [len(seat.prompt) for seat in fitting]) if fitting else 0]

    def _act(self, seats: Sequence[Seat], executor: Executor) -> _Step:
        """Responses drawn and read, and their actions sent to the environments."""
        asked = ([seat.place for seat in seats], [seat.prompt for seat in seats])
        seeds = [seat.request.token_seed(len(seat.turns)) for seat in seats]
        completions = self.clock.time("generate", lambda: self.sampler.sample(*asked, seeds))
        responses = [_read(self.policy, completion) for completion in completions]
        actions = [self.task.parser.parse(response) for response in responses]
        told = {
            seat.place: INVALID_ACTION if action is None else action
            for seat, action in zip(seats, actions, strict=True)
        }
        replies = self._environment(lambda: executor.submit(self.pool.step, told))
        return _Step(seats, completions, responses, actions, replies)

    def _receive(self, step: _Step) -> None:
        """What the environments show is taken over."""
        replies = self._environment(step.replies.result)
        said = zip(step.seats, step.completions, step.responses, step.actions, strict=True)
        for seat, completion, response, action in said:
            seat.advance(self.task, completion, response, action, replies[seat.place])
            if seat.stop is not None:
                self._end(seat, seat.stop)

    def _end(self, seat: Seat, reason: StopReason) -> None:
        seat.stop = reason
        self.sampler.forget([seat.place])

    def _environment(self, work: Callable[[], T]) -> T:
        return self.clock.time("environment", work)


class _Inline(Executor):
    """Does what is submitted at once and in this thread, which some environments insist on."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """The finished work."""
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _read(policy: RolloutPolicy, completion: Completion) -> str:
    """The response as text, without the end token if it has one."""
    ids = completion.token_ids
    return policy.tokenizer.decode(ids[:-1] if ids and ids[-1] in policy.stop_token_ids else ids)
