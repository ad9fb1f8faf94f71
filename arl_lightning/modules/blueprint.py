"""A model's shape without its weights: what its parameters take, and what one pass keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from arl_lightning.modules.adapters import LoRA, adapt, as_given, base_of, holds_adapter, own_draws
from arl_lightning.modules.faults import first_line
from arl_lightning.modules.policy import ModelSource
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import ArlError

_SCALE_BLOCK, _SCALES_BLOCK = 64, 256
"""Weights that share a 4-bit scale, and scales that share a scale of theirs."""


@dataclass(frozen=True)
class Blueprint:
    """A causal LM on the meta device, its adapter included, and how its base is to be held.

    Attributes:
        model: every parameter with its shape and dtype, and no number.
        quantization: 4-bit weights of the base; None for none.
        warm: whether the adapter has learnt already, or trains norms, so that its reference is a copy of it.
        checkpointing: whether each layer's activations are computed again in the backward pass.
    """

    model: PreTrainedModel
    quantization: NF4 | None = None
    warm: bool = False
    checkpointing: bool = False

    @property
    def config(self) -> Any:
        """The text model's configuration."""
        return self.model.config.get_text_config()

    @property
    def adapted(self) -> bool:
        """Whether an adapter is what is trained."""
        return hasattr(self.model, "peft_config")

    def trained(self) -> dict[str, Parameter]:
        """Parameters that an optimiser gets, by name."""
        frozen = self.quantization is not None and not self.adapted
        return {} if frozen else {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def base_bytes(self) -> int:
        """Weights and buffers without the adapter, as they are held."""
        packed = {id(layer.weight): _packed_bytes(layer, self.quantization) for layer in self.quantized_layers()}
        base = [p for name, p in self.model.named_parameters() if "lora_" not in name]
        return sum(packed.get(id(p), _bytes(p)) for p in base) + sum(map(_bytes, self.model.buffers()))

    def adapter_bytes(self) -> int:
        """Weights of the adapter; 0 without one."""
        return sum(_bytes(p) for name, p in self.model.named_parameters() if "lora_" in name)

    def quantized_layers(self) -> list[nn.Linear]:
        """Layers that will be held in 4 bits: all linear ones but the head, the adapter and what is to be skipped."""
        if self.quantization is None:
            return []
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        kept = (*self.quantization.skip_modules, "lora_")
        return [
            module
            for name, module in self.model.named_modules()
            if type(module) is nn.Linear and module is not head and not any(word in name for word in kept)
        ]

    def unpacked_bytes(self) -> int:
        """The largest 4-bit weight in the dtype of its product; 0 without any."""
        if self.quantization is None:
            return 0
        size = getattr(torch, self.quantization.compute_dtype).itemsize
        return max((size * layer.weight.numel() for layer in self.quantized_layers()), default=0)

    def bytes_per_token(self, autocast: torch.dtype | None) -> int:
        """Keys and values of one token."""
        config = self.config
        heads = config.num_attention_heads
        per_head = getattr(config, "head_dim", None) or config.hidden_size // heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        dtype = autocast or self.model.get_input_embeddings().weight.dtype
        return int(2 * config.num_hidden_layers * groups * per_head * dtype.itemsize)

    def kept(self, rows: int, tokens: int, autocast: torch.dtype | None) -> Kept:
        """What autograd keeps of a pass over `rows` rows of `tokens` tokens, found by such a pass without numbers."""
        parameters = {p.untyped_storage()._cdata for p in self.model.parameters()}
        alive: dict[int, Tensor] = {}  # also keeps the storages, so that no address serves twice

        def keep(tensor: Tensor) -> Tensor:
            if (key := tensor.untyped_storage()._cdata) not in parameters:
                alive[key] = tensor
            return tensor

        ids_NT = torch.zeros((rows, tokens), dtype=torch.int64, device="meta")
        training = self.model.training
        self.model.train()
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _Pretence(autocast):
                decoder = self.model.get_decoder()  # type: ignore[no-untyped-call]
                hidden: Tensor = decoder(input_ids=ids_NT, use_cache=False).last_hidden_state
        finally:
            self.model.train(training)
        sizes = [tensor.untyped_storage().nbytes() for tensor in alive.values()]
        return Kept(sum(sizes), max(sizes, default=0), _bytes(hidden), int(self.config.num_hidden_layers))


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that a pass keeps for the backward pass: all, the largest tensor, the residual stream; and its layers."""

    everything: int
    largest: int
    stream: int
    layers: int

    def bytes(self, checkpointing: bool) -> int:
        """What is kept at most: all, or the layers' inputs and one layer."""
        one_layer = -(-self.everything // self.layers)
        return self.stream * self.layers + one_layer if checkpointing else self.everything


def sketch(source: ModelSource) -> Blueprint:
    """The model that `source` would load; of a pretrained one, its configuration alone is read.

    Raises:
        ArlError: nothing is there, or the source is none whose shape can be known without loading it.
    """
    if isinstance(source, TinyModel):
        with torch.device("meta"):
            return Blueprint(source.load()[0])
    if not isinstance(source, PretrainedModel):
        raise ArlError(f"the size of {type(source).__name__} cannot be known before it is loaded")
    folder = Path(source.pretrained).expanduser()
    name, lora = source.pretrained, source.lora
    if holds_adapter(folder):
        name, lora = base_of(folder), as_given(folder, lora)
    config = _read_config(name, source.gguf_file)
    attention = "eager" if source.attention == "eager" else "sdpa"  # flash attention keeps what sdpa's kernels keep
    try:
        with _on_meta():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=getattr(torch, source.dtype), attn_implementation=attention
            )
            if lora is not None:
                model = _adapt(model, lora)
    except ValueError as error:
        raise ArlError(f"the size of {source.pretrained!r} cannot be known: {first_line(error)}") from error
    warm = lora is not None and (lora.adapter is not None or lora.dora)
    return Blueprint(model, source.quantization, warm, source.gradient_checkpointing)


def _adapt(model: PreTrainedModel, lora: LoRA) -> PreTrainedModel:
    """The model with an adapter of the right shape; one that exists is not read but for its configuration."""
    if lora.adapter is None:
        return adapt(model, lora)  # type: ignore[return-value]  # peft's wrapper hands everything on
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(Path(lora.adapter).expanduser()))
    config.inference_mode = False
    adapted: PreTrainedModel = get_peft_model(model, config)
    return adapted


def _read_config(name: str, gguf_file: str | None) -> PretrainedConfig:
    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    folder = Path(name).expanduser()
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(str(folder) if folder.is_dir() else name, **options)
    except (OSError, ValueError, ImportError) as error:
        raise ArlError(f"the configuration of {name!r} cannot be read: {first_line(error)}") from error
    return config


@contextmanager
def _on_meta() -> Iterator[None]:
    with own_draws(seed=0), torch.device("meta"):
        yield


class _Pretence(TorchFunctionMode):
    """Within, tensors without numbers pass through a model as real ones would: fused attention, autocast, questions.

    Args:
        autocast: dtype of matrix products; None leaves them as they are.
    """

    def __init__(self, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.autocast = autocast
        self._casts: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What `func` would leave behind on a real device."""
        fused = func is functional.scaled_dot_product_attention
        if self.autocast is not None and (fused or func is functional.linear):
            args = tuple(self._cast(value) if isinstance(value, Tensor) else value for value in args)
        if fused:  # on this device it would be the unfused one
            return _FusedAttention.apply(*args[:3])  # type: ignore[no-untyped-call]
        if func is Tensor.__bool__:  # whether all positions are those of one sequence
            return True
        return func(*args, **(kwargs or {}))

    def _cast(self, value: Tensor) -> Tensor:
        assert self.autocast is not None
        if not isinstance(value, Parameter):
            return value.to(self.autocast)
        if id(value) not in self._casts:  # autocast casts a weight once
            self._casts[id(value)] = value.to(self.autocast)
        return self._casts[id(value)]


class _FusedAttention(torch.autograd.Function):
    """Keeps queries, keys, values, the output and one number a query and head."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, heads, tokens, _ = queries.shape
        # laid out as the kernels do, so that joining the heads copies nothing
        output = queries.new_empty((rows, tokens, heads, values.shape[-1])).transpose(1, 2)
        ctx.save_for_backward(queries, keys, values, output, queries.new_empty(queries.shape[:-1], dtype=torch.float32))
        return output


def _packed_bytes(layer: nn.Linear, quantization: NF4 | None) -> int:
    weights = layer.weight.numel()
    scales = -(-weights // _SCALE_BLOCK)
    double = quantization is not None and quantization.double_quantization
    return weights // 2 + (scales + 4 * -(-scales // _SCALES_BLOCK) if double else 4 * scales)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
