"""Bias of each KL estimator's gradient, by enumeration of a categorical: no sampling noise, only the estimator's own.

    python benchmarks/kl_bias.py

Policies are the reference with its logits moved in a random direction until KL(π ‖ π_ref) is the drift. A cell holds
the cosine between the estimator's expected gradient and the exact one, and the ratio of their norms; medians over
directions. Only on-policy sampling is shown.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from arl_lightning.functional.kl import k1, k2, k3

ACTIONS, DIRECTIONS, DRIFTS_NATS = 64, 200, (0.1, 0.5, 1.0, 2.0)
Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "k1 in the loss": k1,
    "k2 in the loss": k2,
    "k3 in the loss": k3,
    "k3 · w in the loss": lambda logprobs, ref: (logprobs - logprobs.detach()).exp() * k3(logprobs, ref),
    "k1 in the reward": lambda logprobs, ref: k1(logprobs, ref).detach() * logprobs,
    "k2 in the reward": lambda logprobs, ref: k2(logprobs, ref).detach() * logprobs,
    "k3 in the reward": lambda logprobs, ref: k3(logprobs, ref).detach() * logprobs,
}


def divergence(logprobs_DV: Tensor, ref_DV: Tensor) -> Tensor:
    """KL(π ‖ π_ref) of each direction, in nats."""
    return (logprobs_DV.exp() * (logprobs_DV - ref_DV)).sum(-1)


def drifted(ref_DV: Tensor, direction_DV: Tensor, drift_nats: float) -> Tensor:
    """Logits at the given divergence along each direction, by bisection of the step."""
    low_D, high_D = torch.zeros(len(ref_DV)), torch.full((len(ref_DV),), 1e3)
    for _ in range(60):
        middle_D = (low_D + high_D) / 2
        moved_DV = ref_DV + middle_D[:, None] * direction_DV
        beyond_D = divergence(moved_DV.log_softmax(-1), ref_DV) > drift_nats
        low_D, high_D = torch.where(beyond_D, low_D, middle_D), torch.where(beyond_D, middle_D, high_D)
    return ref_DV + low_D[:, None] * direction_DV


def bias(loss: Loss, logits_DV: Tensor, ref_DV: Tensor) -> str:
    """Median cosine with the exact gradient, and median ratio to its norm."""
    logits_DV = logits_DV.clone().requires_grad_()
    logprobs_DV = logits_DV.log_softmax(-1)
    expected = (logprobs_DV.detach().exp() * loss(logprobs_DV, ref_DV)).sum()
    (found_DV,) = torch.autograd.grad(expected, logits_DV, retain_graph=True)
    (exact_DV,) = torch.autograd.grad(divergence(logprobs_DV, ref_DV).sum(), logits_DV)
    ratio = (found_DV.norm(dim=-1) / exact_DV.norm(dim=-1)).median().item()
    cosine = torch.cosine_similarity(found_DV, exact_DV, dim=-1).median().item()
    return f"{cosine:+.3f} / {ratio:.3f}" if ratio > 1e-9 else "none / 0"


def main() -> None:
    """Prints the table."""
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(0)
    ref_DV = (0.5 * torch.randn(DIRECTIONS, ACTIONS, generator=generator)).log_softmax(-1)
    direction_DV = torch.randn(DIRECTIONS, ACTIONS, generator=generator)
    policies = [drifted(ref_DV, direction_DV, drift_nats) for drift_nats in DRIFTS_NATS]
    table = Table("estimator", *(f"{drift_nats} nats" for drift_nats in DRIFTS_NATS))
    table.title = "gradient of KL(π ‖ π_ref): cosine with the exact one / ratio of norms"
    for name, loss in LOSSES.items():
        table.add_row(name, *(bias(loss, logits_DV, ref_DV) for logits_DV in policies))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
