"""Sampling from a Hugging Face causal LM: batched, only unfinished rows, each row from its own seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from arl_lightning.functional.seeding import uniforms
from arl_lightning.types import Completion, Decoding

if TYPE_CHECKING:
    from arl_lightning.modules.policy import Policy


@torch.no_grad()
def sample_completions(
    policy: Policy, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding
) -> list[Completion]:
    """One completion a prompt, drawn from the full distribution that `decoding` describes and nothing else.

    The model's `generation_config` is not consulted. Row `i` consumes the counter-based stream of `seeds[i]`, one
    number a token, so its draw does not depend on its neighbours. A prompt that several rows share, as the members of a
    group share their first, is computed once. Rows leave the batch, and their cache with them, at the first stop token,
    which is part of the completion.
    """
    device = policy.model.device
    decoder = policy.model.get_decoder()  # type: ignore[no-untyped-call]
    place_of = {prompt: place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    distinct_N = torch.tensor([place_of[tuple(prompt)] for prompt in prompts], device=device)
    ids_NT, mask_NT = _left_pad(list(place_of), int(policy.tokenizer.pad_token_id), device)
    positions_NT = (mask_NT.cumsum(-1) - 1).clamp(min=0)
    output = decoder(input_ids=ids_NT, attention_mask=mask_NT, position_ids=positions_NT, use_cache=True)
    output.cache.batch_select_indices(distinct_N)
    hidden_NH, mask_NT, positions_NT = (
        x[distinct_N] for x in (output.last_hidden_state[:, -1], mask_NT, positions_NT[:, -1:])
    )

    uniforms_NT = torch.from_numpy(np.stack([uniforms(seed, decoding.max_new_tokens) for seed in seeds])).to(device)
    stop_ids = torch.tensor(sorted(policy.stop_token_ids), device=device)
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    alive_N = torch.arange(len(prompts), device=device)
    for step in range(decoding.max_new_tokens):
        next_N, logprobs_N = draw(policy.logits(hidden_NH), uniforms_NT[alive_N, step], decoding)
        stopped_N = torch.isin(next_N, stop_ids)
        for row, token, logprob, stop in zip(
            alive_N.tolist(), next_N.tolist(), logprobs_N.tolist(), stopped_N.tolist(), strict=True
        ):
            tokens[row].append(token)
            logprobs[row].append(logprob)
            finished[row] = stop
        going_N = (~stopped_N).nonzero()[:, 0]
        if len(going_N) == 0 or step + 1 == decoding.max_new_tokens:
            break
        if len(going_N) < len(alive_N):
            output.cache.batch_select_indices(going_N)
            alive_N, next_N, mask_NT, positions_NT = (x[going_N] for x in (alive_N, next_N, mask_NT, positions_NT))
        mask_NT = torch.cat([mask_NT, mask_NT.new_ones(len(mask_NT), 1)], dim=1)
        positions_NT = positions_NT + 1
        output = decoder(
            input_ids=next_N[:, None],
            attention_mask=mask_NT,
            position_ids=positions_NT,
            cache=output.cache,
            use_cache=True,
        )
        hidden_NH = output.last_hidden_state[:, -1]
    return [Completion(tuple(t), tuple(p), f) for t, p, f in zip(tokens, logprobs, finished, strict=True)]


def draw(logits_NV: Tensor, uniforms_N: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """The token at which each row's cumulative probability passes its uniform number, and its log-prob.

    Log-probs are float32 and those of the truncated, tempered distribution; a greedy draw has probability 1.
    """
    logits_NV = logits_NV.float()
    if decoding.temperature == 0:
        return logits_NV.argmax(dim=-1), torch.zeros(len(logits_NV), device=logits_NV.device)
    logprobs_NV = torch.log_softmax(_truncate(logits_NV / decoding.temperature, decoding), dim=-1)
    cumulative_NV = logprobs_NV.double().exp().cumsum(dim=-1)
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


def _left_pad(prompts: Sequence[Sequence[int]], pad_token_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids_NT = torch.full((len(prompts), longest), pad_token_id, dtype=torch.int64)
    mask_NT = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids_NT[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_NT[row, longest - len(prompt) :] = 1
    return ids_NT.to(device), mask_NT.to(device)
