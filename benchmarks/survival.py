"""Kill -9 at random moments, and whether what is resumed ends as if nothing had happened.

A run of a tiny model is killed by SIGKILL at moments drawn by seed from all of its Python calls, so many of each phase:
playing, updating, writing a checkpoint, validating, and in between. Each killed run is resumed by `--ckpt_path last` to
its end; then one run is killed again and again until it gets through. Weights, optimiser, schedule and every logged
scalar but times must equal the uninterrupted run's to the bit. Every second run also writes a checkpoint each step.

    OMP_NUM_THREADS=1 python benchmarks/survival.py
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.checkpoint_io import PART, AtomicCheckpointIO
from arl_lightning.cli import main
from arl_lightning.datamodules.held_out import HeldOutLoader
from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
from arl_lightning.modules.agent_module import AgentModule

REPOSITORY = Path(__file__).parents[1]
CLONING = ("configs/cloning.yaml", "configs/tasks/sokoban.yaml", "configs/hardware/cpu.yaml")
REINFORCEMENT = (
    "configs/base.yaml",
    "configs/methods/sampo.yaml",
    "configs/tasks/sokoban.yaml",
    "configs/hardware/cpu.yaml",
    "tests/cli/small.yaml",
)
PHASES: dict[CodeType, str] = {
    RolloutDataModule.play_epoch.__code__: "play",
    AgentModule.training_step.__code__: "update",
    AtomicCheckpointIO.save_checkpoint.__code__: "checkpoint",
    HeldOutLoader.__iter__.__code__: "validation",
}
WANTED = {"play": 6, "update": 5, "checkpoint": 5, "validation": 2, "between": 2}
STEPWISE = (
    "--trainer.callbacks+",
    "{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {filename: last-step, save_top_k: 1, "
    "every_n_train_steps: 1, enable_version_counter: false}}",
)


@dataclass
class Calls:
    """Counts a run's calls from its first play on; notes where phases change, or kills at one call."""

    note: Path
    kill_at: int | None = None
    count: int = -1
    changes: list[tuple[int, str]] = field(default_factory=list)

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        phase = PHASES.get(frame.f_code) if event in ("call", "return") else None
        if self.count < 0 and phase != "play":
            return
        self.count += 1
        if phase is not None and self.kill_at is None:
            self.changes.append((self.count, phase if event == "call" else "between"))
        if self.count == self.kill_at:
            self.note.write_text(_phase(frame))
            os.kill(os.getpid(), signal.SIGKILL)


def _phase(frame: FrameType | None) -> str:
    while frame is not None:
        if frame.f_code in PHASES:
            return PHASES[frame.f_code]
        frame = frame.f_back
    return "between"


def run(words: Sequence[str], log: Path, calls: Calls | None = None) -> int:
    """The exit status of `arl` in a child that need not import anything again; minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        with log.open("a") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        if calls is not None:
            sys.setprofile(calls.profile)
        code = 0
        try:
            main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        sys.setprofile(None)
        if calls is not None and calls.kill_at is None:
            calls.note.write_text(
                "\n".join(f"{count} {phase}" for count, phase in [*calls.changes, (calls.count, "end")])
            )
        sys.stdout.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(verb: str, files: Sequence[str], folder: Path, *options: str) -> list[str]:
    configs = [part for file in files for part in ("--config", str(REPOSITORY / file))]
    return [verb, *configs, "--trainer.default_root_dir", str(folder), *options]


def left(folder: Path) -> tuple[dict[str, Any], dict[str, list[tuple[int, float]]]]:
    """The last checkpoint's learned parts, and every scalar but times; a point logged twice alike counts once."""
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "epoch")
    events = EventAccumulator(str(folder)).Reload()
    names = [n for n in events.Tags()["scalars"] if not n.startswith(("time/", "throughput/", "memory/"))]
    scalars = {name: sorted({(point.step, point.value) for point in events.Scalars(name)}) for name in names}
    return {part: checkpoint[part] for part in parts}, scalars


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def newest(folder: Path) -> str:
    """The checkpoint that a resume takes, its epoch and step."""
    files = sorted((folder / "checkpoints").glob("last*.ckpt"), key=lambda file: file.stat().st_mtime)
    if not files:
        return "the start"
    checkpoint = torch.load(files[-1], weights_only=True)
    inside = "inside" if checkpoint["RolloutDataModule"]["batches"] or checkpoint["epoch_metrics"] else "end of"
    return f"{inside} epoch {checkpoint['epoch']}, step {checkpoint['global_step']}"


def moments(changes: Sequence[tuple[int, str]], rng: random.Random) -> list[int]:
    """Calls at which to kill, as many of each phase as wanted, each phase's evenly over its calls."""
    chosen: list[int] = []
    for phase, wanted in WANTED.items():
        spans = [
            range(start, end)
            for (start, what), (end, _) in itertools.pairwise(changes)
            if what == phase and end > start
        ]
        chosen += [rng.choice(span) for span in rng.choices(spans, weights=[len(s) for s in spans], k=wanted)]
    return chosen


def resume(words: Sequence[str], folder: Path, log: Path, calls: Calls | None = None) -> int:
    """`last` if there is one, else from the start; that no stray part is left is checked at the end."""
    there = any((folder / "checkpoints").glob("last*.ckpt"))
    return run([*words, "--ckpt_path", "last"] if there else words, log, calls)


def verdict(folder: Path, whole: tuple[dict[str, Any], dict[str, list[tuple[int, float]]]]) -> str:
    learned, scalars = left(folder)
    wrong = [part for part in whole[0] if not same(learned[part], whole[0][part])]
    missing = sorted(name for name in whole[1] if scalars.get(name) != whole[1][name])
    strays = [file.name for file in (folder / "checkpoints").glob(f"*{PART}")]
    return "yes" if not (wrong or missing or strays) else f"NO: {wrong} {len(missing)} scalars {missing[:3]} {strays}"


def survive(root: Path, seed: int, epochs: int) -> int:
    log, rng, faults = root / "log.txt", random.Random(seed), 0
    assert run(command("fit", (*CLONING, "tests/cli/small_clone.yaml"), root / "clone"), log) == 0
    options = ("--model.policy.pretrained", str(root / "clone" / "model"), "--data.minibatches", "3")
    options = (*options, "--trainer.max_epochs", str(epochs))
    counted = Calls(root / "calls.txt")
    assert run(command("fit", REINFORCEMENT, root / "whole", *options), log, counted) == 0
    changes = [(int(c), p) for c, p in (line.split() for line in counted.note.read_text().splitlines())]
    whole = left(root / "whole")
    print(f"uninterrupted: {changes[-1][0]} calls, {len(whole[1])} scalars, {whole[0]['global_step']} steps\n")
    print("| # | killed at call | in | resumed from | equal |\n|---|---|---|---|---|", flush=True)
    for number, moment in enumerate(moments(changes, rng), 1):
        folder = root / f"kill_{number}"
        stepwise = STEPWISE if number % 2 == 0 else ()
        words, calls = command("fit", REINFORCEMENT, folder, *options, *stepwise), Calls(root / "note.txt", moment)
        calls.note.unlink(missing_ok=True)
        code = run(words, log, calls)
        phase = calls.note.read_text() if code == -signal.SIGKILL else f"not killed ({code})"
        begun, code = newest(folder), resume(words, folder, log)
        equal = verdict(folder, whole) if code == 0 else f"NO: exit code {code}"
        faults += equal != "yes" or not phase
        print(f"| {number} | {moment} | {phase} | {begun} | {equal} |", flush=True)
        shutil.rmtree(folder)
    folder, words = root / "often", command("fit", REINFORCEMENT, root / "often", *options, *STEPWISE)
    kills, code = 0, -9
    while code == -signal.SIGKILL:
        code = resume(words, folder, log, Calls(root / "note.txt", rng.randrange(changes[-1][0] // epochs)))
        kills += code == -signal.SIGKILL
    equal = verdict(folder, whole) if code == 0 else f"NO: exit code {code}"
    print(f"\none run killed {kills} times, resumed each time: equal {equal}")
    return faults + (equal != "yes")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--epochs", type=int, default=4)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bool(survive(Path(folder), chosen.seed, chosen.epochs)))
