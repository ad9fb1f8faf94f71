"""The scripted world keeps the laws that the package asks of real ones."""

import math

import gymnasium
import pytest
import torch
from gymnasium.error import ResetNeeded

from arl_lightning.protocols import ExpertEnv, RolloutPolicy
from arl_lightning.testing import (
    SCRIPTED_ENV,
    ContractError,
    Outcome,
    ScriptedEnv,
    ScriptedPolicy,
    check_text_env,
    scripted_episode,
    share_returns,
    tiny_policy,
)
from arl_lightning.types import INVALID_ACTION, Decoding, EpisodeGroup, StopReason, TokenBatch


def test_the_scripted_environment_keeps_the_contract() -> None:
    check_text_env(ScriptedEnv, seeds=range(5))


def test_a_scripted_environment_that_cannot_tell_tasks_apart_breaks_the_contract() -> None:
    with pytest.raises(ContractError, match="Different seeds must differ"):
        check_text_env(lambda: ScriptedEnv(places=[5]))


def test_the_id_works_with_gymnasium_make_and_imports_the_module_by_itself() -> None:
    env = gymnasium.make(SCRIPTED_ENV, places=(6, 8, 4))
    assert env.reset(seed=8)[0] == "place 4"  # 8 mod 3 = 2
    assert isinstance(env.unwrapped, ScriptedEnv)
    assert isinstance(env.unwrapped, ExpertEnv)


def test_an_action_does_what_the_script_says_and_any_other_nothing() -> None:
    env = ScriptedEnv({"jump": Outcome(reward=2.0, move=3, success=True, truncated=True)})
    env.reset(seed=4)
    observation, reward, terminated, truncated, info = env.step(INVALID_ACTION)
    assert (observation, reward, terminated, truncated, info["action_valid"]) == ("place 4", 0.0, False, False, False)
    observation, reward, terminated, truncated, info = env.step("jump")
    assert (observation, reward, terminated, truncated, info["action_valid"]) == ("place 7", 2.0, False, True, True)
    assert info["success"]
    assert info["state_key"] == 7


def test_faults_happen_on_demand_but_are_not_listed() -> None:
    env = ScriptedEnv()
    _, info = env.reset(seed=0)
    assert info["admissible_actions"] == ("win", "lose", "cut", "wait", "go")
    with pytest.raises(RuntimeError, match="the script says crash"):
        env.step("crash")
    assert math.isnan(env.step("nan")[1])


def test_only_the_failing_task_fails_and_only_at_its_step() -> None:
    with pytest.raises(RuntimeError, match="task 3 at step 0"):
        ScriptedEnv(failing_seeds=[3]).reset(seed=3)
    env = ScriptedEnv(failing_seeds=[3], failing_step=2)
    env.reset(seed=3)
    env.step("wait")
    with pytest.raises(RuntimeError, match="task 3 at step 2"):
        env.step("wait")
    env.reset(seed=4)
    assert [env.step("wait")[0] for _ in range(3)] == ["place 4"] * 3


def test_a_finished_scripted_episode_takes_no_further_step() -> None:
    env = ScriptedEnv()
    env.reset(seed=0)
    env.step("win")
    with pytest.raises(ResetNeeded):
        env.step("wait")


def test_the_expert_follows_its_plan_and_holds_its_last_entry() -> None:
    env = ScriptedEnv(expert=[("go", "wait"), ("win",)])
    env.reset(seed=0)
    plan = []
    for _ in range(3):
        plan.append(env.expert_actions())
        env.step("wait")
    assert plan == [("go", "wait"), ("win",), ("win",)]


def test_listed_answers_are_chosen_by_the_seed_alone() -> None:
    policy = ScriptedPolicy(["win", "lose"])
    completions = policy.answer([[1], [1, 2], [3]], [0, 1, 4], Decoding())
    assert [policy.tokenizer.decode(c.token_ids[:-1]) for c in completions] == ["win", "lose", "win"]  # 0, 1, 4 mod 2
    assert all(c.token_ids[-1] in policy.stop_token_ids for c in completions)
    assert policy.calls[0].seeds == (0, 1, 4)


def test_an_answer_is_cut_where_its_end_token_does_not_fit() -> None:
    policy = ScriptedPolicy(["<action>win</action>"], logprob=-0.5)  # three tokens, four with the end
    [whole] = policy.answer([[1]], [0], Decoding(max_new_tokens=4))
    [cut] = policy.answer([[1]], [0], Decoding(max_new_tokens=3))
    assert (whole.finished, len(whole.token_ids), whole.logprobs) == (True, 4, (-0.5,) * 4)
    assert (cut.finished, len(cut.token_ids)) == (False, 3)


def test_scores_are_the_given_numbers_at_action_positions() -> None:
    mask_NT = torch.tensor([[False, True], [True, False]])
    batch = TokenBatch(torch.ones(2, 2, dtype=torch.int64), torch.tensor([2, 1]), mask_NT, mask_NT.long() - 1)
    scores = ScriptedPolicy(["x"], logprob=-1.0, ref_logprob=-2.0, entropy=3.0).score(batch)
    assert scores.logprobs_NT.tolist() == [[0.0, -1.0], [-1.0, 0.0]]
    assert scores.ref_logprobs_NT.tolist() == [[0.0, -2.0], [-2.0, 0.0]]
    assert scores.entropies_NT.tolist() == [[0.0, 3.0], [3.0, 0.0]]


def test_the_scripted_policy_can_act_for_the_data_module() -> None:
    assert isinstance(ScriptedPolicy(["x"]), RolloutPolicy)


def test_shared_returns_leave_unusable_episodes_at_zero() -> None:
    failed = scripted_episode([5.0, 5.0], stop=StopReason.ERROR)
    group = EpisodeGroup(0, (scripted_episode([1.0, 2.0]), failed))
    assert share_returns([group], []) == [[[3.0, 3.0], [0.0, 0.0]]]  # 1 + 2 at both turns


def test_the_tiny_policy_is_a_language_model_of_the_given_words() -> None:
    policy = tiny_policy()
    ids = policy.tokenizer.encode("<action>win</action>", add_special_tokens=False)
    assert policy.tokenizer.convert_ids_to_tokens(ids) == ["<action>", "win", "</action>"]
    assert sum(p.numel() for p in policy.parameters()) < 10_000
