"""What a plan says a model takes is what the loaded model takes; numbers of the small model are counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.optim.adamw import AdamW8bit
from torch import Tensor, nn
from torch.nn import Parameter
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.blueprint import sketch
from arl_lightning.modules.memory_plan import MemoryPlan, Workload, optimizer_bytes, plan_memory
from arl_lightning.modules.muon_adamw import MuonAdamW
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.prefixes import bytes_per_token
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import ArlError

Load = Callable[..., Policy]
CPU = torch.device("cpu")
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
MATRICES = 2 * (4 * 64 * 64 + 3 * 64 * 128)  # layers x (queries, keys, values, output; gate, up, down)
ADAPTER = 2 * 4 * (4 * (64 + 64) + 3 * (64 + 128))  # layers x r x (inputs + outputs)


def plan(source: Any, optimizer: Any = ADAMW, **load: Any) -> MemoryPlan:
    workload = Workload(**{"episodes": 4, "conversation_tokens": 64, "tokens_per_pass": 128, **load})
    return plan_memory(source, workload, optimizer, CPU)


def items(found: MemoryPlan) -> dict[str, int]:
    return {item.name: item.bytes for item in (*found.always, *found.play, *found.update)}


def held(tensor: Any) -> int:
    """Bytes of a parameter, with its scales when it is packed."""
    own = tensor.numel() * tensor.element_size()
    if (state := getattr(tensor, "quant_state", None)) is None:
        return int(own)
    inner = state.state2
    return int(own + sum(held(t) for t in (state.absmax, *([] if inner is None else [inner.absmax]))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"lora": LoRA(r=4)},
        {"quantization": NF4(), "lora": LoRA(r=4)},
        {"quantization": NF4(double_quantization=False), "dtype": "bfloat16"},
        {"lora": LoRA(r=4, target_modules=["q_proj", "down_proj"], dora=True)},
    ],
)
def test_weights_take_what_the_loaded_model_holds(options: dict[str, Any], tiny_folder: Path, load: Load) -> None:
    found = items(plan(PretrainedModel(str(tiny_folder), **options)))
    model = load(**options).model
    adapter = sum(held(p) for name, p in model.named_parameters() if "lora_" in name)
    base = sum(held(p) for name, p in model.named_parameters() if "lora_" not in name)
    assert found["adapter"] == adapter
    # rotary frequencies are buffers of some hundred bytes
    assert base <= found["base weights"] <= base + 200
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    assert found["gradients"] == trained
    assert found["optimiser"] == 2 * trained


def test_four_bits_take_half_a_byte_and_a_scale() -> None:
    found, plain = (sketch_bytes(q) for q in (NF4(), None))
    # half a byte a weight; a byte for each 64 of them, and 4 for each 256 of those, by layer
    scales = sum(2 * n * (k // 64 + 4 * -(-k // 64 // 256)) for n, k in ((4, 64 * 64), (3, 64 * 128)))
    assert plain - found == 4 * MATRICES - (MATRICES // 2 + scales)


def sketch_bytes(quantization: NF4 | None) -> int:
    blueprint = sketch(TinyModel(hidden_size=64, layers=2, heads=2, mlp_size=128))
    return type(blueprint)(blueprint.model, quantization).base_bytes()


def test_a_plan_needs_the_configuration_alone(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    assert items(plan(PretrainedModel(str(tmp_path)))) == items(plan(PretrainedModel(str(tiny_folder))))
    for file in ("config.json",):
        (tmp_path / file).unlink()
    with pytest.raises(ArlError, match="the configuration of"):
        plan(PretrainedModel(str(tmp_path)))


def test_a_plan_draws_nothing(tiny_folder: Path) -> None:
    before = torch.get_rng_state()
    for source in (PretrainedModel(str(tiny_folder), lora=LoRA()), TinyModel()):
        plan(source)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_adapter_that_has_learnt_is_held_twice(tiny_folder: Path, load: Load, tmp_path: Path) -> None:
    fresh = items(plan(PretrainedModel(str(tiny_folder), lora=LoRA(r=4))))
    assert fresh["adapter"] == 4 * ADAPTER
    assert fresh["reference"] == 0
    load(lora=LoRA(r=4)).save(tmp_path / "adapter")
    for source in (
        PretrainedModel(str(tmp_path / "adapter")),
        PretrainedModel(str(tiny_folder), lora=LoRA(adapter=str(tmp_path / "adapter"))),
    ):
        warm = items(plan(source))
        assert warm["adapter"] == warm["reference"] == 4 * ADAPTER
    whole = items(plan(PretrainedModel(str(tiny_folder))))
    assert whole["reference"] == whole["base weights"]
    assert "reference" not in items(plan(PretrainedModel(str(tiny_folder)), reference=False))


@pytest.mark.parametrize(
    ("optimizer", "bytes_a_number"),
    [
        (ADAMW, 8),
        (partial(torch.optim.SGD, lr=1e-3), 0),
        (partial(torch.optim.SGD, lr=1e-3, momentum=0.9), 4),
        (partial(AdamW8bit, lr=1e-3), 2 + 2 * 4 / 256),  # two bytes and two scales for each 256
    ],
)
def test_an_optimiser_is_measured(optimizer: Any, bytes_a_number: float) -> None:
    with torch.device("meta"):
        trained = {"a.weight": Parameter(torch.empty(1000, 4096)), "norm": Parameter(torch.empty(4096))}
    found = optimizer_bytes(trained, optimizer, CPU)
    assert found == pytest.approx(bytes_a_number * 1001 * 4096, rel=0.02)


def test_kinds_of_parameters_are_told_apart() -> None:
    with torch.device("meta"):
        trained = {"a.weight": Parameter(torch.empty(100, 100)), "embed.weight": Parameter(torch.empty(100, 100))}
    assert optimizer_bytes(trained, MuonAdamW, CPU) == 4 * 10_000 + 8 * 10_000  # one momentum; two of AdamW


def test_keys_and_values_take_what_the_model_remembers(tiny_folder: Path, load: Load) -> None:
    for options in ({}, {"dtype": "bfloat16"}):
        found = plan(PretrainedModel(str(tiny_folder), **options))  # type: ignore[arg-type]
        assert found.token_bytes == bytes_per_token(load(**options).model)
    assert plan(PretrainedModel(str(tiny_folder)), autocast=torch.bfloat16).token_bytes == 2 * 2 * 64 * 2


def test_the_cache_budget_says_how_many_play_at_once(tiny_folder: Path) -> None:
    source = PretrainedModel(str(tiny_folder))
    assert plan(source).episodes_at_once == 4
    # 2 layers x (keys + values) x 64 x 4 byte = 1024 a token, 65,536 a conversation of 64
    two = plan(source, cache_bytes=2.5 * 65_536)
    assert two.episodes_at_once == 2
    assert items(two)["keys and values"] == 2 * 65_536
    assert plan(source, cache_bytes=1.0).episodes_at_once == 1


def saved_bytes(model: nn.Module, ids_NT: Tensor) -> int:
    """What autograd keeps of a real pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.get_decoder()(input_ids=ids_NT, use_cache=False)  # type: ignore[operator]
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    "options", [{}, {"lora": LoRA(r=4)}, {"attention": "eager"}, {"dtype": "bfloat16", "lora": LoRA(r=4)}]
)
def test_a_pass_without_numbers_keeps_what_a_real_one_does(
    options: dict[str, Any], tiny_folder: Path, load: Load
) -> None:
    planned = sketch(PretrainedModel(str(tiny_folder), **options)).kept(2, 64, None)
    model = load(**options).model.train()
    assert planned.everything == pytest.approx(saved_bytes(model, torch.zeros((2, 64), dtype=torch.int64)), rel=0.03)


def test_autocast_keeps_products_in_its_dtype(tiny_folder: Path, load: Load) -> None:
    planned = sketch(PretrainedModel(str(tiny_folder))).kept(2, 64, torch.bfloat16)
    model = load().model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        real = saved_bytes(model, torch.zeros((2, 64), dtype=torch.int64))
    assert planned.everything == pytest.approx(real, rel=0.03)
    assert planned.everything != pytest.approx(saved_bytes(model, torch.zeros((2, 64), dtype=torch.int64)), rel=0.1)


def test_checkpointing_keeps_the_inputs_of_layers_and_one_of_them(tiny_folder: Path) -> None:
    source = PretrainedModel(str(tiny_folder), gradient_checkpointing=True)
    kept = sketch(source).kept(2, 64, None)
    assert kept.layers == 2
    assert kept.stream == 2 * 64 * 64 * 4
    assert items(plan(source))["activations"] == 2 * kept.stream + kept.everything // 2


def test_weights_below_float32_need_a_wide_head_while_tokens_are_drawn(tiny_folder: Path) -> None:
    rows = AutoConfig.from_pretrained(tiny_folder).vocab_size
    assert items(plan(PretrainedModel(str(tiny_folder), dtype="bfloat16")))["float32 head"] == 4 * 64 * rows
    assert items(plan(PretrainedModel(str(tiny_folder))))["float32 head"] == 0


def test_a_model_too_large_does_not_fit(tmp_path: Path) -> None:
    Qwen3Config(hidden_size=65_536, num_hidden_layers=64, intermediate_size=262_144).save_pretrained(tmp_path)
    found = plan(PretrainedModel(str(tmp_path), dtype="bfloat16"))
    assert not found.fits
    # 64 layers of three matrices of 65,536 x 262,144 in two bytes, the least of it
    assert found.always_bytes > 64 * 3 * 65_536 * 262_144 * 2
    assert f"always {found.always_bytes / 1e9:.2f} GB" in found.line()


def test_a_plan_is_read_by_people_and_programs(tiny_folder: Path) -> None:
    found = plan(PretrainedModel(str(tiny_folder)))
    written = json.loads(json.dumps(found.as_dict()))
    assert written["always_bytes"] == sum(written["always"].values())
    assert written["play_bytes"] == written["always_bytes"] + sum(written["play"].values())
    assert found.peak_bytes == max(written["play_bytes"], written["update_bytes"])
    assert found.table().row_count == len(items(found)) + 3


class Unknown:
    """A source that says nothing of its size."""

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        return TinyModel().load()


def test_the_size_of_a_foreign_source_is_not_guessed() -> None:
    with pytest.raises(ArlError, match="the size of Unknown cannot be known before it is loaded"):
        plan(Unknown())
