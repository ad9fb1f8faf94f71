"""Base weights in 4 bits: how they are asked for, kept from changing, and turned back into plain numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from arl_lightning.modules.faults import first_line
from arl_lightning.types import ArlError

Dtype = Literal["float32", "bfloat16", "float16"]

# its advice to install another kernel is not for this program's user: that kernel packs weights in place
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


@dataclass(frozen=True)
class NF4:
    """Linear layers of the base in 4-bit normal floats, a scale for each 64 of them; the head stays as it is.

    The quantised base is frozen whole: what is trained is an adapter on it.

    Args:
        double_quantization: whether the scales are quantised too, which saves 0.37 bits a weight.
        compute_dtype: dtype into which a weight is unpacked for its product.
        skip_modules: names of further layers that stay as they are.

    Source: QLoRA, arXiv:2305.14314
    """

    double_quantization: bool = True
    compute_dtype: Dtype = "bfloat16"
    skip_modules: Sequence[str] = ()

    def config(self) -> BitsAndBytesConfig:
        """The same in transformers' words.

        Raises:
            ArlError: bitsandbytes does not work here.
        """
        _check_platform()
        return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=self.double_quantization,
            bnb_4bit_compute_dtype=getattr(torch, self.compute_dtype),
            # a list replaces transformers' own, in which the head is
            llm_int8_skip_modules=["lm_head", *self.skip_modules] if self.skip_modules else None,
        )


def settle(model: PreTrainedModel) -> None:
    """Freezes a base that was just loaded in 4 bits, and switches off all that would change its bytes later.

    On some processors bitsandbytes re-packs a weight in place at the first product in evaluation mode: every later
    gradient is then wrong, and saving writes the packed bytes. Biases are cast in place at the first product, too.
    Nothing is cast up to float32, as `peft.prepare_model_for_kbit_training` would do with norms, embedding and head.
    """
    model.requires_grad_(False)
    for layer in _quantized_layers(model):
        layer.support_avx512bf16_for_cpu = False
        if layer.bias is not None and layer.compute_dtype is not None:
            layer.bias.data = layer.bias.data.to(layer.compute_dtype)


def dequantized(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with plain weights, in the dtype of those that were never quantised; changed in place."""
    dtype = model.get_input_embeddings().weight.dtype
    biases = [layer.bias for layer in _quantized_layers(model) if layer.bias is not None]
    plain: PreTrainedModel = model.dequantize(dtype=dtype)  # type: ignore[no-untyped-call]
    for bias in biases:  # not `plain.to(dtype)`, which would round the frequencies of rotary positions, too
        bias.data = bias.data.to(dtype)
    return plain


def is_quantized(model: nn.Module) -> bool:
    """True when weights are held in fewer bits than numbers of torch have."""
    return bool(getattr(model, "is_quantized", False))


def _quantized_layers(model: nn.Module) -> Iterator[Any]:
    from bitsandbytes.nn.modules import Linear4bit  # slow to import, and most runs need none

    return (module for module in model.modules() if isinstance(module, Linear4bit))


def _check_platform() -> None:
    """One block is quantised where the model will be, since a broken installation only shows there."""
    try:
        from bitsandbytes.functional import quantize_4bit

        quantize_4bit(torch.zeros(64, device="cuda" if torch.cuda.is_available() else "cpu"), quant_type="nf4")
    except (ImportError, RuntimeError, NotImplementedError, OSError) as error:
        raise ArlError(
            f"4-bit weights need bitsandbytes, which does not work here ({first_line(error)}): mend "
            "its installation, or set model.policy.quantization to null"
        ) from error
