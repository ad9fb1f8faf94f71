"""One run of a study: its commands, and its folder by what it is made of."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from arl_lightning.study.definition import BEFORE, Method, Start, Study, shortened

Status = Literal["finished", "failed", "interrupted", "not run"]

_ANY = Method(configs=("methods/grpo.yaml",))
"""What a start is tested under: no test reads the objective, so that one file does for the methods of every study.

It is as good as any where methods have the same prompts, contexts and held-out tasks.
"""


@dataclass(frozen=True)
class Cell:
    """An `arl fit`, then an `arl test` of what it left; or one of both.

    Its folder's name holds a digest of everything that decides the run, comments of files aside: two studies that need
    the same run share it, and a changed configuration is another run.

    Args:
        label: what it is called in its folder's name.
        configs: configuration files, later ones win.
        words: further options.
        seed: seed of every draw.
        root: folder of all runs.
        start: the run whose model this one starts from; None for a start.
        verbs: what it consists of; a start is not tested, and a start's test has no fit of its own.
    """

    label: str
    configs: tuple[Path, ...]
    words: tuple[str, ...]
    seed: int
    root: Path
    start: Cell | None = None
    verbs: tuple[str, ...] = ("fit", "test")

    @property
    def folder(self) -> Path:
        """Where it leaves everything."""
        return self.root / f"{self.label}-s{self.seed}-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """Ten hexadecimal digits of what decides the run."""
        files = [_parsed(path.read_text(encoding="utf-8")) for path in self.configs]
        made_of = [files, self.words, self.seed, self.start.digest if self.start else None]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def model(self) -> Path:
        """The exported model of a start."""
        return self.folder / "fit" / "model"

    @property
    def tested(self) -> bool:
        """Whether it ends with success on held-out tasks."""
        return "test" in self.verbs

    def words_of(self, verb: str) -> list[str]:
        """The words after `arl` that do this run again, whatever it left."""
        words = [verb, *(part for path in self.configs for part in ("--config", str(path))), *self.words]
        words += [f"--seed_everything={self.seed}", f"--trainer.default_root_dir={self.folder / verb}"]
        if self.start is not None:
            words.append(f"--model.policy.pretrained={self.start.model}")
        if verb == "test" and "fit" in self.verbs:
            words.append(f"--ckpt_path={self.folder / 'fit' / 'checkpoints' / 'last.ckpt'}")
        return words

    def command(self, verb: str) -> list[str]:
        """The process that does this part of it."""
        return [sys.executable, "-m", "arl_lightning", *self.words_of(verb)]

    def recreate(self) -> str:
        """Shell lines that make the run by hand, its start first."""
        before = [self.start.recreate()] if self.start else []
        return "\n".join([*before, *(f"arl {shlex.join(self.words_of(verb))}" for verb in self.verbs)])

    def status(self) -> Status:
        """How far it is."""
        attempts = self.attempts()
        if not attempts:
            return "not run"
        if self.ended_well(self.verbs[-1]):
            return "finished"
        return "failed" if attempts[-1]["exit_code"] not in (0, None) else "interrupted"

    def attempts(self) -> list[dict[str, Any]]:
        """What was recorded of each attempt, in order; `exit_code` is None where it was interrupted."""
        path = self.folder / "record.json"
        attempts: list[dict[str, Any]] = json.loads(path.read_text())["attempts"] if path.is_file() else []
        return attempts

    def ended_well(self, verb: str) -> bool:
        """Whether this part of it is done."""
        return any(attempt["verb"] == verb and attempt["exit_code"] == 0 for attempt in self.attempts())


@cache
def _parsed(text: str) -> Any:
    return yaml.safe_load(text)


def start_of(study: Study, start: Start, task: str, seed: int, root: Path) -> Cell:
    """The cloning run that this seed starts from."""
    of_seed = seed if start.per_seed else study.seeds[0]
    configs = tuple(study.find(name) for name in start.configs)
    return Cell(f"start-{task}", configs, filled(start.words, seed=of_seed), of_seed, root, verbs=("fit",))


def cell_of(study: Study, task: str, method: str, seed: int, root: Path, *, overlays: Sequence[Path] = ()) -> Cell:
    """A run of a method on a task from a seed, or the test of its start; `overlays` win over the study's own files."""
    of_task = study.tasks[task]
    of_method, verbs = (_ANY, ("test",)) if method == BEFORE else (study.methods[method], ("fit", "test"))
    names = [*study.base, *(of_method.configs or (f"methods/{method}.yaml",)), *of_task.configs, *of_method.overlays]
    names += of_task.overlays.get(method, ())
    configs = (*(study.find(name) for name in names), *map(shortened, overlays))
    words = (*study.words, *of_task.words, *of_method.words, "--trainer.max_epochs={epochs}")
    start = start_of(study, of_task.start, task, seed, root) if of_task.start else None
    label = f"{task}-{method}"
    return Cell(label, configs, filled(words, seed=seed, epochs=of_task.epochs), seed, root, start, verbs)


def filled(words: Sequence[str], **numbers: int) -> tuple[str, ...]:
    """The words with numbers where `{name}` stands; other braces are YAML's and stay."""
    for name, number in numbers.items():
        words = [word.replace(f"{{{name}}}", str(number)) for word in words]
    return tuple(words)
