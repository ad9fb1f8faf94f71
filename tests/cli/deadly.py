"""Ends of runs at known places: `deadly:tests/DeadlySokoban-v0` in play, the callback `deadly.Deadly` elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

from gymnasium.envs.registration import register
from lightning.pytorch import Callback, LightningModule, Trainer

from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.types import Rollout


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
    """Sends signals to its own process: in a step, its gradient made and no weight moved, in play or in validation."""

    def __init__(
        self, sent: list[int], where: Literal["play", "update", "validation"] = "update", step: int = 4
    ) -> None:
        self.sent = sent
        self.where = where
        self.step = step

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if (self.where, self.step) == ("update", trainer.global_step):
            self._send()

    def on_validation_batch_start(self, *args: Any) -> None:
        if self.where == "validation":
            self._send()

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing is played yet."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        if self.where == "play":
            self._send()

    def rollout_finished(self, rollout: Rollout) -> None:
        """Too late."""

    def _send(self) -> None:
        for signum in self.sent:
            os.kill(os.getpid(), signum)


class Glut(Callback):
    """Fills the disk of the run's folder when the second epoch begins, but for some bytes."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            folder = Path(trainer.default_root_dir)
            (folder / "glut").write_bytes(bytes(shutil.disk_usage(folder).free - self.leaves))


class Wall(Callback):
    """Puts a file where the folder of checkpoints was when the second epoch begins: nothing can be written there."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir) / "checkpoints"
        if trainer.current_epoch == 1:
            folder.rename(folder.with_name("aside"))
            folder.touch()
