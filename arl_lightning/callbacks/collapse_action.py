"""What a run can do about a coming collapse: the common part of all actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from arl_lightning.functional.health import Level
from arl_lightning.types import ArlError


@dataclass(frozen=True, slots=True)
class Deed:
    """What an action did.

    Attributes:
        sentence: in words.
        back_to_epoch: the epoch at whose end the policy now stands again, -1 for the start; None when it was not taken
            back.
    """

    sentence: str
    back_to_epoch: int | None = None


class CollapseAction:
    """Done to a run that enters danger, at most `max_times` times.

    What it changes for good is a function of `times` alone, so that `hold` can do it again after a resume.

    Args:
        max_times: how often it may act in one run, at least 1.
    """

    def __init__(self, max_times: int) -> None:
        if max_times < 1:
            raise ArlError(f"{type(self).__name__} needs max_times >= 1: leave the action out to never act")
        self.max_times = max_times
        self.times = 0

    def check(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuses, when `fit` begins, a run to which it could do nothing."""

    def run_starts(self, trainer: Trainer, module: LightningModule) -> None:
        """Training begins, or goes on after a resume; no step has been taken yet."""

    def act(self, trainer: Trainer, module: LightningModule) -> Deed | None:
        """Acts for the time after `times`; None when it could not, which then does not count."""
        raise NotImplementedError

    def hold(self, trainer: Trainer, module: LightningModule) -> None:
        """Makes true what `times` says, also where a resume has undone it."""

    def epoch_judged(self, trainer: Trainer, level: Level) -> None:
        """Is told each epoch how the run fares, the epochs without alarm too, before anything is done about it."""

    def step_starts(self, trainer: Trainer) -> None:
        """An optimiser step is about to be taken."""

    def step_ends(self, trainer: Trainer) -> None:
        """The step is over, or will not be; may be called twice."""

    def call(self, trainer: Trainer, module: LightningModule) -> Deed | None:
        """Acts while it may, and counts it."""
        if self.times >= self.max_times:
            return None
        deed = self.act(trainer, module)
        if deed is not None:
            self.times += 1
            self.hold(trainer, module)
        return deed

    def state_dict(self) -> dict[str, Any]:
        """How often it has acted."""
        return {"times": self.times}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved run was."""
        self.times = state_dict["times"]
