"""The collapse warning: when it speaks, when it is quiet, what it calls, and that it goes on after a resume."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from arl_lightning.callbacks.collapse_action import CollapseAction, Deed
from arl_lightning.callbacks.collapse_warning import CollapseWarning
from arl_lightning.functional.detection import Change
from arl_lightning.functional.health import Level
from arl_lightning.types import ArlError

Epoch = Mapping[str, float]

HEALTHY = {"train/approx_kl": 0.0, "train/valid_ratio": 1.0}
DRIFTS = {"train/approx_kl": 0.5, "train/valid_ratio": 1.0}
RAMBLES = {"train/approx_kl": 0.0, "train/valid_ratio": 0.25}
RUINED = {"train/approx_kl": 0.5, "train/valid_ratio": 0.25}
EVERYTHING: dict[str, Any] = {"after_epochs": 0, "calm_epochs": 1, "valid_slack": None, "danger_votes": 3}


class Scripted(LightningModule):
    """A module that logs of each epoch what the script says."""

    def __init__(self, epochs: Sequence[Epoch]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.epochs = epochs

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for name, value in self.epochs[self.current_epoch].items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=1)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(1), batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> None:
        return None


class Witness(CollapseAction):
    """An action that keeps when it was called, and how the run was judged."""

    def __init__(self, max_times: int = 9, able: bool = True, back: int | None = None) -> None:
        super().__init__(max_times)
        self.able = able
        self.back = back
        self.acted: list[int] = []
        self.held: list[int] = []
        self.judged: list[Level] = []

    def act(self, trainer: Trainer, module: LightningModule) -> Deed | None:
        self.acted.append(trainer.current_epoch)
        return Deed("something is done", self.back) if self.able else None

    def hold(self, trainer: Trainer, module: LightningModule) -> None:
        self.held.append(self.times)

    def epoch_judged(self, trainer: Trainer, level: Level) -> None:
        self.judged.append(level)


class Second(Witness):
    """Another class, since no two of one class may stand together."""


def run(callback: CollapseWarning, epochs: Sequence[Epoch], ckpt_path: Path | None = None) -> tuple[Trainer, list[str]]:
    """The trainer after the epochs, and what was warned of."""
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=len(epochs),
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Scripted(epochs), ckpt_path=ckpt_path, weights_only=True)
    return trainer, [str(w.message) for w in caught if "collapse " in str(w.message)]


def test_it_speaks_once_when_signs_appear_and_again_after_a_recovery() -> None:
    callback = CollapseWarning(**EVERYTHING)
    trainer, said = run(callback, [HEALTHY, DRIFTS, DRIFTS, HEALTHY, RAMBLES])
    assert said == [
        "collapse warning at epoch 1, watch: train/approx_kl is 0.5, over 0.1 (since epoch 1)",
        "collapse warning at epoch 4, watch: train/valid_ratio is 0.25, under 0.9 (since epoch 4)",
    ]
    assert (callback.warnings, callback.since_epoch) == (3, 4)
    assert trainer.callback_metrics["collapse/warning"] == 1
    assert trainer.callback_metrics["collapse/level"] == 1


def test_a_worse_state_names_all_signs_and_since_when_each_is_there() -> None:
    callback = CollapseWarning(**EVERYTHING)
    trainer, said = run(callback, [DRIFTS, DRIFTS, RUINED])
    assert said[1:] == [
        "collapse warning at epoch 2, danger: train/approx_kl is 0.5, over 0.1 (since epoch 0); "
        "train/valid_ratio is 0.25, under 0.9 (since epoch 2)"
    ]
    assert callback.since_epoch == 0
    assert trainer.callback_metrics["collapse/signs"] == 2
    assert trainer.callback_metrics["collapse/level"] == 2


def test_a_broken_limit_and_a_change_beside_it_are_danger() -> None:
    past = [HEALTHY] * 5
    callback = CollapseWarning(after_epochs=0, danger_votes=3)
    _, [said] = run(callback, [*past, DRIFTS])
    assert said == (
        "collapse warning at epoch 5, danger: train/approx_kl is 0.5, over 0.1 (since epoch 5); "
        "train/approx_kl is 0.5, 50.0 deviations above its median of 5 epochs (since epoch 5)"  # 0.5 / 0.01
    )
    steady = CollapseWarning(after_epochs=0, danger_votes=3)  # the same value is no change for a run that always had it
    run(steady, [DRIFTS] * 7)
    assert steady.course.level is Level.WATCH


def test_health_is_logged_too() -> None:
    callback = CollapseWarning(**EVERYTHING)
    trainer, said = run(callback, [DRIFTS, HEALTHY])
    assert len(said) == 1
    assert trainer.callback_metrics["collapse/warning"] == 0
    assert trainer.callback_metrics["collapse/level"] == 0
    assert trainer.callback_metrics["collapse/actions"] == 0
    assert callback.since_epoch is None


def test_the_state_falls_after_calm_epochs_only() -> None:
    callback = CollapseWarning(**{**EVERYTHING, "calm_epochs": 2})
    _, said = run(callback, [RUINED, HEALTHY, RUINED, HEALTHY, HEALTHY, RUINED])
    # epoch 2 finds the danger still on; it falls to watch at 4, and 5 is another danger
    assert [line.partition(":")[0] for line in said] == [
        "collapse warning at epoch 0, danger",
        "collapse warning at epoch 5, danger",
    ]


@pytest.mark.parametrize(("after_epochs", "since"), [(1, 1), (2, None)])
def test_the_first_epochs_are_without_alarm(after_epochs: int, since: int | None) -> None:
    callback = CollapseWarning(after_epochs=after_epochs)
    run(callback, [DRIFTS, DRIFTS])
    assert callback.since_epoch == since


def test_a_start_that_answers_badly_is_healthy_until_it_answers_worse() -> None:
    def answers(*ratios: float) -> list[Epoch]:
        return [{"train/approx_kl": 0.0, "train/valid_ratio": ratio} for ratio in ratios]

    weak = CollapseWarning(after_epochs=0)
    assert run(weak, answers(0.5, 0.45, 0.6, 0.55))[1] == []
    assert run(CollapseWarning(after_epochs=0), answers(0.5, 0.45, 0.6, 0.45))[1] == [
        "collapse warning at epoch 3, watch: train/valid_ratio is 0.45, under 0.5 (since epoch 3)"  # 0.6 − 0.1
    ]
    assert run(CollapseWarning(after_epochs=0, valid_slack=None), answers(0.5))[1] != []


def test_epochs_in_danger_are_no_past_to_compare_with() -> None:
    callback = CollapseWarning(after_epochs=0, window=6, min_history=5, danger_votes=3)
    run(callback, [HEALTHY] * 6 + [DRIFTS] * 9)
    assert [known["epoch"] for known in callback.history] == [0, 1, 2, 3, 4, 5]
    assert callback.course.level is Level.DANGER  # nine epochs on it still is


def test_a_metric_that_an_epoch_did_not_log_is_not_taken_from_the_one_before() -> None:
    callback = CollapseWarning(**EVERYTHING)
    run(callback, [DRIFTS, {"train/valid_ratio": 1.0}])
    assert callback.since_epoch is None
    assert "train/approx_kl" not in callback.history[-1]


def test_signals_are_exchanged_by_name() -> None:
    bounds_off: dict[str, Any] = {
        "max_drift": None,
        "min_valid_ratio": None,
        "after_epochs": 0,
        "min_history": 3,
        "window": 3,
    }
    epochs = [{"train/approx_kl": 0.0, "mine": 1.0}] * 3 + [{"train/approx_kl": 9.0, "mine": 5.0}]
    silent = CollapseWarning(**bounds_off, signals={"drift": None})
    assert run(silent, epochs)[1] == []
    own = CollapseWarning(**bounds_off, signals={"drift": None, "own": Change("mine", floor=0.5)})
    assert run(own, epochs)[1] == [
        "collapse warning at epoch 3, watch: mine is 5, 8.0 deviations above its median of 3 epochs (since epoch 3)"
    ]


# actions


def test_actions_are_called_in_order_on_entering_danger_and_counted() -> None:
    first, second = Witness(), Second()
    callback = CollapseWarning(**EVERYTHING, actions=[first, second])
    trainer, said = run(callback, [DRIFTS, RUINED, RUINED, HEALTHY, RUINED])
    assert first.acted == second.acted == [1, 4]
    assert said[2:4] == [
        "collapse action at epoch 1, Witness (1 of 9): something is done",
        "collapse action at epoch 1, Second (1 of 9): something is done",
    ]
    assert trainer.callback_metrics["collapse/actions"] == 4
    assert first.judged == [Level.WATCH, Level.DANGER, Level.DANGER, Level.WATCH, Level.DANGER]
    assert first.held == [0, 1, 2]  # when the fit begins, and after each deed


def test_an_action_is_limited_and_what_could_not_be_done_does_not_count() -> None:
    limited, unable = Witness(max_times=1), Second(able=False)
    callback = CollapseWarning(**EVERYTHING, actions=[limited, unable])
    _, said = run(callback, [RUINED, HEALTHY, RUINED])
    assert (limited.acted, limited.times) == ([0], 1)
    assert (unable.acted, unable.times) == ([0, 2], 0)
    assert len([line for line in said if "action" in line]) == 1


def test_a_lasting_danger_calls_again_on_request() -> None:
    once, again = Witness(), Witness()
    run(CollapseWarning(**EVERYTHING, actions=[once]), [RUINED] * 6)
    run(CollapseWarning(**EVERYTHING, actions=[again], again_after=2), [RUINED] * 6)
    assert once.acted == [0]
    assert again.acted == [0, 2, 4]


ONCE = [HEALTHY] * 4 + [RUINED] + [HEALTHY]


def test_after_a_roll_back_the_run_is_watched_against_what_was_known_then() -> None:
    back = Witness(back=1)
    callback = CollapseWarning(after_epochs=0, calm_epochs=2, actions=[back])
    run(callback, ONCE)
    assert [known["epoch"] for known in callback.history] == [0, 1, 5]
    assert (callback.course.level, callback.since_epoch) == (Level.WATCH, 4)
    run(relapsed := CollapseWarning(after_epochs=0, calm_epochs=2, actions=[Witness(back=1)]), [*ONCE, RUINED])
    assert relapsed.actions["Witness"].times == 2


# arguments and state


@pytest.mark.parametrize(
    "knobs",
    [
        {"window": 3, "min_history": 4},
        {"calm_epochs": 0},
        {"danger_votes": 0},
        {"again_after": 0},
        {"after_epochs": -1},
        {"valid_slack": -0.1},
    ],
)
def test_a_knob_out_of_range_fails_where_it_is_set(knobs: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match=next(iter(knobs))):
        CollapseWarning(**knobs)


def test_two_actions_of_one_class_are_refused() -> None:
    with pytest.raises(ArlError, match="two actions of one class"):
        CollapseWarning(actions=[Witness(), Witness()])
    with pytest.raises(ArlError, match="max_times >= 1"):
        Witness(max_times=0)


SERIES = [HEALTHY] * 6 + [DRIFTS, HEALTHY, HEALTHY, RUINED, RAMBLES, HEALTHY, {}, HEALTHY, HEALTHY, DRIFTS]


@pytest.mark.parametrize("stop", [1, 4, 7, 10, 11, 13])
def test_a_resumed_run_ends_in_the_state_of_an_uninterrupted_one_and_says_nothing_twice(
    stop: int, tmp_path: Path
) -> None:
    knobs: dict[str, Any] = {"after_epochs": 0, "calm_epochs": 2, "again_after": 2, "danger_votes": 3}
    whole, first, resumed = (CollapseWarning(**knobs, actions=[Witness()]) for _ in range(3))
    _, said = run(whole, SERIES)
    trainer, early = run(first, SERIES[:stop])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    _, late = run(resumed, SERIES, ckpt_path=tmp_path / "last.ckpt")
    assert early + late == said
    assert resumed.state_dict() == whole.state_dict()
    assert whole.state_dict()["actions"] == {"Witness": {"times": 3}}  # at 6, 9 and 15


def test_recorded_epochs_are_judged_without_a_trainer_as_they_were_in_the_run() -> None:
    live, replayed = CollapseWarning(after_epochs=1), CollapseWarning(after_epochs=1)
    run(live, SERIES)
    signs = [replayed.judge(epoch, values) for epoch, values in enumerate(SERIES)]
    assert replayed.state_dict() == live.state_dict()
    assert [[sign.name for sign in found] for found in signs[5:7]] == [[], ["train/approx_kl bound", "drift"]]


def test_a_resumed_run_may_have_other_actions() -> None:
    old, new = CollapseWarning(actions=[Witness(), Second()]), CollapseWarning(actions=[Second()])
    old.actions["Second"].times = 2
    new.load_state_dict(old.state_dict())
    assert new.actions["Second"].times == 2
    fresh = CollapseWarning(actions=[Witness()])
    fresh.load_state_dict(new.state_dict())
    assert fresh.actions["Witness"].times == 0
