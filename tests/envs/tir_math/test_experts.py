import contextlib
import io

import pytest

from arl_lightning.envs.tir_math.experts import write_program
from arl_lightning.envs.tir_math.judges import Key, is_right
from arl_lightning.envs.tir_math.problems import DEFAULT_GENERATORS, Problem, generated_problems


def printed(problem: Problem) -> str:
    """What the expert's program prints: run here, since we wrote it."""
    program = write_program(problem.key.generator, problem.question, problem.key.metadata)
    assert program
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program, {})
    return output.getvalue().strip()


@pytest.mark.parametrize("generator", sorted(DEFAULT_GENERATORS))
def test_the_expert_s_program_prints_the_right_answer(generator: str) -> None:
    source = generated_problems([generator], "all")
    for seed in range(40 if generator == "calendar_arithmetic" else 12):
        problem = source.problem(seed)
        assert is_right(problem.key, printed(problem)), problem


def test_all_calendar_tasks_are_known() -> None:
    source = generated_problems(["calendar_arithmetic"], "all")
    tasks = {source.problem(seed).key.metadata["task"] for seed in range(40)}
    assert len(tasks) == 7


def test_a_countdown_of_six_numbers_is_found() -> None:
    # ((75 - 50) * 25 + 11) * 7 / 3 = (636) * 7 / 3 = 1484
    numbers = {"numbers": [3, 7, 11, 25, 50, 75], "target": 1484}
    problem = Problem("", Key("0", "countdown", numbers), "countdown")
    assert is_right(problem.key, printed(problem))


def test_programs_are_computed_from_operands_not_from_the_answer() -> None:
    metadata = {"numbers": [12, 8], "result": "never read", "answer": "never read"}
    assert write_program("gcd", "", metadata) == "from math import gcd\nprint(gcd(12, 8))"


def test_a_generator_without_an_expert_has_no_program() -> None:
    assert write_program("sudoku", "", {}) is None
    assert write_program("", "a problem from a file", {}) is None
