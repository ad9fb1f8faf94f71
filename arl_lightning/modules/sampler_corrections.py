"""What makes up for a sampler whose probabilities are not quite the trainer's."""

from __future__ import annotations

from torch import Tensor

from arl_lightning.functional.ratios import ratio
from arl_lightning.types import ArlError


class TruncatedImportance:
    """Factor min(π_old/π_sampler, cap) of each token, 1 where sampler and trainer agree.

    π_old is the policy before the epoch's first step by the training forward, π_sampler what the sampler reported. The
    factor carries no gradient.

    Args:
        cap: largest factor, at least 1; it bounds the variance that a rarely sampled token brings.

    Source: Yao et al. 2025, Your efficient RL framework secretly brings you off-policy training
    """

    def __init__(self, cap: float = 2.0) -> None:
        if cap < 1:
            raise ArlError(f"cap is {cap}: below 1 it would weaken tokens on which sampler and trainer agree")
        self.cap = cap

    def weigh(self, old_logprobs_NT: Tensor, behavior_logprobs_NT: Tensor) -> Tensor:
        """The factors, `[N, T]`, float32."""
        return ratio((old_logprobs_NT - behavior_logprobs_NT).detach()).clamp(max=self.cap)
