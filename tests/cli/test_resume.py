"""A run that was interrupted and resumed ends where the uninterrupted one ends, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from torch import Tensor

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CLI_TESTS = Path(__file__).parent
DEADLY = ("--data.task.env_id", "deadly:tests/DeadlySokoban-v0")
METHODS = ("grpo", "sampo")


Read = Callable[[str], "Outcome"]


@pytest.fixture(scope="module")
def uninterrupted(small_run: SmallRun, outcome: Read) -> dict[str, Outcome]:
    """Four epochs by method, validated after the second and the fourth."""
    for method in METHODS:
        main(small_run("fit", f"resume/{method}", method=method))
    return {method: outcome(f"resume/{method}") for method in METHODS}


def check_same(resumed: Outcome, whole: Outcome) -> None:
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch", "loops"):
        assert_equal(resumed.checkpoint[part], whole.checkpoint[part], part)
    collapse = "CollapseWarning"
    assert resumed.checkpoint["callbacks"][collapse] == whole.checkpoint["callbacks"][collapse]
    assert resumed.metrics == whole.metrics


def assert_equal(left: Any, right: Any, where: str) -> None:
    if isinstance(left, Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_equal(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), where
        for index, (mine, other) in enumerate(zip(left, right, strict=True)):
            assert_equal(mine, other, f"{where}/{index}")
    else:
        assert left == right, where


def deadly_environment(sent: signal.Signals, root: Path) -> dict[str, str]:
    return {
        "DEADLY_SIGNAL": str(int(sent)),
        "DEADLY_AFTER": str(root / "checkpoints" / "last.ckpt"),
        "PYTHONPATH": str(CLI_TESTS),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_by_sigterm_resumes_to_the_bit(
    method: str,
    small_run: SmallRun,
    runs: Path,
    outcome: Read,
    uninterrupted: dict[str, Outcome],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = f"resume/sigterm_{method}"
    monkeypatch.syspath_prepend(CLI_TESTS)
    for name, value in deadly_environment(signal.SIGTERM, runs / folder).items():
        monkeypatch.setenv(name, value)
    if "deadly" in sys.modules:
        monkeypatch.setattr(sys.modules["deadly"].DeadlySokoban, "steps_after", 0)
    with pytest.raises(SystemExit) as stop:
        main(small_run("fit", folder, *DEADLY, method=method))
    assert stop.value.code == 143
    assert "arl: stopped by SIGTERM; continue with --ckpt_path last\n" in capsys.readouterr().err
    assert outcome(folder).checkpoint["epoch"] == 0  # one epoch was complete, the second under way
    main(small_run("fit", folder, "--ckpt_path", "last", method=method))
    check_same(outcome(folder), uninterrupted[method])


@pytest.mark.parametrize("method", [pytest.param("grpo", marks=pytest.mark.slow), "sampo"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_process_resumes_to_the_bit(
    method: str,
    sent: signal.Signals,
    small_run: SmallRun,
    runs: Path,
    outcome: Read,
    uninterrupted: dict[str, Outcome],
) -> None:
    folder = f"resume/{sent.name}_{method}"
    command = [sys.executable, "-m", "arl_lightning", *small_run("fit", folder, *DEADLY, method=method)]
    ended = subprocess.run(
        command,
        env={**os.environ, **deadly_environment(sent, runs / folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[sent]
    assert "Traceback" not in ended.stderr
    main(small_run("fit", folder, "--ckpt_path", "last", method=method))
    check_same(outcome(folder), uninterrupted[method])


@pytest.mark.parametrize(("method", "epochs"), [("grpo", 2), ("sampo", 3)])
def test_a_finished_run_goes_on_to_more_epochs_as_if_it_had_never_ended(
    method: str, epochs: int, small_run: SmallRun, outcome: Read, uninterrupted: dict[str, Outcome]
) -> None:
    folder = f"resume/longer_{method}"
    main(small_run("fit", folder, "--trainer.max_epochs", str(epochs), method=method))
    main(small_run("fit", folder, "--ckpt_path", "last", method=method))
    check_same(outcome(folder), uninterrupted[method])


def test_collapse_warning_remembers_since_when_it_warns(uninterrupted: dict[str, Outcome]) -> None:
    # hardly two in five answers of the small clone are valid, under 0.9, and the first two epochs are without alarm
    state = uninterrupted["sampo"].checkpoint["callbacks"]["CollapseWarning"]
    assert (state["since_epoch"], state["warnings"]) == (2, 2)


def test_resuming_a_run_whose_epochs_are_done_changes_nothing(small_run: SmallRun, outcome: Read) -> None:
    main(small_run("fit", "resume/done", "--trainer.max_epochs", "1"))
    before = outcome("resume/done")
    main(small_run("fit", "resume/done", "--trainer.max_epochs", "1", "--ckpt_path", "last"))
    check_same(outcome("resume/done"), before)


def test_a_checkpoint_never_overrides_the_command_line(small_run: SmallRun, runs: Path, outcome: Read) -> None:
    folder = "resume/override"
    main(small_run("fit", folder, "--trainer.max_epochs", "1"))
    path = runs / folder / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    # what Lightning's own command line would take over and write into config.yaml
    checkpoint["hyper_parameters"] = {
        "_class_path": "arl_lightning.modules.agent_module.AgentModule",
        "gradient_clip": 123.0,
    }
    torch.save(checkpoint, path)
    changed = ("--model.gradient_clip", "0.5", "--model.optimizer.lr", "5e-4", "--model.optimizer.weight_decay", "0")
    main(small_run("fit", folder, *changed, "--ckpt_path", str(path)))
    config = yaml.safe_load((runs / folder / "config.yaml").read_text())
    assert config["model"]["init_args"]["gradient_clip"] == 0.5
    (group,) = outcome(folder).checkpoint["optimizer_states"][0]["param_groups"]
    assert group["weight_decay"] == 0
    assert group["initial_lr"] == 5e-4
    assert group["lr"] == pytest.approx(1e-4)  # 5e-4, after four of four epochs times the schedule's 0.2
