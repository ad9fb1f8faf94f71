"""The numbers of play as sums and counts, and the limit of errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from arl_lightning.datamodules.rollout_measures import check_errors, measure_clock, measure_episodes, measure_groups
from arl_lightning.testing import scripted_episode
from arl_lightning.types import ArlError, Completion, Episode, EpisodeGroup, Measure, StopReason

WON = scripted_episode([1.0, 0.5], success=True)
LOST = scripted_episode([-1.0])
FAILED = replace(
    scripted_episode([100.0, 100.0], stop=StopReason.ERROR, success=True), task_seed=41, error="Traceback:\nOops: bad"
)


def flawed(episode: Episode) -> Episode:
    """The episode with a first turn that was cut after three tokens, invalid, and penalised by 0.25."""
    first = replace(episode.turns[0], valid=False, penalty=0.25, completion=Completion((2, 2, 2), (0.0,) * 3, False))
    return replace(episode, turns=(first, *episode.turns[1:]))


def test_episodes_add_up_to_sums_and_counts() -> None:
    assert measure_episodes("val", [flawed(WON), LOST]) == {
        "val/reward": Measure(0.25, 2),  # 1 − 0.25 + 0.5 − 1
        "val/score": Measure(0.5, 2),  # 1 + 0.5 − 1
        "val/success_rate": Measure(1, 2),
        "val/turns": Measure(3, 2),
        "val/valid_ratio": Measure(2, 3),
        "val/completions/mean_length": Measure(5, 3),  # 3 + 1 + 1 tokens
        "val/completions/cut_ratio": Measure(1, 3),
        "val/completions/repeat_ratio": Measure(2, 2),  # 2 2 2 and two of one token
        "val/completions/distinct_ratio": Measure(1, 1),  # the one trigram
        "val/error_ratio": Measure(0, 2),
    }


@pytest.mark.parametrize("bad", [FAILED, scripted_episode([1.0, math.nan]), scripted_episode([])])
def test_an_unusable_episode_counts_as_an_error_and_nowhere_else(bad: Episode) -> None:
    clean, spoilt = measure_episodes("train", [WON, LOST]), measure_episodes("train", [WON, bad, LOST])
    assert spoilt.pop("train/error_ratio") == Measure(1, 3)
    assert clean.pop("train/error_ratio") == Measure(0, 2)
    assert spoilt == clean


def test_without_usable_episodes_every_count_is_zero_and_no_mean_is_made_up() -> None:
    measures = measure_episodes("train", [FAILED])
    assert measures.pop("train/error_ratio") == Measure(1, 1)
    assert set(measures.values()) == {Measure(0, 0)}


def test_success_is_told_by_task_type_when_there_are_several() -> None:
    heat, cool = replace(WON, task_type="heat"), replace(LOST, task_type="cool")
    measures = measure_episodes("val", [heat, heat, cool, replace(heat, success=False)])
    assert measures["val/success_rate/heat"] == Measure(2, 3)
    assert measures["val/success_rate/cool"] == Measure(0, 1)
    assert not [name for name in measure_episodes("val", [heat, heat]) if name.endswith("heat")]


def test_spread_is_measured_inside_groups_over_usable_members() -> None:
    def group(*members: Episode) -> EpisodeGroup:
        return EpisodeGroup(0, members)

    one, three = scripted_episode([1.0]), scripted_episode([3.0])
    measures = measure_groups([group(one, three, FAILED), group(one, one), group(three), group(FAILED, FAILED)])
    # unbiased std of 1 and 3 is √((1 + 1) / 1) = 1.41421; the other three groups have no spread
    assert measures["train/reward_std"].total == pytest.approx(1.41421356)
    assert measures["train/reward_std"].count == 4
    assert measures["train/zero_std_ratio"] == Measure(3, 4)


def test_throughput_is_tokens_over_seconds_of_generation() -> None:
    assert measure_clock({"generate": 2.0, "environment": 1.0, "score": 0.5}, tokens=100) == {
        "time/generate_s": Measure(2.0, 1),
        "time/environment_s": Measure(1.0, 1),
        "time/score_s": Measure(0.5, 1),
        "throughput/tokens_per_s": Measure(50.0, 1),  # 100 / 2
    }


def test_without_generation_there_is_no_throughput() -> None:
    assert "throughput/tokens_per_s" not in measure_clock({"generate": 0.0}, tokens=0)


def test_errors_up_to_the_share_pass_and_one_more_stops_the_run_in_one_sentence() -> None:
    with pytest.warns(UserWarning, match="an environment failed, and its episode was left out:\nTraceback:\nOops"):
        check_errors([FAILED, *[WON] * 9], max_share=0.1)
    with pytest.warns() as told, pytest.raises(ArlError) as caught:
        check_errors([WON, *[FAILED] * 2, *[WON] * 17], max_share=0.05)
    assert len(told) == 1  # they failed alike
    message = str(caught.value)
    assert message.startswith("2 of 20 episodes are not usable")
    assert "task seed 41, turn 2: Oops: bad" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (scripted_episode([0.5, math.nan]), "turn 2: a reward is not finite"),
        (scripted_episode([], stop=StopReason.CONTEXT_LIMIT), "turn 0: the first prompt .* not fit the context"),
        (scripted_episode([], stop=StopReason.ERROR), "turn 0: an error of the environment without a traceback"),
    ],
)
def test_whatever_leaves_the_statistics_counts_towards_the_share(bad: Episode, reason: str) -> None:
    with pytest.raises(ArlError, match=f"1 of 2 episodes .*{reason}"):
        check_errors([WON, bad], max_share=0.49)


def test_no_episodes_are_no_error() -> None:
    check_errors([], max_share=0.0)
