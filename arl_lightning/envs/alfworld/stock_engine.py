"""The engine's own environment as it comes: what the fast path is held against."""

from __future__ import annotations

from typing import Any

from arl_lightning.envs.alfworld.engine import Idle, Moment, engine_lock
from arl_lightning.envs.alfworld.games import Game
from arl_lightning.envs.alfworld.grammar import parse_grammar, split_task
from arl_lightning.envs.alfworld.translation import translate
from arl_lightning.envs.extras import load_extra

_IDLE = Idle()


class StockEngine:
    """The engine's own environment with the wheel's naming of things: slow, and what the fast path is held against."""

    def __init__(self) -> None:
        self._env: Any = None
        self._distinguishing: frozenset[str] = frozenset()

    def start(self, game: Game) -> Moment:
        """The game from its beginning."""
        with engine_lock():
            if self._env is None:
                self._env = _IDLE.take(_environment)
            fields = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem}
            self._env.load(fields)
            translation = translate(game.domain, game.problem)
            grammar = parse_grammar(split_task(game.grammar)[1], translation.types)
            self._distinguishing = translation.distinguishing(grammar.all_queried)
            return self._moment(self._env.reset())

    def play(self, command: str) -> Moment:
        """What a command leads to; one that is not admissible changes nothing."""
        with engine_lock():
            return self._moment(self._env.step(command)[0])

    def plan(self) -> tuple[str, ...]:
        """A shortest way to win from here, as commands; empty when there is none."""
        with engine_lock():
            return tuple(self._env._pddl_state.replan(self._env._entity_infos))

    def close(self) -> None:
        """The game is forgotten; the environment waits for the next engine that needs one."""
        if self._env is not None:
            with engine_lock():
                self._env.downward_lib.cleanup()
                _IDLE.give(self._env)
            self._env = None

    def _moment(self, state: Any) -> Moment:
        facts = sorted(
            (fact.name, *(entity.name for entity in fact.arguments))
            for fact in state["_facts"]
            if fact.name in self._distinguishing
        )
        return Moment(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]), tuple(facts))


def _environment() -> Any:
    textworld = load_extra("textworld", extra="alfworld")
    wrappers = load_extra("alfworld.agents.environment.alfred_tw_env", extra="alfworld")
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return wrappers.AlfredDemangler(textworld.envs.PddlEnv(infos), shuffle=False)
