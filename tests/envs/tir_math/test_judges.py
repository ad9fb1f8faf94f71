import importlib
import re
from pathlib import Path

import pytest

from arl_lightning.envs.tir_math.judges import ARITHMETIC_SCORERS, EVALUATING_SCORERS, Key, is_right

COUNTDOWN = Key("3 * 5 + 2", "countdown", {"numbers": [2, 3, 5], "target": 17})


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("1/2", "0.5"),
        ("\\frac{1}{2}", "0.5"),
        ("0.5", "\\dfrac{1}{2}"),
        ("1/2", "50\\%"),
        ("1,000", "1000"),
        ("1000", "1{,}000"),
        ("\\{1, 2\\}", "\\{2, 1\\}"),
        ("1, 2", "2, 1"),
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("x^2 + 1", "1 + x^2"),
        ("[0, 1)", "[0,1)"),
        ("5", "x = 5"),
        ("5", "5 \\text{ cm}"),
        ("12", "\\$12"),
        ("2^{10}", "1024"),
        ("(1, 2)", "(1,2)"),
        ("72", " 72. "),
        ("\\text{Monday}", "monday"),
        ("Monday", "\\text{Monday}."),
    ],
)
def test_the_same_answer_in_other_words_is_right(right: str, answer: str) -> None:
    assert is_right(Key(right), answer)


@pytest.mark.parametrize(
    ("right", "answer"),
    [
        ("1/2", "0.51"),
        ("50", "51\\%"),
        ("1000", "1"),
        ("\\{1, 2\\}", "\\{1, 3\\}"),
        ("\\{1, 2\\}", "\\{1\\}"),
        ("(1, 2)", "(2, 1)"),
        ("[0, 1)", "[0, 1]"),
        ("x", "y"),
        ("5", ""),
        ("5", "}{"),
        ("5", "\\frac{"),
        ("72", "seventy two"),
        ("Monday", "Tuesday"),
        ("Monday", "dayMon"),  # math-verify would take both for the product of the same six letters
        ("Yes", "No"),
    ],
)
def test_another_answer_is_wrong(right: str, answer: str) -> None:
    assert not is_right(Key(right), answer)


@pytest.mark.parametrize("answer", ["7", "+7", "7.0", "07", "$7$", "x = 7", "\\text{7}"])
def test_a_generated_number_is_right_when_it_is_written_out(answer: str) -> None:
    assert is_right(Key("7", "chain_sum"), answer)


@pytest.mark.parametrize("answer", ["3 + 4", "14/2", "7%", "7 or 8", "\\frac{14}{2}", "", "seven", "7e0"])
def test_the_question_handed_back_is_no_answer(answer: str) -> None:
    assert not is_right(Key("7", "chain_sum"), answer)


def test_thousands_may_be_separated() -> None:
    assert is_right(Key("1234567", "products"), "1,234,567")
    assert not is_right(Key("1234567", "products"), "12,34567")


@pytest.mark.parametrize("answer", ["2 + 3 * 5", "5*3+2", "(3 \\times 5) + 2", "(3 \\cdot 5 + 2)"])
def test_countdown_takes_any_expression_of_all_the_numbers(answer: str) -> None:

    assert is_right(COUNTDOWN, answer)


@pytest.mark.parametrize(
    "answer",
    ["17", "3 * 5 + 1 + 1", "3 * 5 + 2 = 17", "2 + 3 + 5", "3 ** 5", "2 +", "__import__('os').system('true')", "x"],
)
def test_countdown_takes_nothing_else(answer: str) -> None:
    assert not is_right(COUNTDOWN, answer)


def test_no_text_of_a_model_reaches_a_scorer_that_would_run_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = f"open({str(trace)!r}, 'w').close() or 17"
    for generator in sorted(EVALUATING_SCORERS - {"codeio"}):
        assert not is_right(Key("no number", generator, COUNTDOWN.metadata), code)
    assert not trace.exists()


def test_every_scorer_that_evaluates_text_is_known() -> None:
    factory = importlib.import_module("reasoning_gym.factory")
    evaluating = re.compile(r"\b(?:sympy\.|sp\.)?(?:parse_expr|eval|exec|sympify)\(")
    found = set()
    for name, (data_set, _) in factory.DATASETS.items():
        source = Path(str(importlib.import_module(data_set.__module__).__file__)).read_text(encoding="utf-8")
        scorer = re.search(r"    def score_answer\(.*?(?=\n    def |\nclass |\Z)", source, re.DOTALL)
        if scorer and evaluating.search(scorer[0]):
            found.add(name)
    assert found - {"propositional_logic"} <= EVALUATING_SCORERS  # that one's `parse_expr` is its own parser
    assert found >= ARITHMETIC_SCORERS  # the search finds something


@pytest.mark.parametrize(
    "answer", ["2 × 2 × 3", "3 \\times 2 \\times 2", "2^2 \\cdot 3", "2*2*3", "2**2 * 3", "2^{2}×3"]
)
def test_a_factorization_is_right_in_any_order_and_notation(answer: str) -> None:
    assert is_right(Key("2 × 2 × 3", "prime_factorization"), answer)


@pytest.mark.parametrize("answer", ["12", "4 × 3", "2 × 3", "2 × 2 × 3 × 1", "a × b", ""])
def test_a_product_of_other_factors_is_no_factorization(answer: str) -> None:
    assert not is_right(Key("2 × 2 × 3", "prime_factorization"), answer)


def test_a_fraction_is_right_in_lowest_terms_only() -> None:
    half = {"simplified_numerator": 1, "simplified_denominator": 2, "numerator": 4, "denominator": 8}
    key = Key("$\\frac{1}{2}$", "fraction_simplification", half)
    assert [is_right(key, answer) for answer in ("1/2", "\\dfrac{1}{2}", "$1/2$")] == [True] * 3
    assert [is_right(key, answer) for answer in ("4/8", "\\frac{4}{8}", "0.5", "2")] == [False] * 4
    one = {"simplified_numerator": 1, "simplified_denominator": 1, "numerator": 8, "denominator": 8}
    assert is_right(Key("1/1", "fraction_simplification", one), "1")


def test_roots_are_right_in_any_order_within_their_rounding() -> None:
    key = Key("-0.3773, 0.4005", "polynomial_equations")
    for answer in ("0.4005, -0.3773", "-0.3774,0.4005", "-0.3773, 0.4006"):
        assert is_right(key, answer)
    for answer in ("0.4005", "-0.3773, 0.4005, 1", "-0.3773, 0.4007", "-0.3773, banana", ""):
        assert not is_right(key, answer)
    assert is_right(Key("", "polynomial_equations"), "")
    assert not is_right(Key("", "polynomial_equations"), "0")


def test_weekdays_and_yes_are_words() -> None:
    assert is_right(Key("Monday", "calendar_arithmetic", {"task": "weekday_of_date"}), "monday")
    assert not is_right(Key("Monday", "calendar_arithmetic", {"task": "weekday_of_date"}), "Mon")
    assert is_right(Key("-1", "calendar_arithmetic", {"task": "recurring_event_day"}), "-1")
    assert not is_right(Key("-1", "calendar_arithmetic", {"task": "recurring_event_day"}), "5")
