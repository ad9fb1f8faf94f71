"""Ends of runs at known places: `deadly:tests/DeadlySokoban-v0` in play, the callback `deadly.Deadly` elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

from gymnasium.envs.registration import register
from lightning.pytorch import Callback, LightningModule, Trainer

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


class Deadly(Callback):
    """Sends signals to its own process: with a step's gradient made and no weight moved, or in the first validation."""

    def __init__(self, sent: list[int], where: Literal["update", "validation"] = "update", step: int = 4) -> None:
        self.sent = sent
        self.where = where
        self.step = step

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if (self.where, self.step) == ("update", trainer.global_step):
            self._send()

    def on_validation_batch_start(self, *args: Any) -> None:
        if self.where == "validation":
            self._send()

    def _send(self) -> None:
        for signum in self.sent:
            os.kill(os.getpid(), signum)
