"""The loader of reinforcement: an epoch is played at the moment its first batch is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from arl_lightning.types import TrajectoryBatch


class RolloutLoader:
    """Plays when it is iterated, not when it is made: Lightning makes one in vain at every resume.

    It has a length, so that Lightning fetches no batch ahead, which would be one of stale weights. What is left of an
    epoch goes into a checkpoint, so that a run that goes on inside the epoch need not play it again.

    Args:
        play_epoch: gives the batches of an epoch, played by the weights of this moment.
        minibatches: how many they are.
        epoch: gives the number of the present epoch.
    """

    def __init__(
        self, play_epoch: Callable[[], Sequence[TrajectoryBatch]], minibatches: int, epoch: Callable[[], int]
    ) -> None:
        self.play_epoch = play_epoch
        self.minibatches = minibatches
        self.epoch = epoch
        self._begun: int | None = None
        self._left: deque[TrajectoryBatch] = deque()
        self._goes_on = False

    def __len__(self) -> int:
        return self.minibatches

    def __iter__(self) -> Iterator[TrajectoryBatch]:
        if not self._goes_on or self._begun != self.epoch():
            self._left = deque(self.play_epoch())
            self._begun = self.epoch()
        self._goes_on = False
        while self._left:
            yield self._left.popleft()

    def rest(self) -> dict[str, Any]:
        """The batches that are still to come, as plain tensors and numbers, and of which epoch they are."""
        return {"epoch": self._begun, "batches": [dict(vars(batch)) for batch in self._left]}

    def put_back(self, rest: dict[str, Any]) -> None:
        """The next pass yields what `rest` gave, if it is one of that epoch; any other plays."""
        self._begun = rest["epoch"]
        self._left = deque(TrajectoryBatch(**fields) for fields in rest["batches"])
        self._goes_on = True
