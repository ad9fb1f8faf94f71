"""An environment in which a run is interrupted at a known place: `deadly:tests/DeadlySokoban-v0`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from gymnasium.envs.registration import register

from arl_lightning.envs.sokoban import SokobanEnv


class DeadlySokoban(SokobanEnv):
    """Sends signal `DEADLY_SIGNAL` to its own process at the 20th step after the file `DEADLY_AFTER` came to be."""

    steps_after: ClassVar[int] = 0

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if Path(os.environ["DEADLY_AFTER"]).exists():
            DeadlySokoban.steps_after += 1
            if DeadlySokoban.steps_after == 20:
                os.kill(os.getpid(), int(os.environ["DEADLY_SIGNAL"]))
        return super().step(action)


register(id="tests/DeadlySokoban-v0", entry_point=lambda **options: DeadlySokoban(**options))
