"""The gate that keeps tasks which are neither too easy nor too hard for the present policy."""

from __future__ import annotations

from typing import Literal

from arl_lightning.callbacks.group_gate import GroupGateCallback
from arl_lightning.types import ArlError, EpisodeGroup


class DifficultyWindow(GroupGateCallback):
    """Keeps groups whose success rate lies in a window, which may move on with the epochs as a curriculum.

    The window is a function of the epoch alone, so that a resumed run goes on with the same one.

    Args:
        low: smallest share of usable members that succeed, 0 to 1, at the start.
        high: largest share, at the start.
        final_low: smallest share from epoch `moves_over_epochs` on; null stays at `low`.
        final_high: largest share from then on; null stays at `high`.
        moves_over_epochs: epochs in which the window moves from start to end in a straight line.
        max_attempts: rounds of play an epoch may take, the first included.
        exhausted: what becomes of a deficit after the last attempt: `fill` with dropped groups, `shrink` the batch, or
            `skip` the epoch's steps.
        cold_start_epochs: epochs at the start in which every group stays.
    """

    def __init__(
        self,
        low: float = 0.1,
        high: float = 0.9,
        final_low: float | None = None,
        final_high: float | None = None,
        moves_over_epochs: int = 0,
        max_attempts: int = 3,
        exhausted: Literal["fill", "shrink", "skip"] = "fill",
        cold_start_epochs: int = 0,
    ) -> None:
        super().__init__(max_attempts, exhausted, cold_start_epochs)
        self._start = (low, high)
        self._end = (low if final_low is None else final_low, high if final_high is None else final_high)
        if any(not 0 <= least <= most <= 1 for least, most in (self._start, self._end)) or moves_over_epochs < 0:
            raise ArlError(
                f"the window goes from {self._start} to {self._end} over {moves_over_epochs} epochs, but "
                "DifficultyWindow needs 0 <= low <= high <= 1, the same of final_low and final_high, and "
                "moves_over_epochs >= 0"
            )
        self.moves_over_epochs = moves_over_epochs

    def window(self, epoch: int) -> tuple[float, float]:
        """Smallest and largest success rate that stays in `epoch`."""
        share = min(epoch / self.moves_over_epochs, 1.0) if self.moves_over_epochs else 1.0
        low, high = (a + (b - a) * share for a, b in zip(self._start, self._end, strict=True))
        return low, high

    def refusal(self, group: EpisodeGroup, epoch: int) -> str:
        """`too_hard` under the window, `too_easy` over it, `too_few` without a usable member."""
        episodes = group.usable_episodes
        if not episodes:
            return "too_few"
        rate = sum(episode.success for episode in episodes) / len(episodes)
        low, high = self.window(epoch)
        return "too_hard" if rate < low else "too_easy" if rate > high else ""
