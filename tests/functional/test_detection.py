"""Bounds and changes: which side is healthy, what is said when it is left, and that noise alone says nothing."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from arl_lightning.functional.detection import USUAL_CHANGES, Bound, Change, Sign, read_signs
from arl_lightning.functional.health import Level, grade
from arl_lightning.types import ArlError

DRIFT = Bound("train/approx_kl", 0.1, above=True)
VALID = Bound("train/valid_ratio", 0.9, above=False)


@pytest.mark.parametrize(
    ("bound", "value", "phrase"),
    [
        (DRIFT, 0.0999, None),
        (DRIFT, 0.1, None),  # the limit is the last healthy value
        (DRIFT, -5.0, None),
        (DRIFT, 0.2512, "train/approx_kl is 0.251, over 0.1"),
        (DRIFT, math.inf, "train/approx_kl is inf, over 0.1"),
        (DRIFT, math.nan, "train/approx_kl is nan, over 0.1"),
        (VALID, 1.0, None),
        (VALID, 0.9, None),
        (VALID, 0.5, "train/valid_ratio is 0.5, under 0.9"),
        (VALID, math.nan, "train/valid_ratio is nan, under 0.9"),
    ],
)
def test_a_bound_speaks_on_its_unhealthy_side_only(bound: Bound, value: float, phrase: str | None) -> None:
    assert bound.breach({bound.metric: value}) == phrase


def test_an_absent_metric_is_no_sign() -> None:
    assert DRIFT.breach({"train/kl": 9.0}) is None


FROM_START = Bound("train/valid_ratio", 0.9, above=False, slack=0.1)


@pytest.mark.parametrize(
    ("best", "value", "phrase"),
    [
        (0.7, 0.61, None),  # a weak start is judged by itself: 0.7 − 0.1
        (0.7, 0.59, "train/valid_ratio is 0.59, under 0.6"),
        (0.95, 0.86, None),  # 0.85
        (1.0, 0.89, "train/valid_ratio is 0.89, under 0.9"),  # the limit is never closer than 0.9
        (0.7, math.nan, "train/valid_ratio is nan, under 0.6"),
        (None, 0.7, "train/valid_ratio is 0.7, under 0.9"),
    ],
)
def test_with_slack_a_bound_reaches_as_far_out_as_the_best_so_far(
    best: float | None, value: float, phrase: str | None
) -> None:
    known = {} if best is None else {"train/valid_ratio": best}
    assert FROM_START.breach({"train/valid_ratio": value}, known) == phrase


def test_slack_works_on_the_upper_side_too() -> None:
    bound = Bound("m", 1.0, above=True, slack=0.5)
    assert bound.breach({"m": 2.4}, {"m": 2.0}) is None
    assert bound.breach({"m": 2.6}, {"m": 2.0}) == "m is 2.6, over 2.5"
    assert bound.breach({"m": 1.1}, {"m": 0.1}) == "m is 1.1, over 1"


def test_the_better_of_two_values_is_the_healthier_one_that_is_a_number() -> None:
    assert (VALID.better(0.5, 0.7), DRIFT.better(0.5, 0.7)) == (0.7, 0.5)
    assert (VALID.better(None, 0.7), VALID.better(0.5, math.nan), DRIFT.better(-math.inf, 0.5)) == (0.7, 0.5, 0.5)
    assert VALID.better(None, math.nan) is None


# changes

RISE = Change("m", "above", z=4.0, floor=0.5)
FALL = Change("m", "below", z=None, trend=4.0, floor=0.5)


def epochs(*values: float, metric: str = "m") -> list[dict[str, float]]:
    return [{metric: value} for value in values]


def test_one_epoch_far_from_the_median_is_a_sign_on_its_unhealthy_side() -> None:
    past = epochs(1.0, 1.0, 1.0)
    assert RISE.change(past, {"m": 2.75}, 3) is None  # 1.75/0.5 = 3.5 deviations
    assert RISE.change(past, {"m": 3.0}, 3) == "m is 3, 4.0 deviations above its median of 3 epochs"
    assert RISE.change(past, {"m": -9.0}, 3) is None
    either = Change("m", "either", z=4.0, floor=0.5)
    assert either.change(past, {"m": -1.0}, 3) == "m is -1, 4.0 deviations below its median of 3 epochs"


def test_a_line_is_a_sign_though_none_of_its_steps_is_one() -> None:
    past = epochs(5.0, 4.5, 4.0, 3.5)
    # slope −0.5 over 4 steps is −2, over a floor of 0.5: 4 deviations
    assert FALL.change(past, {"m": 3.0}, 3) == "m has fallen by 2 over 5 epochs to 3"
    assert FALL.change(past, {"m": 9.0}, 3) is not None  # one outlier does not undo six pairs of slope −0.5
    assert FALL.change(epochs(5.0, 4.75, 4.5, 4.25), {"m": 4.0}, 3) is None  # 0.25 · 4/0.5 = 2 deviations
    assert FALL.change(epochs(3.0, 3.5, 4.0, 4.5), {"m": 5.0}, 3) is None
    assert RISE.change(epochs(1.0, 1.5, 2.0, 2.5), {"m": 3.0}, 3) is None  # z (3 − 1.75)/0.7413 = 1.7, no trend asked


def test_the_deviation_is_at_least_a_share_of_the_median() -> None:
    change = Change("m", "above", z=4.0, relative_floor=0.25)
    past = epochs(-2.0, -2.0, -2.0)  # 0.25 · 2 = 0.5
    assert change.change(past, {"m": -0.25}, 3) is None
    assert change.change(past, {"m": 0.0}, 3) is not None


def test_too_short_a_past_says_nothing_unless_the_value_is_no_number() -> None:
    assert RISE.change(epochs(1.0, 1.0), {"m": 99.0}, 3) is None
    assert RISE.change([], {"m": math.nan}, 3) == "m is nan"
    assert RISE.change([], {"m": math.inf}, 3) == "m is inf"


def test_an_epoch_without_the_metric_is_no_sign_and_no_past() -> None:
    assert RISE.change(epochs(1.0, 1.0, 1.0), {}, 3) is None
    gaps = [{"m": 1.0}, {}, {"m": 1.0}, {}]
    assert RISE.change(gaps, {"m": 99.0}, 3) is None
    assert RISE.change(gaps, {"m": 99.0}, 2) is not None


def test_a_metric_that_was_always_0_has_no_scale_of_its_own() -> None:
    change = Change("m", "above", z=4.0, relative_floor=0.25)
    assert change.change(epochs(0.0, 0.0, 0.0), {"m": 1.0}, 3) is None


def test_a_ratio_of_two_metrics_is_looked_at_where_it_exists() -> None:
    split = Change("a", "above", z=4.0, floor=0.25, over="b")
    past = [{"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 3.0}, {"a": 5.0}, {"a": 5.0, "b": 0.0}]
    assert split.change(past, {"a": 4.0, "b": 2.0}, 3) == "a ÷ b is 2, 4.0 deviations above its median of 3 epochs"
    assert split.change(past, {"a": 4.0, "b": 4.0}, 3) is None
    assert split.change(past, {"a": 4.0}, 3) is None
    assert split.metrics == ("a", "b")


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"side": "left", "floor": 1.0}, "side"),
        ({}, "floor"),
        ({"floor": -1.0}, "floor"),
        ({"floor": 1.0, "z": 0.0}, "z"),
        ({"floor": 1.0, "trend": -1.0}, "trend"),
        ({"floor": 1.0, "votes": 0}, "votes"),
    ],
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any], named: str) -> None:
    with pytest.raises(ArlError, match=named):
        Change("m", **knobs)


def test_signs_carry_their_votes_bounds_first() -> None:
    changes = {"rise": RISE, "other": Change("n", floor=1.0)}
    found = read_signs([Bound("m", 2.0, above=True)], changes, epochs(1.0, 1.0, 1.0), {"m": 3.0}, 3, bound_votes=2)
    assert found == [
        Sign("m bound", "m is 3, over 2", 2),
        Sign("rise", "m is 3, 4.0 deviations above its median of 3 epochs", 1),
    ]


# what CollapseWarning looks at

USUAL = {  # level and noise of a healthy run
    "train/approx_kl": (0.01, 0.003),
    "train/valid_ratio": (0.97, 0.01),
    "train/sinking/kl": (0.05, 0.008),
    "train/sinking/kl_others": (0.045, 0.006),
    "train/kl": (0.08, 0.01),
    "train/grad_norm": (0.8, 0.2),
    "train/entropy": (0.6, 0.05),
    "train/ratio/falling_p05": (0.85, 0.03),
    "train/ratio/rising_p95": (1.15, 0.03),
    "train/completions/repeat_ratio": (0.03, 0.005),
    "train/completions/distinct_ratio": (0.97, 0.005),
    "train/completions/mean_length": (40.0, 3.0),
    "train/reward_std": (0.5, 0.04),
    "train/reward": (0.7, 0.05),
    "train/success_rate": (0.6, 0.05),
}


def healthy_epochs(seed: int, count: int) -> list[dict[str, float]]:
    draw = random.Random(seed)
    return [{name: draw.gauss(level, noise) for name, (level, noise) in USUAL.items()} for _ in range(count)]


def signs_of(run: list[dict[str, float]], epoch: int) -> list[str]:
    found = read_signs([], USUAL_CHANGES, run[max(0, epoch - 12) : epoch], run[epoch], 5, 2)
    return [sign.name for sign in found]


def test_the_healthy_series_cover_all_that_is_looked_at() -> None:
    assert {metric for change in USUAL_CHANGES.values() for metric in change.metrics} == set(USUAL)


def test_a_run_that_stands_still_shows_no_sign() -> None:
    run = [{name: level for name, (level, _) in USUAL.items()}] * 30
    assert not [sign for epoch in range(30) for sign in signs_of(run, epoch)]


def test_noise_is_no_danger_and_hardly_ever_a_sign() -> None:
    watches = dangers = 0
    for seed in range(12):
        run = healthy_epochs(seed, 50)
        for epoch in range(50):
            signs = read_signs([], USUAL_CHANGES, run[max(0, epoch - 12) : epoch], run[epoch], 5, 2)
            watches += bool(signs)
            dangers += grade(signs, 4) is Level.DANGER
    assert dangers == 0
    assert watches <= 18  # of 600 epochs: thresholds that 2 % of real healthy epochs reach, and floors above this noise


def test_learning_is_seldom_a_sign() -> None:
    # success rises, entropy falls, the policy leaves its reference, groups lose their spread
    for seed in range(5):
        run = healthy_epochs(seed, 50)
        for n, epoch in enumerate(run):
            epoch["train/success_rate"] += 0.006 * n
            epoch["train/reward"] += 0.006 * n
            epoch["train/entropy"] *= math.exp(-n / 40)
            epoch["train/kl"] += 0.004 * n
            epoch["train/reward_std"] -= 0.006 * n
        found = [sign for epoch in range(50) for sign in signs_of(run, epoch)]
        assert len(found) <= 5, found  # of 50 epochs with 14 possible signs, where 2 % of each would be 14


COLLAPSES: Mapping[str, Mapping[str, float]] = {
    "drift": {"train/approx_kl": 0.2},
    "valid_ratio": {"train/valid_ratio": 0.7},
    "sinking_kl": {"train/sinking/kl": 0.3},
    "reference_kl": {"train/kl": 0.5},
    "grad_norm": {"train/grad_norm": 8.0},
    "entropy": {"train/entropy": 2.0},
    "falling_ratios": {"train/ratio/falling_p05": 0.3},
    "rising_ratios": {"train/ratio/rising_p95": 2.0},
    "repeated_tokens": {"train/completions/repeat_ratio": 0.6},
    "distinct_ngrams": {"train/completions/distinct_ratio": 0.3},
    "length": {"train/completions/mean_length": 120.0},
    "group_spread": {"train/reward_std": 0.0},
    "success": {"train/success_rate": 0.1},
    "reward": {"train/reward": 0.1},
}


def test_every_usual_change_has_its_collapse() -> None:
    assert COLLAPSES.keys() == USUAL_CHANGES.keys()


@pytest.mark.parametrize("name", COLLAPSES)
def test_a_sudden_collapse_is_seen_in_its_epoch_by_its_signal_alone(name: str) -> None:
    for seed in range(3):
        run = healthy_epochs(seed, 20)
        run[19] = {**run[19], **COLLAPSES[name]}
        assert signs_of(run, 19) == [name]


@pytest.mark.parametrize("name", [name for name, change in USUAL_CHANGES.items() if change.trend is not None])
def test_a_creeping_collapse_is_seen_by_its_slope(name: str) -> None:
    [(metric, end)] = COLLAPSES[name].items()
    run = healthy_epochs(0, 30)
    level, _ = USUAL[metric]
    for n in range(18, 30):  # a twelfth of the way to the sudden collapse an epoch
        run[n][metric] = level + (end - level) * (n - 17) / 12
    first = next(epoch for epoch in range(18, 30) if signs_of(run, epoch) == [name])
    assert first <= 25


def test_a_run_that_diverges_shows_its_ruin() -> None:
    run = healthy_epochs(0, 20)
    run[19]["train/grad_norm"] = math.nan
    assert signs_of(run, 19) == ["grad_norm"]
