"""How well CollapseWarning foresees the recorded collapses, judged on runs that its thresholds were not chosen by.

    python benchmarks/collapse/report.py
    python benchmarks/collapse/report.py --fit true

Every recorded epoch is given to the callback itself. Writes report.json and the plots; `--fit` instead searches
thresholds on the fitting split and prints what it finds, to be written into the defaults by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import sqrt
from statistics import median
from typing import Any

from jsonargparse import auto_cli
from records import FINAL, HERE, SMOOTHING, Fate, Record, read_records, smoothed
from rich.console import Console
from rich.table import Table

from arl_lightning.callbacks.collapse_warning import CollapseWarning
from arl_lightning.functional.detection import USUAL_CHANGES, Change
from arl_lightning.functional.health import Level

DEFINITION = (
    f"A run is halved in the first epoch in which held-out success or valid ratio, as mean of {SMOOTHING} epochs, is "
    f"below half of its best so far. It has recovered when the mean of its last {FINAL} epochs is at least two thirds "
    "of that best, else it has collapsed; a run that is never halved is healthy. A collapse is recalled when the first "
    "danger comes no later than the halving; the lead is the epochs in between. A false alarm is any danger in a "
    "healthy run. Recovered runs count as neither and are listed."
)
WITHIN = 0.05
"""How near to the best healthy run of its start a rescued run must end."""
QUIET = 0.02
"""Share of healthy epochs that a sign may speak in."""


@dataclass(frozen=True)
class Outcome:
    """What the warning said of a run.

    Args:
        run: the run.
        fate: how the run ended.
        halved_in: the epoch in which it was halved; None in a healthy run.
        first: the first epoch of watch and of danger, None when there was none.
        levels: the state after each epoch.
        named: the signs of the first danger.
        signs: names of each epoch's signs.
    """

    run: Record
    fate: Fate
    halved_in: int | None
    first: Mapping[Level, int | None]
    levels: Sequence[Level]
    named: Sequence[str]
    signs: Sequence[Sequence[str]]

    def lead(self, level: Level = Level.DANGER) -> int | None:
        """Epochs from the first alarm to the collapse; None when it came too late, or never."""
        first = self.first[level]
        if self.halved_in is None or first is None or first > self.halved_in:
            return None
        return self.halved_in - first


def replay(run: Record, **knobs: Any) -> Outcome:
    """The run as the callback sees it, epoch by epoch."""
    warning = CollapseWarning(**knobs)
    levels, signs = [], []
    for epoch, values in enumerate(run.epochs()):
        warning.judge(epoch, values)
        levels.append(warning.course.level)
        signs.append([sign.name for sign in warning.signs])
    first = {
        level: next((epoch for epoch, now in enumerate(levels) if now >= level), None)
        for level in (Level.WATCH, Level.DANGER)
    }
    danger = first[Level.DANGER]
    return Outcome(run, *run.fate(), first, levels, [] if danger is None else signs[danger], signs)


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Recall, leads and false alarms of some runs."""
    dying = [outcome for outcome in outcomes if outcome.fate is Fate.COLLAPSED]
    healthy = [outcome for outcome in outcomes if outcome.fate is Fate.HEALTHY]
    leads = sorted(lead for outcome in dying if (lead := outcome.lead()) is not None)
    early = sorted(lead for outcome in dying if (lead := outcome.lead(Level.WATCH)) is not None)
    alarms = [outcome for outcome in healthy if outcome.first[Level.DANGER] is not None]
    return {
        "runs": len(outcomes),
        "collapsing": len(dying),
        "healthy": len(healthy),
        "recalled": len(leads),
        "recall": _share(len(leads), len(dying)),
        "recall_interval": wilson(len(leads), len(dying)),
        "leads": leads,
        "median_lead": median(leads) if leads else None,
        "leads_of_watch": early,
        "median_lead_of_watch": median(early) if early else None,
        "missed": [outcome.run.name for outcome in dying if outcome.lead() is None],
        "false_alarms": len(alarms),
        "false_alarm_rate": _share(len(alarms), len(healthy)),
        "false_alarm_interval": wilson(len(alarms), len(healthy)),
        "false_alarms_in": {outcome.run.name: list(outcome.named) for outcome in alarms},
        "recovered": {
            outcome.run.name: {"halved_in": outcome.halved_in, "danger": outcome.first[Level.DANGER]}
            for outcome in outcomes
            if outcome.fate is Fate.RECOVERED
        },
        "healthy_epochs_in_watch": _share(
            sum(level is Level.WATCH for outcome in healthy for level in outcome.levels),
            sum(len(outcome.levels) for outcome in healthy),
        ),
    }


def wilson(hits: int, trials: int) -> list[float] | None:
    """The 95 % interval of a share."""
    if not trials:
        return None
    z = 1.96
    middle, spread = (hits + z * z / 2) / (trials + z * z), z * sqrt(hits * (trials - hits) / trials + z * z / 4)
    return [round(middle - spread / (trials + z * z), 3), round(middle + spread / (trials + z * z), 3)]


def by_sign(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float | None]]:
    """Of each sign: the share of collapses that it came no later than, and its epochs in 100 of healthy runs."""
    dying = [outcome for outcome in outcomes if outcome.fate is Fate.COLLAPSED]
    healthy = [outcome for outcome in outcomes if outcome.fate is Fate.HEALTHY]
    spoke: Counter[str] = Counter()
    for outcome in dying:
        assert outcome.halved_in is not None
        spoke.update({name for names in outcome.signs[: outcome.halved_in + 1] for name in names})
    noise = Counter(name for outcome in healthy for names in outcome.signs for name in names)
    epochs = sum(len(outcome.signs) for outcome in healthy)
    return {
        name: {
            "collapses": _share(spoke[name], len(dying)),
            "per_100_healthy_epochs": _share(100 * noise[name], epochs),
        }
        for name in sorted({*spoke, *noise})
    }


def rescue_figures(plain: Sequence[Record], rescued: Sequence[Record]) -> dict[str, Any]:
    """How rescued runs end, beside the same runs without rescue and the best healthy run of the same start."""
    rows = []
    for run in rescued:
        before = next(other for other in plain if other.name == run.name)
        peers = [other for other in plain if other.start == run.start and other.fate()[0] is Fate.HEALTHY]
        best = max((other.final_success() for other in peers), default=None)
        rows.append(
            {
                "name": run.name,
                "first_epoch": run.curve("val/success_rate")[0],
                "plain": round(before.final_success(), 3),
                "rescued": round(run.final_success(), 3),
                "best_healthy": None if best is None else round(best, 3),
                "actions": round(run.curve("collapse/actions")[-1]),
                "fate": run.fate()[0].name.lower(),
            }
        )
    near = sum(row["best_healthy"] is not None and row["rescued"] >= row["best_healthy"] - WITHIN for row in rows)
    return {
        "runs": len(rows),
        "within_5_points": near,
        "share_within_5_points": _share(near, len(rows)),
        "alive": sum(row["fate"] != "collapsed" for row in rows),
        "rows": rows,
    }


def disagreements(rescued: Sequence[Record]) -> list[str]:
    """Rescued runs whose own logged level differs from the replay's before their first action."""
    found = []
    for run in rescued:
        acted = next((epoch for epoch, times in enumerate(run.curve("collapse/actions")) if times), None)
        logged, replayed = run.curve("collapse/level")[:acted], replay(run).levels[:acted]
        if logged != [float(level) for level in replayed]:
            found.append(run.name)
    return found


def report(fit: bool = False) -> None:
    """Writes report.json and the plots, or searches thresholds.

    Args:
        fit: search thresholds on the fitting split instead, and print them.
    """
    runs = read_records(HERE / "runs.jsonl.gz")
    if fit:
        search([run for run in runs if run.split == "fit"])
        return
    outcomes = [replay(run) for run in runs]
    splits = {name: [outcome for outcome in outcomes if outcome.run.split == name] for name in ("fit", "report")}
    shown, fitted = figures(splits["report"]), figures(splits["fit"])
    file = HERE / "rescued.jsonl.gz"
    rescued = read_records(file) if file.exists() else []
    written = {
        "recall": shown["recall"],
        "median_lead": shown["median_lead"],
        "false_alarm_rate": shown["false_alarm_rate"],
        "runs": len(runs),
        "definition": DEFINITION,
        "final_success": f"mean of the last {FINAL} epochs",
        "reporting_split": shown,
        "fitting_split": fitted,
        "signs": by_sign(splits["report"]),
        "rescue": rescue_figures(runs, rescued),
        "replay_disagrees_with": disagreements(rescued),
    }
    (HERE / "report.json").write_text(json.dumps(written, indent=2) + "\n")
    show(splits, written)
    draw(splits["report"], written["rescue"]["rows"])


def search(runs: Sequence[Record]) -> None:
    """Prints the thresholds that few epochs of healthy runs reach, and figures by votes with the present defaults."""
    epochs = {run.name: run.epochs() for run in runs}
    kinds = {kind: [run for run in runs if run.fate()[0] is kind] for kind in (Fate.HEALTHY, Fate.COLLAPSED)}
    defaults = CollapseWarning()
    table = Table(title=f"scores that {QUIET:.0%} of healthy epochs reach, and the collapses that reach them in time")
    for column in ("sign", "z", "present", "collapses", "trend", "present", "collapses"):
        table.add_column(column)

    def scores(run: Record, change: Change, end: int | None = None) -> list[tuple[float, float]]:
        judged, window = epochs[run.name][:end], defaults.window
        found = [
            change.scores(judged[max(0, epoch - window) : epoch], judged[epoch], defaults.min_history)
            for epoch in range(defaults.after_epochs, len(judged))
        ]
        sign = {"above": 1.0, "below": -1.0}.get(change.side)
        return [(abs(z), abs(t)) if sign is None else (sign * z, sign * t) for z, t in filter(None, found)]

    for name, change in USUAL_CHANGES.items():
        cells = []
        for part, present in enumerate((change.z, change.trend)):
            quiet = sorted(score[part] for run in kinds[Fate.HEALTHY] for score in scores(run, change))
            limit = quiet[int(len(quiet) * (1 - QUIET))]
            ends = [(run, halved + 1) for run in kinds[Fate.COLLAPSED] if (halved := run.fate()[1]) is not None]
            hits = sum(any(score[part] > limit for score in scores(run, change, end)) for run, end in ends)
            cells += [f"{limit:.1f}", "–" if present is None else f"{present:g}", f"{hits} of {len(ends)}"]
        table.add_row(name, *cells)
    console = Console(width=150)
    console.print(table)
    for votes in (3, 4, 5):
        found = figures([replay(run, danger_votes=votes) for run in runs])
        console.print(
            votes, {name: found[name] for name in ("recalled", "collapsing", "leads", "false_alarms", "healthy")}
        )


def show(splits: Mapping[str, Sequence[Outcome]], written: Mapping[str, Any]) -> None:
    """Prints the figures of both splits and every run of the reporting split."""
    table = Table(title="reporting split")
    for column in ("run", "fate", "halved in", "watch", "danger", "lead", "by"):
        table.add_column(column)
    for outcome in sorted(splits["report"], key=lambda outcome: (-outcome.fate, outcome.run.name)):
        cells = (outcome.halved_in, outcome.first[Level.WATCH], outcome.first[Level.DANGER], outcome.lead())
        shown = ["–" if cell is None else str(cell) for cell in cells]
        table.add_row(outcome.run.name, outcome.fate.name.lower(), *shown, ", ".join(outcome.named))
    console = Console(width=170)
    console.print(table)
    console.print({name: value for name, value in written.items() if name not in ("rescue", "definition")})
    console.print(written["rescue"])


def draw(outcomes: Sequence[Outcome], rescued: Sequence[Mapping[str, Any]]) -> None:
    """Plots: success of each run with its alarms; leads; ends of rescued runs."""
    import matplotlib.pyplot as plt

    dying = [outcome for outcome in outcomes if outcome.fate is Fate.COLLAPSED]
    healthy = [outcome for outcome in outcomes if outcome.fate is Fate.HEALTHY]
    for name, chosen in (("collapsing", dying), ("healthy", healthy)):
        columns = 4
        rows = max(1, -(-len(chosen) // columns))
        figure, axes = plt.subplots(
            rows, columns, figsize=(3.4 * columns, 1.9 * rows), sharex=True, sharey=True, squeeze=False
        )
        for axis in axes.flat[len(chosen) :]:
            axis.axis("off")
        for axis, outcome in zip(axes.flat, chosen, strict=False):
            epochs = range(len(outcome.levels))
            for level, colour in ((Level.WATCH, "#f6e3b4"), (Level.DANGER, "#f2b8ae")):
                there = [now is level for now in outcome.levels]
                axis.fill_between(epochs, 0, 1, where=there, step="mid", color=colour, linewidth=0)
            axis.plot(smoothed(outcome.run.curve("val/success_rate")), color="#1f4e79")
            axis.plot(outcome.run.curve("train/valid_ratio"), color="#7f7f7f", linewidth=0.8, linestyle=":")
            if outcome.halved_in is not None:
                axis.axvline(outcome.halved_in, color="#b03a2e", linestyle="--", linewidth=1)
            axis.set_title(outcome.run.name, fontsize=7)
            axis.set_ylim(0, 1)
        figure.supxlabel("epoch")
        figure.suptitle(
            f"{name} runs of the reporting split: success (mean of {SMOOTHING} epochs), valid ratio dotted, "
            "watch yellow, danger red" + (", dashed: halved" if name == "collapsing" else ""),
            fontsize=9,
        )
        figure.tight_layout()
        figure.savefig(HERE / f"{name}.png", dpi=80)
        plt.close(figure)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), width_ratios=(1, 2))
    leads = [-3 if (lead := outcome.lead()) is None else lead for outcome in dying]
    left.hist(leads, bins=[edge - 0.5 for edge in range(-3, max([3, *leads]) + 2)], color="#1f4e79")
    left.set_xlabel("lead in epochs (−3: missed)")
    left.set_ylabel("collapsing runs")
    for row, place in zip(sorted(rescued, key=lambda row: row["name"]), count()):
        right.plot([row["plain"], row["rescued"]], [place, place], color="#c0c0c0", zorder=0)
        right.scatter(row["plain"], place, color="#b03a2e", label="plain" if place == 0 else None)
        right.scatter(row["rescued"], place, color="#1e8449", label="with rescue.yaml" if place == 0 else None)
        if row["best_healthy"] is not None:
            right.scatter(
                row["best_healthy"],
                place,
                marker="|",
                s=200,
                color="#1f4e79",
                label="best healthy" if place == 0 else None,
            )
    right.set_yticks(
        range(len(rescued)), [row["name"] for row in sorted(rescued, key=lambda row: row["name"])], fontsize=7
    )
    right.set_xlabel(f"success at the end (mean of {FINAL} epochs)")
    right.set_xlim(0, 1)
    if rescued:
        right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(HERE / "leads_and_rescue.png", dpi=80)
    plt.close(figure)


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


if __name__ == "__main__":
    auto_cli(report)
