"""Estimators of KL(π ‖ π_ref) from the log-probs of tokens that π sampled, in nats, with d = log π_ref − log π.

All three are 0 where both log-probs are equal, so also off the action mask, where both are 0.
"""

from __future__ import annotations

import math

from torch import Tensor

K3_GUARD_NATS = 10.0
"""d above which `k3` continues linearly: its slope there, exp(10) − 1, is about 22 000."""


def k1(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """−d: unbiased, of either sign.

    Its gradient is that of log π alone and has mean zero under π: as a loss it does not pull, it only watches.

    Source: Schulman, Approximating KL Divergence, 2020, http://joschu.net/blog/kl-approx.html
    """
    return logprobs_NT - ref_logprobs_NT


def k2(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """d²/2: never negative, biased as a value; on-policy its gradient, −d for each token, is exact in expectation.

    Source: Schulman, Approximating KL Divergence, 2020, http://joschu.net/blog/kl-approx.html
    """
    return (ref_logprobs_NT - logprobs_NT).square() / 2


def k3(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """exp(d) − d − 1: never negative, unbiased as a value; on-policy its gradient is that of KL(π_ref ‖ π).

    Above d = `K3_GUARD_NATS` = 10 nats it goes on linearly with slope exp(10) − 1: a token that collapse made
    improbable keeps its pull towards the reference, neither cut to zero nor overflowing.

    Source: Group Relative Policy Optimization, arXiv:2402.03300, eq. 4
    """
    d_NT = ref_logprobs_NT - logprobs_NT
    guarded_NT = d_NT.clamp(max=K3_GUARD_NATS)
    excess_NT = (d_NT - K3_GUARD_NATS).relu()
    # expm1: exp(d) - 1 - d loses most digits of d²/2 in float32 near d = 0, where training begins.
    return guarded_NT.expm1() - guarded_NT + math.expm1(K3_GUARD_NATS) * excess_NT
