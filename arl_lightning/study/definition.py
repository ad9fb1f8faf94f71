"""What a study is: methods × tasks × seeds under one budget, and what was expected of them before they ran."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from arl_lightning.study.runs import config_path
from arl_lightning.types import ArlError

T = TypeVar("T")

BEFORE = "before"
"""Stands in a method's place for the model that all methods start from."""


@dataclass(frozen=True)
class Start:
    """The cloning run that every method of a task starts from.

    Args:
        configs: configuration files, later ones win; each is sought beside the study's file, then among the shipped.
        words: further options of the command line; `{seed}` stands for the seed.
        per_seed: whether each seed has a clone of its own; otherwise all start from that of the first seed.
    """

    configs: tuple[str, ...]
    words: tuple[str, ...] = ()
    per_seed: bool = True


@dataclass(frozen=True)
class StudyTask:
    """A task with its budget, the same for every method.

    Args:
        epochs: rollouts of every run, at least 1.
        configs: configuration files over the method's: the task, the hardware, a recipe.
        words: further options; `{epochs}` and `{seed}` stand for those numbers.
        start: cloning run to start from; null where the options name the policy.
        overlays: by method, files over everything else on this task, such as hyper-parameters that a search found
            here; methods that a study does not have are passed over.
    """

    epochs: int
    configs: tuple[str, ...]
    words: tuple[str, ...] = ()
    start: Start | None = None
    overlays: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method, or a variant of one.

    Args:
        configs: files that make it, under the task's; empty for `methods/NAME.yaml`.
        overlays: files over the task's, on every task.
        words: further options; they win.
    """

    configs: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """That a measure of one method is above another's, written down before any run.

    It holds when the 95 % interval of the paired difference plus `margin` lies above 0, fails when it lies below, and
    is open otherwise.

    Args:
        says: the expectation in words.
        above: method that is expected to have more, or `before` for what the methods start from.
        below: method that is expected to have less, or `before`, which has only what a test measures.
        measure: column of the results, such as `sampled`, `first_fifth`, `collapsed`, `spread`, `minutes`.
        margin: how much less still counts as a tie, in units of the measure, at least 0.
        task: the task that is meant; null for the mean over all.
    """

    says: str
    above: str
    below: str
    measure: str = "sampled"
    margin: float = 0.0
    task: str | None = None


@dataclass(frozen=True)
class Study:
    """Every method on every task from every seed.

    Args:
        name: name of its report, and of the folder that holds it.
        prediction: what was expected, in words, before the first run.
        tasks: tasks by name; in the YAML file also the name of a file that holds one, so that studies share it.
        methods: methods by name.
        seeds: seeds, the same for every method, so that differences are paired.
        base: files under everything.
        words: options of every run.
        baseline: method that the others are compared with.
        measure: what decides: success on held-out tasks as `sampled`, or another column of the results.
        predictions: what was expected, in a form that can be checked.
        folder: where files are sought first; that of the study's own file.
    """

    name: str
    prediction: str
    tasks: Mapping[str, StudyTask]
    methods: Mapping[str, Method]
    seeds: tuple[int, ...]
    base: tuple[str, ...] = ("base.yaml",)
    words: tuple[str, ...] = ()
    baseline: str = "grpo"
    measure: str = "sampled"
    predictions: tuple[Prediction, ...] = ()
    folder: Path = Path()

    def __post_init__(self) -> None:
        for name, found in (("tasks", self.tasks), ("methods", self.methods), ("seeds", self.seeds)):
            if not found:
                raise ArlError(f"the study {self.name!r} has no {name}: name at least one")
        if BEFORE in self.methods:
            raise ArlError(f"the study {self.name!r} calls a method {BEFORE!r}, which is what its starts are called")
        if len(set(self.seeds)) < len(self.seeds):
            raise ArlError(f"the study {self.name!r} names a seed twice: each seed is one run of a method")
        if short := [name for name, task in self.tasks.items() if task.epochs < 1]:
            raise ArlError(f"the task {short[0]!r} has no budget: set its epochs to at least 1")
        named: list[tuple[str, str, Collection[str]]] = [(self.baseline, "baseline", self.methods)]
        known = (BEFORE, *self.methods)
        named += [(method, "prediction", known) for said in self.predictions for method in (said.above, said.below)]
        for method, where, among in named:
            if method not in among:
                raise ArlError(f"a {where} of the study {self.name!r} names {method!r}, which is not among its methods")
        for said in self.predictions:
            if said.task is not None and said.task not in self.tasks:
                raise ArlError(f"a prediction of the study {self.name!r} names {said.task!r}, which is no task of it")

    def find(self, name: str) -> Path:
        """The configuration file `name`, beside the study's own or shipped; where the run stands, as a short path."""
        return _find(name, self.folder)

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """Task, method, seed; seed by seed, so that an interrupted study has whole comparisons.

        `BEFORE` stands among the methods where a task has a start, once if the seeds share it.
        """
        for name, task in self.tasks.items():
            for seed in self.seeds:
                if task.start and (task.start.per_seed or seed == self.seeds[0]):
                    yield name, BEFORE, seed
                yield from ((name, method, seed) for method in self.methods)


def shortened(path: Path) -> Path:
    """The path from the working folder where it lies in there."""
    whole, here = path.resolve(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def read(kind: type[T], file: str) -> T:
    """The definition in a YAML file, which also knows the folder that it lies in.

    Raises:
        ArlError: the file is not there, or says what no definition of this kind says.
    """
    path = Path(file)
    if not path.is_file():
        raise ArlError(f"there is no file {file!r}")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, skip={"folder"})
    make: Callable[..., T] = kind
    folder = path.resolve().parent
    try:
        return make(**parser.instantiate(parser.parse_object(_whole(path, folder))), folder=folder)
    except (ArgumentError, yaml.YAMLError) as error:
        raise ArlError(f"{file}: {' '.join(str(error).split())}") from error


def _whole(path: Path, folder: Path) -> dict[str, Any]:
    """What the file says, with tasks in place of the names of their files."""
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(said, dict):
        raise ArlError(f"{str(path)!r} holds no definition: it should name what it is made of, as `name: ...`")
    tasks = said.get("tasks")
    if not isinstance(tasks, dict):
        return said
    files = {name: _find(task, folder) for name, task in tasks.items() if isinstance(task, str)}
    return {**said, "tasks": tasks | {name: yaml.safe_load(found.read_text()) for name, found in files.items()}}


def _find(name: str, folder: Path) -> Path:
    return shortened(beside if (beside := folder / name).is_file() else config_path(name))
