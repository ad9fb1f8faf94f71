import random
from collections import Counter
from dataclasses import replace

import pytest

from arl_lightning.envs.alfworld.games import SPLIT_ENDS, split_of
from arl_lightning.envs.alfworld.households import Household, HouseholdSpec, containers, draw_household
from arl_lightning.envs.alfworld.wheel import TASK_TYPES, wheel
from arl_lightning.types import ArlError


def drawn(count: int, spec: HouseholdSpec | None = None) -> list[Household]:
    return [draw_household(random.Random(seed), spec or HouseholdSpec()) for seed in range(count)]


def test_a_seed_names_the_household() -> None:
    assert drawn(20) == drawn(20)
    assert len({household.identity for household in drawn(200)}) == 200


def test_all_task_types_and_all_kinds_of_room_are_drawn() -> None:
    households = drawn(300)
    types = Counter(household.task.task_type for household in households)
    assert set(types) == set(TASK_TYPES)
    assert min(types.values()) > 25  # 300 / 6 = 50 are expected, with a standard deviation of 6.5
    hundreds = Counter(int(household.plan.removeprefix("FloorPlan")) // 100 for household in households)
    assert set(hundreds) == {0, 2, 3, 4}  # kitchens, living rooms, bedrooms, bathrooms
    assert len({household.plan for household in households}) > 80
    assert len({household.task.target for household in households}) > 40


@pytest.mark.parametrize("most", [8, 20, 30])
def test_rooms_have_as_many_receptacles_as_allowed_and_at_least_eight(most: int) -> None:
    counts = {len(household.receptacles) for household in drawn(300, HouseholdSpec(max_receptacles=most))}
    assert (min(counts), max(counts)) == (8, most)


def test_distractors_are_bounded() -> None:
    for household in drawn(100, HouseholdSpec(distractors=4)):
        others = [kind for kind, _, _ in household.objects if kind not in (household.task.target, household.task.lamp)]
        assert 2 <= len(others) <= 4
    for household in drawn(100, HouseholdSpec(distractors=0)):
        assert {kind for kind, _, _ in household.objects} <= {household.task.target, household.task.lamp}


def test_every_object_lies_where_it_fits_and_no_target_where_it_shall_go() -> None:
    for household in drawn(300):
        kind_of = {identifier: kind for kind, identifier in household.receptacles}
        for kind, _, place in household.objects:
            assert kind == household.task.lamp or kind in wheel().contents[kind_of[place]]
            assert kind != household.task.target or kind_of[place] != household.task.destination


def test_every_task_has_what_it_needs() -> None:
    tools = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
    for household in drawn(300):
        task, present = household.task, {kind for kind, _ in household.receptacles}
        verb = task.task_type.split("_")[1]
        targets = sum(kind == task.target for kind, _, _ in household.objects)
        assert targets >= (2 if task.task_type == "pick_two_obj_and_place" else 1)
        assert tools.get(verb) in {None, *present}
        assert task.destination != tools.get(verb)
        if task.task_type == "look_at_obj_in_light":
            assert task.lamp in {kind for kind, _, _ in household.objects}
        else:
            assert task.destination in containers(task.target, present)
        assert task.target.lower() in task.sentence


def test_identifiers_never_repeat() -> None:
    for household in drawn(300):
        names = [*(name for _, name in household.receptacles), *(name for _, name, _ in household.objects)]
        assert len(set(names)) == len(names)


def test_only_the_wanted_task_types_are_drawn() -> None:
    spec = HouseholdSpec(("look_at_obj_in_light", "pick_two_obj_and_place"))
    assert {household.task.task_type for household in drawn(50, spec)} == set(spec.task_types)


def test_identity_is_the_content_without_names_and_wording(kitchen: Household) -> None:
    renamed = replace(
        kitchen,
        task=replace(kitchen.task, sentence="cool some apple and put it in countertop"),
        plan="FloorPlan2",
        receptacles=kitchen.receptacles[::-1],
        objects=tuple((kind, name.replace("+0", "-0"), place) for kind, name, place in reversed(kitchen.objects)),
    )
    assert renamed.identity == kitchen.identity
    apple, knife, mug = kitchen.objects
    moved = replace(kitchen, objects=(apple, (*knife[:2], kitchen.receptacles[2][1]), mug))
    assert moved.identity != kitchen.identity
    other_task = replace(kitchen, task=replace(kitchen.task, destination="SinkBasin"))
    assert other_task.identity != kitchen.identity


def test_splits_have_their_shares() -> None:
    shares = Counter(split_of(household.identity) for household in drawn(1000))
    assert set(shares) == set(SPLIT_ENDS)
    for name, expected in {"train": 700, "validation": 100, "test": 100, "demonstration": 100}.items():
        assert abs(shares[name] - expected) < 50  # at least 3.4 standard deviations: sqrt(1000 * 0.7 * 0.3) = 14.5


@pytest.mark.parametrize(
    "arguments",
    [{"task_types": ()}, {"task_types": ("juggle",)}, {"max_receptacles": 7}, {"max_receptacles": 31},
     {"distractors": -1}],
)  # fmt: skip
def test_a_spec_out_of_range_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ArlError, match=r"task_types must name|has at most"):
        HouseholdSpec(**arguments)  # type: ignore[arg-type]
