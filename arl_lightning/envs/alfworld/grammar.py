"""A game's grammar, parsed by the engine, and the same for all games that differ in the task only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from arl_lightning.envs.alfworld.facts import Condition
from arl_lightning.envs.alfworld.pddl import UNKNOWN_GOAL
from arl_lightning.envs.alfworld.sentences import (
    Enumeration,
    Expression,
    ForEach,
    Grammar,
    Literal,
    Reference,
    Rule,
    Sentence,
    Symbol,
)
from arl_lightning.envs.extras import load_extra

# Only where nothing in the sentence means something to the parser.
_TASK = re.compile(r'(?<="rhs": "Your task is to: )[\w ,.\'()-]*(?=\."\n)', re.ASCII)
Types = tuple[tuple[str, tuple[str, ...]], ...]  # name and supertypes of each type of a domain


def split_task(text: str) -> tuple[str, str]:
    """The task that a game's grammar says, and the grammar with `UNKNOWN_GOAL` in its place.

    A task with signs that mean something to the parser stays where it is, and counts as `UNKNOWN_GOAL`.
    """
    found = _TASK.findall(text)
    return (found[0], _TASK.sub(UNKNOWN_GOAL, text)) if len(found) == 1 else (UNKNOWN_GOAL, text)


@lru_cache(maxsize=32)
def parse_grammar(text: str, types: Types) -> Grammar:
    """The grammar; to be called under the engine's lock.

    Args:
        text: a game's `grammar`.
        types: those of its domain.
    """
    parsed = load_extra("textworld.envs.pddl.logic", extra="alfworld").GameLogic(domain="", grammar=text)
    reader = _Reader(types)
    return Grammar(
        rules={
            name: tuple(Rule(reader.query(rule.condition), reader.sentence(rule.rhs)) for rule in rules)
            for name, rules in parsed.grammar._rules.items()
        },
        commands={name: reader.bare(action.template) for name, action in parsed.actions.items()},
        feedbacks={name: reader.bare(action.feedback_rule) for name, action in parsed.actions.items()},
    )


class _Reader:
    """Turns the engine's symbols and queries into ours."""

    def __init__(self, types: Types) -> None:
        logic = load_extra("textworld.logic", extra="alfworld")
        self._grammar_class = load_extra("textworld.envs.pddl.textgen", extra="alfworld").ContextSensitiveGrammar
        self._rule_class = logic.Rule
        self._hierarchy = logic.TypeHierarchy()
        for name, supertypes in types:
            self._hierarchy.add(logic.Type(name, supertypes))

    def bare(self, text: str) -> Sentence:
        """A sentence that stands outside of the grammar's rules."""
        return self.sentence(self._grammar_class.parse(json.dumps({"bare": [{"rhs": text}]}))._rules["bare"][0].rhs)

    def sentence(self, symbols: list[Any]) -> Sentence:
        """The sentence of these symbols of the engine."""
        return tuple(self._symbol(symbol) for symbol in symbols)

    def query(self, text: str | None) -> tuple[Condition, ...]:
        """The conditions that the text joins by `&`."""
        if not text:
            return ()
        conditions = []
        for predicate in self._rule_class.parse_conjunctive_query(text).preconditions:
            types = [self._hierarchy.get(name) for name in predicate.signature.types]
            signatures = tuple(tuple(t.name for t in fit) for fit in self._hierarchy.multi_subtypes(types))
            placeholders = tuple((placeholder.name, placeholder.type) for placeholder in predicate.parameters)
            conditions.append(Condition(predicate.name, placeholders, signatures))
        return tuple(conditions)

    def _symbol(self, symbol: Any) -> Symbol:
        kinds: dict[str, Callable[[], Symbol]] = {
            "TerminalSymbol": lambda: Literal(str(symbol)),
            "NonterminalSymbol": lambda: Reference(str(symbol)),
            "EvalSymbol": lambda: Expression(symbol),
            "ConditionalSymbol": lambda: ForEach(self._symbol(symbol.expression), self.query(symbol.given)),
            "ListSymbol": lambda: Enumeration(self._symbol(symbol.symbol)),
        }
        return kinds[type(symbol).__name__]()
