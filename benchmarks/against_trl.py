"""Our losses and their gradients beside those of TRL's GRPOTrainer, on the same random numbers.

    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install 'torch==2.13.*' trl
    python benchmarks/against_trl.py --trl-python /tmp/trl/bin/python

The script asks, and starts itself once more under TRL's interpreter to answer; that half runs TRL's own loss code on
given log-probs in place of a model's. Every row of tokens is one segment. It prints a table, and fails when a case
that should agree differs by more than 1e-5, or one that should differ does not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# These need torch only: the half that answers imports this file in an environment without Lightning.
from arl_lightning.functional.kl import k3
from arl_lightning.functional.ratios import log_ratio, ratio
from arl_lightning.functional.segments import count
from arl_lightning.modules.aggregations import SequenceMean, SequenceSum, TokenMean
from arl_lightning.modules.estimators import GroupNormalized
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.regularizers import EntropyBonus, ReferenceKL
from arl_lightning.modules.surrogates import ClippedWeight, SequenceClip, SoftGate, TokenClip
from arl_lightning.types import StepTotals, TrajectoryBatch

ROWS, TOKENS, SEEDS, LIMIT = 8, 12, range(5), 1e-5
SPREADS_NATS = (0.004, 0.4)
"""Spread of log-ratios: about a sequence's clip band, and about twice a token's."""


@dataclass(frozen=True)
class Pass:
    """Some rows of a step: log-probs with gradient, entropies, and the batch."""

    logprobs_NT: Tensor
    entropies_NT: Tensor
    batch: TrajectoryBatch


Passes = Sequence[Pass]
Loss = Callable[[Objective, Passes], Tensor]


def step(objective: Objective, passes: Passes) -> Tensor:
    """The loss of one optimiser step, as the package computes it."""
    return _shares(objective, passes, _totals(objective, passes))


def over_all_actions(objective: Objective, passes: Passes) -> Tensor:
    """As `step`, but what the mask dropped stays in the denominator."""
    return _shares(objective, passes, _totals(replace(objective, mask=None), passes))


def over_rows(objective: Objective, passes: Passes) -> Tensor:
    """As `step`, but every row counts once."""
    return step(replace(objective, aggregation=SequenceMean()), passes)


def mean_of_passes(objective: Objective, passes: Passes) -> Tensor:
    """The mean of the passes' losses, each with denominators of its own."""
    return torch.stack([step(objective, [one]) for one in passes]).mean()


def over_all_rows(objective: Objective, passes: Passes) -> Tensor:
    """As `step` with a mean over segments, but rows without an action count as segments of loss 0."""
    return step(objective, passes) * _totals(objective, passes).segments / sum(len(one.batch) for one in passes)


def with_weighted_kl(objective: Objective, passes: Passes) -> Tensor:
    """As `step`, but the KL of each token is multiplied by its importance ratio, with gradient."""
    assert objective.kl is not None
    loss, acted = step(replace(objective, kl=None), passes), _totals(replace(objective, mask=None), passes)
    for one in passes:
        batch = one.batch
        weight_NT = ratio(log_ratio(one.logprobs_NT, batch.old_logprobs_NT, batch.action_mask_NT))
        kl_NT = weight_NT * k3(one.logprobs_NT, batch.ref_logprobs_NT)
        share = objective.aggregation.compute(kl_NT, batch.action_mask_NT, batch.segment_ids_NT, acted)
        loss = loss + objective.kl.coefficient * share
    return loss


def _totals(objective: Objective, passes: Passes) -> StepTotals:
    counts = [count(objective.keep(one.logprobs_NT.detach(), one.batch), one.batch.segment_ids_NT) for one in passes]
    return sum(counts, StepTotals(0, 0))


def _shares(objective: Objective, passes: Passes, kept: StepTotals) -> Tensor:
    acted = _totals(replace(objective, mask=None), passes)
    shares = [
        objective.compute(one.logprobs_NT, one.entropies_NT, one.batch, kept=kept, acted=acted)[0] for one in passes
    ]
    return torch.stack(shares).sum()


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: the method as we call it.
        objective: our parts.
        theirs: arguments of TRL's GRPOConfig.
        note: what to know about it, or the definition that differs.
        defined: our parts by TRL's definition where it differs; None where the two should agree as they are.
        passes: equal parts into which the rows are cut.
        empty_row: whether the first row has no action.
    """

    name: str
    objective: Objective
    theirs: Mapping[str, Any]
    note: str = ""
    defined: Loss | None = None
    passes: int = 1
    empty_row: bool = False


def _cases() -> list[Case]:
    grpo = Objective(surrogate=TokenClip(), aggregation=TokenMean(), advantage=GroupNormalized())
    grpo_st = replace(grpo, aggregation=SequenceMean())
    grpo_kl = replace(grpo, kl=ReferenceKL(0.04, "k3"))
    dapo = replace(grpo, surrogate=TokenClip(0.2, 0.28))
    gspo = replace(grpo_st, surrogate=SequenceClip(3e-3, 4e-3))
    cispo = replace(grpo, surrogate=ClippedWeight(1.0, 0.2))
    sapo = replace(grpo, surrogate=SoftGate(1.0, 1.05))
    luspo = replace(gspo, aggregation=SequenceSum(1))
    mask = SequenceMask(3e-3)
    grpo_t, bnpo_t, kl_t = {"loss_type": "grpo"}, {"loss_type": "bnpo"}, {"loss_type": "bnpo", "beta": 0.04}
    dapo_t, cispo_t = {"loss_type": "dapo", "epsilon_high": 0.28}, {"loss_type": "cispo", "epsilon_high": 1.2}
    sequence_t = {"importance_sampling_level": "sequence", "epsilon": 3e-3, "epsilon_high": 4e-3}
    mask_t = {"off_policy_mask_threshold": 3e-3}
    not_over_kept = "TRL leaves what the mask dropped in the denominator"
    return [
        Case("GRPO", grpo, bnpo_t, "TRL's `grpo` is our GRPO_ST; the token mean is its `bnpo`"),
        Case("GRPO_ST", grpo_st, grpo_t),
        Case("GRPO_ST, 2 passes", grpo_st, grpo_t, "passes of equally many rows", passes=2),
        Case("Dr.GRPO", replace(grpo, aggregation=SequenceSum(TOKENS)), {"loss_type": "dr_grpo"}),
        Case("DAPO", dapo, dapo_t),
        Case("DAPO, 2 passes", dapo, dapo_t, "both divide by the tokens of the whole step", passes=2),
        Case("GSPO", gspo, grpo_t | sequence_t, "one ratio a row there, here one a token with the same gradient"),
        Case("CISPO", cispo, cispo_t, "TRL's `epsilon_high` is the ceiling itself: our 0.2 is its 1.2"),
        Case("CISPO, 2 passes", cispo, cispo_t, passes=2),
        Case("GRPO, dual 2", replace(grpo, surrogate=TokenClip(dual=2.0)), bnpo_t | {"delta": 2.0}),
        Case("GRPO, k3 KL", grpo_kl, kl_t | {"use_bias_correction_kl": False}),
        Case("GRPO, entropy", replace(grpo, entropy=EntropyBonus(0.01)), bnpo_t | {"entropy_coef": 0.01}),
        Case("LUSPO", luspo, {"loss_type": "luspo"} | sequence_t, "no shipped method: SequenceClip, SequenceSum(1)"),
        Case("SAPO", sapo, {"loss_type": "sapo"}, "TRL averages over rows, ARLArena and we over tokens", over_rows),
        Case("GRPO, 2 passes", grpo, bnpo_t, "TRL averages the token means of its passes", mean_of_passes, passes=2),
        Case("GRPO_SM", replace(grpo, mask=mask), bnpo_t | mask_t, not_over_kept, over_all_actions),
        Case("SAMPO", replace(gspo, mask=mask), grpo_t | sequence_t | mask_t, not_over_kept, over_all_actions),
        Case("GRPO_ST, empty row", grpo_st, grpo_t, "TRL counts it as a row of loss 0", over_all_rows, empty_row=True),
        Case("GRPO, TRL's KL", grpo_kl, kl_t, "TRL multiplies k3 by the ratio unless told otherwise", with_weighted_kl),
    ]


def _draws(case: Case) -> list[Passes]:
    return [_draw(case, seed, spread_nats) for seed in SEEDS for spread_nats in SPREADS_NATS]


def _draw(case: Case, seed: int, spread_nats: float) -> Passes:
    """Random passes: rows differ in length, have gaps (what a tool said) and one advantage each."""
    generator = torch.Generator().manual_seed(seed)

    def normal_NT() -> Tensor:
        return torch.randn(ROWS, TOKENS, generator=generator)

    lengths_N1 = torch.randint(2, TOKENS + 1, (ROWS, 1), generator=generator)
    acts_NT = (torch.arange(TOKENS) < lengths_N1) & ((normal_NT() < 1) | (torch.arange(TOKENS) == 0))
    acts_NT[0] &= not case.empty_row
    old_NT = -normal_NT().abs()
    new_NT = old_NT + spread_nats * normal_NT()
    batch = TrajectoryBatch(
        input_ids_NT=torch.zeros(ROWS, TOKENS, dtype=torch.int64),
        lengths_N=torch.full((ROWS,), TOKENS),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(ROWS)[:, None], -1),
        behavior_logprobs_NT=old_NT,
        old_logprobs_NT=old_NT,
        ref_logprobs_NT=old_NT + 0.3 * normal_NT(),
        advantages_NT=normal_NT()[:, :1].expand(ROWS, TOKENS),
        policy_version=0,
    )
    entropies_NT = normal_NT().abs()
    return [
        Pass(new_NT[rows].requires_grad_(), entropies_NT[rows], batch.take(rows))
        for rows in torch.arange(ROWS).reshape(case.passes, -1).tolist()
    ]


def _question(case: Case, passes: Passes) -> dict[str, Any]:
    """The same numbers under TRL's names."""
    tokens = torch.stack([one.batch.action_mask_NT.sum() for one in passes]).sum()
    sizes = {"per_device_train_batch_size": ROWS // case.passes, "gradient_accumulation_steps": case.passes}
    return {
        "config": {"max_completion_length": TOKENS, "num_generations": ROWS, **sizes, **case.theirs},
        "passes": [
            {
                "logprobs": one.logprobs_NT.detach(),
                "entropies": one.entropies_NT,
                "inputs": {
                    "prompt_ids": torch.zeros(len(one.batch), 1, dtype=torch.int64),
                    "prompt_mask": torch.ones(len(one.batch), 1, dtype=torch.int64),
                    "completion_ids": one.batch.input_ids_NT,
                    "completion_mask": torch.ones_like(one.batch.input_ids_NT),
                    "tool_mask": one.batch.action_mask_NT.long(),
                    "advantages": one.batch.advantages_NT[:, 0].clone(),
                    "old_per_token_logps": one.batch.old_logprobs_NT,
                    "ref_per_token_logps": one.batch.ref_logprobs_NT,
                    "num_items_in_batch": tokens,
                },
            }
            for one in passes
        ],
    }


def answer(path: Path) -> None:
    """TRL's half: puts the loss and gradient of each question in `path` into its place."""
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    read = (
        "beta entropy_coef importance_sampling_level loss_type max_completion_length off_policy_mask_threshold "
        "top_entropy_quantile use_adaptive_entropy use_vllm vllm_importance_sampling_correction"
    )

    class Stage(GRPOTrainer):  # type: ignore[misc]
        """What `_compute_loss` reads of a trainer, without a model: log-probs come with the question."""

        def __init__(self, config: Any) -> None:
            self.args = config
            for name in read.split():
                setattr(self, name, getattr(config, name))
            self.epsilon_low = config.epsilon
            self.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
            self.current_gradient_accumulation_steps = config.gradient_accumulation_steps
            self._entropy_bonus_enabled = config.entropy_coef != 0
            self.aux_loss_enabled = False
            self.accelerator = Accelerator(cpu=True)
            self.model = torch.nn.Identity()
            self._metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}

        def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **__: Any) -> tuple[Any, Any, None]:
            return model["logprobs"], model["entropies"], None

    def answer_one(question: dict[str, Any]) -> tuple[Tensor, Tensor]:
        with tempfile.TemporaryDirectory() as folder:
            config = GRPOConfig(folder, use_cpu=True, bf16=False, report_to="none", **question["config"])
        leaves = [one["logprobs"].requires_grad_() for one in question["passes"]]
        losses = [Stage(config)._compute_loss(one, one["inputs"]) for one in question["passes"]]
        loss = torch.stack(losses).sum()
        return loss.detach(), torch.cat(torch.autograd.grad(loss, leaves))

    answers = [[answer_one(question) for question in questions] for questions in torch.load(path)]
    torch.save((version("trl"), answers), path)


def ask(trl_python: str) -> bool:
    """Prints the table; True when every case is as expected."""
    cases = [(case, _draws(case)) for case in _cases()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.pt"
        torch.save([[_question(case, passes) for passes in draws] for case, draws in cases], path)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
        subprocess.run([trl_python, __file__, "--answer", str(path)], env=environment, check=True)
        trl_version, answers = torch.load(path)
    print(f"| ours | TRL {trl_version} | loss | gradient | by TRL's definition | |\n|---|---|---|---|---|---|")
    as_expected = True
    for (case, draws), theirs in zip(cases, answers, strict=True):
        loss, gradient = _differences(step, case, draws, theirs)
        by_definition = max(_differences(case.defined, case, draws, theirs)) if case.defined else max(loss, gradient)
        settings = ", ".join(f"{name} {value}" for name, value in case.theirs.items())
        shown = f"{by_definition:.0e}" if case.defined else ""
        print(f"| {case.name} | {settings} | {loss:.0e} | {gradient:.0e} | {shown} | {case.note} |")
        differs = max(loss, gradient) > LIMIT
        as_expected &= by_definition <= LIMIT and differs == (case.defined is not None)
    return as_expected


def _differences(
    loss_of: Loss, case: Case, draws: Sequence[Passes], theirs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """The largest difference of the loss over all draws, and that of the gradient as a share of its largest entry."""
    losses, gradients = [], []
    for passes, (their_loss, their_gradient_NT) in zip(draws, theirs, strict=True):
        loss = loss_of(case.objective, passes)
        gradient_NT = torch.cat(torch.autograd.grad(loss, [one.logprobs_NT for one in passes]))
        losses.append((loss - their_loss).abs().item())
        gradients.append(((gradient_NT - their_gradient_NT).abs().max() / their_gradient_NT.abs().max()).item())
    return max(losses), max(gradients)


def main() -> None:
    """Asks, or answers when started by the half that asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    half = parser.add_mutually_exclusive_group(required=True)
    half.add_argument("--trl-python", help="interpreter of an environment with TRL")
    half.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options.answer)
    else:
        sys.exit(0 if ask(options.trl_python) else "a case is not as expected")


if __name__ == "__main__":
    main()
