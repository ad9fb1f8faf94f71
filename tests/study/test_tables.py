"""The report's tables, from runs whose numbers are written down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from arl_lightning.study.cells import Cell
from arl_lightning.study.definition import Method, Prediction, Study, StudyTask
from arl_lightning.study.results import Run
from arl_lightning.study.study_report import write_report
from arl_lightning.study.tables import Tables

RATES = {  # by task and method, of seeds 0, 1, 2
    ("near", "grpo"): (0.2, 0.4, 0.6),
    ("near", "sampo"): (0.3, 0.5, 0.7),
    ("far", "grpo"): (0.0, 0.1, 0.2),
    ("far", "sampo"): (0.2, 0.1, 0.0),
}


def study(*predictions: Prediction) -> Study:
    tasks = {task: StudyTask(epochs=1, configs=("tasks/sokoban.yaml",)) for task in ("near", "far")}
    return Study(
        "made up", "Nothing & all", tasks, {"grpo": Method(), "sampo": Method()}, (0, 1, 2), predictions=predictions
    )


def run(task: str, method: str, seed: int, root: Path, **numbers: float) -> Run:
    return Run(task, method, Cell(f"{task}-{method}", (), (), seed, root), numbers, {})


def runs(root: Path, more: Mapping[str, float] | None = None) -> list[Run]:
    return [
        run(task, method, seed, root, sampled=rate, **(more or {}))
        for (task, method), rates in RATES.items()
        for seed, rate in enumerate(rates)
    ]


def test_a_method_is_compared_with_the_baseline_seed_by_seed(tmp_path: Path) -> None:
    table = Tables(study(), runs(tmp_path)).results(["near"]).set_index("method")
    assert list(table.index) == ["sampo", "grpo"]  # the best first
    assert table.loc["sampo", "sampled, mean"] == "0.500 [0.300, 0.700]"
    assert table.loc["sampo", "minus grpo, paired"] == "+0.100 [+0.100, +0.100]"  # although the intervals overlap
    # above 0.2: all three; above 0.4: two; above 0.6: one; no ties: 6 of 9
    assert table.loc["sampo", "P(above grpo)"].startswith("0.67")
    assert table.loc["grpo", "minus grpo, paired"] == ""


def test_where_methods_start_from_is_a_line_and_no_comparison(tmp_path: Path) -> None:
    said = Prediction("training helps", "sampo", "before", task="near")
    start = [run("near", "before", seed, tmp_path, sampled=rate) for seed, rate in enumerate((0.1, 0.2, 0.3))]
    tables = Tables(study(said), [*start, *runs(tmp_path)])
    table = tables.results(["near"]).set_index("method")
    assert list(table.index) == ["sampo", "grpo", "before"]
    assert table.loc["before", "sampled, mean"].startswith("0.200")
    assert table.loc["before", "p, Holm"] == ""
    assert table.loc["sampo", "p, Holm"] == table.loc["sampo", "p"]  # one comparison still
    assert tables.predictions()["found"][0].startswith("+0.300")


def test_tasks_together_weigh_alike(tmp_path: Path) -> None:
    table = Tables(study(), runs(tmp_path)).results(["near", "far"]).set_index("method")
    assert table.loc["sampo", "runs"] == 6
    assert table.loc["sampo", "sampled, mean"].startswith("0.300")  # (0.5 + 0.1) / 2
    assert table.loc["sampo", "minus grpo, paired"].startswith("+0.050")  # (0.1 + 0) / 2
    # of 0, 0.1, 0.2, 0.3, 0.5, 0.7 the least and the most are left out
    assert table.loc["sampo", "interquartile mean"].startswith("0.275")


def test_only_seeds_that_both_have_are_compared(tmp_path: Path) -> None:
    kept = [one for one in runs(tmp_path) if (one.method, one.cell.seed) != ("grpo", 0)]
    pairs = Tables(study(), kept).pairs("sampo", "grpo", "sampled", ["near"])
    assert pairs == [([0.5, 0.7], [0.4, 0.6])]


def test_predictions_stand_beside_what_came(tmp_path: Path) -> None:
    said = (
        Prediction("more", "sampo", "grpo", task="near"),
        Prediction("less", "grpo", "sampo", task="near"),
        Prediction("as good", "grpo", "sampo", task="near", margin=0.2),
        Prediction("far off", "sampo", "grpo", task="far"),
        Prediction("unknown", "sampo", "grpo", measure="greedy"),
    )
    table = Tables(study(*said), runs(tmp_path)).predictions()
    assert list(table["outcome"]) == ["held", "failed", "held", "open", "not measured"]
    assert list(table["pairs"]) == ["3", "3", "3", "3", "0"]
    assert table["that is"][2] == "sampled: grpo − sampo > -0.2 on near"


def test_collapsed_runs_are_listed_and_counted(tmp_path: Path) -> None:
    course = {
        "collapsed": 0.0,
        "collapsed_at": float("nan"),
        "recovered": float("nan"),
        "least_valid": 0.9,
        "largest_sinking_kl": 0.1,
        "largest_sinking_ratio": 1.0,
        "largest_grad_norm": 1.0,
        "last_entropy": 0.5,
        "last_fifth": 0.5,
    }
    fallen = run("near", "grpo", 0, tmp_path, sampled=0.0, **{**course, "collapsed": 1.0, "collapsed_at": 7.0})
    tables = Tables(study(), [fallen, *(one for one in runs(tmp_path, course) if one.cell.seed)])
    assert tables.collapses()[["task", "method", "seed", "collapsed_at"]].values.tolist() == [["near", "grpo", 0, 7.0]]
    assert tables.results(["near"]).set_index("method").loc["grpo", "share collapsed"] == "0.333"


def test_warnings_are_counted_in_time_and_for_nothing(tmp_path: Path) -> None:
    never = float("nan")
    told = [(1.0, 7.0, 7.0), (1.0, 7.0, 8.0), (1.0, 7.0, never), (0.0, never, 5.0), (0.0, never, never)]
    found = [
        run("near", "grpo", seed, tmp_path, sampled=0.0, collapsed=collapsed, collapsed_at=fell, danger_at=warned)
        for seed, (collapsed, fell, warned) in enumerate(told)
    ]
    before = run("near", "before", 0, tmp_path, sampled=0.0)
    unwatched = run("far", "grpo", 0, tmp_path, sampled=0.0, collapsed=1.0, collapsed_at=7.0)
    said = Tables(study(), [*found, before, unwatched]).warnings()
    assert "in 1 of 3 runs that collapsed" in said
    assert "in 1 of 2 others" in said
    assert Tables(study(), [before]).warnings() == ""


def test_a_report_leaves_no_run_out(tmp_path: Path) -> None:
    page = write_report(study(Prediction("more", "sampo", "grpo")), tmp_path).read_text()
    assert "0 of 12 runs are finished" in page
    assert "Nothing &amp; all" in page
    assert page.count("<td>not run</td>") == 12 + 1  # the runs, and the prediction
    assert page.count("arl fit --config") == 12
    lines = (tmp_path / "made up" / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 12
    assert all(line.split(",")[3] == "not run" for line in lines[1:])


@pytest.mark.parametrize("method", ["grpo", "sampo"])
def test_estimates_are_by_method(method: str, tmp_path: Path) -> None:
    found = Tables(study(), runs(tmp_path)).estimates("sampled", ["near"])
    assert found[method].value == pytest.approx({"grpo": 0.4, "sampo": 0.5}[method])
