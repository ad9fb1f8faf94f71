"""The whole story on a laptop: clone a little, reinforce with SAMPO, compare with cloning for as long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arl_lightning.study.runs import arl_command, finish, read_curve, read_metrics, run, start
from arl_lightning.types import ArlError

CLONING = ("cloning.yaml", "tasks/sokoban.yaml", "hardware/cpu.yaml", "recipes/tiny_sokoban_clone.yaml")
REINFORCEMENT = (
    "base.yaml",
    "methods/sampo_short.yaml",
    "tasks/sokoban.yaml",
    "hardware/cpu.yaml",
    "recipes/tiny_sokoban.yaml",
)
DECODINGS = {"sampled": "test", "t06": "test/t06", "greedy": "test/greedy"}
WHO = {"before": "cloned", "after": "after SAMPO", "control": "cloned for as long"}


def demo(
    output: str = "runs/demo", seed: int = 0, epochs: int = 150, control_epochs: int = 150, test_tasks: int = 512
) -> None:
    """Clones a small agent from few Sokoban demonstrations, trains it by SAMPO, and compares before and after.

    Args:
        output: folder to leave everything in.
        seed: seed of demonstrations, weights and every draw; the held-out rooms stay the same.
        epochs: rollouts of reinforcement.
        control_epochs: epochs of cloning alone that take about as long as the reinforcement.
        test_tasks: held-out rooms.
    """
    console = Console()
    folder = Path(output)
    if (folder / "summary.json").exists():
        raise ArlError(f"{output!r} already holds a finished demo: choose another --output")
    seconds: dict[str, float] = {}
    seeded = f"--seed_everything={seed}"
    tasks = f"--data.test.tasks={test_tasks}"

    @contextmanager
    def timed(name: str, title: str) -> Iterator[None]:
        console.rule(title)
        began = time.perf_counter()
        yield
        seconds[name] = round(time.perf_counter() - began, 1)

    def evaluate(who: str, *source: str) -> None:
        target = f"--trainer.default_root_dir={folder / who}"
        run(arl_command("test", REINFORCEMENT, seeded, tasks, target, *source), folder / who / "log.txt")

    began = time.perf_counter()
    with timed("clone", "1. clone behaviour from 80 demonstrations"):
        run(arl_command("fit", CLONING, seeded, f"--trainer.default_root_dir={folder / 'clone'}"))
    control_log = folder / "control" / "log.txt"
    control = start(
        arl_command(
            "fit",
            CLONING,
            seeded,
            f"--trainer.default_root_dir={folder / 'control'}",
            f"--trainer.max_epochs={control_epochs}",
        ),
        control_log,
    )
    start_model = f"--model.policy.pretrained={folder / 'clone' / 'model'}"
    try:
        with timed("evaluate_before", f"2. play {test_tasks} held-out rooms (cloning alone goes on beside, as the control)"):
            evaluate("before", start_model)
        with timed("reinforce", f"3. SAMPO, {epochs} rollouts of 16 groups x 8 episodes"):
            sampo = (seeded, start_model, f"--trainer.default_root_dir={folder / 'sampo'}", f"--trainer.max_epochs={epochs}")
            run(arl_command("fit", REINFORCEMENT, *sampo))
        with timed("evaluate_after", "4. play the same rooms again"):
            evaluate("after", start_model, f"--ckpt_path={folder / 'sampo' / 'checkpoints' / 'last.ckpt'}")
            finish(control, control_log)
            evaluate("control", f"--model.policy.pretrained={folder / 'control' / 'model'}")
    finally:
        if control.poll() is None:
            control.terminate()
    seconds["total"] = round(time.perf_counter() - began, 1)
    summary = summarize(folder, seconds)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    draw_curve(folder, summary)
    console.print(as_table(summary, test_tasks))
    console.print(
        f"{seconds['total']:.0f} s in all. {folder}: learning curve in curve.png, numbers in summary.json, the model in\n"
        f"sampo/model, episodes in sampo/transcripts.jsonl; `tensorboard --logdir {folder}` shows everything logged."
    )


def summarize(folder: Path, seconds: dict[str, float]) -> dict[str, dict[str, object]]:
    """Success rates by agent and decoding, their 95 % intervals, and seconds by step."""
    summary: dict[str, dict[str, object]] = {}
    intervals: dict[str, object] = {}
    for who in WHO:
        metrics = read_metrics(folder / who, "test")
        summary[who] = {name: round(metrics[f"{stage}/success_rate"], 4) for name, stage in DECODINGS.items()}
        intervals[who] = {
            name: [round(metrics[f"{stage}/success_rate_{end}"], 4) for end in ("low", "high")]
            for name, stage in DECODINGS.items()
        }
    return {**summary, "intervals": intervals, "seconds": dict(seconds)}


def as_table(summary: dict[str, dict[str, object]], test_tasks: int) -> Table:
    """The summary to read."""
    table = Table(title=f"success on {test_tasks} held-out rooms, with 95 % intervals")
    table.add_column("")
    for title in ("sampled, T = 1", "T = 0.6", "greedy"):
        table.add_column(title, justify="right")
    for who, title in WHO.items():
        intervals: dict[str, list[float]] = summary["intervals"][who]  # type: ignore[assignment]
        cells = [f"{summary[who][n]:.3f} [{low:.2f}, {high:.2f}]" for n, (low, high) in intervals.items()]
        table.add_row(title, *cells)
    return table


def draw_curve(folder: Path, summary: dict[str, dict[str, object]]) -> None:
    """Leaves `curve.png`: success over the rollouts, and before and after on held-out rooms."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ArlError("the learning curve needs matplotlib: pip install 'arl-lightning[study]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
    left.plot(*read_curve(folder / "sampo", "train/success_rate"), color="#9ecae1", label="rollouts, sampled")
    left.plot(*read_curve(folder / "sampo", "val/success_rate"), "o-", color="#08519c", label="held-out rooms, sampled")
    left.set(xlabel="rollout", ylabel="success", ylim=(0, 1), title="SAMPO on Sokoban")
    left.legend(loc="lower right", frameon=False)
    for offset, (who, color) in enumerate(zip(WHO, ("#bdbdbd", "#08519c", "#fdae6b"), strict=True)):
        values = [summary[who][name] for name in DECODINGS]
        places = [i + 0.27 * (offset - 1) for i in range(len(values))]
        bars = right.bar(places, values, width=0.25, color=color, label=WHO[who])
        right.bar_label(bars, fmt="%.2f", fontsize=8)
    right.set(xticks=range(3), xticklabels=["T = 1", "T = 0.6", "greedy"], ylim=(0, 1.15), title="512 held-out rooms")
    right.legend(loc="upper left", frameon=False, ncols=3, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "curve.png", dpi=130)
    plt.close(figure)
