import random

import numpy as np
import pytest

from arl_lightning.envs.tir_math.problems import (
    DEFAULT_GENERATORS,
    SPLIT_ENDS,
    GeneratedProblems,
    _identity,
    generated_problems,
    require_split,
    split_of,
)
from arl_lightning.types import ArlError

CHEAP = ("chain_sum", "gcd", "prime_factorization", "calendar_arithmetic")


def test_the_seed_goes_round_the_generators() -> None:
    source = generated_problems(None, "all")
    assert [source.problem(seed).task_type for seed in range(20)] == list(DEFAULT_GENERATORS) * 2


def test_global_generators_are_left_alone() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = (random.random(), np.random.random())
    random.seed(3)
    np.random.seed(3)
    GeneratedProblems({"pool_matrix": {}, "chain_sum": {}}, "train").problem(0)  # pool_matrix seeds numpy's
    assert (random.random(), np.random.random()) == expected


def test_splits_are_disjoint_and_drawn_by_content() -> None:
    drawn = {}
    for split in SPLIT_ENDS:
        source = generated_problems(CHEAP, split)
        drawn[split] = {source.problem(seed).question for seed in range(200)}
    assert all(len(questions) > 50 for questions in drawn.values())
    assert len(set.union(*drawn.values())) == sum(map(len, drawn.values()))


def test_two_wordings_of_one_problem_share_a_split() -> None:
    leap = {"task": "is_leap_year", "year": 2024, "source_index": 1}
    one = {"question": "Is 2024 a leap year?", "metadata": leap}
    other = {"question": "Tell me whether 2024 is a leap year.", "metadata": {**leap, "source_index": 2}}
    assert _identity("calendar_arithmetic", one) == _identity("calendar_arithmetic", other)
    assert _identity("gcd", {"question": "of 12, 8"}) == _identity("gcd", {"question": "of 8, 12"})
    assert _identity("gcd", {"question": "of 12, 8"}) != _identity("lcm", {"question": "of 12, 8"})
    assert _identity("spell_backward", {"question": "a1"}) != _identity("spell_backward", {"question": "b1"})


def test_shares_are_as_told() -> None:
    counts = dict.fromkeys(SPLIT_ENDS, 0)
    for number in range(10_000):
        counts[split_of(str(number))] += 1
    # 10 % each, 70 % for training; three standard deviations of 10,000 draws are 90 and 137.
    assert all(abs(counts[split] - 1_000) < 90 for split in ("test", "validation", "demonstration"))
    assert abs(counts["train"] - 7_000) < 137


def test_configurations_reach_the_generator() -> None:
    source = generated_problems({"chain_sum": {"min_terms": 3, "max_terms": 3, "max_digits": 1}, "gcd": None}, "all")  # type: ignore[dict-item]
    assert source.problem(0).key.metadata["num_terms"] == 3
    assert source.problem(1).task_type == "gcd"


def test_a_source_is_made_once_a_process() -> None:
    assert generated_problems(["gcd"], "train") is generated_problems(["gcd"], "train")
    assert generated_problems(["gcd"], "train") is not generated_problems(["gcd"], "test")


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(ArlError, match="no generator 'chain_som'"):
        generated_problems(["chain_som"], "all")
    with pytest.raises(ArlError, match="refuses the configuration"):
        generated_problems({"gcd": {"min_numbers": 1}}, "all")
    with pytest.raises(ArlError, match="refuses the configuration"):
        generated_problems({"gcd": {"terms": 1}}, "all")
    with pytest.raises(ArlError, match="at least one generator"):
        generated_problems([], "all")
    with pytest.raises(ArlError, match="not the text 'gcd'"):
        generated_problems("gcd", "all")
    with pytest.raises(ArlError, match="gives no answer"):
        generated_problems(["propositional_logic"], "all").problem(0)
    with pytest.raises(ArlError, match="no split 'dev'"):
        require_split("dev")


def test_a_generator_with_too_few_problems_for_a_split_says_so() -> None:
    alone = {"gcd": {"min_value": 1, "max_value": 2, "min_numbers": 2, "max_numbers": 2}}  # (1, 1), (1, 2), (2, 2)
    held = {split_of(f"gcd {numbers}") for numbers in ([1, 1], [1, 2], [2, 2])}
    for split in SPLIT_ENDS:
        source = generated_problems(alone, split)
        if split in held:
            assert source.problem(0).task_type == "gcd"
        else:
            with pytest.raises(ArlError, match="widen its configuration"):
                source.problem(0)
