"""The laws of what turns tokens into a loss (surrogate, mask, aggregation, divergence), as executable checks.

What a part itself raises propagates. That a part keeps the laws does not say that it learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from arl_lightning.envs.contract import require
from arl_lightning.functional.segments import count
from arl_lightning.protocols import Aggregation, KLRegularizer, SegmentMask, Surrogate
from arl_lightning.types import TokenLoss

# Segment 3 lies in rows 0 and 1; row 3 is all padding. Advantages off the mask are bait: they must not be used.
_IDS_NT = torch.tensor([[-1, 7, 7, 7, -1, 3], [3, 3, -1, 5, 5, -1], [-1, 9, -1, -1, -1, -1], [-1] * 6])
_ACTS_NT = _IDS_NT >= 0
_ADVANTAGES_NT = torch.tensor(
    [[1, -1.5, -1.5, -1.5, 1, 0.5], [0.5, 0.5, 1, -0.25, -0.25, 1], [1, 2, 1, 1, 1, 1], [1] * 6], dtype=torch.float32
)
_WAVE_NT = torch.sin(1.7 * torch.arange(24, dtype=torch.float32)).reshape(4, 6)  # both signs inside a segment
_OLD_NT = -60.0 + _WAVE_NT.roll(1)
_MOST_NATS = 50.0
_FAR_NATS = 30.0


def check_surrogate(make: Callable[[], Surrogate]) -> None:
    """Returns when the surrogate that `make` makes keeps every law of per-token losses.

    Raises:
        ContractError: names the first law found broken.
    """
    surrogate = make()
    for nats_NT in (0 * _WAVE_NT, _WAVE_NT, _MOST_NATS * _WAVE_NT.sign(), _MOST_NATS + 0 * _WAVE_NT):
        for log_ratio_NT in (nats_NT, -nats_NT):
            _check_token_loss(surrogate, log_ratio_NT)
    new_NT = _OLD_NT.clone().requires_grad_()
    on_policy_NT = _gradient(surrogate.compute(new_NT, _OLD_NT, _ADVANTAGES_NT, _IDS_NT).loss_NT, new_NT)
    expected_NT = (-_ADVANTAGES_NT).masked_fill(~_ACTS_NT, 0)
    require(_close(on_policy_NT, expected_NT), "where the policy has not moved the gradient must be that of −A·log π")
    moved = (_OLD_NT + 0.1 * _WAVE_NT, _OLD_NT, _ADVANTAGES_NT)
    loss_NT = surrogate.compute(*moved, _IDS_NT).loss_NT
    wider = (pad(moved[0], (0, 2)), pad(moved[1], (0, 2)), pad(moved[2], (0, 2)))
    wider_NT = surrogate.compute(*wider, pad(_IDS_NT, (0, 2), value=-1)).loss_NT
    require(_close(wider_NT[:, :-2], loss_NT), "padding must not change the loss")
    for segment in _segments():
        alone_NT = surrogate.compute(*moved, _IDS_NT.masked_fill(~segment, -1)).loss_NT
        require(_close(alone_NT[segment], loss_NT[segment]), "a segment's loss must not depend on other segments")


def _check_token_loss(surrogate: Surrogate, log_ratio_NT: Tensor) -> None:
    new_NT = (_OLD_NT + log_ratio_NT).requires_grad_()
    found: TokenLoss = surrogate.compute(new_NT, _OLD_NT, _ADVANTAGES_NT, _IDS_NT)
    loss_NT, clipped_NT = found.loss_NT, found.clipped_NT
    shapes = (loss_NT.shape, clipped_NT.shape)
    require(
        shapes == (_IDS_NT.shape,) * 2, "the loss and where it is clipped must have the shape [N, T] of the log-probs"
    )
    require(loss_NT.dtype == torch.float32, f"the loss of float32 log-probs must be float32, not {loss_NT.dtype}")
    require(clipped_NT.dtype == torch.bool, f"the dtype of clipped_NT must be bool, not {clipped_NT.dtype}")
    gradient_NT = _gradient(loss_NT, new_NT)
    require(_is_zero(loss_NT[~_ACTS_NT]), "the loss must be 0 off the action mask")
    require(_is_zero(gradient_NT[~_ACTS_NT]), "log-probs off the action mask must have zero gradient")
    limits = f"at |log ratio| up to {_MOST_NATS:g} nats"
    require(bool(loss_NT.isfinite().all()), f"the loss must be finite {limits}")
    require(bool(gradient_NT.isfinite().all()), f"the gradient must be finite {limits}")


def check_segment_mask(make: Callable[[], SegmentMask]) -> None:
    """Returns when the mask that `make` makes keeps every law of masks, with one advantage a segment.

    Raises:
        ContractError: names the first law found broken.
    """
    mask = make()
    for nats in (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, _MOST_NATS):
        for log_ratio_NT in (nats * _WAVE_NT, -nats * _WAVE_NT):
            keep_NT = mask.keep(_OLD_NT + log_ratio_NT, _OLD_NT, _ADVANTAGES_NT, _IDS_NT)
            shaped = keep_NT.shape == _IDS_NT.shape and keep_NT.dtype == torch.bool
            require(shaped, "the mask must be bool of the shape [N, T] of the log-probs")
            require(not bool((keep_NT & ~_ACTS_NT).any()), "the mask must never be True off the action mask")
            require(nats > 0 or bool(keep_NT[_ACTS_NT].all()), "where the policy has not moved all must be kept")
            whole = all(bool(keep_NT[segment].all()) or not keep_NT[segment].any() for segment in _segments())
            require(whole, "a segment of one advantage must be kept or dropped as a whole")


def check_aggregation(make: Callable[[], Aggregation]) -> None:
    """Returns when the aggregation that `make` makes keeps every law of shares of a step's loss.

    Raises:
        ContractError: names the first law found broken.
    """
    aggregation = make()
    keep_NT = _ACTS_NT & (_IDS_NT != 5)
    keep_NT[0, 2] = False  # a segment kept in part

    def share(loss_NT: Tensor, rows: Sequence[int] = range(4), kept_NT: Tensor = keep_NT, padding: int = 0) -> Tensor:
        index = list(rows)
        padded = [pad(x[index], (0, padding), value=value) for x, value in ((loss_NT, 9.0), (_IDS_NT, -1))]
        totals = count(kept_NT, _IDS_NT)
        return aggregation.compute(padded[0], pad(kept_NT[index], (0, padding), value=False), padded[1], totals)

    loss_NT, other_NT = 1 + _WAVE_NT, _WAVE_NT.cos()
    whole = share(loss_NT)
    require(whole.shape == (), f"the share must be one number, not of shape {tuple(whole.shape)}")
    baited = share(loss_NT.masked_fill(~keep_NT, 9.0))
    require(_close(baited, whole), "tokens off the mask must count for nothing")
    require(_close(share(loss_NT, rows=(2, 3, 1, 0)), whole), "the order of rows must not matter")
    require(_close(share(loss_NT, padding=3), whole), "padding must not matter")
    for split in (((0, 1), (2, 3)), ((0, 1), (2,), (3,)), ((2, 0, 1), (3,))):
        shares = torch.stack([share(loss_NT, rows) for rows in split])
        require(_close(shares.sum(), whole), "the shares of any split into micro-batches must add up to the whole")
    combined = share(2 * loss_NT - 3 * other_NT)
    require(_close(combined, 2 * whole - 3 * share(other_NT)), "the share must be linear in the loss")
    leaf_NT = loss_NT.clone().requires_grad_()
    nothing_NT = torch.zeros_like(keep_NT)
    for empty, lost in ((share(leaf_NT, kept_NT=nothing_NT), "mask"), (share(leaf_NT, rows=(3,)), "micro-batch")):
        require(_is_zero(empty), f"an empty {lost} must give exactly 0, not {float(empty.detach())}")
        require(empty.requires_grad, f"an empty {lost} must give a 0 that is part of the graph")
        require(_is_zero(_gradient(empty, leaf_NT)), f"an empty {lost} must have zero gradient")


def check_kl(make: Callable[[], KLRegularizer], pulls: bool = True) -> None:
    """Returns when the divergence that `make` makes keeps every law of a loss that holds the policy to its reference.

    Args:
        make: gives the part.
        pulls: whether each token's gradient must lead to the reference; False for an estimator like k1, whose value
            is meant and not its gradient.

    Raises:
        ContractError: names the first law found broken.
    """
    kl = make()
    coefficient = kl.coefficient
    require(0 <= coefficient < math.inf, f"the coefficient must be at least 0 and finite, not {coefficient}")
    equal_NT = kl.compute(_OLD_NT, _OLD_NT)
    shaped = equal_NT.shape == _OLD_NT.shape and equal_NT.dtype == torch.float32
    require(shaped, "the divergence must be float32 of the shape [N, T] of the log-probs")
    require(_is_zero(equal_NT), "the divergence must be 0 where policy and reference agree")
    for nats in (-_FAR_NATS, -1.0, 1.0, _FAR_NATS):
        new_NT = (_OLD_NT + nats).requires_grad_()
        value_NT = kl.compute(new_NT, _OLD_NT)
        gradient_NT = _gradient(value_NT, new_NT)
        away = f"{abs(nats):g} nats {'above' if nats > 0 else 'below'} the reference"
        require(bool(value_NT.isfinite().all()), f"the divergence must be finite {away}")
        require(bool(gradient_NT.isfinite().all()), f"the gradient must be finite {away}")
        pulled = bool((gradient_NT * nats > 0).all())
        require(pulled or not pulls, f"the gradient must pull to the reference {away}")


def _segments() -> list[Tensor]:
    """Where each segment lies, bool `[N, T]`."""
    return [_IDS_NT.eq(segment_id) for segment_id in torch.unique(_IDS_NT[_ACTS_NT])]


def _gradient(values: Tensor, leaf_NT: Tensor) -> Tensor:
    """Of the sum of the values; zero where they do not depend on the leaf."""
    require(values.requires_grad, "what enters the loss must carry a gradient to the log-probs")
    (gradient_NT,) = torch.autograd.grad(values.sum(), leaf_NT, allow_unused=True, materialize_grads=True)
    return gradient_NT


def _is_zero(values: Tensor) -> bool:
    return not bool((values != 0).any())


def _close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-5, atol=1e-5)
