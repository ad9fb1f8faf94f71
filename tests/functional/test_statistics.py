"""Wilson intervals against published numbers and at their ends."""

import pytest

from arl_lightning.functional.statistics import wilson_interval


def test_eight_of_ten() -> None:
    # z² = 3.841459, shrink 1.384146; middle (0.8 + 0.192073)/1.384146 = 0.716740
    # half 1.959964/1.384146 · sqrt(0.016 + 0.009604) = 0.226577
    assert wilson_interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-5)


def test_no_success_and_only_success_touch_the_ends() -> None:
    # upper bound z²/(n + z²) = 3.841459/13.841459
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert wilson_interval(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-5)


def test_nothing_tried_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 2), (0, -1)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        wilson_interval(successes, trials)
