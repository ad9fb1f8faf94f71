"""Layers that multiply by oneDNN: they are linear layers in all but the last bits."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from arl_lightning.modules import onednn_linear
from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.onednn_linear import OneDnnLinear, use_onednn
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.tiny_model import TinyModel
from arl_lightning.types import TokenBatch


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where oneDNN is faster; where it is not, the other library multiplies in the same layers."""
    monkeypatch.setattr(onednn_linear, "ONEDNN_IS_FASTER", True)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer whose queries (256²) and MLP are large, and whose head (some hundred words) is small."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    model, tokenizer = TinyModel(hidden_size=256, layers=1, heads=4, mlp_size=256, max_context=64).load()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def plain(folder: Path, **options: object) -> Policy:
    """The same policy with the layers that transformers made."""
    policy = Policy(*PretrainedModel(str(folder), **options).load())  # type: ignore[arg-type]
    for module in policy.modules():
        if type(module) is OneDnnLinear:
            module.__class__ = nn.Linear  # type: ignore[assignment]
    return policy


def pair(bias: bool = False, trained: bool = True) -> tuple[nn.Linear, OneDnnLinear]:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(256, 192, bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 16)
    fast = copy.deepcopy(layer.requires_grad_(trained))
    fast.__class__ = OneDnnLinear
    return layer, fast  # type: ignore[return-value]


def gradients(policy: Policy, rows: TokenBatch) -> dict[str, Tensor]:
    policy.zero_grad()
    torch.autograd.backward(policy.logprobs(rows)[0].sum())
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(256,), (1, 256), (7, 256), (2, 3, 256)])
def test_values_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...], bias: bool, trained: bool) -> None:
    found = []
    for layer in pair(bias, trained):
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        outputs = layer(inputs)
        leaves = [inputs, *(p for p in layer.parameters() if p.requires_grad)]
        expanded = torch.autograd.grad(outputs.sum(), leaves, retain_graph=True)  # from a single 1
        found.append([outputs, *expanded, *torch.autograd.grad(outputs.square().sum(), leaves)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(layer(inputs), outputs)


def test_a_frozen_weight_keeps_no_input() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    for trained, shapes in ((True, [(2, 256), (192, 256)]), (False, [(192, 256)])):
        _, layer = pair(trained=trained)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            layer(torch.ones(2, 256, requires_grad=True))
        assert [tuple(tensor.shape) for tensor in kept] == shapes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_and_autocast_are_left_to_torch(dtype: torch.dtype) -> None:
    layer, fast = pair(bias=True)
    inputs = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert fast(inputs).dtype == torch.bfloat16
        assert torch.equal(fast(inputs), layer(inputs))
    assert torch.equal(fast.to(dtype)(inputs.to(dtype)), layer.to(dtype)(inputs.to(dtype)))


def test_which_library_multiplies_depends_on_the_weight_alone() -> None:
    tiny, _ = TinyModel(hidden_size=64, layers=1, heads=2, mlp_size=128, max_context=64).load()
    use_onednn(tiny)
    assert not any(type(module) is OneDnnLinear for module in tiny.modules())  # 64 · 128 weights
    wide, _ = TinyModel(hidden_size=256, layers=1, heads=4, mlp_size=256, max_context=64).load()
    use_onednn(wide)
    fast = {name.split(".")[-1] for name, module in wide.named_modules() if type(module) is OneDnnLinear}
    assert {"q_proj", "o_proj", "up_proj", "gate_proj", "down_proj"} <= fast
    head = wide.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert type(head) is nn.Linear  # whose weight the log-probs read themselves


def test_elsewhere_no_layer_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "ONEDNN_IS_FASTER", False)
    wide, _ = TinyModel(hidden_size=256, layers=1, heads=4, mlp_size=256, max_context=64).load()
    use_onednn(wide)
    assert not any(type(module) is OneDnnLinear for module in wide.modules())


@pytest.mark.parametrize("options", [{}, {"lora": LoRA(r=4)}, {"gradient_checkpointing": True}], ids=str)
def test_a_policy_scores_and_learns_as_with_plain_layers(
    wide_folder: Path, rows: TokenBatch, options: dict[str, object]
) -> None:
    fast, slow = Policy(*PretrainedModel(str(wide_folder), **options).load()), plain(wide_folder, **options)  # type: ignore[arg-type]
    assert sum(type(module) is OneDnnLinear for module in fast.modules()) >= 5
    for policy in (fast, slow):
        policy.train()
    torch.testing.assert_close(fast.logprobs(rows), slow.logprobs(rows), rtol=0, atol=1e-5)
    found, expected = gradients(fast, rows), gradients(slow, rows)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_copies_and_saved_files_are_those_of_plain_layers(wide_folder: Path, rows: TokenBatch, tmp_path: Path) -> None:
    policy = Policy(*PretrainedModel(str(wide_folder)).load())
    twin = copy.deepcopy(policy)
    assert torch.equal(twin.logprobs(rows)[0], policy.logprobs(rows)[0])
    policy.save(tmp_path)
    saved, given = (load_file(folder / "model.safetensors") for folder in (tmp_path, wide_folder))
    assert saved.keys() == given.keys()
    assert all(torch.equal(saved[name], given[name]) for name in given)
    assert (tmp_path / "config.json").read_text() == (wide_folder / "config.json").read_text()
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any(type(module) is OneDnnLinear for module in reloaded.modules())
