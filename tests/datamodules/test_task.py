"""Tasks make environments by Gymnasium id, and what cannot be made is said in one sentence."""

from __future__ import annotations

from typing import cast

import gymnasium
import pytest

from arl_lightning.datamodules.conversation import WindowContext
from arl_lightning.datamodules.prompting import PromptTemplate, TaggedAction
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.protocols import TextEnv
from arl_lightning.testing import ScriptedEnv, scripted_task
from arl_lightning.types import ArlError


def task(env_id: str) -> Task:
    return Task(env_id, PromptTemplate(), TaggedAction(), WindowContext())


def unwrapped(env: TextEnv) -> object:
    return cast(gymnasium.Env[str, str], env).unwrapped


def test_the_packages_own_ids_are_known_without_an_import() -> None:
    assert isinstance(unwrapped(task("arl/Sokoban-v0").make_env({"size": 6})), SokobanEnv)


def test_an_environment_is_made_anew_each_time() -> None:
    first, second = (unwrapped(scripted_task().make_env({})) for _ in range(2))
    assert isinstance(first, ScriptedEnv)
    assert first is not second


def test_a_registered_step_limit_holds() -> None:
    gymnasium.register("tests/Limited-v0", entry_point="arl_lightning.testing:ScriptedEnv", max_episode_steps=2)
    env = task("tests/Limited-v0").make_env({})
    env.reset(seed=0)
    assert [env.step("wait")[3] for _ in range(2)] == [False, True]


def test_a_stages_options_win_over_the_tasks_own() -> None:
    env = unwrapped(scripted_task(places=[1], failing_step=4).make_env({"places": [2]}))
    assert isinstance(env, ScriptedEnv)
    assert (env.places, env.failing_step) == ([2], 4)


@pytest.mark.parametrize("env_id", ["arl/Nowhere-v0", "no namespace", "arl_lightning.no_such_module:arl/Sokoban-v0"])
def test_an_unknown_id_is_an_error_that_names_it(env_id: str) -> None:
    with pytest.raises(ArlError, match=env_id.replace(".", r"\.")):
        task(env_id).make_env({})


def test_an_option_that_the_environment_refuses_is_named() -> None:
    with pytest.raises(ArlError, match="depth"):
        scripted_task().make_env({"depth": 3})


def test_an_environments_own_advice_is_passed_on_unchanged() -> None:
    with pytest.raises(ArlError, match="no room could be solved"):
        task("arl/Sokoban-v0").make_env({"min_solution": 20, "max_solution": 20, "max_steps": 10})


def test_a_turn_limit_that_no_episode_would_ever_reach_is_refused() -> None:
    with pytest.raises(ArlError, match="max_turns"):
        scripted_task(max_turns=0)


def test_making_an_environment_changes_no_registered_options() -> None:
    task("arl/Sokoban-v0").make_env({"size": 7})
    assert gymnasium.spec("arl/Sokoban-v0").kwargs == {}
