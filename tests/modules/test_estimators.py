"""Estimators: hand-computed groups, unusable episodes, degenerate groups and the lone penalty."""

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from arl_lightning.modules.estimators import EMPG, GiGPO, GroupNormalized, LeaveOneOut
from arl_lightning.protocols import AdvantageEstimator
from arl_lightning.types import Advantages, ArlError, Completion, Episode, EpisodeGroup, StopReason, Turn

ESTIMATORS: list[AdvantageEstimator] = [
    GroupNormalized(),
    GroupNormalized(scale="none"),
    GroupNormalized(over="turns"),
    LeaveOneOut(),
    GiGPO(),
    GiGPO(scale="none"),
]
UNFLOORED: dict[str, Any] = {"std_floor": 0.0, "clip": None}


def episode(rewards_K: Sequence[float], states: str | None = None, stop: StopReason = StopReason.TERMINATED) -> Episode:
    """An episode whose turn k has reward `rewards_K[k]` and state `states[k]`, by default one no other turn has."""
    keys_K: Sequence[object] = states if states is not None else [object() for _ in rewards_K]
    turns = tuple(
        Turn((1,), Completion((2,), (-0.5,), True), "", "", "", True, reward, 0.0, key)
        for reward, key in zip(rewards_K, keys_K, strict=True)
    )
    return Episode(task_seed=0, member=0, turns=turns, stop=stop, success=False)


def group(*episodes: Episode) -> EpisodeGroup:
    return EpisodeGroup(task_seed=0, episodes=episodes)


def estimate(estimator: AdvantageEstimator, *groups: EpisodeGroup) -> Advantages:
    entropies_PGK = [[[1.0] * len(member.turns) for member in each.episodes] for each in groups]
    return estimator.estimate(groups, entropies_PGK)


def close(found_PGK: Advantages, expected_PGK: Advantages, tolerance: float = 1e-5) -> bool:
    return all(
        found_K == pytest.approx(expected_K, abs=tolerance)
        for found_GK, expected_GK in zip(found_PGK, expected_PGK, strict=True)
        for found_K, expected_K in zip(found_GK, expected_GK, strict=True)
    )


FOUR = group(episode([1]), episode([0, 0]), episode([0]), episode([0, 0, 1]))


def test_group_normalized_counts_each_episode_once() -> None:
    # R = (1, 0, 0, 1): mean 1/2, std sqrt(1/3) = 0.577350; 0.5/0.577351 = 0.866024
    a = 0.866024
    assert close(estimate(GroupNormalized(), FOUR), [[[a], [-a, -a], [-a], [a, a, a]]])


def test_group_normalized_over_turns_weighs_long_episodes() -> None:
    # rows (1, 0, 0, 0): mean 1/4, std 1/2; 0.75/0.500001 and -0.25/0.500001
    found_PGK = estimate(GroupNormalized(over="turns"), group(episode([1]), episode([0, 0, 0])))
    assert close(found_PGK, [[[1.499997], [-0.499999] * 3]])


def test_scale_none_only_centers() -> None:
    assert close(estimate(GroupNormalized(scale="none"), FOUR), [[[0.5], [-0.5] * 2, [-0.5], [0.5] * 3]])


def test_leave_one_out_compares_with_the_others() -> None:
    # 4/3 · 1/2
    assert close(estimate(LeaveOneOut(), FOUR), [[[2 / 3], [-2 / 3] * 2, [-2 / 3], [2 / 3] * 3]])


def test_format_penalty_lowers_the_return_and_falls_on_its_own_turn() -> None:
    fined = episode([0.0, 0.0], "ab")
    fined = replace(fined, turns=(fined.turns[0], replace(fined.turns[1], penalty=0.1)))
    groups = (group(episode([0.0, 0.0], "ab"), fined),)
    # R = (0, -0.1): mean -0.05
    assert close(estimate(GroupNormalized(scale="none"), *groups), [[[0.05] * 2, [-0.05] * 2]])
    # gamma 0: step returns (0, 0) and (0, -0.1), so only state b differs: ±0.05 more
    assert close(estimate(GiGPO(gamma=0.0, scale="none"), *groups), [[[0.05, 0.1], [-0.05, -0.1]]])


def test_gigpo_adds_the_step_part_of_equal_states() -> None:
    # gamma 1/2: step returns (0.5, 1) and (0, 0). State a: (0.5, 0, 0), mean 1/6, deviations (1/3, -1/6, -1/6),
    # the repeated visit of the second episode included; state b was met once: 0. Episode part: ±1/2.
    groups = (group(episode([0, 1], "ab"), episode([0, 0], "aa")),)
    centered_PGK = estimate(GiGPO(gamma=0.5, scale="none"), *groups)
    assert close(centered_PGK, [[[1 / 2 + 1 / 3, 1 / 2], [-1 / 2 - 1 / 6] * 2]])
    # std of the episodes 0.707107: 0.707106; std of state a 0.288675: 0.333333/0.288676 = 1.154697 and -0.577348
    scaled_PGK = estimate(GiGPO(gamma=0.5), *groups)
    assert close(scaled_PGK, [[[0.707106 + 1.154697, 0.707106], [-0.707106 - 0.577348] * 2]])
    halved_PGK = estimate(GiGPO(omega=0.5, gamma=0.5), *groups)
    assert close(halved_PGK, [[[0.707106 + 0.577348, 0.707106], [-0.707106 - 0.288674] * 2]])


def test_gigpo_anchors_stay_within_a_task_group() -> None:
    alone_PGK = estimate(GiGPO(), group(episode([1], "a")), group(episode([0], "a")))
    assert alone_PGK == [[[0.0]], [[0.0]]]


def test_gigpo_without_step_part_is_group_normalized() -> None:
    assert close(estimate(GiGPO(omega=0.0), FOUR), estimate(GroupNormalized(), FOUR))


def test_hundreds_of_equal_returns_and_one_penalty_stay_bounded() -> None:
    # 8 episodes of 50 turns in one state, gamma 0: 399 step returns 0 and one -0.1.
    rewards_GK = [[0.0] * 50 for _ in range(8)]
    rewards_GK[0][0] = -0.1
    members = group(*(episode(rewards_K, "s" * 50) for rewards_K in rewards_GK))
    # episode: mean -0.0125, -0.0875/0.100001 = -0.874991; step: -0.09975/0.100001 = -0.997490
    bounded_PGK = estimate(GiGPO(gamma=0.0), members)
    assert bounded_PGK[0][0][0] == pytest.approx(-1.872481, abs=1e-5)
    # unfloored: std 0.1/sqrt(8) = 0.035355, -2.474804; and std 0.005, -19.946011
    wild_PGK = estimate(GiGPO(gamma=0.0, **UNFLOORED), members)
    assert wild_PGK[0][0][0] == pytest.approx(-22.420815, abs=1e-4)
    clipped_PGK = estimate(GiGPO(gamma=0.0, std_floor=0.0), members)
    assert clipped_PGK[0][0][0] == pytest.approx(-12.474804, abs=1e-4)


def test_default_clip_never_touches_a_group_of_eight() -> None:
    # one success of eight: mean 1/8, std 0.353553; 0.875/0.353554 = 2.474867 = 7/sqrt(8)
    found_PGK = estimate(GroupNormalized(), group(episode([1]), *(episode([0]) for _ in range(7))))
    assert found_PGK[0][0][0] == pytest.approx(2.474867, abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_group_of_one_and_equal_group_give_zero(estimator: AdvantageEstimator) -> None:
    found_PGK = estimate(estimator, group(episode([3, 1], "ab")), group(*(episode([0.1, 0.2], "ab") for _ in range(3))))
    assert found_PGK == [[[0.0, 0.0]], [[0.0, 0.0]] * 3]


@pytest.mark.parametrize("estimator", [*ESTIMATORS, EMPG()])
@pytest.mark.parametrize(
    "broken",
    [
        episode([5, 5, 5], "aaa", stop=StopReason.ERROR),
        episode([math.nan, 1], "aa"),
        episode([]),
    ],
)
def test_unusable_episode_gets_zeros_and_changes_nobody(estimator: AdvantageEstimator, broken: Episode) -> None:
    first, second = episode([0, 1], "ab"), episode([0, 0], "aa")
    expected_PGK = estimate(estimator, group(first, second))
    found_PGK = estimate(estimator, group(first, broken, second))
    assert found_PGK[0][1] == [0.0] * len(broken.turns)
    assert close([[found_PGK[0][0], found_PGK[0][2]]], expected_PGK, tolerance=1e-12)


@pytest.mark.parametrize("estimator", [*ESTIMATORS, EMPG()])
def test_nothing_usable_gives_zeros(estimator: AdvantageEstimator) -> None:
    assert estimate(estimator, group(episode([1], stop=StopReason.ERROR)), group()) == [[[0.0]], []]
    assert estimate(estimator) == []


def test_empg_prefers_sure_turns_and_clear_futures() -> None:
    groups = (group(episode([0, 1]), episode([0])),)
    found_PGK = EMPG().estimate(groups, [[[2.0, 4.0], [3.0]]])
    # h = (0, 1, 1/2); exp(-h) = (1, 0.367879, 0.606531), mean 0.658137; g = (1.519441, 0.558971, 0.921588)
    # base ±0.707106; bonus of the first turn 0.05 · 0.367879 = 0.018394, last turns none:
    # (1.074406 + 0.018394, 0.395252, -0.651660) = (1.092800, 0.395252, -0.651660), mean 0.278797
    assert close(found_PGK, [[[0.814003, 0.116455], [-0.930457]]])


def test_empg_without_its_terms_is_its_base_centered() -> None:
    # base of LeaveOneOut (1, 1, -1), mean 1/3
    groups = (group(episode([0, 1]), episode([0])),)
    found_PGK = EMPG(k=0.0, zeta=0.0, base=LeaveOneOut()).estimate(groups, [[[2.0, 4.0], [3.0]]])
    assert close(found_PGK, [[[2 / 3, 2 / 3], [-4 / 3]]])


def test_empg_refuses_entropies_that_would_spread() -> None:
    with pytest.raises(ValueError, match="finite"):
        EMPG().estimate((group(episode([1])),), [[[math.nan]]])


@pytest.mark.parametrize("estimator", [*ESTIMATORS, EMPG()])
def test_estimators_survive_pickling(estimator: AdvantageEstimator) -> None:
    assert estimate(pickle.loads(pickle.dumps(estimator)), FOUR) == estimate(estimator, FOUR)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupNormalized(over="tokens"),  # type: ignore[arg-type]
        lambda: GroupNormalized(scale="max"),  # type: ignore[arg-type]
        lambda: GroupNormalized(std_floor=-0.1),
        lambda: GroupNormalized(clip=0.0),
        lambda: GiGPO(omega=-1.0),
        lambda: GiGPO(gamma=1.5),
        lambda: EMPG(k=-1.0),
        lambda: EMPG(zeta=math.nan),
    ],
)
def test_impossible_knobs_are_refused(make: Callable[[], AdvantageEstimator]) -> None:
    with pytest.raises(ArlError):
        make()
