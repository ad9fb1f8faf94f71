"""The laws of what judges groups of episodes (advantage estimator, gate), as executable checks.

What a part itself raises propagates. That a part keeps the laws does not say that it learns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import chain

from arl_lightning.envs.contract import require
from arl_lightning.protocols import AdvantageEstimator, GroupGate
from arl_lightning.types import Advantages, Completion, Episode, EpisodeGroup, GateDecision, StopReason, Turn


def _episode(*rewards: float, stop: StopReason = StopReason.TERMINATED, success: bool = False) -> Episode:
    turns = tuple(
        Turn((1,), Completion((2,), (-0.5,), True), f"state {k}", "", "go", True, reward, 0.0, k)
        for k, reward in enumerate(rewards)
    )
    return Episode(0, 0, turns, stop, success)


_WON, _LATE, _LOST = _episode(0.0, 1.0, success=True), _episode(0.0, -0.1, 1.0, success=True), _episode(0.0, 0.0, -0.1)
_USELESS = (_episode(99.0, 99.0, stop=StopReason.ERROR, success=True), _episode(math.nan), _episode())
_MEMBERS = ((_WON, _LATE, _LOST), (_LOST, _LOST), (_WON, *_USELESS, _LOST), (_WON, _WON), (_LOST,), _USELESS)
_GROUPS = tuple(EpisodeGroup(seed, members) for seed, members in enumerate(_MEMBERS))
# an unusable episode's rewards and entropies are bait
_ENTROPIES_PGK = [
    [
        [(3 * p + 5 * g + 7 * k) % 11 / 10 if episode.usable else 99.0 for k in range(len(episode.turns))]
        for g, episode in enumerate(group.episodes)
    ]
    for p, group in enumerate(_GROUPS)
]


def check_estimator(make: Callable[[], AdvantageEstimator], centred: bool = True) -> None:
    """Returns when the estimator that `make` makes keeps every law of advantages.

    Args:
        make: gives the part.
        centred: whether a group whose members are all alike, or are one, must get 0; False for an estimator whose
            baseline is not taken inside the group.

    Raises:
        ContractError: names the first law found broken.
    """
    estimator = make()
    found_PGK = estimator.estimate(_GROUPS, _ENTROPIES_PGK)
    turns_PG = [[len(episode.turns) for episode in group.episodes] for group in _GROUPS]
    nested = [[len(advantages_K) for advantages_K in advantages_GK] for advantages_GK in found_PGK] == turns_PG
    require(nested, "there must be one advantage a turn, nested [P][G][K] as the groups are")
    require(all(map(math.isfinite, _flat(found_PGK))), "advantages must be finite")
    require(not any(_flat(_of(found_PGK, usable=False))), "an episode that is not usable must have advantage 0")
    backwards_PGK = estimator.estimate(_GROUPS[::-1], _ENTROPIES_PGK[::-1])
    require(_alike(backwards_PGK[::-1], found_PGK), "the order of groups must not change their advantages")
    usable = [EpisodeGroup(group.task_seed, group.usable_episodes) for group in _GROUPS]
    without_PGK = estimator.estimate(usable, _of(_ENTROPIES_PGK, usable=True))
    undisturbed = _alike(without_PGK, _of(found_PGK, usable=True))
    require(undisturbed, "an episode that is not usable must not change the advantages of others")
    alike_P = [len(set(group.usable_episodes)) < 2 for group in _GROUPS]
    idle_PGK = [found_GK for found_GK, alike in zip(found_PGK, alike_P, strict=True) if alike]
    require(not (centred and any(_flat(idle_PGK))), "a group whose members are alike must have exactly 0")


def check_gate(make: Callable[[], GroupGate], epochs: Sequence[int] = range(20)) -> None:
    """Returns when the gate that `make` makes keeps every law of gates.

    Args:
        make: gives a fresh gate at each call.
        epochs: epochs at which it is asked, in this order.

    Raises:
        ContractError: names the first law found broken.
    """
    gate, twin = make(), make()
    for name in ("admit", "max_attempts", "exhausted"):
        require(hasattr(gate, name), f"a gate must offer {name!r}")
    attempts, exhausted = gate.max_attempts, gate.exhausted
    require(
        isinstance(attempts, int) and attempts >= 1,
        f"the limit max_attempts must be an int of at least 1, not {attempts!r}",
    )
    names = ("fill", "shrink", "skip")
    require(exhausted in names, f"the choice exhausted must be one of {', '.join(names)}, not {exhausted!r}")
    for epoch in epochs:
        asked = list(_GROUPS)
        before = copy.deepcopy(asked)
        decisions = list(gate.admit(asked, epoch))
        require(asked == before, "a gate must not change the groups that it is shown")
        require(len(decisions) == len(asked), f"one decision a group must be given: {len(asked)}, not {len(decisions)}")
        judged = all(isinstance(d, GateDecision) and isinstance(d.keep, bool) for d in decisions)
        require(judged, "a decision must be a GateDecision whose `keep` is a bool")
        again = list(twin.admit(list(_GROUPS), epoch))
        require(again == decisions, "a gate that is asked the same must decide the same")
    require(not list(gate.admit([], epochs[-1])), "no groups must get no decisions")


def _of(values_PGK: Advantages, usable: bool) -> list[list[Sequence[float]]]:
    """What belongs to the members of the sample groups that are usable, or to those that are not."""
    return [
        [values_K for values_K, e in zip(values_GK, group.episodes, strict=True) if e.usable == usable]
        for values_GK, group in zip(values_PGK, _GROUPS, strict=True)
    ]


def _flat(values_PGK: Advantages) -> list[float]:
    return list(chain.from_iterable(chain.from_iterable(values_PGK)))


def _alike(left_PGK: Advantages, right_PGK: Advantages) -> bool:
    pairs = zip(_flat(left_PGK), _flat(right_PGK), strict=True)
    return all(math.isclose(left, right, abs_tol=1e-6) for left, right in pairs)
