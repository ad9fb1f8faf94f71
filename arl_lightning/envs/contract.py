"""The laws that a text environment keeps, as one executable check."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any

from arl_lightning.protocols import TextEnv
from arl_lightning.types import INVALID_ACTION

_MOST_TRIED = 8  # admissible actions tried from each initial state; each costs a reset


class ContractError(AssertionError):
    """A law that an environment or a part of the objective breaks, as one sentence."""


def check_text_env(
    make: Callable[[], TextEnv], seeds: Iterable[int] = range(3), steps: int = 10, actions: Sequence[str] = ()
) -> None:
    """Returns when the environments that `make` makes keep every law of text environments at these seeds.

    Args:
        make: gives a fresh environment at each call.
        seeds: tasks to try, of which at least two must differ (unless there is only one).
        steps: most steps of the episode that is played at each seed.
        actions: what to play where `admissible_actions` is None or empty; `INVALID_ACTION` when empty.

    Raises:
        ContractError: names the first law found broken, and where.
    """
    starts = []
    for seed in seeds:
        with closing(make()) as env, closing(make()) as twin:
            starts.append(_check_reset(env, twin, seed))
            _check_invalid_action(env, seed)
            _check_admissible_actions(env, seed)
            _check_determinism(env, twin, seed, steps, actions)
    tasks = {(start.observation, start.state_key) for start in starts}
    require(len(starts) < 2 or len(tasks) > 1, f"different seeds must differ at least once, but {len(starts)} agree")
    _check_close(make())


@dataclass(frozen=True, slots=True)
class _Shown:
    """All that a reset or step shows; the last four are a step's."""

    observation: str
    state_key: Hashable
    admissible_actions: tuple[str, ...] | None
    success: bool
    task_type: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    action_valid: bool = True


def _check_reset(env: TextEnv, twin: TextEnv, seed: int) -> _Shown:
    start = _reset(env, seed)
    _require_equal(start, _reset(env, seed), f"reset(seed={seed}) again in the same instance must show the same")
    _require_equal(start, _reset(twin, seed), f"reset(seed={seed}) in a fresh instance must show the same")
    return start


def _check_invalid_action(env: TextEnv, seed: int) -> None:
    start = _reset(env, seed)
    where = f"(seed {seed}, first step)"
    try:
        after = _step(env, INVALID_ACTION, where)
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(f"INVALID_ACTION must not raise, but gave {error!r} {where}.") from error
    require(after.state_key == start.state_key, f"INVALID_ACTION must not change state_key {where}")
    require(not after.action_valid, f"INVALID_ACTION must be reported with action_valid False {where}")


def _check_admissible_actions(env: TextEnv, seed: int) -> None:
    admissible = _reset(env, seed).admissible_actions or ()
    for action in random.Random(seed).sample(admissible, min(_MOST_TRIED, len(admissible))):
        _reset(env, seed)
        _require_admitted(_step(env, action, f"(seed {seed}, first step)"), action, f"(seed {seed}, first step)")


def _check_determinism(env: TextEnv, twin: TextEnv, seed: int, steps: int, actions: Sequence[str]) -> None:
    rng = random.Random(seed)
    shown = _reset(env, seed)
    _reset(twin, seed)
    for number in range(1, steps + 1):
        where = f"(seed {seed}, step {number})"
        action = rng.choice(shown.admissible_actions or actions or (INVALID_ACTION,))
        admitted = action in (shown.admissible_actions or ())
        shown = _step(env, action, where)
        if admitted:
            _require_admitted(shown, action, where)
        _require_equal(shown, _step(twin, action, where), f"the same seed and actions must show the same {where}")
        if shown.terminated or shown.truncated:
            return


def _check_close(env: TextEnv) -> None:
    env.close()
    try:
        env.close()
    except Exception as error:
        raise ContractError(f"close() must be harmless when called twice, but gave {error!r}.") from error


def _reset(env: TextEnv, seed: int) -> _Shown:
    observation, info = env.reset(seed=seed)
    where = f"(reset, seed {seed})"
    _require_info(observation, info, where)
    return _shown(observation, info)


def _step(env: TextEnv, action: str, where: str) -> _Shown:
    observation, reward, terminated, truncated, info = env.step(action)
    _require_info(observation, info, where)
    require(
        isinstance(reward, float) and math.isfinite(reward), f"reward must be a finite float, not {reward!r} {where}"
    )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        require(isinstance(flag, bool), f"{name} must be a bool, not {flag!r} {where}")
    valid = info.get("action_valid")
    require(isinstance(valid, bool), f"info['action_valid'] must be a bool after a step, not {valid!r} {where}")
    return _shown(observation, info, reward=reward, terminated=terminated, truncated=truncated, action_valid=valid)


def _shown(observation: str, info: dict[str, Any], **step: Any) -> _Shown:
    names = ("state_key", "admissible_actions", "success", "task_type")
    return _Shown(observation, **{name: info[name] for name in names}, **step)


def _require_info(observation: str, info: dict[str, Any], where: str) -> None:
    require(isinstance(observation, str), f"the observation must be a str, not {observation!r} {where}")
    for name in ("success", "state_key", "admissible_actions", "task_type"):
        require(name in info, f"info must have the key {name!r} {where}")
    for name, kind in (("success", bool), ("task_type", str)):
        require(isinstance(info[name], kind), f"info[{name!r}] must be a {kind.__name__}, not {info[name]!r} {where}")
    actions = info["admissible_actions"]
    listed = actions is None or (isinstance(actions, tuple) and all(isinstance(action, str) for action in actions))
    require(listed, f"info['admissible_actions'] must be a tuple of str or None, not {actions!r} {where}")
    try:
        hash(info["state_key"])
    except TypeError as error:
        raise ContractError(f"info['state_key'] must be hashable, not {info['state_key']!r} {where}.") from error


def _require_admitted(shown: _Shown, action: str, where: str) -> None:
    require(shown.action_valid, f"the admissible action {action!r} must be reported with action_valid True {where}")


def _require_equal(first: _Shown, second: _Shown, law: str) -> None:
    differing = [f.name for f in fields(_Shown) if getattr(first, f.name) != getattr(second, f.name)]
    require(not differing, f"{law}, but {' and '.join(differing)} differed")


def require(kept: bool, law: str) -> None:
    """Raises ContractError with the law as a sentence unless it is kept."""
    if not kept:
        raise ContractError(f"{law[0].upper()}{law[1:]}.")
