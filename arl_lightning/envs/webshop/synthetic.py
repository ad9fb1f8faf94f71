"""A synthetic catalogue: thousands of products whose titles, options and attributes nearly meet each other's goals."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from arl_lightning.envs.webshop.synthetic_tables import BRANDS, KINDS, Kind
from arl_lightning.types import ArlError

_TITLES = (
    "{brand} {first} {noun}",
    "{brand} {noun}, {first}",
    "{brand} {noun} with {first}",
    "{brand} {noun} with {first}, {second}",
)
_SENTENCES = (
    "This {query} by {brand} is made for every day.",
    "A {query} from {brand} is a good gift.",
    "{brand} stands behind this {query}.",
)
_TWIN_SHARE = 0.4  # of the products: an earlier one of their kind with one attribute exchanged
_OPTION_SHARE = 0.85
_RANGE_SHARE = 0.2  # of the prices
_UNKNOWN_SHARE = 0.02  # of the prices

Records = tuple[list[dict[str, Any]], dict[str, dict[str, list[str]]]]


def synthetic_records(products: int, catalogue_seed: int, categories: int | None = None) -> Records:
    """Product records and attributes with the fields of the published files, the same for the same arguments.

    Every attribute of a product is told somewhere in its title, features or description.

    Args:
        products: number of products, 1 to 100,000.
        catalogue_seed: another seed gives another catalogue.
        categories: number of kinds of products, of the 45 that there are; None for all.

    Raises:
        ArlError: a number is out of range.
    """
    if not 1 <= products <= 100_000 or not 1 <= (len(KINDS) if categories is None else categories) <= len(KINDS):
        raise ArlError(
            f"A synthetic WebShop needs products from 1 to 100000 and categories from 1 to {len(KINDS)}, "
            f"not {products} and {categories}."
        )
    rng = random.Random(f"webshop catalogue {catalogue_seed}")
    kinds = KINDS[:categories]
    made: list[list[_Traits]] = [[] for _ in kinds]
    records: list[dict[str, Any]] = []
    attributes: dict[str, dict[str, list[str]]] = {}
    for number, code in enumerate(rng.sample(range(100_000), products)):
        earlier = made[number % len(kinds)]
        kind = kinds[number % len(kinds)]
        traits = _twin(rng.choice(earlier), rng) if earlier and rng.random() < _TWIN_SHARE else _drawn(kind, rng)
        earlier.append(traits)
        asin = f"b{code:05d}"  # lower-cased as in actions, so that a small model can copy it
        records.append(_record(asin, traits, rng))
        attributes[asin] = {"attributes": sorted(traits.attributes)}
    return records, attributes


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a product is, before it is put into words; attributes in the order in which the texts tell them."""

    kind: Kind
    brand: str
    noun: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    price: float


def _drawn(kind: Kind, rng: random.Random) -> _Traits:
    return _Traits(
        kind=kind,
        brand=rng.choice(BRANDS),
        noun=rng.choice(kind.nouns),
        attributes=tuple(rng.sample(kind.attributes, rng.randint(3, 6))),
        options=_options(kind, rng),
        price=_price(kind, rng),
    )


def _twin(traits: _Traits, rng: random.Random) -> _Traits:
    """The same with one attribute exchanged, and brand, options and price drawn anew or not."""
    kept = list(traits.attributes)
    kept[rng.randrange(len(kept))] = rng.choice([one for one in traits.kind.attributes if one not in kept])
    return replace(
        traits,
        brand=rng.choice((traits.brand, rng.choice(BRANDS))),
        attributes=tuple(kept),
        options=rng.choice((traits.options, _options(traits.kind, rng))),
        price=rng.choice((traits.price, _price(traits.kind, rng))),
    )


def _options(kind: Kind, rng: random.Random) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Three to six values of most of the kind's options, in the order of the tables."""
    options = []
    for name, pool in kind.options:
        if rng.random() < _OPTION_SHARE:
            chosen = sorted(rng.sample(range(len(pool)), min(len(pool), rng.randint(3, 6))))
            options.append((name, tuple(pool[place] for place in chosen)))
    return tuple(options)


def _price(kind: Kind, rng: random.Random) -> float:
    """Dollars and cents; cheap products are commoner than dear ones."""
    low, high = kind.prices
    return int(low + (high - low) * rng.random() ** 2) + rng.choice((0.0, 0.49, 0.95, 0.99))


def _record(asin: str, traits: _Traits, rng: random.Random) -> dict[str, Any]:
    first, second, *rest = traits.attributes
    form = rng.choice(_TITLES)
    words = {"brand": traits.brand, "noun": traits.noun, "query": traits.kind.query, "first": first, "second": second}
    untold = rest if "{second}" in form else [second, *rest]
    indexed = rng.randint(0, min(2, len(untold)))  # told where search looks, not in a later feature
    features = [f"a choice of {traits.brand}", *untold[indexed:]]
    described = rng.choice(_SENTENCES).format(**words)
    if indexed > 0:
        described += f" It comes with {untold[0]}."
    if indexed > 1:
        features[0] = f"{untold[1]} {traits.kind.query}"
    return {
        "asin": asin,
        "name": form.format(**words),
        "full_description": described,
        "small_description": features,
        "pricing": _pricing(traits.price, rng),
        "customization_options": {name: [{"value": value} for value in values] for name, values in traits.options},
        "category": traits.kind.category,
        "query": traits.kind.query,
        "product_category": traits.kind.path,
    }


def _pricing(price: float, rng: random.Random) -> str | None:
    draw = rng.random()
    if draw < _UNKNOWN_SHARE:
        return None
    if draw < _UNKNOWN_SHARE + _RANGE_SHARE:
        return f"${price:.2f} to ${price * rng.uniform(1.05, 1.4):.2f}"
    return f"${price:.2f}"
