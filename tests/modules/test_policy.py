"""The policy: when it stops, how probable its tokens are, and which models are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from arl_lightning.modules.policy import Policy, find_stop_token_ids
from arl_lightning.modules.pretrained import PretrainedModel
from arl_lightning.modules.tiny_model import TinyModel, build_tokenizer
from arl_lightning.testing import tiny_policy
from arl_lightning.types import ArlError, TokenBatch

SIZES: dict[str, Any] = {
    "vocab_size": 104,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 48,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
ROWS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19]]
ACTIONS = [[2, 3, 6], [1], [1, 4]]  # positions sampled by the policy, last tokens included
PAD, UNKNOWN, TURN_END = 0, 3, 2


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    return model


def policy_of(config: PreTrainedConfig) -> Policy:
    return Policy(random_model(config), build_tokenizer((), max_context=48))


def padded_batch(temperature: float = 1.0) -> TokenBatch:
    mask_NT = torch.zeros(3, 7, dtype=torch.bool)
    for row, places in enumerate(ACTIONS):
        mask_NT[row, places] = True
    return TokenBatch(
        input_ids_NT=torch.tensor([row + [PAD] * (7 - len(row)) for row in ROWS]),
        lengths_N=torch.tensor([7, 3, 5]),
        action_mask_NT=mask_NT,
        segment_ids_NT=torch.where(mask_NT, torch.arange(3)[:, None], -1),
        temperature=temperature,
    )


@torch.no_grad()
def from_full_logits(policy: Policy, temperature: float) -> tuple[Tensor, Tensor]:
    """The same by the plainest way: each row alone, unpadded, all logits."""
    logprobs_NT, entropies_NT = torch.zeros(3, 7), torch.zeros(3, 7)
    for row, (ids, places) in enumerate(zip(ROWS, ACTIONS, strict=True)):
        logits_TV = policy.model(input_ids=torch.tensor([ids])).logits[0] / temperature
        for place in places:
            logprobs_V = logits_TV[place - 1].double().log_softmax(-1)
            logprobs_NT[row, place] = logprobs_V[ids[place]]
            entropies_NT[row, place] = -(logprobs_V.exp() * logprobs_V).sum()
    return logprobs_NT, entropies_NT


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES, tie_word_embeddings=True),
        LlamaConfig(**SIZES),
        Gemma2Config(**SIZES, final_logit_softcapping=2.0),
    ],
    ids=lambda config: config.model_type,
)
def test_log_probs_and_entropies_are_those_of_full_logits(config: PreTrainedConfig, temperature: float) -> None:
    policy = policy_of(config)
    with torch.no_grad():
        logprobs_NT, entropies_NT = policy.logprobs(padded_batch(temperature))
    expected_logprobs_NT, expected_entropies_NT = from_full_logits(policy, temperature)
    torch.testing.assert_close(logprobs_NT, expected_logprobs_NT, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropies_NT, expected_entropies_NT, rtol=0, atol=1e-5)
    acts_NT = padded_batch().action_mask_NT
    assert (logprobs_NT[acts_NT] < 0).all()
    assert (logprobs_NT[~acts_NT] == 0).all()


def test_the_soft_cap_bites_in_this_test() -> None:
    # or else the Gemma case above would pass without it
    logits = random_model(Gemma2Config(**SIZES, final_logit_softcapping=None))(torch.tensor(ROWS[:1])).logits
    assert logits.abs().max() > 4


def test_what_stands_in_the_padding_does_not_matter() -> None:
    policy, batch = tiny_policy(), padded_batch()
    with torch.no_grad():
        before_NT, _ = policy.logprobs(batch)
        batch.input_ids_NT[1, 3:] = 50
        after_NT, _ = policy.logprobs(batch)
    assert torch.equal(before_NT, after_NT)


def test_log_probs_of_a_bfloat16_model_are_float32() -> None:
    model, tokenizer = TinyModel(hidden_size=16, layers=1, heads=2, mlp_size=24, max_context=48).load()
    logprobs_NT, entropies_NT = Policy(model.bfloat16(), tokenizer).logprobs(padded_batch())
    assert (logprobs_NT.dtype, entropies_NT.dtype) == (torch.float32, torch.float32)
    assert logprobs_NT.requires_grad
    assert not entropies_NT.requires_grad


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**SIZES, logits_scaling=8.0), CohereConfig(**SIZES, logit_scale=0.0625)],
    ids=lambda config: config.model_type,
)
def test_an_unknown_scaling_of_logits_is_refused(config: PreTrainedConfig) -> None:
    with pytest.raises(ArlError, match="scales its logits"):
        policy_of(config)


def test_stop_tokens_are_the_union_of_generation_config_tokenizer_and_template() -> None:
    model, tokenizer = random_model(LlamaConfig(**SIZES)), build_tokenizer((), max_context=48)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [40, 41]
    tokenizer.eos_token = "<|unk|>"  # so that <|im_end|> is known from the template alone
    assert find_stop_token_ids(model, tokenizer) == {40, 41, UNKNOWN, TURN_END}
    model.generation_config.eos_token_id = 42
    assert find_stop_token_ids(model, tokenizer) == {42, UNKNOWN, TURN_END}


def test_ordinary_text_after_the_answer_is_no_stop_token() -> None:
    model, tokenizer = random_model(LlamaConfig(**SIZES)), build_tokenizer((), max_context=48)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + '.\\n' }}{% endfor %}"
    assert find_stop_token_ids(model, tokenizer) == {TURN_END}


def test_a_model_that_would_never_stop_is_refused() -> None:
    model, tokenizer = random_model(LlamaConfig(**SIZES)), build_tokenizer((), max_context=48)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = None
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"
    with pytest.raises(ArlError, match="no stop token is known for 'TinyModel'"):
        find_stop_token_ids(model, tokenizer)


def test_a_tokenizer_without_chat_template_is_refused() -> None:
    model, tokenizer = random_model(LlamaConfig(**SIZES)), build_tokenizer((), max_context=48)
    tokenizer.chat_template = None
    with pytest.raises(ArlError, match="'TinyModel' has no chat template"):
        Policy(model, tokenizer)


def test_padding_is_the_end_token_where_the_tokenizer_has_none() -> None:
    model, tokenizer = random_model(LlamaConfig(**SIZES)), build_tokenizer((), max_context=48)
    tokenizer.pad_token = None
    assert Policy(model, tokenizer).tokenizer.pad_token_id == TURN_END


def test_the_context_is_that_of_the_model() -> None:
    assert policy_of(LlamaConfig(**SIZES)).max_context == 48


def test_a_saved_policy_comes_back_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    policy = tiny_policy()
    policy.save(tmp_path)
    again = Policy(*PretrainedModel(str(tmp_path)).load())
    with torch.no_grad():
        assert torch.equal(again.logprobs(padded_batch())[0], policy.logprobs(padded_batch())[0])
    assert again.stop_token_ids == policy.stop_token_ids
    halved, _ = PretrainedModel(str(tmp_path), dtype="bfloat16").load()
    assert {parameter.dtype for parameter in halved.parameters()} == {torch.bfloat16}


def test_a_folder_without_a_model_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=r"no model at '.*': give a folder that holds config\.json"):
        PretrainedModel(str(tmp_path)).load()
    with pytest.raises(ArlError, match="no model at 'runs/clone/model'"):
        PretrainedModel("runs/clone/model").load()


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", b"garbage"), ("model.safetensors", b"cut"), ("model.safetensors", None)]
)
def test_a_damaged_folder_is_one_sentence(tmp_path: Path, name: str, content: bytes | None) -> None:
    tiny_policy().save(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ArlError, match=r"the model '.*' could not be loaded: .+") as caught:
        PretrainedModel(str(tmp_path)).load()
    assert "\n" not in str(caught.value)


def test_logits_are_float32_under_autocast_and_with_bfloat16_weights() -> None:
    policy = Policy(*TinyModel(hidden_size=16, layers=1, heads=2, mlp_size=24, max_context=64).load())
    hidden_AH = 20 * torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    exact_AV = hidden_AH @ policy.model.get_output_embeddings().weight.T  # type: ignore[no-untyped-call]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed_AV = policy.logits(hidden_AH)
    torch.testing.assert_close(mixed_AV, exact_AV, rtol=0, atol=1e-5)
    policy.model.bfloat16()
    rounded_AV = policy.logits(hidden_AH.bfloat16())
    assert rounded_AV.dtype == torch.float32
    # the product of two bfloat16 numbers needs more than 8 bits: rounding it again would show
    assert (rounded_AV != rounded_AV.bfloat16().float()).any()
