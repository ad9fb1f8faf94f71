"""Checkpoints between two steps: their counters and their metrics."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from arl_lightning.modules.resume_point import keep_metrics, put_back_metrics, settle


def counts(ready: int, started: int, processed: int, completed: int) -> dict[str, int]:
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def checkpoint(epoch: dict[str, int], batch: dict[str, int], *, last: bool, stepped: int) -> dict[str, Any]:
    loops = {
        "epoch_progress": {"total": dict(epoch), "current": dict(epoch)},
        "epoch_loop.batch_progress": {"total": dict(batch), "current": dict(batch), "is_last_batch": last},
        "epoch_loop.val_loop.batch_progress": {"total": counts(5, 5, 5, 5), "current": counts(5, 5, 5, 5)},
        "epoch_loop.state_dict": {"_batches_that_stepped": stepped},
    }
    return {"loops": {"fit_loop": loops}}


MIDWAY = counts(1, 1, 0, 0)


def settled(state: dict[str, Any], *, validates: bool = False) -> tuple[dict[str, int], int]:
    settle(state, validates=validates)
    loops = state["loops"]["fit_loop"]
    return loops["epoch_loop.batch_progress"]["current"], loops["epoch_loop.state_dict"]["_batches_that_stepped"]


@pytest.mark.parametrize("last", [False, True])
def test_a_batch_that_a_callback_saw_end_is_done(last: bool) -> None:
    state = checkpoint(MIDWAY, counts(2, 2, 2, 1), last=last, stepped=1)
    assert settled(state) == (counts(2, 2, 2, 2), 2)
    assert settled(state) == (counts(2, 2, 2, 2), 2)  # and stays so


def test_before_its_validation_the_last_batch_is_not_yet_counted_as_stepped() -> None:
    state = checkpoint(MIDWAY, counts(2, 2, 2, 1), last=True, stepped=1)
    assert settled(state, validates=True) == (counts(2, 2, 2, 2), 1)
    begun = state["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    assert (begun["total"], begun["current"]) == (counts(1, 1, 0, 0), counts(0, 0, 0, 0))


def test_the_end_of_an_epoch_is_as_its_checkpoint_callback_sees_it() -> None:
    seen = checkpoint(counts(1, 1, 1, 0), counts(3, 3, 3, 3), last=True, stepped=3)
    later = checkpoint(counts(1, 1, 1, 1), counts(3, 3, 3, 3), last=True, stepped=3)
    before = copy.deepcopy(seen)
    settle(seen, validates=True)
    settle(later, validates=True)
    assert before == seen == later


class Logs(LightningModule):
    """Logs a mean by counts, a sum and a largest of what it is given, and a mean in another hook."""

    def __init__(self, back: list[Any] | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.back = back or []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self) -> None:
        put_back_metrics(self.trainer, self.back)

    def training_step(self, value: Tensor, batch_idx: int) -> Tensor:
        self.log("mean", value, batch_size=int(value), on_step=False, on_epoch=True)
        self.log("sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("max", value, on_step=False, on_epoch=True, reduce_fx="max")
        return self.weight * value

    def on_train_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        self.log("end", batch, batch_size=1, on_step=False, on_epoch=True)


class Keep(Callback):
    def __init__(self) -> None:
        self.kept: dict[int, list[Any]] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.kept[batch_idx] = copy.deepcopy(keep_metrics(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.kept[-1] = keep_metrics(trainer)


def metrics(module: Logs, values: list[float], *callbacks: Callback) -> dict[str, float]:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(module, DataLoader(torch.tensor(values), batch_size=None))  # type: ignore[arg-type]
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_an_epochs_metrics_go_on_where_they_were(tmp_path: Path) -> None:
    keep = Keep()
    whole = metrics(Logs(), [4.0, 1.0, 3.0], keep)
    # mean of 4, 1 and 3 with counts 4, 1 and 3: (16 + 1 + 9)/8
    assert whole == {"mean": 3.25, "sum": 8.0, "max": 4.0, "end": pytest.approx(8 / 3)}
    torch.save(keep.kept[2], tmp_path / "kept.pt")
    kept = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert metrics(Logs(kept), [3.0]) == whole
    assert metrics(Logs(), [3.0])["sum"] == 3.0  # and would not by themselves
    assert keep.kept[0] == keep.kept[-1] == []  # nothing before an epoch, nothing at its end
