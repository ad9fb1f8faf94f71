"""Environments in worker processes with deadlines: one that hangs or dies takes nothing with it but its own episode."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from arl_lightning.envs.pool import Failure, Reply, Shown, close_failed, reset_env, step_env
from arl_lightning.protocols import TextEnv
from arl_lightning.types import ArlError

_START = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
_START_TIMEOUT_S = 120.0  # a process imports this package first
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Workers:
    """Processes that environments run in, and how long they may take.

    Args:
        processes: number of worker processes, at least 1; environments are dealt out among them.
        step_timeout_s: seconds that one step may take before its worker is killed.
        reset_timeout_s: seconds that making an environment and starting a task may take.
        episodes_per_worker: a worker is replaced by a fresh one after this many episodes, since engines leak.
    """

    processes: int = 2
    step_timeout_s: float = 30.0
    reset_timeout_s: float = 120.0
    episodes_per_worker: int = 2000

    def __post_init__(self) -> None:
        if min(self.processes, self.episodes_per_worker) < 1 or min(self.step_timeout_s, self.reset_timeout_s) <= 0:
            raise ArlError(f"{self} is out of range: counts must be at least 1 and seconds positive")


@dataclass(frozen=True, slots=True)
class _Call:
    """One thing to do at a place: begin a task, take actions, or both; the last reply counts."""

    place: int
    seed: int | None
    actions: tuple[str, ...]
    timeout_s: float
    restores: bool = False  # whether it only brings a place back to where it was


@dataclass
class _Episode:
    """What would bring a place back to where it is, and what it showed there."""

    seed: int
    actions: list[str] = field(default_factory=list)
    last: Reply | None = None
    open: bool = True


class ProcessPool:
    """Places dealt out among worker processes, each of which does one call at a time.

    A call that raises ends its own episode. When a worker dies, or a call overruns its deadline and the worker is
    killed, the episode of that call fails; the worker's other episodes are brought back in a fresh worker by playing
    their actions again from their seeds. That must show what it showed before, which an environment that keeps the
    contract does, or the episode fails as well.

    Args:
        make: gives a fresh environment; it is pickled.
        workers: how many processes, and their deadlines.
    """

    def __init__(self, make: Callable[[], TextEnv], workers: Workers) -> None:
        self._make = make
        self._options = workers
        self._workers = [_Worker(make) for _ in range(workers.processes)]
        self._episodes: dict[int, _Episode] = {}

    def reset(self, seeds: Sequence[int]) -> list[Reply]:
        """Place `i` begins task `seeds[i]`, in workers that are not worn out."""
        self._episodes = {place: _Episode(seed) for place, seed in enumerate(seeds)}
        for worker in self._workers:
            if worker.episodes >= self._options.episodes_per_worker:
                worker.stop()
        calls = [_Call(place, seed, (), self._options.reset_timeout_s) for place, seed in enumerate(seeds)]
        replies = self._carry_out(calls)
        return [replies[place] for place in range(len(seeds))]

    def step(self, actions: Mapping[int, str]) -> dict[int, Reply]:
        """One step at each of the named places."""
        lost = {place: failed for place in actions if isinstance(failed := self._episodes[place].last, Failure)}
        timeout_s = self._options.step_timeout_s
        calls = [_Call(place, None, (action,), timeout_s) for place, action in actions.items() if place not in lost]
        return {**lost, **self._carry_out(calls)}

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.stop()

    def _carry_out(self, calls: Sequence[_Call]) -> dict[int, Reply]:
        """A reply to each call; no wait is longer than the deadline of a call."""
        replies: dict[int, Reply] = {}
        for call in calls:
            self._worker_of(call.place).queue.append(call)
        while busy := [worker for worker in self._workers if worker.begin()]:
            wait([worker.connection for worker in busy], timeout=min(worker.remaining_s() for worker in busy))
            for worker in busy:
                reply = worker.reply()
                if reply is not None:
                    self._book(worker, reply, replies)
        return replies

    def _book(self, worker: _Worker, reply: Reply, replies: dict[int, Reply]) -> None:
        """Notes what became of the call's episode; those that a lost worker held are brought back."""
        call = worker.finish()
        episode = self._episodes[call.place]
        if not call.restores:
            episode.actions += call.actions
            episode.last = replies[call.place] = reply
        elif reply != episode.last:
            if isinstance(reply, Shown):
                reply = Failure("the environment's worker was lost, and playing again did not show the same state")
            episode.last = reply  # told at the episode's next step, which may already be waiting
            if worker.forget(call.place):
                replies[call.place] = reply
        episode.open = isinstance(reply, Shown) and not reply.over
        if worker.process is None:
            self._restore(worker)

    def _restore(self, worker: _Worker) -> None:
        """Puts the replays of a lost worker's open episodes before what it still had to do."""
        waiting = [call for call in worker.queue if not call.restores]
        held = [
            (place, episode)
            for place, episode in self._episodes.items()
            if self._worker_of(place) is worker and episode.open and episode.last is not None
        ]
        reset_s, step_s = self._options.reset_timeout_s, self._options.step_timeout_s
        replays = [
            _Call(place, episode.seed, tuple(episode.actions), reset_s + len(episode.actions) * step_s, restores=True)
            for place, episode in held
        ]
        worker.queue = deque(replays + waiting)

    def _worker_of(self, place: int) -> _Worker:
        return self._workers[place % len(self._workers)]


class _Worker:
    """A process that is started when it has something to do, and started again after it was lost."""

    def __init__(self, make: Callable[[], TextEnv]) -> None:
        self._make = make
        self.queue: deque[_Call] = deque()
        self.process: Any = None
        self.connection: Connection
        self.episodes = 0
        self._call: _Call | None = None
        self._deadline = 0.0

    def begin(self) -> bool:
        """Begins the next call unless one is under way; False when there is nothing to do."""
        if self._call is None and self.queue:
            started = self.process is None
            if started:
                self._start()
            self._call = self.queue.popleft()
            self._deadline = time.monotonic() + self._call.timeout_s + (_START_TIMEOUT_S if started else 0)
            self.episodes += self._call.seed is not None
            try:
                self.connection.send(self._call)
            except OSError:
                self._deadline = 0.0  # it died idle; the call's reply will say so
        return self._call is not None

    def remaining_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(self._deadline - time.monotonic(), 0.0)

    def reply(self) -> Reply | None:
        """The reply to the call under way, a failure when the process is lost, None while neither is so.

        Raises:
            ArlError: the environment cannot be made.
        """
        assert self._call is not None
        try:
            if self.connection.poll():
                reply = self.connection.recv()
                if isinstance(reply, ArlError):
                    raise reply
                return reply  # type: ignore[no-any-return]
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._lose(f"the environment's worker process died, {self._ended()}")
        if self.remaining_s() == 0:
            return self._lose(
                f"the environment did not answer within {self._call.timeout_s:g} s, its worker was killed"
            )
        return None

    def finish(self) -> _Call:
        """The call that is answered; the worker is free again."""
        assert self._call is not None
        call, self._call = self._call, None
        return call

    def forget(self, place: int) -> bool:
        """Takes what is still to do at a place off the queue; whether there was anything."""
        kept = [call for call in self.queue if call.place != place]
        found = len(kept) < len(self.queue)
        self.queue = deque(kept)
        return found

    def stop(self) -> None:
        """Ends the process; an idle one closes its environments when the connection closes, a busy one is killed."""
        if self.process is None:
            return
        self.connection.close()
        self.process.join(0 if self._call else _CLOSE_TIMEOUT_S)
        self.process.kill()
        self.process.join()
        self.process.close()
        self.process, self.episodes = None, 0

    def _start(self) -> None:
        context: Any = mp.get_context(_START)
        if _START == "forkserver":
            context.set_forkserver_preload(["__main__", __name__])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self._make), daemon=True, name="arl-env-worker")
        self.process.start()
        theirs.close()

    def _ended(self) -> str:
        self.process.join(_CLOSE_TIMEOUT_S)
        code = self.process.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def _lose(self, reason: str) -> Failure:
        self.stop()
        return Failure(reason)


def _serve(connection: Connection, make: Callable[[], TextEnv]) -> None:
    """The worker's life: calls one after another until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then ends this one
    threading.Thread(target=_die_with_parent, daemon=True).start()
    envs: dict[int, TextEnv] = {}
    with closing(connection):
        while True:
            try:
                call: _Call = connection.recv()
            except (EOFError, OSError):
                break
            reply = _answer(call, envs, make)
            try:
                connection.send(reply)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                connection.send(Failure(f"what the environment shows cannot leave its process: {error}"))
    for env in envs.values():
        env.close()


def _answer(call: _Call, envs: dict[int, TextEnv], make: Callable[[], TextEnv]) -> Reply | ArlError:
    if call.place not in envs:
        try:
            envs[call.place] = make()
        except ArlError as error:
            return error
    env = envs[call.place]
    acts = [] if call.seed is None else [partial(reset_env, env, call.seed)]
    for act in (*acts, *(partial(step_env, env, action) for action in call.actions)):
        reply = act()
        if isinstance(reply, Failure):
            close_failed(envs.pop(call.place))
            break
    return reply


def _die_with_parent() -> None:
    """Ends this process, hung or not, when the main process is gone."""
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
