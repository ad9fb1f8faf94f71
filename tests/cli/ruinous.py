"""Callbacks for planted collapses: `ruinous.Spike` ruins the weights, `ruinous.Scribe` notes what epochs begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class Spike(Callback):
    """Takes the first step of one epoch at a ruinous learning rate."""

    def __init__(self, epoch: int, factor: float = 1000.0) -> None:
        self.epoch = epoch
        self.factor = factor

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, 0):
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= self.factor

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, 0):
            for group in trainer.optimizers[0].param_groups:
                group["lr"] /= self.factor


class Scribe(Callback):
    """Leaves what each epoch begins with in `starts/EPOCH.pt`: weights, optimiser state, and the scheduled rate."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir) / "starts"
        folder.mkdir(exist_ok=True)
        optimizer = trainer.optimizers[0].state_dict()
        start = {
            "weights": pl_module.state_dict(),
            "optimizer": optimizer["state"],
            "rate": optimizer["param_groups"][0]["lr"],
            "step": trainer.global_step,
        }
        torch.save(start, folder / f"{trainer.current_epoch}.pt")
