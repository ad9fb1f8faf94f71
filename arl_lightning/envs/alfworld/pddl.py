"""A household as the engine's game: a PDDL problem, a grammar that says the task, and the published JSON fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arl_lightning.envs.alfworld.households import Household
from arl_lightning.envs.alfworld.wheel import wheel

GAME_FILE = "game.tw-pddl"
TRAJECTORY_FILE = "traj_data.json"
UNKNOWN_GOAL = "UNKNOWN GOAL"  # what the wheel's grammar says in place of a task
_DOMAIN_TYPES = {  # the domain's actions name these
    "otype": ("ButterKnife", "Knife"),
    "rtype": ("Fridge", "Microwave", "SinkBasin"),
}
_PREDICATES = {"Heatable": "heatable", "Coolable": "coolable", "Cleanable": "cleanable", "Sliceable": "sliceable"}
_ESCAPES = {"|": "_bar_", "+": "_plus_", "-": "_minus_", ".": "_dot_"}


def game_data(household: Household) -> dict[str, Any]:
    """The content of the household's `game.tw-pddl`."""
    return {
        "pddl_domain": wheel().domain,
        "grammar": wheel().grammar.replace(UNKNOWN_GOAL, household.task.sentence),
        "pddl_problem": problem_text(household),
        "solvable": True,
        "walkthrough": None,
    }


def trajectory_data(household: Household) -> dict[str, Any]:
    """The fields of the household's `traj_data.json` that say what the task is."""
    task = household.task
    return {
        "task_type": task.task_type,
        "pddl_params": {
            "object_target": task.target,
            "parent_target": task.destination,
            "toggle_target": task.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": task.sentence}]},
        "scene": {"floor_plan": household.plan},
    }


def write_game(household: Household, folder: Path) -> Path:
    """The trial's folder, `<task>-<object>-<movable>-<receptacle>-<floor plan>/<trial>`, with its two files in it.

    Args:
        household: what to write.
        folder: the part of the data set, such as `train`; made when missing.
    """
    task = household.task
    number = household.plan.removeprefix("FloorPlan")
    name = f"{task.task_type}-{task.target}-None-{task.destination or task.lamp}-{number}"
    trial = folder / name / f"trial_{household.identity}"
    trial.mkdir(parents=True, exist_ok=True)
    (trial / GAME_FILE).write_text(json.dumps(game_data(household)), "utf-8")
    (trial / TRAJECTORY_FILE).write_text(json.dumps(trajectory_data(household)), "utf-8")
    return trial


def problem_text(household: Household) -> str:
    """The household as a PDDL problem of the wheel's domain; every receptacle has a location of its own."""
    locations = {identifier: f"loc_bar_{n}_bar_0" for n, (_, identifier) in enumerate(household.receptacles, 1)}
    lines = [f"(define (problem {household.task.task_type})", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += _objects(household, list(locations.values()))
    lines += [")", "(:init", "(= (total-cost) 0)", "(atLocation agent1 loc_bar_0_bar_0)"]
    lines += _room_facts(household, locations)
    lines += _object_facts(household, locations)
    lines += [")", _goal(household)]
    return "\n".join(lines)


def _objects(household: Household, locations: list[str]) -> list[str]:
    object_kinds = {kind for kind, _, _ in household.objects} | set(_DOMAIN_TYPES["otype"])
    receptacle_kinds = {kind for kind, _ in household.receptacles} | set(_DOMAIN_TYPES["rtype"])
    return [
        *(f"{kind}Type - otype" for kind in sorted(object_kinds)),
        *(f"{kind}Type - rtype" for kind in sorted(receptacle_kinds)),
        *(f"{name} - location" for name in ["loc_bar_0_bar_0", *locations]),
        *(f"{mangled(identifier)} - receptacle" for _, identifier in household.receptacles),
        *(f"{mangled(identifier)} - object" for _, identifier, _ in household.objects),
    ]


def _room_facts(household: Household, locations: dict[str, str]) -> list[str]:
    object_kinds = {kind for kind, _, _ in household.objects}
    receptacle_kinds = {kind for kind, _ in household.receptacles}
    facts = [
        f"(canContain {receptacle}Type {kind}Type)"
        for receptacle in sorted(receptacle_kinds)
        for kind in wheel().contents[receptacle]
        if kind in object_kinds
    ]
    for kind, identifier in household.receptacles:
        name = mangled(identifier)
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {locations[identifier]})"]
        if kind in wheel().openable:
            facts.append(f"(openable {name})")
    return facts


def _object_facts(household: Household, locations: dict[str, str]) -> list[str]:
    affordances = wheel().affordances
    facts = []
    for kind, identifier, place in household.objects:
        name = mangled(identifier)
        facts += [
            f"(objectType {name} {kind}Type)",
            f"(inReceptacle {name} {mangled(place)})",
            f"(objectAtLocation {name} {locations[place]})",
            f"({'toggleable' if kind in affordances['Toggleable'] else 'pickupable'} {name})",
            *(f"({predicate} {name})" for word, predicate in _PREDICATES.items() if kind in affordances[word]),
        ]
        if kind in wheel().movable_receptacles:
            facts.append(f"(isReceptacleObject {name})")
    return facts


def _goal(household: Household) -> str:
    """The goal library's goal, which also closes the problem; it writes `#` where PDDL has `-`."""
    task = household.task
    template = wheel().goals[task.task_type].pddl
    return template.format(obj=task.target, recep=task.destination, toggle=task.lamp).replace("#", "-").strip()


def mangled(identifier: str) -> str:
    """The identifier as a PDDL name: `Apple|+01.00` is `Apple_bar__plus_01_dot_00`."""
    for sign, word in _ESCAPES.items():
        identifier = identifier.replace(sign, word)
    return identifier
