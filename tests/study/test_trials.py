"""A trial's numbers become an overlay, and its course is told point by point."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import yaml
from torch.utils.tensorboard import SummaryWriter

from arl_lightning.study.cells import Cell
from arl_lightning.study.search import Search, state_of
from arl_lightning.study.trials import FAILED, Choices, Course, Interval, Space, suggested, write_overlay
from arl_lightning.types import ArlError

LR, LOW, HIGH, ROWS = "model.init_args.lr", "model.init_args.clip.low", "model.init_args.clip.high", "data.rows"
SPACE: Space = {
    "rate": Interval({LR: 1}, 1e-4, 1e-2, log=True),
    "band": Interval({LOW: 1, HIGH: 1.5}, 0.01, 0.1),
    "rows": Choices({ROWS: 2}, (4, 8)),
}


def test_numbers_are_written_under_their_keys_with_their_factors(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "overlay.yaml"
    write_overlay(path, SPACE, {"rate": 0.001, "band": 0.04, "rows": 8}, "A note.")
    clip = {"low": 0.04, "high": pytest.approx(0.06)}
    assert yaml.safe_load(path.read_text()) == {
        "model": {"init_args": {"lr": 0.001, "clip": clip}},
        "data": {"rows": 16},
    }
    assert path.read_text().startswith("# A note.\n")


def test_a_trial_suggests_one_number_for_each_name() -> None:
    trial = optuna.trial.FixedTrial({"rate": 2e-3, "band": 0.05, "rows": 4})
    assert suggested(trial, SPACE) == {"rate": 2e-3, "band": 0.05, "rows": 4}


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """A run that has logged three values of a metric."""
    run = Cell("one", (), (), 0, tmp_path)
    with SummaryWriter(str(run.folder / "fit")) as writer:
        for epoch, value in enumerate((0.1, 0.2, 0.3)):
            writer.add_scalar("epoch", epoch, global_step=epoch)
            writer.add_scalar("val/success_rate", value, global_step=epoch)
    return run


def test_a_course_tells_each_point_once_and_ends_in_the_last(cell: Cell) -> None:
    trials = optuna.create_study()
    trial = trials.ask()
    course = Course(trial, cell, "val/success_rate", offset=10)
    assert course.last() == pytest.approx(0.3)
    assert course.last() == pytest.approx(0.3)
    told = trials.trials[0].intermediate_values
    assert list(told) == [11, 12, 13]  # the tenth rollout was the last of the run before
    assert course.step == 13


def test_a_run_that_never_logged_the_metric_fails_its_trial(cell: Cell) -> None:
    trials = optuna.create_study()
    with pytest.raises(ArlError, match="validate more often"):
        Course(trials.ask(), cell, "val/gone", offset=0).last()
    assert "'val/gone'" in trials.trials[0].user_attrs[FAILED]


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        ("COMPLETE", {}, "ended"),
        ("PRUNED", {}, "ended"),
        ("FAIL", {FAILED: "no such word"}, "ended"),  # it counts: trials are equally many
        ("FAIL", {}, "lost"),  # its worker was killed, and another one plays it again
        ("RUNNING", {}, "running"),
    ],
)
def test_only_trials_that_say_how_they_ended_count(name: str, attributes: dict[str, Any], said: str) -> None:
    assert state_of(SimpleNamespace(state=optuna.trial.TrialState[name], user_attrs=attributes)) == said


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"rate": Interval({LR: 1}, 1e-4, 1e-2)}, "a grid needs choices"),
        ({"rows": Choices({ROWS: 1}, (1, 2))}, "has 2 points: 3 trials"),
    ],
)
def test_a_grid_needs_as_many_points_as_trials(space: dict[str, Interval | Choices], said: str) -> None:
    with pytest.raises(ArlError, match=said):
        Search("s", "study.yaml", "sokoban", (1,), 3, {"grpo": space}, sampler="grid")
