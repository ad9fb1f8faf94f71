"""Filling a batch with admitted groups: bounded attempts, whole groups, only the deficit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arl_lightning.protocols import GroupGate
from arl_lightning.types import EpisodeGroup, Measure

PlayGroups = Callable[[int, int], list[EpisodeGroup]]
"""(attempt, number of groups) -> that many freshly played groups."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Groups that stay, all groups that were played, and the filter's counters by metric name."""

    kept: list[EpisodeGroup]
    played: list[EpisodeGroup]
    measures: dict[str, Measure]


def collect_groups(play: PlayGroups, gates: Sequence[GroupGate], wanted: int, epoch: int) -> Collected:
    """`wanted` groups that every gate admits, as far as the attempts reach.

    A group stays when every gate admits it. Each gate sees every group, and all reasons against one are counted, each
    once. What is missing after an attempt is played again with fresh tasks, up to the largest `max_attempts`. What is
    missing after the last becomes what the gates' `exhausted` says, the strictest first: `skip` leaves the epoch
    without a batch, `shrink` takes what there is, `fill` tops up with the latest dropped groups.

    Admitted groups that no step learns from, which `skip` leaves, are counted as `surplus` and never carried over: the
    next epoch's policy did not play them.
    """
    kept: list[EpisodeGroup] = []
    dropped: list[EpisodeGroup] = []
    played: list[EpisodeGroup] = []
    reasons: Counter[str] = Counter()
    limit = max((gate.max_attempts for gate in gates), default=1)
    attempts = 0
    while len(kept) < wanted and attempts < limit:
        groups = play(attempts, wanted - len(kept))
        decisions = [gate.admit(groups, epoch) for gate in gates]
        for i, group in enumerate(groups):
            refusals = [decision[i].reason for decision in decisions if not decision[i].keep]
            (dropped if refusals else kept).append(group)
            reasons.update(set(refusals))
        played += groups
        attempts += 1
    if not gates:
        return Collected(kept, played, {})
    counters = {"attempts": attempts, "admitted": len(kept), "filled": 0, "surplus": 0}
    counters["dropped"] = len(dropped)
    counters |= {"dropped_all_success": 0, "dropped_all_fail": 0}  # said every epoch, that curves have no gaps
    counters |= {f"dropped_{reason}": count for reason, count in reasons.items()}
    deficit = wanted - len(kept)
    exhausted = {gate.exhausted for gate in gates}
    if deficit and "skip" in exhausted:
        counters["surplus"], kept = len(kept), []
    elif deficit and "shrink" not in exhausted:
        kept += dropped[-deficit:]
        counters["filled"] = deficit
    return Collected(kept, played, {f"filter/{name}": Measure(count, 1) for name, count in counters.items()})
