"""Actions against a collapse that make the training gentler: a lower rate, a stronger KL, the sequence mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from arl_lightning.callbacks.collapse_action import CollapseAction, Deed
from arl_lightning.callbacks.kl_control import kl_coefficient
from arl_lightning.protocols import SegmentMask, Steerable
from arl_lightning.types import ArlError


class LowerLearningRate(CollapseAction):
    """Multiplies the learning rate by `factor`, each time anew.

    The schedule does not know: each step is taken at the scheduled rate times the factor, and the scheduled rate is
    put back after it, so that any schedule goes on and a checkpoint holds what it always does.

    Args:
        factor: multiple of the rate, above 0 and below 1.
        max_times: how often it may act in one run.
    """

    def __init__(self, factor: float = 0.5, max_times: int = 3) -> None:
        super().__init__(max_times)
        if not 0 < factor < 1:
            raise ArlError(f"factor is {factor}: LowerLearningRate needs one above 0 and below 1")
        self.factor = factor
        self._scheduled: list[float] = []

    def act(self, trainer: Trainer, module: LightningModule) -> Deed:
        """Says what the rate is multiplied by from the next step on."""
        return Deed(f"the learning rate is multiplied by {self.factor ** (self.times + 1):.3g}")

    def step_starts(self, trainer: Trainer) -> None:
        """The rate of this step."""
        if self.times and not self._scheduled:
            groups = trainer.optimizers[0].param_groups
            self._scheduled = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] *= self.factor**self.times

    def step_ends(self, trainer: Trainer) -> None:
        """The scheduled rate again."""
        if self._scheduled:
            for group, rate in zip(trainer.optimizers[0].param_groups, self._scheduled, strict=True):
                group["lr"] = rate
            self._scheduled = []


class RaiseKL(CollapseAction):
    """Multiplies the coefficient of the KL to the reference by `factor`, each time anew.

    Args:
        factor: multiple of the coefficient, above 1.
        max_times: how often it may act in one run.
    """

    def __init__(self, factor: float = 3.0, max_times: int = 3) -> None:
        super().__init__(max_times)
        if not 1 < factor < float("inf"):
            raise ArlError(f"factor is {factor}: RaiseKL needs one above 1")
        self.factor = factor

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses an objective without a KL to raise."""
        kl_coefficient(module, "RaiseKL")

    def act(self, trainer: Trainer, module: LightningModule) -> Deed:
        """Says what the coefficient is multiplied by."""
        return Deed(f"the KL coefficient is multiplied by {self.factor ** (self.times + 1):.3g}")

    def hold(self, trainer: Trainer, module: LightningModule) -> None:
        """The coefficient has the factor."""
        kl_coefficient(module, "RaiseKL").set_factor("RaiseKL", self.factor**self.times)


class SwitchOnMask(CollapseAction):
    """Fills the objective's empty mask slot, for the rest of the run.

    Args:
        mask: which segments the policy term sees from then on.

    Source: ARLArena, arXiv:2602.21534: with the sequence mask, methods that collapsed went on.
    """

    def __init__(self, mask: SegmentMask) -> None:
        super().__init__(max_times=1)
        self.mask = mask

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses an objective that has a mask already."""
        if not isinstance(module, Steerable):
            raise ArlError(f"SwitchOnMask needs a module with an objective, not {type(module).__name__}")
        objective: Any = module.objective
        if objective.mask is not None and objective.mask is not self.mask:
            raise ArlError(
                "the objective has a mask already: leave SwitchOnMask out, or set model.objective.mask to null"
            )

    def act(self, trainer: Trainer, module: LightningModule) -> Deed:
        """Says that the mask is on."""
        return Deed(f"the objective's mask is {type(self.mask).__name__}")

    def hold(self, trainer: Trainer, module: LightningModule) -> None:
        """The mask is in its slot."""
        if self.times and isinstance(module, Steerable):
            objective: Any = module.objective
            module.objective = replace(objective, mask=self.mask)


class StopRun(CollapseAction):
    """Ends the run after the epoch; its last checkpoint is written as always."""

    def __init__(self) -> None:
        super().__init__(max_times=1)

    def act(self, trainer: Trainer, module: LightningModule) -> Deed:
        """Asks the Trainer to stop."""
        trainer.should_stop = True
        return Deed("the run is stopped")
