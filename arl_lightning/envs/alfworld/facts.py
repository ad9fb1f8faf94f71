"""Facts of a world, and the conjunctive queries that a game's grammar puts to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Binding = dict[tuple[str, str], str]  # (placeholder, its type) -> entity
Fact = tuple[str, ...]  # predicate, entities


@dataclass(frozen=True, slots=True)
class Condition:
    """One predicate of a query with its placeholders, each a name and a type."""

    predicate: str
    placeholders: tuple[tuple[str, str], ...]
    signatures: tuple[tuple[str, ...], ...]  # entity types that fit the placeholders', in the engine's order


class Facts:
    """A set of facts over typed entities.

    Args:
        entity_types: the type of each entity.
    """

    def __init__(self, entity_types: Mapping[str, str]) -> None:
        self._entity_types = entity_types
        self._entities = defaultdict[tuple[str, tuple[str, ...]], set[Fact]](set)

    def __iter__(self) -> Iterator[Fact]:
        for (predicate, _), rows in self._entities.items():
            for row in rows:
                yield (predicate, *row)

    def add(self, fact: Fact) -> None:
        """The fact holds."""
        self._rows(fact).add(fact[1:])

    def discard(self, fact: Fact) -> None:
        """The fact does not hold."""
        self._rows(fact).discard(fact[1:])

    def holding(self, predicates: Iterable[str]) -> tuple[Fact, ...]:
        """All facts with one of these predicates, sorted."""
        wanted = frozenset(predicates)
        return tuple(sorted(fact for fact in self if fact[0] in wanted))

    def answers(self, query: Sequence[Condition], binding: Binding) -> Iterator[Binding]:
        """Every way to extend the binding so that all conditions hold, in the engine's order.

        Different placeholders stand for different entities.
        """
        if not query:
            yield binding
            return
        condition = query[0]
        taken = set(binding.values())
        for signature in condition.signatures:
            for row in sorted(self._entities.get((condition.predicate, signature), ())):
                extended = _extended(binding, taken, condition.placeholders, row)
                if extended is not None:
                    yield from self.answers(query[1:], extended)

    def _rows(self, fact: Fact) -> set[Fact]:
        return self._entities[fact[0], tuple(self._entity_types[entity] for entity in fact[1:])]


def _extended(
    binding: Binding, taken: set[str], placeholders: tuple[tuple[str, str], ...], row: Fact
) -> Binding | None:
    """The binding with the placeholders set to the row, or None where they contradict."""
    new: Binding = {}
    for placeholder, entity in zip(placeholders, row, strict=True):
        bound = binding.get(placeholder, new.get(placeholder))
        if bound is None:
            if entity in taken or entity in new.values():
                return None
            new[placeholder] = entity
        elif bound != entity:
            return None
    return {**binding, **new}
