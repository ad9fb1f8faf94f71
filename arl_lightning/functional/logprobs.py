"""Log-probs and entropies at chosen positions, in float32, without ever holding all logits."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arl_lightning.types import ArlError

Head = Callable[[Tensor], Tensor]

# A suffix in small letters is a part of an axis: `_c` a chunk of positions `_A`, `_v` a block of the vocabulary `_V`.


def linear_logprobs(
    hidden_AH: Tensor,
    targets_A: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None = None,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    entropy_grad: bool = False,
    chunk_tokens: int = 1024,
    vocab_block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, `[A]` float32 (nats), under a linear head.

    Logits exist for one tile, `chunk_tokens` positions times `vocab_block` tokens, and are made again in the backward
    pass: 2·A·H·V operations forward, 4·A·H·V backward, 6·A·H·V when the weight is trained; a weight that needs no
    gradient causes no work. Weights below float32 are widened block by block, never whole. Gradients are exact, summed
    in float32 and rounded once to the dtype of their tensor; they cannot be differentiated again. Autocast changes
    nothing; on CUDA float32 products obey `torch.set_float32_matmul_precision`. float64 stays float64.
    A target outside the vocabulary has log-prob NaN.

    Args:
        hidden_AH: last hidden states of the positions that predict the targets, any float dtype.
        targets_A: int64 token ids.
        weight_VH: the head's weight, any float dtype: logits are `hidden @ weight.T + bias`.
        bias_V: the head's bias.
        temperature: divisor of the logits, applied after the cap; must be positive.
        softcap: the `c` of logits `c·tanh(logits / c)`; None leaves them as they are.
        entropy_grad: whether entropies carry gradient.
        chunk_tokens: positions of a tile.
        vocab_block: tokens of a tile; None means 2,048 on a CPU, so that tiles stay in its cache, and 16,384 elsewhere.

    Raises:
        ArlError: when the weight holds no plain floating-point numbers, e.g. packed 4-bit ones.
    """
    if not weight_VH.is_floating_point():
        raise ArlError(f"a head with {weight_VH.dtype} weights is no plain matrix: keep it out of quantisation")
    vocab_block = vocab_block or (2048 if hidden_AH.device.type == "cpu" else 16384)
    head = _Head(temperature, softcap, entropy_grad, chunk_tokens, vocab_block)
    outputs: tuple[Tensor, Tensor] = _LinearLogprobs.apply(hidden_AH, weight_VH, bias_V, targets_A, head)  # type: ignore[no-untyped-call]
    return outputs


class _Head(NamedTuple):
    """What turns hidden states into logits beside the weight, and the size of a tile."""

    temperature: float
    softcap: float | None
    entropy_grad: bool
    chunk_tokens: int
    vocab_block: int

    def blocks(self, weight_VH: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(weight_VH), self.vocab_block):
            weight_vH = weight_VH[start : start + self.vocab_block]
            yield slice(start, start + len(weight_vH)), weight_vH.to(dtype)

    def chunks(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self.chunk_tokens) for start in range(0, count, self.chunk_tokens))

    def logits(self, hidden_cH: Tensor, weight_vH: Tensor, bias_V: Tensor | None, block: slice) -> Tensor:
        logits_cv = product(hidden_cH, weight_vH)
        if bias_V is not None:
            logits_cv += bias_V[block]
        if self.softcap is not None:
            logits_cv.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits_cv if self.temperature == 1 else logits_cv.div_(self.temperature)


class _LinearLogprobs(torch.autograd.Function):
    """Vocabulary blocks outside, chunks of positions inside: a block is widened once and its gradient rounded once."""

    @staticmethod
    def forward(
        ctx: Any, hidden_AH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_A: Tensor, head: _Head
    ) -> tuple[Tensor, Tensor]:
        operand, result = _dtypes(hidden_AH, weight_VH)
        operand_AH = hidden_AH.to(operand)
        target_logits_A = hidden_AH.new_full(targets_A.shape, torch.nan, dtype=result)
        # made before the loop: small tensors kept between tiles would leave holes in the heap that no tile fits into
        block_count = math.ceil(len(weight_VH) / head.vocab_block)
        log_zs_BA = target_logits_A.new_empty(block_count, len(targets_A))
        entropies_BA = torch.empty_like(log_zs_BA)
        with torch.autocast(hidden_AH.device.type, enabled=False):
            for number, (block, weight_vH) in enumerate(head.blocks(weight_VH, operand)):
                for rows in head.chunks(len(targets_A)):
                    logits_cv = head.logits(operand_AH[rows], weight_vH, bias_V, block)
                    inside_c, columns_c1 = _columns(targets_A[rows], block)
                    found_c = logits_cv.gather(1, columns_c1)[:, 0]
                    target_logits_A[rows] = torch.where(inside_c, found_c, target_logits_A[rows])
                    log_zs_BA[number, rows], entropies_BA[number, rows] = _distribution(logits_cv)
        log_z_A, entropies_A = _mixture(log_zs_BA, entropies_BA)
        ctx.head = head
        ctx.save_for_backward(hidden_AH, weight_VH, bias_V, targets_A, log_z_A, entropies_A)
        if not head.entropy_grad:
            ctx.mark_non_differentiable(entropies_A)
        return target_logits_A - log_z_A, entropies_A

    @staticmethod
    def backward(ctx: Any, logprob_pull_A: Tensor, entropy_pull_A: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # by create_graph; the gradients below would silently be constants
            raise ArlError("linear_logprobs has no second derivative: take its gradient without create_graph")
        hidden_AH, weight_VH, bias_V, targets_A, log_z_A, entropies_A = ctx.saved_tensors
        head: _Head = ctx.head
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        operand, result = _dtypes(hidden_AH, weight_VH)
        operand_AH = hidden_AH.to(operand)
        grad_hidden_AH = torch.zeros_like(hidden_AH, dtype=result)
        grad_weight_VH = torch.empty_like(weight_VH) if needs_weight else weight_VH
        grad_bias_V = torch.zeros_like(bias_V, dtype=result) if needs_bias else None
        with torch.autocast(hidden_AH.device.type, enabled=False):
            for block, weight_vH in head.blocks(weight_VH, operand):
                grad_weight_vH = torch.zeros_like(weight_vH, dtype=result) if needs_weight else weight_vH
                for rows in head.chunks(len(targets_A)):
                    logits_cv = head.logits(operand_AH[rows], weight_vH, bias_V, block)
                    positions = (targets_A, log_z_A, entropies_A, logprob_pull_A, entropy_pull_A)
                    pull_cv = _pull(logits_cv, head, block, *(values_A[rows] for values_A in positions))
                    if grad_bias_V is not None:
                        grad_bias_V[block] += pull_cv.sum(0)
                    pull_cv = pull_cv.to(operand)
                    if needs_hidden:
                        grad_hidden_AH[rows] += product(pull_cv, weight_vH.T)
                    if needs_weight:
                        grad_weight_vH += product(pull_cv.T, operand_AH[rows].T)
                if needs_weight:
                    grad_weight_VH[block] = grad_weight_vH
        return (
            grad_hidden_AH.to(hidden_AH.dtype) if needs_hidden else None,
            grad_weight_VH if needs_weight else None,
            None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype),
            None,
            None,
        )


def _distribution(logits_cv: Tensor) -> tuple[Tensor, Tensor]:
    """Log-normaliser and entropy of the softmax over a block; destroys the logits."""
    top_c = logits_cv.amax(1)
    logits_cv -= top_c[:, None]
    weights_cv = logits_cv.exp()
    sum_c = weights_cv.sum(1)
    return top_c + sum_c.log(), sum_c.log() - weights_cv.mul_(logits_cv).sum(1) / sum_c


def _mixture(log_zs_BA: Tensor, entropies_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Log-normaliser and entropy over all blocks `_B`: mean entropy of a block plus entropy of the choice of it."""
    mass_BA = log_zs_BA.softmax(0)
    return log_zs_BA.logsumexp(0), (mass_BA * entropies_BA + torch.special.entr(mass_BA)).sum(0)


def _pull(
    logits_cv: Tensor,
    head: _Head,
    block: slice,
    targets_c: Tensor,
    log_z_c: Tensor,
    entropies_c: Tensor,
    logprob_pull_c: Tensor,
    entropy_pull_c: Tensor,
) -> Tensor:
    """Gradient in `hidden @ weight.T` of a tile whose logits, which it destroys, are given."""
    slope_cv = None
    if head.softcap is not None:
        slope_cv = 1 - (logits_cv * (head.temperature / head.softcap)).square_()
    # d log-prob / d logit = [target] − p;  d entropy / d logit = −p · (log p + entropy)
    logits_cv -= log_z_c[:, None]
    factor = -logprob_pull_c[:, None] / head.temperature
    if head.entropy_grad:
        surplus_cv = logits_cv + entropies_c[:, None]
        factor = surplus_cv.mul_(-entropy_pull_c[:, None] / head.temperature).add_(factor)
    pull_cv = logits_cv.exp_().mul_(factor)
    inside_c, columns_c1 = _columns(targets_c, block)
    pull_cv.scatter_add_(1, columns_c1, (logprob_pull_c / head.temperature * inside_c)[:, None])
    return pull_cv if slope_cv is None else pull_cv.mul_(slope_cv)


def _columns(targets_c: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Whether each target lies in the block, and its column there `[c, 1]` (any when it does not)."""
    inside_c = (targets_c >= block.start) & (targets_c < block.stop)
    return inside_c, targets_c.clamp(block.start, block.stop - 1).sub_(block.start)[:, None]


def _dtypes(hidden: Tensor, weight: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Dtypes of the operands of a matrix product and of its result, which is float32 or above."""
    result = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
    # not float16, which has no room for small probabilities
    return (torch.bfloat16 if hidden.is_cuda and hidden.dtype == weight.dtype == torch.bfloat16 else result), result


def product(left: Tensor, right_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`left @ right.T + bias`, never rounded below float32; `left` may have any number of axes before its last.

    float32 on a CPU is left to oneDNN where that is faster.
    """
    if left.dtype == torch.bfloat16:
        result = torch.mm(left, right_NK.T, out_dtype=torch.float32)
        return result if bias_N is None else result.add_(bias_N)
    if ONEDNN_IS_FASTER and left.dtype == torch.float32 and left.device.type == "cpu":
        fast: Tensor = torch.ops.mkldnn._linear_pointwise(left, right_NK, bias_N, "none", [], "")
        return fast
    return torch.nn.functional.linear(left, right_NK, bias_N)


def _onednn_is_faster() -> bool:
    """True on AMD processors with AVX-512, where torch's BLAS, which is Intel's, reaches less than half of the rate.

    By what the processor is, not by a measurement: a resumed run must multiply as the first part did.
    """
    if not (torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):  # type: ignore[no-untyped-call]
        return False
    facts = Path("/proc/cpuinfo")
    maker = facts.read_text() if facts.is_file() else platform.processor()
    return "AuthenticAMD" in maker and torch.backends.cpu.get_cpu_capability() == "AVX512"


ONEDNN_IS_FASTER = _onednn_is_faster()


def token_logprobs(
    hidden_AH: Tensor,
    targets_A: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    entropy_grad: bool = False,
    chunk_tokens: int = 1024,
) -> tuple[Tensor, Tensor]:
    """What `linear_logprobs` gives, for a head that is no plain matrix.

    Logits exist for `chunk_tokens` positions and the whole vocabulary at a time; under autograd each further chunk is
    made again in the backward pass, since a plain loop of chunks would keep them all alive.

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
