"""Filling a batch: gates compose with AND, attempts are bounded, and only the deficit is played again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from arl_lightning.datamodules.resampling import Collected, collect_groups
from arl_lightning.protocols import GroupGate
from arl_lightning.types import EpisodeGroup, GateDecision, Measure


@dataclass
class Gate:
    """Admits groups by their number."""

    admits: Callable[[int], bool]
    reason: str = "refused"
    max_attempts: int = 3
    exhausted: str = "fill"
    seen: list[int] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> list[GateDecision]:
        self.seen += numbers(groups)
        self.epochs.add(epoch)
        return [
            GateDecision(True) if self.admits(group.task_seed) else GateDecision(False, self.reason) for group in groups
        ]


@dataclass
class Table:
    """Plays groups that are numbered from 0 through all attempts, and keeps what it was asked for."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    tasks: count[int] = field(default_factory=count)

    def play(self, attempt: int, groups: int) -> list[EpisodeGroup]:
        self.asked.append((attempt, groups))
        return [EpisodeGroup(next(self.tasks), ()) for _ in range(groups)]


def numbers(groups: Sequence[EpisodeGroup]) -> list[int]:
    return [group.task_seed for group in groups]


def collect(wanted: int, *gates: GroupGate, epoch: int = 0) -> tuple[Collected, Table]:
    table = Table()
    return collect_groups(table.play, gates, wanted, epoch), table


def counters(collected: Collected) -> dict[str, float]:
    assert all(measure.count == 1 for measure in collected.measures.values())
    found = {name.removeprefix("filter/"): measure.total for name, measure in collected.measures.items()}
    return {
        name: total
        for name, total in found.items()
        if total or name not in ("dropped_all_success", "dropped_all_fail", "surplus")
    }


def every(divisor: int) -> Callable[[int], bool]:
    return lambda number: number % divisor == 0


def nothing(number: int) -> bool:
    return False


def test_without_gates_one_round_is_played_and_nothing_is_counted() -> None:
    collected, table = collect(3)
    assert numbers(collected.kept) == numbers(collected.played) == [0, 1, 2]
    assert table.asked == [(0, 3)]
    assert collected.measures == {}


def test_only_the_deficit_is_played_again_with_fresh_tasks() -> None:
    collected, table = collect(4, Gate(every(2), reason="odd"))
    # 0 1 2 3 leave 2 missing, 4 5 leave 1 missing, 6 fills it
    assert table.asked == [(0, 4), (1, 2), (2, 1)]
    assert numbers(collected.kept) == [0, 2, 4, 6]
    assert numbers(collected.played) == [0, 1, 2, 3, 4, 5, 6]
    assert counters(collected) == {
        "attempts": 3,
        "admitted": 4,
        "filled": 0,
        "dropped": 3,
        "dropped_odd": 3,
    }


def test_a_full_batch_takes_no_further_attempt() -> None:
    collected, table = collect(3, Gate(lambda number: True, max_attempts=9))
    assert table.asked == [(0, 3)]
    assert counters(collected) == {"attempts": 1, "admitted": 3, "filled": 0, "dropped": 0}


# with every(4) and two attempts for four groups: 0 1 2 3 keep 0; 4 5 6 keep 4; two are missing
@pytest.mark.parametrize(
    ("exhausted", "kept", "filled"),
    [("fill", [0, 4, 5, 6], 2), ("shrink", [0, 4], 0), ("skip", [], 0)],
)
def test_a_deficit_after_the_last_attempt_becomes_what_the_gate_says(
    exhausted: str, kept: list[int], filled: int
) -> None:
    collected, table = collect(4, Gate(every(4), max_attempts=2, exhausted=exhausted))
    assert table.asked == [(0, 4), (1, 3)]
    assert numbers(collected.kept) == kept
    assert numbers(collected.played) == [0, 1, 2, 3, 4, 5, 6]
    assert counters(collected) == {
        "attempts": 2,
        "admitted": 2,
        "filled": filled,
        "dropped": 5,
        "dropped_refused": 5,
        # the good groups that a skipped epoch plays for nothing
        **({"surplus": 2} if exhausted == "skip" else {}),
    }


@pytest.mark.parametrize("exhausted", ["fill", "shrink", "skip"])
def test_no_policy_of_exhaustion_touches_a_full_batch(exhausted: str) -> None:
    collected, _ = collect(2, Gate(every(1), exhausted=exhausted))
    assert numbers(collected.kept) == [0, 1]


@pytest.mark.parametrize(("exhausted", "kept"), [("fill", [6, 7, 8]), ("shrink", []), ("skip", [])])
def test_a_gate_that_refuses_all_costs_exactly_its_attempts(exhausted: str, kept: list[int]) -> None:
    collected, table = collect(3, Gate(nothing, max_attempts=3, exhausted=exhausted))
    assert table.asked == [(0, 3), (1, 3), (2, 3)]
    assert numbers(collected.kept) == kept
    assert collected.measures["filter/dropped_refused"] == Measure(9, 1)  # 3 · 3


def test_gates_compose_with_and_while_each_sees_every_group() -> None:
    even, third = Gate(every(2), reason="odd"), Gate(every(3), reason="not_third")
    collected, _ = collect(2, even, third)
    # attempts: 0 1 | 2 | 3; only 0 passes both
    assert even.seen == third.seen == [0, 1, 2, 3]
    # 1 is refused by both for two reasons, 2 by the second, 3 by the first
    assert counters(collected) == {
        "attempts": 3,
        "admitted": 1,
        "filled": 1,
        "dropped": 3,
        "dropped_odd": 2,
        "dropped_not_third": 2,
    }
    assert numbers(collected.kept) == [0, 3]


def test_a_reason_that_two_gates_give_counts_once_a_group() -> None:
    collected, _ = collect(2, Gate(nothing, "too_few", max_attempts=1), Gate(nothing, "too_few", max_attempts=1))
    assert collected.measures["filter/dropped_too_few"] == collected.measures["filter/dropped"] == Measure(2, 1)


def test_the_most_patient_gate_sets_the_attempts_and_the_strictest_the_exhaustion() -> None:
    for first, second, kept in [
        ("fill", "shrink", [0]),
        ("shrink", "skip", []),
        ("skip", "fill", []),
        ("fill", "fill", [0, 4]),
    ]:
        gates = (Gate(every(9), max_attempts=1, exhausted=first), Gate(every(9), max_attempts=4, exhausted=second))
        collected, table = collect(2, *gates)
        assert table.asked == [(0, 2), (1, 1), (2, 1), (3, 1)]
        assert numbers(collected.kept) == kept


def test_gates_are_told_the_epoch() -> None:
    gate = Gate(every(2))
    collect(2, gate, epoch=7)
    assert gate.epochs == {7}


def test_groups_stay_whole() -> None:
    played: list[EpisodeGroup] = []

    def play(attempt: int, groups: int) -> list[EpisodeGroup]:
        played.extend(EpisodeGroup(len(played) + i, ()) for i in range(groups))
        return played[-groups:]

    collected = collect_groups(play, [Gate(every(2))], 2, epoch=0)
    assert [any(group is known for known in played) for group in collected.kept] == [True, True]


def test_the_usual_reasons_are_counted_every_epoch() -> None:
    collected, _ = collect(2, Gate(every(1)))
    assert (
        collected.measures["filter/dropped_all_success"]
        == collected.measures["filter/dropped_all_fail"]
        == Measure(0, 1)
    )
