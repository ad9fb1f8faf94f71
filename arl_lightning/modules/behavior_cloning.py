"""The LightningModule of the start: cross-entropy on a demonstrator's responses."""

from __future__ import annotations

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from arl_lightning.modules.policy import ModelSource
from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.types import TokenBatch


class BehaviorCloningModule(PolicyModule):
    """A policy trained to say what the demonstrator said; observations and prompts carry no loss.

    Args:
        policy: where the model comes from.
        optimizer: `class_path` of an optimiser; it gets all trainable parameters.
        lr_scheduler: `class_path` of a scheduler, stepped once an epoch; null for a constant rate.
        gradient_clip: largest norm of the gradient.
        tokens_per_pass: rows × longest row that one forward pass may hold, but for a segment that is larger by itself;
            changes memory, never the gradient.
        max_skipped_steps: consecutive steps with a non-finite loss or gradient before the run stops.
    """

    def __init__(
        self,
        policy: ModelSource,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        gradient_clip: float = 1.0,
        tokens_per_pass: int = 65536,
        max_skipped_steps: int = 3,
    ) -> None:
        super().__init__(policy, optimizer, lr_scheduler, gradient_clip, tokens_per_pass, max_skipped_steps)

    def on_train_epoch_start(self) -> None:
        """Models are loaded in evaluation mode and Lightning leaves them so."""
        self.acting.train()

    def training_step(self, batch: TokenBatch, batch_idx: int) -> None:
        """One optimiser step on the mean negative log-likelihood of the batch's response tokens."""
        self.optimizer.zero_grad()
        tokens = int(batch.action_mask_NT.sum())
        loss = 0.0
        for rows in self.passes(batch):
            loss_sum, count = self._negative_loglikelihood(batch.take(rows))
            self.manual_backward(loss_sum / tokens)
            loss += float(loss_sum.detach()) / tokens
            self.log("train/loss", loss_sum.detach() / count, batch_size=count, on_step=False, on_epoch=True)
        self.apply_gradient("train", loss)

    def _negative_loglikelihood(self, batch: TokenBatch) -> tuple[Tensor, int]:
        with self.precision():
            logprobs_NT, _ = self.acting.logprobs(batch)
        return -logprobs_NT.sum(), int(batch.action_mask_NT.sum())
