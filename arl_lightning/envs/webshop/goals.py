"""What a buyer wants: drawn from the products, or written by people; split by what is wanted."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from arl_lightning.envs.webshop.catalogue import Fields, Product, read_json
from arl_lightning.types import ArlError

SPLIT_ENDS = {"test": 10, "validation": 20, "demonstration": 30, "train": 100}  # cumulative, per cent of all wishes
_OPTION_SHARE = 0.75  # of a product's options that a synthetic goal asks for
_PRICE = ", and price lower than {limit:.2f} dollars"
_INSTRUCTIONS = (
    "Find me {query} with {attributes}{options}{price}.",
    "I am looking for {query}, {attributes}{options}{price}.",
    "I want {attributes} {query}{options}{price}.",
)
_STATED_LIMIT = re.compile(r"price lower than \$?(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Goal:
    """A wish: the target product, wanted attributes, wanted (option name, value) pairs, and a price limit in dollars.

    The target serves to judge of what type a purchase is. An option's name is empty when its source does not tell it.
    """

    target: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_limit: float
    instruction: str

    @property
    def split(self) -> str:
        """The split by what is wanted: kind and attributes. Goals that differ in option or price only share it."""
        wish = json.dumps([self.target.query, sorted(self.attributes)])
        bucket = int.from_bytes(blake2b(wish.encode(), digest_size=8).digest(), "big") % 100
        return next(split for split, end in SPLIT_ENDS.items() if bucket < end)


def synthetic_goals(products: Sequence[Product], seed: int, goals_per_product: int) -> tuple[Goal, ...]:
    """Goals in a seeded order, no two with one instruction; each is met fully by the product that it was made from.

    Products without attributes give none.

    Args:
        products: the catalogue.
        seed: decides which attributes, options and limits are wanted, and the order.
        goals_per_product: most goals made from one product.
    """
    sources = [product for product in products if product.attributes]
    return _ordered(
        (_drawn(product, _rng(seed, product, number)) for product in sources for number in range(goals_per_product)),
        seed,
    )


def human_goals(path: str, products: Sequence[Product], seed: int) -> tuple[Goal, ...]:
    """The goals that people wrote for products of the catalogue, in a seeded order, no two with one instruction.

    Fields read of `{asin: [goal, ...]}`: `instruction` (text), `instruction_attributes` (list of texts) and
    `instruction_options` (object from option name to value, or list of values, each with or without `name: ` before
    it). Others are ignored, and so are goals for products that the catalogue lacks. An instruction that states no
    limit as `price lower than X` gets a drawn one at its end. A target need not meet its own goal.

    Args:
        path: path of the JSON file.
        products: the catalogue.
        seed: decides limits and order.

    Raises:
        ArlError: a field is missing or of another type, or no goal is for a product of the catalogue.
    """
    by_asin = read_json(path)
    if not isinstance(by_asin, dict):
        raise ArlError(f"The WebShop file {path} must be a JSON object from asin to a list of goals.")
    goals: list[Goal] = []
    for product in products:
        records = by_asin.get(product.asin, [])
        if not isinstance(records, list):
            raise ArlError(f"In the WebShop file {path}, product {product.asin} must hold a list of goals.")
        for number, record in enumerate(records):
            fields = Fields(record, path, f"goal {number} of product {product.asin}")
            goals.append(_human(fields, product, _rng(seed, product, number)))
    if not goals:
        raise ArlError(f"The WebShop file {path} has no goal for any product of the catalogue: give the matching file.")
    return _ordered(goals, seed)


def price_limit(price: float, rng: random.Random) -> float:
    """The larger of two of the next four tens above a price, in dollars."""
    tens = [10.0 * (price // 10 + above) for above in range(1, 5)]
    return max(rng.sample(tens, 2))


def _rng(seed: int, product: Product, number: int) -> random.Random:
    """A generator for one goal alone, so that another product more or less changes no other goal."""
    return random.Random(f"webshop goal {seed} {product.asin} {number}")


def _drawn(product: Product, rng: random.Random) -> Goal:
    attributes = tuple(rng.sample(product.attributes, min(len(product.attributes), rng.choice((1, 2, 2, 3, 3)))))
    options = tuple((name, rng.choice(values)) for name, values in product.options if rng.random() < _OPTION_SHARE)
    limit = price_limit(product.price, rng)
    asked = " and ".join(f"{name} {value}" for name, value in options)
    instruction = rng.choice(_INSTRUCTIONS).format(
        query=product.query,
        attributes=", ".join(attributes),
        options=f", {asked}" if asked else "",
        price=_PRICE.format(limit=limit),
    )
    return Goal(product, attributes, options, limit, instruction)


def _human(fields: Fields, product: Product, rng: random.Random) -> Goal:
    instruction = fields.text("instruction")
    attributes = tuple(one.lower() for one in fields.texts("instruction_attributes"))
    stated = _STATED_LIMIT.search(instruction.lower())
    limit = float(stated[1]) if stated else price_limit(product.price, rng)
    if not stated:
        instruction = instruction.rstrip(" .,") + _PRICE.format(limit=limit)
    return Goal(product, attributes, tuple(_wanted_options(fields, product)), limit, instruction)


def _wanted_options(fields: Fields, product: Product) -> Iterator[tuple[str, str]]:
    wanted: Any = fields.record.get("instruction_options")
    if isinstance(wanted, dict):
        if not all(isinstance(value, str) for value in wanted.values()):
            raise fields.fault("instruction_options", "must map option names to texts")
        yield from ((name.strip().lower(), value.strip().lower()) for name, value in wanted.items())
        return
    for text in fields.texts("instruction_options"):
        name, colon, value = (part.strip() for part in text.lower().partition(":"))
        if colon and name in dict(product.options):
            yield name, value
        else:
            yield next((name for name, values in product.options if text.lower() in values), ""), text.lower()


def _ordered(goals: Iterable[Goal], seed: int) -> tuple[Goal, ...]:
    """The goals, of those with one instruction the first, shuffled."""
    distinct = {goal.instruction: goal for goal in reversed(list(goals))}
    shuffled = sorted(distinct.values(), key=lambda goal: goal.instruction)
    random.Random(f"webshop order {seed}").shuffle(shuffled)
    return tuple(shuffled)
