"""Advantage estimators: from the episodes of task groups to one advantage a turn.

Episodes that are not usable are left out of every statistic and have advantage 0 in all their turns. A group of one
and a group of equal returns have advantage 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from arl_lightning.functional.advantages import (
    Scale,
    anchor_groups,
    center,
    discounted_returns,
    entropy_gains,
    leave_one_out,
    min_max,
    normalizer,
)
from arl_lightning.protocols import AdvantageEstimator
from arl_lightning.types import Advantages, ArlError, Episode, EpisodeGroup

_STD_FLOOR = 0.1
_CLIP = 10.0


def _each_episode_once(episodes: Sequence[Episode]) -> list[int]:
    return [1] * len(episodes)


def _each_turn_once(episodes: Sequence[Episode]) -> list[int]:
    return [len(episode.turns) for episode in episodes]


_WEIGHTS: dict[str, Callable[[Sequence[Episode]], list[int]]] = {
    "episodes": _each_episode_once,
    "turns": _each_turn_once,
}


class GroupNormalized:
    """A = (R − mean) / (max(std, std_floor) + 1e-6) over the group, the same for all turns of an episode.

    Args:
        scale: "std" divides by the unbiased standard deviation; "none" only subtracts the mean (Dr.GRPO).
        over: "episodes" counts every episode once in mean and std; "turns" counts it once a turn, as training rows of
            one turn each do, so that long episodes dominate the baseline.
        std_floor: smallest divisor, in units of reward; only with scale "std". 0.1 is one format penalty: a smaller
            spread is not blown up to unit size. Set it to 0 for the published formula, or for rewards far below 1.
        clip: largest |A|; only with scale "std". 10 is out of reach for fewer than 102 equally weighted members, whose
            |A| is at most (n−1)/√n; it bounds a lone outlier among hundreds. null for no limit.

    Source: Group Relative Policy Optimization, arXiv:2402.03300; scale "none": Dr.GRPO, arXiv:2503.20783
    """

    reads_entropies = False

    def __init__(
        self,
        scale: Scale = "std",
        over: Literal["episodes", "turns"] = "episodes",
        std_floor: float = _STD_FLOOR,
        clip: float | None = _CLIP,
    ) -> None:
        if over not in _WEIGHTS:
            raise ArlError(f"over is {over!r}: choose one of {', '.join(_WEIGHTS)}")
        self._weights = _WEIGHTS[over]
        self._normalize = normalizer(scale, std_floor, clip)

    def estimate(
        self,
        groups: Sequence[EpisodeGroup],
        entropies_PGK: Advantages,  # noqa: ARG002
    ) -> Advantages:
        """One advantage a turn, in standard deviations of the group's returns (rewards with scale "none")."""
        return _by_group(groups, self._of_members)

    def _of_members(self, episodes: Sequence[Episode]) -> Sequence[Sequence[float]]:
        returns_G = [episode.training_return for episode in episodes]
        return _spread(self._normalize(returns_G, self._weights(episodes)), episodes)


class LeaveOneOut:
    """A = R − mean of the other members' R, which is n/(n−1) · (R − mean); the same for all turns of an episode.

    Source: Back to Basics (RLOO), arXiv:2402.14740
    """

    reads_entropies = False

    def estimate(
        self,
        groups: Sequence[EpisodeGroup],
        entropies_PGK: Advantages,  # noqa: ARG002
    ) -> Advantages:
        """One advantage a turn, in units of reward."""
        return _by_group(groups, self._of_members)

    @staticmethod
    def _of_members(episodes: Sequence[Episode]) -> Sequence[Sequence[float]]:
        return _spread(leave_one_out([episode.training_return for episode in episodes]), episodes)


class GiGPO:
    """A = A_episode + omega · A_step, where A_step compares turns that began in the same state of the same task.

    The step return is R_k = r_k + gamma · R_{k+1}. Turns of a task group with equal `state_key` form an anchor group,
    repeated visits of one episode included; a state that was met once has A_step = 0.

    Args:
        omega: weight of the step part, at least 0.
        gamma: discount of the step returns, 0 to 1.
        scale: "std" divides both parts by the unbiased standard deviation; "none" only subtracts the mean.
        std_floor: smallest divisor of either part, in units of reward; only with scale "std". Hundreds of equal returns
            and one less by a 0.1 penalty give |A| = 1 instead of 20.
        clip: largest |A| of either part; only with scale "std". null for no limit.

    Source: Group-in-Group Policy Optimization, arXiv:2505.10978
    """

    reads_entropies = False

    def __init__(
        self,
        omega: float = 1.0,
        gamma: float = 0.95,
        scale: Scale = "std",
        std_floor: float = _STD_FLOOR,
        clip: float | None = _CLIP,
    ) -> None:
        _check_not_negative(omega=omega)
        if not 0 <= gamma <= 1:
            raise ArlError(f"gamma is {gamma}, with which later rewards would outgrow earlier ones: set it from 0 to 1")
        self.omega = omega
        self.gamma = gamma
        self._episode_part = GroupNormalized(scale, "episodes", std_floor, clip)
        self._normalize = normalizer(scale, std_floor, clip)

    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """One advantage a turn: the episode part is equal over an episode, the step part is the turn's own."""
        episode_PGK = self._episode_part.estimate(groups, entropies_PGK)
        step_PGK = _by_group(groups, self._step_part)
        return [
            [
                [whole + self.omega * step for whole, step in zip(whole_K, step_K, strict=True)]
                for whole_K, step_K in zip(whole_GK, step_GK, strict=True)
            ]
            for whole_GK, step_GK in zip(episode_PGK, step_PGK, strict=True)
        ]

    def _step_part(self, episodes: Sequence[Episode]) -> Sequence[Sequence[float]]:
        returns_GK = [
            discounted_returns([turn.training_reward for turn in episode.turns], self.gamma) for episode in episodes
        ]
        flat_returns = [step_return for returns_K in returns_GK for step_return in returns_K]
        flat_advantages = [0.0] * len(flat_returns)
        for positions in anchor_groups([turn.state_key for episode in episodes for turn in episode.turns]):
            advantages = self._normalize([flat_returns[i] for i in positions], [1] * len(positions))
            for position, advantage in zip(positions, advantages, strict=True):
                flat_advantages[position] = advantage
        remaining = iter(flat_advantages)
        return [[next(remaining) for _ in returns_K] for returns_K in returns_GK]


class EMPG:
    """A = g·A_base + zeta·f(next turn), then centred over the batch: sure turns learn more, clear futures are liked.

    With h the turn's mean token entropy, min-max normalised over all usable turns of the batch: g = exp(−k·h) over its
    mean, f = exp(−k_future·h). An episode's last turn has no bonus; equal entropies give h = 0.

    Args:
        k: how strongly uncertainty damps a turn's own advantage, at least 0; 0 damps nothing.
        k_future: how strongly the next turn's uncertainty shrinks the bonus, at least 0.
        zeta: weight of the bonus, at least 0.
        base: estimator of the advantage that is modulated; null is `GroupNormalized` with its defaults.

    Source: Harnessing Uncertainty (EMPG), arXiv:2509.09265
    """

    def __init__(
        self,
        k: float = 1.0,
        k_future: float = 1.0,
        zeta: float = 0.05,
        base: AdvantageEstimator | None = None,
    ) -> None:
        _check_not_negative(k=k, k_future=k_future, zeta=zeta)
        self.k = k
        self.k_future = k_future
        self.zeta = zeta
        self._base = GroupNormalized() if base is None else base

    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """One advantage a turn, of mean 0 over the usable turns of the batch.

        Raises:
            ValueError: an entropy that is not finite: it would spread to every turn of the batch.
        """
        base_PGK = self._base.estimate(groups, entropies_PGK)
        places = [
            (p, g, k)
            for p, group in enumerate(groups)
            for g, episode in enumerate(group.episodes)
            if episode.usable
            for k in range(len(episode.turns))
        ]
        entropies = [entropies_PGK[p][g][k] for p, g, k in places]
        if not all(map(math.isfinite, entropies)):
            raise ValueError(f"entropies of turns must be finite, but some of {len(entropies)} are not")
        uncertainties = min_max(entropies)
        clarity = {place: math.exp(-self.k_future * h) for place, h in zip(places, uncertainties, strict=True)}
        modulated = [
            gain * base_PGK[p][g][k] + self.zeta * clarity.get((p, g, k + 1), 0.0)
            for (p, g, k), gain in zip(places, entropy_gains(uncertainties, self.k), strict=True)
        ]
        centered = dict(zip(places, center(modulated, [1] * len(modulated)), strict=True))
        return [
            [
                [centered.get((p, g, k), 0.0) for k in range(len(episode.turns))]
                for g, episode in enumerate(group.episodes)
            ]
            for p, group in enumerate(groups)
        ]


def _by_group(
    groups: Sequence[EpisodeGroup], of_members: Callable[[Sequence[Episode]], Sequence[Sequence[float]]]
) -> Advantages:
    """`of_members` over each group's usable episodes, zeros for the turns of the others."""
    advantages_PGK: list[list[Sequence[float]]] = []
    for group in groups:
        found = iter(of_members(group.usable_episodes))
        advantages_PGK.append(
            [next(found) if episode.usable else [0.0] * len(episode.turns) for episode in group.episodes]
        )
    return advantages_PGK


def _spread(advantages_G: Sequence[float], episodes: Sequence[Episode]) -> list[list[float]]:
    """Every turn of an episode gets the episode's advantage."""
    return [[advantage] * len(episode.turns) for advantage, episode in zip(advantages_G, episodes, strict=True)]


def _check_not_negative(**knobs: float) -> None:
    for name, value in knobs.items():
        if not 0 <= value < math.inf:
            raise ArlError(f"{name} is {value}, which would turn its effect round: set it to 0 or more")
