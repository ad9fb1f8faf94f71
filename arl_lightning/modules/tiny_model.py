"""A Qwen3-architecture model of some hundred thousand parameters that is made, not downloaded."""

from __future__ import annotations

import string
from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from arl_lightning.types import ArlError

PAD, TURN_START, TURN_END, UNKNOWN = SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unk|>")
ROLES = ("system", "user", "assistant")
CHARACTERS = ("\n", " ", *string.digits, *string.ascii_letters, *string.punctuation, "√")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class TinyModel:
    """A float32 causal model with fresh weights, and a lossless tokenizer whose words are chosen.

    Text of the newline, printable ASCII and `√` decodes back exactly; any other character becomes `<|unk|>`. The
    weights depend on the arguments only, and the global random generators are left as they were.

    Args:
        words: strings that are one token each, beside the single characters; the longest that fits is taken.
        leading_blanks: whether each word that begins with a letter or digit is a token with a blank before it, too.
        hidden_size: width of the residual stream, an even multiple of `heads`.
        layers: number of decoder layers.
        heads: number of attention heads, each with keys and values of its own.
        mlp_size: width inside each feed-forward block.
        max_context: tokens that prompt and response may fill together.
        seed: seed of the weights.
    """

    def __init__(
        self,
        words: Sequence[str] = (),
        leading_blanks: bool = False,
        hidden_size: int = 64,
        layers: int = 3,
        heads: int = 4,
        mlp_size: int = 192,
        max_context: int = 2048,
        seed: int = 0,
    ) -> None:
        if min(hidden_size, layers, heads, mlp_size, max_context) < 1 or hidden_size % (2 * heads):
            raise ArlError(
                f"hidden_size={hidden_size}, layers={layers}, heads={heads}, mlp_size={mlp_size}, "
                f"max_context={max_context}: all must be positive and hidden_size a multiple of 2 * heads"
            )
        for word in words:
            if not word or any(special in word for special in SPECIAL_TOKENS):
                raise ArlError(f"{word!r} cannot be a word: words are not empty and hold none of {SPECIAL_TOKENS}")
        blanks = [f" {word}" for word in words if word[0].isalnum()] if leading_blanks else []
        self.words = (*words, *blanks)
        self.hidden_size = hidden_size
        self.layers = layers
        self.heads = heads
        self.mlp_size = mlp_size
        self.max_context = max_context
        self.seed = seed

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model in evaluation mode, as `from_pretrained` would leave it, and its tokenizer."""
        tokenizer = build_tokenizer(self.words, self.max_context)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.mlp_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=self.hidden_size // self.heads,
            max_position_embeddings=self.max_context,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype="float32",
        )
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would reseed CUDA too, which no fork restores here
            torch.default_generator.manual_seed(self.seed)
            # this way, since a bare constructor would draw in the caller's default dtype
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.eval()  # type: ignore[no-untyped-call]
        return model, tokenizer


def build_tokenizer(words: Sequence[str], max_context: int) -> PreTrainedTokenizerFast:
    """A tokenizer that isolates `words`, longest first, and single characters otherwise, with a ChatML template."""
    tokens = tuple(dict.fromkeys((*SPECIAL_TOKENS, *ROLES, *words, *CHARACTERS)))
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    longest_first = sorted({*ROLES, *words}, key=lambda word: (-len(word), word))
    pattern = "|".join([*map(_literal, longest_first), r"[\s\S]"])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        name_or_path="TinyModel",
        pad_token=PAD,
        eos_token=TURN_END,
        unk_token=UNKNOWN,
        extra_special_tokens=[TURN_START],
        padding_side="left",
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _literal(word: str) -> str:
    """A pattern of the tokenizers library's regex engine (not Python's) that matches `word` and nothing else."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in word)
