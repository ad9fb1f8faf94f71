"""A buyer who knows the goal: searches with its words, opens a best product, sets its options, buys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.goals import Goal
from arl_lightning.envs.webshop.pages import Page, listed
from arl_lightning.envs.webshop.reward import best_options, judge
from arl_lightning.envs.webshop.shop import Shop, normalised

_LONGEST_QUERY = 60  # words; parsers refuse overlong actions


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search for, and asins of the products that are worth buying, all of them found by that search."""

    query: str
    wanted: frozenset[str]


def make_plan(shop: Shop, goal: Goal) -> Plan:
    """The first of the expert's queries that finds a fully fitting product of the target's kind, with all of these.

    When none does: the query that comes nearest, by reward first and kind second. Queries, in this order: kind with
    attributes and options, kind with attributes, kind with options, kind, title and description of the target.
    """
    best, plan = (-1.0, False), Plan("", frozenset())
    for query in _queries(goal):
        found = [shop.products[number] for number in shop.hits(normalised(query))]
        merits = [_merit(goal, product) for product in found]
        if merits and max(merits) > best:
            best = max(merits)
            ties = zip(found, merits, strict=True)
            plan = Plan(query, frozenset(product.asin for product, merit in ties if merit == best))
        if best == (1.0, True):
            break
    return plan


def next_action(shop: Shop, goal: Goal, plan: Plan, page: Page) -> str | None:
    """The plan's next action, from any page: lost buyers go back to search. None when the purchase is done."""
    if page.kind == "done":
        return None
    if page.kind == "search":
        return f"search[{plan.query}]"
    if page.kind == "results":
        return _towards_product(shop, plan, page)
    if page.item.asin not in plan.wanted:
        return "click[< prev]" if page.kind == "item" and _finds(shop, plan, page.query) else "click[back to search]"
    if page.kind != "item":
        return "click[< prev]"
    return _towards_purchase(goal, page.item, page.chosen)


def _queries(goal: Goal) -> Iterator[str]:
    kind, values = goal.target.query, [value for _, value in goal.options]
    yield " ".join((kind, *goal.attributes, *values))
    yield " ".join((kind, *goal.attributes))
    yield " ".join((kind, *values))
    yield kind
    yield " ".join(f"{goal.target.title} {goal.target.description}".split()[:_LONGEST_QUERY])


def _merit(goal: Goal, product: Product) -> tuple[float, bool]:
    """The best reward that buying the product can bring, and whether it is of the target's kind."""
    reward = judge(goal, product, best_options(goal, product)).graded_reward
    return reward, product.query == goal.target.query


def _finds(shop: Shop, plan: Plan, query: str) -> bool:
    return any(shop.products[number].asin in plan.wanted for number in shop.hits(query))


def _towards_product(shop: Shop, plan: Plan, page: Page) -> str:
    """Opens the best wanted product of this page, else turns to the first page that has one, else goes back."""
    here = next((product.asin for product in listed(shop, page) if product.asin in plan.wanted), None)
    if here is not None:
        return f"click[{here.lower()}]"
    places = (place for place, number in enumerate(shop.hits(page.query)) if shop.products[number].asin in plan.wanted)
    first = next(places, None)
    if first is None:
        return "click[back to search]"
    return "click[next >]" if first // shop.spec.results_per_page + 1 > page.number else "click[< prev]"


def _towards_purchase(goal: Goal, product: Product, chosen: tuple[tuple[str, str], ...]) -> str:
    for name, value in best_options(goal, product):
        if (name, value) not in chosen:
            return f"click[{value}]"
    return "click[buy now]"
