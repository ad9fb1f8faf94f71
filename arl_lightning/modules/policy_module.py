"""What cloning and reinforcement share: a policy, one optimiser, checkpoints of the trained weights only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.nn import Parameter

from arl_lightning.functional.microbatches import adjacent_units, pack_units
from arl_lightning.modules.policy import ModelSource, Policy
from arl_lightning.protocols import ChatTokenizer
from arl_lightning.types import ArlError, TokenBatch


class PolicyModule(LightningModule):
    """A Lightning module that trains one language model with one optimiser and own optimisation steps.

    Args:
        policy: where the model comes from.
        optimizer: `class_path` of an optimiser; it gets all trainable parameters with their names.
        lr_scheduler: `class_path` of a scheduler, stepped once an epoch; null for a constant rate.
        gradient_clip: largest norm of the gradient, clipped over all parameters.
        tokens_per_pass: rows × longest row that one forward pass may hold; changes memory, never the gradient.
        max_skipped_steps: consecutive steps with a non-finite gradient before the run stops.
    """

    strict_loading = False  # a checkpoint holds the trained weights only; `on_load_checkpoint` checks that they are all

    def __init__(
        self,
        policy: ModelSource,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
        gradient_clip: float,
        tokens_per_pass: int,
        max_skipped_steps: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.source = policy
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.gradient_clip = gradient_clip
        self.tokens_per_pass = tokens_per_pass
        self.max_skipped_steps = max_skipped_steps
        self.skipped_steps = 0
        self.policy: Policy | None = None
        self._asked_groups: list[dict[str, Any]] = []

    @property
    def acting(self) -> Policy:
        """The policy, once the model is loaded."""
        if self.policy is None:
            raise RuntimeError("the model is loaded by configure_model(); call it first outside of a Trainer")
        return self.policy

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The policy's tokenizer."""
        return self.acting.tokenizer  # type: ignore[return-value]  # transformers annotates `decode` more widely

    def configure_model(self) -> None:
        """Loads the model once; Lightning calls this again for every verb."""
        if self.policy is None:
            self.policy = Policy(*self.source.load())

    def trainable_parameters(self) -> dict[str, Parameter]:
        """Trained weights by name, tied ones once."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def configure_optimizers(self) -> Any:
        """One optimiser over everything trainable; refuses an empty one, whose curves would look healthy."""
        trainable = self.trainable_parameters()
        if not trainable:
            raise ArlError(
                "zero trainable parameters: every weight of the policy is frozen, so training would do nothing; "
                "choose a model.policy that leaves some to train"
            )
        optimizer = self.make_optimizer(trainable.items())
        self._asked_groups = [
            {name: value for name, value in group.items() if name not in ("params", "param_names")}
            for group in optimizer.param_groups
        ]
        if self.make_lr_scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make_lr_scheduler(optimizer)}}

    def on_train_start(self) -> None:
        """The optimiser's arguments are those of the command line, also where a checkpoint has just brought its own."""
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert not isinstance(optimizer, list)
        for index, (group, asked) in enumerate(zip(optimizer.param_groups, self._asked_groups, strict=True)):
            started_at = group.get("initial_lr", group["lr"])
            if asked["lr"] != started_at:  # a scheduler's progress is kept as a factor
                group["lr"] *= asked["lr"] / started_at
                if scheduler is not None:
                    group["initial_lr"] = scheduler.base_lrs[index] = asked["lr"]  # type: ignore[union-attr]
            group.update({name: value for name, value in asked.items() if name != "lr"})

    def on_train_epoch_end(self) -> None:
        """The scheduler advances once an epoch; under own optimisation Lightning leaves that to us."""
        if (scheduler := self.lr_schedulers()) is not None:
            scheduler.step()  # type: ignore[union-attr]

    def passes(self, batch: TokenBatch) -> list[range]:
        """Row ranges of `batch` that each fit one forward pass and cut no segment."""
        segments = [frozenset(row[row >= 0].tolist()) for row in batch.segment_ids_NT.cpu()]
        return pack_units(adjacent_units(segments), batch.lengths_N.tolist(), self.tokens_per_pass)

    def apply_gradient(self, stage: str) -> float | None:
        """Clips, steps, and gives back the gradient's norm before clipping; None when the step was skipped.

        Raises:
            ArlError: after `max_skipped_steps` non-finite gradients in a row, or when the first step left every weight
                unchanged.
        """
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        parameters = self.trainable_parameters().values()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.gradient_clip))
        finite = math.isfinite(norm)
        self.log(
            f"{stage}/skipped_steps", float(not finite), batch_size=1, on_step=False, on_epoch=True, reduce_fx="sum"
        )
        if not finite:
            self.skipped_steps += 1
            if self.skipped_steps >= self.max_skipped_steps:
                raise ArlError(
                    f"{self.skipped_steps} optimiser steps in a row had a non-finite gradient: lower the learning rate "
                    "or resume from the last checkpoint; nothing was overwritten"
                )
            return None
        self.skipped_steps = 0
        first = self.global_step == 0 and norm > 0
        before = [p.detach().clone() for p in parameters] if first else []
        optimizer.step()
        if first and all(torch.equal(old, new) for old, new in zip(before, parameters, strict=True)):
            raise ArlError("the first optimiser step changed no weight: is the learning rate 0, or the adapter frozen?")
        self.log(f"{stage}/grad_norm", norm, batch_size=1, on_step=False, on_epoch=True)
        return norm

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Trained weights only: the frozen rest comes from where it was loaded."""
        trained = self.trainable_parameters()
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name in trained}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model, which non-strict loading would take silently."""
        check_same_weights(checkpoint["state_dict"], self.trainable_parameters())

    def export(self, folder: Path) -> None:
        """Leaves the policy in `folder` in Hugging Face format."""
        self.acting.save(folder)


def check_same_weights(saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises ArlError unless both name the same weights in the same shapes."""
    for name, weight in expected.items():
        if name not in saved:
            raise ArlError(f"this checkpoint is of another model: it has no weight {name!r}")
        if saved[name].shape != weight.shape:
            raise ArlError(
                f"this checkpoint is of another model: {name!r} is {list(saved[name].shape)} there and "
                f"{list(weight.shape)} here"
            )
    if extra := sorted(set(saved) - set(expected)):
        raise ArlError(
            f"this checkpoint is of another model: it also trained {extra[0]!r}, which is absent or frozen here"
        )
