"""Which coefficient of the KL holds the policy at a wanted distance from its reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule

from arl_lightning.protocols import AdjustableCoefficient, Steerable
from arl_lightning.types import ArlError


@dataclass(frozen=True)
class KLControl:
    """A proportional controller of the KL coefficient, asked once an epoch.

    The factor on the configured coefficient grows by 1 + gain · e with e = (KL − target)/target, cut to ±`max_error`.

    Args:
        target: wanted KL to the reference, nats a token, above 0.
        gain: how strongly an error acts, above 0.
        max_error: largest relative error that counts, above 0; `gain` times it must stay below 1.
        min_factor: smallest multiple of the configured coefficient, above 0 and at most 1.
        max_factor: largest multiple, at least 1.

    Source: Fine-Tuning Language Models from Human Preferences, arXiv:1909.08593, sec. 2.2
    """

    target: float
    gain: float = 0.5
    max_error: float = 0.4
    min_factor: float = 0.1
    max_factor: float = 10.0

    def __post_init__(self) -> None:
        if not (self.target > 0 and self.gain > 0 and self.max_error > 0 and self.gain * self.max_error < 1):
            raise ArlError(f"{self} needs target, gain and max_error above 0, and gain * max_error below 1")
        if not 0 < self.min_factor <= 1 <= self.max_factor < math.inf:
            raise ArlError(f"{self} needs 0 < min_factor <= 1 <= max_factor")

    def next_factor(self, factor: float, kl: float) -> float:
        """The factor for the epoch after one with the mean `kl`; a KL that is not finite changes nothing."""
        if not math.isfinite(kl):
            return factor
        error = min(max((kl - self.target) / self.target, -self.max_error), self.max_error)
        return min(max(factor * (1 + self.gain * error), self.min_factor), self.max_factor)


def kl_coefficient(module: LightningModule, wanted_by: str) -> AdjustableCoefficient:
    """The coefficient of the module's KL: of its loss, or of its reward when the loss has none.

    Raises:
        ArlError: there is none, it cannot be adjusted, or it is 0, which no factor would change.
    """
    if not isinstance(module, Steerable):
        raise ArlError(f"{wanted_by} needs a module with an objective, not {type(module).__name__}")
    objective: Any = module.objective
    kl = objective.reward_kl if objective.kl is None else objective.kl
    if not isinstance(kl, AdjustableCoefficient):
        raise ArlError(
            f"{wanted_by} finds no KL whose coefficient it could change: set model.objective.kl to ReferenceKL, or "
            f"take {wanted_by} out"
        )
    if kl.coefficient == 0:
        raise ArlError(f"{wanted_by} can only scale the KL's coefficient, which is 0: set it above 0")
    return kl
