"""Cells run once, go on where they were stopped, are tried twice, and leave nothing running."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from arl_lightning.study.cell_runner import CellRunner
from arl_lightning.study.cells import Cell
from arl_lightning.study.records import held, recorded, revision


@dataclass(frozen=True)
class ScriptedCell(Cell):
    """A cell whose parts are one Python script, which is told its part and folder."""

    script: str = ""

    def command(self, verb: str) -> list[str]:
        return [sys.executable, "-c", self.script, verb, str(self.folder)]


COUNT = """
import pathlib, sys
with open(pathlib.Path(sys.argv[2], "done.txt"), "a") as done:
    done.write(" ".join(a for a in sys.argv[1:] if a != sys.argv[2]) + "\\n")
"""


def cell(
    root: Path,
    script: str = COUNT,
    label: str = "one",
    start: Cell | None = None,
    verbs: tuple[str, ...] = ("fit", "test"),
) -> Cell:
    return ScriptedCell(label, (), (), 0, root, start, verbs, script)


def done(run: Cell) -> list[str]:
    return (run.folder / "done.txt").read_text().splitlines()


def codes(run: Cell) -> list[tuple[str, int | None]]:
    return [(attempt["verb"], attempt["exit_code"]) for attempt in run.attempts()]


def checkpoint(run: Cell) -> Path:
    path = run.folder / "fit" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_cell_is_fitted_then_tested_and_never_again(tmp_path: Path) -> None:
    one, other = cell(tmp_path), cell(tmp_path, label="other")
    told: list[str] = []
    runner = CellRunner(jobs=2, say=lambda run, how: told.append(f"{run.label} {how}"))
    runner.run([one, other])
    runner.run([one, other])
    assert [done(one), done(other)] == [["fit", "test"]] * 2
    assert sorted(told) == ["one finished", "one finished", "other finished", "other finished"]


def test_a_start_comes_first_and_once_and_is_not_tested(tmp_path: Path) -> None:
    start = cell(tmp_path, label="start", verbs=("fit",))
    needs = f"import pathlib, sys; assert pathlib.Path({str(start.folder / 'done.txt')!r}).exists()\n{COUNT}"
    runs = [cell(tmp_path, needs, label, start) for label in ("one", "two")]
    CellRunner(jobs=2).run(runs)
    assert done(start) == ["fit"]
    assert [run.status() for run in runs] == ["finished"] * 2


def test_a_failed_cell_is_tried_once_more_and_again_by_a_later_call(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    run = cell(
        tmp_path, f"import pathlib, sys; pathlib.Path({str(mended)!r}).exists() or sys.exit('arl: no such word')"
    )
    CellRunner(jobs=1).run([run])
    assert codes(run) == [("fit", 1), ("fit", 1)]
    assert run.status() == "failed"
    assert run.attempts()[-1]["said"] == "arl: no such word"
    mended.touch()
    CellRunner(jobs=1).run([run])
    assert codes(run) == [("fit", 1), ("fit", 1), ("fit", 0), ("test", 0)]
    assert run.status() == "finished"


def test_a_cell_whose_start_failed_is_not_run(tmp_path: Path) -> None:
    start = cell(tmp_path, "import sys; sys.exit(3)", "start", verbs=("fit",))
    run, other = cell(tmp_path, start=start), cell(tmp_path, label="other")
    CellRunner(jobs=1).run([run, other])
    assert [run.status(), other.status()] == ["not run", "finished"]


@pytest.mark.parametrize("reached", [True, False])
def test_an_interrupted_fit_goes_on_from_its_checkpoint_or_begins_anew(reached: bool, tmp_path: Path) -> None:
    run = cell(tmp_path)
    with held(run), recorded(run, "fit", []):
        left = checkpoint(run)
        if not reached:
            left.rename(left.with_name("half-written"))
    assert run.status() == "interrupted"
    CellRunner(jobs=1).run([run])
    assert done(run) == ["fit --ckpt_path=last" if reached else "fit", "test"]
    assert left.exists() == reached  # what was left without a checkpoint is cleared away


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    run = cell(tmp_path)
    with held(run):
        assert CellRunner(jobs=1).execute(run) == "busy"
    assert CellRunner(jobs=1).execute(run) == "finished"


def test_a_watch_ends_a_run_and_leaves_it_interrupted(tmp_path: Path) -> None:
    run = cell(tmp_path, "import time; time.sleep(60)", verbs=("fit",))
    assert CellRunner(jobs=1).execute(run, watch=lambda: True) == "interrupted"
    assert codes(run) == [("fit", None)]


SLEEP = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[2], "pid").write_text(str(os.getpid()))
pathlib.Path(sys.argv[2], "began").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_a_runner_started_ends_with_it_or_keeps_its_lock(number: signal.Signals, tmp_path: Path) -> None:
    run = cell(tmp_path, SLEEP)
    runner = multiprocessing.get_context("fork").Process(target=CellRunner(jobs=1).run, args=([run],))
    runner.start()
    assert runner.pid is not None
    wait_until((run.folder / "began").exists)
    os.kill(runner.pid, number)
    runner.join()
    assert runner.exitcode == (-9 if number is signal.SIGKILL else 128 + number)
    assert run.status() == "interrupted"
    if number is signal.SIGKILL:  # nobody could end the child, so nobody may begin beside it
        assert CellRunner(jobs=1).execute(run) == "busy"
        os.kill(int((run.folder / "pid").read_text()), signal.SIGKILL)
    with held(run, wait=True) as lock:  # comes when the child has gone
        assert lock is not None


def test_the_record_says_what_ran_when_and_of_which_code(tmp_path: Path) -> None:
    run = cell(tmp_path)
    CellRunner(jobs=1).run([run])
    record = json.loads((run.folder / "record.json").read_text())
    assert record["seed"] == 0
    assert record["versions"]["torch"]
    assert [line.split()[:2] for line in record["recreate"]] == [["arl", "fit"], ["arl", "test"]]
    for attempt in record["attempts"]:
        assert attempt["started"] <= attempt["ended"]
        assert attempt["command"][:2] == [sys.executable, "-c"]
        assert attempt["revision"] == revision()["revision"]
        assert attempt["dirty"] in (True, False, None)
