"""Where games come from: drawn from a seed, or read from the published data set."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from arl_lightning.envs.alfworld.households import HouseholdSpec, draw_household
from arl_lightning.envs.alfworld.pddl import GAME_FILE, TRAJECTORY_FILE, game_data
from arl_lightning.types import ArlError

SPLIT_ENDS = {"test": 10, "validation": 20, "demonstration": 30, "train": 100}  # cumulative, per cent of all games
_FOLDERS = {
    "train": ("train",),
    "demonstration": ("train",),
    "validation": ("valid_seen",),
    "test": ("valid_unseen",),
    "all": ("train", "valid_seen", "valid_unseen"),
}
_UNSUPPORTED = ("movable", "Sliced")  # in a task's name: the engine's domain cannot play them


@dataclass(frozen=True, slots=True)
class Game:
    """What the engine plays; two games are the same task when all of it is the same."""

    task_type: str
    domain: str
    grammar: str
    problem: str

    @classmethod
    def of(cls, task_type: str, data: dict[str, Any]) -> Game:
        """The game of a `game.tw-pddl`'s fields."""
        return cls(task_type, data["pddl_domain"], data["grammar"], data["pddl_problem"])


class GameSource(Protocol):
    """A set of games of which every seed names one."""

    def game(self, seed: int) -> Game:
        """The game that the seed names, the same in every process."""
        ...


def split_of(identity: str) -> str:
    """The split of a task with that identity: 70 % train, 10 % each of the others."""
    per_cent = int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "big") % 100
    return next(name for name, end in SPLIT_ENDS.items() if per_cent < end)


def require_split(split: str) -> None:
    """Returns when there is such a split; ArlError otherwise."""
    if split not in _FOLDERS:
        raise ArlError(f"There is no split {split!r}: choose {', '.join(_FOLDERS)}.")


class GeneratedGames:
    """Households without end, drawn from seeds; a household's content decides its split.

    Args:
        split: `train`, `validation`, `test`, `demonstration` or `all`.
        spec: which households.
    """

    def __init__(self, split: str, spec: HouseholdSpec) -> None:
        require_split(split)
        self._split = split
        self._spec = spec

    def game(self, seed: int) -> Game:
        """The first household of the split that the seed's generator draws."""
        rng = random.Random(seed)
        while True:  # ends: 10 % of all draws at least
            household = draw_household(rng, self._spec)
            if self._split in ("all", split_of(household.identity)):
                return Game.of(household.task.task_type, game_data(household))


class PublishedGames:
    """The games of a folder in the published layout, `<part>/<task>/<trial>/` with `game.tw-pddl` and `traj_data.json`.

    `validation` is `valid_seen`, `test` is `valid_unseen`, and a tenth of the tasks of `train`, chosen by a hash of
    the task's name (type, object, receptacle and floor plan, which all its trials share), is `demonstration`.

    Args:
        split: `train`, `validation`, `test`, `demonstration` or `all`.
        folder: holds `train`, `valid_seen` and `valid_unseen`; its files are code, since the engine evaluates them.
        task_types: which games.
    """

    def __init__(self, split: str, folder: str, task_types: Collection[str]) -> None:
        require_split(split)
        self._task_types = frozenset(task_types)
        roots = [Path(folder).expanduser() / name for name in _FOLDERS[split]]
        trials = [path.parent for root in roots for path in root.glob(f"*/*/{GAME_FILE}")]
        self._trials = sorted((trial for trial in trials if self._wanted(trial, split)), key=_place)
        if not self._trials:
            parts = " or ".join(str(root) for root in roots)
            raise ArlError(
                f"No game of the wanted task types in {parts}: let `games` name the folder of the published data, "
                f"with {roots[0].name}/<task>/<trial>/{GAME_FILE} in it, or be null for generated games."
            )

    def game(self, seed: int) -> Game:
        """The games in a fixed mixed order, over and over; one that is marked unsolvable gives way to the next."""
        first = seed % len(self._trials)
        for trial in self._trials[first:] + self._trials[:first]:
            data, task = _read(trial / GAME_FILE), _read(trial / TRAJECTORY_FILE)
            try:
                if data["solvable"] and task["task_type"] in self._task_types:
                    return Game.of(task["task_type"], data)
            except KeyError as error:
                raise ArlError(f"The game in {trial} lacks {error}: download it again or remove it.") from error
        raise ArlError(f"None of the {len(self._trials)} games is marked solvable: run alfworld-generate on them.")

    def _wanted(self, trial: Path, split: str) -> bool:
        name = trial.parent.name
        kept = split not in ("train", "demonstration") or split == _train_part(name)
        supported = not any(word in name for word in _UNSUPPORTED)
        return kept and supported and name.partition("-")[0] in self._task_types


def _place(trial: Path) -> bytes:
    """Sorts trials into an order in which task types and rooms are mixed, the same wherever the folder lies."""
    return blake2b(f"{trial.parent.name}/{trial.name}".encode(), digest_size=8).digest()


def _train_part(task_name: str) -> str:
    return "demonstration" if split_of(task_name) == "demonstration" else "train"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ArlError(f"{path} cannot be read ({error}): download it again or remove its folder.") from error
    if not isinstance(content, dict):
        raise ArlError(f"{path} holds no JSON object: download it again or remove its folder.")
    return content
