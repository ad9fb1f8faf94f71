"""Shows a run as it goes: the epochs, the episodes being played, and the few numbers that matter."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from arl_lightning.types import ArlError, Rollout

_SHOWN = {
    "train/loss": "loss",
    "train/success_rate": "success",
    "train/reward": "reward",
    "train/valid_ratio": "valid",
    "train/kl": "kl",
    "val/success_rate": "held-out",
}


class RolloutProgress(ProgressBar):
    """A live display in a terminal, one line every few epochs elsewhere.

    Args:
        every_n_epochs: epochs between lines where the output is not a terminal.
    """

    def __init__(self, every_n_epochs: int = 10) -> None:
        super().__init__()
        if every_n_epochs < 1:
            raise ArlError("RolloutProgress needs every_n_epochs >= 1")
        self.every_n_epochs = every_n_epochs
        self.console = Console()
        self._enabled = True
        self._progress: Progress | None = None
        self._epochs: TaskID | None = None
        self._play: TaskID | None = None

    def disable(self) -> None:
        """Shows nothing; Lightning calls this on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Shows again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """A line above the live display."""
        self.console.print(*args, **kwargs)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Opens the display: play begins before Lightning says that training has."""
        super().setup(trainer, pl_module, stage)
        if self._enabled and self.console.is_terminal and self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description:<9}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
            self._progress.start()
            if stage == "fit":
                done = trainer.current_epoch
                self._epochs = self._progress.add_task("epochs", total=trainer.max_epochs, completed=done, note="")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the epoch's numbers."""
        epoch = trainer.current_epoch + 1
        metrics = trainer.callback_metrics
        note = "  ".join(f"{label} {float(metrics[name]):.3g}" for name, label in _SHOWN.items() if name in metrics)
        if self._progress is not None and self._epochs is not None:
            self._progress.update(self._epochs, completed=epoch, note=note)
        elif self._enabled and (epoch % self.every_n_epochs == 0 or epoch in (1, trainer.max_epochs)):
            self.console.print(f"epoch {epoch}/{trainer.max_epochs}  {note}", soft_wrap=True)

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """A bar for the episodes of this rollout."""
        if self._progress is not None:
            if self._play is not None:
                self._progress.remove_task(self._play)
            self._play = self._progress.add_task(stage, total=episodes, note="")

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Finished and successful episodes so far."""
        if self._progress is not None and self._play is not None:
            share = f"success {succeeded / finished:.2f}" if finished else ""
            self._progress.update(self._play, completed=finished, note=share)

    def rollout_finished(self, rollout: Rollout) -> None:
        """The bar stays until the next rollout replaces it."""

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Closes the display."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Gives the terminal back before the error is printed."""
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._epochs = self._play = None
