"""What a data module sees of its Trainer: who acts, who decides, who watches, with whom, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arl_lightning.datamodules.crew import ALONE, Crew
from arl_lightning.protocols import GroupGate, RolloutObserver, RolloutPolicy
from arl_lightning.types import ArlError, Rollout


@dataclass(frozen=True, slots=True)
class Scene:
    """The Trainer's acting module, its callbacks by what they offer, its processes, and the present epoch."""

    policy: RolloutPolicy
    gates: tuple[GroupGate, ...]
    observers: tuple[RolloutObserver, ...]
    epoch: int
    crew: Crew = ALONE

    @classmethod
    def of(cls, trainer: Any, crew: Crew) -> Scene:
        """The scene of this moment.

        Raises:
            ArlError: the Trainer's module cannot act.
        """
        if trainer is None:
            raise RuntimeError("play needs its Trainer's module: attach the data module to a Trainer first")
        module = trainer.lightning_module
        if not isinstance(module, RolloutPolicy):
            raise ArlError(f"{type(module).__name__} cannot act: RolloutDataModule needs an AgentModule")
        return cls(
            policy=module,
            gates=tuple(callback for callback in trainer.callbacks if isinstance(callback, GroupGate)),
            observers=tuple(who for who in (module, *trainer.callbacks) if isinstance(who, RolloutObserver)),
            epoch=trainer.current_epoch,
            crew=crew,
        )

    def announce(self, stage: str, episodes: int) -> None:
        """Tells the observers that play begins."""
        for observer in self.observers:
            observer.rollout_started(stage, self.epoch, episodes)

    def conclude(self, rollout: Rollout) -> None:
        """Tells the observers what play left behind."""
        for observer in self.observers:
            observer.rollout_finished(rollout)
