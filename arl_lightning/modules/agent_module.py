"""The LightningModule of reinforcement: acts, scores, estimates advantages, and takes one step a mini-batch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from arl_lightning.functional.diagnostics import measure_step, padding
from arl_lightning.functional.segments import count
from arl_lightning.functional.statistics import wilson_interval
from arl_lightning.modules import memory
from arl_lightning.modules.adapters import refuse_dropout
from arl_lightning.modules.freshness import check_on_policy, check_version
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.policy import ModelSource
from arl_lightning.modules.policy_module import PolicyModule
from arl_lightning.modules.reference import Reference, freeze_start
from arl_lightning.modules.step_report import StepReport, sum_over_ranks
from arl_lightning.types import (
    Advantages,
    Decoding,
    EpisodeGroup,
    Measure,
    PassRecord,
    Rollout,
    Scores,
    TokenBatch,
    TrajectoryBatch,
)


class AgentModule(PolicyModule):
    """A policy and its frozen reference, trained by one exchangeable objective.

    One batch of the loader is one optimiser step. Its gradient does not depend on how it is cut into passes: the
    denominators of the whole step are counted before the first backward.

    Args:
        policy: where the model comes from; the reference is that start, frozen.
        objective: the loss in named slots.
        optimizer: `class_path` of an optimiser; it gets all trainable parameters.
        lr_scheduler: `class_path` of a scheduler, stepped once an epoch; null for a constant rate.
        gradient_clip: largest norm of the gradient.
        tokens_per_pass: rows × longest row that one forward pass may hold, but for a segment that is larger by itself;
            changes memory, never the gradient.
        cache_gb: gigabytes that keys and values may take in play (147 kB a token in a 4B model): as many episodes are
            played at once as fit, the others as room frees; null for half of the memory that is free when play begins.
            Changes memory and speed, never what is drawn.
        ratio_tolerance: largest |log ratio| allowed on the first mini-batch of an epoch, where it must be 0 to float
            tolerance; null for 0.001 where weights and Trainer are float32, and 0.05 where either is less.
        max_skipped_steps: consecutive steps with a non-finite loss or gradient before the run stops.
    """

    def __init__(
        self,
        policy: ModelSource,
        objective: Objective,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        gradient_clip: float = 1.0,
        tokens_per_pass: int = 65536,
        cache_gb: float | None = None,
        ratio_tolerance: float | None = None,
        max_skipped_steps: int = 3,
    ) -> None:
        super().__init__(policy, optimizer, lr_scheduler, gradient_clip, tokens_per_pass, max_skipped_steps)
        self.objective = objective
        self.cache_gb = cache_gb
        self._sampler: Sampler | None = None
        self.ratio_tolerance = ratio_tolerance
        self.reference: Reference | None = None
        self._epoch_version: int | None = None
        self._left_to_step = False
        self._played: Mapping[str, Measure] = {}
        self._successes: dict[str, Measure] = {}

    def configure_model(self) -> None:
        """Loads the policy; training also freezes its start as the reference, which nothing else needs."""
        super().configure_model()
        trains = self._trainer is None or self._trainer.state.fn == TrainerFn.FITTING
        if trains and self.reference is None:
            refuse_dropout(self.acting.model)
            self.reference = freeze_start(self.acting)

    def recipe(self) -> dict[str, str]:
        """The filled slots of the objective."""
        slots = {f.name: getattr(self.objective, f.name) for f in fields(self.objective)}
        return {**super().recipe(), **{name: type(part).__name__ for name, part in slots.items() if part is not None}}

    # what the rollout asks of a policy

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end a response."""
        return self.acting.stop_token_ids

    @property
    def policy_version(self) -> int:
        """Optimiser steps taken so far."""
        return self.global_step

    @property
    def max_context(self) -> int:
        """Tokens that prompt and response may fill together."""
        return self.acting.max_context

    def sampler(self, decoding: Decoding, *, grows: bool) -> Sampler:
        """Draws responses with the weights of this moment, in the precision of training."""
        budget = memory.free_bytes(self.device) / 2 if self.cache_gb is None else self.cache_gb * 1e9
        self._sampler = Sampler(
            self.acting,
            decoding,
            budget_bytes=budget,
            tokens_per_pass=self.tokens_per_pass,
            grows=grows,
            context=self.precision,
        )
        return self._sampler

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> Scores:
        """Log-probs of policy and reference and entropies, by the same forward that training uses.

        Where the epoch has one step and nothing reads them before, those of the policy are left to it: they are NaN.
        """
        assert self.reference is not None
        one_step = self._trainer is not None and self.trainer.training and self.trainer.num_training_batches == 1
        self._left_to_step = left = one_step and not self.objective.reads_scores
        shape, unknown = batch.input_ids_NT.shape, math.nan if left else 0.0
        logprobs_NT, entropies_NT, ref_logprobs_NT = (torch.full(shape, value) for value in (unknown, unknown, 0.0))
        penalty = self.objective.reward_kl
        for rows in self.passes(batch):
            part = batch.take(rows).to(self.device)
            block = (rows, slice(0, part.input_ids_NT.shape[1]))
            with self.precision():
                if not left:
                    logprobs_NT[block], entropies_NT[block] = (x.cpu() for x in self.acting.logprobs(part))
                ref_logprobs_NT[block] = self.reference.logprobs(part).cpu()
        penalties_NT = torch.zeros(shape) if penalty is None else penalty.penalize(logprobs_NT, ref_logprobs_NT)
        return Scores(logprobs_NT, ref_logprobs_NT, entropies_NT, penalties_NT)

    def estimate_advantages(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """One advantage a turn, by the objective's estimator."""
        return self.objective.advantage.estimate(groups, entropies_PGK)

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to do; the module only wants to know the end."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to do; the module only wants to know the end."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """Keeps the measures of a training rollout until Lightning lets the module log them."""
        if rollout.stage == "train":
            self._played = rollout.measures

    # training

    def on_train_epoch_start(self) -> None:
        """Models are loaded in evaluation mode and Lightning leaves them so."""
        self.acting.train()

    def on_train_epoch_end(self) -> None:
        """The scheduler's step, and the most memory that was in use so far."""
        super().on_train_epoch_end()
        self._log_peak("memory/peak_gb", memory.peak_bytes(self.device))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps which weights played the epoch under way, if a data module has put its rows into the checkpoint."""
        super().on_save_checkpoint(checkpoint)
        kept = type(self.trainer.datamodule).__qualname__ in checkpoint  # type: ignore[attr-defined]
        checkpoint["epoch_version"] = self._epoch_version if kept else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with the rows that those weights played."""
        super().on_load_checkpoint(checkpoint)
        self._epoch_version = checkpoint.get("epoch_version")

    def training_step(self, batch: TrajectoryBatch, batch_idx: int) -> Mapping[str, Any] | None:
        """One optimiser step on one mini-batch; gives callbacks the records of all ranks' passes.

        A batch without rows, which a filter set to `skip` leaves, is no step. Where scoring left the old log-probs to
        this step they are its own: every ratio is 1 by construction, and the first mini-batch checks nothing.
        """
        if batch_idx == 0:
            self._epoch_version = self.global_step
            self._log_measures(self._played)
            if self._sampler is not None:
                self._log_peak("memory/cache_gb", self._sampler.peak_bytes)
        if not len(batch):
            return None
        check_version(batch.policy_version, self._epoch_version)
        started = time.perf_counter()
        self.optimizer.zero_grad()
        passes = [batch.take(rows) for rows in self.passes(batch)]
        acted_by_pass = [count(part.action_mask_NT, part.segment_ids_NT) for part in passes]
        acted = sum_over_ranks(self.trainer, acted_by_pass)
        first_pass = self._logprobs(passes[0]) if len(passes) == 1 else None
        kept = sum_over_ranks(
            self.trainer, [count(self._keep(part, first_pass), part.segment_ids_NT) for part in passes]
        )
        records: list[PassRecord] = []
        loss = 0.0
        for cut in passes:
            logprobs_NT, entropies_NT = first_pass or self._logprobs(cut)
            part = self._with_old(cut, logprobs_NT)
            share, record = self.objective.compute(logprobs_NT, entropies_NT, part, kept, acted)
            with nullcontext() if cut is passes[-1] else self._without_sync():
                self.manual_backward(share * self.trainer.world_size)  # ranks are averaged, their shares add up
            loss += float(share.detach())
            records.append(record)
        report = StepReport(loss, padding(passes), records).of_all(self.trainer.world_size)
        if batch_idx == 0:
            self._check_on_policy(report.worst_log_ratio())
        self._log_measures({"throughput/padding_ratio": report.padding, **measure_step(report.records, kept)})
        self.log("train/loss", report.loss, batch_size=1, on_step=False, on_epoch=True)
        self.apply_gradient("train", report.loss)
        self.log(
            "time/update_s", time.perf_counter() - started, batch_size=1, on_step=False, on_epoch=True, reduce_fx="sum"
        )
        return {"records": report.records}

    def _logprobs(self, part: TrajectoryBatch) -> tuple[Tensor, Tensor]:
        with self.precision():
            return self.acting.logprobs(part, entropy_grad=self.objective.entropy is not None)

    @torch.no_grad()
    def _keep(self, part: TrajectoryBatch, known: tuple[Tensor, Tensor] | None) -> Tensor:
        """The mask of one pass; costs a forward of its own only where a mask is set and the step has several passes."""
        if self.objective.mask is None:
            return part.action_mask_NT
        logprobs_NT, _ = known or self._logprobs(part)
        return self.objective.keep(logprobs_NT.detach(), self._with_old(part, logprobs_NT))

    def _with_old(self, part: TrajectoryBatch, logprobs_NT: Tensor) -> TrajectoryBatch:
        """`part` with the old log-probs that scoring left to the step, whose weights are still the old ones."""
        return replace(part, old_logprobs_NT=logprobs_NT.detach()) if self._left_to_step else part

    def _without_sync(self) -> AbstractContextManager[None]:
        """Gradients of all passes but the last stay on their rank, so that ranks need not have equally many."""
        strategy = self.trainer.strategy
        return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()

    def _check_on_policy(self, worst: float) -> None:
        self.log("train/ratio/first_error", worst, batch_size=1, on_step=False, on_epoch=True, reduce_fx="max")
        exact = self.acting.model.dtype == torch.float32 and str(self.trainer.precision).startswith("32")
        check_on_policy(worst, self.ratio_tolerance, exact=exact)

    # held-out play

    def validation_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Logs one portion of held-out episodes."""
        self._log_held_out(rollout)

    def test_step(self, rollout: Rollout, batch_idx: int) -> None:
        """Logs one portion of test episodes."""
        self._log_held_out(rollout)

    def on_validation_epoch_end(self) -> None:
        """Adds 95 % Wilson intervals to the success rates."""
        for name, share in self._successes.items():
            low, high = wilson_interval(round(share.total), share.count)
            self.log(f"{name}_low", low)
            self.log(f"{name}_high", high)
        self._successes.clear()

    on_test_epoch_end = on_validation_epoch_end

    def _log_held_out(self, rollout: Rollout) -> None:
        self._log_measures(rollout.measures)
        name = f"{rollout.stage}/success_rate"
        share, seen = rollout.measures[name], self._successes.get(name, Measure(0, 0))
        self._successes[name] = Measure(share.total + seen.total, share.count + seen.count)

    def _log_peak(self, name: str, peak_bytes: float) -> None:
        """Gigabytes of the rank that took most."""
        self.log(name, peak_bytes / 1e9, batch_size=1, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)

    def _log_measures(self, measures: Mapping[str, Measure]) -> None:
        """Epoch means weighted by count: the sum over the sum of counts."""
        for name, measure in measures.items():
            if measure.count:
                mean = measure.total / measure.count
                self.log(name, mean, batch_size=measure.count, on_step=False, on_epoch=True)
