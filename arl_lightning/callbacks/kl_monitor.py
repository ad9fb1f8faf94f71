"""Measures how far the policy has moved: from its sampler, from its reference, and on which tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from arl_lightning.types import ArlError, TrajectoryBatch


class KLMonitor(Callback):
    """Logs KL estimates of every mini-batch, in nats a token; stops a run that leaves its reference too far behind.

    `train/kl_monitor/sampler` is mean(behavior − new); `.../mismatch` mean(behavior − old), the part that is not
    learning but a disagreement between sampler and trainer. The KL to the reference is `train/kl`.

    Args:
        start_tolerance: largest |log π − log π_ref| of a token allowed before the first step, where the reference is
            the policy; more means that the reference is not the start.
        max_reference_kl: epoch mean of the KL to the reference that stops the run; null never stops.
    """

    def __init__(self, start_tolerance: float = 1e-3, max_reference_kl: float | None = None) -> None:
        self.start_tolerance = start_tolerance
        self.max_reference_kl = max_reference_kl

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the estimates of the mini-batch that was just used."""
        if not isinstance(outputs, Mapping) or "records" not in outputs:
            return
        for record in outputs["records"]:
            part, acts_NT = record.batch, record.batch.action_mask_NT
            if trainer.current_epoch == 0 and batch_idx == 0:
                self._check_start(part)
            estimates = {
                "sampler": part.behavior_logprobs_NT - record.logprobs_NT,
                "mismatch": part.behavior_logprobs_NT - part.old_logprobs_NT,
            }
            for name, values_NT in estimates.items():
                mean, count = values_NT[acts_NT].double().mean().float(), int(acts_NT.sum())
                pl_module.log(f"train/kl_monitor/{name}", mean, batch_size=count, on_step=False, on_epoch=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the run when the epoch's KL to the reference is over the limit."""
        kl = trainer.callback_metrics.get("train/kl")
        if kl is not None and self.max_reference_kl is not None and float(kl) > self.max_reference_kl:
            rank_zero_info(
                f"KLMonitor: KL to the reference is {float(kl):.3f} nats a token, over {self.max_reference_kl}: "
                "stopping"
            )
            trainer.should_stop = True

    def _check_start(self, part: TrajectoryBatch) -> None:
        gap = (part.old_logprobs_NT - part.ref_logprobs_NT)[part.action_mask_NT].abs().max()
        if float(gap) > self.start_tolerance:
            raise ArlError(
                f"before the first step policy and reference differ by {float(gap):.3g} nats at a token, so the "
                "reference is not the start: check how both were loaded"
            )
