"""Running `arl` inside the test's own process, and reading what a run left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from arl_lightning.cli import main

CLI_TESTS = Path(__file__).parent
CONFIGS = CLI_TESTS.parents[1] / "configs"


class SmallRun(Protocol):
    """Gives the command line of a small run into `folder` of the session's runs; later options win."""

    def __call__(self, verb: str, folder: str, *options: str, method: str = "sampo") -> list[str]: ...


@dataclass(frozen=True)
class Outcome:
    """What a run left: its last checkpoint, and its metrics by name as (step, value), time and memory left out."""

    checkpoint: Mapping[str, Any]
    metrics: Mapping[str, list[tuple[int, float]]]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Trained weights by name."""
        weights: dict[str, Tensor] = self.checkpoint["state_dict"]
        return weights


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all runs of the session."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def small_run(runs: Path, tiny_clone: Path) -> SmallRun:
    def command(verb: str, folder: str, *options: str, method: str = "sampo") -> list[str]:
        overlays = ("base.yaml", f"methods/{method}.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml")
        configs = [*(CONFIGS / name for name in overlays), CLI_TESTS / "small.yaml"]
        places = ["--model.policy.pretrained", str(tiny_clone), "--trainer.default_root_dir", str(runs / folder)]
        return [verb, *(part for config in configs for part in ("--config", str(config))), *places, *options]

    return command


@pytest.fixture(scope="session")
def outcome(runs: Path) -> Callable[[str], Outcome]:
    """Reads what the run in a folder left."""

    def read(folder: str) -> Outcome:
        checkpoint = torch.load(runs / folder / "checkpoints" / "last.ckpt", weights_only=True)
        events = EventAccumulator(str(runs / folder)).Reload()
        timeless = [
            name for name in events.Tags()["scalars"] if not name.startswith(("time/", "throughput/", "memory/"))
        ]
        metrics = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in timeless}
        return Outcome(checkpoint, metrics)

    return read


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """Runs a command that must fail with one sentence on stderr, and gives the sentence."""

    def run(command: list[str]) -> str:
        with pytest.raises(SystemExit) as stop:
            main(command)
        written = capsys.readouterr().err
        sentences = [line for line in written.splitlines() if line.startswith("arl: ")]
        assert stop.value.code == 1
        assert len(sentences) == 1
        assert written.endswith(f"{sentences[0]}\n")
        assert "Traceback" not in written
        return sentences[0].removeprefix("arl: ")

    return run


@pytest.fixture
def parsed(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], dict[str, Any]]:
    """The configuration that a command line makes, without running it."""

    def parse(command: list[str]) -> dict[str, Any]:
        with pytest.raises(SystemExit) as stop:
            main([*command, "--print_config"])
        assert stop.value.code == 0
        config: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return config

    return parse
