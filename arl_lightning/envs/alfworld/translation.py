"""A game as the engine's planner library reads it, translated once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from arl_lightning.envs.alfworld.facts import Fact
from arl_lightning.envs.alfworld.grammar import Types
from arl_lightning.envs.extras import load_extra
from arl_lightning.types import ArlError


@dataclass(frozen=True, slots=True)
class Translation:
    """A game as the planner's library reads it, with what it leaves out.

    Args:
        sas: the library's input.
        parameters: of each action, names and types of the parameters.
        entity_types: the type of each entity.
        types: the domain's types.
        initial: the facts at the beginning, as far as the problem tells them.
        changed: predicates that some action changes.
        asked: predicates that some action's conditions or the goal ask for.
    """

    sas: bytes
    parameters: dict[str, tuple[tuple[str, str], ...]]
    entity_types: dict[str, str]
    types: Types
    initial: tuple[Fact, ...]
    changed: frozenset[str]
    asked: frozenset[str]

    def distinguishing(self, queried: frozenset[str]) -> frozenset[str]:
        """The predicates that make a state: changed by some action, and asked by one, the goal or a text.

        What was looked at is a changing fact too, but nothing asks for it: it is history.
        """
        return self.changed & (self.asked | {name.removeprefix("not_") for name in queried})


@lru_cache(maxsize=128)
def translate(domain: str, problem: str) -> Translation:
    """The game in the library's terms; to be called under the lock."""
    task, sas = _translated(domain, problem, optimize=False)
    effects = [effect for action in task.actions for effect in action.effects]
    conditions = [action.precondition for action in task.actions] + [effect.condition for effect in effects]
    conditions += [axiom.condition for axiom in task.axioms] + [task.goal]
    return Translation(
        sas=sas,
        parameters={
            action.name: tuple((parameter.name.strip("?"), parameter.type_name) for parameter in action.parameters)
            for action in task.actions
        },
        entity_types={entity.name: entity.type_name for entity in task.objects},
        types=tuple({kind.name: tuple(kind.supertype_names) for kind in reversed(task.types)}.items()),
        initial=tuple((fact.predicate, *fact.args) for fact in task.init if getattr(fact, "predicate", "=") != "="),
        changed=frozenset(effect.literal.predicate for effect in effects),
        asked=frozenset[str]().union(*map(_predicates, conditions)),
    )


@lru_cache(maxsize=128)
def translate_for_planner(domain: str, problem: str) -> bytes:
    """The game as the planner searches it fastest; to be called under the lock."""
    sas: bytes = _translated(domain, problem, optimize=True)[1]
    return sas


def _translated(domain: str, problem: str, optimize: bool) -> tuple[Any, bytes]:
    try:
        task, sas = load_extra("fast_downward", extra="alfworld").pddl2sas(domain, problem, optimize=optimize)
    except (Exception, SystemExit) as error:  # the translator shows bad PDDL in all these ways, exits among them
        raise ArlError(
            f"The engine cannot read a game's PDDL ({error!r}): remove the game or download it again."
        ) from error
    return task, sas.encode()


def _predicates(condition: Any) -> frozenset[str]:
    """The predicates in a condition of the translator."""
    own = frozenset({condition.predicate}) if hasattr(condition, "predicate") else frozenset[str]()
    return own.union(*(_predicates(part) for part in condition.parts))
