"""The share of the machine's matrix-multiply rate that scoring and an update reach on about two thousand tokens.

    python benchmarks/matmul_share.py --json

FLOPs are those that the arithmetic needs, by formula: two for each weight and token, four for each layer, query width
and token that a token looks back on, the head only where a token was sampled; a backward pass twice as many. What was
executed beyond that (recomputation) is no merit: `torch.utils.flop_counter` counts it in a run of its own. The
machine's rate is measured anew right before and after each measurement, and is that of the faster of torch's two
libraries for products of float32: what stands behind `torch.mm`, and oneDNN.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from halves import LEARNING_RATE
from pairs import CLOCKS, run_half
from word_model import save_model

ROWS, PROMPT, RESPONSE = 8, 128, 128
SQUARE = 1536


Timed = Callable[[Callable[[], Any]], float]


def timer(now: Callable[[], float]) -> Timed:
    """A function that gives the seconds that some work takes by this clock."""

    def timed(work: Callable[[], Any]) -> float:
        started = now()
        work()
        return now() - started

    return timed


def _blas(left: Any, right: Any) -> Any:
    return torch.mm(left, right.T)


def _onednn(left: Any, right: Any) -> Any:
    return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")


LIBRARIES = {"blas": _blas} | ({"onednn": _onednn} if hasattr(torch.ops.mkldnn, "_linear_pointwise") else {})
"""`left @ right.T` by what stands behind `torch.mm`, and by oneDNN: the machine's rate is that of the faster."""


def machine_rate(timed: Timed, shapes: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    """FLOP/s of float32 products: of square matrices by each library and by the best, and of the given (rows, inner,
    columns) one after another, each by the best."""

    def fastest(left: Any, right: Any, repetitions: int) -> dict[str, float]:
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[0]
        return {
            name: flops / min(timed(lambda: multiply(left, right)) for _ in range(repetitions))  # noqa: B023
            for name, multiply in LIBRARIES.items()
        }

    square = torch.randn(SQUARE, SQUARE)
    rates = fastest(square, square, 3)
    flops = seconds = 0.0
    for rows, inner, columns in shapes:
        left, right = torch.randn(rows, inner), torch.randn(columns, inner)
        flops += 2.0 * rows * inner * columns
        seconds += 2.0 * rows * inner * columns / max(fastest(left, right, 3).values())
    return {**rates, "square": max(rates.values()), "shapes": flops / seconds}


def forward_flops(config: Any) -> tuple[float, float]:
    """What one forward pass needs: all of it, and of that the attention."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    of_layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * config.intermediate_size
    length = PROMPT + RESPONSE
    attention = 4.0 * config.num_hidden_layers * queries * ROWS * length * (length + 1) / 2
    products = 2.0 * config.num_hidden_layers * of_layer * ROWS * length
    return products + attention + 2.0 * config.vocab_size * hidden * ROWS * RESPONSE, attention


def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rates (FLOP/s) of the machine, of scoring and of an update, repetition by repetition."""
    from torch.utils.flop_counter import FlopCounterMode

    from arl_lightning.modules.policy import Policy
    from arl_lightning.modules.pretrained import PretrainedModel
    from arl_lightning.types import TokenBatch

    timed = timer(CLOCKS[settings["clock"]])
    policy = Policy(*PretrainedModel(settings["folder"]).load())
    policy.train()
    config = policy.model.config
    length = PROMPT + RESPONSE
    generator = torch.Generator().manual_seed(0)
    acts_NT = (torch.arange(length) >= PROMPT).expand(ROWS, length)
    batch = TokenBatch(
        input_ids_NT=torch.randint(10, config.vocab_size, (ROWS, length), generator=generator),
        lengths_N=torch.full((ROWS,), length),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(ROWS)[:, None], -1),
    )
    advantages_NT = torch.randn(ROWS, 1, generator=generator)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE)

    @torch.no_grad()
    def score() -> None:
        policy.logprobs(batch)

    def differentiate() -> None:
        optimizer.zero_grad()
        logprobs_NT, _ = policy.logprobs(batch)
        (-(advantages_NT * logprobs_NT).sum() / acts_NT.sum()).backward()

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

    def linear_flops(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * math.prod(left) * right[0]

    def executed(work: Callable[[], None]) -> float:
        with FlopCounterMode(
            display=False, custom_mapping={torch.ops.mkldnn._linear_pointwise: linear_flops}
        ) as counter:
            work()
        return float(counter.get_total_flops())

    tokens, hidden = ROWS * length, config.hidden_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = config.intermediate_size
    widths = [(hidden, queries), (hidden, keys), (queries, hidden), (hidden, inner), (hidden, inner), (inner, hidden)]
    shapes = [(tokens, *width) for width in widths] + [(ROWS * RESPONSE, hidden, min(config.vocab_size, 16_384))]
    needed, attention = forward_flops(config)
    # the counter does not know the CPU's attention, neither forward nor backward
    counted = {
        "scoring": executed(score) / (needed - attention),
        "update": executed(differentiate) / (needed - attention) / 3,
    }
    step()
    repetitions = []
    for _ in range(settings["repetitions"]):
        before = machine_rate(timed, shapes)
        scoring = needed / timed(score)
        between = machine_rate(timed, shapes)
        gradient_s = timed(differentiate)
        step_s = timed(step)
        after = machine_rate(timed, shapes)
        repetitions.append(
            {
                **{name: [before[name], between[name], after[name]] for name in before},
                "scoring": scoring,
                "gradient": 3 * needed / gradient_s,
                "update": 3 * needed / (gradient_s + step_s),
            }
        )
    weights = sum(p.numel() for p in policy.parameters())
    return {"weights": weights, "needed": needed, "executed_share": counted, "repetitions": repetitions}


PHASES = {"scoring": slice(0, 2), "gradient": slice(1, 3), "update": slice(1, 3)}
"""Each phase, and the machine's rates right before and after it."""


def shares(runs: Sequence[Mapping[str, Any]], phase: str, rate: str) -> dict[str, float]:
    """Median, least and most of the phase's rate over the machine's."""
    found = [r[phase] / statistics.mean(r[rate][PHASES[phase]]) for run in runs for r in run["repetitions"]]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[1_000, 151_000])
    parser.add_argument("--hidden", type=int, default=640, help="width, a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5, help="measurements in a process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="seconds of the wall or of the process")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--half", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.half:
        print(json.dumps(measure(options.settings)))
        return
    results = {}
    for vocabulary in options.vocabularies:
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder), vocabulary, options.hidden, options.layers)
            settings = {"folder": folder, "repetitions": options.repetitions, "clock": options.clock}
            runs = [
                run_half(sys.executable, __file__, "measure", settings, options.threads)
                for _ in range(options.processes)
            ]
        results[str(vocabulary)] = report(vocabulary, runs)
    if options.json:
        print(json.dumps({"threads": options.threads, "clock": options.clock, "results": results}))


def report(vocabulary: int, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Prints one table, and gives its figures back."""
    one, everything = runs[0], [r for run in runs for r in run["repetitions"]]
    named = (*LIBRARIES, "square", "shapes")
    rates = {name: statistics.median(rate for r in everything for rate in r[name]) for name in named}
    libraries = ", ".join(f"{rates[name] / 1e9:.0f} by {name}" for name in LIBRARIES)
    columns = (
        "phase",
        "GFLOP/s",
        "share of the square rate",
        "least – most",
        "share of the shapes' rate",
        "matmuls executed / needed",
    )
    print(
        f"\nvocabulary {vocabulary:,}: {one['weights'] / 1e6:.1f}M weights, {ROWS * (PROMPT + RESPONSE)} tokens, of "
        f"which {ROWS * RESPONSE} sampled, {one['needed'] / 1e12:.2f} TFLOP forward\n"
        f"the machine: {rates['square'] / 1e9:.0f} GFLOP/s on {SQUARE}² matrices ({libraries}), "
        f"{rates['shapes'] / 1e9:.0f} on the model's shapes\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    )
    found: dict[str, Any] = {"machine": rates, "forward_flops": one["needed"], "weights": one["weights"]}
    for phase in PHASES:
        share, of_shapes = shares(runs, phase, "square"), shares(runs, phase, "shapes")
        rate = statistics.median(r[phase] for r in everything)
        executed = one["executed_share"]["scoring" if phase == "scoring" else "update"]
        found[phase] = {"rate": rate, "of_square": share, "of_shapes": of_shapes, "executed_share": executed}
        span = f"{share['least']:.2f} – {share['most']:.2f}"
        figures = f"{rate / 1e9:.0f} | {share['median']:.2f} | {span} | {of_shapes['median']:.2f} | {executed:.2f}"
        print(f"| {phase} | {figures} |", flush=True)
    return found


if __name__ == "__main__":
    main()
