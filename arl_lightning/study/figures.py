"""Pictures of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arl_lightning.envs.extras import load_extra
from arl_lightning.study.results import SUCCESS, VALID, Run
from arl_lightning.study.statistics import Estimate

DIAGNOSTICS = {
    SUCCESS: "success",
    VALID: "valid actions",
    "train/kl_monitor/sinking_ratio": "KL where A<0 and ratio<1, over the rest",
    "train/grad_norm": "gradient norm before clipping",
    "train/entropy": "entropy, nats a token",
}


def draw_curves(runs: Sequence[Run], path: Path) -> None:
    """Success over rollouts, a panel a task: the mean over seeds, and the band from the worst to the best of them."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    figure, axes = _panels(len(tasks), "success in training, sampled")
    for panel, task in zip(axes, tasks, strict=True):
        for color, (method, drawn) in zip(_colors(runs), _by_method(runs, task).items(), strict=True):
            table = _table(drawn, SUCCESS)
            if table.empty:
                continue
            smooth = table.rolling(5, min_periods=1).mean()
            panel.plot(smooth.index, smooth.mean(axis=1), color=color, label=method)
            panel.fill_between(
                smooth.index, smooth.min(axis=1), smooth.max(axis=1), color=color, alpha=0.12, linewidth=0
            )
        panel.set(title=task, xlabel="rollout", ylim=(0, 1))
    axes[0].legend(frameon=False, fontsize=7, ncols=2)
    _save(figure, path)


def draw_results(estimates: Mapping[str, Estimate], title: str, path: Path) -> None:
    """A method a line, best first: its value and its interval."""
    plt = _pyplot()
    order = sorted(estimates, key=lambda method: estimates[method].value)
    figure, axes = plt.subplots(figsize=(6, 0.8 + 0.3 * len(order)), layout="constrained")
    for place, method in enumerate(order):
        value, low, high = estimates[method]
        axes.plot((low, high), (place, place), color="#9ecae1", linewidth=6, solid_capstyle="butt")
        axes.plot(value, place, "|", color="#08306b", markersize=12, markeredgewidth=2)
    axes.set_yticks(range(len(order)), order)
    axes.set(xlabel=title, ylim=(-0.6, len(order) - 0.4))
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def draw_diagnostics(run: Run, path: Path) -> None:
    """What moved when in one run, with a line where it collapsed."""
    shown = {name: title for name, title in DIAGNOSTICS.items() if run.curves.get(name)}
    figure, axes = _panels(len(shown), "")
    for panel, (name, title) in zip(axes, shown.items(), strict=True):
        points = run.curves[name]
        panel.plot(list(points), list(points.values()), color="#08519c")
        panel.axvline(run.numbers["collapsed_at"], color="#cb181d", linewidth=1)
        panel.set(title=title, xlabel="rollout")
        panel.title.set_fontsize(8)
    _save(figure, path)


def _pyplot() -> Any:
    load_extra("matplotlib", extra="study").use("Agg")
    return load_extra("matplotlib.pyplot", extra="study")


def _panels(count: int, label: str) -> tuple[Any, Sequence[Any]]:
    figure, axes = _pyplot().subplots(
        1, count, figsize=(max(7, 3.2 * count), 3.2 if count > 1 else 4.5), layout="constrained", squeeze=False
    )
    axes[0][0].set_ylabel(label)
    for panel in axes[0]:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def _colors(runs: Sequence[Run]) -> Sequence[Any]:
    methods = dict.fromkeys(run.method for run in runs)
    colors = _pyplot().get_cmap("tab20" if len(methods) > 10 else "tab10")
    return [colors(place % colors.N) for place in range(len(methods))]


def _by_method(runs: Sequence[Run], task: str) -> Mapping[str, list[Run]]:
    found: dict[str, list[Run]] = {run.method: [] for run in runs}
    for run in runs:
        if run.task == task:
            found[run.method].append(run)
    return found


def _table(runs: Sequence[Run], name: str) -> Any:
    """Rollouts by runs; a run that has nothing of it yet is left out."""
    return load_extra("pandas", extra="study").DataFrame(
        {run.cell.seed: dict(run.curves[name]) for run in runs if name in run.curves}
    )


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
