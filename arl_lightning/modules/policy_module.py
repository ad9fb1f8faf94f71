"""What cloning and reinforcement share: a policy, one optimiser, checkpoints of the trained weights only."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from arl_lightning.functional.microbatches import adjacent_units, pack_units
from arl_lightning.modules.adapters import is_adapted, refuse_mixture
from arl_lightning.modules.merging import Drift, measure_drift, merged
from arl_lightning.modules.model_card import write_card
from arl_lightning.modules.policy import ModelSource, Policy
from arl_lightning.modules.resume_point import (
    EpochMetric,
    keep_log,
    keep_metrics,
    log_what_is_missing,
    put_back_metrics,
    settle,
)
from arl_lightning.protocols import ChatTokenizer
from arl_lightning.types import ArlError, TokenBatch


class PolicyModule(LightningModule):
    """A Lightning module that trains one language model with one optimiser and own optimisation steps.

    Args:
        policy: where the model comes from.
        optimizer: `class_path` of an optimiser; it gets all trainable parameters with their names.
        lr_scheduler: `class_path` of a scheduler, stepped once an epoch; null for a constant rate.
        gradient_clip: largest norm of the gradient, clipped over all parameters.
        tokens_per_pass: rows × longest row that one forward pass may hold, but for a segment that is larger by itself;
            changes memory, never the gradient.
        max_skipped_steps: consecutive steps with a non-finite loss or gradient before the run stops.
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
        self._asked_schedule: dict[str, Any] = {}
        self._weights_moved = False
        self._metrics_before: list[EpochMetric] = []
        self._log_before: dict[str, Any] = {}

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

    def precision(self) -> AbstractContextManager[None]:
        """The context of every forward, since play happens outside of Lightning's own; none without a Trainer."""
        return nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()

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
        scheduler = self.make_lr_scheduler(optimizer)
        self._asked_schedule = {
            name: copy.copy(value)
            for name, value in scheduler.state_dict().items()
            if not name.startswith("_") and name != "last_epoch"
        }
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    @property
    def optimizer(self) -> LightningOptimizer:
        """The one optimiser, in Lightning's wrapping, which counts steps."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        return optimizer

    def on_fit_start(self) -> None:
        """Refuses float16, whose loss scaling these own steps would undo at the wrong moment."""
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ArlError("float16 with loss scaling is not supported: use --trainer.precision bf16-mixed or 32-true")

    def on_train_start(self) -> None:
        """Optimiser and scheduler obey the command line, also where a checkpoint has just brought other arguments.

        How far a schedule has come is kept: its epoch, and the present rate as a factor of the first one. Models are
        loaded in evaluation mode and Lightning leaves them so.
        """
        self.acting.train()
        put_back_metrics(self.trainer, self._metrics_before)
        log_what_is_missing(self.trainer, self._log_before)
        for group, asked in zip(self.optimizer.param_groups, self._asked_groups, strict=True):
            started_at = group.get("initial_lr", group["lr"])
            group["lr"] *= asked["lr"] / started_at if asked["lr"] != started_at else 1
            group.update({name: value for name, value in asked.items() if name != "lr"})
            if "initial_lr" in group:
                group["initial_lr"] = asked["lr"]
        if (scheduler := self.lr_schedulers()) is not None:
            vars(scheduler).update(copy.deepcopy(self._asked_schedule))

    def on_train_epoch_end(self) -> None:
        """The scheduler advances once an epoch; under own optimisation Lightning leaves that to us."""
        if (scheduler := self.lr_schedulers()) is not None:
            scheduler.step()  # type: ignore[union-attr]

    def passes(self, batch: TokenBatch) -> list[list[int]]:
        """Rows of `batch` by the forward pass that they fit into; no segment is cut."""
        segments = [frozenset(row[row >= 0].tolist()) for row in batch.segment_ids_NT.cpu()]
        return pack_units(adjacent_units(segments), batch.lengths_N.tolist(), self.tokens_per_pass)

    def apply_gradient(self, stage: str, loss: float) -> float | None:
        """Clips, steps, and gives back the gradient's norm before clipping; None when the step was skipped.

        A step whose loss or gradient is not finite is skipped: weights and optimiser stay as they are, and the schedule
        counts epochs anyway. That the run stops comes before any action at an epoch's end, such as a roll-back, which
        gets its turn where `max_skipped_steps` is more than the steps of an epoch.

        Raises:
            ArlError: after `max_skipped_steps` such steps in a row, or when the first step left every weight unchanged.
        """
        parameters = self.trainable_parameters().values()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.gradient_clip))
        finite = math.isfinite(norm) and math.isfinite(self._over_ranks(loss))
        self.log(
            f"{stage}/skipped_steps", float(not finite), batch_size=1, on_step=False, on_epoch=True, reduce_fx="sum"
        )
        if not finite:
            self.skipped_steps += 1
            if self.skipped_steps >= self.max_skipped_steps:
                raise ArlError(
                    f"{self.skipped_steps} optimiser steps in a row had a non-finite gradient or loss: lower the "
                    "learning rate and resume from the last checkpoint, which is of before"
                )
            return None
        self.skipped_steps = 0
        before = [] if self._weights_moved else _fingerprint(parameters)
        self.optimizer.step()
        if not self._weights_moved and norm > 0:
            self._weights_moved = _fingerprint(parameters) != before
            if not self._weights_moved:
                raise ArlError(
                    "the first optimiser step changed no weight: is the learning rate 0, or the adapter frozen?"
                )
        self.log(f"{stage}/grad_norm", norm, batch_size=1, on_step=False, on_epoch=True)
        return norm

    def _over_ranks(self, value: float) -> float:
        """The sum over all ranks, which must skip together."""
        if self.trainer.world_size == 1:
            return value
        return float(self.trainer.strategy.reduce(torch.tensor(value, device=self.device), reduce_op="sum"))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Trained weights only: the frozen rest comes from where it was loaded."""
        trained = self.trainable_parameters()
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if name in trained}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what Lightning would forget: the steps skipped in a row, and what the epoch logs."""
        checkpoint["skipped_steps"] = self.skipped_steps
        checkpoint["epoch_metrics"] = keep_metrics(self.trainer)
        checkpoint["epoch_log"] = keep_log(self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model, which non-strict loading would take silently."""
        check_same_weights(checkpoint["state_dict"], self.trainable_parameters())
        self.skipped_steps = checkpoint.get("skipped_steps", 0)
        self._metrics_before = checkpoint.get("epoch_metrics", [])
        self._log_before = checkpoint.get("epoch_log", {})
        if "loops" in checkpoint and self._trainer is not None:
            settle(checkpoint, validates=self._validates(checkpoint["epoch"]))

    def _validates(self, epoch: int) -> bool:
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and every is not None and (epoch + 1) % every == 0

    def recipe(self) -> dict[str, str]:
        """What a model card says about the training, by part."""
        return {"module": type(self).__name__}

    def export(self, folder: Path) -> None:
        """Leaves the policy in `folder` in Hugging Face format, an adapter in peft's, and a card with its recipe."""
        refuse_mixture(folder, adapter=is_adapted(self.acting.model))
        self.acting.save(folder)
        self._write_card(folder, self.acting.model)

    def export_merged(self, folder: Path) -> Drift:
        """Leaves a model in `folder` that has the adapter in its weights, and gives how far it is from the policy."""
        refuse_mixture(folder, adapter=False)
        policy = self.acting.eval()
        plain = merged(policy.model)
        plain.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        self._write_card(folder, plain)
        return measure_drift(policy.model, plain, policy.tokenizer)

    def _write_card(self, folder: Path, model: PreTrainedModel) -> None:
        run_folder = None if self._trainer is None else Path(self.trainer.default_root_dir)
        config_file = None if run_folder is None else run_folder / "config.yaml"
        write_card(folder, model, str(self.acting.model.name_or_path), self.recipe(), config_file)


def _fingerprint(parameters: Iterable[Parameter]) -> list[float]:
    """One number a weight that any change would move; nothing is copied."""
    return [float(p.detach().abs().sum(dtype=torch.float64)) for p in parameters]


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
