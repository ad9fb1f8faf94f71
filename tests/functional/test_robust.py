"""Robust statistics: hand-computed values, and that one outlier moves none of them."""

import pytest

from arl_lightning.functional.robust import slope, spread, trend_score, z_score


def test_spread_is_the_scaled_median_deviation() -> None:
    # median 3, deviations 2 1 0 1 97 with median 1
    assert spread([1, 2, 3, 4, 100]) == pytest.approx(1.4826)
    assert spread([1, 2, 3, 4, 100], floor=2.0) == 2.0


@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.0]])
def test_what_does_not_vary_has_the_floor_as_its_spread(values: list[float]) -> None:
    assert spread(values, floor=0.25) == 0.25
    assert spread(values) == 0.0


def test_z_score_is_the_distance_from_the_median_in_spreads() -> None:
    assert z_score([1, 2, 3, 4, 100], 10, floor=0.1) == pytest.approx(4.721435)  # (10 − 3)/1.4826
    assert z_score([1, 2, 3, 4, 100], -4, floor=0.1) == pytest.approx(-4.721435)
    assert z_score([7.0] * 5, 7.5, floor=0.25) == 2.0  # 0.5/0.25


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], 0.0),
        ([3.0], 0.0),
        ([3.0, 5.0], 2.0),
        ([0, 1, 10], 5.0),  # slopes 1 9 and 10/2
        ([0, 1, 2, 3, 100], 1.0),  # 1 six times, then 97 49 33 25
        ([4, 4, 4], 0.0),
    ],
)
def test_slope_is_the_median_of_all_slopes(values: list[float], expected: float) -> None:
    assert slope(values) == expected


def test_trend_score_is_the_way_gone_over_what_the_line_leaves() -> None:
    assert trend_score([0, 1, 2, 3], floor=0.5) == 6.0  # 1 · 3 / 0.5, nothing is left over
    assert trend_score([3, 2, 1, 0], floor=0.5) == -6.0
    # slopes 2, 2, 2, 0, 1, 2 of pairs of [0, 2, 2, 4]: 2, 1, 4/3, 0, 1, 2, median 7/6; gone 3.5
    # rest 0, 5/6, −1/3, 1/2: median 1/4, deviations 1/4 7/12 7/12 1/4, their median 5/12; 1.4826 · 5/12 = 0.61775
    assert trend_score([0, 2, 2, 4], floor=0.01) == pytest.approx(3.5 / 0.61775)


def test_noise_without_direction_scores_low() -> None:
    assert abs(trend_score([1, -1, 1, -1, 1, -1, 1, -1], floor=0.01)) < 1
