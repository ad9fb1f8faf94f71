"""The gate of usable episodes: what counts as cut, what as void, and how many of them a group bears."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from arl_lightning.callbacks.usable_episodes import UsableEpisodes
from arl_lightning.protocols import GroupGate
from arl_lightning.testing import scripted_episode
from arl_lightning.types import ArlError, Completion, Episode, EpisodeGroup, StopReason

DONE = scripted_episode([1.0], success=True)
OUT_OF_TURNS = replace(DONE, stop=StopReason.TURN_LIMIT)
OUT_OF_CONTEXT = replace(DONE, stop=StopReason.CONTEXT_LIMIT)
TRUNCATED = replace(DONE, stop=StopReason.TRUNCATED)
CUT_ANSWER = replace(DONE, turns=(replace(DONE.turns[0], completion=Completion((2,), (0.0,), finished=False)),))
CRASHED = replace(DONE, stop=StopReason.ERROR)


def reason(gate: UsableEpisodes, *members: Episode) -> str:
    [decision] = gate.admit([EpisodeGroup(0, members)], epoch=0)
    assert decision.keep == (not decision.reason)
    return decision.reason


@pytest.mark.parametrize("cut", [OUT_OF_TURNS, OUT_OF_CONTEXT, CUT_ANSWER])
def test_more_cut_members_than_the_share_drop_the_group(cut: Episode) -> None:
    gate = UsableEpisodes(max_cut_share=0.5)
    assert isinstance(gate, GroupGate)
    assert reason(gate, DONE, DONE, cut, cut) == ""
    assert reason(gate, DONE, cut, cut, cut) == "cut"


def test_the_environments_own_limit_counts_on_request_only() -> None:
    assert reason(UsableEpisodes(0.0), TRUNCATED, TRUNCATED) == ""
    assert reason(UsableEpisodes(0.0, count_truncated=True), TRUNCATED, DONE) == "cut"


@pytest.mark.parametrize("void", [CRASHED, scripted_episode([math.nan]), scripted_episode([])])
def test_more_void_members_than_the_share_drop_the_group(void: Episode) -> None:
    gate = UsableEpisodes(max_void_share=0.25)
    assert reason(gate, DONE, DONE, DONE, void) == ""
    assert reason(gate, DONE, DONE, void, void) == "void"


def test_the_share_of_cut_members_is_one_of_the_usable() -> None:
    gate = UsableEpisodes(max_cut_share=0.5, max_void_share=0.5)
    assert reason(gate, DONE, OUT_OF_TURNS, CRASHED) == ""  # 1 of 2
    assert reason(gate, OUT_OF_TURNS, CRASHED) == "cut"  # 1 of 1


def test_a_group_without_a_usable_member_is_void() -> None:
    gate = UsableEpisodes(1.0, 1.0)
    assert reason(gate, CRASHED) == "void"
    assert reason(gate) == "void"


@pytest.mark.parametrize("knobs", [{"max_cut_share": 1.5}, {"max_void_share": -0.1}, {"max_attempts": 0}])
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match=next(iter(knobs))):
        UsableEpisodes(**knobs)
