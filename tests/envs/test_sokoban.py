import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from arl_lightning.envs import registration
from arl_lightning.envs.contract import check_text_env
from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.envs.sokoban_rooms import Room, canonical_form, room_split
from arl_lightning.protocols import ExpertEnv
from arl_lightning.types import INVALID_ACTION, ArlError

# Optimal solution: right, down, down, left, down, right (see test_sokoban_rooms).
SIX_MOVES = "######\n#P___#\n#_X__#\n#____#\n#__O_#\n######"
SOLUTION = ("right", "down", "down", "left", "down", "right")
ONE_STORED = "######\n#P√__#\n#_XO_#\n#____#\n#____#\n######"


def at(grid: str, boxes: int = 1, **arguments: float) -> SokobanEnv:
    env = SokobanEnv(
        boxes=boxes, step_reward=arguments.get("step_reward", -0.1), box_reward=arguments.get("box_reward", 1.0)
    )
    env.reset(options={"room": grid})
    return env


def test_gymnasium_s_own_checker_passes() -> None:
    env = gymnasium.make("arl/Sokoban-v0", disable_env_checker=False)
    check_env(env.unwrapped)
    assert isinstance(env.unwrapped, SokobanEnv)


def test_the_id_can_name_the_module_that_registers_it() -> None:
    env = gymnasium.make("arl_lightning.envs.registration:arl/Sokoban-v0", boxes=2)
    assert env.reset(seed=0)[1]["task_type"] == "sokoban-2box"


def test_registering_twice_is_harmless() -> None:
    before = gymnasium.registry["arl/Sokoban-v0"]
    registration.register_envs()
    assert gymnasium.registry["arl/Sokoban-v0"] is before


def test_the_contract_of_text_environments_is_kept() -> None:
    check_text_env(SokobanEnv)
    check_text_env(lambda: SokobanEnv(size=7, boxes=2, max_solution=12, max_steps=4, split="test", coordinates=True))


def test_a_seed_names_the_room_and_no_seed_draws_the_next() -> None:
    env = SokobanEnv()
    first, drawn = env.reset(seed=5)[0], [env.reset()[0] for _ in range(5)]
    assert env.reset(seed=5)[0] == first
    assert [env.reset()[0] for _ in range(5)] == drawn
    assert SokobanEnv().reset(seed=5)[0] == first
    assert len({first, *drawn}) > 3


def test_rooms_come_from_the_split() -> None:
    env = SokobanEnv(split="validation")
    assert {room_split(Room.parse(env.reset(seed=seed)[0])) for seed in range(50)} == {"validation"}


def test_reset_shows_the_grid_and_the_state() -> None:
    observation, state = SokobanEnv().reset(options={"room": SIX_MOVES})
    assert observation == SIX_MOVES
    assert state == {
        "success": False,
        "state_key": SIX_MOVES,
        "admissible_actions": ("up", "down", "left", "right"),
        "task_type": "sokoban-1box",
        "action_valid": True,
    }


def test_a_known_solution_earns_its_dense_rewards() -> None:
    env = at(SIX_MOVES)
    played = [env.step(action) for action in SOLUTION]
    assert [step[1] for step in played] == pytest.approx([-0.1] * 5 + [10.9])  # -0.1 + 1 + 10
    assert [step[2] for step in played] == [False] * 5 + [True]
    assert not any(step[3] for step in played)
    assert [step[4]["success"] for step in played] == [False] * 5 + [True]
    assert played[-1][0] == "######\n#____#\n#____#\n#____#\n#_P√_#\n######"


def test_a_sparse_reward_pays_the_solution_only() -> None:
    env = at(SIX_MOVES, step_reward=0.0, box_reward=0.0)
    assert [env.step(action)[1] for action in SOLUTION] == [0.0] * 5 + [10.0]


def test_a_box_pushed_off_its_target_costs_what_it_had_earned() -> None:
    env = at(ONE_STORED, boxes=2)
    assert env.step("right")[1] == pytest.approx(-1.1)  # -0.1 - 1
    assert env.room.boxes.isdisjoint(env.room.targets)


def test_player_on_a_target_and_box_on_a_target_have_their_symbols() -> None:
    env = at(ONE_STORED, boxes=2)
    assert env.step("right")[0] == "######\n#_SX_#\n#_XO_#\n#____#\n#____#\n######"


def test_a_move_into_a_wall_is_valid_and_moves_nothing() -> None:
    observation, reward, terminated, truncated, state = at(SIX_MOVES).step("up")
    assert observation == SIX_MOVES
    assert (reward, terminated, truncated, state["action_valid"]) == (-0.1, False, False, True)


def test_case_and_outer_blanks_do_not_matter() -> None:
    assert at(SIX_MOVES).step(" Down\n") == at(SIX_MOVES).step("down")


@pytest.mark.parametrize("action", [INVALID_ACTION, "", "go up", "up!", "updown", "√", "up" * 5000])
def test_any_other_text_is_invalid_and_costs_a_step(action: str) -> None:
    env = at(SIX_MOVES)
    observation, reward, terminated, truncated, state = env.step(action)
    assert observation == SIX_MOVES + "\nInvalid action."
    assert observation in env.observation_space
    assert (reward, terminated, truncated) == (-0.1, False, False)
    assert (state["action_valid"], state["state_key"]) == (False, SIX_MOVES)
    assert env.step("right")[4]["action_valid"]


def test_an_unsolved_episode_is_truncated_at_max_steps_and_invalid_steps_count() -> None:
    env = SokobanEnv(max_steps=3)
    env.reset(options={"room": SIX_MOVES})
    assert [env.step(action)[2:4] for action in ("up", "nonsense", "up")] == [(False, False)] * 2 + [(False, True)]


def test_solving_with_the_last_step_terminates_and_does_not_truncate() -> None:
    env = SokobanEnv(max_steps=6)
    env.reset(options={"room": SIX_MOVES})
    assert [env.step(action) for action in SOLUTION][-1][2:4] == (True, False)


def test_a_step_before_the_reset_or_after_the_end_is_refused() -> None:
    env = SokobanEnv()
    for use in (lambda: env.step("up"), env.expert_actions):
        with pytest.raises(ResetNeeded, match="before its first reset"):
            use()
    env.reset(options={"room": SIX_MOVES})
    for action in SOLUTION:
        env.step(action)
    with pytest.raises(ResetNeeded, match="is over"):
        env.step("up")


def test_an_expert_s_first_actions_solve_within_the_bound() -> None:
    env = SokobanEnv(boxes=2, max_solution=9)
    assert isinstance(env, ExpertEnv)
    for seed in range(20):
        env.reset(seed=seed)
        steps = 0
        while actions := env.expert_actions():
            steps += 1
            terminated, state = env.step(actions[-1])[2::2]
        assert terminated
        assert state["success"]
        assert 3 <= steps <= 9


def test_expert_actions_follow_the_state() -> None:
    env = at(SIX_MOVES)
    assert env.expert_actions() == ("down", "right")
    env.step("right")
    assert env.expert_actions() == ("down",)


def test_coordinates_are_told_when_asked_for_and_stay_out_of_the_state_key() -> None:
    env = SokobanEnv(boxes=2, coordinates=True)
    observation, state = env.reset(options={"room": ONE_STORED})
    told = ONE_STORED + "\nPlayer: (1, 1)\nBoxes: (1, 2), (2, 2)\nTargets: (1, 2), (2, 3)"
    assert observation == told
    assert state["state_key"] == ONE_STORED
    assert env.step("fly")[0] == told + "\nInvalid action."


@pytest.mark.parametrize("size", [5, 12])
def test_the_longest_observation_fits_the_space(size: int) -> None:
    env = SokobanEnv(size=size, boxes=2, coordinates=True, min_solution=1, max_solution=6)
    for seed in range(5):
        env.reset(seed=seed)
        assert env.step(INVALID_ACTION)[0] in env.observation_space


def test_a_room_that_does_not_fit_the_environment_is_refused() -> None:
    solved = "######\n#P_√_#\n#____#\n#____#\n#____#\n######"
    for grid in (ONE_STORED, solved, "#####\n#PXO#\n#___#\n#___#\n#####"):
        with pytest.raises(ArlError, match="options"):
            SokobanEnv().reset(options={"room": grid})


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ArlError, match="no room could be solved"):
        SokobanEnv(max_steps=2)  # the default asks for 3 moves at least
    with pytest.raises(ArlError, match="does not render as 'human'"):
        SokobanEnv(render_mode="human")


def test_ansi_renders_the_grid() -> None:
    env = SokobanEnv(render_mode="ansi")
    assert env.render_mode == "ansi"
    env.reset(options={"room": SIX_MOVES})
    assert env.render() == SIX_MOVES


def test_rgb_array_renders_a_tile_a_cell_and_each_symbol_looks_different() -> None:
    env = SokobanEnv(boxes=2, render_mode="rgb_array")
    env.reset(options={"room": ONE_STORED})  # has # _ O X √ P
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (144, 144, 3)  # 6 cells of 24 pixels
    assert picture.dtype == np.uint8
    env.step("right")  # the player stands on the target: S
    after = env.render()
    assert isinstance(after, np.ndarray)
    cells = [(picture, place) for place in ((0, 0), (1, 4), (2, 3), (2, 2), (1, 2), (1, 1))] + [(after, (1, 2))]
    tiles = {
        image[24 * row : 24 * row + 24, 24 * column : 24 * column + 24].tobytes() for image, (row, column) in cells
    }
    assert len(tiles) == 7


def test_no_render_mode_renders_nothing() -> None:
    assert at(SIX_MOVES).render() is None


def test_twins_of_a_test_room_are_never_trained_on() -> None:
    train, test = SokobanEnv(split="train"), SokobanEnv(split="test")
    forms = [{canonical_form(Room.parse(env.reset(seed=seed)[0])) for seed in range(100)} for env in (train, test)]
    assert forms[0].isdisjoint(forms[1])
