"""One token from each row of logits, by a given uniform number."""

from __future__ import annotations

import torch
from torch import Tensor

from arl_lightning.types import Decoding


def draw(logits_NV: Tensor, uniforms_N: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """The token at which each row's cumulative probability passes its uniform number, and its log-prob.

    Log-probs are float32 and those of the truncated, tempered distribution; a greedy draw has probability 1.
    """
    logits_NV = logits_NV.float()
    if decoding.temperature == 0:
        return logits_NV.argmax(dim=-1), torch.zeros(len(logits_NV), device=logits_NV.device)
    logprobs_NV = torch.log_softmax(_truncate(logits_NV / decoding.temperature, decoding), dim=-1)
    cumulative_NV = logprobs_NV.exp().cumsum(dim=-1, dtype=torch.float64)
    # scaled by the last entry, since rounding may leave it just below the largest uniform number
    thresholds_N1 = uniforms_N[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, thresholds_N1, right=True)[:, 0].clamp(max=logits_NV.shape[-1] - 1)
    return tokens_N, logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]


def _truncate(logits_NV: Tensor, decoding: Decoding) -> Tensor:
    if 0 < decoding.top_k < logits_NV.shape[-1]:
        floor_N1 = logits_NV.topk(decoding.top_k, dim=-1).values[:, -1:]
        logits_NV = logits_NV.masked_fill(logits_NV < floor_N1, float("-inf"))
    if decoding.top_p < 1:
        sorted_NV, order_NV = logits_NV.sort(dim=-1, descending=True)
        probs_NV = sorted_NV.softmax(dim=-1)
        outside_NV = probs_NV.cumsum(dim=-1) - probs_NV >= decoding.top_p  # the first token always stays
        logits_NV = logits_NV.masked_fill(outside_NV.scatter(-1, order_NV, outside_NV), float("-inf"))
    return logits_NV
