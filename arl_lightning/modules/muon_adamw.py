"""Muon on hidden matrices and AdamW on everything else, as the one optimiser that a module may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

from arl_lightning.types import ArlError

_NOT_HIDDEN = ("embed", "lm_head")


class MuonAdamW(Optimizer):
    """Two param groups, the first stepped by `torch.optim.Muon`, the second by `torch.optim.AdamW`.

    A small model that starts from nothing learns noisy demonstrations in a fraction of AdamW's steps.

    Args:
        params: named parameters; embeddings and heads count as not hidden, as do all that are not matrices.
        lr: rate of Muon.
        adamw_lr: rate of AdamW.
        weight_decay: decoupled weight decay of both.
        momentum: momentum of Muon.

    Source: Muon, K. Jordan 2024, as in torch.optim.
    """

    def __init__(
        self,
        params: Iterable[tuple[str, Tensor]],
        lr: float = 1e-2,
        adamw_lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
    ) -> None:
        named = list(params)
        hidden = [p for name, p in named if p.ndim == 2 and not any(part in name for part in _NOT_HIDDEN)]
        chosen = {id(p) for p in hidden}
        rest = [p for _, p in named if id(p) not in chosen]
        if not hidden or not rest:
            raise ArlError("MuonAdamW needs hidden matrices and other weights to train; use torch.optim.AdamW here")
        self._muon = Muon(hidden, lr=lr, weight_decay=weight_decay, momentum=momentum)
        self._adamw = AdamW(rest, lr=adamw_lr, weight_decay=weight_decay)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], defaults={})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # handed over anew each time, since load_state_dict puts other objects in place
        self._muon.param_groups, self._adamw.param_groups = self.param_groups[:1], self.param_groups[1:]
        self._muon.state = self._adamw.state = self.state
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()
        return loss
