"""The gate that keeps groups from which an advantage can be made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from lightning.pytorch import Callback

from arl_lightning.types import ArlError, Episode, EpisodeGroup, GateDecision

_MEASURES: dict[str, Callable[[Episode], float]] = {
    "success": lambda episode: float(episode.success),
    "score": lambda episode: episode.score,
    "return": lambda episode: episode.training_return,
}


class DynamicFiltering(Callback):
    """Drops groups whose members all fare alike, and has only the deficit played again with fresh tasks.

    The unit is always the whole group; validation is never filtered.

    Args:
        by: what must differ inside a group: `success`, the environment's `score`, or the `return` with format
            penalties. Step penalties make nearly every score differ, so tasks that define success want `success`.
        tolerance: largest difference between members that still counts as alike.
        max_attempts: rounds of play an epoch may take, the first included.
        exhausted: what becomes of a deficit after the last attempt: `fill` with dropped groups, `shrink` the batch, or
            `skip` the epoch's steps.
        cold_start_epochs: epochs without filtering at the start, while all-fail groups still teach the format.

    Source: DAPO, arXiv:2503.14476, sec. 3.2; ARLArena, arXiv:2602.21534.
    """

    def __init__(
        self,
        by: Literal["success", "score", "return"] = "success",
        tolerance: float = 1e-6,
        max_attempts: int = 3,
        exhausted: Literal["fill", "shrink", "skip"] = "fill",
        cold_start_epochs: int = 0,
    ) -> None:
        if max_attempts < 1 or tolerance < 0 or cold_start_epochs < 0:
            raise ArlError("DynamicFiltering needs max_attempts >= 1, tolerance >= 0 and cold_start_epochs >= 0")
        if by not in _MEASURES:
            raise ArlError(f"by is {by!r}: choose one of {', '.join(_MEASURES)}")
        if exhausted not in ("fill", "shrink", "skip"):
            raise ArlError(f"exhausted is {exhausted!r}: choose one of fill, shrink, skip")
        self._measure = _MEASURES[by]
        self.tolerance = tolerance
        self.max_attempts = max_attempts
        self.exhausted: str = exhausted
        self.cold_start_epochs = cold_start_epochs

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> list[GateDecision]:
        """Keeps every group during the cold start, later those with a spread."""
        if epoch < self.cold_start_epochs:
            return [GateDecision(keep=True) for _ in groups]
        return [self._judge(group.usable_episodes) for group in groups]

    def _judge(self, episodes: Sequence[Episode]) -> GateDecision:
        if len(episodes) < 2:
            return GateDecision(keep=False, reason="too_few")
        values = [self._measure(episode) for episode in episodes]
        if max(values) - min(values) > self.tolerance:
            return GateDecision(keep=True)
        successes = sum(episode.success for episode in episodes)
        reasons = {len(episodes): "all_success", 0: "all_fail"}
        return GateDecision(keep=False, reason=reasons.get(successes, "all_alike"))
