"""Gymnasium ids of this package's environments; importing this module registers them."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENV_ENTRY_POINTS = {"arl/Sokoban-v0": "arl_lightning.envs.sokoban:SokobanEnv"}


def register_envs() -> None:
    """`gymnasium.make` knows the ids; the environments themselves are imported only when made.

    Gymnasium from 1.0 on loads no plugins by itself: import this module first, or say it in the id,
    `gymnasium.make("arl_lightning.envs.registration:arl/Sokoban-v0")`. May be called again without harm.
    """
    for env_id, entry_point in ENV_ENTRY_POINTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point)


register_envs()
