"""The KL monitor: hand-computed estimates, weights by tokens, the check at the start, and the stop."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from arl_lightning.callbacks.kl_control import KLControl
from arl_lightning.callbacks.kl_monitor import KLMonitor
from arl_lightning.modules.regularizers import ReferenceKL
from arl_lightning.types import ArlError, PassRecord, TrajectoryBatch


class Slots:
    """The slots of an objective that adaptation looks at."""

    def __init__(self) -> None:
        self.kl = ReferenceKL(0.5)
        self.reward_kl = None


class Scripted(LightningModule):
    """A module whose step gives callbacks the log-probs that the script says."""

    def __init__(self, *steps: tuple[TrajectoryBatch, Sequence[float]] | None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.steps = steps
        self.kl = 0.0
        self.split: tuple[float, float] | None = None
        self.objective: Any = Slots()

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        step = self.steps[batch_idx]
        self.log("train/kl", self.kl, on_step=False, on_epoch=True, batch_size=1)
        if self.split is not None:
            self.log("train/sinking/kl", self.split[0], on_step=False, on_epoch=True, batch_size=1)
            self.log("train/sinking/kl_others", self.split[1], on_step=False, on_epoch=True, batch_size=1)
        if step is None:
            return None
        part, logprobs = step
        new_NT, acts_NT = torch.tensor([[0.0, *logprobs]]), part.action_mask_NT
        return {"records": [PassRecord(part, new_NT, torch.zeros_like(new_NT), ~acts_NT, acts_NT)]}

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(len(self.steps)), batch_size=None)  # type: ignore[arg-type]

    def configure_optimizers(self) -> None:
        return None


def row(advantages: Sequence[float], behavior: Sequence[float], old: Sequence[float]) -> TrajectoryBatch:
    """One row of a prompt token and sampled ones; the reference is the old policy."""
    tokens = len(advantages) + 1

    def padded(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor([[0.0, *values]])

    acts_NT = torch.tensor([[False, *[True] * len(advantages)]])
    return TrajectoryBatch(
        input_ids_NT=torch.ones(1, tokens, dtype=torch.int64),
        lengths_N=torch.tensor([tokens]),
        action_mask_NT=acts_NT,
        segment_ids_NT=acts_NT.long() - 1,
        behavior_logprobs_NT=padded(behavior),
        old_logprobs_NT=padded(old),
        ref_logprobs_NT=padded(old),
        advantages_NT=padded(advantages),
        policy_version=0,
    )


def fit(module: Scripted, monitor: KLMonitor, epochs: int = 1, ckpt_path: Path | None = None) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=[monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def logged(trainer: Trainer) -> dict[str, float]:
    prefix = "train/kl_monitor/"
    return {n.removeprefix(prefix): float(v) for n, v in trainer.callback_metrics.items() if n.startswith(prefix)}


def test_estimates_by_hand() -> None:
    # log ratios −0.01, −0.03, +0.02
    batch = row([-1.0, 1.0, -1.0], behavior=[-0.9, -2.2, -3.3], old=[-1.0, -2.0, -3.0])
    found = logged(fit(Scripted((batch, [-1.01, -2.03, -2.98])), KLMonitor()))
    assert found == {
        # behavior − new: 0.11 − 0.17 − 0.32 = −0.38, over 3
        "sampler": pytest.approx(-0.126667, abs=1e-5),
        # behavior − old: 0.1 − 0.2 − 0.3 = −0.4, over 3
        "mismatch": pytest.approx(-0.133333, abs=1e-5),
    }


def test_every_token_of_an_epoch_counts_once() -> None:
    one = row([1.0], behavior=[-1.0], old=[-1.0])
    three = row([1.0] * 3, behavior=[-1.0] * 3, old=[-1.0] * 3)
    module = Scripted((one, [-1.4]), (three, [-1.0, -1.0, -1.2]))
    # (0.4 + 0 + 0 + 0.2)/4
    assert logged(fit(module, KLMonitor()))["sampler"] == pytest.approx(0.15, abs=1e-5)


def test_a_step_that_was_none_is_passed_over() -> None:
    assert logged(fit(Scripted(None), KLMonitor())) == {}


def test_a_reference_that_is_not_the_start_is_refused() -> None:
    batch = row([1.0, 1.0], behavior=[-1.0, -1.0], old=[-1.0, -1.0])
    other = replace(batch, ref_logprobs_NT=torch.tensor([[0.0, -1.0, -1.01]]))
    with pytest.raises(ArlError, match=r"differ by 0\.01 nats at a token, so the reference is not the start"):
        fit(Scripted((other, [-1.0, -1.0])), KLMonitor())
    fit(Scripted((other, [-1.0, -1.0])), KLMonitor(start_tolerance=0.02))
    fit(Scripted((batch, [-1.0, -1.0]), (other, [-1.0, -1.0])), KLMonitor())  # later it may


@pytest.mark.parametrize(("limit", "epochs"), [(0.1, 1), (0.2, 3), (None, 3)])
def test_a_run_that_leaves_its_reference_too_far_behind_stops(limit: float | None, epochs: int) -> None:
    module = Scripted((row([1.0], behavior=[-1.0], old=[-1.0]), [-1.5]))
    module.kl = 0.15
    assert fit(module, KLMonitor(max_reference_kl=limit), epochs=3).current_epoch == epochs


@pytest.mark.parametrize(("split", "ratio"), [((0.3, 0.2), 1.5), ((0.3, 0.0), None), (None, None)])
def test_the_split_of_the_kl_is_a_ratio_where_it_exists(split: tuple[float, float] | None, ratio: float | None) -> None:
    module = Scripted(None)
    module.split = split
    found = logged(fit(module, KLMonitor()))
    assert found == ({} if ratio is None else {"sinking_ratio": pytest.approx(ratio)})


def test_the_coefficient_follows_the_kl_of_the_epochs() -> None:
    module = Scripted(None)
    module.kl = 0.12
    trainer = fit(module, KLMonitor(control=KLControl(target=0.1, gain=0.5)), epochs=2)
    assert module.objective.kl.coefficient == pytest.approx(0.605)  # 0.5 · 1.1 · 1.1
    assert logged(trainer) == {"coefficient": pytest.approx(0.605)}


def test_without_control_the_coefficient_is_left_alone() -> None:
    module = Scripted(None)
    module.kl = 9.0
    assert logged(fit(module, KLMonitor())) == {}
    assert module.objective.kl.coefficient == 0.5


def test_a_resumed_run_goes_on_with_the_coefficient_it_had(tmp_path: Path) -> None:
    def made() -> tuple[Scripted, KLMonitor]:
        module = Scripted(None)
        module.kl = 0.12
        return module, KLMonitor(control=KLControl(target=0.1))

    module, monitor = made()
    fit(module, monitor, epochs=2).save_checkpoint(tmp_path / "last.ckpt")
    fresh, resumed = made()
    fit(fresh, resumed, epochs=3, ckpt_path=tmp_path / "last.ckpt")
    whole, uninterrupted = made()
    fit(whole, uninterrupted, epochs=3)
    assert resumed.state_dict() == uninterrupted.state_dict()
    assert fresh.objective.kl.coefficient == whole.objective.kl.coefficient == pytest.approx(0.6655)  # 0.5 · 1.1³


def test_control_without_a_kl_is_refused_when_the_fit_begins() -> None:
    module = Scripted(None)
    module.objective.kl = None
    with pytest.raises(ArlError, match=r"KLMonitor\.control finds no KL"):
        fit(module, KLMonitor(control=KLControl(target=0.1)))
