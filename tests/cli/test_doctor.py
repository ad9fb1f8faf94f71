"""`arl doctor` takes the options of `fit`, says what it found to people and programs, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import SmallRun

CONFIGS = Path(__file__).parents[2] / "configs"
STILL = ("--model.optimizer.lr", "0")
Read = Callable[[list[str]], dict[str, Any]]


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Runs a command and reads the object on its last line."""

    def run(command: list[str]) -> dict[str, Any]:
        main(command)
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return run


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in found["findings"]}


@pytest.mark.parametrize("options", [(), ("--model.policy.lora.r", "4")])
def test_a_healthy_run_is_found_healthy(options: tuple[str, ...], small_run: SmallRun, runs: Path, read: Read) -> None:
    found = read(small_run("doctor", "doctor/healthy", *options, "--json"))
    assert found["failed"] is False
    assert set(verdicts(found).values()) == {"ok", "not applicable"}
    assert found["memory"]["available_bytes"] > found["memory"]["update_bytes"] > found["memory"]["always_bytes"]
    assert not (runs / "doctor" / "healthy").exists()


def test_a_failure_is_told_with_its_remedy_and_exit_code_1(
    small_run: SmallRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(small_run("doctor", "doctor/still", *STILL, "--json", "true"))
    assert stop.value.code == 1
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert found["failed"] is True
    (broken,) = (finding for finding in found["findings"] if finding["verdict"] == "failure")
    assert broken["check"] == "one step"
    assert "model.optimizer.lr" in broken["remedy"]
    assert printed.index("memory plan for cpu") < printed.index("arl doctor")


def test_a_model_that_is_not_there_is_a_finding(small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(small_run("doctor", "doctor/none", "--model.policy.pretrained", "runs/no/model", "--json"))
    assert stop.value.code == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert verdicts(found)["loading"] == "failure"
    assert verdicts(found)["environment contract"] == "ok"
    assert found["memory"] is None


def test_cloning_is_examined_too(runs: Path, read: Read) -> None:
    overlays = ("cloning.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml")
    configs = [*(CONFIGS / name for name in overlays), Path(__file__).parent / "small_clone.yaml"]
    options = [part for config in configs for part in ("--config", str(config))]
    found = read(["doctor", *options, "--trainer.default_root_dir", str(runs / "doctor" / "clone"), "--json"])
    assert found["failed"] is False
    assert verdicts(found) == {
        "memory": "ok",
        "environment contract": "ok",
        "trainable parameters": "ok",
        "stop tokens": "ok",
        "template prefix": "not applicable",
        "answers": "not applicable",
        "mask round trip": "not applicable",
        "neutral sampling": "not applicable",
        "sampler against trainer": "not applicable",
        "KL at step 0": "not applicable",
        "one step": "ok",
    }


def test_a_runs_own_configuration_can_be_examined(small_run: SmallRun, runs: Path, read: Read) -> None:
    main(small_run("fit", "doctor/whole", "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0"))
    found = read(["doctor", "--config", str(runs / "doctor" / "whole" / "config.yaml"), "--json"])
    assert found["failed"] is False
