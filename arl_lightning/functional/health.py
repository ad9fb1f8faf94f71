"""The health of a run as a graded state: up at once, down only after calm epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from arl_lightning.functional.detection import Sign


class Level(IntEnum):
    """How a run fares; a larger level is worse."""

    HEALTHY = 0
    WATCH = 1
    DANGER = 2


def grade(signs: Sequence[Sign], danger_votes: int) -> Level:
    """HEALTHY without a sign, DANGER when the signs have `danger_votes` votes together, else WATCH."""
    if not signs:
        return Level.HEALTHY
    return Level.DANGER if sum(sign.votes for sign in signs) >= danger_votes else Level.WATCH


@dataclass(frozen=True, slots=True)
class Course:
    """How a run has fared so far.

    Attributes:
        level: the present state.
        since_epoch: the epoch in which the run left health; None while it is healthy.
        calm_epochs: epochs in a row that were graded better than `level`.
        danger_epochs: epochs in a row in which the state was DANGER, the present one included.
    """

    level: Level = Level.HEALTHY
    since_epoch: int | None = None
    calm_epochs: int = 0
    danger_epochs: int = 0

    def after(self, found: Level, epoch: int, calm_epochs: int) -> Course:
        """The course after an epoch graded `found`: one level down after `calm_epochs` better ones in a row."""
        level, calm = max(found, self.level), 0 if found >= self.level else self.calm_epochs + 1
        if calm >= calm_epochs:
            level, calm = Level(level - 1), 0
        since = None if level is Level.HEALTHY else epoch if self.since_epoch is None else self.since_epoch
        return Course(level, since, calm, self.danger_epochs + 1 if level is Level.DANGER else 0)
