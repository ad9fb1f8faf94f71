"""Each method's own hyper-parameters, tried equally often: a comparison with untuned baselines is worth nothing."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from arl_lightning.envs.extras import load_extra
from arl_lightning.study.cell_runner import ended_by_signals
from arl_lightning.study.cells import cell_of
from arl_lightning.study.definition import Method, Study, read
from arl_lightning.study.trials import FAILED, Choices, Space, play, suggested, write_overlay
from arl_lightning.types import ArlError

HEARTBEAT_S = 20
"""How often a trial says that it lives; one that has not for twice as long is taken up by another worker."""


@dataclass(frozen=True)
class Search:
    """Trials of every method under one budget.

    Args:
        name: name of the search, in its storage and as a folder.
        study: study file, beside this one, whose task, start and budget are used.
        task: the task of that study.
        seeds: seeds of every trial, best none of the study's own; a trial is worth the mean over them.
        trials: trials of every method, at least 1.
        spaces: by method of the study, what is tried, by a name of one's own.
        sampler: `tpe`, `random`, or `grid`, which needs choices throughout.
        metric: what is to be large: a logged metric, at its last value.
        epochs: rollouts of every trial; null for those of the study.
        prune_after: epoch from which a trial that is below the median of earlier ones is given up; null for never.
        storage: database URL of Optuna; null for an SQLite file in the search's folder.
        folder: where the study file is sought; that of the search's own file.
    """

    name: str
    study: str
    task: str
    seeds: tuple[int, ...]
    trials: int
    spaces: Mapping[str, Space]
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    metric: str = "val/success_rate"
    epochs: int | None = None
    prune_after: int | None = None
    storage: str | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        if self.trials < 1 or not self.seeds or not self.spaces:
            raise ArlError(f"the search {self.name!r} needs spaces, seeds and at least one trial")
        for method, space in self.spaces.items():
            sizes = [len(found.values) for found in space.values() if isinstance(found, Choices)]
            if self.sampler == "grid" and len(sizes) < len(space):
                raise ArlError(
                    f"a grid needs choices: give {method!r} `values` in place of `low` and `high`, or choose tpe"
                )
            if self.sampler == "grid" and prod(sizes) < self.trials:
                raise ArlError(f"the grid of {method!r} has {prod(sizes)} points: {self.trials} trials need as many")


def search_all(search: Search, output: Path) -> Iterator[Path]:
    """The overlay of each method's best trial, once all of its trials have ended."""
    study = read(Study, str(search.folder / search.study))
    if search.task not in study.tasks:
        raise ArlError(f"the search {search.name!r} is on {search.task!r}, which is no task of {search.study}")
    if missing := [method for method in search.spaces if method not in study.methods]:
        raise ArlError(f"the search {search.name!r} names {missing[0]!r}, which is no method of {search.study}")
    for method, space in search.spaces.items():
        _check_free(study.methods[method], method, space)
    task = study.tasks[search.task]
    bare = replace(task, epochs=search.epochs or task.epochs, overlays={})  # without what an earlier search found
    study = replace(study, tasks={**study.tasks, search.task: bare})
    folder = output / search.name
    folder.mkdir(parents=True, exist_ok=True)
    with ended_by_signals():
        for method in search.spaces:
            yield _search(search, study, method, folder, output)


def _check_free(method: Method, name: str, space: Space) -> None:
    """Raises ArlError where the method's own words, which win over every file, set what is to be tried."""
    said = {word.removeprefix("--").partition("=")[0].replace("init_args.", "") for word in method.words}
    tried = {key.replace("init_args.", "") for found in space.values() for key in found.keys}
    if fixed := sorted(said & tried):
        raise ArlError(f"the words of {name!r} fix {fixed[0]}, which is to be tried: put the number into an overlay")


def _search(search: Search, study: Study, method: str, folder: Path, root: Path) -> Path:
    optuna = load_extra("optuna", extra="study")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the heartbeat is one
    space = search.spaces[method]
    median = optuna.pruners.MedianPruner(n_startup_trials=_scouts(search), n_warmup_steps=search.prune_after or 0)
    trials = optuna.create_study(
        study_name=f"{search.name}/{method}",
        storage=optuna.storages.RDBStorage(
            search.storage or f"sqlite:///{folder / 'trials.db'}",
            heartbeat_interval=HEARTBEAT_S,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
        ),
        pruner=optuna.pruners.NopPruner() if search.prune_after is None else median,
        direction="maximize",
        load_if_exists=True,
    )
    first = {name: found.first for name, found in space.items() if found.first is not None}
    if first:
        trials.enqueue_trial(first, skip_if_exists=True)

    def objective(trial: Any) -> float:
        overlay = folder / method / f"trial{trial.number}.yaml"
        write_overlay(overlay, space, suggested(trial, space), f"Trial {trial.number} of {trials.study_name}.")
        cells = [
            replace(cell_of(study, search.task, method, seed, root, overlays=[overlay]), verbs=("fit",))
            for seed in search.seeds
        ]
        return play(trial, cells, search.metric)

    while True:
        states = Counter(state_of(trial) for trial in trials.get_trials(deepcopy=False))
        if states["ended"] + states["running"] < search.trials:
            # anew for each trial, else every worker, and a search that goes on, would begin with the same draws
            trials.sampler = _sampler(search, seed=search.seeds[0] + states.total(), space=space)
            trials.optimize(objective, n_trials=1, catch=(ArlError,))
        elif states["running"]:  # another worker's, or one's that was killed
            time.sleep(HEARTBEAT_S / 4)
            optuna.storages.fail_stale_trials(trials)
        else:
            return _write_best(search, trials, folder / f"{method}.yaml", space)


def state_of(trial: Any) -> str:
    """`ended`, as also a trial whose run failed; `lost` with its worker, and then tried again; or still to come."""
    match trial.state.name:
        case "COMPLETE" | "PRUNED":
            return "ended"
        case "FAIL":
            return "ended" if FAILED in trial.user_attrs else "lost"
        case other:
            return str(other).lower()


def _scouts(search: Search) -> int:
    """Trials that are drawn by chance before earlier ones say where to look."""
    return max(2, search.trials // 3)


def _sampler(search: Search, seed: int, space: Space) -> Any:
    samplers = load_extra("optuna.samplers", extra="study")
    if search.sampler == "grid":
        grid = {name: found.values for name, found in space.items() if isinstance(found, Choices)}
        return samplers.GridSampler(grid, seed=search.seeds[0])
    if search.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=_scouts(search))


def _write_best(search: Search, trials: Any, path: Path, space: Space) -> Path:
    trials.trials_dataframe().to_csv(path.with_suffix(".csv"), index=False)
    done = [trial for trial in trials.get_trials() if trial.state.name == "COMPLETE"]
    if not done:
        said = next((trial.user_attrs[FAILED] for trial in trials.get_trials() if FAILED in trial.user_attrs), "")
        raise ArlError(f"no trial of {trials.study_name} came to its end: {said or 'all were given up'}")
    best = trials.best_trial
    note = (
        f"Best of {search.trials} trials of {trials.study_name}, of which {len(done)} came to their end: trial "
        f"{best.number}, {search.metric} {best.value:.4f} as the mean over seeds {', '.join(map(str, search.seeds))}."
    )
    write_overlay(path, space, best.params, note)
    return path
