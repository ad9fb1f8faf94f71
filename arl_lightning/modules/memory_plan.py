"""What a run will take of its device's memory, reckoned before any weight is loaded."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from rich.table import Table
from torch import Tensor
from torch.nn import Parameter

from arl_lightning.modules.blueprint import Blueprint, sketch
from arl_lightning.modules.memory import free_bytes
from arl_lightning.modules.policy import ModelSource

STATED_ERROR = 0.25
"""Share by which a plan may be off; `benchmarks/memory_plan.py` measures it on a CPU."""

_CUDA_CONTEXT = 600_000_000  # context, kernels and the libraries' work space
_CHUNK, _CPU_BLOCK, _GPU_BLOCK = 1024, 2048, 16384  # tiles of functional.logprobs
_DRAWING = 24  # bytes a row and word: logits, quotient, log-probs, and two float64 of the cumulative sum
_TWIN = "twin."
_STAND_IN = 4096  # numbers; the fewest whose states bitsandbytes holds in 8 bits


@dataclass(frozen=True, slots=True)
class Workload:
    """What will be asked of a model.

    Args:
        episodes: conversations that are played together.
        conversation_tokens: tokens of the longest of them.
        tokens_per_pass: tokens of a forward pass.
        cache_bytes: what keys and values may take; None for half of what is free when play begins.
        autocast: dtype of matrix products in a mixed precision; None without one.
        reference: whether the start is kept as a reference, which cloning does without.
    """

    episodes: int
    conversation_tokens: int
    tokens_per_pass: int
    cache_bytes: float | None = None
    autocast: torch.dtype | None = None
    reference: bool = True


@dataclass(frozen=True, slots=True)
class Item:
    """Something that takes memory, and how it was reckoned."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is held always, and beside it in play or in an update, which never happen at once.

    Attributes:
        device: where the model will be.
        available: bytes that are free there now.
        always: weights and all that stays with them.
        play: what play needs at its peak.
        update: what an optimiser step needs at its peak.
        episodes_at_once: conversations whose keys and values the cache holds.
        token_bytes: keys and values of one token.
    """

    device: torch.device
    available: int
    always: tuple[Item, ...]
    play: tuple[Item, ...]
    update: tuple[Item, ...]
    episodes_at_once: int
    token_bytes: int

    @property
    def always_bytes(self) -> int:
        """Bytes that are held from the first step on."""
        return _sum(self.always)

    @property
    def play_bytes(self) -> int:
        """Bytes in play."""
        return self.always_bytes + _sum(self.play)

    @property
    def update_bytes(self) -> int:
        """Bytes in an update."""
        return self.always_bytes + _sum(self.update)

    @property
    def peak_bytes(self) -> int:
        """The larger of both."""
        return max(self.play_bytes, self.update_bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak is at most what is available."""
        return self.peak_bytes <= self.available

    def line(self) -> str:
        """The plan in one line."""
        return (
            f"memory plan: {_gb(self.peak_bytes)} of {_gb(self.available)} free on {self.device} "
            f"(always {_gb(self.always_bytes)}, play {_gb(self.play_bytes)}, update {_gb(self.update_bytes)}; "
            f"± {STATED_ERROR:.0%})"
        )

    def table(self) -> Table:
        """The plan to read."""
        table = Table(title=f"memory plan for {self.device}, ± {STATED_ERROR:.0%}")
        if self.device.type == "cpu":
            table.caption = "what the C library keeps of freed memory comes on top: see MALLOC_MMAP_THRESHOLD_"
        table.add_column("")
        table.add_column("takes", justify="right")
        table.add_column("reckoned as")
        for title, items in (("always", self.always), ("play", self.play), ("update", self.update)):
            for item in items:
                table.add_row(f"{title}: {item.name}", _gb(item.bytes), item.note)
        table.add_section()
        for title, total in (("play", self.play_bytes), ("update", self.update_bytes), ("free now", self.available)):
            table.add_row(title, _gb(total), "with what is held always" if title != "free now" else "")
        return table

    def as_dict(self) -> dict[str, Any]:
        """The plan for programs, in bytes."""
        parts = {"always": self.always, "play": self.play, "update": self.update}
        return {
            **{title: {item.name: item.bytes for item in items} for title, items in parts.items()},
            "always_bytes": self.always_bytes,
            "play_bytes": self.play_bytes,
            "update_bytes": self.update_bytes,
            "available_bytes": self.available,
            "episodes_at_once": self.episodes_at_once,
            "token_bytes": self.token_bytes,
        }


def plan_memory(
    source: ModelSource, workload: Workload, optimizer: OptimizerCallable, device: torch.device
) -> MemoryPlan:
    """What training the model of `source` takes; its weights are not loaded, only its configuration is read.

    Args:
        source: where the model comes from.
        workload: what is asked of it.
        optimizer: makes the optimiser; it is tried on a few small stand-ins to see what it keeps of each.
        device: where the model will be.

    Raises:
        ArlError: the model's size cannot be known beforehand.
    """
    blueprint = sketch(source)
    longest = getattr(blueprint.config, "max_position_embeddings", None) or workload.conversation_tokens
    workload = replace(workload, conversation_tokens=min(workload.conversation_tokens, longest))
    available = free_bytes(device)
    always = _held(blueprint, workload, optimizer, device)
    free = available - _sum(always)
    episodes, play = _play(blueprint, workload, free)
    update = _update(blueprint, workload, device)
    token_bytes = blueprint.bytes_per_token(workload.autocast)
    return MemoryPlan(device, available, always, play, update, episodes, token_bytes)


def _held(
    blueprint: Blueprint, workload: Workload, optimizer: OptimizerCallable, device: torch.device
) -> tuple[Item, ...]:
    trained = blueprint.trained()
    count = sum(p.numel() for p in trained.values())
    base, adapter = blueprint.base_bytes(), blueprint.adapter_bytes()
    held = "NF4, the rest " if blueprint.quantization else ""
    dtype = str(blueprint.model.get_input_embeddings().weight.dtype).removeprefix("torch.")
    items = [
        Item("base weights", base, f"{held}{dtype}"),
        Item("adapter", adapter, f"{count:,} weights, float32" if adapter else "none"),
        Item("gradients", _sum_bytes(trained), f"of {count:,} trained weights"),
        Item("optimiser", optimizer_bytes(trained, optimizer, device), "as it keeps of stand-ins"),
    ]
    if workload.reference:
        if not blueprint.adapted:
            items.append(Item("reference", base, "a whole copy: every weight is trained"))
        elif blueprint.warm:
            items.append(Item("reference", adapter, "a copy of the adapter, which has learnt already"))
        else:
            items.append(Item("reference", 0, "the base with its fresh adapter switched off"))
    if device.type == "cuda":
        items.append(Item("CUDA", _CUDA_CONTEXT, "context, kernels, work space"))
    return tuple(items)


def optimizer_bytes(trained: dict[str, Parameter], optimizer: OptimizerCallable, device: torch.device) -> int:
    """What the optimiser keeps of these parameters, found by a step on two small stand-ins of each kind.

    The larger one tells what grows with a parameter from what is there once, such as a table or a count.
    """
    kinds: dict[tuple[int, bool, torch.dtype], list[str]] = defaultdict(list)
    for name, p in trained.items():
        kinds[(min(p.dim(), 2), "embed" in name or "lm_head" in name, p.dtype)].append(name)
    if not kinds:
        return 0
    stand_ins: dict[str, Parameter] = {}
    for (dimensions, _, dtype), names in kinds.items():
        for place, name in enumerate((names[0], f"{_TWIN}{names[0]}"), start=1):
            shape = (64 * place, _STAND_IN // 64) if dimensions == 2 else (_STAND_IN * place,)
            stand_in = stand_ins[name] = Parameter(torch.ones(shape, dtype=dtype, device=device))
            stand_in.grad = torch.ones_like(stand_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of the real parameters is said when they are there
        made = optimizer(stand_ins.items())
        made.step()

    def kept(name: str) -> int:
        return sum(_bytes(value) for value in made.state[stand_ins[name]].values() if isinstance(value, Tensor))

    growth = {names[0]: kept(f"{_TWIN}{names[0]}") - kept(names[0]) for names in kinds.values()}
    return sum(
        math.ceil(growth[names[0]] / _STAND_IN * sum(trained[name].numel() for name in names))
        for names in kinds.values()
    )


def _play(blueprint: Blueprint, workload: Workload, free: int) -> tuple[int, tuple[Item, ...]]:
    """How many conversations are played at once, and what that takes."""
    config, head = blueprint.config, _head(blueprint)
    tokens, token_bytes = workload.conversation_tokens, blueprint.bytes_per_token(workload.autocast)
    budget = max(free, 0) / 2 if workload.cache_bytes is None else workload.cache_bytes
    episodes = max(1, min(workload.episodes, int(budget / (token_bytes * tokens))))
    cache = episodes * tokens * token_bytes
    heads = config.num_attention_heads
    shared = heads // (getattr(config, "num_key_value_heads", None) or heads)
    wide = 0 if head.dtype == torch.float32 else 4 * head.numel()
    drawing = _DRAWING * episodes * len(head)
    read = min(tokens, workload.tokens_per_pass)
    kept = blueprint.kept(max(min(workload.tokens_per_pass // read, episodes), 1), read, workload.autocast)
    return episodes, (
        Item("keys and values", cache, f"{episodes} × {tokens:,} tokens × {token_bytes:,} bytes"),
        Item("growth", cache // config.num_hidden_layers * (1 + shared), "of one layer, and for each head that asks"),
        Item("float32 head", wide, "a copy while tokens are drawn" if wide else "it is float32"),
        Item("drawing", drawing, f"{episodes} rows × {len(head):,} words × {_DRAWING} bytes"),
        Item(
            "reading prompts", max(kept.everything // kept.layers - wide - drawing, 0), "what a layer needs beyond that"
        ),
    )


def _update(blueprint: Blueprint, workload: Workload, device: torch.device) -> tuple[Item, ...]:
    """What a pass over full rows, its backward pass and the step after it take."""
    head, trained = _head(blueprint), blueprint.trained()
    tokens = min(workload.conversation_tokens, workload.tokens_per_pass)
    rows = max(workload.tokens_per_pass // tokens, 1)
    kept = blueprint.kept(rows, tokens, workload.autocast)
    activations = kept.bytes(blueprint.checkpointing)
    states = rows * tokens * head.shape[1]
    block = min(_CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK, len(head))
    tile = 4 * block * (3 * min(_CHUNK, rows * tokens) + head.shape[1]) + 8 * rows * tokens * -(-len(head) // block)
    scoring = tile + 4 * states * (2 if kept.stream < 4 * states else 1) + kept.stream
    head_gradient = _bytes(head) if any(p is head for p in trained.values()) else 0
    backward = max(scoring, 3 * kept.largest)
    largest = max(map(_bytes, trained.values()), default=0)
    step = _sum_bytes(trained) if device.type == "cuda" else 2 * largest
    pass_bytes = activations + backward + head_gradient + blueprint.unpacked_bytes()
    how = "the inputs of all layers and one layer whole" if blueprint.checkpointing else "all layers"
    return (
        Item("activations", activations, f"{rows} × {tokens:,} tokens: {how}"),
        Item("backward pass", backward, "the larger: tiles of logits, or gradients within a layer"),
        Item("head's gradient", head_gradient, "until it is added" if head_gradient else "it is frozen"),
        Item(
            "unpacked weight", blueprint.unpacked_bytes(), "the largest" if blueprint.quantization else "none is packed"
        ),
        Item("step", max(step - pass_bytes, 0), "what the optimiser needs beyond a pass"),
    )


def _head(blueprint: Blueprint) -> Tensor:
    weight: Tensor = blueprint.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    return weight


def _sum_bytes(parameters: dict[str, Parameter]) -> int:
    return sum(map(_bytes, parameters.values()))


def _sum(items: Sequence[Item]) -> int:
    return sum(item.bytes for item in items)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
