"""The adapter written into the weights of its base, and how far the result has drifted from what was trained."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arl_lightning.modules.adapters import TRAINED, adapter_layers, is_adapted, own_draws, save_adapter
from arl_lightning.modules.quantization import dequantized, is_quantized
from arl_lightning.types import ArlError

PROMPTS = (
    "What is 17 times 23?",
    "You are in a room with a door to the north and a key on the table. What do you do?",
    "Search: red running shoes, size 42, under 80 dollars.",
    "Write a function that reverses a list.",
)
"""What drift is measured on."""


@dataclass(frozen=True)
class Drift:
    """KL(adapter model ‖ merged model) over the next-token distributions of `PROMPTS`, in nats.

    Args:
        mean_kl_nats: mean over positions.
        max_kl_nats: largest of one position.
        positions: number of positions.
        dtype: dtype of the merged weights.
    """

    mean_kl_nats: float
    max_kl_nats: float
    positions: int
    dtype: str


def merged(model: Any) -> PreTrainedModel:
    """A copy of the adapted `model` with plain weights W + scale·B·A, in the dtype of the base's unquantised weights.

    A quantised base is unpacked and the adapter merged into that: it has learnt to correct just these weights, not the
    ones from which they were quantised, and merging into 4 bits again would round its small update away. Each sum is
    taken in float32 and rounded once. Needs the memory of the unpacked model beside the present one.

    Raises:
        ArlError: the model has no adapter.
    """
    if not is_adapted(model):
        raise ArlError("the policy has no adapter to merge: export it without --merge")
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as folder:
        save_adapter(model, Path(folder))
        base = copy.deepcopy(model).unload()
        if is_quantized(base):
            base = dequantized(base)
        with own_draws(seed=0):
            adapted = PeftModel.from_pretrained(base, folder)
    for layer in adapter_layers(adapted):
        weight = layer.get_base_layer().weight
        dtype, weight.data = weight.dtype, weight.data.float()
        layer.merge(adapter_names=[TRAINED])
        weight = layer.get_base_layer().weight
        weight.data = weight.data.to(dtype)
    plain = cast(PreTrainedModel, adapted.unload())
    plain.eval()  # type: ignore[no-untyped-call]
    return plain


@torch.no_grad()
def measure_drift(adapted: Any, plain: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Drift:
    """How far `plain` is from `adapted`, both in evaluation mode; 0 where merging and rounding changed nothing."""
    kl_nats = torch.cat([_kl(adapted, plain, _tokens(tokenizer, prompt)) for prompt in PROMPTS])
    return Drift(float(kl_nats.mean()), float(kl_nats.max()), len(kl_nats), str(plain.dtype).removeprefix("torch."))


def _tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return torch.tensor([tokenizer.encode(str(text), add_special_tokens=False)])


def _kl(left: Any, right: Any, ids_1T: Tensor) -> Tensor:
    left_TV, right_TV = (
        model(input_ids=ids_1T.to(model.device)).logits[0].cpu().double().log_softmax(-1) for model in (left, right)
    )
    # rounding may leave the sum just below 0
    kl_nats_T: Tensor = (left_TV.exp() * (left_TV - right_TV)).sum(-1).clamp(min=0)
    return kl_nats_T
