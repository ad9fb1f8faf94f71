import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_lightning.envs.webshop.catalogue import written
from arl_lightning.envs.webshop.environment import WebShopEnv
from arl_lightning.envs.webshop.expert import make_plan
from arl_lightning.envs.webshop.reward import best_options, judge
from arl_lightning.envs.webshop.synthetic import synthetic_records


def test_the_expert_plans_a_full_reward_for_every_synthetic_goal() -> None:
    shop = WebShopEnv(products=400).shop
    for goal in shop.goals["all"]:
        plan = make_plan(shop, goal)
        assert plan.wanted
        for product in shop.products:
            if product.asin in plan.wanted:
                assert judge(goal, product, best_options(goal, product)).graded_reward == 1.0
                assert product.query == goal.target.query


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), wanders=st.integers(0, 8), choice=st.randoms(use_true_random=False))
def test_from_any_page_the_expert_earns_a_full_reward(seed: int, wanders: int, choice: random.Random) -> None:
    env = WebShopEnv(products=400, max_steps=30)
    _, state = env.reset(seed=seed)
    for _ in range(wanders):
        safe = [action for action in state["admissible_actions"] if action != "click[buy now]"]
        state = env.step(choice.choice(safe))[4]
    terminated = False
    while actions := env.expert_actions():
        assert len(actions) == 1
        _, _, terminated, _, state = env.step(actions[0])
        assert state["action_valid"]
    assert terminated
    assert state["graded_reward"] == 1.0


def test_two_hundred_held_out_goals_are_bought_within_fifteen_steps() -> None:
    env = WebShopEnv(products=1000, goals_per_product=3, split="test")
    keys = set()
    for seed in range(200):
        _, state = env.reset(seed=seed)
        keys.add(state["state_key"])
        while actions := env.expert_actions():
            state = env.step(actions[0])[4]
        assert state["success"]
    assert len(keys) == 200


def test_expert_searches_use_words_of_the_instruction() -> None:
    env = WebShopEnv(products=400)
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        words = env.expert_actions()[0].removeprefix("search[").removesuffix("]").split()
        assert all(word in observation for word in words)


def test_a_goal_out_of_reach_is_met_as_far_as_can_be(tmp_path: Path) -> None:
    records, attributes = synthetic_records(30, 0, 1)
    catalogue, named = written(records, attributes, str(tmp_path))
    wish = {"instruction": "x", "instruction_attributes": ["made of moonlight"], "instruction_options": []}
    goals = tmp_path / "goals.json"
    goals.write_text(json.dumps({records[0]["asin"]: [wish]}))
    env = WebShopEnv(catalogue=catalogue, attributes=named, goals=str(goals))
    env.reset(seed=0)
    state = {}
    while actions := env.expert_actions():
        state = env.step(actions[0])[4]
    assert state["graded_reward"] == pytest.approx(0.5)  # (0 + 0 + 1) / (1 + 0 + 1)
    assert not state["success"]
