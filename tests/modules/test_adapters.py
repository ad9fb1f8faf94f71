"""Adapters: fresh ones change nothing, learnt ones come back to the bit, and what cannot work is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from arl_lightning.modules.adapters import (
    LoRA,
    adapter_layers,
    is_identity,
    refuse_dropout,
    refuse_mixture,
    save_adapter,
)
from arl_lightning.modules.generation import Sampler
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import ArlError, Decoding, TokenBatch

Load = Callable[..., Policy]
Teach = Callable[[nn.Module], None]
BASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "nf4": {"dtype": "bfloat16", "quantization": NF4()},
}
VARIANTS = {"lora": LoRA(r=8), "rslora": LoRA(r=8, rslora=True), "dora": LoRA(r=8, dora=True)}

each_base = pytest.mark.parametrize("base", BASES)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@torch.no_grad()
def logits(model: Any, rows: TokenBatch) -> Tensor:
    answer: Tensor = model.eval()(input_ids=rows.input_ids_NT).logits
    return answer


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if "lora_" in name}


@each_base
@pytest.mark.parametrize("variant", ["lora", "rslora"])
def test_a_fresh_adapter_changes_no_bit(base: str, variant: str, load: Load, rows: TokenBatch, teach: Teach) -> None:
    adapted, plain = load(**BASES[base], lora=VARIANTS[variant]).model, load(**BASES[base]).model
    assert is_identity(adapted)
    assert torch.equal(logits(adapted, rows), logits(plain, rows))
    teach(adapted)
    assert not is_identity(adapted)
    assert not torch.allclose(logits(adapted, rows), logits(plain, rows), atol=0.1)


def test_a_fresh_dora_is_no_identity(load: Load) -> None:
    # its norms are computed from the weight and divided by again: equal but for the last bits
    assert not is_identity(load(lora=LoRA(r=8, dora=True)).model)


@each_base
@each_variant
def test_an_adapter_comes_back_to_plain_peft_without_any_difference(
    base: str, variant: str, load: Load, tiny_folder: Path, rows: TokenBatch, teach: Teach, tmp_path: Path
) -> None:
    policy = load(**BASES[base], lora=VARIANTS[variant])
    teach(policy.model)
    policy.save(tmp_path)
    quantization = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    plain = AutoModelForCausalLM.from_pretrained(
        tiny_folder,
        dtype=torch.float32 if base == "float32" else torch.bfloat16,
        quantization_config=quantization if base == "nf4" else None,
    )
    for layer in plain.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            vars(layer)["support_avx512bf16_for_cpu"] = False
    again = PeftModel.from_pretrained(plain, str(tmp_path))
    assert float((logits(again, rows) - logits(policy.model, rows)).abs().max()) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.chat_template == policy.tokenizer.chat_template


@each_base
@each_variant
def test_an_adapter_folder_is_a_policy_that_goes_on(
    base: str, variant: str, load: Load, rows: TokenBatch, teach: Teach, tmp_path: Path
) -> None:
    policy = load(**BASES[base], lora=VARIANTS[variant])
    teach(policy.model)
    policy.save(tmp_path)
    for options in ({}, {"lora": LoRA(r=2, rslora=True)}):  # rank and variant are the folder's
        again = load(pretrained=str(tmp_path), **BASES[base], **options)
        assert torch.equal(logits(again.model, rows), logits(policy.model, rows))
        trained = {name for name, weight in again.model.named_parameters() if weight.requires_grad}
        assert trained == adapter_weights(policy.model).keys()
    other_way = load(**BASES[base], lora=LoRA(adapter=str(tmp_path)))
    assert torch.equal(logits(other_way.model, rows), logits(policy.model, rows))


@each_variant
@pytest.mark.parametrize("base", ["float32", "nf4"])
def test_sampling_is_by_the_adapter_that_is_trained(
    base: str, variant: str, load: Load, rows: TokenBatch, teach: Teach
) -> None:
    options = {} if base == "float32" else {"quantization": NF4(compute_dtype="float32")}
    policy = load(**options, lora=VARIANTS[variant])
    teach(policy.model)
    prompt, decoding = rows.input_ids_NT[0, :4].tolist(), Decoding(max_new_tokens=6)
    (completion,) = Sampler(policy, decoding).sample([0], [prompt], [0])
    ids_NT = torch.tensor([[*prompt, *completion.token_ids]])
    with torch.no_grad():
        expected_TV = policy.model(input_ids=ids_NT).logits[0].log_softmax(-1)
    expected = [expected_TV[3 + k, token] for k, token in enumerate(completion.token_ids)]
    torch.testing.assert_close(torch.tensor(completion.logprobs), torch.stack(expected), rtol=0, atol=1e-4)
    assert not any(layer.merged for layer in adapter_layers(policy.model))


@each_variant
def test_variants_are_those_of_peft(variant: str, load: Load) -> None:
    (layer, *_) = adapter_layers(load(lora=VARIANTS[variant]).model)
    # alpha 32: 32 / 8 = 4, for rsLoRA 32 / √8
    assert layer.scaling["default"] == pytest.approx(32 / math.sqrt(8) if variant == "rslora" else 4.0)
    assert len(layer.lora_magnitude_vector) == (variant == "dora")
    assert layer.lora_A["default"].weight.shape == (8, 64)


@each_variant
def test_each_variant_learns(variant: str, load: Load, gradient: Callable[[Policy], dict[str, Tensor]]) -> None:
    policy = load(quantization=NF4(), lora=VARIANTS[variant])
    found = gradient(policy)
    assert found.keys() == {f"model.{name}" for name in adapter_weights(policy.model)}
    assert all(bool(value.any()) for name, value in found.items() if ".lora_A." not in name)  # A's is 0 while B is


def test_targets_may_be_named(load: Load) -> None:
    policy = load(lora=LoRA(target_modules=["q_proj", "v_proj"]))
    assert {name.split(".")[-4] for name in adapter_weights(policy.model)} == {"q_proj", "v_proj"}


def test_the_seed_alone_decides_a_fresh_adapter(load: Load) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = adapter_weights(load(lora=LoRA(seed=3)).model)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = adapter_weights(load(lora=LoRA(seed=3)).model)
    other = adapter_weights(load(lora=LoRA(seed=4)).model)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "lora_A" in name)


def test_dropout_is_refused_by_name(load: Load, tmp_path: Path) -> None:
    refuse_dropout(load().model)
    refuse_dropout(load(lora=LoRA()).model)
    cloned = load(lora=LoRA(dropout=0.1))
    with pytest.raises(ArlError, match=r"a dropout of 0\.1, .* set model\.policy\.lora\.dropout to 0"):
        refuse_dropout(cloned.model)
    cloned.save(tmp_path)
    with pytest.raises(ArlError, match=r"a dropout of 0\.1"):
        refuse_dropout(load(pretrained=str(tmp_path)).model)
    refuse_dropout(load(pretrained=str(tmp_path), lora=LoRA()).model)  # the remedy


@pytest.mark.parametrize("options", [{"r": 0}, {"alpha": 0}, {"dropout": 1.0}, {"dropout": -0.1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ArlError, match="r and alpha must be at least 1"):
        LoRA(**options)


def test_an_unknown_target_is_one_sentence(load: Load) -> None:
    with pytest.raises(ArlError, match=r"the base and model\.policy\.lora do not fit: .*nowhere") as caught:
        load(lora=LoRA(target_modules=["nowhere"]))
    assert "\n" not in str(caught.value)


def test_an_adapter_of_another_model_is_refused(load: Load, tmp_path: Path) -> None:
    wider, longer = tmp_path / "wider", tmp_path / "longer"
    for folder, size, layers in ((wider, 128, 2), (longer, 64, 3)):
        model, tokenizer = TinyModel(hidden_size=size, layers=layers, heads=2, mlp_size=128, max_context=64).load()
        model.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
        Policy(*PretrainedModel(str(folder / "base"), lora=LoRA(r=8)).load()).save(folder / "adapter")
    for folder, reason in ((wider, "size mismatch"), (longer, "no place for")):
        with pytest.raises(ArlError, match=rf"the adapter '.*' and model\.policy\.lora do not fit: .*{reason}"):
            load(lora=LoRA(adapter=str(folder / "adapter")))


def test_weights_that_lack_in_the_file_are_missed(load: Load, tmp_path: Path) -> None:
    load(lora=LoRA(r=8)).save(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(sorted(weights)[0])
    save_file(weights, file)
    with pytest.raises(ArlError, match="missing adapter keys"):
        load(pretrained=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"base_model_name_or_path": None}, "does not name its base"),
        ({"base_model_name_or_path": "/no/base"}, "was trained on '/no/base', which is not there: give a folder"),
        ({"peft_type": "IA3"}, "is of type .*IA3: only LORA can be trained here"),
        ({"peft_type": "NOTHING"}, r"adapter_config\.json in '.*' cannot be read"),
    ],
)
def test_a_damaged_adapter_folder_is_one_sentence(
    change: dict[str, Any], sentence: str, load: Load, tmp_path: Path
) -> None:
    load(lora=LoRA(r=8)).save(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ArlError, match=sentence):
        load(pretrained=str(tmp_path))


def test_a_missing_adapter_and_two_adapters_are_one_sentence(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=r"no adapter at '.*': give a folder that holds adapter_config\.json"):
        load(lora=LoRA(adapter=str(tmp_path / "none")))
    load(lora=LoRA(r=8)).save(tmp_path)
    with pytest.raises(ArlError, match=r"is the adapter '.*' and model\.policy\.lora\.adapter is another"):
        load(pretrained=str(tmp_path), lora=LoRA(adapter=str(tmp_path)))


def test_a_model_and_an_adapter_never_lie_in_one_folder(load: Load, tmp_path: Path) -> None:
    refuse_mixture(tmp_path, adapter=True)
    save_adapter(load(lora=LoRA(r=8)).model, tmp_path)  # type: ignore[arg-type]
    refuse_mixture(tmp_path, adapter=True)
    with pytest.raises(ArlError, match="holds an adapter, and a model beside it"):
        refuse_mixture(tmp_path, adapter=False)
    (tmp_path / "adapter_config.json").rename(tmp_path / "config.json")
    with pytest.raises(ArlError, match="holds a model, and an adapter beside it"):
        refuse_mixture(tmp_path, adapter=True)
