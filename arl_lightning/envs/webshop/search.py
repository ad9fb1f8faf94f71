"""Search in the catalogue by BM25, best first, equally good products in catalogue order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from arl_lightning.envs.extras import load_extra
from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.words import search_words

_REMEMBERED = 8192  # queries; groups and experts ask the same ones again


class SearchIndex:
    """The products of a catalogue that hold at least one word of a query, ranked.

    Args:
        products: the catalogue.
        k1: how slowly repeated words saturate.
        b: share of the length normalisation, 0 to 1.

    Source: WebShop, arXiv:2207.01206, section 3; BM25 constants as in the plan of record (0.9 and 0.4).
    """

    def __init__(self, products: Sequence[Product], k1: float = 0.9, b: float = 0.4) -> None:
        self._bm25 = load_extra("bm25s", extra="webshop").BM25(k1=k1, b=b, method="lucene", backend="numpy")
        self._bm25.index([list(search_words(product.search_text)) for product in products], show_progress=False)
        self.ranked = lru_cache(maxsize=_REMEMBERED)(self._ranked)
        """`ranked(words, most)`: numbers of at most `most` products; words without effect may be among the words."""

    def _ranked(self, words: tuple[str, ...], most: int) -> tuple[int, ...]:
        if not words:
            return ()
        scores = np.asarray(self._bm25.get_scores(list(words)))
        # rounded, since sums in float32 may differ in the last digit between machines
        order = np.argsort(-np.round(scores, 4), kind="stable")[:most]
        return tuple(int(number) for number in order if scores[number] > 0)
