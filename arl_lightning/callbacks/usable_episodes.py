"""The gate against groups that say more about limits and faults than about the policy."""

from __future__ import annotations

from typing import Literal

from arl_lightning.callbacks.group_gate import GroupGateCallback
from arl_lightning.types import ArlError, Episode, EpisodeGroup, StopReason


class UsableEpisodes(GroupGateCallback):
    """Drops groups in which too many episodes were cut by a limit, or were void.

    An episode is cut when the turn limit or the context ended it, or `max_new_tokens` one of its responses. It is void
    when the environment failed, its reward was not finite, or nothing was played.

    Args:
        max_cut_share: share of the usable members that may be cut, 0 to 1.
        max_void_share: share of all members that may be void, 0 to 1.
        count_truncated: whether the environment's own step limit cuts, too; a task that has one mostly means failure
            by it.
        max_attempts: rounds of play an epoch may take, the first included.
        exhausted: what becomes of a deficit after the last attempt: `fill` with dropped groups, `shrink` the batch, or
            `skip` the epoch's steps.
        cold_start_epochs: epochs at the start in which every group stays.
    """

    def __init__(
        self,
        max_cut_share: float = 0.5,
        max_void_share: float = 0.25,
        count_truncated: bool = False,
        max_attempts: int = 3,
        exhausted: Literal["fill", "shrink", "skip"] = "fill",
        cold_start_epochs: int = 0,
    ) -> None:
        super().__init__(max_attempts, exhausted, cold_start_epochs)
        if not 0 <= max_cut_share <= 1 or not 0 <= max_void_share <= 1:
            raise ArlError("UsableEpisodes needs max_cut_share and max_void_share from 0 to 1")
        self.max_cut_share = max_cut_share
        self.max_void_share = max_void_share
        own_limit = {StopReason.TRUNCATED} if count_truncated else set()
        self._limits = {StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT} | own_limit

    def refusal(self, group: EpisodeGroup, epoch: int) -> str:
        """`void`, which also a group without a usable member is, or `cut`."""
        usable, members = group.usable_episodes, len(group.episodes)
        if not usable or members - len(usable) > self.max_void_share * members:
            return "void"
        return "cut" if sum(map(self._is_cut, usable)) > self.max_cut_share * len(usable) else ""

    def _is_cut(self, episode: Episode) -> bool:
        return episode.stop in self._limits or not all(turn.completion.finished for turn in episode.turns)
