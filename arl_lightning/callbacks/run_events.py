"""Leaves in `events.jsonl` when a run began, went on, ran out of groups, ended, and by what it was stopped."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from arl_lightning.callbacks.run_log import EVENTS, append_lines, forget
from arl_lightning.types import Rollout

_OF_PROCESS = ("begin", "resume", "end", "error")
"""Kinds that are true of a process, whatever epochs are played again after it."""


def record_event(trainer: Trainer, kind: str, text: str) -> None:
    """Has the run's `RunEvents` write one sentence about the present epoch; without that callback, nothing.

    Args:
        trainer: the run.
        kind: one word that tells events apart, for example `watch`, `danger` or `action`.
        text: the sentence.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, RunEvents):
            callback.record(trainer, kind, text)


class RunEvents(Callback):
    """Writes what happens to a run as a whole, and what other callbacks tell it by `record_event`.

    Kinds: `begin`, `resume`, `filter` (the first of epochs in a row in which the gates admitted too few groups), `end`
    and `error`.
    """

    def __init__(self) -> None:
        self.exhausted = False
        self._trainer: Trainer | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes of which run it is; only a fit has events."""
        self._trainer = trainer if stage == "fit" else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes out the events of epochs that are now played again, and says where the run stands."""
        epoch = trainer.current_epoch
        forget(trainer, EVENTS, lambda line: line["epoch"] >= epoch and line["kind"] not in _OF_PROCESS)
        if epoch == 0:
            self.record(trainer, "begin", f"the run begins, for {trainer.max_epochs} epochs")
        else:
            self.record(trainer, "resume", f"the run goes on from the end of epoch {epoch - 1}")

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to say yet."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to say yet."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """Says when the gates begin to admit too few groups, and when they admit enough again."""
        wanted = getattr(getattr(self._trainer, "datamodule", None), "groups", None)
        if self._trainer is None or wanted is None or "filter/filled" not in rollout.measures:
            return
        attempts, admitted, filled = (
            round(rollout.measures[f"filter/{name}"].total) for name in ("attempts", "admitted", "filled")
        )
        before, self.exhausted = self.exhausted, bool(filled) or len(rollout.groups) < wanted
        if self.exhausted and not before:
            self.record(
                self._trainer,
                "filter",
                f"the gates admitted only {admitted} of {wanted} groups in {attempts} attempts: {len(rollout.groups)} "
                f"are learned from, {filled} of them dropped ones",
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says that the run is over."""
        self.record(trainer, "end", f"the run ended after {trainer.current_epoch} epochs")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Says what stopped the run."""
        if self._trainer is not None:
            reason = str(exception).strip().split("\n")[0]
            self.record(trainer, "error", f"stopped by {type(exception).__name__}{f': {reason}' if reason else ''}")

    def record(self, trainer: Trainer, kind: str, text: str) -> None:
        """Leaves one sentence about the present epoch in `events.jsonl` and among TensorBoard's texts."""
        place = {"epoch": trainer.current_epoch, "step": trainer.global_step, "time": round(time.time(), 3)}
        append_lines(trainer, EVENTS, [{**place, "kind": kind, "text": text}])
        if trainer.is_global_zero and isinstance(trainer.logger, TensorBoardLogger):
            trainer.logger.experiment.add_text(f"events/{kind}", text, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Whether the gates had run out of groups."""
        return {"exhausted": self.exhausted}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved run was."""
        self.exhausted = state_dict["exhausted"]
