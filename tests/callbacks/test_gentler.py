"""Gentler training: the rate of each step under a schedule, the KL's coefficient, the mask, the stop, and resumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from arl_lightning.callbacks.collapse_action import CollapseAction
from arl_lightning.callbacks.collapse_warning import CollapseWarning
from arl_lightning.callbacks.gentler import LowerLearningRate, RaiseKL, StopRun, SwitchOnMask
from arl_lightning.modules.masks import SequenceMask
from arl_lightning.modules.regularizers import ReferenceKL
from arl_lightning.types import ArlError


@dataclass(frozen=True)
class Slots:
    """An objective as far as actions look at it."""

    kl: ReferenceKL | None
    reward_kl: None = None
    mask: SequenceMask | None = None


class Descending(LightningModule):
    """One weight, gradient 1, plain descent with a halving schedule; ruined in the epochs that are named."""

    def __init__(self, ruined: set[int]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.ruined = ruined
        self.objective: Any = Slots(ReferenceKL(0.5))
        self.seen: list[tuple[float, float, bool]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        drift = 9.0 if self.current_epoch in self.ruined else 0.0
        self.log("train/approx_kl", drift, on_step=False, on_epoch=True, batch_size=1)
        before = float(self.weight)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.weight)
        optimizer.step()
        self.seen.append((before - float(self.weight), self.objective.kl.coefficient, self.objective.mask is not None))

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()  # type: ignore[union-attr]

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(1), batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)}


def fit(module: Descending, *actions: CollapseAction, epochs: int, ckpt_path: Path | None = None) -> Trainer:
    """After the epochs; a ruined one is danger at once, and one other ends it."""
    callback = CollapseWarning(after_epochs=0, danger_votes=2, calm_epochs=1, signals={"drift": None}, actions=actions)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=ckpt_path, weights_only=True)
    return trainer


def test_the_rate_of_each_step_is_the_scheduled_one_times_the_factor() -> None:
    module = Descending(ruined={1, 3})
    trainer = fit(module, LowerLearningRate(0.5, max_times=2), epochs=6)
    # the schedule says 1 1 ½ ½ ¼ ¼; the factor is ½ after epoch 1 and ¼ after epoch 3
    assert [rate for rate, _, _ in module.seen] == [1.0, 1.0, 0.25, 0.25, 0.0625, 0.0625]
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.125  # the schedule's own, after six epochs


def test_the_rate_is_put_back_when_a_step_fails() -> None:
    class Failing(Callback):
        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            self.rate = trainer.optimizers[0].param_groups[0]["lr"]
            raise ValueError

    lower, failing = LowerLearningRate(0.5), Failing()
    lower.times = 1
    module = Descending(set())
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[CollapseWarning(actions=[lower]), failing],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with pytest.raises(ValueError):  # noqa: PT011
        trainer.fit(module)
    assert failing.rate == 0.5
    assert trainer.optimizers[0].param_groups[0]["lr"] == 1.0


def test_the_kl_is_raised_each_time() -> None:
    module = Descending(ruined={1, 3, 5})
    fit(module, RaiseKL(4.0, max_times=2), epochs=7)
    # 0.5, from epoch 2 on times 4, from epoch 4 on times 16, and no third time
    assert [coefficient for _, coefficient, _ in module.seen] == [0.5, 0.5, 2.0, 2.0, 8.0, 8.0, 8.0]


def test_the_mask_is_switched_on_once() -> None:
    module = Descending(ruined={1, 3})
    mask = SequenceMask(0.1)
    action = SwitchOnMask(mask)
    fit(module, action, epochs=5)
    assert [masked for _, _, masked in module.seen] == [False, False, True, True, True]
    assert module.objective.mask is mask
    assert action.times == 1


def test_the_run_is_stopped() -> None:
    assert fit(Descending(ruined={2}), StopRun(), epochs=9).current_epoch == 3


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_run_is_as_gentle_as_the_uninterrupted_one(stop: int, tmp_path: Path) -> None:
    def actions() -> list[CollapseAction]:
        return [LowerLearningRate(), RaiseKL(), SwitchOnMask(SequenceMask())]

    ruined = {1, 3}
    whole, first, resumed = Descending(ruined), Descending(ruined), Descending(ruined)
    fit(whole, *actions(), epochs=6)
    fit(first, *actions(), epochs=stop).save_checkpoint(tmp_path / "last.ckpt")
    fit(resumed, *actions(), epochs=6, ckpt_path=tmp_path / "last.ckpt")
    assert first.seen + resumed.seen == whole.seen
    assert torch.equal(resumed.weight, whole.weight)


def test_what_would_do_nothing_is_refused_when_the_fit_begins() -> None:
    module = Descending(set())
    module.objective = Slots(None, mask=SequenceMask())
    with pytest.raises(ArlError, match="has a mask already"):
        fit(module, SwitchOnMask(SequenceMask()), epochs=1)
    with pytest.raises(ArlError, match="RaiseKL finds no KL"):
        fit(module, RaiseKL(), epochs=1)


@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0])
def test_a_lower_rate_is_lower(factor: float) -> None:
    with pytest.raises(ArlError, match="LowerLearningRate needs one above 0 and below 1"):
        LowerLearningRate(factor)


@pytest.mark.parametrize("factor", [1.0, 0.5, float("inf")])
def test_a_raised_kl_is_higher(factor: float) -> None:
    with pytest.raises(ArlError, match="RaiseKL needs one above 1"):
        RaiseKL(factor)
