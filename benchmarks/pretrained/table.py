"""Model × precision × LoRA on this CPU: play, update, memory, and whether 4-bit training and export are exact. Linux.

    python benchmarks/pretrained/table.py --clock cpu --json
    python benchmarks/pretrained/table.py --models smollm2 --adapter runs/smollm2_sampo/model

A row is a process of its own: a model is loaded, plays 16 conversations of 64 tokens for 32 more, and takes one step of
AdamW on 8 rows of 96 tokens, half of them sampled. `bf16` and `nf4` are under autocast as with `bf16-mixed`; a model
that is trained whole keeps float32 weights there. Memory is what is resident, libraries (about 0.5 GB) included. The
second table compares, for one adapter that has learnt something: gradients on the 4-bit base with those on the same
base unpacked, logits by `PretrainedModel` with those by plain peft, and the adapter with the merged model.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from smollm2 import default_folder, prepare
from transformers import AutoModelForCausalLM

from arl_lightning.modules.adapters import LoRA, save_adapter
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.merging import measure_drift, merged
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4, dequantized
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import Decoding, TokenBatch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
EXACT = NF4(compute_dtype="float32")
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"dtype": "bfloat16"},
    "nf4": {"dtype": "bfloat16", "quantization": NF4()},
}
ROWS = (("fp32", "full"), ("bf16", "full"), ("fp32", "lora"), ("bf16", "lora"), ("nf4", "lora"))
RANK, CONVERSATIONS, PROMPT, ANSWER, STEP_ROWS, STEP_TOKENS = 8, 16, 64, 32, 8, 96


def load(folder: str, **options: Any) -> Policy:
    return Policy(*PretrainedModel(folder, **options).load())


def context(precision: str) -> AbstractContextManager[None]:
    return nullcontext() if precision == "fp32" else torch.autocast("cpu", torch.bfloat16)


def draw_ids(policy: Policy, rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(10, len(policy.tokenizer), (rows, tokens), generator=torch.Generator().manual_seed(0))


def batch_of(policy: Policy, rows: int, tokens: int) -> TokenBatch:
    """Rows whose second half was sampled."""
    acts_NT = (torch.arange(tokens) >= tokens // 2).expand(rows, tokens)
    segments_NT = torch.where(acts_NT, torch.arange(rows)[:, None], -1)
    return TokenBatch(draw_ids(policy, rows, tokens), torch.full((rows,), tokens), acts_NT, segments_NT)


# a row of the first table


def resident_gb(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1e9


def play(policy: Policy, precision: str, rows: int, answer: int) -> None:
    sampler = Sampler(policy, Decoding(max_new_tokens=answer), context=partial(context, precision))
    prompts = draw_ids(policy, rows, PROMPT).tolist()
    drawn = sampler.sample(range(rows), prompts, range(rows))
    assert sum(len(completion.token_ids) for completion in drawn) == rows * answer


def update(policy: Policy, optimizer: torch.optim.Optimizer, precision: str, rows: int) -> None:
    policy.train()
    optimizer.zero_grad()
    with context(precision):
        logprobs_NT, _ = policy.logprobs(batch_of(policy, rows, STEP_TOKENS))
    torch.autograd.backward(-logprobs_NT.sum() / (rows * STEP_TOKENS / 2))
    torch.nn.utils.clip_grad_norm_(trained(policy), 1.0)
    optimizer.step()


def trained(policy: Policy) -> list[torch.nn.Parameter]:
    return [parameter for parameter in policy.parameters() if parameter.requires_grad]


def measure(folder: str, precision: str, kind: str, clock: str, repeats: int) -> dict[str, float]:
    """Play and update of one model in this process, after a short round that loads what is loaded on first use."""
    torch.set_num_threads(1)
    options = {**PRECISIONS[precision], "lora": LoRA(r=RANK)} if kind == "lora" else {}
    policy = load(folder, **options)
    policy.stop_token_ids = frozenset({-1})  # no answer ends early
    optimizer = torch.optim.AdamW(trained(policy), lr=1e-5)
    play(policy, precision, 2, 2)
    update(policy, optimizer, precision, 1)
    gc.collect()
    loaded_gb = resident_gb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
    timed = partial(seconds, CLOCKS[clock], repeats)
    return {
        "weights": sum(parameter.numel() for parameter in trained(policy)),
        "rollout_tokens_per_s": CONVERSATIONS * ANSWER / timed(partial(play, policy, precision, CONVERSATIONS, ANSWER)),
        "update_s": timed(partial(update, policy, optimizer, precision, STEP_ROWS)),
        "resident_gb": loaded_gb,
        "peak_gb": resident_gb("VmHWM"),
    }


def seconds(now: Callable[[], float], repeats: int, work: Callable[[], None]) -> float:
    taken = []
    for _ in range(repeats):
        started = now()
        work()
        taken.append(now() - started)
    return statistics.median(taken)


# the second table


def teach(model: torch.nn.Module) -> None:
    """The adapter as if it had learnt something: B is no longer 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


def gradient(policy: Policy) -> torch.Tensor:
    """All the adapter's gradients as one vector, by the names of its weights."""
    policy.train()
    policy.zero_grad()
    torch.autograd.backward(-policy.logprobs(batch_of(policy, 2, STEP_TOKENS))[0].mean())
    named = sorted((name, p.grad) for name, p in policy.named_parameters() if p.grad is not None)
    return torch.cat([grad.flatten() for _, grad in named])


@torch.no_grad()
def logits(model: Any, ids_NT: torch.Tensor) -> torch.Tensor:
    answer: torch.Tensor = model.eval()(input_ids=ids_NT).logits.float()
    return answer


def difference(left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    error = left - right
    return {"largest": float(error.abs().max()), "relative": float(error.norm() / right.norm())}


def check(folder: str, adapter: str | None) -> dict[str, Any]:
    """What is exact, and how far the rest is off, in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if adapter is None:
            fresh = load(folder, lora=LoRA(r=RANK))
            teach(fresh.model)
            save_adapter(fresh.model, Path(place))  # type: ignore[arg-type]  # peft's
        lora = LoRA(adapter=adapter or place)
        return {**check_gradient(folder, lora), **check_reload(folder, lora), **check_merge(folder, lora)}


def check_gradient(folder: str, lora: LoRA) -> dict[str, Any]:
    from peft import PeftModel  # after this package, which silences what it loads

    exact = load(folder, quantization=EXACT, lora=lora)
    plain = dequantized(load(folder, quantization=EXACT).model)
    unpacked = PeftModel.from_pretrained(plain, lora.adapter, is_trainable=True)
    before = gradient(exact)
    against_unpacked = difference(before, gradient(Policy(unpacked, exact.tokenizer)))
    play(exact, "fp32", 2, 4)
    return {
        "gradient on 4 bits against unpacked": against_unpacked,
        "gradient after play against before": difference(gradient(exact), before),
        "gradient by bfloat16 products against float32": difference(
            gradient(load(folder, quantization=NF4(), lora=lora)), before
        ),
    }


def check_reload(folder: str, lora: LoRA) -> dict[str, Any]:
    from peft import PeftModel

    found = {}
    for name, quantization in (("float32", None), ("4-bit", EXACT)):
        config = None if quantization is None else quantization.config()
        ours = load(folder, quantization=quantization, lora=lora)
        ids_NT = draw_ids(ours, 2, 32)
        base = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
        by_peft = logits(PeftModel.from_pretrained(base, lora.adapter), ids_NT)
        found[f"logits on a {name} base by plain peft"] = difference(logits(ours.model, ids_NT), by_peft)
    return found


def check_merge(folder: str, lora: LoRA) -> dict[str, Any]:
    found = {}
    for name, options in {**PRECISIONS, "nf4 beside float32": {"quantization": EXACT}}.items():
        policy = load(folder, lora=lora, **options)
        found[f"merged from {name}"] = vars(measure_drift(policy.model, merged(policy.model), policy.tokenizer))
    return found


def alone(work: Callable[[], Any]) -> Any:
    """The result of `work` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=("tiny", "smollm2"), default=["tiny", "smollm2"])
    parser.add_argument("--adapter", help="folder of a trained adapter of SmolLM2; none for one of random weights")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of a measurement; their median counts")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="seconds of the wall or of the process")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    checks: dict[str, Any] = {}
    print("| model | precision | trained | weights trained | rollout tokens/s | update s | resident GB | peak GB |")
    print("|---" * 8 + "|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folders = {"tiny": Path(place), "smollm2": default_folder()}
        for name in options.models:
            prepare_model(name, folders[name])
            for precision, kind in ROWS:
                work = partial(measure, str(folders[name]), precision, kind, options.clock, options.repeats)
                rows[f"{name} | {precision} | {kind}"] = row = alone(work)
                count, *figures = row.values()
                written = " | ".join(f"{figure:.3g}" for figure in figures)
                print(f"| {name} | {precision} | {kind} | {count / 1e6:.2f}M | {written} |", flush=True)
            adapter = options.adapter if name == "smollm2" else None
            checks[name] = alone(partial(check, str(folders[name]), adapter))
    show(checks)
    if options.json:
        print(json.dumps({"clock": options.clock, "rows": rows, "checks": checks}))


def prepare_model(name: str, folder: Path) -> None:
    if name == "smollm2":
        prepare(folder)
        return
    model, tokenizer = TinyModel(hidden_size=256, layers=4, heads=4, mlp_size=768).load()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def show(checks: dict[str, Any]) -> None:
    for model, found in checks.items():
        print(f"\n{model}\n")
        for what, figures in found.items():
            written = (f"{name} {v:.2g}" if isinstance(v, float) else f"{name} {v}" for name, v in figures.items())
            print(f"- {what}: {', '.join(written)}")


if __name__ == "__main__":
    main()
