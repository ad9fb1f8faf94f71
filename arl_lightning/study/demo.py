"""The whole story on a laptop: clone a little, reinforce with SAMPO, compare with cloning for as long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from arl_lightning.study.report import as_table, draw_curve, require_matplotlib, summarize
from arl_lightning.study.runs import arl_command, finish, read_minutes, run, start
from arl_lightning.types import ArlError

CLONING = ("cloning.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml", "recipes/tiny_sokoban_clone.yaml")
REINFORCEMENT = (
    "base.yaml",
    "methods/sampo_short.yaml",
    "tasks/sokoban.yaml",
    "hardware/cpu.yaml",
    "recipes/tiny_sokoban.yaml",
)


def demo(
    output: str = "runs/demo", seed: int = 0, epochs: int = 120, control_epochs: int = 200, test_tasks: int = 512
) -> None:
    """Clones a small agent from few Sokoban demonstrations, trains it by SAMPO, and compares before and after.

    Args:
        output: folder to leave everything in.
        seed: seed of the first weights, the demonstrations and every draw; the held-out rooms stay the same.
        epochs: rollouts of reinforcement.
        control_epochs: epochs of cloning alone, which take about as long as the reinforcement.
        test_tasks: held-out rooms.
    """
    folder = Path(output)
    if folder.exists() and any(folder.iterdir()):
        raise ArlError(f"{output!r} is not empty: choose another --output, or remove it")
    require_matplotlib()
    console = Console()
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str, title: str) -> Iterator[None]:
        console.rule(title)
        began = time.perf_counter()
        yield
        seconds[name] = round(time.perf_counter() - began, 1)

    def command(verb: str, configs: tuple[str, ...], name: str, *options: str) -> list[str]:
        common = (f"--seed_everything={seed}", f"--trainer.default_root_dir={folder / name}")
        return arl_command(verb, configs, *common, *options)

    def evaluate(name: str, *source: str) -> None:
        tasks = f"--data.test.tasks={test_tasks}"
        run(command("test", REINFORCEMENT, name, tasks, *source), log=folder / name / "log.txt")

    began = time.perf_counter()
    weights = f"--model.policy.seed={seed}"
    with step("clone", "1. clone behaviour from a few demonstrations"):
        run(command("fit", CLONING, "clone", weights))
    cloned = f"--model.policy.pretrained={folder / 'clone' / 'model'}"
    control_log = folder / "control_log.txt"
    control = start(
        command("fit", CLONING, "control", weights, f"--trainer.max_epochs={control_epochs}"), log=control_log
    )
    try:
        with step("evaluate_before", f"2. play {test_tasks} held-out rooms (the control goes on cloning beside)"):
            evaluate("before", cloned)
        with step("reinforce", f"3. SAMPO, {epochs} rollouts"):
            length = (f"--trainer.max_epochs={epochs}", f"--model.lr_scheduler.total_iters={epochs}")
            run(command("fit", REINFORCEMENT, "sampo", cloned, *length))
        with step("evaluate_after", "4. play the same rooms again, and with the control"):
            evaluate("after", cloned, f"--ckpt_path={folder / 'sampo' / 'checkpoints' / 'last.ckpt'}")
            finish(control, log=control_log)
            evaluate("control", f"--model.policy.pretrained={folder / 'control' / 'model'}")
    finally:
        control.terminate()
    seconds["control"] = round(60 * read_minutes(folder / "control"), 1)
    seconds["total"] = round(time.perf_counter() - began, 1)
    summary = summarize(folder, seconds)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw_curve(folder, summary, test_tasks)
    console.print(as_table(summary, test_tasks))
    console.print(
        f"{seconds['total']:.0f} s in all; SAMPO took {seconds['reinforce']:.0f} s, the control cloned for "
        f"{seconds['control']:.0f} s. In {folder}: curve.png, summary.json, the model in sampo/model, episodes in "
        f"sampo/transcripts.jsonl; `tensorboard --logdir {folder}` shows all that was logged."
    )
