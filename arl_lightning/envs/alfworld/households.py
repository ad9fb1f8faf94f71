"""Households with one task each: drawn from a seed, solvable by construction, told apart by content."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from arl_lightning.envs.alfworld.wheel import TASK_TYPES, FloorPlan, wheel
from arl_lightning.types import ArlError

FEWEST_RECEPTACLES = 8
_MOST_OF_A_KIND = 3  # instances of one kind of object
_AFFORDANCE = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
# Receptacles whose place the floor plans do not tell, and how many a room has of them.
_UNPLACED = {
    "StoveBurner": 4,
    "HandTowelHolder": 2,
    "BathtubBasin": 1,
    "CoffeeMachine": 1,
    "GarbageCan": 1,
    "LaundryHamper": 1,
    "SinkBasin": 1,
    "Toaster": 1,
    "Toilet": 1,
    "ToiletPaperHanger": 1,
    "TowelHolder": 1,
}
_REPEATED = ("Drawer", "Shelf", "Cabinet", "SideTable", "CounterTop")  # what fills up a sparse room
_UNDER_LAMPS = ("Desk", "SideTable", "Dresser", "CoffeeTable", "DiningTable", "Shelf")


@dataclass(frozen=True, slots=True)
class HouseholdSpec:
    """Which households are wanted; ArlError when there can be none.

    Args:
        task_types: names out of `TASK_TYPES`.
        max_receptacles: most receptacles of a room, 8 to 30.
        distractors: most objects that the task does not speak of, 0 to 60.
    """

    task_types: tuple[str, ...] = TASK_TYPES
    max_receptacles: int = 20
    distractors: int = 15

    def __post_init__(self) -> None:
        unknown = sorted(set(self.task_types) - set(TASK_TYPES))
        if unknown or not self.task_types:
            raise ArlError(f"task_types must name some of {', '.join(TASK_TYPES)}, not {unknown or 'none'}.")
        if not (FEWEST_RECEPTACLES <= self.max_receptacles <= 30 and 0 <= self.distractors <= 60):
            raise ArlError(f"A household has at most 8 to 30 receptacles and 0 to 60 distractors, not {self}.")


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: the kind of object, where to (or under which lamp), and how that is said."""

    task_type: str
    target: str
    destination: str  # kind of receptacle; empty when looking under a lamp
    lamp: str  # kind of lamp; empty otherwise
    sentence: str


@dataclass(frozen=True, slots=True)
class Household:
    """A room with a task; identifiers are the engine's, `Apple|+01.00|+00.95|-02.48`.

    Args:
        task: what is to be done.
        plan: name of the floor plan.
        receptacles: kind and identifier of each.
        objects: kind and identifier of each, and the identifier of the receptacle that it is in.
    """

    task: Task
    plan: str
    receptacles: tuple[tuple[str, str], ...]
    objects: tuple[tuple[str, str, str], ...]

    @property
    def identity(self) -> str:
        """A digest of the task and of what lies in which kind of receptacle: names, numbers and wording aside."""
        inside = defaultdict[str, list[str]](list)
        for kind, _, place in self.objects:
            inside[place].append(kind)
        room = sorted((kind, sorted(inside[identifier])) for kind, identifier in self.receptacles)
        task = (self.task.task_type, self.task.target, self.task.destination, self.task.lamp)
        return blake2b(repr((task, room)).encode(), digest_size=16).hexdigest()


def draw_household(rng: random.Random, spec: HouseholdSpec) -> Household:
    """A household with a task that can be solved and is not yet."""
    task_type = rng.choice(spec.task_types)
    while True:  # ends: most floor plans of the right kind of room allow the task
        plan = rng.choice(wheel().plans[rng.choice(wheel().goals[task_type].room_kinds)])
        receptacles = _draw_receptacles(rng, plan, spec.max_receptacles)
        task = _draw_task(rng, task_type, plan, {kind for kind, _ in receptacles})
        if task is not None:
            return Household(
                task, plan.name, receptacles, _draw_objects(rng, task, plan, receptacles, spec.distractors)
            )


def containers(kind: str, receptacle_kinds: set[str]) -> list[str]:
    """The kinds of receptacle, of those given, that can contain this kind of object, sorted."""
    contents = wheel().contents
    return sorted(receptacle for receptacle in receptacle_kinds if kind in contents.get(receptacle, ()))


def _draw_receptacles(rng: random.Random, plan: FloorPlan, most: int) -> tuple[tuple[str, str], ...]:
    """One of each kind that the room has, and then more of the same kinds in random order, up to a random number."""
    known = [(kind, identifier) for kind, identifier in plan.receptacles if kind in wheel().contents]
    placed = {kind for kind, _ in known}
    for kind, count in _UNPLACED.items():
        if kind in plan.kinds and kind not in placed:
            known += [(kind, _identifier(rng, kind)) for _ in range(count)]
    while len(known) < FEWEST_RECEPTACLES:
        kind = rng.choice(_REPEATED)
        known.append((kind, _identifier(rng, kind)))
    rng.shuffle(known)
    firsts = dict(reversed(known))  # of each kind the first one
    rest = [entry for entry in known if firsts[entry[0]] != entry[1]]
    room = rng.randint(FEWEST_RECEPTACLES, most) - len(firsts)
    return tuple(sorted([*firsts.items(), *rest[: max(room, 0)]][:most]))


def _draw_task(rng: random.Random, task_type: str, plan: FloorPlan, present: set[str]) -> Task | None:
    """A task that this room allows, or None."""
    affordance, tool = _AFFORDANCE.get(task_type, ("", ""))
    lamps = [kind for kind in plan.kinds if kind in wheel().affordances["Toggleable"]]
    looking = task_type == "look_at_obj_in_light"
    if (tool and tool not in present) or (looking and not (lamps and present & set(_UNDER_LAMPS))):
        return None
    pairs = {}
    for kind in plan.kinds:
        places = containers(kind, present)
        ends = [""] if looking and places else [place for place in places if place != tool] if len(places) > 1 else []
        if ends and (not affordance or kind in wheel().affordances[affordance]):
            pairs[kind] = ends
    if not pairs:
        return None
    target = rng.choice(sorted(pairs))
    destination, lamp = rng.choice(pairs[target]), rng.choice(lamps) if looking else ""
    words = {"obj": target.lower(), "recep": destination.lower(), "toggle": lamp.lower()}
    return Task(task_type, target, destination, lamp, rng.choice(wheel().goals[task_type].sentences).format(**words))


def _draw_objects(
    rng: random.Random, task: Task, plan: FloorPlan, receptacles: Sequence[tuple[str, str]], distractors: int
) -> tuple[tuple[str, str, str], ...]:
    """The objects of the task, none of them where it shall be put, the lamp, and others."""
    present = {kind for kind, _ in receptacles}
    wanted = [task.target] * rng.randint(2 if task.task_type == "pick_two_obj_and_place" else 1, _MOST_OF_A_KIND)
    others = [kind for kind in plan.kinds if containers(kind, present) and kind != task.target] * _MOST_OF_A_KIND
    rng.shuffle(others)
    wanted += others[: rng.randint(distractors // 2, distractors)]
    objects = []
    for kind in wanted:
        places = [place for place in containers(kind, present) if kind != task.target or place != task.destination]
        objects.append((kind, _identifier(rng, kind), _any_of(rng, places, receptacles)))
    if task.lamp:
        desks = sorted(present & set(_UNDER_LAMPS))
        objects.append((task.lamp, _identifier(rng, task.lamp), _any_of(rng, desks, receptacles)))
    return tuple(sorted(objects))


def _any_of(rng: random.Random, kinds: Sequence[str], receptacles: Sequence[tuple[str, str]]) -> str:
    """A random receptacle of a random one of the kinds."""
    kind = rng.choice(kinds)
    return rng.choice([identifier for its_kind, identifier in receptacles if its_kind == kind])


def _identifier(rng: random.Random, kind: str) -> str:
    """The engine's name of a thing at a random place (metres); its third part is fine enough never to repeat."""
    place = "|".join(f"{rng.uniform(-9, 9):+06.2f}" for _ in range(2))
    basin = kind.removesuffix("Basin")
    name = f"{basin}|{place}|{rng.uniform(-9, 9):+012.8f}"
    return name if basin == kind else f"{name}|{kind}"
