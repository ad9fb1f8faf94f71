"""The numbers of the epoch that just ended, and of no earlier one."""

from __future__ import annotations

from lightning.pytorch import Trainer
from torch import Tensor


class EpochMetrics:
    """Tells an epoch's own metrics from those that Lightning still shows from the epochs before.

    `trainer.callback_metrics` keeps a metric that an epoch did not log, and loses it on resume: a decision over stale
    values would not be the same in a resumed run.
    """

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}

    def epoch_starts(self, trainer: Trainer) -> None:
        """Marks what is known already."""
        self._before = dict(trainer.callback_metrics)

    def of_epoch(self, trainer: Trainer) -> dict[str, float]:
        """Metrics that were logged since, the same on all ranks."""
        fresh = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if self._before.get(name) is not value  # a metric that is logged again is another tensor
        }
        agreed: dict[str, float] = trainer.strategy.broadcast(fresh)
        return agreed
