from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from arl_lightning.modules.tiny_model import CHARACTERS, SPECIAL_TOKENS, TinyModel, build_tokenizer
from arl_lightning.types import ArlError

WORDS = ["######", "\n#", "<action>", "</action>", "up", "Invalid action.", "upward", "√√"]
TOKENIZER = build_tokenizer(WORDS, max_context=128)


def small(words: Sequence[str] = WORDS, seed: int = 0) -> TinyModel:
    return TinyModel(words=words, hidden_size=16, layers=2, heads=2, mlp_size=24, max_context=128, seed=seed)


@given(st.lists(st.sampled_from([*CHARACTERS, *WORDS, *SPECIAL_TOKENS, "user", "assistant"])).map("".join))
def test_every_text_of_its_characters_decodes_back_exactly(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.unk_token_id not in ids or "<|unk|>" in text
    assert TOKENIZER.decode(ids) == text


def test_the_longest_word_is_taken_and_the_rest_are_characters() -> None:
    ids = TOKENIZER.encode("upward up\n######u_√√√<action>", add_special_tokens=False)
    assert TOKENIZER.convert_ids_to_tokens(ids) == [
        *("upward", " ", "up", "\n#", "#", "#", "#", "#", "#", "u", "_", "√√", "√", "<action>"),
    ]


def test_a_character_outside_is_unknown() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode("aé", add_special_tokens=False)) == ["a", "<|unk|>"]


def test_the_template_writes_chatml() -> None:
    conversation = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "<think>t</think>a"},
        {"role": "user", "content": "v"},
    ]
    assert TOKENIZER.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\n<think>t</think>a<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_default_size_is_known() -> None:
    model, tokenizer = TinyModel().load()
    # 4 special, 3 roles, newline, 95 printable ASCII, √
    assert len(tokenizer) == 104
    # 3 layers × (4·64² attention + 3·64·192 MLP + 2·64 and 2·16 norms) + 64 last norm + 64·104 tied embedding
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * 53_408 + 64 + 6_656
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


def test_special_tokens_padding_and_end_are_set() -> None:
    model, tokenizer = small().load()
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    assert tokenizer.padding_side == "left"
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 128
    assert model.generation_config is not None
    assert (model.generation_config.pad_token_id, model.generation_config.eos_token_id) == (0, 2)
    assert (model.config.pad_token_id, model.config.eos_token_id, model.config.bos_token_id) == (0, 2, None)


def test_a_saved_folder_gives_equal_logits_and_token_ids(tmp_path: Path) -> None:
    model, tokenizer = small().load()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    other_model = AutoModelForCausalLM.from_pretrained(tmp_path)
    other_tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    text = "<|im_start|>user\n######\n#P√_#<|im_end|>\n<|im_start|>assistant\n<action>up</action>  ."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert other_tokenizer.encode(text, add_special_tokens=False) == ids
    assert other_tokenizer.decode(ids) == text
    assert other_tokenizer.chat_template == tokenizer.chat_template
    assert other_tokenizer.padding_side == "left"
    assert other_tokenizer.all_special_tokens == tokenizer.all_special_tokens
    assert other_model.generation_config.eos_token_id == tokenizer.eos_token_id
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([ids])).logits, other_model(torch.tensor([ids])).logits)


def test_weights_depend_on_the_seed_only_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = small(seed=3).load()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = small(seed=3).load()[0], small(seed=4).load()[0]
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_weights_are_float32_whatever_the_default_dtype() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        model, _ = small().load()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    expected = small().load()[0].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_impossible_sizes_and_words_are_refused() -> None:
    with pytest.raises(ArlError, match="hidden_size=20, layers=3, heads=4"):
        TinyModel(hidden_size=20)
    with pytest.raises(ArlError, match="layers=0"):
        TinyModel(layers=0)
    with pytest.raises(ArlError, match="'' cannot be a word"):
        TinyModel(words=[""])
    with pytest.raises(ArlError, match="cannot be a word"):
        TinyModel(words=["a<|im_end|>"])


def test_words_may_be_tokens_with_a_blank_before_them_too() -> None:
    model = TinyModel(words=["up", "go to", "<action>"], leading_blanks=True)
    assert model.words == ("up", "go to", "<action>", " up", " go to")
