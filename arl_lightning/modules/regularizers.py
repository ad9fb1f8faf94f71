"""What keeps the policy near its reference, and away from certainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from arl_lightning.functional.kl import k1, k2, k3
from arl_lightning.types import ArlError

_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


class _Weight:
    """A configured coefficient and the factors by which others scale it."""

    def __init__(self, coefficient: float) -> None:
        _check_coefficient(coefficient)
        self._configured = coefficient
        self._factors: dict[str, float] = {}

    @property
    def coefficient(self) -> float:
        """The configured weight times the factors of all owners."""
        return self._configured * math.prod(factor for _, factor in sorted(self._factors.items()))

    def set_factor(self, owner: str, factor: float) -> None:
        """From now on `owner` scales the configured weight by `factor`, in place of its earlier one; 1 undoes it."""
        if not 0 < factor < math.inf:
            raise ArlError(f"{owner} scales a coefficient by {factor}: a factor must be above 0 and finite")
        self._factors[owner] = factor


class ReferenceKL(_Weight):
    """Estimate of KL(π ‖ π_ref) of each token in nats, 0 where both log-probs are equal.

    Args:
        coefficient: weight of the estimate in the loss, at least 0.
        estimator: k3 (never negative, unbiased as a value; its gradient is that of the forward KL(π_ref ‖ π)), k2
            (never negative; on-policy its gradient is exact, its value biased), or k1 (unbiased as a value; as a loss
            it has no pull on average).

    Source: Group Relative Policy Optimization, arXiv:2402.03300, eq. 4
    """

    def __init__(self, coefficient: float = 0.01, estimator: Literal["k1", "k2", "k3"] = "k3") -> None:
        super().__init__(coefficient)
        self._estimate = _find_estimator(estimator)

    def compute(self, logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
        """KL estimate in nats, `[N, T]`, differentiable in `logprobs_NT`."""
        return self._estimate(logprobs_NT, ref_logprobs_NT)


class RewardKL(_Weight):
    """Estimate of KL(π ‖ π_ref) taken off the reward of the turn that the token belongs to.

    Its gradient reaches the policy through the advantage only; with k1 it is that of the exact KL in expectation.

    Args:
        coefficient: reward per nat, at least 0.
        estimator: k1 (exact in expectation), k2 or k3 (never negative but biased; near the reference k3 here hardly
            pulls at all).

    Source: Training language models to follow instructions with human feedback, arXiv:2203.02155, eq. 2
    """

    def __init__(self, coefficient: float = 0.01, estimator: Literal["k1", "k2", "k3"] = "k1") -> None:
        super().__init__(coefficient)
        self._estimate = _find_estimator(estimator)

    def penalize(self, logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
        """Reward that each token costs, `[N, T]`."""
        return self.coefficient * self._estimate(logprobs_NT, ref_logprobs_NT)


class EntropyBonus:
    """Weight with which the mean token entropy is subtracted from the loss.

    Args:
        coefficient: the weight per nat, at least 0.

    Source: Asynchronous Methods for Deep Reinforcement Learning, arXiv:1602.01783
    """

    def __init__(self, coefficient: float = 0.001) -> None:
        _check_coefficient(coefficient)
        self._coefficient = coefficient

    @property
    def coefficient(self) -> float:
        """Weight of the entropy in the loss."""
        return self._coefficient


def _find_estimator(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    if name not in _ESTIMATORS:
        raise ArlError(f"estimator is {name!r}: choose one of {', '.join(_ESTIMATORS)}")
    return _ESTIMATORS[name]


def _check_coefficient(coefficient: float) -> None:
    if not 0 <= coefficient < math.inf:
        raise ArlError(f"coefficient is {coefficient}, which would reward what it should restrain: set it to 0 or more")
