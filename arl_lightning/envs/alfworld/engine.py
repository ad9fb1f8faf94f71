"""What an engine is, the lock around everything that is one, and where idle ones wait."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from arl_lightning.envs.alfworld.facts import Fact
from arl_lightning.envs.alfworld.games import Game

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork while another thread plays would leave its child a lock that never opens
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


@contextmanager
def engine_lock() -> Iterator[None]:
    """Nobody else in this process is in the engine meanwhile, and `sys.argv`, which it overwrites, is restored."""
    with _LOCK:
        arguments = sys.argv
        try:
            yield
        finally:
            sys.argv = arguments


@dataclass(frozen=True, slots=True)
class Moment:
    """What the engine says after a command.

    Args:
        feedback: its answer.
        commands: the admissible commands, sorted.
        won: whether the task is done.
        facts: the facts that distinguish this state of the game from others, sorted.
    """

    feedback: str
    commands: tuple[str, ...]
    won: bool
    facts: tuple[Fact, ...]


class Engine(Protocol):
    """Plays one game after another."""

    def start(self, game: Game) -> Moment:
        """The game from its beginning."""
        ...

    def play(self, command: str) -> Moment:
        """What a command leads to; one that is not admissible changes nothing."""
        ...

    def plan(self) -> tuple[str, ...]:
        """A shortest way to win from here, as commands; empty when there is none."""
        ...

    def close(self) -> None:
        """The game is forgotten, and what played it waits for the next engine; may be called again."""
        ...


class Idle:
    """Loaded parts of the engine that nobody uses, to be had again.

    They are kept because the engine's library cannot be unloaded: it leaves a call for the process's end behind, which
    then jumps into nowhere. So as many stay, some 2 MB each, as were open at once; every use is under the lock.
    """

    def __init__(self) -> None:
        self._waiting: list[Any] = []

    def take(self, make: Callable[[], Any]) -> Any:
        """One that waited, or a new one."""
        return self._waiting.pop() if self._waiting else make()

    def give(self, part: Any) -> None:
        """The part waits."""
        self._waiting.append(part)
