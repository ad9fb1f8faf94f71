import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from arl_lightning.envs.alfworld.environment import AlfWorldEnv
from arl_lightning.envs.alfworld.games import Game
from arl_lightning.envs.alfworld.households import HouseholdSpec, draw_household
from arl_lightning.envs.alfworld.pddl import write_game
from arl_lightning.envs.alfworld.wheel import TASK_TYPES, wheel
from arl_lightning.envs.contract import check_text_env
from arl_lightning.protocols import ExpertEnv
from arl_lightning.types import INVALID_ACTION, ArlError

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "a countertop 1, a fridge 1, and a sinkbasin 1.\n\nYour task is to: put a cool apple in countertop."
)
SOLUTION = {
    "go to fridge 1": "You arrive at fridge 1. The fridge 1 is closed.",
    "open fridge 1": "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.",
    "take apple 1 from fridge 1": "You pick up the apple 1 from the fridge 1.",
    "cool apple 1 with fridge 1": "You cool the apple 1 using the fridge 1.",
    "go to countertop 1": "You arrive at countertop 1. On the countertop 1, you see a knife 1, and a mug 1.",
    "move apple 1 to countertop 1": "You move the apple 1 to the countertop 1.",
}


def solve(env: AlfWorldEnv, seed: int, deviations: int = 0) -> list[str]:
    """The expert's episode after some random steps: observations, and last whether it succeeded."""
    rng = random.Random(seed)
    observation, state = env.reset(seed=seed)
    seen, over = [observation], False
    while not over:
        planned = env.expert_actions()[0]
        action = rng.choice(state["admissible_actions"]) if deviations > 0 else planned
        deviations -= 1
        observation, _, terminated, truncated, state = env.step(action)
        seen.append(observation)
        over = terminated or truncated
    return [*seen, f"success {state['success']}"]


def test_the_contract_of_text_environments_is_kept() -> None:
    check_text_env(AlfWorldEnv)
    check_text_env(lambda: AlfWorldEnv(split="test", task_types=["look_at_obj_in_light"], max_steps=4), seeds=range(2))


@pytest.mark.slow
def test_the_stock_engine_keeps_the_contract_too() -> None:
    check_text_env(lambda: AlfWorldEnv(fast=False), seeds=range(2))


def test_gymnasium_s_own_checker_passes() -> None:
    with closing(AlfWorldEnv()) as env:
        check_env(env)
        assert isinstance(env, ExpertEnv)


def test_a_known_solution_is_paid_once_at_its_end(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv()) as env:
        observation, state = env.reset(options={"game": kitchen_game})
        assert observation == INTRO
        assert state["task"] == "put a cool apple in countertop."
        assert state["task_type"] == "pick_cool_then_place_in_recep"
        assert env.reset(options={"game": kitchen_game}) == (observation, state)
        played = [env.step(action) for action in SOLUTION]
        assert [step[0] for step in played] == list(SOLUTION.values())
        assert [step[1] for step in played] == [0.0] * 5 + [10.0]
        assert [step[2] for step in played] == [False] * 5 + [True]
        assert not any(step[3] for step in played)
        assert [step[4]["success"] for step in played] == [False] * 5 + [True]
        assert all(step[4]["action_valid"] for step in played)
        assert all(step[0] in env.observation_space for step in played)
        assert env.expert_actions() == ()
        with pytest.raises(ResetNeeded, match="is over"):
            env.step("look")


def test_the_reward_of_success_can_be_chosen(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv(success_reward=1)) as env:
        env.reset(options={"game": kitchen_game})
        assert [env.step(action)[1] for action in SOLUTION] == [0.0] * 5 + [1.0]


def test_all_that_the_engine_allows_is_admissible(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv()) as env:
        env.reset(options={"game": kitchen_game})
        assert env.step("go to fridge 1")[4]["admissible_actions"] == (
            "examine fridge 1",
            "go to countertop 1",
            "go to sinkbasin 1",
            "help",
            "inventory",
            "look",
            "open fridge 1",
        )


@pytest.mark.parametrize("verb", ["put", "move", "PUT ", " Put"])
@pytest.mark.parametrize("place", ["in/on", "in", "on", "to"])
@pytest.mark.parametrize("grammar_says", ["move {o} to {r}", "put {o} in/on {r}"])
def test_putting_can_be_said_as_in_the_papers(kitchen_game: Game, verb: str, place: str, grammar_says: str) -> None:
    grammar = kitchen_game.grammar.replace("move {o} to {r}", grammar_says)
    game = Game(kitchen_game.task_type, kitchen_game.domain, grammar, kitchen_game.problem)
    with closing(AlfWorldEnv()) as env:
        env.reset(options={"game": game})
        for action in list(SOLUTION)[:-1]:
            env.step(action)
        observation, _, terminated, _, state = env.step(f"{verb} apple 1 {place} countertop 1\n")
        assert observation == "You move the apple 1 to the countertop 1."
        assert terminated
        assert state["action_valid"]


@pytest.mark.parametrize(
    "action",
    [INVALID_ACTION, "", "go to fridge", "go to fridge 1.", "put apple 1 in/on fridge 1", "open fridge 1", "é"],
)
def test_any_other_text_is_invalid_and_costs_a_step(kitchen_game: Game, action: str) -> None:
    with closing(AlfWorldEnv(max_steps=2)) as env:
        start = env.reset(options={"game": kitchen_game})[1]
        observation, reward, terminated, truncated, state = env.step(action)
        assert (observation, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, False)
        assert state == {**start, "action_valid": False}
        assert env.step(action)[2:4] == (False, True)
        assert env.expert_actions() == ()
        with pytest.raises(ResetNeeded, match="is over"):
            env.step("look")


def test_solving_with_the_last_step_terminates_and_does_not_truncate(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv(max_steps=6)) as env:
        env.reset(options={"game": kitchen_game})
        assert [env.step(action)[2:4] for action in SOLUTION][-1] == (True, False)


def test_nothing_works_before_the_first_reset_or_after_close(kitchen_game: Game) -> None:
    env = AlfWorldEnv()
    for _ in range(2):
        for use in (lambda: env.step("look"), env.expert_actions):
            with pytest.raises(ResetNeeded, match="before its first reset"):
                use()
        env.reset(options={"game": kitchen_game})
        env.close()
        env.close()


def test_a_game_that_cannot_be_read_leaves_none(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv()) as env:
        env.reset(options={"game": kitchen_game})
        with pytest.raises(ArlError, match="cannot read"):
            env.reset(options={"game": replace(kitchen_game, problem="(")})
        with pytest.raises(ResetNeeded):
            env.step("look")


def test_the_state_key_tells_states_and_games_apart(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv()) as env:
        start = env.reset(options={"game": kitchen_game})[1]["state_key"]
        keys = [env.step(action)[4]["state_key"] for action in SOLUTION]
        assert len({start, *keys}) == 7
        env.reset(options={"game": kitchen_game})
        assert [env.step(action)[4]["state_key"] for action in ("look", "help", "go to fridge 1")] == [
            start,
            start,
            keys[0],
        ]
        assert len({env.reset(seed=seed)[1]["state_key"] for seed in range(5)} | {start}) == 6


def test_the_published_key_is_the_observation(kitchen_game: Game) -> None:
    with closing(AlfWorldEnv(state_key="observation")) as env:
        assert env.reset(options={"game": kitchen_game})[1]["state_key"] == INTRO
        assert env.step(INVALID_ACTION)[4]["state_key"] == "Nothing happens."


def test_the_expert_solves_every_task_type_after_any_deviation() -> None:
    for task_type in TASK_TYPES:
        with closing(AlfWorldEnv(task_types=[task_type])) as env:
            straight, detour = solve(env, 0), solve(env, 0, deviations=12)
            assert straight[-1] == detour[-1] == "success True"
            assert len(straight) <= 14  # intro, at most 12 steps, success


def test_published_games_are_played(tmp_path: Path) -> None:
    rng = random.Random(5)
    for part in ("train", "valid_seen", "valid_unseen"):
        for _ in range(2):
            write_game(draw_household(rng, HouseholdSpec(distractors=2)), tmp_path / part)
    seen = set()
    for split in ("validation", "test", "all"):
        with closing(AlfWorldEnv(split=split, games=str(tmp_path))) as env:
            assert [solve(env, seed)[-1] for seed in range(2)] == ["success True"] * 2
            seen |= {env.reset(seed=seed)[1]["state_key"] for seed in range(6 if split == "all" else 2)}
    assert len(seen) == 6
    with pytest.raises(ArlError, match="let `games` name the folder"):
        AlfWorldEnv(games=str(tmp_path / "train"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "no split 'dev'"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"state_key": "text"}, "no state_key 'text'"),
        ({"task_types": ["juggle"]}, "task_types must name"),
        ({"games": "nowhere"}, "No game"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArlError, match=message):
        AlfWorldEnv(**arguments)  # type: ignore[arg-type]


def test_a_missing_alfworld_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld.gen.constants", None)  # importing it fails
    wheel.cache_clear()
    with pytest.raises(ArlError, match=r"pip install 'arl-lightning\[alfworld\]'"):
        AlfWorldEnv()


def play_in_threads(environments: int, fast: bool) -> list[list[str]]:
    """As many environments at once, each in a thread of its own."""
    together = threading.Barrier(environments)

    def play(seed: int) -> list[str]:
        with closing(AlfWorldEnv(fast=fast)) as env:
            together.wait(timeout=60)
            return solve(env, seed, deviations=5)

    with ThreadPoolExecutor(environments) as pool:
        return list(pool.map(play, range(environments)))


def test_environments_play_right_in_threads() -> None:
    threaded = play_in_threads(6, fast=True)
    with closing(AlfWorldEnv()) as env:
        assert threaded == [solve(env, seed, deviations=5) for seed in range(6)]
    assert {episode[-1] for episode in threaded} == {"success True"}


@pytest.mark.slow
def test_thirty_two_environments_play_right_in_threads_on_both_paths() -> None:
    fast = play_in_threads(32, fast=True)
    assert {episode[-1] for episode in fast} == {"success True"}
    assert play_in_threads(32, fast=False) == fast


def test_a_seed_names_the_same_game_in_a_process_that_hashes_differently_and_ends_in_peace(tmp_path: Path) -> None:
    """A pickled environment, `PYTHONHASHSEED` given, and several libraries of the engine closed before the end."""
    program = (
        "import json, pickle, sys\n"
        "envs = [pickle.loads(open(sys.argv[1], 'rb').read()) for _ in range(3)]\n"
        "shown = [(*e.reset(seed=s), e.expert_actions()) for e, s in zip(envs, (0, 1, 2**63 - 1))]\n"
        "print(json.dumps(shown), [e.close() for e in envs][1:0])\n"
    )
    env = AlfWorldEnv(split="test")
    (tmp_path / "env").write_bytes(pickle.dumps(env))
    printed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "env")],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
    ).stdout
    shown = [(*env.reset(seed=seed), env.expert_actions()) for seed in (0, 1, 2**63 - 1)]
    assert json.loads(printed.decode().removesuffix(" []\n")) == json.loads(json.dumps(shown))
    env.close()


@pytest.mark.slow
def test_thirty_two_environments_play_right_in_processes(tmp_path: Path) -> None:
    program = tmp_path / "play.py"
    program.write_text(
        "import json, multiprocessing, sys\n"
        "from arl_lightning.envs.alfworld.environment import AlfWorldEnv\n"
        "def play(seeds):\n"
        "    envs, episodes = [AlfWorldEnv() for _ in seeds], []\n"
        "    for env, seed in zip(envs, seeds):\n"
        "        episodes.append([env.reset(seed=seed)[0]])\n"
        "    while any(env.expert_actions() for env in envs):\n"  # all of a process's environments take turns
        "        for env, episode in zip(envs, episodes):\n"
        "            if actions := env.expert_actions():\n"
        "                observation, _, _, _, state = env.step(actions[0])\n"
        "                episode += [observation] + ['success True'] * state['success']\n"
        "    return episodes\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(4) as pool:\n"
        "        print(json.dumps(sum(pool.map(play, [range(k, k + 8) for k in range(0, 32, 8)]), [])))\n"
    )
    with closing(AlfWorldEnv()) as env:
        expected = [solve(env, seed) for seed in range(32)]
    for method in ("spawn", "forkserver"):
        printed = subprocess.run([sys.executable, str(program), method], check=True, capture_output=True).stdout
        assert json.loads(printed) == expected
    assert {episode[-1] for episode in expected} == {"success True"}


@pytest.mark.slow
def test_the_expert_solves_two_hundred_held_out_games_and_chance_few() -> None:
    solved, lucky, steps = Counter[str](), 0, []
    with closing(AlfWorldEnv(split="test")) as env:
        assert len({env.reset(seed=seed)[1]["state_key"] for seed in range(200)}) == 200
        for seed in range(200):
            episode = solve(env, seed)
            solved[episode[-1]] += 1
            steps.append(len(episode) - 2)  # without the first observation and the word about success
            lucky += solve_by_chance(env, seed)
    print(f"expert {solved}, {sum(steps) / 200:.1f} steps, at most {max(steps)}; chance {lucky} of 200")
    assert solved["success True"] >= 196  # 98 %
    assert lucky <= 20  # 10 %


def solve_by_chance(env: AlfWorldEnv, seed: int) -> bool:
    rng = random.Random(seed)
    state, over = env.reset(seed=seed)[1], False
    while not over:
        _, _, terminated, truncated, state = env.step(rng.choice(state["admissible_actions"]))
        over = terminated or truncated
    return bool(state["success"])
