"""The tables of a study's report, computed from its runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from arl_lightning.envs.extras import load_extra
from arl_lightning.study import statistics
from arl_lightning.study.definition import BEFORE, Prediction, Study
from arl_lightning.study.results import Run
from arl_lightning.study.statistics import Estimate

Frame = Any  # pandas is an extra

_BESIDE = {
    "sampled": "sampled",
    "t06": "T = 0.6",
    "greedy": "greedy",
    "spread": "spread",
    "collapsed": "share collapsed",
    "minutes": "minutes a run",
}
_OF_COLLAPSE = (
    "danger_at",
    "collapsed_at",
    "recovered",
    "least_valid",
    "largest_sinking_kl",
    "largest_sinking_ratio",
    "largest_grad_norm",
    "last_entropy",
    "last_fifth",
    "sampled",
)
_COST = ("minutes", "sampled_tokens", "environment_steps")


class Tables:
    """Everything that the report says in numbers.

    Args:
        study: what was to be run.
        runs: what has run.
    """

    def __init__(self, study: Study, runs: Sequence[Run]) -> None:
        self.study = study
        self.runs = runs
        self._pandas = load_extra("pandas", extra="study")
        self.all_runs: Frame = self._pandas.DataFrame([run.row() for run in runs])

    def values(self, method: str, task: str, measure: str) -> dict[int, float]:
        """The measure of every finished run, by seed."""
        chosen = (run for run in self.runs if (run.method, run.task) == (method, task))
        return {run.cell.seed: run.numbers[measure] for run in chosen if measure in run.numbers}

    def strata(self, method: str, measure: str, tasks: Collection[str]) -> list[list[float]]:
        """The values by task, of tasks that have some."""
        return [list(found.values()) for task in tasks if (found := self.values(method, task, measure))]

    def pairs(
        self, ours: str, theirs: str, measure: str, tasks: Collection[str]
    ) -> list[tuple[list[float], list[float]]]:
        """Values of both methods from the seeds that both have, by task."""
        pairs = []
        for task in tasks:
            one, other = self.values(ours, task, measure), self.values(theirs, task, measure)
            if seeds := [seed for seed in one if seed in other]:
                pairs.append(([one[seed] for seed in seeds], [other[seed] for seed in seeds]))
        return pairs

    def estimates(self, measure: str, tasks: Collection[str]) -> dict[str, Estimate]:
        """Mean of the measure by method, of methods that have finished runs, and before all of them."""
        strata = {method: self.strata(method, measure, tasks) for method in (*self.study.methods, BEFORE)}
        return {method: statistics.mean(found) for method, found in strata.items() if found}

    def results(self, tasks: Collection[str]) -> Frame:
        """A method a line, the best first, over the tasks together; where they start from is among them."""
        measure, baseline = self.study.measure, self.study.baseline
        pairs = {method: self.pairs(method, baseline, measure, tasks) for method in self.study.methods}
        rivals = {method: found for method, found in pairs.items() if found and method != baseline}
        raw = {method: statistics.paired_p_value(*_joined(found)) for method, found in rivals.items()}
        adjusted = statistics.holm(raw)
        estimates = self.estimates(measure, tasks)
        rows = []
        for method in sorted(estimates, key=lambda method: -estimates[method].value):
            strata = self.strata(method, measure, tasks)
            row = {
                "method": method,
                "runs": sum(map(len, strata)),
                f"{measure}, mean": shown(estimates[method]),
                "interquartile mean": shown(statistics.interquartile_mean(strata)),
            }
            if method in rivals:
                better = [(self._all(method, task), self._all(baseline, task)) for task in tasks]
                row |= {
                    f"minus {baseline}, paired": shown(statistics.paired_difference(rivals[method]), "+.3f"),
                    "p": _known(raw[method]),
                    "p, Holm": _known(adjusted[method]),
                    f"P(above {baseline})": shown(
                        statistics.probability_of_improvement([pair for pair in better if all(pair)]), ".2f"
                    ),
                }
            beside = {title: self._plain(method, name, tasks) for name, title in _BESIDE.items() if name != measure}
            rows.append({**row, **{title: said for title, said in beside.items() if said}})
        columns = max((list(row) for row in rows), key=len, default=[])
        return self._pandas.DataFrame(rows, columns=columns).fillna("")

    def predictions(self) -> Frame:
        """What was expected beside what came."""
        return self._pandas.DataFrame([self._outcome(said) for said in self.study.predictions])

    def _outcome(self, said: Prediction) -> dict[str, str]:
        tasks = self.study.tasks if said.task is None else [said.task]
        pairs = self.pairs(said.above, said.below, said.measure, tasks)
        claim = f"{said.measure}: {said.above} − {said.below} > {-said.margin or 0:g}"
        row = {"expected": said.says, "that is": f"{claim}{f' on {said.task}' if said.task else ''}"}
        if not pairs:
            run = all(self.estimates(self.study.measure, tasks).get(method) for method in (said.above, said.below))
            return {**row, "found": "", "pairs": "0", "outcome": "not measured" if run else "not run"}
        found = statistics.paired_difference(pairs)
        return {
            **row,
            "found": shown(found, "+.3f"),
            "pairs": str(sum(len(ours) for ours, _ in pairs)),
            "outcome": outcome(found, said.margin),
        }

    def collapses(self) -> Frame:
        """The collapsed runs, one a line."""
        columns = ["task", "method", "seed", *(name for name in _OF_COLLAPSE if name in self.all_runs)]
        if "collapsed" not in self.all_runs:
            return self._pandas.DataFrame(columns=columns)
        return self.all_runs[self.all_runs["collapsed"] == 1][columns].round(3)

    def warnings(self) -> str:
        """How many collapses `CollapseWarning` saw in time, and in how many other runs it saw one; empty if unknown."""
        watched = [run.numbers for run in self.runs if {"danger_at", "collapsed"} <= set(run.numbers)]
        if not watched:
            return ""
        fallen = [run for run in watched if run["collapsed"]]
        alarms = [not math.isnan(run["danger_at"]) for run in watched if not run["collapsed"]]
        in_time = sum(run["danger_at"] <= run["collapsed_at"] for run in fallen)
        return (
            f"CollapseWarning spoke of danger no later than the collapse in {in_time} of {len(fallen)} runs that "
            f"collapsed, and at some time in {sum(alarms)} of {len(alarms)} others."
        )

    def cost(self) -> Frame:
        """Means a run of what a method took, by task."""
        if not set(_COST) <= set(self.all_runs):
            return self._pandas.DataFrame(columns=_COST)
        trained = self.all_runs[self.all_runs["method"] != BEFORE]
        return trained.groupby(["task", "method"], sort=False)[list(_COST)].mean().round(1).reset_index()

    def unfinished(self) -> Frame:
        """Every run that has no result, and why."""
        missing = [(run, why) for run in self.runs if (why := run.why())]
        return self._pandas.DataFrame(
            [{"task": run.task, "method": run.method, "seed": run.cell.seed, "why": why} for run, why in missing]
        )

    def _all(self, method: str, task: str) -> list[float]:
        return list(self.values(method, task, self.study.measure).values())

    def _plain(self, method: str, measure: str, tasks: Collection[str]) -> str:
        strata = self.strata(method, measure, tasks)
        return f"{statistics.mean(strata).value:.3f}" if strata else ""


def outcome(difference: Estimate, margin: float) -> str:
    """`held`, `failed`, or `open` where the interval holds both or there is none."""
    if difference.low + margin > 0:
        return "held"
    return "failed" if difference.high + margin < 0 else "open"


def shown(estimate: Estimate, form: str = ".3f") -> str:
    """The value, and the ends of its interval where it has one."""
    if estimate.low != estimate.low:  # nan
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _known(number: float) -> str:
    return f"{number:.3f}" if number == number else ""  # nan differs from itself


def _joined(pairs: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    return [value for ours, _ in pairs for value in ours], [value for _, theirs in pairs for value in theirs]
