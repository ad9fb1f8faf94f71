"""The action against a collapse that takes the policy back to where it was last known to be healthy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn

from arl_lightning.callbacks.collapse_action import CollapseAction, Deed
from arl_lightning.functional.health import Level
from arl_lightning.types import ArlError

HEALTHY = "healthy.ckpt"
"""Name of the last healthy checkpoint, beside the run's other checkpoints."""
START = "start.pt"
"""Name of the file of the weights that the run began with."""


class RollBack(CollapseAction):
    """Puts back weights and optimiser state of the last healthy checkpoint; the run goes on from there.

    `healthy.ckpt` is a copy of the checkpoint that ended epoch k − 1, made when epoch k, which those weights played,
    was judged healthy: weights that ruined themselves in their last step look healthy until they have played. It is a
    whole checkpoint, from which `fit --ckpt_path` may also resume. While there is none, the way leads back to the
    weights of the start, with a fresh optimiser state.

    Epoch and step counters, learning-rate schedule and callbacks go on: epochs are a budget, and since every draw
    derives from the epoch, going back in them would play the same tasks with the same tokens into the same collapse.
    There is no other random or data state. To go on more gently, name further actions.

    Args:
        max_times: how often it may act in one run.
    """

    def __init__(self, max_times: int = 3) -> None:
        super().__init__(max_times)
        self.healthy_epoch: int | None = None

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses a run without a checkpoint of every epoch."""
        _last_checkpoint(trainer)

    def run_starts(self, trainer: Trainer, module: LightningModule) -> None:
        """Keeps the weights of the start; a resumed run has them already."""
        weights = module.state_dict()
        if trainer.global_step == 0 and trainer.is_global_zero:
            _replace(_folder(trainer) / START, lambda fresh: torch.save({"state_dict": weights}, fresh))

    def epoch_judged(self, trainer: Trainer, level: Level) -> None:
        """Keeps the checkpoint of the epoch before a healthy one."""
        if level is not Level.HEALTHY:
            return
        source = Path(_last_checkpoint(trainer).best_model_path)
        epoch = trainer.strategy.broadcast(_epoch_of(source) if trainer.is_global_zero else None)
        if epoch != trainer.current_epoch - 1:  # not of these weights, or nobody has played them yet
            return
        if trainer.is_global_zero:
            _replace(_folder(trainer) / HEALTHY, lambda fresh: shutil.copyfile(source, fresh))
        trainer.strategy.barrier()
        self.healthy_epoch = epoch

    def act(self, trainer: Trainer, module: LightningModule) -> Deed | None:
        """Loads the healthy weights and optimiser state; None when their file is gone or of another run."""
        file = _folder(trainer) / (START if self.healthy_epoch is None else HEALTHY)
        if not trainer.strategy.broadcast(file.is_file()):
            rank_zero_warn(f"no roll-back: {file} is gone")
            return None
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        if checkpoint.get("epoch") != self.healthy_epoch:
            rank_zero_warn(f"no roll-back: {file} is of epoch {checkpoint['epoch']}, not {self.healthy_epoch}")
            return None
        module.on_load_checkpoint(checkpoint)
        module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
        fresh: list[dict[str, Any]] = [{"state": {}} for _ in trainer.optimizers]
        for optimizer, saved in zip(trainer.optimizers, checkpoint.get("optimizer_states", fresh), strict=True):
            # the present groups hold the present rates, which the schedule goes on from
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        if self.healthy_epoch is None:
            return Deed("the weights are those of the start, since no epoch has been healthy", -1)
        return Deed(f"weights and optimiser are those of the end of epoch {self.healthy_epoch}", self.healthy_epoch)

    def state_dict(self) -> dict[str, Any]:
        """How often it has acted, and of which epoch the healthy checkpoint is."""
        return {**super().state_dict(), "healthy_epoch": self.healthy_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved run was."""
        super().load_state_dict(state_dict)
        self.healthy_epoch = state_dict["healthy_epoch"]


def _last_checkpoint(trainer: Trainer) -> ModelCheckpoint:
    """The callback whose `best_model_path` is the latest checkpoint, since it monitors nothing."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor is None and callback.save_top_k != 0:
            return callback
    raise ArlError(
        "RollBack goes back to a copy of the checkpoint of an epoch: keep the `callbacks.checkpoint` of base.yaml, "
        "which writes one every epoch"
    )


def _epoch_of(file: Path) -> int | None:
    """The epoch at whose end the checkpoint was written; None where there is no file."""
    if not file.is_file():
        return None
    return int(torch.load(file, map_location="cpu", weights_only=True, mmap=True)["epoch"])


def _folder(trainer: Trainer) -> Path:
    return Path(_last_checkpoint(trainer).dirpath or Path(trainer.default_root_dir) / "checkpoints")


def _replace(file: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file first, so that a run that dies in between leaves the old one whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".part")
    write(fresh)
    os.replace(fresh, file)
