"""Sentences of a game's grammar, written out without copying their symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from arl_lightning.envs.alfworld.facts import Binding, Condition, Facts
from arl_lightning.types import ArlError


class Symbol(Protocol):
    """A part of a sentence."""

    def items(self, scene: Scene, binding: Binding) -> list[str]:
        """The texts that the symbol stands for."""
        ...

    def queried(self, grammar: Grammar) -> frozenset[str]:
        """The predicates on which its text depends."""
        ...


Sentence = tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to write a named sentence, allowed where its condition holds."""

    condition: tuple[Condition, ...]
    sentence: Sentence


@dataclass(frozen=True, slots=True)
class Grammar:
    """The sentences of a game; `commands` and `feedbacks` are named by action."""

    rules: Mapping[str, tuple[Rule, ...]]
    commands: Mapping[str, Sentence]
    feedbacks: Mapping[str, Sentence]

    def queried(self, sentence: Sentence) -> frozenset[str]:
        """The predicates on which the sentence's text depends."""
        return frozenset[str]().union(*(symbol.queried(self) for symbol in sentence))

    @property
    def all_queried(self) -> frozenset[str]:
        """The predicates on which any text depends."""
        sentences = [*self.commands.values(), *self.feedbacks.values()]
        sentences += [(Reference(name),) for name in self.rules]
        return frozenset[str]().union(*(self.queried(sentence) for sentence in sentences))


@dataclass(frozen=True, slots=True)
class Scene:
    """What a grammar speaks of: facts, and the engine's record (`name`, `id`, `indefinite`, ...) of each entity."""

    grammar: Grammar
    facts: Facts
    entities: Mapping[str, Any]

    def text(self, sentence: Sentence, binding: Binding) -> str:
        """The sentence with everything filled in."""
        return "".join(text for symbol in sentence for text in symbol.items(self, binding))


@dataclass(frozen=True, slots=True)
class Literal:
    """The same text everywhere."""

    text: str

    def items(self, scene: Scene, binding: Binding) -> list[str]:  # noqa: ARG002
        """The text."""
        return [self.text]

    def queried(self, grammar: Grammar) -> frozenset[str]:  # noqa: ARG002
        """Nothing."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Expression:
    """A Python expression over entities; the engine's own symbol evaluates it."""

    symbol: Any

    def items(self, scene: Scene, binding: Binding) -> list[str]:
        """Its value."""
        variables = {name: scene.entities[entity] for (name, _), entity in binding.items()}
        return [str(value) for value in self.symbol.derive({"variables": variables})]

    def queried(self, grammar: Grammar) -> frozenset[str]:  # noqa: ARG002
        """Nothing: entities do not change."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Reference:
    """The first sentence of that name whose condition holds."""

    name: str

    def items(self, scene: Scene, binding: Binding) -> list[str]:
        """The sentence's text."""
        for rule in scene.grammar.rules.get(self.name, ()):
            if not rule.condition or any(True for _ in scene.facts.answers(rule.condition, binding)):
                return [scene.text(rule.sentence, binding)]
        raise ArlError(f"The game's grammar has no sentence {self.name!r} here: load games of the published kind.")

    def queried(self, grammar: Grammar) -> frozenset[str]:
        """What any of the sentences depends on."""
        rules = grammar.rules.get(self.name, ())
        conditions = frozenset(condition.predicate for rule in rules for condition in rule.condition)
        return conditions.union(*(grammar.queried(rule.sentence) for rule in rules))


@dataclass(frozen=True, slots=True)
class ForEach:
    """A text for each answer to a query; once, where there is no query."""

    each: Symbol
    query: tuple[Condition, ...]

    def items(self, scene: Scene, binding: Binding) -> list[str]:
        """The texts."""
        return ["".join(self.each.items(scene, answer)) for answer in scene.facts.answers(self.query, binding)]

    def queried(self, grammar: Grammar) -> frozenset[str]:
        """What the query asks, and the text."""
        return self.each.queried(grammar) | {condition.predicate for condition in self.query}


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Texts with separators between them."""

    of: Symbol

    def items(self, scene: Scene, binding: Binding) -> list[str]:
        """One text."""
        texts = self.of.items(scene, binding)
        if len(texts) < 2:
            return texts or Reference("list_empty").items(scene, binding)
        (separator,), (last,) = (Reference(f"list_{n}separator").items(scene, binding) for n in ("", "last_"))
        return [separator.join(texts[:-1]) + last + texts[-1]]

    def queried(self, grammar: Grammar) -> frozenset[str]:
        """What the texts depend on."""
        return self.of.queried(grammar)
