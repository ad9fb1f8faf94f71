"""Warns, with the reason, when an epoch shows the signs that came before collapses, and acts when asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from arl_lightning.callbacks.collapse_action import CollapseAction
from arl_lightning.callbacks.epoch_metrics import EpochMetrics
from arl_lightning.callbacks.run_events import record_event
from arl_lightning.functional.detection import USUAL_CHANGES, Bound, Change, Sign, read_signs
from arl_lightning.functional.health import Course, Level, grade
from arl_lightning.types import ArlError


class CollapseWarning(Callback):
    """Grades each epoch as healthy, watch or danger, says by which signs and since when, and calls its actions.

    Signs are limits that hold whatever the past was, and changes against the epochs before in robust deviations. Each
    has votes: one is enough to watch, `danger_votes` together are danger. The state rises at once and falls one level
    after `calm_epochs` better epochs in a row. Epochs graded danger are no past to compare with, or a collapsed run
    would look healthy once it has been collapsed for long enough.

    Thresholds and votes were chosen on half of the short runs of a tiny model in `benchmarks/collapse`; its README says
    how the other half fared: sudden collapses are mostly seen ahead, slow slides of a weak start are mostly missed.

    Logged: `collapse/warning` (1 when there is a sign), `collapse/signs`, `collapse/level` (0 healthy, 1 watch,
    2 danger), `collapse/actions` (how often anything was done so far).

    Args:
        max_drift: mean(log π_old − log π_new) over an epoch's mini-batches, nats a token; null sets no limit.
        min_valid_ratio: share of turns whose answer was a valid action; null sets no limit.
        valid_slack: how far the valid ratio may be from its best epoch so far, though that is under the limit: a start
            that answers badly is judged by itself until it answers well; null lets the limit hold from the start.
        after_epochs: epochs at the start without an alarm.
        signals: changes by name, in place of or beside those of `functional.detection.USUAL_CHANGES`; null takes one
            out.
        window: epochs of the past that a change is measured against.
        min_history: fewest epochs of the past to measure against.
        bound_votes: votes of a limit that is broken; by default it takes changes beside it to make danger.
        danger_votes: votes that make danger.
        calm_epochs: better epochs in a row after which the state falls one level.
        actions: called in this order on entering danger, no two of one class; by default nothing is done.
        again_after: the actions are called again each time that danger has lasted so many epochs more, if that epoch
            shows danger itself; null never.

    Source: ARLArena, arXiv:2602.21534, on what moves before a collapse.
    """

    def __init__(
        self,
        max_drift: float | None = 0.1,
        min_valid_ratio: float | None = 0.9,
        valid_slack: float | None = 0.1,
        after_epochs: int = 2,
        signals: Mapping[str, Change | None] | None = None,
        window: int = 12,
        min_history: int = 5,
        bound_votes: int = 2,
        danger_votes: int = 4,
        calm_epochs: int = 3,
        actions: Sequence[CollapseAction] | None = None,
        again_after: int | None = None,
    ) -> None:
        if min(min_history, bound_votes, danger_votes, calm_epochs) < 1 or window < min_history or after_epochs < 0:
            raise ArlError(
                "CollapseWarning needs min_history, bound_votes, danger_votes and calm_epochs of at least 1, window >= "
                "min_history, and after_epochs >= 0"
            )
        if again_after is not None and again_after < 1:
            raise ArlError(f"again_after is {again_after}: set it to at least 1, or to null")
        if valid_slack is not None and valid_slack < 0:
            raise ArlError(f"valid_slack is {valid_slack}: set it to at least 0, or to null")
        limits = (
            ("train/approx_kl", max_drift, True, None),
            ("train/valid_ratio", min_valid_ratio, False, valid_slack),
        )
        self.bounds = [
            Bound(metric, limit, above, slack) for metric, limit, above, slack in limits if limit is not None
        ]
        chosen = {**USUAL_CHANGES, **(signals or {})}
        self.changes = {name: change for name, change in chosen.items() if change is not None}
        self.after_epochs = after_epochs
        self.window = window
        self.min_history = min_history
        self.bound_votes = bound_votes
        self.danger_votes = danger_votes
        self.calm_epochs = calm_epochs
        self.actions = {type(action).__name__: action for action in actions or ()}
        if len(self.actions) < len(actions or ()):
            raise ArlError("CollapseWarning was given two actions of one class: merge them into one")
        self.again_after = again_after
        self.course = Course()
        self.warnings = 0
        self.signs: list[Sign] = []
        self.signs_since: dict[str, int] = {}
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] = {}
        self._metrics = EpochMetrics()

    @property
    def since_epoch(self) -> int | None:
        """The epoch in which the run left health; None while it is healthy."""
        return self.course.since_epoch

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses actions that could do nothing to this run."""
        for action in self.actions.values():
            action.check(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Does again what actions had done to a run that is resumed."""
        for action in self.actions.values():
            action.run_starts(trainer, pl_module)
            action.hold(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Marks what earlier epochs logged."""
        self._metrics.epoch_starts(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Lets actions touch the step."""
        for action in self.actions.values():
            action.step_starts(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lets actions undo what was meant for the step only."""
        for action in self.actions.values():
            action.step_ends(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A checkpoint that is written on the way out must not hold what was meant for one step."""
        for action in self.actions.values():
            action.step_ends(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judges the epoch that just ended; speaks when the state changes, logs always."""
        epoch, before = trainer.current_epoch, self.course.level
        seen = self.judge(epoch, self._metrics.of_epoch(trainer))
        self._speak(trainer, before, epoch)
        for action in self.actions.values():
            action.epoch_judged(trainer, max(self.course.level, grade(seen, self.danger_votes)))
        if grade(self.signs, self.danger_votes) is Level.DANGER and self._acts_now():
            self._act(trainer, pl_module)
        pl_module.log("collapse/warning", float(bool(self.signs)))
        pl_module.log("collapse/signs", float(len(self.signs)))
        pl_module.log("collapse/level", float(self.course.level))
        pl_module.log("collapse/actions", float(sum(action.times for action in self.actions.values())))

    def judge(self, epoch: int, values: Mapping[str, float]) -> list[Sign]:
        """The epoch's signs, those of an epoch without alarm too; course, past and best values are those after it.

        Args:
            epoch: its number, one more than that of the call before.
            values: its metrics by full name.
        """
        for bound in self.bounds:
            best = bound.better(self.best.get(bound.metric), values.get(bound.metric))
            if best is not None:
                self.best[bound.metric] = best
        seen = read_signs(
            self.bounds, self.changes, self.history, values, self.min_history, self.bound_votes, self.best
        )
        self.signs = seen if epoch >= self.after_epochs else []
        self.signs_since = {sign.name: self.signs_since.get(sign.name, epoch) for sign in self.signs}
        self.warnings += bool(self.signs)
        self.course = self.course.after(grade(self.signs, self.danger_votes), epoch, self.calm_epochs)
        self._remember(epoch, values)
        return seen

    def _remember(self, epoch: int, values: Mapping[str, float]) -> None:
        if self.course.level is Level.DANGER:
            return
        watched = {metric for change in self.changes.values() for metric in change.metrics}
        known = {metric: value for metric, value in values.items() if metric in watched and abs(value) < float("inf")}
        self.history = [*self.history, {"epoch": epoch, **dict(sorted(known.items()))}][-self.window :]

    def _speak(self, trainer: Trainer, before: Level, epoch: int) -> None:
        level = self.course.level
        if level > before:
            told = "; ".join(f"{sign.phrase} (since epoch {self.signs_since[sign.name]})" for sign in self.signs)
            rank_zero_warn(f"collapse warning at epoch {epoch}, {level.name.lower()}: {told}")
            record_event(trainer, level.name.lower(), told)
        elif level < before:
            rank_zero_info(f"collapse warning at epoch {epoch} lowered to {level.name.lower()}")
            record_event(trainer, level.name.lower(), f"lowered to {level.name.lower()}")

    def _acts_now(self) -> bool:
        """On entering danger, and again each `again_after` epochs that it lasts."""
        lasted = self.course.danger_epochs - 1
        return lasted == 0 or (lasted > 0 and self.again_after is not None and lasted % self.again_after == 0)

    def _act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, action in self.actions.items():
            deed = action.call(trainer, pl_module)
            if deed is None:
                continue
            rank_zero_warn(
                f"collapse action at epoch {trainer.current_epoch}, {name} ({action.times} of {action.max_times}): "
                f"{deed.sentence}"
            )
            record_event(trainer, "action", f"{name} ({action.times} of {action.max_times}): {deed.sentence}")
            if deed.back_to_epoch is not None:
                # the policy of then is watched again, against what was known then
                self.history = [known for known in self.history if known["epoch"] <= deed.back_to_epoch]
                self.course = Course(Level.WATCH, self.course.since_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Its course, what it has seen, and what its actions have done."""
        return {
            "level": int(self.course.level),
            "since_epoch": self.course.since_epoch,
            "calm_epochs": self.course.calm_epochs,
            "danger_epochs": self.course.danger_epochs,
            "warnings": self.warnings,
            "signs_since": dict(self.signs_since),
            "history": [dict(known) for known in self.history],
            "best": dict(self.best),
            "actions": {name: action.state_dict() for name, action in self.actions.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved run was; actions that it did not have begin anew."""
        state = state_dict
        self.course = Course(Level(state["level"]), state["since_epoch"], state["calm_epochs"], state["danger_epochs"])
        self.warnings = state["warnings"]
        self.signs_since = dict(state["signs_since"])
        self.history = [dict(known) for known in state["history"]]
        self.best = dict(state.get("best", {}))
        for name, action in self.actions.items():
            if name in state["actions"]:
                action.load_state_dict(state["actions"][name])
