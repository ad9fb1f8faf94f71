import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from arl_lightning.envs.contract import check_text_env
from arl_lightning.envs.webshop.catalogue import written
from arl_lightning.envs.webshop.environment import WebShopEnv
from arl_lightning.envs.webshop.shop import ShopSpec, open_shop
from arl_lightning.envs.webshop.synthetic import synthetic_records
from arl_lightning.protocols import ExpertEnv
from arl_lightning.types import INVALID_ACTION, ArlError

SMALL: dict[str, Any] = {"products": 200, "categories": 4}


def buy(env: WebShopEnv, seed: int, without: int = 0) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """The step that buys the expert's product, the last `without` choices left out."""
    env.reset(seed=seed)
    actions = []
    while following := env.expert_actions():
        actions.append(following[0])
        env.step(following[0])
    env.reset(seed=seed)
    for action in actions[: len(actions) - 1 - without]:
        env.step(action)
    return env.step("click[buy now]")


def test_the_contract_of_text_environments_is_kept() -> None:
    check_text_env(lambda: WebShopEnv(**SMALL))
    check_text_env(lambda: WebShopEnv(**SMALL, split="test", max_steps=4, reward="graded", results_per_page=3))


def test_gymnasium_s_own_checker_passes() -> None:
    check_env(WebShopEnv(**SMALL), skip_render_check=True)
    assert isinstance(WebShopEnv(**SMALL), ExpertEnv)


def test_reset_shows_instruction_and_state() -> None:
    env = WebShopEnv(**SMALL)
    observation, state = env.reset(seed=3)
    instruction = env.goal.instruction
    assert observation == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    assert state == {
        "success": False,
        "state_key": (instruction, "search", "", 1, None, ()),
        "admissible_actions": (f"search[{instruction}]",),
        "task_type": f"webshop-{env.goal.target.category}",
        "action_valid": True,
        "graded_reward": 0.0,
    }


def test_the_first_seeds_of_a_split_name_different_goals_and_large_ones_repeat_them() -> None:
    env = WebShopEnv(**SMALL, split="validation")
    count = len(env.shop.goals["validation"])
    keys = [env.reset(seed=seed)[1]["state_key"] for seed in range(count)]
    assert [key[0] for key in keys] == [goal.instruction for goal in env.shop.goals["validation"]]
    assert len(set(keys)) == count
    assert env.reset(seed=5 + count * 10**12)[1]["state_key"] == keys[5]
    assert env.reset(seed=2**63 - 1)[1]["state_key"] in keys


def test_splits_share_no_instruction_and_make_up_all() -> None:
    shop = WebShopEnv(**SMALL).shop
    parts = [{goal.instruction for goal in shop.goals[n]} for n in ("train", "validation", "test", "demonstration")]
    assert min(len(part) for part in parts) > 10
    assert set.union(*parts) == {goal.instruction for goal in shop.goals["all"]}
    assert sum(len(part) for part in parts) == len(shop.goals["all"])


def test_a_full_purchase_succeeds_and_pays_in_both_settings() -> None:
    for reward in ("sparse", "graded"):
        observation, paid, terminated, truncated, state = buy(WebShopEnv(**SMALL, reward=reward), 2)
        assert (paid, terminated, truncated) == (10.0, True, False)
        assert (state["success"], state["graded_reward"], state["admissible_actions"]) == (True, 1.0, ())
        assert observation.endswith("Your score (min 0.0, max 1.0) [SEP] 1.00")


def test_a_purchase_with_a_choice_missing_pays_nothing_or_its_share() -> None:
    sparse, graded = WebShopEnv(**SMALL), WebShopEnv(**SMALL, reward="graded", success_reward=1.0)
    seed = next(seed for seed in range(50) if len(sparse.shop.goal("all", seed).options) == 2)
    wanted = len(sparse.shop.goal("all", seed).attributes) + 3  # two options and the price
    assert buy(sparse, seed, without=1)[1] == 0.0
    _, paid, terminated, _, state = buy(graded, seed, without=1)
    assert paid == pytest.approx((wanted - 1) / wanted)
    assert (terminated, state["success"], state["graded_reward"]) == (True, False, paid)


@pytest.mark.parametrize("action", [INVALID_ACTION, "", "click[buy now]", "search[]", "search", "x" * 5000])
def test_any_other_text_is_invalid_and_costs_a_step(action: str) -> None:
    env = WebShopEnv(**SMALL, max_steps=2)
    observation, before = env.reset(seed=0)
    after, paid, terminated, truncated, state = env.step(action)
    assert after == f"{observation} [SEP] Invalid action: nothing happened."
    assert after in env.observation_space
    assert (paid, terminated, truncated, state["action_valid"]) == (0.0, False, False, False)
    assert state["state_key"] == before["state_key"]
    assert env.step(action)[3]


def test_buying_with_the_last_step_terminates_and_does_not_truncate() -> None:
    env = WebShopEnv(**SMALL)
    env.reset(seed=2)
    steps = 0
    while actions := env.expert_actions():
        env.step(actions[0])
        steps += 1
    assert buy(WebShopEnv(**SMALL, max_steps=steps), 2)[2:4] == (True, False)
    assert ends_after(WebShopEnv(**SMALL, max_steps=steps - 1), steps - 1) == (False, True)


def ends_after(env: WebShopEnv, steps: int) -> tuple[bool, bool]:
    """Whether the expert's episode of seed 2 has terminated and is truncated after so many steps."""
    env.reset(seed=2)
    ends = [env.step(env.expert_actions()[0])[2:4] for _ in range(steps)]
    return ends[-1]


def test_a_step_before_the_reset_or_after_the_end_is_refused() -> None:
    env = WebShopEnv(**SMALL)
    for use in (lambda: env.step("search[shampoo]"), env.expert_actions):
        with pytest.raises(ResetNeeded, match="before its first reset"):
            use()
    buy(env, 0)
    assert env.expert_actions() == ()
    with pytest.raises(ResetNeeded, match="is over"):
        env.step("click[back to search]")
    truncated = WebShopEnv(**SMALL, max_steps=1)
    truncated.reset(seed=0)
    assert truncated.step("search[shampoo]")[3]
    assert truncated.expert_actions() == ()


def test_state_keys_tell_pages_queries_and_choices_apart_and_not_history() -> None:
    env = WebShopEnv(**SMALL)
    rng = random.Random(0)
    shown: dict[Any, str] = {}
    for seed in range(30):
        _, state = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, _, terminated, truncated, state = env.step(rng.choice(state["admissible_actions"]))
            assert shown.setdefault(state["state_key"], observation) == observation
            assert env.goal.instruction in observation
            assert observation in env.observation_space
            ended = terminated or truncated
    env.reset(seed=0)
    first = env.step("search[Shampoo for hair]")[4]["state_key"]
    env.step("click[back to search]")
    assert env.step("search[shampoo, hair]")[4]["state_key"] == first
    env.step("click[back to search]")
    assert env.step("search[hair]")[4]["state_key"] != first


def test_an_instruction_can_be_asked_for_from_any_split() -> None:
    wanted = WebShopEnv(**SMALL, split="test").shop.goals["test"][0]
    env = WebShopEnv(**SMALL, split="train")
    assert wanted.instruction in env.reset(options={"instruction": wanted.instruction})[0]
    assert env.goal is wanted
    with pytest.raises(ArlError, match="no goal with the instruction 'a pony'"):
        env.reset(options={"instruction": "a pony"})


def test_the_shop_is_built_once_for_the_same_arguments() -> None:
    assert WebShopEnv(**SMALL).shop is WebShopEnv(**SMALL, split="test", reward="graded").shop
    assert WebShopEnv(**SMALL).shop is not WebShopEnv(**SMALL, catalogue_seed=1).shop


def test_a_shop_of_files_plays_as_the_same_shop_without_them(tmp_path: Path) -> None:
    catalogue, attributes = written(*synthetic_records(200, 0, 4), str(tmp_path))
    filed, made = WebShopEnv(catalogue=catalogue, attributes=attributes), WebShopEnv(**SMALL)
    assert [filed.reset(seed=seed) for seed in range(20)] == [made.reset(seed=seed) for seed in range(20)]
    assert buy(filed, 2) == buy(made, 2)


def test_a_changed_file_makes_another_shop(tmp_path: Path) -> None:
    catalogue, attributes = written(*synthetic_records(20, 0), str(tmp_path))
    spec = ShopSpec(catalogue, attributes)
    first = open_shop(spec)
    assert open_shop(spec) is first
    written(*synthetic_records(30, 0), str(tmp_path))
    assert len(open_shop(spec).products) == 30


def test_an_ended_process_could_be_asked_again_with_pickled_arguments() -> None:
    arguments = {"split": "test", **SMALL}
    assert WebShopEnv(**pickle.loads(pickle.dumps(arguments))).reset(seed=0) == WebShopEnv(**arguments).reset(seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "no split 'dev': choose one of all, test, validation, demonstration, train"),
        ({"reward": "dense"}, "no reward 'dense': choose sparse or graded"),
        ({"max_steps": 0}, "max_steps >= 1"),
        ({"render_mode": "human"}, "does not render as 'human'"),
        ({"products": 0}, "products from 1 to 100000"),
        ({"categories": 46}, "categories from 1 to 45"),
        ({"goals_per_product": 0}, "goals_per_product >= 1"),
        ({"results_per_page": 0}, "1 <= results_per_page <= most_results"),
        ({"results_per_page": 60}, "1 <= results_per_page <= most_results"),
        ({"goals": "goals.json"}, "belong to a catalogue file"),
        ({"catalogue": "shop.json"}, "needs `attributes`, `goals` or both"),
        ({"catalogue": "missing.json", "goals": "goals.json"}, r"missing\.json cannot be read"),
        (
            {"products": 1, "goals_per_product": 1, "split": "demonstration"},
            "'demonstration' of this WebShop has no goal",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    make: Callable[..., WebShopEnv] = WebShopEnv
    with pytest.raises(ArlError, match=message):
        make(**arguments)
