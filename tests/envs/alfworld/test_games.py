import json
import random
from pathlib import Path

import pytest

from arl_lightning.envs.alfworld.games import GeneratedGames, PublishedGames, split_of
from arl_lightning.envs.alfworld.households import Household, HouseholdSpec, draw_household
from arl_lightning.envs.alfworld.pddl import write_game
from arl_lightning.envs.alfworld.wheel import TASK_TYPES
from arl_lightning.types import ArlError

HELD_OUT = ("validation", "test", "demonstration")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for seed in range(80):
        part = "train" if seed < 60 else "valid_seen" if seed < 70 else "valid_unseen"
        write_game(draw_household(random.Random(seed), HouseholdSpec(distractors=2)), folder / part)
    return folder


def problems(folder: Path, split: str, count: int) -> list[str]:
    source = PublishedGames(split, str(folder), TASK_TYPES)
    return [source.game(seed).problem for seed in range(count)]


def test_generated_games_are_split_by_content() -> None:
    spec = HouseholdSpec(distractors=0)
    drawn = {split: GeneratedGames(split, spec) for split in ("train", *HELD_OUT)}
    problems = {split: {games.game(seed).problem for seed in range(50)} for split, games in drawn.items()}
    assert all(len(games) == 50 for games in problems.values())
    assert len(set().union(*problems.values())) == 200


def test_a_generated_game_s_household_belongs_to_the_split() -> None:
    spec = HouseholdSpec()
    for split in ("train", *HELD_OUT):
        for seed in range(10):
            rng = random.Random(seed)
            household = draw_household(rng, spec)
            while split_of(household.identity) != split:
                household = draw_household(rng, spec)
            assert household.task.sentence in GeneratedGames(split, spec).game(seed).grammar


def test_published_games_are_walked_in_a_mixed_order_each_once(published: Path) -> None:
    seen, unseen = problems(published, "validation", 10), problems(published, "test", 10)
    assert len(set(seen)) == len(set(unseen)) == 10
    assert set(seen).isdisjoint(unseen)
    assert problems(published, "validation", 20) == seen * 2
    assert len(set(problems(published, "all", 100))) == 80


def test_demonstrations_are_kept_out_of_training_by_task(published: Path) -> None:
    train, shown = set(problems(published, "train", 60)), set(problems(published, "demonstration", 60))
    assert train.isdisjoint(shown)
    assert len(train | shown) == 60
    tasks = [path.name for path in (published / "train").iterdir()]
    assert 0 < len(shown) < 20  # 60 / 10 = 6 are expected
    assert len(shown) == sum(
        len(list((published / "train" / task).iterdir())) for task in tasks if split_of(task) == "demonstration"
    )


def test_only_the_wanted_task_types_are_published(published: Path) -> None:
    source = PublishedGames("all", str(published), ["look_at_obj_in_light"])
    assert {source.game(seed).task_type for seed in range(40)} == {"look_at_obj_in_light"}


@pytest.mark.parametrize("split", ["train", "all"])
def test_a_missing_folder_is_said_in_one_sentence(tmp_path: Path, split: str) -> None:
    with pytest.raises(ArlError, match=r"No game of the wanted task types in .*nowhere") as error:
        PublishedGames(split, str(tmp_path / "nowhere"), TASK_TYPES)
    assert "\n" not in str(error.value)


def test_broken_files_are_named(kitchen: Household, tmp_path: Path) -> None:
    trial = write_game(kitchen, tmp_path / "valid_seen")
    game = (trial / "game.tw-pddl").read_text()
    for broken, message in {"{": "cannot be read", "[]": "no JSON object", '{"solvable": true}': "lacks"}.items():
        (trial / "game.tw-pddl").write_text(broken)
        with pytest.raises(ArlError, match=message):
            problems(tmp_path, "validation", 1)
    (trial / "game.tw-pddl").write_text(game)
    (trial / "traj_data.json").unlink()
    with pytest.raises(ArlError, match=r"traj_data\.json cannot be read"):
        problems(tmp_path, "validation", 1)


def test_unsolvable_and_unsupported_games_are_passed_over(kitchen: Household, tmp_path: Path) -> None:
    trial = write_game(kitchen, tmp_path / "valid_seen")
    (trial / "game.tw-pddl").write_text(
        json.dumps({**json.loads((trial / "game.tw-pddl").read_text()), "solvable": False})
    )
    with pytest.raises(ArlError, match="None of the 1 games is marked solvable"):
        problems(tmp_path, "validation", 1)
    write_game(draw_household(random.Random(0), HouseholdSpec()), tmp_path / "valid_seen")
    assert len(set(problems(tmp_path, "validation", 5))) == 1
    trial.parent.rename(trial.parent.with_name("pick_cool_then_place_in_recep-AppleSliced-None-CounterTop-1"))
    assert len(PublishedGames("validation", str(tmp_path), TASK_TYPES)._trials) == 1


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ArlError, match="no split 'dev'"):
        GeneratedGames("dev", HouseholdSpec())
