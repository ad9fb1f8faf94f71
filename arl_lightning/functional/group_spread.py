"""How far the members of a group fare apart, by what may be compared: nothing can be learnt from a spread of 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from arl_lightning.functional.advantages import discounted_returns
from arl_lightning.types import Episode


def success_spread(episodes: Sequence[Episode]) -> float:
    """1 when some members succeed and others fail, else 0."""
    return width(float(episode.success) for episode in episodes)


def score_spread(episodes: Sequence[Episode]) -> float:
    """Largest difference of the environment's scores."""
    return width(episode.score for episode in episodes)


def return_spread(episodes: Sequence[Episode]) -> float:
    """Largest difference of scores less format penalties: what episode-level advantages are made of."""
    return width(episode.training_return for episode in episodes)


def advantage_spread(episodes: Sequence[Episode], gamma: float) -> float:
    """Largest difference that any group-relative advantage could be made of.

    Either of the members' returns, or of the discounted step returns of turns that began in the same state. It is 0
    exactly where `GroupNormalized`, `LeaveOneOut` and `GiGPO` with that `gamma` give 0 to every turn, before any
    estimator is asked. A divergence that is taken off the reward (`reward_kl`) is not yet known and not in it.

    Args:
        episodes: usable members of one group.
        gamma: discount of step returns, 0 to 1.
    """
    returns_by_state: dict[Hashable, list[float]] = defaultdict(list)
    for episode in episodes:
        step_returns_K = discounted_returns([turn.training_reward for turn in episode.turns], gamma)
        for turn, step_return in zip(episode.turns, step_returns_K, strict=True):
            returns_by_state[turn.state_key].append(step_return)
    return max([return_spread(episodes), *map(width, returns_by_state.values())])


def width(values: Iterable[float]) -> float:
    """Largest less smallest value, 0 when there are none."""
    known = list(values)
    return max(known, default=0.0) - min(known, default=0.0)
