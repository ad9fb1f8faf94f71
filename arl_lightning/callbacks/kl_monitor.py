"""Measures how far the policy has moved: from its sampler, from its reference, and on which tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from arl_lightning.callbacks.epoch_metrics import EpochMetrics
from arl_lightning.callbacks.kl_control import KLControl, kl_coefficient
from arl_lightning.callbacks.run_events import record_event
from arl_lightning.types import ArlError, TrajectoryBatch


class KLMonitor(Callback):
    """Logs KL estimates, in nats a token; on request holds the policy near its reference, or stops a run that left.

    Of every mini-batch: `train/kl_monitor/sampler` is mean(behavior − new); `.../mismatch` mean(behavior − old), the
    part that is not learning but a disagreement between sampler and trainer. Of every epoch: `.../sinking_ratio` is the
    KL to the reference of segments with A < 0 and ratio < 1 over that of all others, which rises before a collapse
    (`train/sinking/kl`, `train/sinking/kl_others`), and `.../coefficient` what `control` made of the coefficient. The
    KL to the reference is `train/kl`.

    Args:
        start_tolerance: largest |log π − log π_ref| of a token allowed before the first step, where the reference is
            the policy; more means that the reference is not the start.
        max_reference_kl: epoch mean of the KL to the reference that stops the run; null never stops.
        control: adapts the coefficient of the objective's KL, epoch by epoch, to a wanted KL; null leaves it.

    Source: ARLArena, arXiv:2602.21534, on what moves before a collapse.
    """

    def __init__(
        self,
        start_tolerance: float = 1e-3,
        max_reference_kl: float | None = None,
        control: KLControl | None = None,
    ) -> None:
        self.start_tolerance = start_tolerance
        self.max_reference_kl = max_reference_kl
        self.control = control
        self.factor = 1.0
        self._metrics = EpochMetrics()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Brings the coefficient to where this run, or the resumed one, has it."""
        if self.control is not None:
            kl_coefficient(pl_module, "KLMonitor.control").set_factor("KLMonitor", self.factor)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Marks what earlier epochs logged."""
        self._metrics.epoch_starts(trainer)

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
        """Logs the split of the KL, adapts the coefficient, and stops the run when the KL is over the limit."""
        values = self._metrics.of_epoch(trainer)
        sinking, others = values.get("train/sinking/kl"), values.get("train/sinking/kl_others", 0.0)
        if sinking is not None and others > 0:
            pl_module.log("train/kl_monitor/sinking_ratio", sinking / others)
        kl = values.get("train/kl")
        if kl is None:
            return
        if self.control is not None:
            self.factor = self.control.next_factor(self.factor, kl)
            adjusted = kl_coefficient(pl_module, "KLMonitor.control")
            adjusted.set_factor("KLMonitor", self.factor)
            pl_module.log("train/kl_monitor/coefficient", adjusted.coefficient)
        if self.max_reference_kl is not None and kl > self.max_reference_kl:
            told = f"KL to the reference is {kl:.3f} nats a token, over {self.max_reference_kl}: stopping"
            rank_zero_info(f"KLMonitor: {told}")
            record_event(trainer, "stop", told)
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The factor that `control` has brought the coefficient to."""
        return {"factor": self.factor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the saved factor."""
        self.factor = state_dict["factor"]

    def _check_start(self, part: TrajectoryBatch) -> None:
        gap = (part.old_logprobs_NT - part.ref_logprobs_NT)[part.action_mask_NT].abs().max()
        if float(gap) > self.start_tolerance:
            raise ArlError(
                f"before the first step policy and reference differ by {float(gap):.3g} nats at a token, so the "
                "reference is not the start: check how both were loaded"
            )
