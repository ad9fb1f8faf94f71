"""How well a purchase meets a goal: type, attributes, options and price, each counted for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from arl_lightning.envs.extras import load_extra
from arl_lightning.envs.webshop.catalogue import Product
from arl_lightning.envs.webshop.goals import Goal
from arl_lightning.envs.webshop.words import plain_colour

_SIMILAR = 85.0  # token_set_ratio above which two texts mean the same
_SHARED_LEVELS = 2  # of the category hierarchy, that make one type
_SAME_TYPE, _FAR_TYPE = 0.2, 0.1  # shares of title nouns


@dataclass(frozen=True, slots=True)
class Purchase:
    """What a purchase got right, of what was wanted."""

    type_factor: float
    attributes: int
    options: int
    within_price: bool
    wanted_attributes: int
    wanted_options: int

    @property
    def graded_reward(self) -> float:
        """From 0 to 1, and 1 only when nothing is missing.

        Source: WebShop, arXiv:2207.01206, eq. 1, as the plan of record restates it.
        """
        matched = self.attributes + self.options + int(self.within_price)
        return self.type_factor * (matched / (self.wanted_attributes + self.wanted_options + 1))


def judge(goal: Goal, product: Product, chosen: tuple[tuple[str, str], ...]) -> Purchase:
    """What buying `product` with the chosen (option name, value) pairs gets right of the goal."""
    return Purchase(
        type_factor=type_factor(goal.target, product),
        attributes=sum(has_attribute(product, attribute) for attribute in goal.attributes),
        options=sum(option_met(product, name, value, chosen) for name, value in goal.options),
        within_price=product.price <= goal.price_limit,
        wanted_attributes=len(goal.attributes),
        wanted_options=len(goal.options),
    )


def type_factor(wanted: Product, bought: Product) -> float:
    """How much two products are of one type: 1, 0.5, 0.1 or 0.

    0 when no content word of the wanted title is in the bought one, 0.1 when fewer than a tenth are; otherwise 1 for
    the same query, two shared category levels or more than a fifth of the words, and 0.5 for none of these.
    Degenerate: a wanted title without content words is in every title. `content_words` tells how they differ from
    the nouns of the published shop.

    Source: WebShop, arXiv:2207.01206, appendix on the reward.
    """
    nouns = wanted.title_nouns
    overlap = len(nouns & bought.title_nouns) / len(nouns) if nouns else 1.0
    if overlap == 0:
        return 0.0
    if overlap < _FAR_TYPE:
        return 0.1
    related = wanted.query == bought.query or len(wanted.levels & bought.levels) >= _SHARED_LEVELS
    return 1.0 if related or overlap > _SAME_TYPE else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """True when one of the product's attributes is similar to the wanted one, or its texts mention it."""
    return any(similar(own, attribute) for own in product.attributes) or attribute.lower() in product.text


def option_met(product: Product, name: str, value: str, chosen: tuple[tuple[str, str], ...]) -> bool:
    """True when a chosen option is the wanted one, or, where the product leaves no choice, its texts mention it."""
    if any(same_option(name, value, own_name, own) for own_name, own in chosen):
        return True
    return name not in dict(product.options) and value in product.text


def same_option(name: str, value: str, own_name: str, own_value: str) -> bool:
    """True when two option values mean the same: sizes equal, others similar once colours are made plain."""
    if _is_size(name) or _is_size(own_name):
        return _is_size(own_name) and value == own_value
    plain = plain_colour if "color" in name or "colour" in name or not name else str
    return similar(plain(own_value), plain(value))


@lru_cache(maxsize=65536)
def similar(text: str, other: str) -> bool:
    """True when the token set ratio of two texts is above 85; case and punctuation do not matter."""
    ratio: Callable[..., float] = load_extra("rapidfuzz.fuzz", extra="webshop").token_set_ratio
    processor = load_extra("rapidfuzz.utils", extra="webshop").default_process
    return ratio(text, other, processor=processor) > _SIMILAR


def best_options(goal: Goal, product: Product) -> tuple[tuple[str, str], ...]:
    """Choices for a product that meet as many of the goal's options as one choice each can; no others are made."""
    chosen: dict[str, str] = {}
    for name, value in goal.options:
        if option_met(product, name, value, tuple(chosen.items())):
            continue
        fitting = [
            (own_value != value, own_name, own_value)
            for own_name, values in product.options
            if own_name not in chosen
            for own_value in values
            if same_option(name, value, own_name, own_value)
        ]
        if fitting:
            _, own_name, own_value = min(fitting)
            chosen[own_name] = own_value
    return tuple(chosen.items())


def _is_size(name: str) -> bool:
    return "size" in name
