"""Ends a run that was told to end where nothing that it has learned is lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

STOPPED = "last-stopped.ckpt"
"""Name of the checkpoint inside an epoch; beside it stays the one of the epoch before, which actions go back to."""


class SafeStop(Callback):
    """Turns SIGTERM and Ctrl-C into a `SIGTERMException` at the next safe point, and saves what is worth it there.

    Inside the `with` block: from an epoch's first mini-batch to its checkpoint the run ends after the present
    mini-batch and leaves `last-stopped.ckpt`; before and in play it ends at once, and so it does in validation, which
    is played again. A second Ctrl-C ends the process on the spot. Where no callback writes checkpoints, none is left.
    """

    def __init__(self) -> None:
        self.received = signal.SIGTERM
        self._asked = False
        self._waits = False
        self._writer: ModelCheckpoint | None = None
        self._began_at = self._saved_at = (0, 0)
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            wanted = {signal.SIGTERM: self._on_sigterm, signal.SIGINT: self._on_sigint}
            self._handlers = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def sentence(self) -> str:
        """What ended the run, and how to go on if there is a checkpoint that `--ckpt_path last` finds."""
        goes_on = self._folder is not None and any(self._folder.glob("last*.ckpt"))
        remedy = "continue with --ckpt_path last" if goes_on else "there is nothing to continue from"
        return f"stopped by {self.received.name}; {remedy}"

    @property
    def _folder(self) -> Path | None:
        return None if self._writer is None or self._writer.dirpath is None else Path(self._writer.dirpath)

    def _on_sigint(self, signum: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + signum)  # worker processes end with their parent
        self.received = signal.SIGINT
        signal.raise_signal(signal.SIGTERM)  # which Lightning passes on to all ranks

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        if self._asked:  # the way out must not be interrupted
            return
        self._asked = True
        if not self._waits:
            raise SIGTERMException
        print("arl: stopping after the present mini-batch; Ctrl-C ends at once", file=sys.stderr)

    def _release(self, trainer: Trainer) -> None:
        """From here on a signal ends the run at once; with several processes Lightning must end them together."""
        self._waits = trainer.world_size > 1
        if self._asked and not self._waits:
            raise SIGTERMException

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes who writes the run's checkpoints, and so where."""
        written = (callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint))
        self._writer = next(written, None) if stage == "fit" else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes what has been saved."""
        self._began_at = self._saved_at = _position(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Play may be cut short."""
        self.on_train_end(trainer, pl_module)
        self._release(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The checkpoint of an epoch's end has taken the place of one inside it."""
        superseded = self._began_at != self._saved_at == _position(trainer)
        if superseded and self._folder is not None and (file := self._folder / STOPPED).is_file():
            file.unlink(missing_ok=True)  # another rank may be faster

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A step must not be cut short."""
        self._waits = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Held-out play may be cut short."""
        self._release(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The end of an epoch must not."""
        self._waits = self._waits or _inside_epoch(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Notes what has been saved."""
        self._saved_at = _position(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves on the way out what no checkpoint holds yet."""
        folder, told = self._folder, isinstance(exception, SIGTERMException)
        if folder is not None and told and self._saved_at != _position(trainer) and not _in_play(trainer):
            trainer.save_checkpoint(folder / STOPPED)


def _position(trainer: Trainer) -> tuple[int, int]:
    """Epochs and mini-batches that are done."""
    epochs, batches = _progress(trainer)
    return epochs.current.processed, batches.total.processed


def _inside_epoch(trainer: Trainer) -> bool:
    epochs, _ = _progress(trainer)
    return bool(epochs.current.processed < epochs.current.started)


def _in_play(trainer: Trainer) -> bool:
    """Whether an epoch's first mini-batch is still to come."""
    _, batches = _progress(trainer)
    return _inside_epoch(trainer) and batches.current.processed == 0


def _progress(trainer: Trainer) -> tuple[Any, Any]:
    """Lightning's counters of epochs and of mini-batches, which it annotates too narrowly."""
    return trainer.fit_loop.epoch_progress, trainer.fit_loop.epoch_loop.batch_progress
