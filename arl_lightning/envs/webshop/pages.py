"""The pages of the shop as a pure state machine: what a page offers, shows, and where an action leads."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.goals import Goal
from arl_lightning.envs.webshop.shop import Shop, normalised

Kind = Literal["search", "results", "item", "description", "features", "reviews", "done"]

SEPARATOR = " [SEP] "
INVALID_SENTENCE = "Invalid action: nothing happened."
MOST_SHOWN = 2000  # characters of a text on a page of its own; the rest is cut
_SUB_PAGES: dict[str, Kind] = {"description": "description", "features": "features", "reviews": "reviews"}
_ACTION = re.compile(r"\s*(search|click)\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """Where a buyer stands: kind of page, query as search understands it, page of results from 1, product, choices.

    `chosen` holds (option name, value) pairs in the order of the product's options; a product opened from the results
    has none chosen.
    """

    kind: Kind = "search"
    query: str = ""
    number: int = 1
    product: Product | None = None
    chosen: tuple[tuple[str, str], ...] = ()

    @property
    def item(self) -> Product:
        """The product of an item page or of one of its sub-pages."""
        assert self.product is not None
        return self.product


def clickables(shop: Shop, page: Page) -> tuple[str, ...]:
    """What can be clicked on a page, lower-cased, in the order in which the page shows it."""
    if page.kind in ("search", "done"):
        return ()
    if page.kind == "results":
        turning = ("< prev",) * (page.number > 1) + ("next >",) * (page.number < _last_page(shop, page))
        return ("back to search", *turning, *(product.asin.lower() for product in listed(shop, page)))
    if page.kind == "item":
        values = (value for _, values in page.item.options for value in values)
        return ("back to search", "< prev", *values, *_SUB_PAGES, "buy now")
    return ("back to search", "< prev")


def listed(shop: Shop, page: Page) -> tuple[Product, ...]:
    """The products of a page of results, best first."""
    first = (page.number - 1) * shop.spec.results_per_page
    hits = shop.hits(page.query)[first : first + shop.spec.results_per_page]
    return tuple(shop.products[number] for number in hits)


def after(shop: Shop, page: Page, action: str) -> Page | None:
    """The page that an action leads to, or None when the page does not offer it.

    `search[words]` works on the search page only, and needs a character between the brackets; `click[value]` works
    for what `clickables` lists, whatever its case.
    """
    read = _ACTION.fullmatch(action)
    if read is None:
        return None
    verb, argument = read[1].lower(), " ".join(read[2].lower().split())
    if verb == "search":
        return Page("results", normalised(argument)) if page.kind == "search" and argument else None
    return _clicked(shop, page, argument) if argument in clickables(shop, page) else None


def observation(shop: Shop, page: Page, goal: Goal, graded_reward: float) -> str:
    """The visible texts of a page, the instruction always among them, joined by ` [SEP] `."""
    return SEPARATOR.join(("WebShop", "Instruction:", goal.instruction, *_body(shop, page, graded_reward)))


@lru_cache(maxsize=4)
def observation_limits(shop: Shop) -> tuple[int, frozenset[str]]:
    """The most characters that an observation can have, rounded up, and all characters that may be in one."""
    goals, products = shop.goals["all"], shop.products
    instruction = max(len(goal.instruction) for goal in goals)
    title = max(len(f"{product.asin}{product.title}{product.price_text}") + 3 * len(SEPARATOR) for product in products)
    item = max(sum(2 * len(SEPARATOR + value) for _, values in p.options for value in values) for p in products)
    names = max(sum(2 * len(SEPARATOR + name) for name, _ in product.options) for product in products)
    pieces = max(len(product.features) for product in products) * len(SEPARATOR)
    fixed = 500  # buttons, headings and the sentence about an invalid action
    most = fixed + instruction + max(shop.spec.results_per_page * title, title + item + names, MOST_SHOWN + pieces)
    seen = set(string.printable).union(*(goal.instruction for goal in goals), *(product.asin for product in products))
    for product in products:
        seen.update(product.title, product.description, *product.features)
        seen.update(*(text for name, values in product.options for text in (name, *values)))
    return most, frozenset(seen)


def _clicked(shop: Shop, page: Page, value: str) -> Page:
    if value == "back to search":
        return Page()
    if page.kind == "results":
        if value in ("< prev", "next >"):
            return replace(page, number=page.number + (1 if value == "next >" else -1))
        opened = next(product for product in listed(shop, page) if product.asin.lower() == value)
        return replace(page, kind="item", product=opened)
    if page.kind != "item":
        return replace(page, kind="item")
    if value == "< prev":
        return replace(page, kind="results", product=None, chosen=())
    if value in _SUB_PAGES:
        return replace(page, kind=_SUB_PAGES[value])
    if value == "buy now":
        return replace(page, kind="done")
    return replace(page, chosen=_with_choice(page, value))


def _with_choice(page: Page, value: str) -> tuple[tuple[str, str], ...]:
    """The choices, that of the value's option replaced by it."""
    chosen = dict(page.chosen)
    chosen |= {name: value for name, values in page.item.options if value in values}
    return tuple((name, chosen[name]) for name, _ in page.item.options if name in chosen)


def _last_page(shop: Shop, page: Page) -> int:
    return max(1, -(-len(shop.hits(page.query)) // shop.spec.results_per_page))


def _body(shop: Shop, page: Page, graded_reward: float) -> tuple[str, ...]:
    if page.kind == "search":
        return ("Search",)
    if page.kind == "done":
        return ("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", f"{graded_reward:.2f}")
    if page.kind == "results":
        return _results(shop, page)
    if page.kind == "item":
        return _item(page)
    return ("Back to Search", "< Prev", *_sub_page(page))


def _results(shop: Shop, page: Page) -> tuple[str, ...]:
    turning = ("< Prev",) * (page.number > 1) + ("Next >",) * (page.number < _last_page(shop, page))
    total = f"Page {page.number} (Total results: {len(shop.hits(page.query))})"
    shown = ((product.asin, product.title, product.price_text) for product in listed(shop, page))
    return ("Back to Search", total, *turning, *(text for texts in shown for text in texts))


def _item(page: Page) -> tuple[str, ...]:
    product = page.item
    options = (text for name, values in product.options for text in (name, *values))
    chosen = ", ".join(f"{name}: {value}" for name, value in page.chosen)
    told = (f"You have chosen {chosen}",) if chosen else ()
    buttons = ("Description", "Features", "Reviews", "Buy Now")
    return ("Back to Search", "< Prev", *options, *told, product.title, f"Price: {product.price_text}", *buttons)


def _sub_page(page: Page) -> tuple[str, ...]:
    product = page.item
    texts = {"description": (product.description,), "features": product.features, "reviews": ()}[page.kind]
    return _cut(tuple(text for text in texts if text)) or (f"This product has no {page.kind}.",)


def _cut(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The texts up to `MOST_SHOWN` characters in all; the last one that fits in part ends in an ellipsis."""
    shown: list[str] = []
    left = MOST_SHOWN
    for text in texts:
        shown.append(text if len(text) <= left else text[:left].rstrip() + " ...")
        left -= len(text)
        if left <= 0:
            break
    return tuple(shown)
