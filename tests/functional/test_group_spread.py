"""Spreads inside a group: hand-computed, and 0 exactly where the estimators have nothing to say."""

from dataclasses import replace

import pytest

from arl_lightning.functional.group_spread import (
    advantage_spread,
    return_spread,
    score_spread,
    success_spread,
    width,
)
from arl_lightning.modules.estimators import GiGPO, GroupNormalized
from arl_lightning.testing import scripted_episode
from arl_lightning.types import Episode, EpisodeGroup

FAST = scripted_episode([0.0, 1.0], success=True)
SLOW = scripted_episode([0.0, 0.0, 1.0], success=True)
SLOPPY = replace(FAST, turns=(replace(FAST.turns[0], penalty=0.25), FAST.turns[1]))
LOST = scripted_episode([0.0, 0.0])


def test_width_of_nothing_is_0() -> None:
    assert width([]) == 0.0
    assert width([2.0, -1.0, 0.5]) == 3.0


def test_spreads_by_hand() -> None:
    assert success_spread([FAST, SLOW]) == 0.0
    assert success_spread([FAST, LOST]) == 1.0
    assert score_spread([FAST, SLOPPY]) == 0.0
    assert return_spread([FAST, SLOPPY]) == 0.25


def test_step_returns_from_a_common_state_spread_where_returns_do_not() -> None:
    assert return_spread([FAST, SLOW]) == 0.0
    # from state 1: 1 against 0.5 · 1; from state 0: 0.5 against 0.25
    assert advantage_spread([FAST, SLOW], gamma=0.5) == 0.5
    assert advantage_spread([FAST, SLOW], gamma=1.0) == 0.0  # undiscounted, 1 is still to come in each state


@pytest.mark.parametrize("gamma", [0.5, 0.95])
@pytest.mark.parametrize("members", [(FAST, FAST), (FAST, SLOW), (FAST, SLOPPY), (LOST, LOST), (FAST, LOST), (FAST,)])
def test_it_is_0_exactly_where_estimators_give_0(members: tuple[Episode, ...], gamma: float) -> None:
    estimator = GiGPO(gamma=gamma)
    entropies = [[[0.0] * len(episode.turns) for episode in members]]
    found = estimator.estimate([EpisodeGroup(0, members)], entropies)
    silent = not any(advantage for episode in found[0] for advantage in episode)
    assert (advantage_spread(members, gamma) == 0.0) == silent
    plain = GroupNormalized().estimate([EpisodeGroup(0, members)], entropies)
    assert (return_spread(members) == 0.0) == (not any(a for episode in plain[0] for a in episode))
