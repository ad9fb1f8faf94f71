"""What gates of groups have in common: bounded attempts, a policy of exhaustion, a cold start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lightning.pytorch import Callback

from arl_lightning.types import ArlError, EpisodeGroup, GateDecision


class GroupGateCallback(Callback):
    """A gate that judges each group by itself and by the epoch, so that it needs no state to be resumed.

    The unit is always the whole group; validation is never filtered.

    Args:
        max_attempts: rounds of play an epoch may take, the first included.
        exhausted: `fill`, `shrink` or `skip`: what becomes of a deficit after the last attempt.
        cold_start_epochs: epochs at the start in which every group stays.
    """

    def __init__(self, max_attempts: int, exhausted: str, cold_start_epochs: int) -> None:
        if max_attempts < 1 or cold_start_epochs < 0:
            raise ArlError(f"{type(self).__name__} needs max_attempts >= 1 and cold_start_epochs >= 0")
        if exhausted not in ("fill", "shrink", "skip"):
            raise ArlError(f"exhausted is {exhausted!r}: choose one of fill, shrink, skip")
        self.max_attempts = max_attempts
        self.exhausted: str = exhausted
        self.cold_start_epochs = cold_start_epochs

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> list[GateDecision]:
        """Keeps every group during the cold start, later those that the gate has nothing against."""
        reasons = ["" if epoch < self.cold_start_epochs else self.refusal(group, epoch) for group in groups]
        return [GateDecision(keep=not reason, reason=reason) for reason in reasons]

    @abstractmethod
    def refusal(self, group: EpisodeGroup, epoch: int) -> str:
        """The reason under which a dropped group is counted; empty for a group that stays."""
