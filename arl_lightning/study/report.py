"""What a demo's runs amount to: numbers, a table, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from arl_lightning.study.runs import read_curve, read_metrics
from arl_lightning.types import ArlError

DECODINGS = {"sampled": "test", "t06": "test/t06", "greedy": "test/greedy"}
_TITLES = {"sampled": "sampled, T = 1", "t06": "T = 0.6", "greedy": "greedy"}
_AGENTS = {"before": "cloned", "after": "after SAMPO", "control": "cloned for as long"}
_COLORS = {"before": "#bdbdbd", "after": "#08519c", "control": "#fdae6b"}

Summary = dict[str, dict[str, Any]]


def require_matplotlib() -> None:
    """Raises ArlError when the extra that draws is missing: better before a run than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ArlError("the learning curve needs matplotlib: pip install 'arl-lightning[study]'") from error


def summarize(folder: Path, seconds: dict[str, float]) -> Summary:
    """Success rates by agent and decoding, their 95 % intervals, and seconds by step."""
    summary: Summary = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    for agent in _AGENTS:
        metrics = read_metrics(folder / agent, "test")
        summary[agent] = {name: round(metrics[f"{stage}/success_rate"], 4) for name, stage in DECODINGS.items()}
        intervals[agent] = {
            name: [round(metrics[f"{stage}/success_rate_{end}"], 4) for end in ("low", "high")]
            for name, stage in DECODINGS.items()
        }
    return {**summary, "intervals": intervals, "seconds": dict(seconds)}


def as_table(summary: Summary, test_tasks: int) -> Table:
    """The summary to read."""
    table = Table(title=f"success on {test_tasks} held-out rooms, with 95 % intervals")
    table.add_column("")
    for name in DECODINGS:
        table.add_column(_TITLES[name], justify="right")
    for agent, title in _AGENTS.items():
        ends = summary["intervals"][agent]
        table.add_row(
            title, *(f"{rate:.3f} [{ends[n][0]:.2f}, {ends[n][1]:.2f}]" for n, rate in summary[agent].items())
        )
    return table


def draw_curve(folder: Path, summary: Summary, test_tasks: int) -> None:
    """Leaves `curve.png`: success over the rollouts, and on the test rooms before, after, and of the control."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
    left.plot(*read_curve(folder / "sampo", "train/success_rate"), color="#9ecae1", label="training rooms, as played")
    left.plot(*read_curve(folder / "sampo", "val/success_rate"), "o-", color="#08519c", label="validation rooms")
    left.set(xlabel="rollout", ylabel="success, sampled at T = 1", ylim=(0, 1), title="SAMPO on Sokoban")
    left.legend(loc="lower right", frameon=False)
    for place, agent in enumerate(_AGENTS):
        rates = summary[agent]
        ends = summary["intervals"][agent]
        errors = [[rates[n] - ends[n][0] for n in rates], [ends[n][1] - rates[n] for n in rates]]
        x = [i + 0.27 * (place - 1) for i in range(len(rates))]
        style = {"width": 0.25, "color": _COLORS[agent], "error_kw": {"elinewidth": 0.8}}
        bars = right.bar(x, list(rates.values()), yerr=errors, label=_AGENTS[agent], **style)
        shade = "white" if agent == "after" else "black"
        right.bar_label(bars, fmt="%.2f", fontsize=8, label_type="center", color=shade)
    right.set(ylim=(0, 1.15), title=f"{test_tasks} held-out test rooms")
    right.set_xticks(range(len(DECODINGS)), list(_TITLES.values()))
    right.legend(loc="upper left", frameon=False, ncols=3, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "curve.png", dpi=130)
    plt.close(figure)
