"""The loader of reinforcement: an epoch is played at the moment its first batch is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from arl_lightning.types import TrajectoryBatch


class RolloutLoader:
    """Plays when it is iterated, not when it is made: Lightning makes one in vain at every resume.

    It has a length, so that Lightning fetches no batch ahead, which would be one of stale weights.

    Args:
        play_epoch: gives the batches of an epoch, played by the weights of this moment.
        minibatches: how many they are.
    """

    def __init__(self, play_epoch: Callable[[], Sequence[TrajectoryBatch]], minibatches: int) -> None:
        self.play_epoch = play_epoch
        self.minibatches = minibatches

    def __len__(self) -> int:
        return self.minibatches

    def __iter__(self) -> Iterator[TrajectoryBatch]:
        yield from self.play_epoch()
