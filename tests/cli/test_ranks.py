"""A run of two processes is the run of one, and ends as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

import arl_lightning
from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CLI_TESTS = Path(__file__).parent
ROOT = Path(arl_lightning.__file__).parents[1]
CALLBACKS = "arl_lightning.callbacks"
Read = Callable[[str], "Outcome"]
Fit = Callable[..., subprocess.CompletedProcess[str]]

GATES = (
    *("--callbacks.difficulty", f"{CALLBACKS}.difficulty_window.DifficultyWindow", "--callbacks.difficulty.low", "0.1"),
    *("--callbacks.usable", f"{CALLBACKS}.usable_episodes.UsableEpisodes"),
    *("--callbacks.usable.count_truncated", "true", "--callbacks.usable.max_cut_share", "0.8"),
    *("--callbacks.filtering.by", "advantage", "--callbacks.kl_monitor.control.target", "0.001"),
    *("--data.validation.tasks", "5", "--data.validation.portion", "3", "--trainer.max_epochs", "2"),
)
SCRIBE = ("--trainer.callbacks+=ranks.Scribe",)


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    """Options that add a configuration."""

    def write(config: Mapping[str, Any]) -> tuple[str, str]:
        file = tmp_path / "overlay.yaml"
        file.write_text(yaml.safe_dump(config))
        return "--config", str(file)

    return write


@pytest.fixture(scope="module")
def fit_by_two(small_run: SmallRun) -> Fit:
    """Runs a fit by two processes to its end."""

    def fit(folder: str, *options: str, method: str = "sampo") -> subprocess.CompletedProcess[str]:
        command = [*small_run("fit", folder, *options, method=method), "--trainer.devices=2", "--trainer.strategy=ddp"]
        path = os.pathsep.join(map(str, (ROOT, CLI_TESTS)))
        return subprocess.run(
            [sys.executable, "-m", "arl_lightning", *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    return fit


@pytest.fixture(scope="module")
def two(fit_by_two: Fit, outcome: Read) -> Outcome:
    """Two epochs of two processes."""
    ended = fit_by_two("ranks/two", *GATES, *SCRIBE)
    assert ended.returncode == 0, ended.stderr
    return outcome("ranks/two")


def ends(runs: Path, folder: str) -> list[dict[str, Any]]:
    """What the processes ended with, by rank."""
    return [torch.load(runs / folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else bool(left == right)


def check_close(two: Outcome, one: Outcome) -> None:
    """The same run but for rounding, which the order of sums decides."""
    assert two.checkpoint["global_step"] == one.checkpoint["global_step"]
    assert two.weights.keys() == one.weights.keys()
    for name, weight in one.weights.items():
        torch.testing.assert_close(two.weights[name], weight, rtol=0, atol=2e-5, msg=name)
    assert two.metrics.keys() == one.metrics.keys()
    for name, points in one.metrics.items():
        assert [step for step, _ in two.metrics[name]] == [step for step, _ in points], name
        values = [value for _, value in points]
        assert [value for _, value in two.metrics[name]] == pytest.approx(values, rel=1e-4, abs=1e-5), name


def transcripts(runs: Path, folder: str) -> list[dict[str, Any]]:
    """What was said and done; the update's numbers differ by rounding."""
    episodes = [json.loads(line) for line in (runs / folder / "transcripts.jsonl").read_text().splitlines()]
    for turn in (turn for episode in episodes for turn in episode["turns"]):
        del turn["update"], turn["behavior_logprobs"]
    return episodes


def test_two_processes_play_filter_learn_and_validate_as_one(
    small_run: SmallRun, two: Outcome, outcome: Read, runs: Path
) -> None:
    main(small_run("fit", "ranks/one", *GATES))
    one = outcome("ranks/one")
    check_close(two, one)
    assert one.metrics["filter/attempts"][0][1] > 1
    for name, points in one.metrics.items():
        if name.startswith(("filter/", "val/")):  # counts, which rounding does not move by little
            assert two.metrics[name] == points, name
    assert transcripts(runs, "ranks/two") == transcripts(runs, "ranks/one")
    assert (runs / "ranks/two/model/config.json").is_file()


def test_both_processes_end_with_the_same_state_and_the_same_numbers(two: Outcome, runs: Path) -> None:
    first, second = ends(runs, "ranks/two")
    for end in (first, second):
        del end["metrics"]["time/update_s"]  # which each clocks for itself
    assert same(first, second)
    assert first["callbacks"]["KLMonitor"]["factor"] != 1.0


@pytest.mark.slow
def test_two_processes_resume_to_the_bit(fit_by_two: Fit, two: Outcome, outcome: Read) -> None:
    for part in (("--trainer.max_epochs", "1"), ("--ckpt_path", "last")):
        ended = fit_by_two("ranks/resumed", *GATES, *part)
        assert ended.returncode == 0, ended.stderr
    resumed = outcome("ranks/resumed")
    for part_of_it in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        assert same(resumed.checkpoint[part_of_it], two.checkpoint[part_of_it]), part_of_it
    assert resumed.metrics == two.metrics


@pytest.mark.slow
def test_a_process_without_rows_takes_each_step_with_the_other(
    small_run: SmallRun, fit_by_two: Fit, outcome: Read
) -> None:
    options = ("--data.groups=1", "--data.minibatches=8", "--callbacks.filtering=null", "--trainer.max_epochs=2")
    lean = (*options, "--data.group_size=2", "--trainer.limit_val_batches=0")  # six turns at most
    main(small_run("fit", "ranks/lean_one", *lean))
    ended = fit_by_two("ranks/lean_two", *lean)
    assert ended.returncode == 0, ended.stderr
    check_close(outcome("ranks/lean_two"), outcome("ranks/lean_one"))
    assert outcome("ranks/lean_one").checkpoint["global_step"] in range(4, 13)


@pytest.mark.slow
def test_two_processes_train_an_adapter_as_one(small_run: SmallRun, fit_by_two: Fit, outcome: Read) -> None:
    lora = ("--model.policy.lora.r=4", "--model.policy.lora.target_modules=all-linear", "--trainer.max_epochs=2")
    main(small_run("fit", "ranks/lora_one", *lora))
    ended = fit_by_two("ranks/lora_two", *lora)
    assert ended.returncode == 0, ended.stderr
    check_close(outcome("ranks/lora_two"), outcome("ranks/lora_one"))


@pytest.mark.slow
def test_two_processes_warn_and_go_back_as_one(
    small_run: SmallRun,
    fit_by_two: Fit,
    outcome: Read,
    overlay: Callable[[Mapping[str, Any]], tuple[str, str]],
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(CLI_TESTS)
    judge = {"min_valid_ratio": None, "max_drift": 1.0, "after_epochs": 0, "min_history": 50, "window": 50}
    actions = [
        {"class_path": f"{CALLBACKS}.roll_back.RollBack"},
        {"class_path": f"{CALLBACKS}.gentler.LowerLearningRate"},
        {"class_path": f"{CALLBACKS}.gentler.RaiseKL"},
    ]
    warning = {**judge, "danger_votes": 2, "calm_epochs": 1, "actions": actions}
    spike = {"class_path": "ruinous.Spike", "init_args": {"epoch": 1}}
    planted = {
        "callbacks": {"collapse_warning": {"init_args": warning}},
        "trainer": {"callbacks": [spike, {"class_path": "ranks.Scribe"}], "max_epochs": 3, "limit_val_batches": 0},
    }
    main(small_run("fit", "ranks/saved_one", *overlay(planted), method="grpo"))
    ended = fit_by_two("ranks/saved_two", *overlay(planted), method="grpo")
    assert ended.returncode == 0, ended.stderr
    one, saved = outcome("ranks/saved_one"), outcome("ranks/saved_two")
    first, second = ends(runs, "ranks/saved_two")
    assert same(first["weights"], second["weights"])
    assert same(first["optimizer"], second["optimizer"])
    assert first["callbacks"] == second["callbacks"]
    done = first["callbacks"]["CollapseWarning"]["actions"]
    assert done == one.checkpoint["callbacks"]["CollapseWarning"]["actions"]
    assert {name: state["times"] for name, state in done.items()} == {
        "RollBack": 1,
        "LowerLearningRate": 1,
        "RaiseKL": 1,
    }
    for name, weight in one.weights.items():
        torch.testing.assert_close(saved.weights[name], weight, rtol=0, atol=2e-5, msg=name)
    assert saved.metrics["collapse/level"] == one.metrics["collapse/level"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence", "times"),
    [
        (("--data.task.env_id=ranks:tests/UnevenSokoban-v0",), "the second machine has no rooms: copy them there", 2),
        (("--trainer.callbacks+=ranks.Stumble",), "the second process stumbles", 1),
    ],
)
def test_a_fault_in_the_second_process_ends_both_with_its_sentence(
    options: tuple[str, ...], sentence: str, times: int, fit_by_two: Fit
) -> None:
    ended = fit_by_two(f"ranks/fault_{times}", *options)
    assert ended.returncode not in (0, None)
    assert ended.stderr.splitlines().count(f"arl: {sentence}") == times
