"""A checkpoint between two steps: what Lightning leaves out of it, and what it would go on with wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EpochMetric = Mapping[str, Any]
"""How a metric is logged, with its running value and the count that it is divided by."""


def keep_metrics(trainer: Trainer) -> list[EpochMetric]:
    """What the epoch under way has logged so far; nothing when it is over."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    if progress.processed == progress.started:
        return []
    return [
        {
            "fx": metric.meta.fx,
            "name": metric.meta.name,
            "prog_bar": metric.meta.prog_bar,
            "logger": metric.meta.logger,
            "on_step": metric.meta.on_step,
            "on_epoch": metric.meta.on_epoch,
            "reduce_fx": metric.meta.reduce_fx.__name__,
            "value": metric.value,
            "count": getattr(metric, "cumulated_batch_size", None),
        }
        for metric in trainer.fit_loop.epoch_loop._results.values()
        if metric.is_tensor and not metric.has_reset
    ]


def put_back_metrics(trainer: Trainer, metrics: Sequence[EpochMetric]) -> None:
    """The epoch's means go on from what was logged before the checkpoint; call it when training starts."""
    results = trainer.fit_loop.epoch_loop._results
    for metric in metrics:
        logged = {name: value for name, value in metric.items() if name not in ("value", "count", "reduce_fx")}
        zero, reduce_fx = torch.zeros_like(metric["value"]), getattr(torch, metric["reduce_fx"])
        results.log(value=zero, reduce_fx=reduce_fx, batch_size=0, sync_dist_fn=trainer.strategy.reduce, **logged)
        kept = results[f"{metric['fx']}.{metric['name']}"]
        kept.value = metric["value"]
        if metric["count"] is not None:
            kept.cumulated_batch_size = metric["count"]
    if metrics:
        trainer._logger_connector._first_loop_iter = True  # or the next batch, as an epoch's first, would reset them


def keep_log(trainer: Trainer) -> dict[str, Any]:
    """What the epoch that just ended is about to log, which Lightning does after its checkpoint; nothing inside one."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    if progress.processed < progress.started or progress.completed == progress.processed:
        return {}
    values = {name: float(value) for name, value in trainer._logger_connector.metrics["log"].items()}
    values["epoch"] = float(trainer.current_epoch)  # which Lightning adds
    return {"step": trainer.fit_loop.epoch_loop._batches_that_stepped - 1, "values": values}


def log_what_is_missing(trainer: Trainer, log: Mapping[str, Any]) -> None:
    """A run that was killed between checkpoint and log has the epoch in its TensorBoard file after all."""
    for logger in trainer.loggers if log else ():
        if isinstance(logger, TensorBoardLogger):
            events = EventAccumulator(logger.log_dir, size_guidance={"scalars": 0}).Reload()
            there = events.Tags()["scalars"]
            missing = {
                name: value
                for name, value in log["values"].items()
                if name not in there or all(point.step != log["step"] for point in events.Scalars(name))
            }
            logger.log_metrics(missing, log["step"])


def settle(checkpoint: dict[str, Any], *, validates: bool) -> None:
    """The checkpoint's loop counters as they are between two batches, wherever in Lightning's loop they were written.

    Written by a callback at the end of a batch they count it as unfinished; if it was the epoch's last, Lightning would
    take the epoch for finished too, and leave out its end: scheduler, metrics and validation.

    Args:
        checkpoint: of `fit`; changed in place.
        validates: whether the epoch that it is of ends with a validation.
    """
    loops = checkpoint["loops"]["fit_loop"]
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if epoch["current"]["processed"] == epoch["current"]["started"]:  # the end of an epoch, as a callback there sees it
        for count in epoch.values():
            count["completed"] = count["processed"] - 1
        return
    unfinished = batch["current"]["completed"] < batch["current"]["processed"]
    if unfinished and not (batch["is_last_batch"] and validates):
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    for count in (batch["total"], batch["current"]):
        count["ready"] = count["started"] = count["completed"] = count["processed"]
    if batch["is_last_batch"] and validates:  # have it validated, from the first portion
        none = dict.fromkeys(("ready", "completed", "started", "processed"), 0)
        begun = {"total": {**none, "ready": 1, "started": 1}, "current": none}
        loops["epoch_loop.val_loop.batch_progress"].update(begun)
