"""Linear layers whose float32 products on a CPU take the faster of torch's two libraries; nothing else changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from arl_lightning.functional.logprobs import ONEDNN_IS_FASTER, product

_LEAST_WEIGHTS = 2**15
"""Of a layer; measured: with 16 rows smaller ones lose more to oneDNN's start than they gain."""


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`inputs @ weight.T + bias`, by oneDNN for large float32 weights on a CPU where that is faster.

    Which library multiplies depends on the weight alone, never on the number of rows. Gradients of what oneDNN gave
    cannot be differentiated again.
    """
    plain = inputs.dtype == weight.dtype == torch.float32 and inputs.device.type == "cpu"
    if not plain or not _pays(weight) or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(inputs, weight, bias)
    if not torch.is_grad_enabled():
        return product(inputs, weight, bias)
    output: Tensor = _Product.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return output


def _pays(weight: Tensor) -> bool:
    return ONEDNN_IS_FASTER and weight.numel() >= _LEAST_WEIGHTS


class OneDnnLinear(nn.Linear):
    """A linear layer that multiplies as `linear` does; weights, names and saved files are those of `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name is that of nn.Linear
        """`input @ weight.T + bias`."""
        return linear(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """`inputs @ weight.T + bias` and its gradients; keeps the input only for the gradient of a trained weight."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_input, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if needs_weight else None, weight if needs_input else None)
        return product(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        needs_bias = ctx.needs_input_grad[2]
        rows = pull.reshape(-1, pull.shape[-1])
        return (
            None if weight is None else product(pull, weight.T),
            None if inputs is None else product(rows.T, inputs.reshape(-1, inputs.shape[-1]).T),
            rows.sum(0) if needs_bias else None,
        )


def use_onednn(model: PreTrainedModel) -> None:
    """Makes large plain linear layers of the model, but for its head, multiply by oneDNN where that is faster."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for module in model.modules():
        if type(module) is nn.Linear and module is not head and _pays(module.weight):
            module.__class__ = OneDnnLinear
