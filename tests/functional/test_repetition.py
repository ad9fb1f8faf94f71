"""Repetition of responses, counted by hand."""

import pytest

from arl_lightning.functional.repetition import distinct_ngrams, repeated_tokens
from arl_lightning.types import Measure


@pytest.mark.parametrize(
    ("responses", "repeats", "pairs"),
    [
        ([], 0, 0),
        ([(), (7,)], 0, 0),
        ([(1, 2, 3)], 0, 2),
        ([(5, 5, 5, 6)], 2, 3),
        ([(5, 5), (5, 6, 6)], 2, 3),  # never across responses
    ],
)
def test_repeated_tokens(responses: list[tuple[int, ...]], repeats: int, pairs: int) -> None:
    assert repeated_tokens(responses) == Measure(repeats, pairs)


@pytest.mark.parametrize(
    ("responses", "distinct", "total"),
    [
        ([], 0, 0),
        ([(1, 2)], 0, 0),
        ([(1, 2, 3, 4)], 2, 2),
        ([(1, 2, 1, 2, 1, 2)], 2, 4),  # 121 212 121 212
        ([(9,) * 6], 1, 4),
        ([(1, 2, 3), (1, 2, 3)], 2, 2),  # each response by itself
    ],
)
def test_distinct_ngrams(responses: list[tuple[int, ...]], distinct: int, total: int) -> None:
    assert distinct_ngrams(responses) == Measure(distinct, total)


def test_the_length_of_a_gram_can_be_chosen() -> None:
    assert distinct_ngrams([(1, 2, 1, 2)], n=2) == Measure(2, 3)  # 12 21 12
