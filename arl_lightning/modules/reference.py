"""The frozen reference of a policy, without a second copy of anything that is frozen already."""

from __future__ import annotations

import copy
from typing import Protocol

from torch import Tensor, nn

from arl_lightning.modules.adapters import freeze_copy, is_adapted, is_identity, reference_active
from arl_lightning.modules.policy import Policy
from arl_lightning.types import TokenBatch


class Reference(Protocol):
    """The policy as it was when the reference was made."""

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs at action positions, `[N, T]` float32 (nats), 0 elsewhere; under `torch.no_grad`."""
        ...


class FrozenCopy(nn.Module):
    """A copy of every weight: what a fully trained policy needs.

    Args:
        policy: the policy to copy.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = copy.deepcopy(policy).requires_grad_(False)
        self.eval()

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs of the copy."""
        return self.policy.logprobs(batch)[0]


class AdapterOff:
    """The policy with its adapter switched off: what it was when the adapter was fresh. Costs no memory.

    Args:
        policy: the policy, with an adapter that changes nothing yet.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs of the base."""
        with self.policy.model.disable_adapter():  # type: ignore[operator]  # peft's
            return self.policy.logprobs(batch)[0]


class FrozenAdapter:
    """The policy with a frozen copy of its adapter: what it was when the adapter had learnt already.

    The base alone would be another model than the start. Costs the memory of one adapter.

    Args:
        policy: the policy, with an adapter that is to be copied.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        freeze_copy(policy.model)  # type: ignore[arg-type]  # peft's

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Log-probs under the copied adapter."""
        with reference_active(self.policy.model):  # type: ignore[arg-type]  # peft's
            return self.policy.logprobs(batch)[0]


def freeze_start(policy: Policy) -> Reference:
    """The policy as it is now, held in the cheapest way under which KL is exactly 0 before the first step.

    An adapter that trains norms (DoRA) is copied even when it is fresh: switching it off changes the last bits.
    """
    if not is_adapted(policy.model):
        return FrozenCopy(policy)
    return AdapterOff(policy) if is_identity(policy.model) else FrozenAdapter(policy)
