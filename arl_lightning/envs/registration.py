"""Gymnasium ids of this package's environments; importing this module registers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import register, registry

from arl_lightning.protocols import TextEnv
from arl_lightning.types import ArlError

ENV_ENTRY_POINTS = {
    "arl/AlfWorld-v0": "arl_lightning.envs.alfworld.environment:AlfWorldEnv",
    "arl/Sokoban-v0": "arl_lightning.envs.sokoban:SokobanEnv",
    "arl/TIRMath-v0": "arl_lightning.envs.tir_math.environment:TIRMathEnv",
    "arl/WebShop-v0": "arl_lightning.envs.webshop.environment:WebShopEnv",
}


def register_envs() -> None:
    """`gymnasium.make` knows the ids; the environments themselves are imported only when made.

    Gymnasium from 1.0 on loads no plugins by itself: import this module first, or say it in the id,
    `gymnasium.make("arl_lightning.envs.registration:arl/Sokoban-v0")`. May be called again without harm.
    """
    for env_id, entry_point in ENV_ENTRY_POINTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point)


def make_text_env(env_id: str, options: Mapping[str, Any]) -> TextEnv:
    """A new environment, of this package or any other.

    Args:
        env_id: Gymnasium id, for example `arl/Sokoban-v0`, or `my_package:MyEnv-v0` to import first.
        options: keyword arguments of the environment.

    Raises:
        ArlError: for an unknown id or options that the environment refuses.
    """
    register_envs()
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **options)
    except ArlError:
        raise
    except Exception as error:
        raise ArlError(f"the environment {env_id!r} cannot be made: {type(error).__name__}: {error}") from error
    return cast(TextEnv, env)


register_envs()
