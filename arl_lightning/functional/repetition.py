"""How much a response repeats itself, as counts that add up over responses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from arl_lightning.types import Measure


def repeated_tokens(responses: Sequence[Sequence[int]]) -> Measure:
    """Share of tokens that equal the one before them; a response's first token has none before it."""
    repeats = sum(left == right for response in responses for left, right in pairwise(response))
    return Measure(repeats, sum(max(len(response) - 1, 0) for response in responses))


def distinct_ngrams(responses: Sequence[Sequence[int]], n: int = 3) -> Measure:
    """Different n-grams over all n-grams, each response by itself; one shorter than n counts for nothing.

    1 where no response says the same n tokens twice, near 0 where each runs in a loop.

    Source: A Diversity-Promoting Objective Function for Neural Conversation Models, arXiv:1510.03055 (distinct-n)
    """
    distinct = total = 0
    for response in responses:
        grams = list(zip(*(response[i:] for i in range(n)), strict=False))
        distinct += len(set(grams))
        total += len(grams)
    return Measure(distinct, total)
