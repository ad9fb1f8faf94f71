"""Leaves the trained policy where other programs can load it."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from arl_lightning.protocols import Exportable
from arl_lightning.types import ArlError


class ExportModel(Callback):
    """Writes the policy in Hugging Face format when `fit` ends; of a policy with an adapter, the adapter in peft's.

    Args:
        folder: folder to write, inside the run's folder.
    """

    def __init__(self, folder: str = "model") -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the model; a run that was stopped by an error writes none."""
        if not isinstance(pl_module, Exportable):
            raise ArlError(f"{type(pl_module).__name__} cannot be exported: set callbacks.export to null")
        if trainer.is_global_zero:
            pl_module.export(Path(trainer.default_root_dir) / self.folder)
