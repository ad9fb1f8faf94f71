"""What an optimiser step did to the policy, as sums and counts over the whole step, however it was cut into passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from arl_lightning.functional.kl import k3
from arl_lightning.functional.ratios import ratio
from arl_lightning.functional.segments import segment_index, segment_mean
from arl_lightning.types import Measure, PassRecord, StepTotals, TokenBatch

_QUANTILES = {"p05": 0.05, "p50": 0.5, "p95": 0.95}


@torch.no_grad()
def measure_step(records: Sequence[PassRecord], kept: StepTotals) -> dict[str, Measure]:
    """Measures of one optimiser step under their metric names.

    `train/clip_ratio/{low,high}` are the shares of action tokens at which the surrogate's limit acted, with A < 0 and
    A > 0. Segments with A < 0 (of their first token) and ratio < 1 are the `sinking` ones: their share, and the k3 KL
    to the reference of their tokens beside that of all others, in nats. Ratio quantiles, the largest |A| and the
    denominators are one number a step, so that an epoch shows their mean over its steps.

    Args:
        records: the passes of the step.
        kept: denominators of the policy term.

    Source: ARLArena, arXiv:2602.21534, on what moves before a collapse.
    """
    tokens = _Tokens(records)
    drift_A = tokens.old_A - tokens.new_A
    kl_A = k3(tokens.new_A, tokens.ref_A)
    falls_A, rises_A = tokens.advantages_A < 0, tokens.advantages_A > 0
    sinking_S = (tokens.ratios_S < 1) & (tokens.advantages_S < 0)
    sinking_A = sinking_S[tokens.segment_A]
    return {
        "train/approx_kl": _mean(drift_A),
        "train/kl": _mean(kl_A),
        "train/entropy": _mean(tokens.entropies_A),
        "train/clip_ratio/low": _mean(tokens.clipped_A & falls_A),
        "train/clip_ratio/high": _mean(tokens.clipped_A & rises_A),
        "train/mask/dropped": _mean(~tokens.keep_A),
        "train/sinking/share": _mean(sinking_S),
        "train/sinking/kl": _mean(kl_A[sinking_A]),
        "train/sinking/kl_others": _mean(kl_A[~sinking_A]),
        "train/advantage/zero": _mean(tokens.advantages_S == 0),
        "train/advantage/max": Measure(float(tokens.advantages_S.abs().max()), 1),
        "train/advantage/std": Measure(float(tokens.advantages_S.std(correction=0)), 1),
        "train/denominator/tokens": Measure(kept.tokens, 1),
        "train/denominator/segments": Measure(kept.segments, 1),
        **_quantiles("train/ratio/rising", tokens.ratios_S[tokens.advantages_S > 0]),
        **_quantiles("train/ratio/falling", tokens.ratios_S[tokens.advantages_S < 0]),
    }


def padding(passes: Sequence[TokenBatch]) -> Measure:
    """Share of padding among all token positions of the passes."""
    positions = sum(part.input_ids_NT.numel() for part in passes)
    return Measure(positions - sum(int(part.lengths_N.sum()) for part in passes), positions)


class _Tokens:
    """The action tokens of all passes in one line, and their segments numbered through."""

    def __init__(self, records: Sequence[PassRecord]) -> None:
        masks = [record.batch.action_mask_NT for record in records]

        def gather(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat([tensor[mask] for tensor, mask in zip(tensors, masks, strict=True)])

        self.new_A = gather([record.logprobs_NT for record in records])
        self.entropies_A = gather([record.entropies_NT for record in records])
        self.clipped_A = gather([record.clipped_NT for record in records])
        self.keep_A = gather([record.keep_NT for record in records])
        self.old_A = gather([record.batch.old_logprobs_NT for record in records])
        self.ref_A = gather([record.batch.ref_logprobs_NT for record in records])
        self.advantages_A = gather([record.batch.advantages_NT for record in records])
        ids_A = gather([record.batch.segment_ids_NT for record in records])
        self.segment_A, segments = segment_index(ids_A)
        self.ratios_S = ratio(segment_mean(self.new_A - self.old_A, ids_A))
        first_S = torch.full((segments,), len(ids_A), device=ids_A.device).scatter_reduce_(
            0, self.segment_A, torch.arange(len(ids_A), device=ids_A.device), "amin"
        )
        self.advantages_S = self.advantages_A[first_S]


def _mean(values: Tensor) -> Measure:
    return Measure(float(values.double().sum()), values.numel())


def _quantiles(name: str, values_S: Tensor) -> dict[str, Measure]:
    if not values_S.numel():
        return {}
    return {f"{name}_{label}": Measure(float(values_S.quantile(q)), 1) for label, q in _QUANTILES.items()}
