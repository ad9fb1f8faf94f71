"""A random language model over words, and its tokenizer: what the speed benchmarks load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|> ' + m['role'] + ' ' + m['content'] + ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant' }}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unk|>")


def save_model(folder: Path, vocabulary: int, hidden: int = 256, layers: int = 4, context: int = 4096) -> int:
    """A random Qwen3 model that never draws a special token and its tokenizer of words; gives the number of weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    roles = ("system", "user", "assistant")
    names = (*SPECIAL, *roles, *(f"w{i}" for i in range(vocabulary - len(SPECIAL) - len(roles))))
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=SPECIAL[3]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        unk_token=SPECIAL[3],
        extra_special_tokens=[SPECIAL[1]],
        padding_side="left",
        model_max_length=context,
        chat_template=CHAT_TEMPLATE,
    )
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(hidden // 128, 1),
        head_dim=64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=5 / hidden,  # 0.02 at 256; wider layers add no more to the residual stream
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).float()
    forbid_special(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def forbid_special(model: Any, tokenizer: Any) -> None:
    """No special token is ever drawn from the model: all hidden states share a direction, which theirs opposes."""
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 2.0  # the other entries have a spread of 0.02
    special = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    ids = torch.randint(len(SPECIAL), len(embedding), (4, 128))
    ids[:, 0] = special[1]  # as a prompt begins
    shared = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, 1:].mean(dim=(0, 1))
    embedding[special] = -60 * shared / shared.square().sum()
    logits = model(input_ids=ids, use_cache=False).logits[:, 1:]
    gap = (logits.logsumexp(dim=-1) - logits[..., special].amax(dim=-1)).min()
    assert gap > 15, f"a special token has probability exp(-{gap:.1f})"  # 2,000 draws of exp(-15) = 3e-7
