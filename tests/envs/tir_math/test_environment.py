import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from arl_lightning.envs.contract import check_text_env
from arl_lightning.envs.sandbox.execution import Execution
from arl_lightning.envs.tir_math.environment import SANDBOXES, TIRMathEnv
from arl_lightning.envs.tir_math.problems import DEFAULT_GENERATORS
from arl_lightning.protocols import ExpertEnv
from arl_lightning.types import INVALID_ACTION, ArlError

HALF = {"problem": {"question": "What is 2 / 4?", "answer": "\\frac{1}{2}"}}
ELSEWHERE = f"""
import os
from pathlib import Path
from arl_lightning.envs.tir_math.environment import TIRMathEnv

def children():
    return Path(f"/proc/self/task/{{os.getpid()}}/children").read_text()

env = TIRMathEnv(split="validation")
print([env.reset(seed=seed) for seed in (*range(10), 2**63 - 1)])
for closes in (True, False):
    env = TIRMathEnv(unsafe=True)
    env.reset(options={HALF!r})
    env.step("```python\\nprint(1)\\n```")
    assert env.step("\\\\boxed{{0.5}}")[1] == 1.0
    print(children())
    if closes:
        env.close()
        print(children())
"""
CHEAP = ("chain_sum", "gcd", "prime_factorization", "calendar_arithmetic")


class ScriptedSandbox:
    """Prints what the script says of a program, and fails on any other."""

    def __init__(self, script: dict[str, Execution]) -> None:
        self.script, self.ran = script, list[str]()

    def run(self, code: str) -> Execution:
        self.ran.append(code)
        return self.script.get(code.strip(), Execution("", "NameError: name 'x' is not defined"))

    def close(self) -> None: ...


class ScriptedMath(TIRMathEnv):
    """The environment with programs that are only looked up."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.scripted = ScriptedSandbox(
            {
                "print(0.5)": Execution("0.5\n", ""),
                "print(1)": Execution("1\n", ""),
                "pass": Execution("", ""),
                "print(1); x": Execution("1\n", "NameError: name 'x' is not defined"),
                "print('a' * 900)": Execution("a" * 450 + "\n... [450 more characters]", ""),
            }
        )

    def sandbox(self) -> ScriptedSandbox:
        return self.scripted


def program(code: str) -> str:
    return f"Let me compute.\n```python\n{code}\n```"


@pytest.fixture(scope="module")
def held() -> Iterator[TIRMathEnv]:
    """Keeps the shared grader alive from test to test: its start takes a second or two."""
    env = TIRMathEnv()
    env.reset(options=HALF)
    env.step("\\boxed{0.5}")
    yield env
    env.close()


@pytest.fixture
def env(held: TIRMathEnv) -> Iterator[ScriptedMath]:
    made = ScriptedMath()
    made.reset(options=HALF)
    yield made
    made.close()


def played(env: TIRMathEnv, actions: Sequence[str]) -> list[tuple[str, float, bool, bool]]:
    return [env.step(action)[:4] for action in actions]


def test_gymnasium_s_own_checker_passes(env: ScriptedMath) -> None:
    check_env(env, skip_render_check=True)


def test_the_contract_of_text_environments_is_kept(held: TIRMathEnv) -> None:
    actions = [program("print(1)"), program("x"), "\\boxed{1}", "hm"]
    check_text_env(lambda: ScriptedMath(split="test", generators=CHEAP), actions=actions)
    check_text_env(lambda: ScriptedMath(max_turns=1), seeds=range(2), actions=actions)


def test_reset_shows_the_problem_and_the_state(env: ScriptedMath) -> None:
    observation, state = env.reset(options=HALF)
    assert observation == "What is 2 / 4?"
    assert state == {
        "success": False,
        "state_key": ("What is 2 / 4?", ""),
        "admissible_actions": None,
        "task_type": "math",
    }


def test_a_program_then_the_right_box_earns_the_reward(env: ScriptedMath) -> None:
    observation, reward, terminated, truncated, state = env.step(program("print(0.5)"))
    assert (observation, reward, terminated, truncated) == ("Output:\n0.5", 0.0, False, False)
    assert (state["success"], state["action_valid"], state["void"]) == (False, True, False)
    assert state["state_key"] == ("What is 2 / 4?", "Output:\n0.5")
    observation, reward, terminated, truncated, state = env.step("So it is \\boxed{0.5}.")
    assert (reward, terminated, truncated, state["success"], state["action_valid"]) == (1.0, True, False, True, True)
    assert "over" in observation


def test_a_wrong_box_ends_the_episode_without_reward(env: ScriptedMath) -> None:
    _, reward, terminated, truncated, state = env.step("\\boxed{2}")
    assert (reward, terminated, truncated, state["success"], state["void"]) == (0.0, True, False, False, False)


def test_the_reward_of_success_can_be_set(held: TIRMathEnv) -> None:
    env = ScriptedMath(success_reward=10)
    env.reset(options=HALF)
    reward = env.step("\\boxed{1/2}")[1]
    assert (reward, type(reward)) == (10.0, float)
    env.close()


@pytest.mark.parametrize("action", [INVALID_ACTION, "", "The answer is 1/2.", "```python\nprint(1)", "\\boxed{1"])
def test_a_void_turn_ends_the_episode_and_changes_nothing(env: ScriptedMath, action: str) -> None:
    env.step(program("print(1)"))
    observation, reward, terminated, truncated, state = env.step(action)
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (state["action_valid"], state["void"], state["success"]) == (False, True, False)
    assert state["state_key"] == ("What is 2 / 4?", "Output:\n1")
    assert observation == "Neither a Python block nor a boxed answer: the episode is over."
    assert env.scripted.ran == ["print(1)\n"]


def test_two_programs_run_one_a_turn_and_the_second_is_what_is_known(env: ScriptedMath) -> None:
    assert played(env, [program("print(1); x"), program("print(0.5)"), "\\boxed{0.5}"]) == [
        ("Output:\n1\nError: NameError: name 'x' is not defined", 0.0, False, False),
        ("Output:\n0.5", 0.0, False, False),
        ("The answer is in: the episode is over.", 1.0, True, False),
    ]


def test_a_box_beside_a_program_is_not_graded(env: ScriptedMath) -> None:
    observation, reward, terminated, _, state = env.step(program("print(1)") + "\n\\boxed{1/2}")
    assert (observation, reward, terminated, state["success"]) == ("Output:\n1", 0.0, False, False)


def test_what_a_program_does_is_told_in_a_fixed_form(env: ScriptedMath) -> None:
    assert played(env, [program(code) for code in ("pass", "x", "print('a' * 900)")]) == [
        ("Output: nothing was printed.", 0.0, False, False),
        ("Error: NameError: name 'x' is not defined", 0.0, False, False),
        ("Output:\n" + "a" * 450 + "\n... [450 more characters]", 0.0, False, False),
    ]


def test_an_unanswered_episode_is_truncated_at_max_turns(held: TIRMathEnv) -> None:
    env = ScriptedMath(max_turns=2)
    env.reset(options=HALF)
    assert [step[2:] for step in played(env, [program("print(1)")] * 2)] == [(False, False), (False, True)]
    with pytest.raises(ResetNeeded, match="over"):
        env.step("\\boxed{1/2}")
    env.reset(options=HALF)
    assert [step[1:] for step in played(env, [program("print(1)"), "\\boxed{1/2}"])][1] == (1.0, True, False)


def test_a_step_before_the_reset_or_after_the_end_is_refused() -> None:
    env = ScriptedMath()
    for use in (lambda: env.step("x"), env.expert_actions, lambda: env.problem):
        with pytest.raises(ResetNeeded, match="before its first reset"):
            use()
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(ResetNeeded, match="is over"):
        env.step("x")


def test_a_seed_names_the_problem_and_no_seed_draws_the_next() -> None:
    env = TIRMathEnv(generators=CHEAP)
    first, drawn = env.reset(seed=2**63 - 1)[0], [env.reset()[0] for _ in range(5)]
    assert env.reset(seed=2**63 - 1)[0] == first
    assert [env.reset()[0] for _ in range(5)] == drawn
    assert TIRMathEnv(generators=CHEAP).reset(seed=2**63 - 1)[0] == first
    assert len({first, *drawn}) == 6


def test_the_expert_writes_its_program_then_boxes_its_output() -> None:
    env = ScriptedMath(generators={"gcd": {}})
    assert isinstance(env, ExpertEnv)
    env.reset(seed=0)
    (first,) = env.expert_actions()
    env.scripted.script[first.split("\n", 1)[1].removesuffix("\n```")] = Execution("4\n", "")
    env.step(program("print(1)"))
    assert env.expert_actions() == (first,)  # another program's output is not its own
    env.step(first)
    assert env.expert_actions() == ("\\boxed{4}",)
    env.step(program("x"))
    assert env.expert_actions() == (first,)
    env.step(first)
    assert env.expert_actions() == ("\\boxed{4}",)
    env.step(program("x"))
    assert env.expert_actions() == ()  # all five turns are gone


def test_the_expert_gives_up_when_no_turn_is_left_for_the_answer() -> None:
    env = ScriptedMath(generators={"gcd": {}}, max_turns=2)
    env.reset(seed=0)
    assert len(env.expert_actions()) == 1
    env.step(program("print(1)"))
    assert env.expert_actions() == ()
    env.reset(options=HALF)
    assert env.expert_actions() == ()  # nobody wrote an expert for problems from a file


def test_problems_can_come_from_a_file(tmp_path: Path, held: TIRMathEnv) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2", "type": "sums"}))
    env = ScriptedMath(problems=str(path))
    question, state = env.reset(seed=4)
    assert (question, state["task_type"]) == ("1 + 1?", "sums")
    assert env.step("\\boxed{2.0}")[1] == 1.0
    env.close()


def test_texts_of_all_alphabets_belong_to_the_spaces() -> None:
    env = TIRMathEnv()
    assert "2 × 2 √ 数" in env.observation_space
    assert "x" * 100_001 not in env.action_space
    assert env.action_space.sample() in env.action_space


def test_arguments_out_of_range_are_refused() -> None:
    for wrong in ({"max_turns": 0}, {"max_output": 63}, {"timeout_s": 0.0}, {"memory_mb": 0}):
        with pytest.raises(ArlError, match="needs max_turns"):
            TIRMathEnv(**wrong)
    with pytest.raises(ArlError, match="no split 'dev'"):
        TIRMathEnv(split="dev")
    with pytest.raises(ArlError, match="needs a question and an answer"):
        TIRMathEnv().reset(options={"problem": {"question": "1 + 1?"}})
    with pytest.raises(ArlError, match="not both"):
        TIRMathEnv(generators=["gcd"], problems="a.jsonl")


def test_experts_solve_held_out_problems_in_the_real_sandbox_and_nothing_is_left(held: TIRMathEnv) -> None:
    env, twin = TIRMathEnv(split="test", unsafe=True), TIRMathEnv(split="test", unsafe=True)
    solved = []
    for seed in range(len(DEFAULT_GENERATORS)):
        for player in (env, twin)[: 2 if seed == 0 else 1]:
            player.reset(seed=seed)
            while actions := player.expert_actions():
                state = player.step(actions[0])[4]
        solved.append(state["success"])
    assert solved == [True] * 10
    assert env.sandbox() is twin.sandbox()
    open_before = len(SANDBOXES)
    env.close()
    assert len(SANDBOXES) == open_before
    twin.close()
    twin.close()
    assert len(SANDBOXES) == open_before - 1


def test_a_failing_program_shows_its_error_in_the_real_sandbox() -> None:
    env = TIRMathEnv(timeout_s=1.0, unsafe=True)
    env.reset(options=HALF)
    assert env.step(program("print(1)\n1 / 0"))[0] == "Output:\n1\nError: ZeroDivisionError: division by zero"
    assert "time limit" in env.step(program("while True: pass"))[0]
    observation = env.step(program("print('a' * 9_000)"))[0]
    assert len(observation) <= len("Output:\n") + 512
    env.close()


@pytest.fixture(scope="module")
def fresh_interpreter() -> list[str]:
    """What `ELSEWHERE` prints where sets and dicts of text have another order."""
    other = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], env=other, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_seed_names_the_same_problem_in_each_process(fresh_interpreter: list[str]) -> None:
    env = TIRMathEnv(split="validation")
    assert fresh_interpreter[0] == repr([env.reset(seed=seed) for seed in (*range(10), 2**63 - 1)])


def test_no_process_is_left_after_close_nor_after_the_interpreter(fresh_interpreter: list[str]) -> None:
    while_open, after_close, at_the_end = map(str.split, fresh_interpreter[1:])
    assert (len(while_open), len(after_close), len(at_the_end)) == (2, 0, 2)  # a sandbox and a grader
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in at_the_end) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in at_the_end)


def test_arguments_are_plain_and_the_environment_can_be_made_by_its_id() -> None:
    arguments = {"split": "train", "generators": {"gcd": {"max_value": 50}}, "max_turns": 3}
    assert pickle.loads(pickle.dumps(arguments)) == arguments
    registered = gymnasium.envs.registration.EnvSpec(
        "arl/TIRMathTest-v0", entry_point="arl_lightning.envs.tir_math.environment:TIRMathEnv", kwargs=arguments
    )
    env = gymnasium.make(registered, disable_env_checker=True)
    assert env.reset(seed=0)[1]["task_type"] == "gcd"


@pytest.mark.slow
def test_the_expert_solves_what_a_random_policy_does_not(held: TIRMathEnv) -> None:
    env, rng = TIRMathEnv(split="test"), random.Random(0)
    wins = {"expert": 0, "random": 0}
    for seed in range(200):
        for who in wins:
            env.reset(seed=seed)
            over = False
            while not over:
                messages = {"expert": env.expert_actions(), "random": ("hm", program("print(0)"), "\\boxed{0}")}
                _, _, terminated, truncated, state = env.step(rng.choice(messages[who]))
                over = terminated or truncated
            wins[who] += state["success"]
    env.close()
    assert wins["expert"] >= 196  # 98 %
    assert wins["random"] <= 20  # some answers are 0
