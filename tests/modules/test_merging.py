"""The merged model is the adapter's function in plain weights, and what rounding cost is said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl_lightning.modules.adapters import LoRA, freeze_copy
from arl_lightning.modules.merging import PROMPTS, measure_drift, merged
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.quantization import NF4
from arl_lightning.types import ArlError, TokenBatch

Load = Callable[..., Policy]
Teach = Callable[[nn.Module], None]
EXACT = NF4(compute_dtype="float32")
# the largest mean KL in nats: float32 rounds at 1e-7, float16 at 5e-4, bfloat16 at 4e-3 of a number, and KL is
# quadratic in that; these models' logits are large (8 times fresh weights)
BASES: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({}, 1e-11),
    "float16": ({"dtype": "float16"}, 2e-5),
    "bfloat16": ({"dtype": "bfloat16"}, 1e-3),
    "nf4 of float32": ({"quantization": EXACT}, 1e-11),
    "nf4 of bfloat16": ({"dtype": "bfloat16", "quantization": NF4()}, 1e-3),
}
VARIANTS = {"lora": LoRA(r=8), "rslora": LoRA(r=8, rslora=True), "dora": LoRA(r=8, dora=True)}


def digest(model: nn.Module) -> str:
    state = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(v.contiguous().view(torch.uint8).numpy().tobytes() for _, v in state)).hexdigest()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_merged_model_is_the_adapters_but_for_rounding(
    base: str, variant: str, load: Load, teach: Teach, rows: TokenBatch, tmp_path: Path
) -> None:
    options, largest = BASES[base]
    policy = load(**options, lora=VARIANTS[variant])
    teach(policy.model)
    before = digest(policy.model)
    plain = merged(policy.model)
    assert digest(policy.model) == before
    drift = measure_drift(policy.model, plain, policy.tokenizer)
    assert drift.mean_kl_nats <= largest
    assert drift.max_kl_nats >= drift.mean_kl_nats
    assert drift.dtype == options.get("dtype", "float32")
    assert {weight.dtype for weight in plain.parameters()} == {getattr(torch, drift.dtype)}
    # what was written is what was measured, to plain transformers
    plain.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert not hasattr(again.config, "quantization_config")
    with torch.no_grad():
        reloaded, written = (model(rows.input_ids_NT).logits for model in (again, plain))
    assert float((reloaded - written).abs().max()) == 0


def test_the_adapter_goes_into_the_weights_on_which_it_learnt(
    load: Load, teach: Teach, tiny_folder: Path, tmp_path: Path
) -> None:
    # merged into the weights from which the base was quantised, the model drifts by the error of 4 bits
    policy = load(quantization=EXACT, lora=LoRA(r=8))
    teach(policy.model)
    policy.save(tmp_path)
    original = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    elsewhere = PeftModel.from_pretrained(original, str(tmp_path)).merge_and_unload().eval()
    ours = measure_drift(policy.model, merged(policy.model), policy.tokenizer)
    theirs = measure_drift(policy.model, elsewhere, policy.tokenizer)
    assert theirs.mean_kl_nats > 0.01 > 1e-6 > ours.mean_kl_nats


def test_drift_is_the_mean_and_maximum_of_kl(load: Load, teach: Teach) -> None:
    policy = load()
    other = load(lora=LoRA(r=8))
    assert measure_drift(policy.model, other.model, policy.tokenizer).max_kl_nats == 0
    teach(other.model)
    drift = measure_drift(policy.model, other.model, policy.tokenizer)
    kl = []
    with torch.no_grad():
        for prompt in PROMPTS:
            text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
            ids = torch.tensor([policy.tokenizer.encode(text)])
            ours, theirs = (torch.distributions.Categorical(logits=p.model(ids).logits[0]) for p in (policy, other))
            kl.append(torch.distributions.kl_divergence(ours, theirs))
    assert drift.positions == len(torch.cat(kl))
    assert drift.mean_kl_nats == pytest.approx(float(torch.cat(kl).mean()), rel=1e-4)
    assert drift.max_kl_nats == pytest.approx(float(torch.cat(kl).max()), rel=1e-4)


def test_the_references_adapter_is_not_merged(load: Load, teach: Teach) -> None:
    policy = load(lora=LoRA(r=8))
    teach(policy.model)
    expected = merged(policy.model).state_dict()
    freeze_copy(policy.model)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if ".reference." in name:
                weight.add_(1.0)
    found = merged(policy.model).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_without_an_adapter_there_is_nothing_to_merge(load: Load) -> None:
    with pytest.raises(ArlError, match="no adapter to merge: export it without --merge"):
        merged(load().model)


def test_the_tokenizer_of_a_policy_is_saved_beside(load: Load, tmp_path: Path) -> None:
    policy = load(lora=LoRA(r=8))
    policy.save(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.encode("room 1") == policy.tokenizer.encode("room 1")
