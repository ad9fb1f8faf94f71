"""The language model that acts: when it stops, and how probable its tokens are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from arl_lightning.functional.logprobs import linear_logprobs, token_logprobs
from arl_lightning.modules.adapters import is_adapted, save_adapter
from arl_lightning.modules.onednn_linear import linear
from arl_lightning.types import ArlError, TokenBatch

_SENTINEL = "\x00arl\x00"


class ModelSource(Protocol):
    """Where a model and its tokenizer come from."""

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A causal LM with all weights in place, and its tokenizer with a chat template."""
        ...


class Policy(nn.Module):
    """A causal LM with its tokenizer, read at action positions only.

    Args:
        model: the causal LM.
        tokenizer: its tokenizer; must carry a chat template.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        if not tokenizer.chat_template:
            raise ArlError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template: set tokenizer.chat_template"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        self.model = model
        self.tokenizer = tokenizer
        self.stop_token_ids = find_stop_token_ids(model, tokenizer)
        self._check_head()

    @property
    def max_context(self) -> int:
        """Positions that the model can attend over."""
        return int(self.model.config.get_text_config().max_position_embeddings)

    def logprobs(self, batch: TokenBatch, *, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies at action positions, both `[N, T]` float32 (nats), 0 elsewhere.

        Rows are padded on the right, so a causal model needs no attention mask: no real token can see padding.
        """
        hidden_NTH = self._hidden(batch.input_ids_NT)
        acts_NT = batch.action_mask_NT[:, 1:]
        positions = (hidden_NTH[:, :-1][acts_NT], batch.input_ids_NT[:, 1:][acts_NT])
        options: Any = {"temperature": batch.temperature, "entropy_grad": entropy_grad}
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if type(head) is nn.Linear:  # a quantised or adapted one is a Linear too, and more than its weight
            logprobs_A, entropies_A = linear_logprobs(
                *positions, head.weight, head.bias, softcap=self._softcap, **options
            )
        else:
            logprobs_A, entropies_A = token_logprobs(*positions, self.logits, **options)
        zeros_NT = torch.zeros(batch.input_ids_NT.shape, dtype=torch.float32, device=hidden_NTH.device)
        return (
            zeros_NT.masked_scatter(batch.action_mask_NT, logprobs_A),
            zeros_NT.masked_scatter(batch.action_mask_NT, entropies_A),
        )

    def save(self, folder: Path) -> None:
        """Leaves tokenizer and model in `folder` in Hugging Face format; of an adapted model, the adapter in peft's."""
        if is_adapted(self.model):
            save_adapter(self.model, folder)  # type: ignore[arg-type]  # peft's
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _hidden(self, input_ids_NT: Tensor) -> Tensor:
        decoder = self.model.get_decoder()  # type: ignore[no-untyped-call]
        hidden_NTH: Tensor = decoder(input_ids=input_ids_NT, use_cache=False).last_hidden_state
        return hidden_NTH

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Logits `[A, V]` of last hidden states, in float32 also under autocast and with weights of lower precision.

        Rounded to bfloat16 they would err by hundredths of a nat a token, as much as the whole band of a sequence clip.
        """
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        with torch.autocast(hidden_AH.device.type, enabled=False):
            if isinstance(head, nn.Linear):
                bias = None if head.bias is None else head.bias.float()
                logits_AV: Tensor = linear(hidden_AH.float(), head.weight.float(), bias)
            else:
                logits_AV = head(hidden_AH).float()
        return logits_AV if self._softcap is None else self._softcap * torch.tanh(logits_AV / self._softcap)

    @property
    def _softcap(self) -> float | None:
        return getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Refuses models whose logits are more than head(hidden): their log-probs would be silently wrong."""
        ids = torch.arange(4, device=self.model.device)[None] % self.model.config.get_text_config().vocab_size
        whole = self.model(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self._hidden(ids))
        if not torch.allclose(whole, ours, rtol=1e-2, atol=1e-2):
            raise ArlError(
                f"{type(self.model).__name__} scales its logits in a way that this package does not know "
                f"(largest difference {float((whole - ours).abs().max()):.3g}): please report the model's name"
            )


def find_stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Union of the stop tokens of generation config, tokenizer and the chat template's turn terminator.

    A missed one would count every answer as cut.
    """
    found: set[int] = set()
    for candidate in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(candidate if isinstance(candidate, Iterable) else [candidate] if candidate is not None else [])
    dialogue: list[dict[str, Any]] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _SENTINEL}]
    rendered = str(tokenizer.apply_chat_template(dialogue, tokenize=False))
    tail = rendered.rpartition(_SENTINEL)[2].lstrip()
    terminator = tokenizer.encode(tail, add_special_tokens=False)[:1]
    # `all_special_ids` would not do: it leaves out turn marks that no special-token attribute names
    found.update(token for token in terminator if token in tokenizer.added_tokens_decoder)
    if not found:
        raise ArlError(f"no stop token is known for {tokenizer.name_or_path!r}: set eos_token in its tokenizer config")
    return frozenset(found)
