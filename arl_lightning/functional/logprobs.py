"""Log-probs and entropies at chosen positions, in float32, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]


def token_logprobs(
    hidden_AH: Tensor,
    targets_A: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    entropy_grad: bool = False,
    chunk_tokens: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, `[A]` float32 (nats).

    Logits exist for `chunk_tokens` positions at a time; under autograd each further chunk is recomputed in the backward
    pass, since a plain loop of chunks would keep them all alive.

    Args:
        hidden_AH: last hidden states of the positions that predict the targets, any float dtype.
        targets_A: int64 token ids.
        head: maps hidden states to logits `[A, V]`.
        temperature: divisor of the logits; must be positive.
        entropy_grad: whether entropies carry gradient.
        chunk_tokens: positions whose logits are held at once.
    """

    def chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float() / temperature
        log_z = torch.logsumexp(logits, dim=-1)
        logprobs = logits.gather(-1, targets[:, None])[:, 0] - log_z
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            entropies = log_z - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)
        return logprobs, entropies

    if len(targets_A) <= chunk_tokens:
        return chunk(hidden_AH, targets_A)
    pieces = zip(torch.split(hidden_AH, chunk_tokens), torch.split(targets_A, chunk_tokens), strict=True)
    parts = [
        checkpoint(chunk, hidden, targets, use_reentrant=False) if torch.is_grad_enabled() else chunk(hidden, targets)
        for hidden, targets in pieces
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])
