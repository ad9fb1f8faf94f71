"""Success of several methods from the same cloned start under the same number of rollouts, seed by seed.

    python benchmarks/methods_from_one_start.py --methods '[grpo, sampo_short]' --seeds '[0, 1, 2]' --jobs 2

Prints one table; a run that has its numbers already is not repeated.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table

from arl_lightning.study.demo import CLONING, REINFORCEMENT
from arl_lightning.study.report import DECODINGS
from arl_lightning.study.runs import arl_command, read_curve, read_metrics, read_minutes, run


def compare(
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    epochs: int = 120,
    jobs: int = 1,
    output: str = "runs/methods",
) -> None:
    """Trains and tests every method from every seed's clone.

    Args:
        methods: names of files in configs/methods.
        seeds: seeds of clone and training.
        epochs: rollouts of each run.
        jobs: runs at a time, one thread each.
        output: folder to leave everything in.
    """
    methods, seeds = methods or ["grpo", "sampo_short"], seeds or [0, 1, 2]
    folder = Path(output)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda seed: clone(folder / f"seed{seed}", seed), seeds))
        cells = [(method, seed) for seed in seeds for method in methods]
        results = list(pool.map(lambda cell: train(folder / f"seed{cell[1]}", *cell, epochs), cells))
    by_cell = dict(zip(cells, results, strict=True))
    table = Table(title=f"success on held-out rooms after {epochs} rollouts: sampled / T = 0.6 / greedy")
    for column in ("method", *(f"seed {seed}" for seed in seeds), "mean", "least valid ratio", "minutes"):
        table.add_column(column)
    for method in methods:
        rows = [by_cell[method, seed] for seed in seeds]
        shown = [" / ".join(f"{row[name]:.3f}" for name in DECODINGS) for row in rows]
        means = " / ".join(f"{statistics.mean(row[name] for row in rows):.3f}" for name in DECODINGS)
        least = min(row["least_valid"] for row in rows)
        minutes = " ".join(f"{row['minutes']:.1f}" for row in rows)
        table.add_row(method, *shown, means, f"{least:.2f}", minutes)
    Console(width=150).print(table)


def clone(folder: Path, seed: int) -> None:
    """The start of one seed, unless it is there."""
    if not (folder / "clone" / "model").exists():
        target = f"--trainer.default_root_dir={folder / 'clone'}"
        run(
            arl_command("fit", CLONING, f"--seed_everything={seed}", f"--model.policy.seed={seed}", target),
            folder / "clone.log",
        )


def train(folder: Path, method: str, seed: int, epochs: int) -> dict[str, float]:
    """One method from that start: its success rates, its least valid ratio in a rollout, and its minutes."""
    configs = [f"methods/{method}.yaml" if name.startswith("methods/") else name for name in REINFORCEMENT]
    start = (f"--seed_everything={seed}", f"--model.policy.pretrained={folder / 'clone' / 'model'}")
    target = folder / method
    if not (target / "model").exists():
        length = (f"--trainer.max_epochs={epochs}", f"--model.lr_scheduler.total_iters={epochs}")
        where = f"--trainer.default_root_dir={target}"
        run(arl_command("fit", configs, *start, where, *length), folder / f"{method}.log")
    tested = folder / f"{method}_test"
    if not (tested / "test.json").exists():
        checkpoint = f"--ckpt_path={target / 'checkpoints' / 'last.ckpt'}"
        run(
            arl_command("test", configs, *start, checkpoint, f"--trainer.default_root_dir={tested}"),
            folder / "test.log",
        )
    metrics = read_metrics(tested, "test")
    _, valid = read_curve(target, "train/valid_ratio")
    rates = {name: metrics[f"{stage}/success_rate"] for name, stage in DECODINGS.items()}
    return {**rates, "least_valid": min(valid), "minutes": read_minutes(target)}


if __name__ == "__main__":
    auto_cli(compare)
