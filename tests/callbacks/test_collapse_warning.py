"""The collapse warning: when it speaks, when it is quiet, and that it goes on after a resume."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from arl_lightning.callbacks.collapse_warning import CollapseWarning

HEALTHY = (0.0, 1.0)
DRIFTS = (0.5, 1.0)
RAMBLES = (0.0, 0.25)


class Scripted(LightningModule):
    """A module that logs drift and valid ratio of each epoch as the script says."""

    def __init__(self, epochs: Sequence[tuple[float, float]]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.epochs = epochs

    def training_step(self, batch: Any, batch_idx: int) -> None:
        drift, valid_ratio = self.epochs[self.current_epoch]
        self.log("train/approx_kl", drift, on_step=False, on_epoch=True, batch_size=1)
        self.log("train/valid_ratio", valid_ratio, on_step=False, on_epoch=True, batch_size=1)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(1), batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> None:
        return None


def run(
    callback: CollapseWarning, epochs: Sequence[tuple[float, float]], ckpt_path: Path | None = None
) -> tuple[Trainer, list[str]]:
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
        trainer.fit(Scripted(epochs), ckpt_path=ckpt_path)
    return trainer, [str(w.message) for w in caught if "collapse warning" in str(w.message)]


def test_it_speaks_once_when_signs_appear_and_again_after_a_recovery() -> None:
    callback = CollapseWarning(after_epochs=0)
    trainer, said = run(callback, [HEALTHY, DRIFTS, DRIFTS, HEALTHY, RAMBLES])
    assert said == [
        "collapse warning at epoch 1: train/approx_kl is 0.5, over 0.1",
        "collapse warning at epoch 4: train/valid_ratio is 0.25, under 0.9",
    ]
    assert (callback.warnings, callback.since_epoch) == (3, 4)
    assert trainer.callback_metrics["collapse/warning"] == 1


def test_all_signs_are_named_together() -> None:
    _, said = run(CollapseWarning(after_epochs=0), [(0.5, 0.25)])
    assert said == [
        "collapse warning at epoch 0: train/approx_kl is 0.5, over 0.1; train/valid_ratio is 0.25, under 0.9"
    ]


def test_health_is_logged_too() -> None:
    callback = CollapseWarning(after_epochs=0)
    trainer, said = run(callback, [DRIFTS, HEALTHY])
    assert len(said) == 1
    assert trainer.callback_metrics["collapse/warning"] == 0
    assert callback.since_epoch is None


@pytest.mark.parametrize(("after_epochs", "since"), [(1, 1), (2, None)])
def test_the_first_epochs_are_without_alarm(after_epochs: int, since: int | None) -> None:
    callback = CollapseWarning(after_epochs=after_epochs)
    run(callback, [DRIFTS, DRIFTS])
    assert callback.since_epoch == since


def test_a_resumed_run_does_not_say_it_again(tmp_path: Path) -> None:
    first, resumed = CollapseWarning(after_epochs=0), CollapseWarning(after_epochs=0)
    trainer, _ = run(first, [HEALTHY, DRIFTS])
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    _, said = run(resumed, [HEALTHY, DRIFTS, DRIFTS], ckpt_path=tmp_path / "last.ckpt")
    assert said == []
    assert resumed.state_dict() == {"since_epoch": 1, "warnings": 2}
