"""What `pretrained` may name, in which precisions it loads, and what gradient checkpointing must not change."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PreTrainedConfig, Qwen3Config

from arl_lightning.modules.adapters import LoRA
from arl_lightning.modules.agent_module import AgentModule
from arl_lightning.modules.aggregations import TokenMean
from arl_lightning.modules.estimators import GroupNormalized
from arl_lightning.modules.objective import Objective
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.quantization import NF4
from arl_lightning.modules.surrogates import TokenClip
from arl_lightning.modules.tiny_model import build_tokenizer
from arl_lightning.types import ArlError, Decoding, TokenBatch

Load = Callable[..., Policy]
Gradient = Callable[[Policy], dict[str, Tensor]]
SIZES: dict[str, Any] = {
    "vocab_size": 104,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def saved(config: PreTrainedConfig, folder: Path) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)  # type: ignore[no-untyped-call]
    build_tokenizer((), max_context=64).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("lora", [None, LoRA(r=8)], ids=["whole", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_is_that_of_the_base_and_adapters_are_float32(
    dtype: Literal["float32", "bfloat16", "float16"], lora: LoRA | None, load: Load, rows: TokenBatch
) -> None:
    policy = load(dtype=dtype, lora=lora)
    for name, weight in policy.model.named_parameters():
        assert weight.dtype == (torch.float32 if "lora_" in name else getattr(torch, dtype)), name
    assert not policy.model.training
    logprobs_NT, _ = policy.logprobs(rows)
    assert logprobs_NT.dtype == torch.float32
    assert logprobs_NT.isfinite().all()


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES, tie_word_embeddings=True),
        LlamaConfig(**SIZES),
        Gemma2Config(**SIZES, final_logit_softcapping=2.0),
    ],
    ids=lambda config: config.model_type,
)
def test_architectures_load_in_4_bits_with_an_adapter(
    config: PreTrainedConfig, tmp_path: Path, gradient: Gradient
) -> None:
    source = PretrainedModel(
        saved(config, tmp_path), "bfloat16", "eager", quantization=NF4(), lora=LoRA(r=8), gradient_checkpointing=True
    )
    policy = Policy(*source.load())
    found = gradient(policy)
    assert len(found) == 2 * 7 * 2  # layers, linear layers in each, A and B
    assert all("lora_" in name for name in found)
    assert all(bool(value.any()) and bool(value.isfinite().all()) for name, value in found.items() if "lora_B" in name)


class Counted:
    """Counts the forward passes of the model's feed-forward blocks, which recomputation runs again."""

    def __init__(self, policy: Policy) -> None:
        self.calls = 0
        for name, module in policy.model.named_modules():
            if name.endswith("mlp"):
                module.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, inputs: Any) -> None:
        self.calls += 1


OPTIONS: dict[str, dict[str, Any]] = {
    "whole": {},
    "lora": {"lora": LoRA(r=8)},
    "qlora": {"quantization": NF4(compute_dtype="float32"), "lora": LoRA(r=8)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_gradient_checkpointing_changes_no_gradient(
    name: str, load: Load, teach: Callable[[nn.Module], None], gradient: Gradient
) -> None:
    found, calls = [], []
    for on in (False, True):
        policy = load(**OPTIONS[name], gradient_checkpointing=on)
        teach(policy.model)
        counted = Counted(policy)
        found.append(gradient(policy))
        calls.append(counted.calls)
    assert calls == [2, 4]  # each of the two layers once, and once more
    assert found[0].keys() == found[1].keys()
    for weight, value in found[0].items():
        torch.testing.assert_close(found[1][weight], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradient_checkpointing_leaves_sampling_its_cache(name: str, load: Load, tiny_folder: Path) -> None:
    prompts, seeds, decoding = [[5, 6, 7], [8, 9]], [1, 2], Decoding(max_new_tokens=6)
    completions = []
    for on in (False, True):
        source = PretrainedModel(str(tiny_folder), **OPTIONS[name], gradient_checkpointing=on)
        module = AgentModule(source, Objective(TokenClip(), TokenMean(), GroupNormalized()))
        module.configure_model()
        module.acting.train()
        lengths: list[int] = []
        module.acting.model.get_input_embeddings().register_forward_hook(
            lambda _module, inputs, _output, lengths=lengths: lengths.append(inputs[0].shape[1])
        )
        completions.append(module.sampler(decoding, grows=True).sample([0, 1], prompts, seeds))
        assert module.acting.training
        # the probe; two tokens of one prompt, one of the other, then only what is new
        assert lengths == [2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert completions[0] == completions[1]


def test_a_gguf_file_is_not_quantised_again(tiny_folder: Path) -> None:
    with pytest.raises(ArlError, match=r"'m\.gguf' cannot be quantised again: `arl export` it to a folder first"):
        PretrainedModel(str(tiny_folder), quantization=NF4(), gguf_file="m.gguf")


def test_a_missing_gguf_file_is_one_sentence(tiny_folder: Path) -> None:
    with pytest.raises(ArlError, match=r"no model at '.*': give a folder that holds m\.gguf"):
        PretrainedModel(str(tiny_folder), gguf_file="m.gguf").load()


def header(architecture: str) -> bytes:
    """A GGUF file without tensors that only names its architecture."""
    key, value = b"general.architecture", architecture.encode()
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry


@pytest.mark.parametrize(
    ("content", "reason"), [(b"GG", "does not start with the GGUF magic"), (b"GGUF", "requires a buffer")]
)
def test_a_damaged_gguf_file_is_one_sentence(content: bytes, reason: str, tmp_path: Path) -> None:
    build_tokenizer((), max_context=64).save_pretrained(tmp_path)
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ArlError, match=f"could not be loaded: .*{reason}") as caught:
        PretrainedModel(str(tmp_path), gguf_file="m.gguf").load()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("gguf") is not None, reason="gguf is installed")
def test_a_missing_gguf_package_is_one_sentence(tmp_path: Path) -> None:
    build_tokenizer((), max_context=64).save_pretrained(tmp_path)
    (tmp_path / "m.gguf").write_bytes(header("gpt2"))  # which transformers reads by that package only
    with pytest.raises(ArlError, match=r"could not be loaded: m\.gguf needs a further package: pip install gguf"):
        PretrainedModel(str(tmp_path), gguf_file="m.gguf").load()


def test_an_attention_that_the_model_lacks_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=r"has no attention 'sdpa': set model\.policy\.attention to eager"):
        PretrainedModel(saved(Gemma2Config(**SIZES), tmp_path)).load()


def test_a_gguf_file_is_unpacked_and_can_be_saved(tmp_path: Path, rows: TokenBatch) -> None:
    gguf = pytest.importorskip("gguf")
    config = LlamaConfig(**{**SIZES, "num_key_value_heads": 2, "head_dim": 32})
    original = Policy(*PretrainedModel(saved(config, tmp_path / "original")).load())
    (tmp_path / "packed").mkdir()
    original.tokenizer.save_pretrained(tmp_path / "packed")
    write_gguf(gguf, original.model, tmp_path / "packed" / "m.gguf")
    policy = Policy(*PretrainedModel(str(tmp_path / "packed"), gguf_file="m.gguf").load())
    policy.save(tmp_path / "unpacked")
    again = Policy(*PretrainedModel(str(tmp_path / "unpacked")).load())
    adapted = Policy(*PretrainedModel(str(tmp_path / "packed"), gguf_file="m.gguf", lora=LoRA(r=8)).load())
    with torch.no_grad():
        expected_NT, *others = (p.logprobs(rows)[0] for p in (original, policy, again, adapted))
    for logprobs_NT in others:
        torch.testing.assert_close(logprobs_NT, expected_NT, rtol=0, atol=1e-5)


def write_gguf(gguf: Any, model: Any, file: Path) -> None:
    """The weights of a Llama model, unquantised, under the names and in the order that GGUF gives them."""
    config = model.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # rotary halves are interleaved there
            heads = config.num_attention_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
