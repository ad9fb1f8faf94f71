"""Rows that a step learns from were played by the weights with which its epoch began, and are scored alike."""

from __future__ import annotations

from arl_lightning.types import ArlError


def check_version(played: int, epoch_version: int | None) -> None:
    """Raises ArlError unless rows of version `played` of the weights belong to the epoch under way."""
    if epoch_version is None:
        raise ArlError(
            "this checkpoint was written in the middle of an epoch without its rollout, which RolloutDataModule would "
            "have kept: resume from one of an epoch's end, such as the `checkpoint` callback of base.yaml writes"
        )
    if played != epoch_version:
        raise ArlError(
            f"a batch was played by version {played} of the weights but the epoch began at version {epoch_version}: "
            "set trainer.reload_dataloaders_every_n_epochs to 1, let no loader fetch ahead"
        )


def check_on_policy(worst_log_ratio: float, tolerance: float | None, *, exact: bool) -> None:
    """Raises ArlError when a first mini-batch is not scored as it is trained on.

    Args:
        worst_log_ratio: largest absolute log ratio of a token; it must be 0 but for rounding.
        tolerance: what rounding explains; None for 0.001, or 0.05 where the computation is not `exact`.
        exact: whether weights and Trainer are float32.
    """
    allowed = tolerance if tolerance is not None else 1e-3 if exact else 5e-2
    if not worst_log_ratio <= allowed:  # also catches NaN
        raise ArlError(
            f"on the first mini-batch every ratio must be 1, but a log ratio is {worst_log_ratio:.3g}: scoring and "
            "training disagree (dropout, dtype, or weights changed in between); raise ratio_tolerance only for low "
            "precision"
        )
