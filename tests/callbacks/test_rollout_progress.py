"""The progress display: a live one in a terminal, lines elsewhere, nothing when it is disabled."""

import io
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from rich.console import Console
from torch.utils.data import DataLoader

from arl_lightning.callbacks.rollout_progress import RolloutProgress
from arl_lightning.protocols import RolloutObserver
from arl_lightning.types import Rollout


class Playing(LightningModule):
    """A module that plays four episodes, two of them won, before each epoch's single step."""

    def __init__(self, display: RolloutProgress, failing_epoch: int = -1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.display = display
        self.failing_epoch = failing_epoch

    def train_dataloader(self) -> DataLoader[int]:
        self.display.rollout_started("train", self.current_epoch, 4)
        self.display.rollout_advanced(0, 0, 4)
        self.display.rollout_advanced(4, 2, 4)
        self.display.rollout_finished(Rollout("train", self.current_epoch, (), {}))
        return DataLoader(range(1), batch_size=None)  # type: ignore[arg-type]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if self.current_epoch == self.failing_epoch:
            raise RuntimeError("the script fails")
        self.log("train/reward", 0.125, on_step=False, on_epoch=True, batch_size=1)
        self.log("train/unshown", 7.0, on_step=False, on_epoch=True, batch_size=1)

    def configure_optimizers(self) -> None:
        return None


def display(terminal: bool, every_n_epochs: int = 10) -> tuple[RolloutProgress, io.StringIO]:
    progress, screen = RolloutProgress(every_n_epochs), io.StringIO()
    progress.console = Console(file=screen, force_terminal=terminal, width=120, color_system=None)
    return progress, screen


def fit(module: Playing, epochs: int) -> None:
    Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        reload_dataloaders_every_n_epochs=1,
        callbacks=[module.display],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(module)


def test_a_terminal_shows_play_and_epochs() -> None:
    progress, screen = display(terminal=True)
    assert isinstance(progress, RolloutObserver)
    fit(Playing(progress), epochs=2)
    epochs, play = [line for line in screen.getvalue().splitlines() if "━" in line][-2:]
    for shown in ("epochs ", " 2/2 ", "reward 0.125"):
        assert shown in epochs
    for shown in ("train ", " 4/4 ", "success 0.50"):
        assert shown in play
    assert "unshown" not in screen.getvalue()


def test_elsewhere_first_last_and_every_so_many_epochs_print_a_line() -> None:
    progress, screen = display(terminal=False, every_n_epochs=2)
    fit(Playing(progress), epochs=5)
    assert screen.getvalue().splitlines() == [f"epoch {epoch}/5  reward 0.125" for epoch in (1, 2, 4, 5)]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_disabled_display_shows_nothing(terminal: bool) -> None:
    progress, screen = display(terminal)
    progress.disable()
    fit(Playing(progress), epochs=1)
    assert screen.getvalue() == ""


def test_an_error_gives_the_terminal_back() -> None:
    progress, screen = display(terminal=True)
    with pytest.raises(RuntimeError, match="the script fails"):
        fit(Playing(progress, failing_epoch=0), epochs=1)
    shows_cursor = "\x1b[?25h"
    assert screen.getvalue().rstrip().endswith(shows_cursor)
    progress.rollout_advanced(1, 1, 1)  # a late word changes nothing


def test_lines_are_printed_above_the_display() -> None:
    progress, screen = display(terminal=True)
    progress.print("a line")
    assert screen.getvalue() == "a line\n"
