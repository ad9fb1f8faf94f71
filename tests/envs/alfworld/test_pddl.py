import json
from pathlib import Path

from arl_lightning.envs.alfworld.households import Household
from arl_lightning.envs.alfworld.pddl import game_data, mangled, problem_text, write_game

APPLE, FRIDGE = (
    "Apple_bar__plus_03_dot_00_bar__plus_00_dot_50_bar__minus_02_dot_00",
    mangled("Fridge|+03.00|+00.00|-02.00"),
)


def test_identifiers_are_mangled_as_published() -> None:
    assert mangled("Apple|+01.00|+00.95|-02.48") == "Apple_bar__plus_01_dot_00_bar__plus_00_dot_95_bar__minus_02_dot_48"


def test_the_problem_tells_the_room(kitchen: Household) -> None:
    text = problem_text(kitchen)
    for line in (
        "AppleType - otype",
        "FridgeType - rtype",
        f"{APPLE} - object",
        "(atLocation agent1 loc_bar_0_bar_0)",
        "(= (total-cost) 0)",
        f"(receptacleAtLocation {FRIDGE} loc_bar_2_bar_0)",  # the second receptacle
        f"(openable {FRIDGE})",
        "(canContain CounterTopType MugType)",
        f"(inReceptacle {APPLE} {FRIDGE})",
        f"(objectAtLocation {APPLE} loc_bar_2_bar_0)",
        f"(pickupable {APPLE})",
        f"(coolable {APPLE})",
        f"(sliceable {APPLE})",
    ):
        assert f"\n{line}\n" in text
    assert "(openable CounterTop" not in text
    assert "(heatable Knife" not in text
    assert "#" not in text
    assert text.count("(") == text.count(")")
    assert text.index("(:domain") < text.index("(:objects") < text.index("(:init") < text.index("(:goal")


def test_the_grammar_says_the_task(kitchen: Household) -> None:
    assert '"rhs": "Your task is to: put a cool apple in countertop."' in game_data(kitchen)["grammar"]


def test_a_game_is_written_in_the_published_layout(kitchen: Household, tmp_path: Path) -> None:
    trial = write_game(kitchen, tmp_path / "train")
    assert trial.parent.name == "pick_cool_then_place_in_recep-Apple-None-CounterTop-1"
    game, trajectory = (json.loads((trial / name).read_text()) for name in ("game.tw-pddl", "traj_data.json"))
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    assert trajectory["task_type"] == "pick_cool_then_place_in_recep"
    assert trajectory["pddl_params"] == {
        "object_target": "Apple",
        "parent_target": "CounterTop",
        "toggle_target": "",
        "mrecep_target": "",
        "object_sliced": False,
    }
    assert trajectory["turk_annotations"]["anns"][0]["task_desc"] == "put a cool apple in countertop"
