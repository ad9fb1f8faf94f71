"""The processes that share the work of play: who does what, and how each comes to know the whole."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import distributed

from arl_lightning.types import ArlError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Crew:
    """This process among those that share the work; alone it does all of it and asks nobody.

    All processes must ask the same things in the same order.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, trainer: Any) -> Crew:
        """The processes of the Trainer.

        Raises:
            ArlError: they have no whole weights, each of its own.
        """
        strategy = trainer.strategy
        whole = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy))
        if not whole or isinstance(strategy, DeepSpeedStrategy):  # which is a DDPStrategy by name only
            raise ArlError(
                f"play and scoring read whole weights in every process, which {type(strategy).__name__} does not keep: "
                "use --trainer.strategy ddp, and a 4-bit base where one device is too small"
            )
        return cls(trainer.global_rank, trainer.world_size)

    def share(self, weights: Sequence[float]) -> list[int]:
        """The items, by number, that are this process's to do."""
        return shares(weights, self.size)[self.rank]

    def divide(self, weights: Sequence[float], work: Callable[[Sequence[int]], Sequence[T]]) -> list[T]:
        """One result an item, in order; `work` is given the numbers of this process's items and does those.

        Raises:
            ArlError: the work of another process failed.
        """
        parts = self.gather(lambda: work(self.share(weights)))
        results: dict[int, T] = {}
        for numbers, part in zip(shares(weights, self.size), parts, strict=True):
            results.update(zip(numbers, part, strict=True))
        return [results[number] for number in range(len(weights))]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives in each process, by rank.

        Where it fails in one, it fails in all: none may wait for an answer that never comes.

        Raises:
            ArlError: the work of another process failed; it has that one's sentence.
        """
        if self.size == 1:
            return [work()]
        error: Exception | None = None
        own: T | _Fault
        try:
            own = work()
        except Exception as caught:  # noqa: BLE001 - raised below, once the others know
            error, own = caught, _Fault.of(caught, self.rank)
        everyones: list[Any] = [None] * self.size
        distributed.all_gather_object(everyones, own)
        if error is not None:
            raise error
        for found in everyones:
            if isinstance(found, _Fault):
                raise ArlError(found.sentence)
        return everyones


ALONE = Crew()
"""The only process."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why the work of a process failed."""

    sentence: str

    @classmethod
    def of(cls, error: Exception, rank: int) -> _Fault:
        known = isinstance(error, ArlError)
        return cls(str(error) if known else f"process {rank} failed with {type(error).__name__}: {error}")


def shares(weights: Sequence[float], parts: int) -> list[list[int]]:
    """Items by the part that they fall to, in ascending order; the heaviest first choose the lightest part."""
    found: list[list[int]] = [[] for _ in range(parts)]
    loads = [(0.0, part) for part in range(parts)]
    for item in sorted(range(len(weights)), key=lambda item: -weights[item]):
        load, part = heapq.heappop(loads)
        found[part].append(item)
        heapq.heappush(loads, (load + weights[item], part))
    return [sorted(items) for items in found]
