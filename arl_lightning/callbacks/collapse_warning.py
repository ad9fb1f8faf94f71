"""Warns, with the reason, when an epoch shows the signs that came before collapses."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from arl_lightning.functional.detection import Bound, breaches


class CollapseWarning(Callback):
    """Says which signs of a coming collapse an epoch shows and since when; the run goes on.

    In five collapses of a small model, drift or valid ratio beyond these limits came 1 to 4 epochs ahead each time,
    with 0.6 alarms in 100 quiet epochs; the limits were chosen on those same runs.

    Args:
        max_drift: mean(log π_old − log π_new) over an epoch's mini-batches, nats a token.
        min_valid_ratio: share of turns whose answer was a valid action.
        after_epochs: epochs at the start without an alarm.
    """

    def __init__(self, max_drift: float = 0.1, min_valid_ratio: float = 0.9, after_epochs: int = 2) -> None:
        self.bounds = (
            Bound("train/approx_kl", max_drift, above=True),
            Bound("train/valid_ratio", min_valid_ratio, above=False),
        )
        self.after_epochs = after_epochs
        self.since_epoch: int | None = None
        self.warnings = 0

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judges the epoch that just ended; speaks when the state changes, logs always."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        found = breaches(self.bounds, values) if trainer.current_epoch >= self.after_epochs else []
        pl_module.log("collapse/warning", float(bool(found)))
        if not found:
            self.since_epoch = None
            return
        self.warnings += 1
        if self.since_epoch is None:
            self.since_epoch = trainer.current_epoch
            rank_zero_warn(f"collapse warning at epoch {trainer.current_epoch}: {'; '.join(found)}")

    def state_dict(self) -> dict[str, Any]:
        """Since when it has warned, and how often."""
        return {"since_epoch": self.since_epoch, "warnings": self.warnings}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved run was."""
        self.since_epoch = state_dict["since_epoch"]
        self.warnings = state_dict["warnings"]
