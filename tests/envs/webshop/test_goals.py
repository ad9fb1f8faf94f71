import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arl_lightning.envs.webshop.catalogue import Product, parse_products
from arl_lightning.envs.webshop.goals import Goal, human_goals, price_limit, synthetic_goals
from arl_lightning.envs.webshop.reward import judge
from arl_lightning.envs.webshop.synthetic import synthetic_records
from arl_lightning.types import ArlError

Make = Callable[..., Product]


def products() -> tuple[Product, ...]:
    return parse_products(*synthetic_records(400, 0), "synthetic")


def test_every_synthetic_goal_is_met_by_its_target() -> None:
    goals = synthetic_goals(products(), 0, 3)
    assert len(goals) > 1150
    assert all(judge(goal, goal.target, goal.options).graded_reward == 1.0 for goal in goals)


def test_an_instruction_tells_all_that_is_wanted() -> None:
    for goal in synthetic_goals(products(), 0, 1):
        told = [goal.target.query, *goal.attributes, *(value for _, value in goal.options), f"{goal.price_limit:.2f}"]
        assert all(text in goal.instruction for text in told)


def test_instructions_are_distinct_and_the_order_is_seeded() -> None:
    goals = synthetic_goals(products(), 0, 2)
    assert len({goal.instruction for goal in goals}) == len(goals)
    assert synthetic_goals(products(), 0, 2) == goals
    assert synthetic_goals(products(), 1, 2) != goals


def test_the_limit_is_the_larger_of_two_of_the_next_four_tens() -> None:
    drawn = Counter(price_limit(24.0, random.Random(seed)) for seed in range(600))
    assert set(drawn) == {40.0, 50.0, 60.0}  # of 30, 40, 50, 60; 30 is never the larger one
    assert 60 < drawn[40.0] < 140  # 1 of 6 pairs
    assert 240 < drawn[60.0] < 360  # 3 of 6 pairs
    assert min(price_limit(30.0, random.Random(seed)) for seed in range(50)) == 50.0  # tens above 30: 40, 50, ...


def test_goals_are_split_by_kind_and_attributes() -> None:
    goals = synthetic_goals(products(), 0, 12)
    splits: dict[Any, set[str]] = {}
    for goal in goals:
        splits.setdefault((goal.target.query, frozenset(goal.attributes)), set()).add(goal.split)
    assert all(len(names) == 1 for names in splits.values())
    shares = Counter(next(iter(names)) for names in splits.values())
    total = sum(shares.values())
    assert total > 2000
    assert {name: round(count / total, 1) for name, count in shares.items()} == {
        "train": 0.7,
        "validation": 0.1,
        "test": 0.1,
        "demonstration": 0.1,
    }


def test_the_split_of_a_goal_never_changes(product: Make) -> None:
    goal = Goal(product(), ("soft", "classic fit"), (), 30.0, "")
    assert goal.split == Goal(product(name="x"), ("classic fit", "soft"), (("size", "small"),), 50.0, "y").split
    assert goal.split == "test"  # another split here means that published splits have moved


def write(folder: Path, goals: Any) -> str:
    path = folder / "goals.json"
    path.write_text(json.dumps(goals), encoding="utf-8")
    return str(path)


def test_human_goals_are_read_with_options_in_each_form(tmp_path: Path, product: Make) -> None:
    goals = {
        "B01": [
            {
                "instruction": "Get me a shirt.",
                "instruction_attributes": ["Classic Fit"],
                "instruction_options": ["color: Dark Blue", "small", "wool"],
                "worker": 5,
            },
            {
                "instruction": "A red one, price lower than 35 dollars",
                "instruction_attributes": [],
                "instruction_options": {"Color": "Red"},
            },
        ],
        "B99": [{"instruction": "for a product that is not sold here"}],
    }
    by_options = {goal.options: goal for goal in human_goals(write(tmp_path, goals), [product()], 0)}
    red, blue = by_options[("color", "red"),], by_options[("color", "dark blue"), ("size", "small"), ("", "wool")]
    assert (red.price_limit, red.instruction) == (35.0, "A red one, price lower than 35 dollars")
    assert blue.attributes == ("classic fit",)
    assert blue.price_limit in (40.0, 50.0, 60.0)  # the price is 24
    assert blue.instruction == f"Get me a shirt, and price lower than {blue.price_limit:.2f} dollars"


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ([], "goals.json must be a JSON object from asin to a list of goals"),
        ({"B99": []}, "goals.json has no goal for any product of the catalogue"),
        ({"B01": "shirt"}, "goals.json, product B01 must hold a list of goals"),
        ({"B01": ["shirt"]}, "goals.json, goal 0 of product B01 must be a JSON object"),
        ({"B01": [{}]}, "the field 'instruction' of goal 0 of product B01 must be a text"),
        (
            {"B01": [{"instruction": "x", "instruction_attributes": {}, "instruction_options": {"size": 3}}]},
            "the field 'instruction_options' of goal 0 of product B01 must map option names to texts",
        ),
        (
            {"B01": [{"instruction": "x", "instruction_attributes": [4]}]},
            "the field 'instruction_attributes' of goal 0 of product B01 must be a list of texts",
        ),
    ],
)
def test_faults_of_a_goal_file_are_told(tmp_path: Path, product: Make, goals: Any, message: str) -> None:
    with pytest.raises(ArlError) as fault:
        human_goals(write(tmp_path, goals), [product()], 0)
    assert message in str(fault.value)
    assert str(tmp_path) in str(fault.value)
