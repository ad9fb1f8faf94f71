"""The two halves of a comparison: our Trainer's fit and TRL's, each timed from outside, in a process of its own.

The half that runs under TRL's interpreter imports this file too: what only one half has is imported where it is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pairs import CLOCKS

LEARNING_RATE = 1e-6


class Memory:
    """Resident memory of this process (GB): before training, and the most since then. Linux only."""

    def begin(self, models: Sequence[torch.nn.Module]) -> None:
        for model in models:  # weights that are mapped from a file become resident only when they are read
            for parameter in model.parameters():
                parameter.detach().sum()
        self.before_gb = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten, loading included

    def report(self) -> dict[str, float]:
        peak = _status("VmHWM")
        return {"before_gb": self.before_gb, "peak_gb": peak, "extra_gb": peak - self.before_gb}


def _status(field: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024 / 1e9


class Watch:
    """Marks of our half; see `as_callback`."""

    def __init__(self, clock: str) -> None:
        self.now = CLOCKS[clock]
        self.memory = Memory()
        self.steps: list[dict[str, Any]] = []
        self.turn_ends: list[float] = []
        self.began = self.scored = self.fetched = 0.0
        self.rollout: Any = None

    def as_callback(self) -> Any:
        """The same marks where a Trainer and the play of its data look for them."""
        from lightning.pytorch import Callback

        watch = self

        class Marks(Callback):
            def on_train_start(self, *trainer_and_module: Any) -> None:
                watch.memory.begin([trainer_and_module[1]])
                watch.began = watch.now()

            def rollout_started(self, *_: Any) -> None:
                watch.turn_ends = [watch.now()]

            def rollout_advanced(self, *_: Any) -> None:
                watch.turn_ends.append(watch.now())

            def rollout_finished(self, rollout: Any) -> None:
                watch.rollout, watch.scored = rollout, watch.now()

            def on_train_batch_start(self, *_: Any) -> None:
                watch.fetched = watch.now()

            def on_train_batch_end(self, *_: Any) -> None:
                watch.end_step()

        return Marks()

    def end_step(self) -> None:
        """One record a step, from the end of the one before."""
        now = self.now()
        episodes = [episode for group in self.rollout.groups for episode in group.episodes]
        turns = [turn for episode in episodes for turn in episode.turns]
        sampled = sum(len(turn.completion.token_ids) for turn in turns)
        shown = sum(len(turn.prompt_ids) for turn in turns)
        shared = sum(len(e.turns[0].prompt_ids) for group in self.rollout.groups for e in group.episodes[1:])
        self.steps.append(
            {
                "step_s": now - self.began,
                "rollout_s": self.turn_ends[-1] - self.turn_ends[0],
                "score_s": self.scored - self.turn_ends[-1],
                "update_s": now - self.fetched,
                "turn_s": [end - start for start, end in pairwise(self.turn_ends)],
                "sampled": sampled,
                "row_tokens": shown + sampled,
                "computed": shown + sampled - shared,
            }
        )
        self.began = now

    def report(self) -> dict[str, Any]:
        return {"steps": self.steps, **self.memory.report()}


def fit_ours(
    folder: str,
    task: Any,
    *,
    groups: int,
    group_size: int,
    response_tokens: int,
    pass_tokens: int,
    kl: float,
    steps: int,
    clock: str,
) -> dict[str, Any]:
    """Our half: a Trainer's fit of `steps` epochs, one optimiser step each."""
    from functools import partial

    from lightning.pytorch import Trainer

    from arl_lightning.datamodules.rollout_datamodule import RolloutDataModule
    from arl_lightning.modules.agent_module import AgentModule
    from arl_lightning.modules.aggregations import TokenMean
    from arl_lightning.modules.estimators import GroupNormalized
    from arl_lightning.modules.objective import Objective
    from arl_lightning.modules.pretrained import PretrainedModel
    from arl_lightning.modules.regularizers import ReferenceKL
    from arl_lightning.modules.surrogates import TokenClip
    from arl_lightning.types import Decoding

    divergence = ReferenceKL(kl, "k3") if kl else None
    module = AgentModule(
        PretrainedModel(folder),
        Objective(TokenClip(), TokenMean(), GroupNormalized(), kl=divergence),
        optimizer=partial(torch.optim.AdamW, lr=LEARNING_RATE, weight_decay=0.0),
        tokens_per_pass=pass_tokens,
    )
    decoding = Decoding(max_new_tokens=response_tokens)
    data = RolloutDataModule(task, decoding, groups=groups, group_size=group_size, minibatches=1)
    watch = Watch(clock)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=steps,
        reload_dataloaders_every_n_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch.as_callback()],
    )
    trainer.fit(module, data)
    return watch.report()


def fit_theirs(
    folder: str,
    rows: list[dict[str, Any]],
    *,
    rewards: list[Any],
    group_size: int,
    completion_tokens: int,
    rows_per_pass: int,
    rows_per_step: int,
    kl: float,
    steps: int,
    checkpointing: bool,
    clock: str,
    tokenizer: Any = None,
    tool_rounds: int | None = None,
    **trainer_arguments: Any,
) -> dict[str, Any]:
    """TRL's half: GRPOTrainer with its in-process engine, timed from outside."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    now = CLOCKS[clock]

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """GRPOTrainer with a clock around its own phases."""

        def _generate_single_turn(self, prompt_ids: Any, *a: Any, **k: Any) -> Any:
            result = super()._generate_single_turn(prompt_ids, *a, **k)
            self.spent["computed"] += sum(map(len, prompt_ids)) + sum(map(len, result[0]))
            self.turn_ends.append(now())
            return result

        def _generate(self, *a: Any, **k: Any) -> Any:
            result = super()._generate(*a, **k)
            prompts, completions, tool_mask = result[:3]
            self.spent["rollout_s"] += now() - self.turn_ends[0]
            self.spent["sampled"] += sum(map(sum, tool_mask)) if tool_mask else sum(map(len, completions))
            self.spent["row_tokens"] += sum(map(len, prompts)) + sum(map(len, completions))
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.turn_ends = [now()]
            result = super()._generate_and_score_completions(inputs)
            self.spent["played_s"] += now() - self.turn_ends[0]
            return result

    class Marks(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            counted = ("sampled", "row_tokens", "computed")
            trainer.spent = dict.fromkeys(("rollout_s", "played_s", *counted), 0)
            memory.begin([model for model in (trainer.model, trainer.ref_model) if model is not None])
            self.began = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended, spent, ends = now(), trainer.spent, trainer.turn_ends
            records.append(
                {
                    "step_s": ended - self.began,
                    "rollout_s": spent["rollout_s"],
                    "score_s": spent["played_s"] - spent["rollout_s"],
                    "update_s": ended - self.began - spent["played_s"],
                    "turn_s": [end - start for start, end in pairwise(ends)],
                    **{name: spent[name] for name in ("sampled", "row_tokens", "computed")},
                }
            )
            trainer.spent = dict.fromkeys(spent, 0)
            self.began = ended

    records: list[dict[str, Any]] = []
    memory = Memory()
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=rows_per_pass,
            gradient_accumulation_steps=rows_per_step // rows_per_pass,
            num_generations=group_size,
            max_completion_length=completion_tokens,
            max_tool_calling_iterations=tool_rounds,
            max_steps=steps,
            beta=kl,
            use_bias_correction_kl=False,
            loss_type="bnpo",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            optim="adamw_torch",
            shuffle_dataset=False,
            gradient_checkpointing=checkpointing,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Timed(
            model=folder,
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer or AutoTokenizer.from_pretrained(folder),
            callbacks=[Marks()],
            **trainer_arguments,
        )
        trainer.train()
    return {"steps": records, **memory.report()}


def task_seeds(steps: int, groups: int) -> list[int]:
    """The seeds that `RolloutDataModule` gives to the tasks of its first epochs."""
    from arl_lightning.functional.seeding import Stream, derive_seed

    return [derive_seed(0, Stream.TRAIN_TASK, epoch, 0, group) for epoch in range(steps) for group in range(groups)]
