"""Training of an adapter on a quantised base: optimisers, checkpoints and exports hold what is trained, to the bit."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.optim import adamw
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.behavior_cloning import BehaviorCloningModule
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.trainer import ArlTrainer
from arl_lightning.types import ArlError, TokenBatch

# r 64 on a width of 64 makes matrices of 4096 numbers, the smallest whose states bitsandbytes holds in 8 bits
LORA = LoRA(r=64)
OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "AdamW8bit": adamw.AdamW8bit,
    "PagedAdamW": adamw.PagedAdamW,
    "PagedAdamW8bit": adamw.PagedAdamW8bit,
}


def cloning(folder: Path, optimizer: Any = torch.optim.AdamW, **options: Any) -> BehaviorCloningModule:
    source = PretrainedModel(str(folder), **{"quantization": NF4(), "lora": LORA, **options})
    module = BehaviorCloningModule(source, partial(optimizer, lr=1e-3), partial(StepLR, step_size=1, gamma=0.5))
    module.configure_model()
    return module


def fit(module: BehaviorCloningModule, rows: TokenBatch, epochs: int, ckpt_path: Path | None = None) -> Trainer:
    trainer = ArlTrainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader: DataLoader[TokenBatch] = DataLoader([rows] * 2, batch_size=None)  # type: ignore[arg-type]
    trainer.fit(module, loader, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return trainer


def loss(module: BehaviorCloningModule, rows: TokenBatch) -> float:
    with torch.no_grad():
        return -float(module.acting.eval().logprobs(rows)[0].sum())


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_learns_and_resumes_to_the_bit(
    name: str, tiny_folder: Path, rows: TokenBatch, tmp_path: Path
) -> None:
    unbroken, first, resumed = (cloning(tiny_folder, OPTIMIZERS[name]) for _ in range(3))
    before = loss(unbroken, rows)
    trainer = fit(unbroken, rows, epochs=4)
    assert loss(unbroken, rows) < 0.9 * before
    states = {
        value.dtype
        for state in trainer.optimizers[0].state.values()
        for key, value in state.items()
        if key in ("state1", "exp_avg")
    }
    assert states == {torch.uint8 if "8bit" in name else torch.float32}
    fit(first, rows, epochs=2).save_checkpoint(tmp_path / "two.ckpt")
    fit(resumed, rows, epochs=4, ckpt_path=tmp_path / "two.ckpt")
    for weight, value in unbroken.state_dict().items():
        assert torch.equal(resumed.state_dict()[weight], value), weight


def test_a_checkpoint_holds_the_adapter_alone(tiny_folder: Path, rows: TokenBatch, tmp_path: Path) -> None:
    module = cloning(tiny_folder)
    fit(module, rows, epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)["state_dict"]
    assert len(saved) == 2 * 7 * 2  # layers, linear layers in each, A and B
    assert all("lora_" in name and value.dtype == torch.float32 for name, value in saved.items())


def test_an_adapters_checkpoint_does_not_fit_another_rank_or_a_whole_model(
    tiny_folder: Path, rows: TokenBatch, tmp_path: Path
) -> None:
    fit(cloning(tiny_folder), rows, epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    for options in ({"lora": LoRA(r=8)}, {"lora": None, "quantization": None}):
        with pytest.raises(ArlError, match="this checkpoint is of another model"):
            fit(cloning(tiny_folder, **options), rows, epochs=2, ckpt_path=tmp_path / "one.ckpt")


def test_a_quantised_model_without_adapter_has_nothing_to_train(tiny_folder: Path, rows: TokenBatch) -> None:
    with pytest.raises(ArlError, match="zero trainable parameters"):
        fit(cloning(tiny_folder, lora=None), rows, epochs=1)


def test_cloning_may_have_dropout(tiny_folder: Path, rows: TokenBatch) -> None:
    module = cloning(tiny_folder, lora=LoRA(r=8, dropout=0.5))
    module.acting.train()
    with torch.no_grad():
        for name, weight in module.acting.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.1)
        noisy = [module.acting.logprobs(rows)[0] for _ in range(2)]
    assert not torch.equal(*noisy)
    assert fit(module, rows, epochs=1).global_step == 2


def test_exports_say_what_they_are(
    tiny_folder: Path, rows: TokenBatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = cloning(tiny_folder)
    trainer = fit(module, rows, epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    exporting = ArlTrainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
    again = cloning(tiny_folder)
    exporting.export(again, str(tmp_path / "adapter"), ckpt_path=str(tmp_path / "one.ckpt"))
    exporting.export(again, str(tmp_path / "merged"), merge=True, ckpt_path=str(tmp_path / "one.ckpt"))
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"} <= names(
        tmp_path / "adapter"
    )
    assert {"config.json", "model.safetensors", "README.md", "drift.json", "tokenizer.json"} <= names(
        tmp_path / "merged"
    )
    assert "config.json" not in names(tmp_path / "adapter")
    drift = json.loads((tmp_path / "merged" / "drift.json").read_text())
    assert drift.keys() == {"mean_kl_nats", "max_kl_nats", "positions", "dtype"}
    printed = capsys.readouterr().out
    assert f"merged in float32: KL to the adapter on its base is {drift['mean_kl_nats']:.2g} nats a token" in printed
    assert loss(module, rows) == pytest.approx(
        loss(cloning(tmp_path / "merged", quantization=None, lora=None), rows), rel=1e-3
    )
    with pytest.raises(ArlError, match="holds an adapter, and a model beside it"):
        exporting.export(again, str(tmp_path / "adapter"), merge=True)
    with pytest.raises(ArlError, match="holds a model, and an adapter beside it"):
        exporting.export(again, str(tmp_path / "merged"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
