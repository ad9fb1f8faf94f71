"""Short runs on the tiny Sokoban model, of which some collapse, kept as one small file of their numbers by epoch.

    python benchmarks/collapse/run.py --jobs 2
    python benchmarks/collapse/run.py --rescue true

Every run is an `arl fit` of its own with one thread, in a process forked after the imports, which cost a quarter of a
run. A run that has its numbers already is not repeated.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from jsonargparse import auto_cli
from records import HERE, Configuration, Fate, Record, read_records, write_records

from arl_lightning.cli import main
from arl_lightning.study.demo import CLONING, REINFORCEMENT
from arl_lightning.study.runs import arl_command, read_curve, read_log, read_minutes

ROOT = HERE.parents[1]
CLONE_EPOCHS = {"weak": 4, "full": 8}
"""Epochs of imitation of each start."""
SHORT_BAND = ("--model.objective.surrogate.low=0.03", "--model.objective.surrogate.high=0.04")
"""GSPO's band for answers of a few tokens, as in sampo_short.yaml."""
SHORT_MASK = ("--model.objective.mask.delta=0.03",)
CONFIGURATIONS = (
    Configuration("sapo", "full", 3e-4),
    Configuration("sapo", "weak", 3e-4),
    Configuration("grpo", "full", 3e-4),
    Configuration("cispo", "full", 3e-4),
    Configuration("cispo", "weak", 3e-4),
    Configuration("grpo", "weak", 3e-4),
    Configuration("sampo_short", "full", 2e-4),
    Configuration("gigpo", "full", 2e-4),
    Configuration("sapo", "full", 6e-4),
    Configuration("gspo", "full", 2e-4, overrides=SHORT_BAND),
    Configuration("sampo_short", "weak", 2e-4),
    Configuration("cispo", "full", 6e-4),
    Configuration("grpo", "full", 1e-4),
    Configuration("gspo", "weak", 2e-4, overrides=SHORT_BAND),
    Configuration("sapo", "full", 2e-4, minibatches=16),
    Configuration("cispo", "full", 1e-4),
    Configuration("gigpo", "weak", 2e-4),
    Configuration("sampo_short", "full", 4e-4),
    Configuration("cispo", "full", 3e-4, minibatches=16),
    Configuration("sapo_sm", "full", 3e-4, overrides=SHORT_MASK),
)
"""In the order of play."""
KEPT = ("train/", "collapse/", "val/success_rate")
DROPPED = ("train/denominator", "train/kl_monitor", "train/advantage/max", "train/skipped", "train/error")


def play(
    output: str = "runs/collapse", seeds: Sequence[int] = (0, 1), jobs: int = 1, epochs: int = 30, rescue: bool = False
) -> None:
    """Plays what is missing, and writes runs.jsonl.gz, or rescued.jsonl.gz.

    Args:
        output: folder to leave everything in.
        seeds: seeds of clone and training.
        jobs: runs at a time, one thread each.
        epochs: rollouts of each run.
        rescue: play the collapsed runs of the reporting split again with `configs/guards/rescue.yaml`.
    """
    folder = Path(output)
    chosen = [(index, seed) for seed in seeds for index in range(len(CONFIGURATIONS))]
    if rescue:
        played = [run for run in read_records(HERE / "runs.jsonl.gz") if run.split == "report"]
        dead = {run.name for run in played if run.fate()[0] is Fate.COLLAPSED}
        chosen = [(index, seed) for index, seed in chosen if CONFIGURATIONS[index].name(seed) in dead]
    for name in ("transformers.models.qwen3.modeling_qwen3", "torch.utils.tensorboard", "arl_lightning.modules.masks"):
        importlib.import_module(name)
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        starts = sorted({(CONFIGURATIONS[index].start, seed) for index, seed in chosen})
        pool.starmap(partial(clone, folder), starts, chunksize=1)
        cells = [(index, seed, epochs, rescue) for index, seed in chosen]
        records = pool.starmap(partial(train, folder), cells, chunksize=1)
    write_records(records, HERE / ("rescued.jsonl.gz" if rescue else "runs.jsonl.gz"))


def clone(folder: Path, start: str, seed: int) -> None:
    """One start, unless it is there."""
    target = folder / f"{start}{seed}"
    if not (target / "model").exists():
        words = (f"--seed_everything={seed}", f"--model.policy.seed={seed}")
        length = f"--trainer.max_epochs={CLONE_EPOCHS[start]}"
        where = f"--trainer.default_root_dir={target}"
        fit(arl_command("fit", CLONING, *words, length, where), folder / f"{target.name}.log")


def train(folder: Path, index: int, seed: int, epochs: int, rescue: bool) -> Record:
    """One run's numbers, played unless they are there."""
    configuration = CONFIGURATIONS[index]
    name, start = configuration.name(seed), f"{configuration.start}{seed}"
    target = folder / ("rescued" if rescue else "plain") / name
    kept = target / "record.json"
    if kept.exists():
        return Record(**json.loads(kept.read_text()))
    shutil.rmtree(target, ignore_errors=True)  # what an interrupted run has left
    method = f"methods/{configuration.method}.yaml"
    configs = [method if given.startswith("methods/") else given for given in REINFORCEMENT]
    configs += [str(HERE / "short.yaml"), *(["guards/rescue.yaml"] if rescue else [])]
    command = arl_command(
        "fit",
        configs,
        f"--seed_everything={seed}",
        f"--model.policy.pretrained={folder / start / 'model'}",
        f"--model.optimizer.lr={configuration.rate:g}",
        f"--data.minibatches={configuration.minibatches}",
        f"--trainer.max_epochs={epochs}",
        *configuration.overrides,
        f"--trainer.default_root_dir={target}",
    )
    fit(command, folder / "logs" / f"{target.parent.name}_{name}.log")
    record = Record(
        name,
        start,
        # a checkerboard: both splits hold every configuration, with another clone and another seed
        "fit" if (index + seed) % 2 == 0 else "report",
        _shown(command, folder),
        round(read_minutes(target), 2),
        _curves(target, epochs),
    )
    kept.write_text(json.dumps(asdict(record)))
    return record


def fit(command: Sequence[str], log: Path) -> None:
    """Runs the command in this process, and everything that it says goes to the log."""
    torch.set_num_threads(1)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        main(command[command.index("fit") :])
    except SystemExit as refused:  # which a pool would wait for without end
        raise RuntimeError(f"{log} says why the run failed") from refused


def _curves(folder: Path, epochs: int) -> dict[str, list[float | None]]:
    """All that the warning can look at, by epoch."""
    curves: dict[str, list[float | None]] = {}
    for name in read_log(folder).Tags()["scalars"]:
        if name.startswith(KEPT) and not name.startswith(DROPPED):
            by_epoch = dict(zip(*read_curve(folder, name), strict=True))
            curves[name] = [_short(by_epoch.get(epoch)) for epoch in range(1, epochs + 1)]
    return curves


def _short(value: float | None) -> float | None:
    """Six digits: what is read off a curve needs no more."""
    return None if value is None else float(f"{value:.6g}")


def _shown(command: Sequence[str], folder: Path) -> str:
    """The command as it is typed at the root of the repository, with the usual folder."""
    words = " ".join(["arl", *command[command.index("fit") :]])
    return words.replace(f"{ROOT}/", "").replace(str(folder), "runs/collapse")


if __name__ == "__main__":
    auto_cli(play)
