"""The words that a synthetic shop can show or be told, for models that know each word as a token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from arl_lightning.envs.webshop.pages import INVALID_SENTENCE, SEPARATOR, Page, observation
from arl_lightning.envs.webshop.shop import Shop, ShopSpec, open_shop

_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")


@lru_cache(maxsize=8)
def vocabulary(products: int = 5000, catalogue_seed: int = 0, categories: int | None = None) -> tuple[str, ...]:
    """All words of observations, instructions and the expert's actions in a synthetic shop, sorted; case is kept.

    A word is a run of letters, with `'` or `-` inside. Numbers, prices, punctuation and product ids (a `b` and digits)
    are left to single characters.

    More goals a product bring no further words.

    Args:
        products: as for `WebShopEnv`.
        catalogue_seed: as for `WebShopEnv`.
        categories: as for `WebShopEnv`.
    """
    shop = open_shop(ShopSpec(products=products, catalogue_seed=catalogue_seed, categories=categories))
    texts = ("search click", "back to search < prev next > description features reviews buy now", *_texts(shop))
    return tuple(sorted({word for text in texts for word in _WORD.findall(text)}))


def _texts(shop: Shop) -> Iterator[str]:
    """Every text of products and goals, and every kind of page at least once."""
    yield from (goal.instruction for goal in shop.goals["all"])
    for product in shop.products:
        yield from (product.title, product.description, product.query, *product.features)
        yield from (text for name, values in product.options for text in (name, *values))
    goal, product = shop.goals["all"][0], shop.products[0]
    chosen = (("", ""),)
    pages = [Page(), Page("results", "", 1), *(Page(kind, product=product) for kind in ("item", "done", "reviews"))]
    for page in (*pages, Page("results", "", 2), Page("item", product=product, chosen=chosen)):
        yield observation(shop, page, goal, 0.0)
    yield from (INVALID_SENTENCE, SEPARATOR, "Next < Prev")
