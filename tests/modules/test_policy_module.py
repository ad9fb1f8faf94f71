"""Training with own steps: what is trained, saved, refused, clipped and skipped."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.utils.data import DataLoader

from arl_lightning.modules.behavior_cloning import BehaviorCloningModule
from arl_lightning.modules.policy_module import PolicyModule, check_same_weights
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import ArlError, TokenBatch

SGD = partial(torch.optim.SGD, lr=0.1)
EMBEDDING = "policy.model.model.embed_tokens.weight"


def source(hidden_size: int = 16) -> TinyModel:
    return TinyModel(hidden_size=hidden_size, layers=1, heads=2, mlp_size=24, max_context=32)


def cloning(**changes: Any) -> BehaviorCloningModule:
    return BehaviorCloningModule(**{"policy": source(), "optimizer": SGD, **changes})


def demonstrations(seed: int = 0) -> TokenBatch:
    """Five rows of 4 to 8 tokens; the last tokens of each are the demonstrator's."""
    generator = torch.Generator().manual_seed(seed)
    lengths_N = torch.tensor([4, 8, 5, 7, 6])
    places_NT = torch.arange(8).expand(5, 8)
    acts_NT = (places_NT >= 2) & (places_NT < lengths_N[:, None])
    return TokenBatch(
        input_ids_NT=torch.randint(5, 100, (5, 8), generator=generator),
        lengths_N=lengths_N,
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.arange(5)[:, None], -1),
    )


def loader(batches: list[TokenBatch]) -> DataLoader[TokenBatch]:
    """Lightning takes a bare list for a collection of loaders."""
    return DataLoader(cast(Any, batches), batch_size=None)


def trainer(**changes: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 1, **quiet, **changes})


def fit(module: PolicyModule, batches: list[TokenBatch], **changes: Any) -> Trainer:
    running = trainer(**changes)
    running.fit(module, loader(batches))
    return running


def weights(module: PolicyModule) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.acting.named_parameters()}


def start() -> dict[str, Tensor]:
    module = cloning()
    module.configure_model()
    return weights(module)


def step_of(module: PolicyModule) -> dict[str, Tensor]:
    return {name: weight - start()[name] for name, weight in weights(module).items()}


def norm(step: dict[str, Tensor]) -> float:
    return float(torch.cat([change.flatten() for change in step.values()]).norm())


class PartlyFrozen(BehaviorCloningModule):
    def configure_model(self) -> None:
        super().configure_model()
        self.acting.model.get_input_embeddings().requires_grad_(False)


def test_cloning_makes_the_demonstrations_likelier() -> None:
    module = cloning()
    fit(module, [demonstrations()] * 20)
    acts_NT = demonstrations().action_mask_NT
    before = cloning()
    before.configure_model()
    with torch.no_grad():
        gain_NT = module.acting.logprobs(demonstrations())[0] - before.acting.logprobs(demonstrations())[0]
    assert gain_NT[acts_NT].mean() > 0.05


def test_the_gradient_does_not_depend_on_the_passes() -> None:
    steps = []
    for tokens_per_pass in (1000, 16, 1):  # one pass, some, one a row
        module = cloning(tokens_per_pass=tokens_per_pass, optimizer=partial(torch.optim.SGD, lr=1.0), gradient_clip=1e9)
        fit(module, [demonstrations()])
        steps.append(step_of(module))
    assert norm(steps[0]) > 0.01
    for step in steps[1:]:
        for name, change in step.items():
            torch.testing.assert_close(change, steps[0][name], rtol=0, atol=1e-6)


def test_the_gradient_is_clipped_over_all_weights_together() -> None:
    module = cloning(gradient_clip=0.01, optimizer=partial(torch.optim.SGD, lr=2.0))
    running = fit(module, [demonstrations()])
    assert norm(step_of(module)) == pytest.approx(2.0 * 0.01, rel=1e-3)
    assert running.callback_metrics["train/grad_norm"] > 0.01  # logged as it was before


def test_the_scheduler_advances_once_an_epoch() -> None:
    module = cloning(lr_scheduler=partial(StepLR, step_size=1, gamma=0.5))
    running = fit(module, [demonstrations()] * 3, max_epochs=2)
    assert running.global_step == 6
    assert running.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_nothing_to_train_is_refused() -> None:
    class Frozen(BehaviorCloningModule):
        def configure_model(self) -> None:
            super().configure_model()
            self.acting.requires_grad_(False)

    with pytest.raises(ArlError, match="zero trainable parameters"):
        fit(Frozen(source()), [demonstrations()])


def test_a_first_step_that_changes_no_weight_is_refused() -> None:
    with pytest.raises(ArlError, match="the first optimiser step changed no weight"):
        fit(cloning(optimizer=partial(torch.optim.SGD, lr=0.0)), [demonstrations()])


def test_the_policy_is_reached_only_after_it_is_loaded() -> None:
    with pytest.raises(RuntimeError, match="configure_model"):
        _ = cloning().acting


def test_state_holds_trained_weights_only_and_tied_ones_once() -> None:
    whole, partly = cloning(), PartlyFrozen(source())
    whole.configure_model()
    partly.configure_model()
    assert EMBEDDING in whole.state_dict()
    assert not any("lm_head" in name for name in whole.state_dict())
    assert set(partly.state_dict()) == set(whole.state_dict()) - {EMBEDDING}


def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    adam: dict[str, Any] = {
        "optimizer": partial(torch.optim.AdamW, lr=0.01),
        "lr_scheduler": partial(StepLR, step_size=1, gamma=0.5),
    }
    unbroken, first, resumed = (cloning(**adam) for _ in range(3))
    fit(unbroken, [demonstrations()] * 2, max_epochs=3)
    fit(first, [demonstrations()] * 2, max_epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    trainer(max_epochs=3).fit(resumed, loader([demonstrations()] * 2), ckpt_path=str(tmp_path / "one.ckpt"))
    for name, weight in weights(unbroken).items():
        assert torch.equal(weights(resumed)[name], weight)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    fit(cloning(), [demonstrations()]).save_checkpoint(path)
    with pytest.raises(ArlError, match=r"another model: '.*' is \[104, 16\] there and \[104, 32\] here"):
        trainer().fit(cloning(policy=source(hidden_size=32)), loader([demonstrations()]), ckpt_path=str(path))
    with pytest.raises(ArlError, match=rf"it also trained '{EMBEDDING}', which is absent or frozen here"):
        trainer().fit(PartlyFrozen(source()), loader([demonstrations()]), ckpt_path=str(path))


def test_missing_weights_are_named() -> None:
    one = {"a": torch.zeros(2)}
    check_same_weights(one, one)
    with pytest.raises(ArlError, match="it has no weight 'a'"):
        check_same_weights({}, one)


def test_the_export_is_what_was_trained(tmp_path: Path) -> None:
    module = cloning()
    fit(module, [demonstrations()])
    module.export(tmp_path)
    again = cloning()
    again.configure_model()
    again.acting.model = type(module.acting.model).from_pretrained(tmp_path)
    for name, weight in weights(module).items():
        assert torch.equal(weights(again)[name], weight)


class Gloomy(BehaviorCloningModule):
    """A loss that is not a number, while its gradient is one."""

    def _negative_loglikelihood(self, batch: TokenBatch) -> tuple[Tensor, int]:
        loss, count = super()._negative_loglikelihood(batch)
        return loss + torch.nan, count


def test_a_loss_that_is_not_finite_moves_neither_weights_nor_optimiser() -> None:
    module = Gloomy(source(), partial(torch.optim.AdamW, lr=0.1), max_skipped_steps=3)
    running = fit(module, [demonstrations()] * 2)
    assert (module.skipped_steps, running.global_step) == (2, 0)
    assert running.callback_metrics["train/skipped_steps"] == 2
    assert not running.optimizers[0].state
    for name, weight in weights(module).items():
        assert torch.equal(weight, start()[name])


def test_the_count_of_skipped_steps_survives_a_resume(tmp_path: Path) -> None:
    fit(Gloomy(source(), SGD), [demonstrations()] * 2).save_checkpoint(tmp_path / "two.ckpt")
    running = trainer(max_epochs=2)
    with pytest.raises(ArlError, match="3 optimiser steps in a row had a non-finite gradient or loss"):
        running.fit(Gloomy(source(), SGD), loader([demonstrations()] * 2), ckpt_path=str(tmp_path / "two.ckpt"))
    assert running.fit_loop.epoch_loop.batch_progress.current.ready == 1  # two before, the third at once
    assert running.current_epoch == 1


def test_a_roll_back_ends_the_count() -> None:
    module = Gloomy(source(), SGD)
    fit(module, [demonstrations()] * 2)
    module.on_load_checkpoint({"state_dict": module.state_dict(), "skipped_steps": 0})  # as RollBack does
    assert module.skipped_steps == 0


def test_float16_with_loss_scaling_is_refused() -> None:
    module = cloning()
    plugin = SimpleNamespace(scaler=object())
    module._trainer = cast(Any, SimpleNamespace(precision_plugin=plugin))
    with pytest.raises(ArlError, match="bf16-mixed or 32-true"):
        module.on_fit_start()


def test_the_schedule_is_the_command_lines_and_its_progress_the_checkpoints(tmp_path: Path) -> None:
    first = cloning(lr_scheduler=partial(LinearLR, start_factor=1.0, end_factor=0.5, total_iters=2))
    fit(first, [demonstrations()]).save_checkpoint(tmp_path / "one.ckpt")
    longer = cloning(lr_scheduler=partial(LinearLR, start_factor=1.0, end_factor=0.5, total_iters=10))
    running = trainer(max_epochs=2)
    running.fit(longer, loader([demonstrations()]), ckpt_path=str(tmp_path / "one.ckpt"))
    scheduler = cast(LinearLR, running.lr_scheduler_configs[0].scheduler)
    assert (scheduler.total_iters, scheduler.last_epoch) == (10, 2)
