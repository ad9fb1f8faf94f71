"""A shop: catalogue, search and goals, built once a process and shared by all its environments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from arl_lightning.envs.webshop.catalogue import Product, load_products, parse_products
from arl_lightning.envs.webshop.goals import SPLIT_ENDS, Goal, human_goals, synthetic_goals
from arl_lightning.envs.webshop.search import SearchIndex
from arl_lightning.envs.webshop.synthetic import synthetic_records
from arl_lightning.envs.webshop.words import search_words
from arl_lightning.types import ArlError

_SHOPS_KEPT = 4  # a process rarely plays in more than one; a large one takes gigabytes


@dataclass(frozen=True, slots=True)
class ShopSpec:
    """Which shop; the fields are those of `WebShopEnv`, which says what they mean."""

    catalogue: str | None = None
    attributes: str | None = None
    goals: str | None = None
    products: int = 5000
    categories: int | None = None
    catalogue_seed: int = 0
    goals_per_product: int = 2
    results_per_page: int = 10
    most_results: int = 50

    def __post_init__(self) -> None:
        if self.catalogue is None and (self.attributes or self.goals):
            raise ArlError("WebShop's attributes and goals belong to a catalogue file: give `catalogue` with them.")
        if self.catalogue is not None and not (self.attributes or self.goals):
            raise ArlError("A WebShop catalogue file needs `attributes`, `goals` or both, or nothing would be wanted.")
        if self.goals_per_product < 1:
            raise ArlError(f"WebShop needs goals_per_product >= 1, not {self.goals_per_product}.")
        if not 1 <= self.results_per_page <= self.most_results:
            raise ArlError(
                f"WebShop needs 1 <= results_per_page <= most_results, "
                f"not {self.results_per_page} and {self.most_results}."
            )


@dataclass(frozen=True, eq=False)
class Shop:
    """What never changes while people buy; read-only, equal to itself only."""

    spec: ShopSpec
    products: tuple[Product, ...]
    index: SearchIndex
    goals: dict[str, tuple[Goal, ...]]

    def hits(self, query: str) -> tuple[int, ...]:
        """Numbers of the products that a normalised query finds, best first, at most `most_results`."""
        return self.index.ranked(tuple(query.split()), self.spec.most_results)

    def goal(self, split: str, seed: int) -> Goal:
        """The goal of a seed: the first `len(goals[split])` seeds have different ones, then they repeat.

        Raises:
            ArlError: the split is unknown or has no goal.
        """
        if split not in self.goals:
            raise ArlError(f"WebShop has no split {split!r}: choose one of all, {', '.join(SPLIT_ENDS)}.")
        goals = self.goals[split]
        if not goals:
            raise ArlError(
                f"The split {split!r} of this WebShop has no goal: use more products, categories or goals_per_product."
            )
        return goals[seed % len(goals)]


def normalised(query: str) -> str:
    """The words by which search tells queries apart, joined by blanks; empty when a query has none of them."""
    return " ".join(search_words(query))


def open_shop(spec: ShopSpec) -> Shop:
    """The shop of a spec, the same object for the same spec and unchanged files."""
    files = (spec.catalogue, spec.attributes, spec.goals)
    return _built(spec, tuple(_stamp(file) for file in files if file is not None))


@lru_cache(maxsize=_SHOPS_KEPT)
def _built(spec: ShopSpec, _stamps: tuple[tuple[int, int], ...]) -> Shop:
    if spec.catalogue is None:
        records, attributes = synthetic_records(spec.products, spec.catalogue_seed, spec.categories)
        products = parse_products(records, attributes, "synthetic catalogue")
    else:
        products = load_products(spec.catalogue, spec.attributes)
    if spec.goals is None:
        goals = synthetic_goals(products, spec.catalogue_seed, spec.goals_per_product)
    else:
        goals = human_goals(spec.goals, products, spec.catalogue_seed)
    return Shop(spec, products, SearchIndex(products), _by_split(goals))


def _by_split(goals: Iterable[Goal]) -> dict[str, tuple[Goal, ...]]:
    every = tuple(goals)
    placed = [(goal.split, goal) for goal in every]
    return {"all": every} | {name: tuple(goal for split, goal in placed if split == name) for name in SPLIT_ENDS}


def _stamp(path: str) -> tuple[int, int]:
    """Time and size of a file's last change; a changed file makes another shop."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ArlError(f"The WebShop file {path} cannot be read ({error.strerror}): correct its path.") from error
    return status.st_mtime_ns, status.st_size
