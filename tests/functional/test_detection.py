"""Bounds: which side is healthy, and what is said when it is left."""

import math

import pytest

from arl_lightning.functional.detection import Bound, breaches

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
    assert breaches([DRIFT, VALID], {}) == []


def test_all_broken_bounds_are_named_in_their_order() -> None:
    found = breaches([VALID, DRIFT], {"train/approx_kl": 1.0, "train/valid_ratio": 0.0})
    assert found == ["train/valid_ratio is 0, under 0.9", "train/approx_kl is 1, over 0.1"]
