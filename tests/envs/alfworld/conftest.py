"""One kitchen that is small enough to know by heart."""

import pytest

from arl_lightning.envs.alfworld.games import Game
from arl_lightning.envs.alfworld.households import Household, Task
from arl_lightning.envs.alfworld.pddl import game_data

COUNTER, FRIDGE, SINK = "CounterTop|+01.00|+00.90|-02.00", "Fridge|+03.00|+00.00|-02.00", "Sink|+02.00|+00.90|-02.00"


@pytest.fixture
def kitchen() -> Household:
    return Household(
        task=Task("pick_cool_then_place_in_recep", "Apple", "CounterTop", "", "put a cool apple in countertop"),
        plan="FloorPlan1",
        receptacles=(("CounterTop", COUNTER), ("Fridge", FRIDGE), ("SinkBasin", f"{SINK}|SinkBasin")),
        objects=(
            ("Apple", "Apple|+03.00|+00.50|-02.00", FRIDGE),
            ("Knife", "Knife|+01.00|+00.95|-02.00", COUNTER),
            ("Mug", "Mug|+01.10|+00.95|-02.00", COUNTER),
        ),
    )


@pytest.fixture
def kitchen_game(kitchen: Household) -> Game:
    return Game.of(kitchen.task.task_type, game_data(kitchen))
