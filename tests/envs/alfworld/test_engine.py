import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from arl_lightning.envs.alfworld.engine import Engine, Moment
from arl_lightning.envs.alfworld.fast_engine import FastEngine
from arl_lightning.envs.alfworld.games import Game, GeneratedGames
from arl_lightning.envs.alfworld.grammar import split_task
from arl_lightning.envs.alfworld.households import HouseholdSpec
from arl_lightning.envs.alfworld.stock_engine import StockEngine
from arl_lightning.envs.alfworld.wheel import TASK_TYPES
from arl_lightning.types import ArlError


@contextmanager
def opened(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.close()


def walk(engine: Engine, game: Game, steps: int) -> list[Moment | tuple[str, ...]]:
    """All that the engine shows on a walk that is random, now and then inadmissible, and now and then as planned."""
    rng = random.Random(game.problem)
    shown: list[Moment | tuple[str, ...]] = [moment := engine.start(game)]
    for step in range(steps):
        planned: tuple[str, ...] = ()
        if step % 3 == 0:
            shown.append(planned := engine.plan())
        moment = engine.play(rng.choice([*moment.commands, "eat the fridge", *planned[:1] * len(moment.commands)]))
        shown.append(moment)
        if moment.won:
            break
    return shown


def require_equal_walks(games: list[Game], steps: int) -> None:
    with opened(StockEngine()) as stock, opened(FastEngine()) as fast:
        for game in games:
            assert walk(fast, game, steps) == walk(stock, game, steps)


def generated(per_type: int, types: tuple[str, ...] = TASK_TYPES) -> list[Game]:
    return [GeneratedGames("all", HouseholdSpec((name,))).game(seed) for name in types for seed in range(per_type)]


def test_the_fast_path_shows_what_the_stock_engine_shows() -> None:
    require_equal_walks(generated(1, TASK_TYPES[1:3]), steps=9)


@pytest.mark.slow
def test_the_fast_path_shows_what_the_stock_engine_shows_in_sixty_games() -> None:
    games = generated(10)
    assert len({game.problem for game in games}) == 60
    require_equal_walks(games, steps=40)


def test_other_grammars_read_the_same_on_both_paths(kitchen_game: Game) -> None:
    """Commands that depend on the state, queries over several types, and a task that the parser takes apart."""
    grammar = kitchen_game.grammar
    for old, new in {
        "move {o} to {r}": "put {o} in/on {r}",
        "examine {r}": "examine {r}#overview_state(r)#",
        "You are not carrying anything.": "You know [{x.id + '!' | checked(x:object)}].",
        "put a cool apple in countertop": "{#overview(r)# | openable(r:receptacle)} wants an apple",
        "You close the {r.name}.": "You close the {r.name} on [{x.name | inreceptacle(x:object, r:receptacle)}].",
    }.items():
        assert old in grammar
        grammar = grammar.replace(old, new)
    game = replace(kitchen_game, grammar=grammar)
    commands = ["inventory", "go to fridge 1", "look", "inventory", "open fridge 1", "close fridge 1", "open fridge 1"]
    commands += ["inventory", "take apple 1 from fridge 1", "put apple 1 in/on fridge 1", "inventory"]
    with opened(StockEngine()) as stock, opened(FastEngine()) as fast:
        shown = [fast.start(game), *(fast.play(command) for command in commands)]
        assert shown == [stock.start(game), *(stock.play(command) for command in commands)]
    assert shown[0].feedback.endswith("Your task is to: a fridge 1 wants an apple.")
    assert "examine fridge 1(it is closed)" in shown[2].commands
    assert "examine fridge 1(it is open)" in shown[5].commands
    assert shown[6].feedback == "You close the fridge 1 on apple 1."
    assert "put apple 1 in/on fridge 1" in shown[9].commands


def test_a_plain_task_is_split_off_and_any_other_is_left(kitchen_game: Game) -> None:
    task, text = split_task(kitchen_game.grammar)
    assert task == "put a cool apple in countertop"
    assert text.replace("UNKNOWN GOAL", task) == kitchen_game.grammar
    odd = kitchen_game.grammar.replace(task, "put [the apple] away")
    assert split_task(odd) == ("UNKNOWN GOAL", odd)


@pytest.mark.parametrize("engine_class", [FastEngine, StockEngine])
def test_the_engine_leaves_arguments_and_output_alone(
    engine_class: type[Engine], kitchen_game: Game, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    output = sys.stdout
    unseen = replace(kitchen_game, problem=kitchen_game.problem + "\n" * (2 if engine_class is FastEngine else 3))
    with opened(engine_class()) as engine:
        engine.start(unseen)
        assert engine.plan()
    assert sys.argv == ["train.py", "--fast"]
    assert sys.stdout is output


@pytest.mark.parametrize("engine_class", [FastEngine, StockEngine])
def test_closed_engines_leave_their_library_to_the_next(engine_class: type[Engine], kitchen_game: Game) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("r-xp") if Path("/proc/self/maps").exists() else 0

    def played() -> list[Moment]:
        with opened(engine_class()) as first, opened(engine_class()) as second:
            return [first.start(kitchen_game), second.start(kitchen_game), first.play("look"), second.play("look")]

    before, libraries = played(), mapped()
    for _ in range(2):
        assert played() == before
    assert mapped() == libraries


def test_engines_hold_their_own_games(kitchen_game: Game) -> None:
    other = generated(1)[0]
    with opened(FastEngine()) as first, opened(FastEngine()) as second:
        start, elsewhere = first.start(kitchen_game), second.start(other)
        assert first.play("go to fridge 1").feedback == "You arrive at fridge 1. The fridge 1 is closed."
        assert second.play("nonsense") == replace(elsewhere, feedback="Nothing happens.")
        assert first.plan()[0] == "open fridge 1"
        assert first.start(kitchen_game) == start


def test_what_was_looked_at_is_no_part_of_the_state(kitchen_game: Game) -> None:
    with opened(FastEngine()) as engine:
        facts = engine.start(kitchen_game).facts
        for command in ("look", "inventory", "help", "go to the moon"):
            assert engine.play(command).facts == facts
        there = engine.play("go to fridge 1").facts
        assert there != facts
        assert engine.play("examine fridge 1").facts == there
        assert engine.play("open fridge 1").facts != there
        assert engine.play("close fridge 1").facts == there


def test_unreadable_pddl_is_said_in_one_sentence(kitchen_game: Game) -> None:
    for problem in ("", "(define (problem p) (:domain alfred))", kitchen_game.problem[:-40]):
        with opened(FastEngine()) as engine, pytest.raises(ArlError, match="cannot read a game's PDDL"):
            engine.start(replace(kitchen_game, problem=problem))
