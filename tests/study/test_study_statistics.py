"""Intervals, differences and aggregates against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from arl_lightning.study import statistics
from arl_lightning.study.tables import outcome, shown


def test_the_interval_of_three_runs_goes_from_the_least_to_the_most() -> None:
    # 1 of 27 resamples is all ones, more than 2.5 %: so the ends are the extremes
    assert statistics.mean([[1.0, 2.0, 3.0]]) == (2.0, 1.0, 3.0)


def test_tasks_count_alike_however_many_runs_they_have() -> None:
    assert statistics.mean([[1.0], [2.0, 3.0, 4.0]]).value == 2.0  # (1 + 3) / 2
    assert statistics.mean([[0.0, 0.0], [1.0, 1.0]]) == (0.5, 0.5, 0.5)


def test_one_run_has_no_interval() -> None:
    value, low, high = statistics.mean([[0.7]])
    assert value == 0.7
    assert math.isnan(low)
    assert math.isnan(high)


def test_the_bootstrap_interval_is_about_two_standard_errors() -> None:
    # values 0 … 99: standard deviation 28.87, so 1.96 · 28.87 / 10 = 5.66 on either side of 49.5
    value, low, high = statistics.mean([list(map(float, range(100)))])
    assert (value, low, high) == pytest.approx((49.5, 43.84, 55.16), abs=0.3)


def test_the_interquartile_mean_leaves_a_quarter_out_at_either_end() -> None:
    # of 1 2 3 4 5 6 7 100 stay 3 4 5 6
    assert statistics.interquartile_mean([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 100.0]]).value == 4.5
    assert statistics.interquartile_mean([[1.0, 2.0, 9.0]]).value == 4.0  # 3 // 4 = 0 are left out


def test_the_probability_of_improvement_counts_ties_half() -> None:
    # 1 is above 0; 2 above 0, ties 2; 3 above both 0 and 2: (1 + 1.5 + 2) / 9
    assert statistics.probability_of_improvement([([1.0, 2.0, 3.0], [0.0, 2.0, 4.0])]).value == 4.5 / 9
    both = [([1.0, 1.0], [0.0, 0.0]), ([0.0, 0.0], [1.0, 1.0])]
    assert statistics.probability_of_improvement(both) == (0.5, 0.5, 0.5)


def test_differences_are_taken_seed_by_seed() -> None:
    # 0.1 each, although the runs themselves spread over 0.8
    assert statistics.paired_difference([([0.1, 0.5, 0.9], [0.0, 0.4, 0.8])]) == pytest.approx((0.1, 0.1, 0.1))


def test_the_p_value_is_that_of_the_paired_t_test() -> None:
    # differences 1, 2, 3: t = 2 / (1 / √3) = 3.4641 with 2 degrees of freedom, p = 1 − t / √(t² + 2) = 0.07418
    assert statistics.paired_p_value([1.0, 3.0, 5.0], [0.0, 1.0, 2.0]) == pytest.approx(0.07418, abs=1e-5)
    assert statistics.paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert statistics.paired_p_value([2.0, 3.0], [1.0, 2.0]) == 0.0
    assert math.isnan(statistics.paired_p_value([1.0], [2.0]))


def test_holm_multiplies_the_smallest_most_and_never_falls() -> None:
    # 3 · 0.01, then 2 · 0.03, then 1 · 0.04, which may not be below 0.06
    adjusted = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03, "unknown": math.nan})
    assert [adjusted[name] for name in "abc"] == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(adjusted["unknown"])
    assert statistics.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    ("low", "high", "margin", "said"),
    [
        (0.01, 0.2, 0.0, "held"),
        (-0.2, -0.01, 0.0, "failed"),
        (-0.1, 0.1, 0.0, "open"),
        (-0.01, 0.2, 0.02, "held"),
        (-0.2, -0.01, 0.02, "open"),
        (math.nan, math.nan, 0.0, "open"),
    ],
)
def test_a_prediction_is_decided_by_its_interval_and_margin(low: float, high: float, margin: float, said: str) -> None:
    assert outcome(statistics.Estimate((low + high) / 2, low, high), margin) == said


def test_an_estimate_is_shown_with_its_interval_if_there_is_one() -> None:
    assert shown(statistics.Estimate(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
    assert shown(statistics.Estimate(0.5, math.nan, math.nan), "+.2f") == "+0.50"
