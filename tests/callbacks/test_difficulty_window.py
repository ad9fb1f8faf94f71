"""The difficulty gate: which success rates stay, and how its window moves."""

from __future__ import annotations

from typing import Any

import pytest

from arl_lightning.callbacks.difficulty_window import DifficultyWindow
from arl_lightning.protocols import GroupGate
from arl_lightning.testing import scripted_episode
from arl_lightning.types import ArlError, EpisodeGroup, GateDecision, StopReason

WON = scripted_episode([1.0], success=True)
LOST = scripted_episode([0.0])
FAILED = scripted_episode([0.0], stop=StopReason.ERROR)


def reason(gate: DifficultyWindow, successes: int, members: int = 8, epoch: int = 0) -> str:
    group = EpisodeGroup(0, (WON,) * successes + (LOST,) * (members - successes))
    [decision] = gate.admit([group], epoch)
    assert decision.keep == (not decision.reason)
    return decision.reason


def test_groups_inside_the_window_stay_its_ends_included() -> None:
    gate = DifficultyWindow(low=0.25, high=0.75)
    assert isinstance(gate, GroupGate)
    found = [reason(gate, successes) for successes in range(9)]
    assert found == ["too_hard"] * 2 + [""] * 5 + ["too_easy"] * 2  # 0 and 1 of 8; 2 to 6; 7 and 8


def test_unusable_members_have_no_say() -> None:
    gate = DifficultyWindow(low=0.5, high=0.5)
    assert gate.admit([EpisodeGroup(0, (WON, LOST, FAILED, FAILED))], 0) == [GateDecision(True)]
    assert gate.admit([EpisodeGroup(0, (FAILED,)), EpisodeGroup(1, ())], 0) == [GateDecision(False, "too_few")] * 2


def test_the_window_moves_in_a_straight_line_and_then_stands() -> None:
    gate = DifficultyWindow(0.5, 1.0, final_low=0.0, final_high=0.5, moves_over_epochs=4)
    assert [gate.window(epoch) for epoch in (0, 1, 2, 4, 99)] == [
        (0.5, 1.0), (0.375, 0.875), (0.25, 0.75), (0.0, 0.5), (0.0, 0.5),
    ]  # fmt: skip
    assert [reason(gate, 2, epoch=epoch) for epoch in (0, 2, 4)] == ["too_hard", "", ""]
    assert [reason(gate, 6, epoch=epoch) for epoch in (0, 2, 4)] == ["", "", "too_easy"]


def test_an_end_that_is_not_given_stands_where_it_began() -> None:
    assert DifficultyWindow(0.25, 0.75, final_high=1.0, moves_over_epochs=1).window(1) == (0.25, 1.0)
    assert DifficultyWindow(0.25, 0.75).window(7) == (0.25, 0.75)


def test_nothing_is_filtered_before_the_cold_start_ends() -> None:
    gate = DifficultyWindow(cold_start_epochs=3)
    assert [reason(gate, 0, epoch=epoch) for epoch in (2, 3)] == ["", "too_hard"]


@pytest.mark.parametrize(
    "knobs",
    [
        {"low": -0.1},
        {"high": 1.1},
        {"low": 0.6, "high": 0.5},
        {"final_low": 0.95},
        {"moves_over_epochs": -1},
        {"max_attempts": 0},
        {"exhausted": "refill"},
    ],
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match=next(iter(knobs))):
        DifficultyWindow(**knobs)
