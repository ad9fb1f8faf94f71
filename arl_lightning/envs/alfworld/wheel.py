"""What the installed alfworld wheel knows: the rules of the world, its goals, what fits where, and its floor plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from arl_lightning.envs.extras import load_extra

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_BASINS = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}  # things are put into the basin, never the outer part


@dataclass(frozen=True, slots=True)
class Goal:
    """One task type: its goal in PDDL and its sentences, with `{obj}`, `{recep}` and `{toggle}` to fill in."""

    pddl: str
    sentences: tuple[str, ...]
    room_kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """One room: the receptacles whose place is known, and the kinds of all the things in it, sorted."""

    name: str
    receptacles: tuple[tuple[str, str], ...]  # kind and identifier, `Cabinet` and `Cabinet|+00.68|+00.50|-02.20`
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wheel:
    """The wheel's data; kinds are spelled as there (`CounterTop`), and all collections are sorted."""

    domain: str
    grammar: str
    goals: Mapping[str, Goal]
    plans: Mapping[str, tuple[FloorPlan, ...]]
    contents: Mapping[str, tuple[str, ...]]  # what a kind of receptacle can contain
    openable: frozenset[str]
    movable_receptacles: frozenset[str]
    affordances: Mapping[str, frozenset[str]]  # Heatable, Coolable, Cleanable, Toggleable, Sliceable


@lru_cache(maxsize=1)
def wheel() -> Wheel:
    """The data of the installed wheel, read once.

    Importing alfworld creates the folder that `$ALFWORLD_DATA` names, or one in the user's cache.

    Raises:
        ArlError: alfworld is not installed.
    """
    constants = load_extra("alfworld.gen.constants", extra="alfworld")
    library = load_extra("alfworld.gen.goal_library", extra="alfworld").gdict
    folder = Path(str(constants.__file__)).parent
    outer = set(constants.MOVABLE_RECEPTACLES)
    return Wheel(
        domain=(folder.parent / "data" / "alfred.pddl").read_text("utf-8"),
        grammar=(folder.parent / "data" / "alfred.twl2").read_text("utf-8"),
        goals={
            name: Goal(library[name]["pddl"], tuple(library[name]["templates"]), _sorted(constants.GOALS_VALID[name]))
            for name in TASK_TYPES
        },
        plans={
            kind: tuple(_floor_plan(folder / "layouts", f"FloorPlan{number}") for number in numbers)
            for kind, numbers in constants.SCENE_TYPE.items()
        },
        contents={
            kind: _sorted(inside) for kind, inside in constants.VAL_RECEPTACLE_OBJECTS.items() if kind not in outer
        },
        openable=frozenset(constants.OPENABLE_CLASS_SET) - outer,
        movable_receptacles=frozenset(outer),
        affordances={name: frozenset(kinds) for name, kinds in constants.VAL_ACTION_OBJECTS.items()},
    )


def _floor_plan(layouts: Path, name: str) -> FloorPlan:
    places = json.loads((layouts / f"{name}-openable.json").read_text("utf-8"))
    kinds = json.loads((layouts / f"{name}-objects.json").read_text("utf-8"))
    return FloorPlan(name, tuple(_with_basin(identifier) for identifier in sorted(places)), _sorted(kinds))


def _with_basin(identifier: str) -> tuple[str, str]:
    kind = identifier.partition("|")[0]
    basin = _BASINS.get(kind)
    return (kind, identifier) if basin is None else (basin, f"{identifier}|{basin}")


def _sorted(names: set[str] | list[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
