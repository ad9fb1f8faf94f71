"""What tests of two processes plant in them: `ranks.Scribe`, `ranks.Stumble` and `ranks:tests/UnevenSokoban-v0`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from gymnasium.envs.registration import register
from lightning.pytorch import Callback, LightningModule, Trainer

from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.types import ArlError


def in_second() -> bool:
    return os.environ.get("LOCAL_RANK") == "1"


class UnevenSokoban(SokobanEnv):
    """Cannot be made in the second process."""

    def __init__(self, **options: Any) -> None:
        if in_second():
            raise ArlError("the second machine has no rooms: copy them there")
        super().__init__(**options)


class Stumble(Callback):
    """A step that fails in the second process only."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if in_second():
            raise ArlError("the second process stumbles")


class Scribe(Callback):
    """Leaves what each process ends with, and what it thinks of the run, in `RANK.pt`."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks = {type(callback).__name__: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
        end = {
            "weights": pl_module.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "callbacks": {name: callbacks[name] for name in ("CollapseWarning", "KLMonitor") if name in callbacks},
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        }
        torch.save(end, Path(trainer.default_root_dir) / f"{trainer.global_rank}.pt")


register(id="tests/UnevenSokoban-v0", entry_point=lambda **options: UnevenSokoban(**options))
