"""The memory plan of `arl doctor` beside the memory that processes took, model by model. Linux, CPU, one thread.

    python benchmarks/memory_plan.py --json true

Each model is random and runs in a process of its own: it is loaded, plays, scores with its reference, takes a step, and
does all but the loading once more, which is what is measured: the peak resident set of each phase, less what was
resident before the model was loaded. The error is (plan - measured) / measured; the script fails when one is over the
error that plans state. Tensors are made to be mapped one by one (MALLOC_MMAP_THRESHOLD_), so that freed ones leave: by
default the C library keeps many of them in its heap, and the same processes peak at up to 2.6 times as much
(`--default_malloc true` shows it).
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import tempfile
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.memory_plan import STATED_ERROR, Workload, plan_memory
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.tiny_model import build_tokenizer
from arl_lightning.types import Decoding, TokenBatch

PHASES = ("play", "update")


class Case(NamedTuple):
    name: str
    hidden: int
    layers: int
    vocabulary: int
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    rows: int = 8
    tokens: int = 256


LORA = {"lora": LoRA(r=16), "gradient_checkpointing": True}
CASES = (
    Case("10M", 256, 8, 4_000),
    Case("50M", 512, 10, 16_000),
    Case("large vocabulary", 256, 4, 151_936),
    Case("50M, LoRA, checkpointing", 512, 10, 16_000, LORA),
    Case("50M, bfloat16, LoRA", 512, 10, 16_000, {"dtype": "bfloat16", "lora": LoRA(r=16)}),
)


def write_model(case: Case, folder: Path) -> int:
    """Leaves a random model in `folder` and gives its number of weights."""
    config = Qwen3Config(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        intermediate_size=3 * case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.hidden // 32,
        num_key_value_heads=case.hidden // 64,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # no answer ends early
    model.save_pretrained(folder)
    build_tokenizer((), 2048).save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(field)).split()[1])


def settle() -> None:
    """Gives freed memory back and lets the peak begin at the present size."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def play(module: AgentModule, case: Case) -> None:
    sampler = module.sampler(Decoding(max_new_tokens=case.tokens // 4), grows=True)
    module.acting.stop_token_ids = frozenset({case.vocabulary})
    prompts = [[1 + row, *range(2, 1 + 3 * case.tokens // 4)] for row in range(case.rows)]
    prompts = [[token % 100 for token in prompt] for prompt in prompts]
    admitted = sampler.admit(range(case.rows), [len(prompt) for prompt in prompts])
    assert admitted == case.rows
    sampler.sample(range(case.rows), prompts, range(case.rows))


def update(module: AgentModule, optimizer: torch.optim.Optimizer, case: Case) -> None:
    acts_NT = torch.ones((case.rows, case.tokens), dtype=torch.bool)
    acts_NT[:, 0] = False
    batch = TokenBatch(
        torch.zeros((case.rows, case.tokens), dtype=torch.int64),
        torch.full((case.rows,), case.tokens),
        acts_NT,
        torch.where(acts_NT, torch.arange(case.rows)[:, None], -1),
    )
    module.score(batch)
    optimizer.zero_grad()
    module.acting.train()
    for rows in module.passes(batch):
        logprobs_NT, _ = module.acting.logprobs(batch.take(rows))
        torch.autograd.backward(-logprobs_NT.mean())
    torch.nn.utils.clip_grad_norm_(module.trainable_parameters().values(), 1.0)
    optimizer.step()


def agent(source: Any, case: Case) -> tuple[AgentModule, torch.optim.Optimizer]:
    from arl_lightning.modules.aggregations import TokenMean
    from arl_lightning.modules.estimators import GroupNormalized
    from arl_lightning.modules.objective import Objective
    from arl_lightning.modules.surrogates import TokenClip

    objective = Objective(surrogate=TokenClip(), aggregation=TokenMean(), advantage=GroupNormalized())
    make = partial(torch.optim.AdamW, lr=1e-5)
    module = AgentModule(source, objective, make, tokens_per_pass=case.rows * case.tokens // 2)
    module.configure_model()
    return module, module.configure_optimizers()


def measure(case: Case, folder: str) -> dict[str, int]:
    """Peaks of the second round's phases over what was resident before, in bytes, in this process."""
    torch.set_num_threads(1)
    warm = case._replace(hidden=64, layers=1, vocabulary=1000, rows=2, tokens=64)
    with tempfile.TemporaryDirectory() as small:
        write_model(warm, Path(small))
        module, optimizer = agent(PretrainedModel(small, **case.options), warm)
        play(module, warm)  # libraries load their code on first use
        update(module, optimizer, warm)
    del module, optimizer
    settle()
    start = resident("VmRSS")
    module, optimizer = agent(PretrainedModel(folder, **case.options), case)
    play(module, case)
    update(module, optimizer, case)
    peaks = {}
    settle()
    peaks["always"] = resident("VmRSS") - start
    for phase, act in zip(PHASES, (partial(play, module, case), partial(update, module, optimizer, case)), strict=True):
        settle()
        act()
        peaks[phase] = resident("VmHWM") - start
    return peaks


def compare(json: bool = False, default_malloc: bool = False) -> None:
    """Measures every model and sets its plan beside it.

    Args:
        json: whether the last line is one JSON object of the results.
        default_malloc: whether the C library may keep what is freed; errors are then shown and not judged.
    """
    if not default_malloc:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read by the children as they start
    table = Table(title="plan and measured peak, MB")
    for column in (
        "model",
        "weights",
        *(f"{name} {what}" for name in ("always", *PHASES) for what in ("plan", "measured", "error")),
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    results, worst = [], 0.0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            weights = write_model(case, Path(folder))
            workload = Workload(case.rows, case.tokens, case.rows * case.tokens // 2, cache_bytes=1e12)
            source = PretrainedModel(folder, **case.options)
            plan = plan_memory(source, workload, partial(torch.optim.AdamW, lr=1e-5), torch.device("cpu"))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                measured = pool.apply(measure, (case, folder))
        planned = {"always": plan.always_bytes, "play": plan.play_bytes, "update": plan.update_bytes}
        errors = {phase: planned[phase] / measured[phase] - 1 for phase in planned}
        worst = max(worst, *(abs(errors[phase]) for phase in PHASES))
        cells = [(f"{planned[p] / 1e6:.0f}", f"{measured[p] / 1e6:.0f}", f"{errors[p]:+.0%}") for p in planned]
        table.add_row(case.name, f"{weights / 1e6:.1f}M", *(cell for row in cells for cell in row))
        results.append(
            {"model": case.name, "weights": weights, "plan": plan.as_dict(), "measured": measured, "errors": errors}
        )
        Console(width=140).print(f"{case.name}: done")
    Console(width=160).print(table)
    if json:
        print(dumps({"benchmark": "memory_plan", "cases": results}))
    if not default_malloc and worst > STATED_ERROR:
        raise SystemExit(f"a plan is off by {worst:.0%}, over the stated {STATED_ERROR:.0%}")


if __name__ == "__main__":
    auto_cli(compare, as_positional=False)
