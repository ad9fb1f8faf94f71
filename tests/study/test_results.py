"""What is read off a run's curves, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from arl_lightning.study.cells import Cell
from arl_lightning.study.results import Run, collapse, cost, course, held_out

NEVER = {"collapsed": 0.0, "collapsed_at": math.nan, "recovered": math.nan}


def test_a_steady_run_has_not_collapsed() -> None:
    assert collapse([0.4] * 12, [0.9] * 12) == pytest.approx(NEVER, nan_ok=True)


def test_one_rollout_of_void_answers_is_a_collapse_that_may_pass() -> None:
    # before the eighth rollout the best mean of five is 0.9, and 0.44 is below half of it
    valid = [0.9] * 7 + [0.44] + [0.9] * 4
    assert collapse([0.4] * 12, valid) == {"collapsed": 1.0, "collapsed_at": 8, "recovered": 1.0}
    assert collapse([0.4] * 12, [0.9] * 7 + [0.46] + [0.9] * 4)["collapsed"] == 0.0


def test_success_that_falls_by_half_over_five_rollouts_is_a_collapse() -> None:
    # 0.4 five times, then 0: the mean of five is 0.32, 0.24, 0.16, and 0.16 is below 0.2 in the eighth rollout
    assert collapse([0.4] * 5 + [0.0] * 5, [1.0] * 10) == {"collapsed": 1.0, "collapsed_at": 8, "recovered": 0.0}


def test_next_to_nothing_cannot_collapse() -> None:
    assert collapse([0.04] * 5 + [0.0] * 7, [0.9] * 12)["collapsed"] == 0.0


def test_a_clone_of_poor_form_is_judged_by_its_own_form() -> None:
    assert collapse([0.2] * 8, [0.4] * 8)["collapsed"] == 0.0
    assert collapse([0.2] * 8, [0.4] * 7 + [0.1])["collapsed"] == 1.0


def test_a_course_in_numbers() -> None:
    def curve(*values: float) -> dict[int, float]:
        return dict(enumerate(values, start=1))

    curves = {
        "train/success_rate": curve(0.1, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4, 0.6),
        "train/valid_ratio": curve(*[0.5] * 8, 0.8, 1.0),
        "train/completions/mean_length": curve(*[4.0] * 10),
        "train/grad_norm": curve(*[1.0] * 9, 3.0),
        "train/entropy": curve(*[1.0] * 9, 0.25),
        "throughput/tokens_per_s": curve(*[200.0] * 10),
        **{f"time/{what}_s": curve(*[3.0] * 10) for what in ("generate", "environment", "score", "update")},
    }
    numbers = course(curves)
    assert numbers["first_fifth"] == pytest.approx(0.2)  # of 0.1, 0.3
    assert numbers["last_fifth"] == pytest.approx(0.5)  # of 0.4, 0.6
    assert numbers["spread"] == pytest.approx(0.1)
    assert numbers["last_valid"] == pytest.approx(0.9)
    assert numbers["least_valid"] == 0.5
    assert numbers["largest_grad_norm"] == 3.0
    assert numbers["last_entropy"] == 0.25
    assert math.isnan(numbers["largest_sinking_ratio"])
    assert math.isnan(numbers["largest_sinking_kl"])
    assert course({**curves, "train/sinking/kl": curve(0.1, 0.4, 0.2)})["largest_sinking_kl"] == 0.4
    assert "danger_at" not in numbers
    rolled_back = {"collapse/level": curve(0.0, 1.0, 1.0), "collapse/actions": curve(0.0, 1.0, 1.0)}
    assert course({**curves, **rolled_back})["danger_at"] == 2
    assert math.isnan(course({**curves, "collapse/level": curve(0.0, 1.0)})["danger_at"])
    assert course({**curves, "collapse/level": curve(0.0, 1.0, 2.0, 1.0, 2.0)})["danger_at"] == 3
    assert numbers["minutes"] == 2.0  # 10 · 4 · 3 s
    assert numbers["sampled_tokens"] == 6000  # 10 · 200 a second · 3 s
    assert numbers["environment_steps"] == 1500  # 6000 tokens / 4 an answer


def test_a_run_of_few_rollouts_says_nothing_of_spread_and_collapse() -> None:
    names = ("train/success_rate", "train/valid_ratio", "train/completions/mean_length", "train/grad_norm")
    times = [f"time/{what}_s" for what in ("generate", "environment", "score", "update")]
    short = dict.fromkeys(range(1, 10), 1.0)
    numbers = course(dict.fromkeys((*names, *times, "train/entropy", "throughput/tokens_per_s"), short))
    assert numbers["last_fifth"] == 1.0
    assert not {"spread", "collapsed", "collapsed_at", "recovered"} & set(numbers)


def test_held_out_measures_are_named_by_their_decoding() -> None:
    metrics = {"test/success_rate": 0.5, "test/greedy/success_rate": 0.25, "test/score": 2.0, "test/turns": 3.0}
    assert held_out(metrics) == {"sampled": 0.5, "greedy": 0.25, "score_sampled": 2.0}


def test_every_attempt_costs_and_a_shared_start_costs_once(tmp_path: Path) -> None:
    def leave(cell: Cell, *attempts: tuple[str | None, int | None]) -> Cell:
        cell.folder.mkdir()
        told = [
            {"verb": "fit", "started": "2026-01-01T12:00:00+00:00", "ended": ended, "exit_code": code}
            for ended, code in attempts
        ]
        (cell.folder / "record.json").write_text(json.dumps({"attempts": told}))
        return cell

    start = leave(Cell("start", (), (), 0, tmp_path, verbs=("fit",)), ("2026-01-01T12:30:00+00:00", 0))
    grpo = leave(
        Cell("grpo", (), (), 0, tmp_path, start),
        ("2026-01-01T12:15:00+00:00", 1),
        (None, None),  # killed with its parent
        ("2026-01-01T13:00:00+00:00", 0),
    )
    sampo = leave(Cell("sampo", (), (), 0, tmp_path, start), ("2026-01-01T12:30:00+00:00", None))
    unplayed = Cell("sapo", (), (), 0, tmp_path, start)
    runs = [Run("sokoban", cell.label, cell, {}, {}) for cell in (grpo, sampo, unplayed)]
    assert cost(runs) == (0.5 + 0.25 + 1.0 + 0.5, 1, 2)
