"""A small model saved where it can be loaded from, rows to score, and what is asked of both again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import TokenBatch


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers whose matrices are whole blocks of 64; larger than fresh ones, so that answers are not alike."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    model, tokenizer = TinyModel(hidden_size=64, layers=2, heads=2, mlp_size=128, max_context=64).load()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.dim() == 2 else 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def load(tiny_folder: Path) -> Callable[..., Policy]:
    """A policy of the small model, loaded under the given options."""

    def load(**options: object) -> Policy:
        return Policy(*PretrainedModel(**{"pretrained": str(tiny_folder), **options}).load())  # type: ignore[arg-type]

    return load


def _teach(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))


@pytest.fixture(scope="session")
def teach() -> Callable[[nn.Module], None]:
    """Moves an adapter away from what it is, as if it had learnt."""
    return _teach


@pytest.fixture
def rows() -> TokenBatch:
    """Four rows of 16 tokens; the first four of each are the prompt."""
    acts_NT = torch.arange(16).expand(4, 16) >= 4
    return TokenBatch(
        input_ids_NT=torch.randint(5, 100, (4, 16), generator=torch.Generator().manual_seed(0)),
        lengths_N=torch.full((4,), 16),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(4)[:, None], -1),
    )


@pytest.fixture
def gradient(rows: TokenBatch) -> Callable[[Policy], dict[str, Tensor]]:
    """The gradient of a weighted sum of log-probs, in training mode."""

    def gradient(policy: Policy) -> dict[str, Tensor]:
        policy.train()
        policy.zero_grad()
        logprobs_NT, _ = policy.logprobs(rows)
        weights_NT = torch.linspace(-1, 1, logprobs_NT.numel()).view_as(logprobs_NT)
        (logprobs_NT * weights_NT).sum().backward()  # type: ignore[no-untyped-call]
        return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}

    return gradient
