"""The engine's library without its detours: the stock environment's transcripts at a fraction of its time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from arl_lightning.envs.alfworld.engine import Idle, Moment, engine_lock
from arl_lightning.envs.alfworld.facts import Binding, Fact, Facts
from arl_lightning.envs.alfworld.games import Game
from arl_lightning.envs.alfworld.grammar import parse_grammar, split_task
from arl_lightning.envs.alfworld.pddl import UNKNOWN_GOAL
from arl_lightning.envs.alfworld.sentences import Grammar, Reference, Scene
from arl_lightning.envs.alfworld.translation import Translation, translate, translate_for_planner
from arl_lightning.envs.extras import load_extra

_IDLE = Idle()
_NOTHING_HAPPENS = "Nothing happens."


@dataclass(frozen=True, slots=True)
class World:
    """All of a game that does not change while it is played.

    Args:
        translation: the game as the library reads it.
        grammar: its sentences, without the task.
        task: the task's sentence.
        steady: actions whose command reads the same in every state.
        distinguishing: predicates that tell states apart.
    """

    translation: Translation
    grammar: Grammar
    task: str
    steady: frozenset[str]
    distinguishing: frozenset[str]


@lru_cache(maxsize=128)
def world_of(game: Game) -> World:
    """The game's world, worked out once; to be called under the lock."""
    translation = translate(game.domain, game.problem)
    task, text = split_task(game.grammar)
    grammar = parse_grammar(text, translation.types)
    changed = translation.changed | {f"not_{predicate}" for predicate in translation.changed}
    steady = {name for name, command in grammar.commands.items() if not grammar.queried(command) & changed}
    distinguishing = translation.distinguishing(grammar.all_queried)
    return World(translation, grammar, task, frozenset(steady), distinguishing)


class FastEngine:
    """Plays games on the engine's library, and writes its texts from the game's grammar."""

    def __init__(self) -> None:
        self._library: Any = None
        self._planner_ready = False
        self._steady_commands: dict[str, str] = {}  # operator -> command
        self._operators: dict[str, Any] = {}  # command -> operator

    def start(self, game: Game) -> Moment:
        """The game from its beginning."""
        with engine_lock():
            library = self._loaded()
            self._game, self._world, self._planner_ready = game, world_of(game), False
            library.load_sas(self._world.translation.sas)
            self._facts = Facts(self._world.translation.entity_types)
            for fact in [*self._world.translation.initial, *self._held_atoms()]:
                self._facts.add(fact)
            self._scene = Scene(self._world.grammar, self._facts, _named_entities(self._facts))
            self._steady_commands = {}
            intro = self._scene.text((Reference("intro"),), {})
            return self._moment(intro.replace(UNKNOWN_GOAL, self._world.task))

    def play(self, command: str) -> Moment:
        """What a command leads to; one that is not admissible changes nothing."""
        with engine_lock():
            operator = self._operators.get(command)
            if operator is None:
                return self._moment(_NOTHING_HAPPENS)
            effects = (self._atom_class * operator.nb_effect_atoms)()
            self._library.apply_operator(operator.id, effects)
            for atom in effects:
                fact = _fact(atom.name)
                self._facts.discard(_negated(fact))
                self._facts.add(fact)
            name, binding = self._action(operator.name)
            return self._moment(self._scene.text(self._world.grammar.feedbacks[name], binding))

    def plan(self) -> tuple[str, ...]:
        """A shortest way to win from here, as commands; empty when there is none."""
        with engine_lock():
            if not self._planner_ready:
                self._library.load_sas_replan(translate_for_planner(self._game.domain, self._game.problem))
                self._planner_ready = True
            if not self._library.replan(False):
                return ()
            operators = (self._operator_class * self._library.get_last_plan_length())()
            self._library.get_last_plan(operators)
            return tuple(self._command(operator.name) for operator in operators)

    def close(self) -> None:
        """The game is forgotten; the library waits for the next engine that needs one."""
        if self._library is not None:
            with engine_lock():
                self._library.cleanup()
                _IDLE.give(self._library)
            self._library = None

    def _loaded(self) -> Any:
        """The engine's library; every engine has its own copy, since one copy holds one game."""
        if self._library is None:
            downward = load_extra("fast_downward", extra="alfworld")
            self._library = _IDLE.take(downward.load_lib)
            self._operator_class, self._atom_class = downward.Operator, downward.Atom
        return self._library

    def _held_atoms(self) -> list[Fact]:
        atoms = (self._atom_class * self._library.get_state_size())()
        self._library.get_state(atoms)
        facts = (_fact(atom.name) for atom in atoms)
        return [fact for fact in facts if not fact[0].startswith("not_")]

    def _moment(self, feedback: str) -> Moment:
        operators = (self._operator_class * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(operators)
        self._operators = {}
        for operator in operators:  # of two operators with one command the engine plays the first
            self._operators.setdefault(self._command(operator.name), operator)
        won = bool(self._library.check_goal())
        return Moment(feedback, tuple(sorted(self._operators)), won, self._facts.holding(self._world.distinguishing))

    def _command(self, operator: str) -> str:
        """What the player says for an operator, `PickupObject agent1 ...`."""
        command = self._steady_commands.get(operator)
        if command is None:
            name, binding = self._action(operator)
            command = self._scene.text(self._world.grammar.commands[name], binding)
            if name in self._world.steady:
                self._steady_commands[operator] = command
        return command

    def _action(self, operator: str) -> tuple[str, Binding]:
        """The operator's action, and what its parameters stand for."""
        name, *arguments = operator.split()
        return name, dict(zip(self._world.translation.parameters[name], arguments, strict=False))


def _named_entities(facts: Iterable[Fact]) -> Mapping[str, Any]:
    """The engine's record of every entity, named by the wheel as a player reads it, `apple 1`."""
    record = load_extra("textworld.generator.game", extra="alfworld").EntityInfo
    names = load_extra("alfworld.agents.utils.misc", extra="alfworld").Demangler
    entities = {name: record(name, "") for fact in facts for name in fact[1:]}
    demangler = names(game_infos=entities)
    for name, entity in entities.items():
        entity.name, entity.definite, entity.indefinite = demangler.demangle_alfred_name(name), "the", "a"
    return entities


def _fact(atom: str) -> Fact:
    """The fact of the library's `Atom holds(agent1, apple)`, or of its `NegatedAtom ...` with `not_` before it."""
    sign, _, rest = atom.partition(" ")
    predicate, _, arguments = rest.removesuffix(")").partition("(")
    name = f"not_{predicate}" if sign == "NegatedAtom" else predicate
    return (name, *(argument for argument in arguments.split(", ") if argument))


def _negated(fact: Fact) -> Fact:
    name = fact[0]
    return (name.removeprefix("not_") if name.startswith("not_") else f"not_{name}", *fact[1:])
