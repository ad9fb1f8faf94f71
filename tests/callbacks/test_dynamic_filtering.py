"""The gate: what counts as alike, whom it looks at, and when it is silent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from arl_lightning.callbacks.dynamic_filtering import DynamicFiltering
from arl_lightning.protocols import GroupGate
from arl_lightning.testing import scripted_episode
from arl_lightning.types import ArlError, Episode, EpisodeGroup, GateDecision, StopReason

WON = scripted_episode([1.0], success=True)
LOST = scripted_episode([0.0])
FAILED = scripted_episode([0.0], stop=StopReason.ERROR)

KEPT = GateDecision(keep=True)


def judge(gate: DynamicFiltering, *members: Episode) -> GateDecision:
    [decision] = gate.admit([EpisodeGroup(0, members)], epoch=0)
    return decision


def dropped(reason: str) -> GateDecision:
    return GateDecision(keep=False, reason=reason)


def test_a_group_stays_when_some_members_succeed_and_others_fail() -> None:
    gate = DynamicFiltering()
    assert judge(gate, WON, LOST, LOST) == KEPT
    assert judge(gate, WON, WON, WON) == dropped("all_success")
    assert judge(gate, LOST, LOST, LOST) == dropped("all_fail")


def test_there_is_one_decision_a_group_in_order() -> None:
    groups = [EpisodeGroup(n, members) for n, members in enumerate([(WON, WON), (WON, LOST), (LOST, LOST)])]
    assert DynamicFiltering().admit(groups, epoch=0) == [dropped("all_success"), KEPT, dropped("all_fail")]


def test_step_penalties_do_not_keep_a_group_of_equal_success_but_do_by_score() -> None:
    slow, fast = scripted_episode([-0.1, -0.1, 1.0], success=True), scripted_episode([-0.1, 1.0], success=True)
    assert judge(DynamicFiltering(by="success"), slow, fast) == dropped("all_success")
    assert judge(DynamicFiltering(by="score"), slow, fast) == KEPT


def test_format_penalties_count_by_return_and_not_by_score() -> None:
    sloppy = replace(LOST, turns=(replace(LOST.turns[0], penalty=0.1),))
    assert judge(DynamicFiltering(by="return"), LOST, sloppy) == KEPT
    assert judge(DynamicFiltering(by="score"), LOST, sloppy) == dropped("all_fail")


def test_by_advantage_a_group_stays_whose_returns_are_equal_but_not_its_steps() -> None:
    fast, slow = scripted_episode([0.0, 1.0], success=True), scripted_episode([0.0, 0.0, 1.0], success=True)
    assert judge(DynamicFiltering(by="return"), fast, slow) == dropped("all_success")
    assert judge(DynamicFiltering(by="advantage"), fast, slow) == KEPT
    assert judge(DynamicFiltering(by="advantage", gamma=1.0), fast, slow) == dropped("all_success")
    assert judge(DynamicFiltering(by="advantage"), LOST, LOST) == dropped("all_fail")


def test_continuous_scores_within_the_tolerance_are_alike() -> None:
    a, b = scripted_episode([0.1, 0.2]), scripted_episode([0.3])  # 0.30000000000000004 and 0.3
    assert judge(DynamicFiltering(by="score"), a, b) == dropped("all_fail")
    c, d = scripted_episode([0.25]), scripted_episode([0.5])
    assert judge(DynamicFiltering(by="score", tolerance=0.25), c, d) == dropped("all_fail")
    assert judge(DynamicFiltering(by="score", tolerance=0.24), c, d) == KEPT


def test_equal_scores_with_unequal_success_have_a_reason_of_their_own() -> None:
    assert judge(DynamicFiltering(by="score"), replace(WON, success=False), WON) == dropped("all_alike")


@pytest.mark.parametrize("bad", [FAILED, scripted_episode([math.nan]), scripted_episode([])])
def test_unusable_members_have_no_say(bad: Episode) -> None:
    assert judge(DynamicFiltering(), WON, bad, WON) == dropped("all_success")  # though `bad` did not succeed
    assert judge(DynamicFiltering(by="score"), WON, bad, LOST) == KEPT
    assert judge(DynamicFiltering(by="score"), WON, bad, WON) == dropped("all_success")


def test_fewer_than_two_usable_members_make_no_advantage() -> None:
    assert judge(DynamicFiltering(), WON, FAILED) == dropped("too_few")
    assert judge(DynamicFiltering(), WON) == dropped("too_few")
    assert judge(DynamicFiltering(), FAILED, FAILED) == dropped("too_few")


def test_nothing_is_filtered_before_the_cold_start_ends() -> None:
    gate = DynamicFiltering(cold_start_epochs=15)
    groups = [EpisodeGroup(0, (LOST, LOST))]
    assert gate.admit(groups, epoch=14) == [KEPT]
    assert gate.admit(groups, epoch=15) == [dropped("all_fail")]


def test_the_data_module_recognises_the_gate() -> None:
    gate = DynamicFiltering(max_attempts=5, exhausted="shrink")
    assert isinstance(gate, GroupGate)
    assert (gate.max_attempts, gate.exhausted) == (5, "shrink")


@pytest.mark.parametrize(
    "knobs",
    [
        {"max_attempts": 0},
        {"tolerance": -1.0},
        {"cold_start_epochs": -1},
        {"by": "luck"},
        {"gamma": 1.5},
        {"exhausted": "refill"},
    ],
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match=next(iter(knobs))):
        DynamicFiltering(**knobs)
