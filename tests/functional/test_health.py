"""The graded state: votes, rising at once, falling step by step, and since when."""

import pytest

from arl_lightning.functional.detection import Sign
from arl_lightning.functional.health import Course, Level, grade

HEALTHY, WATCH, DANGER = Level.HEALTHY, Level.WATCH, Level.DANGER


def sign(votes: int) -> Sign:
    return Sign("a", "a is bad", votes)


@pytest.mark.parametrize(
    ("votes", "level"),
    [([], HEALTHY), ([1], WATCH), ([1, 1], WATCH), ([1, 2], DANGER), ([3], DANGER), ([1] * 4, DANGER)],
)
def test_votes_make_the_grade(votes: list[int], level: Level) -> None:
    assert grade([sign(v) for v in votes], danger_votes=3) is level


def walk(found: list[Level], calm_epochs: int) -> list[Course]:
    courses, course = [], Course()
    for epoch, level in enumerate(found):
        course = course.after(level, epoch, calm_epochs)
        courses.append(course)
    return courses


def test_it_rises_at_once_and_falls_one_level_after_calm_epochs_in_a_row() -> None:
    found = [HEALTHY, DANGER, HEALTHY, WATCH, DANGER, HEALTHY, HEALTHY, HEALTHY, HEALTHY, HEALTHY]
    courses = walk(found, calm_epochs=2)
    assert [course.level for course in courses] == [
        HEALTHY, DANGER, DANGER, WATCH,  # two better epochs, 2 and 3: down one
        DANGER, DANGER, WATCH, WATCH, HEALTHY, HEALTHY,
    ]  # fmt: skip
    assert [course.since_epoch for course in courses] == [None, 1, 1, 1, 1, 1, 1, 1, None, None]
    assert [course.danger_epochs for course in courses] == [0, 1, 2, 0, 1, 2, 0, 0, 0, 0]


def test_a_relapse_starts_the_count_again() -> None:
    courses = walk([WATCH, HEALTHY, WATCH, HEALTHY, HEALTHY], calm_epochs=2)
    assert [course.level for course in courses] == [WATCH, WATCH, WATCH, WATCH, HEALTHY]
    assert [course.calm_epochs for course in courses] == [0, 1, 0, 1, 0]


def test_one_sign_in_danger_holds_the_watch_and_not_the_danger() -> None:
    courses = walk([DANGER, WATCH, WATCH, WATCH, WATCH], calm_epochs=2)
    assert [course.level for course in courses] == [DANGER, DANGER, WATCH, WATCH, WATCH]


def test_a_healthy_run_stays_as_it_is() -> None:
    assert walk([HEALTHY] * 5, calm_epochs=1) == [Course()] * 5
