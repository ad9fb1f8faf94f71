"""Further gates and the KL's control, named on the command line: they act, are counted, and resume to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from arl_lightning.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome, SmallRun

CALLBACKS = "arl_lightning.callbacks"
OPTIONS = {
    "--callbacks.difficulty": f"{CALLBACKS}.difficulty_window.DifficultyWindow",
    "--callbacks.difficulty.low": "0.5",
    "--callbacks.difficulty.final_low": "0.0",
    "--callbacks.difficulty.moves_over_epochs": "2",
    "--callbacks.usable": f"{CALLBACKS}.usable_episodes.UsableEpisodes",
    "--callbacks.usable.max_cut_share": "0.6",
    "--callbacks.usable.count_truncated": "true",
    "--callbacks.filtering.by": "advantage",
    "--callbacks.kl_monitor.control.target": "0.001",
    "--trainer.limit_val_batches": "0",
    "--trainer.max_epochs": "3",
}


def test_all_gates_are_asked_counted_and_the_same_after_a_resume(
    small_run: SmallRun, outcome: Callable[[str], Outcome]
) -> None:
    options = [word for pair in OPTIONS.items() for word in pair]
    main(small_run("fit", "gates/whole", *options))
    main(small_run("fit", "gates/parts", *options, "--trainer.max_epochs", "1"))
    main(small_run("fit", "gates/parts", *options, "--ckpt_path", "last"))
    whole, parts = outcome("gates/whole"), outcome("gates/parts")
    assert parts.metrics == whole.metrics
    assert all(torch.equal(parts.weights[name], weight) for name, weight in whole.weights.items())
    monitor = whole.checkpoint["callbacks"]["KLMonitor"]
    assert parts.checkpoint["callbacks"]["KLMonitor"] == monitor
    assert monitor["factor"] != 1.0
    coefficient = whole.metrics["train/kl_monitor/coefficient"][-1][1]
    assert coefficient == pytest.approx(0.01 * monitor["factor"])
    assert whole.metrics["filter/dropped_too_hard"][0][1] > 0
    assert any(value > 0 for _, value in whole.metrics["filter/dropped_cut"])
    assert len(whole.metrics["filter/surplus"]) == 3
