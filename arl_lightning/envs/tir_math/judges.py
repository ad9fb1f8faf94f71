"""Whether an answer is right. Runs inside the grading worker: it may be slow, and it reads text that a model wrote."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

# Scorers of reasoning-gym that evaluate the answer as Python: text that a model wrote must never reach them.
# The first two see it after all, but only when it has no other characters than those of plain arithmetic.
ARITHMETIC_SCORERS = frozenset({"countdown", "puzzle24"})
EVALUATING_SCORERS = ARITHMETIC_SCORERS | {
    "binary_matrix",
    "codeio",
    "intermediate_integration",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
_ARITHMETIC = re.compile(r"(?!.*(?:\*\s*\*|/\s*/))[-+*/()\d\s]+", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\$|\\[,;:! ]|\\[()\[\]]|\\(?:left|right|displaystyle)(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_POWER = re.compile(r"(\d+)\s*(?:\^|\*\*)\s*\{?\s*(\d{1,2})\s*\}?")
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, SyntaxError)  # scorers raise them on other forms
_ROUNDING = Fraction(1, 10_000)  # answers of polynomial_equations are rounded to four decimals


@dataclass(frozen=True, slots=True)
class Key:
    """What an answer is held against.

    Attributes:
        answer: the right answer, or one of several.
        generator: the reasoning-gym generator that made the problem; empty for problems from a file.
        metadata: what that generator's own scorer reads.
    """

    answer: str
    generator: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def is_right(key: Key, answer: str) -> bool:
    """True when `answer` is the key's answer, said in the same or in other words.

    Problems from a file are judged by math-verify. It would take `3 + 4` for 7, 4/8 for 1/2 and 12 for 2 × 2 × 3, so
    the generated problems, which ask for exactly that step, are judged by the written number or the generator's scorer.
    """
    if same_text(key.answer, answer):
        return True
    if not key.generator:
        return same_mathematics(key.answer, answer)
    if key.generator == "polynomial_equations":
        return _same_numbers(key.answer, answer)
    if key.generator in _NOTATIONS:
        return _scored(key, answer)
    if (number := _number(key.answer)) is not None:
        return _number(answer) == number
    if _own_scorer(key.generator):
        return _scored(key, answer)
    return same_mathematics(key.answer, answer)


def same_text(right: str, answer: str) -> bool:
    """True when both are the same but for blanks, dollar signs, text wrappers, a final stop, and the case of words."""
    right, answer = _plain(right), _plain(answer)
    if _is_word(right):
        right, answer = right.casefold(), answer.casefold()
    return right == answer


def same_mathematics(right: str, answer: str) -> bool:
    """True when math-verify finds both equal; words are never taken for products of their letters.

    Without time limits: math-verify's own use signals, and whoever calls this bounds it from outside.
    """
    if _is_word(_plain(right)):
        return False
    math_verify = importlib.import_module("math_verify")
    targets = (
        math_verify.LatexExtractionConfig(boxed_match_priority=0),
        math_verify.ExprExtractionConfig(),
    )
    both = [math_verify.parse(f"\\boxed{{{text}}}", targets, parsing_timeout=None) for text in (right, answer)]
    return bool(math_verify.verify(*both, timeout_seconds=None))


def _scored(key: Key, answer: str) -> bool:
    """What the generator's own scorer says of the answer, put into the notation that it reads."""
    written = _NOTATIONS.get(key.generator, _plain)(answer)
    if key.generator in ARITHMETIC_SCORERS and not _ARITHMETIC.fullmatch(written):
        return False
    entry = {"answer": key.answer, "metadata": dict(key.metadata)}
    try:
        return bool(_scorer(key.generator).score_answer(written, entry) == 1.0)
    except _UNREADABLE:
        return False


@lru_cache(maxsize=64)
def _scorer(generator: str) -> Any:
    return importlib.import_module("reasoning_gym").create_dataset(generator, seed=0, size=1)


def _own_scorer(generator: str) -> bool:
    """True when the generator brings a scorer of its own that may see a model's text."""
    if generator in EVALUATING_SCORERS - ARITHMETIC_SCORERS:
        return False
    base = importlib.import_module("reasoning_gym.dataset").ProceduralDataset
    return type(_scorer(generator)).score_answer is not base.score_answer


def _plain(text: str) -> str:
    unwrapped = _SPACING.sub(" ", _WRAPPED.sub(r"\1", text))
    return " ".join(unwrapped.split()).rstrip(".").strip()


def _is_word(plain: str) -> bool:
    return bool(re.search(r"[^\W\d_]{3,}", re.sub(r"\\[A-Za-z]+", "", plain))) and not re.search(r"\d", plain)


def _number(text: str) -> Fraction | None:
    """The decimal number that `text` is, perhaps after `x =` and with thousands separated; None for anything else."""
    written = re.sub(r"^[A-Za-z]\s*=", "", _plain(text.replace("{,}", ","))).replace(" ", "")
    if not re.search(r"\d", written) or not _NUMBER.fullmatch(written):
        return None
    return Fraction(written.replace(",", ""))


def _same_numbers(right: str, answer: str) -> bool:
    """True when both list the same decimal numbers, in any order, up to the rounding asked for."""
    wanted, given = _numbers(right), _numbers(answer)
    if wanted is None or given is None or len(wanted) != len(given):
        return False
    return all(abs(one - other) <= _ROUNDING for one, other in zip(sorted(wanted), sorted(given), strict=True))


def _numbers(text: str) -> list[Fraction] | None:
    """The numbers between the commas of `text`; None when anything else stands there."""
    parts = [_number(part) for part in text.split(",")] if text.strip() else []
    numbers = [number for number in parts if number is not None]
    return numbers if len(numbers) == len(parts) else None


def _operators(text: str) -> str:
    r"""Arithmetic with `*` and `/` in place of `\times`, `\cdot`, `×`, `\div`, `÷` and `\frac{a}{b}`."""
    text = _FRACTION.sub(r"((\1)/(\2))", text)
    return _plain(re.sub(r"\\times|\\cdot|×|·", "*", re.sub(r"\\div|÷", "/", text)))


def _factors(text: str) -> str:
    """Factors with the generator's `×` between them, powers written out."""
    product = re.sub(r"\\times|\\cdot|\*(?!\*)|·", "×", _plain(text).replace("**", "^"))
    return _POWER.sub(lambda power: " × ".join([power[1]] * int(power[2])), product)


def _fraction(text: str) -> str:
    """The fraction as `a/b`, a whole number over 1."""
    written = _plain(_FRACTION.sub(r"\1/\2", text))
    return written if "/" in written else f"{written}/1"


_NOTATIONS = {
    "countdown": _operators,
    "puzzle24": _operators,
    "prime_factorization": _factors,
    "fraction_simplification": _fraction,
}
