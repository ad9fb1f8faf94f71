"""The 4-bit base: exact gradients, bytes that never change, and nothing cast up behind one's back."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from arl_lightning.modules.adapters import LoRA, save_adapter
from arl_lightning.modules.behavior_cloning import BehaviorCloningModule
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4, dequantized
from arl_lightning.modules.tiny_model import build_tokenizer
from arl_lightning.types import ArlError, Decoding, TokenBatch

Load = Callable[..., Policy]
Gradient = Callable[[Policy], dict[str, Tensor]]
EXACT = NF4(compute_dtype="float32")


def base_hash(model: nn.Module) -> str:
    """Of every byte of the base: weights, their scales, and the scales of those."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if "lora_" not in name:
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def packable(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if hasattr(layer, "support_avx512bf16_for_cpu")]


def sample(policy: Policy) -> None:
    Sampler(policy, Decoding(max_new_tokens=8)).sample([0, 1], [[5, 6, 7], [8, 9]], [1, 2])


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient[name].flatten() for name in sorted(gradient)])


@pytest.mark.parametrize("double", [True, False])
def test_qlora_has_the_gradient_of_the_unpacked_model(
    double: bool, load: Load, teach: Callable[[nn.Module], None], gradient: Gradient, tmp_path: Path
) -> None:
    quantization = NF4(double_quantization=double, compute_dtype="float32")
    policy = load(quantization=quantization, lora=LoRA(r=8))
    teach(policy.model)
    save_adapter(policy.model, tmp_path)  # type: ignore[arg-type]
    dense = PeftModel.from_pretrained(
        dequantized(load(quantization=quantization).model), str(tmp_path), is_trainable=True
    )
    ours, theirs = gradient(policy), gradient(Policy(dense, policy.tokenizer))  # type: ignore[arg-type]
    assert ours.keys() == theirs.keys()
    assert len(ours) == 2 * 7 * 2  # layers, linear layers in each, A and B
    assert flat(theirs).norm() > 1
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-5, atol=1e-5)
    assert float(torch.cosine_similarity(flat(ours), flat(theirs), dim=0)) > 1 - 1e-6


def test_a_bfloat16_product_keeps_the_gradients_direction(
    load: Load, teach: Callable[[nn.Module], None], gradient: Gradient
) -> None:
    found = []
    for quantization in (EXACT, NF4()):
        policy = load(quantization=quantization, lora=LoRA(r=8))
        teach(policy.model)
        found.append(flat(gradient(policy)))
    cosine = float(torch.cosine_similarity(found[0], found[1], dim=0))
    assert 0.999 < cosine < 1 - 1e-6


def test_a_rollout_changes_no_gradient(load: Load, teach: Callable[[nn.Module], None], gradient: Gradient) -> None:
    policy = load(quantization=EXACT, lora=LoRA(r=8))
    teach(policy.model)
    before = gradient(policy)
    sample(policy)
    after = gradient(policy)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.filterwarnings("ignore")
def test_it_would_where_the_processor_packs_weights(
    load: Load, teach: Callable[[nn.Module], None], gradient: Gradient
) -> None:
    # the fault against which `settle` guards: should this begin to fail, the guard may go
    functional = pytest.importorskip("bitsandbytes.functional")
    if not functional.has_avx512bf16():
        pytest.skip("this processor packs nothing")
    policy = load(quantization=EXACT, lora=LoRA(r=8))
    teach(policy.model)
    before = flat(gradient(policy))
    for layer in packable(policy.model):
        layer.support_avx512bf16_for_cpu = True  # type: ignore[assignment]
    sample(policy)
    assert float(torch.cosine_similarity(flat(gradient(policy)), before, dim=0)) < 0.9


def test_no_byte_of_the_base_ever_changes(tiny_folder: Path, rows: TokenBatch, tmp_path: Path) -> None:
    source = PretrainedModel(str(tiny_folder), quantization=NF4(), lora=LoRA(r=8))
    module = BehaviorCloningModule(source, partial(torch.optim.AdamW, lr=1e-2))
    module.configure_model()
    start = base_hash(module.acting.model)
    sample(module.acting)
    assert base_hash(module.acting.model) == start
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False)
    trainer.fit(module, DataLoader([rows], batch_size=None))  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    module.export(tmp_path / "adapter")
    module.export_merged(tmp_path / "merged")
    assert base_hash(module.acting.model) == start
    assert all(weight.abs().max() > 0 for name, weight in module.acting.named_parameters() if "lora_B" in name)
    again = PretrainedModel(str(tiny_folder), quantization=NF4()).load()[0]
    assert base_hash(again) == base_hash(module.acting.model)


def test_packing_is_off_on_every_layer(load: Load) -> None:
    layers = packable(load(quantization=NF4(), lora=LoRA(r=8)).model)
    assert len(layers) == 2 * 7
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)


def test_nothing_is_cast_up_and_only_the_adapter_is_trained(load: Load) -> None:
    policy = load(dtype="bfloat16", quantization=NF4(), lora=LoRA(r=8))
    dtypes = {name: weight.dtype for name, weight in policy.model.named_parameters()}
    adapters = {name for name in dtypes if "lora_" in name}
    assert {dtypes[name] for name in adapters} == {torch.float32}
    quantised = {name for name, dtype in dtypes.items() if dtype == torch.uint8}
    assert len(quantised) == 2 * 7
    assert {dtypes[name] for name in dtypes.keys() - adapters - quantised} == {torch.bfloat16}
    assert {name for name, weight in policy.model.named_parameters() if weight.requires_grad} == adapters


def test_without_an_adapter_a_quantised_model_is_frozen_whole(load: Load) -> None:
    assert not any(weight.requires_grad for weight in load(quantization=NF4()).parameters())


@pytest.mark.parametrize("skipped", [(), ("q_proj",)])
def test_the_head_stays_plain_whatever_is_skipped(skipped: tuple[str, ...], load: Load) -> None:
    model = load(quantization=NF4(skip_modules=skipped)).model
    plain = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    assert plain == {"lm_head", *(f"model.layers.{k}.self_attn.{name}" for k in (0, 1) for name in skipped)}


def test_the_blocks_hold_what_they_should(load: Load, tiny_folder: Path) -> None:
    # 4-bit normal floats have steps of at most 0.304 (from -1 to -0.696) of the block's largest weight; half a step
    # is the largest error, and rounding the scales to 8 bits adds a little
    dense = dequantized(load(quantization=NF4(double_quantization=False)).model)
    original: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    name = "model.layers.0.mlp.up_proj.weight"
    ours, theirs = (dict(model.named_parameters())[name].detach().view(-1, 64) for model in (dense, original))
    assert 0.02 < float(((ours - theirs).abs() / theirs.abs().amax(1, keepdim=True)).max()) <= 0.153


def test_biases_are_cast_when_loaded_not_at_the_first_product(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=104, max_position_embeddings=64)  # type: ignore[arg-type]
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    build_tokenizer((), max_context=64).save_pretrained(tmp_path)
    model, tokenizer = PretrainedModel(str(tmp_path), quantization=NF4(compute_dtype="float16")).load()
    before = base_hash(model)
    sample(Policy(model, tokenizer))
    assert base_hash(model) == before
    assert model.get_parameter("model.layers.0.self_attn.q_proj.bias").dtype == torch.float16


def test_a_missing_bitsandbytes_is_one_sentence(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(ArlError, match=r"4-bit weights need bitsandbytes, .* set model\.policy\.quantization to null"):
        load(quantization=NF4())
