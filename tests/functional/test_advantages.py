"""Baselines and scales: hand-computed groups and their degenerate cases."""

import math

import pytest

from arl_lightning.functional.advantages import (
    anchor_groups,
    center,
    discounted_returns,
    entropy_gains,
    leave_one_out,
    mean,
    min_max,
    normalizer,
    standardize,
)
from arl_lightning.types import ArlError


def unfloored(values_G: list[float], weights_G: list[int] | None = None) -> list[float]:
    return standardize(values_G, weights_G or [1] * len(values_G), std_floor=0.0, clip=None)


def test_group_of_four() -> None:
    # mean 1/2, unbiased std sqrt(4 · 1/4 / 3) = 0.577350; 0.5 / 0.577351 = 0.866024
    assert unfloored([1, 0, 0, 1]) == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)


def test_weights_count_copies() -> None:
    # rows (1, 0, 0, 0): mean 1/4, std sqrt((9 + 3)/16 / 3) = 1/2
    assert unfloored([1, 0], [1, 3]) == pytest.approx([1.5, -0.5], abs=1e-5)
    assert unfloored([1, 0], [1, 3])[1] == pytest.approx(unfloored([1, 0, 0, 0])[1])


@pytest.mark.parametrize("values_G", [[], [3.0], [0.1] * 3, [0.7] * 400])
def test_group_without_spread_gives_exactly_zero(values_G: list[float]) -> None:
    zeros_G = [0.0] * len(values_G)
    assert unfloored(values_G) == zeros_G
    assert center(values_G, [1] * len(values_G)) == zeros_G
    assert leave_one_out(values_G) == zeros_G


def test_hundreds_of_equal_returns_and_one_penalty() -> None:
    returns_G = [0.0] * 399 + [-0.1]
    weights_G = [1] * 400
    # mean -0.00025, std 0.1/sqrt(400) = 0.005: -0.09975 / 0.005001 = -19.946
    assert unfloored(returns_G)[-1] == pytest.approx(-19.946, abs=1e-3)
    # divided by the floor instead: -0.09975 / 0.100001
    assert standardize(returns_G, weights_G, std_floor=0.1, clip=None)[-1] == pytest.approx(-0.99749, abs=1e-5)
    assert standardize(returns_G, weights_G, std_floor=0.0, clip=10.0)[-1] == -10.0


def test_clip_bounds_an_outlier_that_the_floor_does_not() -> None:
    # one return of 10 among 400: std 0.5, (10 - 0.025)/0.5 = 19.95
    values_G = [10.0] + [0.0] * 399
    assert normalizer("std", 0.1, None)(values_G, [1] * 400)[0] == pytest.approx(19.95, abs=1e-3)
    assert normalizer("std", 0.1, 10.0)(values_G, [1] * 400)[0] == 10.0


def test_scale_none_only_centers() -> None:
    assert normalizer("none", 0.1, 10.0)([100.0, 0.0], [1, 1]) == [50.0, -50.0]


@pytest.mark.parametrize(
    ("scale", "std_floor", "clip"), [("max", 0.1, None), ("std", -1.0, None), ("std", math.nan, 1.0), ("std", 0.1, 0.0)]
)
def test_impossible_normalizers_are_refused(scale: str, std_floor: float, clip: float | None) -> None:
    with pytest.raises(ArlError):
        normalizer(scale, std_floor, clip)  # type: ignore[arg-type]


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    # 1 - (0+0+1)/3 = 2/3; 0 - (1+0+1)/3 = -2/3
    assert leave_one_out([1, 0, 0, 1]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_discounted_returns_run_backwards() -> None:
    # 4; 2 + 4/2 = 4; 1 + 4/2 = 3
    assert discounted_returns([1.0, 2.0, 4.0], gamma=0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([], gamma=0.5) == []


def test_anchor_groups_join_equal_keys() -> None:
    assert anchor_groups(["a", "b", "a", ("c", 1), "b"]) == [[0, 2], [1, 4], [3]]
    assert anchor_groups([]) == []


def test_min_max_spans_zero_to_one() -> None:
    assert min_max([2.0, 4.0, 3.0]) == [0.0, 1.0, 0.5]
    assert min_max([2.0, 2.0]) == [0.0, 0.0]
    assert min_max([]) == []


def test_entropy_gains_have_mean_one_and_favour_the_sure() -> None:
    # 1 and exp(-1) = 0.367879, mean 0.683940: 1.462117 and 0.537883
    assert entropy_gains([0.0, 1.0], k=1.0) == pytest.approx([1.462117, 0.537883], abs=1e-6)
    assert entropy_gains([], k=1.0) == []


def test_mean_of_nothing_is_zero() -> None:
    assert mean([]) == 0.0
    assert mean([0.1] * 10) == pytest.approx(0.1, abs=0)
