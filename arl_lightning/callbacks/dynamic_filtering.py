"""The gate that keeps groups from which an advantage can be made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from arl_lightning.callbacks.group_gate import GroupGateCallback
from arl_lightning.functional.group_spread import advantage_spread, return_spread, score_spread, success_spread
from arl_lightning.types import ArlError, Episode, EpisodeGroup


class DynamicFiltering(GroupGateCallback):
    """Drops groups whose members all fare alike, and has only the deficit played again with fresh tasks.

    The unit is always the whole group; validation is never filtered. Gates are asked before advantages are estimated
    (an estimator may look at the whole batch), so `advantage` judges what group-relative advantages are made of.

    Args:
        by: what must differ inside a group: `success`, the environment's `score`, the `return` with format penalties,
            or, for `advantage`, the returns or the discounted step returns from a common state. Step penalties make
            nearly every score differ, so tasks that define success want `success`.
        tolerance: largest difference between members that still counts as alike.
        max_attempts: rounds of play an epoch may take, the first included.
        exhausted: what becomes of a deficit after the last attempt: `fill` with dropped groups, `shrink` the batch, or
            `skip` the epoch's steps.
        cold_start_epochs: epochs without filtering at the start, while all-fail groups still teach the format.
        gamma: discount of the step returns, 0 to 1; only with `advantage`, and best that of the estimator.

    Source: DAPO, arXiv:2503.14476, sec. 3.2; ARLArena, arXiv:2602.21534.
    """

    def __init__(
        self,
        by: Literal["success", "score", "return", "advantage"] = "success",
        tolerance: float = 1e-6,
        max_attempts: int = 3,
        exhausted: Literal["fill", "shrink", "skip"] = "fill",
        cold_start_epochs: int = 0,
        gamma: float = 0.95,
    ) -> None:
        super().__init__(max_attempts, exhausted, cold_start_epochs)
        if not tolerance >= 0 or not 0 <= gamma <= 1:
            raise ArlError("DynamicFiltering needs tolerance >= 0 and 0 <= gamma <= 1")
        spreads: dict[str, Callable[[Sequence[Episode]], float]] = {
            "success": success_spread,
            "score": score_spread,
            "return": return_spread,
            "advantage": partial(advantage_spread, gamma=gamma),
        }
        if by not in spreads:
            raise ArlError(f"by is {by!r}: choose one of {', '.join(spreads)}")
        self._spread = spreads[by]
        self.tolerance = tolerance

    def refusal(self, group: EpisodeGroup, epoch: int) -> str:
        """`all_success`, `all_fail` or `all_alike` without a spread, `too_few` with fewer than two usable members."""
        episodes = group.usable_episodes
        if len(episodes) < 2:
            return "too_few"
        if self._spread(episodes) > self.tolerance:
            return ""
        successes = sum(episode.success for episode in episodes)
        return {len(episodes): "all_success", 0: "all_fail"}.get(successes, "all_alike")
