"""One token from each row of logits, by a given uniform number."""

from __future__ import annotations

import torch
from torch import Tensor

from arl_lightning.types import Decoding

_BLOCK = 1024
"""Tokens whose probabilities are summed at once; one by one only those of the block that is drawn from are."""


def draw(logits_NV: Tensor, uniforms_N: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """The token at which each row's cumulative probability passes its uniform number, and its log-prob.

    Log-probs are float32 and those of the truncated, tempered distribution; a greedy draw has probability 1. Sums are
    float64, a row's draw depends on no other row, and a token of probability 0 is never drawn.
    """
    logits_NV = logits_NV.float()
    if decoding.temperature == 0:
        return logits_NV.argmax(dim=-1), torch.zeros(len(logits_NV), device=logits_NV.device)
    if decoding.temperature != 1:
        logits_NV = logits_NV / decoding.temperature
    logits_NV = _truncate(logits_NV, decoding)
    top_N1 = logits_NV.amax(dim=-1, keepdim=True)
    weights_NBK = _blocks(logits_NV, top_N1)
    if weights_NBK.shape[1] == 1:
        tokens_N, _, totals_N = _pass(weights_NBK[:, 0].double(), uniforms_N)
    else:
        blocks_N, rests_N, totals_N = _pass(weights_NBK.sum(dim=-1, dtype=torch.float64), uniforms_N)
        rows_N = torch.arange(len(blocks_N), device=blocks_N.device)
        places_N, _, _ = _pass(weights_NBK[rows_N, blocks_N].double(), rests_N)
        tokens_N = blocks_N * weights_NBK.shape[2] + places_N
    exponents_N = (logits_NV.gather(-1, tokens_N[:, None]) - top_N1)[:, 0]
    return tokens_N, (exponents_N - totals_N.log()).float()


def _blocks(logits_NV: Tensor, top_N1: Tensor) -> Tensor:
    """Weights exp(logit − top) in blocks `_B` of `_K` tokens, the last one filled up with zeros."""
    rows, size = logits_NV.shape
    block = min(size, _BLOCK)
    weights_NV = logits_NV.new_zeros(rows, -(-size // block) * block)
    torch.sub(logits_NV, top_N1, out=weights_NV[:, :size])
    weights_NV[:, :size].exp_()
    return weights_NV.view(rows, -1, block)


def _pass(weights_NK: Tensor, shares_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the cumulative weight passes a share of the total, how far into that weight (0 to 1), and the total."""
    cumulative_NK = weights_NK.cumsum(dim=-1)
    totals_N1 = cumulative_NK[:, -1:]
    # rounding may bring it up to the total, which nothing passes
    thresholds_N1 = torch.minimum(shares_N[:, None] * totals_N1, totals_N1.nextafter(torch.zeros_like(totals_N1)))
    places_N1 = torch.searchsorted(cumulative_NK, thresholds_N1, right=True)
    left_N1 = cumulative_NK.gather(-1, places_N1) - thresholds_N1
    shares_N1 = (1 - left_N1 / weights_NK.gather(-1, places_N1)).clamp(min=0)
    return places_N1[:, 0], shares_N1[:, 0], totals_N1[:, 0]


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
