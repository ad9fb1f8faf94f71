"""A run that is told to stop, killed, or out of room loses nothing that it had learned, and says so in one sentence."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from arl_lightning.callbacks.safe_stop import STOPPED
from arl_lightning.cli import main
from tests.cli.test_resume import assert_equal

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CLI_TESTS = Path(__file__).parent
CONFIGS = CLI_TESTS.parents[1] / "configs"
LENGTH = ("--trainer.max_epochs", "3", "--data.minibatches", "3", "--trainer.check_val_every_n_epoch", "2")
TRANSCRIPTS = (
    *("--callbacks.transcripts.every_n_epochs", "1"),
    *("--callbacks.transcripts.groups", "1", "--callbacks.transcripts.members", "1"),
)

Read = Callable[[str], "Outcome"]


def deadly(*sent: int, **options: Any) -> tuple[str, str]:
    return "--trainer.callbacks+", json.dumps(
        {"class_path": "deadly.Deadly", "init_args": {"sent": [int(signum) for signum in sent], **options}}
    )


@pytest.fixture(autouse=True)
def deadly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CLI_TESTS))


@pytest.fixture(scope="module")
def whole(small_run: SmallRun, outcome: Read) -> Outcome:
    """Three epochs of three mini-batches, validated after the second."""
    main(small_run("fit", "survival/whole", *LENGTH, *TRANSCRIPTS))
    return outcome("survival/whole")


def check_same(resumed: Outcome, whole: Outcome) -> None:
    check_learned(resumed, whole)
    assert resumed.metrics == whole.metrics


def check_learned(resumed: Outcome, whole: Outcome) -> None:
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        assert_equal(resumed.checkpoint[part], whole.checkpoint[part], part)


def played(folder: Path) -> list[int]:
    """Epochs of the training rollouts that transcripts tell of."""
    episodes = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    return [episode["epoch"] for episode in episodes if episode["stage"] == "train"]


@pytest.mark.parametrize(
    ("sent", "where", "code", "done"),
    [
        (signal.SIGTERM, "update", 143, 2),  # the fifth step is the second of the second epoch
        pytest.param(signal.SIGINT, "update", 130, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "validation", 143, 3, marks=pytest.mark.slow),
    ],
)
def test_a_run_told_to_stop_inside_an_epoch_goes_on_there_to_the_bit(
    sent: signal.Signals,
    where: str,
    code: int,
    done: int,
    small_run: SmallRun,
    runs: Path,
    outcome: Read,
    whole: Outcome,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = f"survival/{sent.name}_{where}"
    with pytest.raises(SystemExit) as stop:
        main(small_run("fit", folder, *LENGTH, *TRANSCRIPTS, *deadly(sent, where=where)))
    assert stop.value.code == code
    assert f"arl: stopped by {sent.name}; continue with --ckpt_path last\n" in capsys.readouterr().err
    checkpoints = runs / folder / "checkpoints"
    stopped = torch.load(checkpoints / STOPPED, weights_only=True)
    assert (stopped["epoch"], stopped["global_step"]) == (1, 3 + done)
    assert len(stopped["RolloutDataModule"]["batches"]) == 3 - done
    ended = torch.load(checkpoints / "last.ckpt", weights_only=True)  # of the epoch before, as RollBack wants it
    assert (ended["epoch"], ended["RolloutDataModule"]["batches"], ended["epoch_metrics"]) == (0, [], [])
    main(small_run("fit", folder, *LENGTH, *TRANSCRIPTS, "--ckpt_path", "last"))
    check_same(outcome(folder), whole)
    assert played(runs / folder) == [0, 2]  # had the second been played again, it would be told of
    assert [file.name for file in checkpoints.iterdir()] == ["last.ckpt"]


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6])  # inside an epoch, and after its last mini-batch, before its validation
def test_a_checkpoint_of_any_step_goes_on_to_the_bit(
    step: int, small_run: SmallRun, runs: Path, outcome: Read, whole: Outcome
) -> None:
    folder = f"survival/step_{step}"
    writes = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"filename": "{step}", "every_n_train_steps": step, "dirpath": str(runs / folder / "steps")},
    }
    main(small_run("fit", folder, *LENGTH, "--trainer.max_epochs", "2", "--trainer.callbacks+", json.dumps(writes)))
    file = runs / folder / "steps" / f"step={step}.ckpt"
    main(small_run("fit", f"{folder}_resumed", *LENGTH, "--ckpt_path", str(file)))
    resumed = outcome(f"{folder}_resumed")
    check_learned(resumed, whole)
    # steps 3, 6 and 9 end an epoch, which logs under the step before
    expected = {name: [point for point in points if point[0] >= 3] for name, points in whole.metrics.items()}
    assert resumed.metrics == {name: points for name, points in expected.items() if points}


def test_a_run_killed_between_checkpoint_and_log_has_its_epoch_in_the_log(
    small_run: SmallRun, runs: Path, outcome: Read, whole: Outcome
) -> None:
    folder = "survival/unlogged"
    main(small_run("fit", folder, *LENGTH, "--trainer.max_epochs", "1"))
    for file in (runs / folder).glob("events.*"):
        file.unlink()
    main(small_run("fit", folder, *LENGTH, "--ckpt_path", "last"))
    assert outcome(folder).metrics == whole.metrics


def clone_command(folder: Path, *options: str) -> list[str]:
    files = (CONFIGS / "cloning.yaml", CONFIGS / "tasks/sokoban.yaml", CONFIGS / "hardware/cpu.yaml")
    configs = [part for file in (*files, CLI_TESTS / "small_clone.yaml") for part in ("--config", str(file))]
    return ["fit", *configs, "--trainer.default_root_dir", str(folder), *options]


def test_cloning_goes_on_inside_an_epoch_to_the_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(clone_command(tmp_path / "whole"))
    with pytest.raises(SystemExit) as stop:
        main(clone_command(tmp_path / "halves", *deadly(signal.SIGINT, step=13)))
    assert stop.value.code == 130
    assert (tmp_path / "halves" / "checkpoints" / STOPPED).is_file()
    main(clone_command(tmp_path / "halves", "--ckpt_path", "last"))
    parts = ("state_dict", "optimizer_states", "global_step", "epoch", "loops")
    whole, halves = (torch.load(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("whole", "halves"))
    for part in parts:
        assert_equal(halves[part], whole[part], part)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(small_run: SmallRun, runs: Path) -> None:
    words = small_run("fit", "survival/twice", *LENGTH, *deadly(signal.SIGINT, signal.SIGINT))
    ended = subprocess.run(
        [sys.executable, "-m", "arl_lightning", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(CLI_TESTS), str(CLI_TESTS.parents[1])])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert [file.name for file in (runs / "survival/twice/checkpoints").iterdir()] == ["last.ckpt"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB; a checkpoint of the small run has 0.2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("leaves", "sentence"),
    [
        (100_000, "cannot be written: No space left on device; the one before is whole"),  # a checkpoint has 200 kB
        pytest.param(  # nor can transcripts and the log be written
            0, "the run's folder can hold no more, No space left on device: make room", marks=pytest.mark.slow
        ),
    ],
)
def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_goes_on_when_there_is_room(
    leaves: int,
    sentence: str,
    small_disk: Path,
    small_run: SmallRun,
    refusal: Callable[[list[str]], str],
    outcome: Read,
    whole: Outcome,
) -> None:
    fills = ("--trainer.callbacks+", json.dumps({"class_path": "deadly.Glut", "init_args": {"leaves": leaves}}))
    wordy = ("--callbacks.transcripts.every_n_epochs", "1", "--callbacks.transcripts.groups", "4")
    assert sentence in refusal(small_run("fit", str(small_disk), *LENGTH, *wordy, *fills))
    assert sorted(file.name for file in (small_disk / "checkpoints").iterdir()) == ["last.ckpt"]
    (small_disk / "glut").unlink()
    main(small_run("fit", str(small_disk), *LENGTH, "--ckpt_path", "last"))
    check_learned(outcome(str(small_disk)), whole)  # the log has some points twice


@pytest.mark.slow
def test_a_folder_that_can_no_longer_be_written_is_one_sentence(
    small_run: SmallRun, runs: Path, refusal: Callable[[list[str]], str], outcome: Read, whole: Outcome
) -> None:
    folder = "survival/wall"
    walls = ("--trainer.callbacks+", json.dumps({"class_path": "deadly.Wall"}))
    said = refusal(small_run("fit", folder, *LENGTH, *TRANSCRIPTS, *walls))
    assert "last.ckpt' cannot be written: " in said
    assert said.endswith(": mend that, then continue with --ckpt_path last")
    (runs / folder / "checkpoints").unlink()
    (runs / folder / "aside").rename(runs / folder / "checkpoints")
    (runs / folder / "checkpoints" / "last.ckpt.part").touch()  # what a kill in writing leaves
    main(small_run("fit", folder, *LENGTH, "--ckpt_path", "last"))
    check_learned(outcome(folder), whole)
    assert [file.name for file in (runs / folder / "checkpoints").iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("workers", ["null", pytest.param("{processes: 2}", marks=pytest.mark.slow)])
def test_play_that_is_cut_short_leaves_nothing_running(
    workers: str, small_run: SmallRun, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = f"survival/play_{workers[:4]}"
    with pytest.raises(SystemExit) as stop:
        main(small_run("fit", folder, *LENGTH, *deadly(signal.SIGINT, where="play"), "--data.task.workers", workers))
    assert stop.value.code == 130
    assert "arl: stopped by SIGINT; there is nothing to continue from\n" in capsys.readouterr().err
    assert not [child for child in multiprocessing.active_children() if child.name == "arl-env-worker"]
    assert not list((runs / folder).rglob("*.ckpt"))
