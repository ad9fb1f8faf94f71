"""Peak memory and time of log-probs with their backward pass, against vocabulary and length. Linux, one thread.

    python benchmarks/scoring_memory.py --json true

Three ways, each case in a process of its own: all logits under autograd; chunks that `torch.utils.checkpoint` makes
again (`token_logprobs`); tiles of chunk and vocabulary block (`linear_logprobs`). The head is frozen, as under LoRA.
Memory is the growth of the peak resident set while hidden states and weight are already there; beside it what counting
the tensors alive at the peak predicts, to which the C library adds what it keeps of freed ones (tens of MB). The rate
is 6·A·H·V operations (forward, again, gradient of the hidden states; 4·A·H·V for all logits, which are not made again)
over the time; its share is of `torch.mm` in the same process, which `linear_logprobs` beats where oneDNN is faster.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from torch import Tensor

from arl_lightning.functional.logprobs import linear_logprobs, token_logprobs

HIDDEN, CHUNK, BLOCK = 576, 1024, 2048
MEMORY_LIMIT_BYTES, WORK_LIMIT_FLOP = 6e9, 3e12


class Case(NamedTuple):
    way: str
    vocabulary: int
    positions: int
    dtype: str


def all_logits(hidden_AH: Tensor, targets_A: Tensor, weight_VH: Tensor) -> tuple[Tensor, Tensor]:
    """What everybody writes first."""
    logits_AV = (hidden_AH @ weight_VH.T).float()
    logprobs_AV = torch.log_softmax(logits_AV, dim=-1)
    with torch.no_grad():
        entropies_A = -(logprobs_AV.exp() * logprobs_AV).sum(-1)
    return logprobs_AV.gather(1, targets_A[:, None])[:, 0], entropies_A


def chunks(hidden_AH: Tensor, targets_A: Tensor, weight_VH: Tensor) -> tuple[Tensor, Tensor]:
    def head(hidden_cH: Tensor) -> Tensor:
        return hidden_cH.float() @ weight_VH.float().T

    return token_logprobs(hidden_AH, targets_A, head, chunk_tokens=CHUNK)


def tiles(hidden_AH: Tensor, targets_A: Tensor, weight_VH: Tensor) -> tuple[Tensor, Tensor]:
    return linear_logprobs(hidden_AH, targets_A, weight_VH, chunk_tokens=CHUNK, vocab_block=BLOCK)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "all logits": all_logits,
    "chunks": chunks,
    "tiles": tiles,
}


def predicted_bytes(case: Case) -> float:
    """Bytes of the tensors alive at the peak, each `[positions, vocabulary]` or part of it, in float32."""
    states = 4 * case.positions * HIDDEN  # the gradient of the hidden states
    narrow = case.dtype != "float32"
    if case.way == "all logits":
        # logits, log-probs, their exponential, the product
        return states + 16 * case.positions * case.vocabulary
    if case.way == "chunks":
        # logits, the gather's gradient, and the difference, exponential and product of logsumexp's; the wide weight
        return states + 20 * min(CHUNK, case.positions) * case.vocabulary + 4 * narrow * HIDDEN * case.vocabulary
    # two tiles, a chunk's part of the gradient, two numbers a position and block; states and a block of weight widened
    chunk = min(CHUNK, case.positions)
    per_block = 8 * case.positions * case.vocabulary / BLOCK
    return states * (1 + narrow) + 8 * chunk * BLOCK + 4 * chunk * HIDDEN + per_block + 4 * narrow * BLOCK * HIDDEN


def flop(case: Case) -> float:
    return (4 if case.way == "all logits" else 6) * case.positions * HIDDEN * case.vocabulary


def resident_bytes(field: Literal["VmRSS", "VmHWM"]) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(field)).split()[1])


def measure(case: Case) -> dict[str, float]:
    """Peak growth in bytes, seconds, operations a second and those of `torch.mm`, in this process."""
    torch.set_num_threads(1)
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator().manual_seed(0)

    def inputs(positions: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
        hidden_AH = torch.randn(positions, HIDDEN, generator=generator, dtype=dtype).requires_grad_()
        weight_VH = torch.randn(vocabulary, HIDDEN, generator=generator, dtype=dtype).mul_(0.1)
        return hidden_AH, torch.randint(vocabulary, (positions,), generator=generator), weight_VH

    def score(hidden_AH: Tensor, targets_A: Tensor, weight_VH: Tensor) -> None:
        logprobs_A, _ = WAYS[case.way](hidden_AH, targets_A, weight_VH)
        torch.autograd.backward(logprobs_A.mean())

    score(*inputs(8, 64))  # libraries load their code on first use
    tensors = inputs(case.positions, case.vocabulary)
    Path("/proc/self/clear_refs").write_text("5")  # the peak restarts at the present size
    resident, start = resident_bytes("VmRSS"), time.perf_counter()
    score(*tensors)
    seconds, peak = time.perf_counter() - start, resident_bytes("VmHWM") - resident
    return {"bytes": peak, "seconds": seconds, "flop_per_s": flop(case) / seconds, "matmul_flop_per_s": matmul(dtype)}


def matmul(dtype: torch.dtype) -> float:
    """Operations a second of `torch.mm` in `dtype`, on matrices of a tile's shape; median of nine."""
    left, right, seconds = torch.ones(CHUNK, HIDDEN, dtype=dtype), torch.ones(HIDDEN, BLOCK, dtype=dtype), []
    for _ in range(9):
        start = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - start)
    return 2 * CHUNK * HIDDEN * BLOCK / sorted(seconds)[4]


def compare(
    vocabularies: list[int] | None = None,
    lengths: list[int] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    json: bool = False,
) -> None:
    """Measures every way on every vocabulary and length.

    Args:
        vocabularies: sizes of the vocabulary.
        lengths: numbers of action positions.
        dtype: of hidden states and weight.
        json: whether the last line is one JSON object of the results.
    """
    table = Table(title=f"log-probs and backward pass, hidden {HIDDEN}, {dtype}, frozen head, one thread")
    for column in ("vocabulary", "positions", "way", "peak MB", "predicted MB", "seconds", "GFLOP/s", "of torch.mm"):
        table.add_column(column, justify="left" if column == "way" else "right")
    results = []
    for sizes in itertools.product(vocabularies or [50_000, 150_000], lengths or [512, 2048, 8192]):
        for case in (Case(way, *sizes, dtype) for way in WAYS):
            expected, head = predicted_bytes(case), (f"{sizes[0]:,}", f"{sizes[1]:,}", case.way)
            if expected > MEMORY_LIMIT_BYTES:
                table.add_row(*head, "skipped: over 6 GB", f"{expected / 1e6:,.0f}")
                continue
            if case.way == "chunks" and flop(case) > WORK_LIMIT_FLOP:
                table.add_row(*head, "skipped: slow", f"{expected / 1e6:,.0f}")
                continue
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (case,))
            results.append({**case._asdict(), "predicted_bytes": expected, **row})
            rate, share = row["flop_per_s"] / 1e9, row["flop_per_s"] / row["matmul_flop_per_s"]
            measured = (f"{row['bytes'] / 1e6:,.0f}", f"{expected / 1e6:,.0f}", f"{row['seconds']:.1f}")
            table.add_row(*head, *measured, f"{rate:.0f}", f"{share:.2f}")
    Console(width=130).print(table)
    if json:
        print_json(results)


def print_json(results: list[dict[str, object]]) -> None:
    print(json.dumps({"benchmark": "scoring_memory", "hidden": HIDDEN, "cases": results}))


if __name__ == "__main__":
    auto_cli(compare, as_positional=False)
