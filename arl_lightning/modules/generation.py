"""Sampling from a causal LM: each row from its own seed, and no token of a conversation computed twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from arl_lightning.functional.drawing import draw
from arl_lightning.functional.seeding import uniforms
from arl_lightning.modules.prefixes import Prefix, bytes_per_token, lay, lift
from arl_lightning.types import Completion, Decoding

if TYPE_CHECKING:
    from transformers import Cache

    from arl_lightning.modules.policy import Policy

_WORTH_SHARING = 8  # tokens


class Sampler:
    """Draws responses in many conversations, whose keys and values it remembers from turn to turn.

    Completions come from the full distribution that `decoding` describes and nothing else: the model's
    `generation_config` is not consulted. Each row consumes the counter-based stream of its own seed, one number a
    token, so that its draw depends neither on the other rows nor on what is remembered. The weights must not change
    in the sampler's life.

    Args:
        policy: the model.
        decoding: how tokens are drawn.
        budget_bytes: what keys and values may take; at least one conversation always fits.
        tokens_per_pass: rows × tokens of one pass over prompts.
        grows: whether a conversation's next prompt begins with its last one and the response; what is remembered of
            conversations that do not is only what all of them begin with.
        context: the context of every forward, such as autocast.
    """

    def __init__(
        self,
        policy: Policy,
        decoding: Decoding,
        *,
        budget_bytes: float = float("inf"),
        tokens_per_pass: int = 65536,
        grows: bool = True,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.policy = policy
        self.decoding = decoding
        self.budget_bytes = budget_bytes
        self.tokens_per_pass = tokens_per_pass
        self.grows = grows
        self.context = context
        self.peak_bytes = 0
        with context():
            self.token_bytes = bytes_per_token(policy.model)
        self._remembered: dict[int, Prefix] = {}
        self._opening = Prefix()
        self._decoder = policy.model.get_decoder()  # type: ignore[no-untyped-call]

    def admit(self, keys: Sequence[int], lengths: Sequence[int]) -> int:
        """How many of the conversations, from the first on, may be sampled together; what the rest left is forgotten.

        Args:
            keys: names of the conversations, those that shall end first in front.
            lengths: tokens of their prompts.
        """
        asking = set(keys)
        others = sum(len(prefix.token_ids) for key, prefix in self._remembered.items() if key not in asking)
        longest, admitted = 0, 0
        for length in lengths:
            longest = max(longest, length + self.decoding.max_new_tokens)
            if admitted and (others + (admitted + 1) * longest) * self.token_bytes > self.budget_bytes:
                break
            admitted += 1
        self.forget(keys[admitted:])
        return admitted

    def forget(self, keys: Sequence[int]) -> None:
        """Frees what is remembered of these conversations."""
        for key in keys:
            self._remembered.pop(key, None)

    @torch.no_grad()
    def sample(self, keys: Sequence[int], prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Completion]:
        """One response a prompt, in evaluation mode.

        A prompt's tokens are computed but for those that the conversation's memory, or the beginning that all share,
        already holds; a prompt that several rows share is computed once.

        Args:
            keys: names of the conversations.
            prompts: whole prompts, each of at least one token.
            seeds: one a row; draws depend on them and the prompts alone.
        """
        training = self.policy.training
        self.policy.eval()
        try:
            with self.context():
                wholes = [tuple(prompt) for prompt in prompts]
                known = self._read(keys, wholes)
                held = [len(whole) - 1 for whole in wholes]
                cache = lay([known[whole] for whole in wholes], held, spare=self._opening)
                return self._decode(keys, wholes, seeds, cache)
        finally:
            self.policy.train(training)

    def _read(self, keys: Sequence[int], wholes: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Prefix]:
        """Every prompt but its last token, as remembered or computed now."""
        known: dict[tuple[int, ...], Prefix] = {}
        for key, whole in zip(keys, wholes, strict=True):
            own = self._remembered.pop(key, None)
            if own is not None and own.agreement(whole) >= known.get(whole, Prefix()).agreement(whole):
                known[whole] = own
        fresh = [whole for whole in dict.fromkeys(wholes) if whole not in known]
        self._share_opening(fresh)
        known.update((whole, self._opening) for whole in fresh)
        missing = {whole: len(whole) - 1 - min(known[whole].agreement(whole), len(whole) - 1) for whole in known}
        alike: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        for whole, count in missing.items():
            alike[count.bit_length()].append(whole)  # at most twice as many as the fewest are computed for any
        alike.pop(0, None)
        for group in alike.values():
            most = max(missing[whole] for whole in group)
            portion = max(self.tokens_per_pass // most, 1)
            for start in range(0, len(group), portion):
                self._compute(group[start : start + portion], known)
        return known

    def _share_opening(self, wholes: Sequence[tuple[int, ...]]) -> None:
        """Computes once what all fresh prompts begin with, unless the opening of earlier ones serves."""
        if len(wholes) < 2 or self._opening.token_ids:
            return
        count = min(Prefix(wholes[0][:-1]).agreement(whole[:-1]) for whole in wholes)
        if count >= _WORTH_SHARING:
            whole = wholes[0][: count + 1]
            known = {whole: Prefix()}
            self._compute([whole], known)
            self._opening = known[whole]

    def _compute(self, wholes: Sequence[tuple[int, ...]], known: dict[tuple[int, ...], Prefix]) -> None:
        """Replaces what is known of these prompts by all but their last token.

        All rows are fed equally many tokens, some of them again, so that no padding comes to lie between tokens:
        sliding windows are counted in columns.
        """
        ends = [len(whole) - 1 for whole in wholes]
        fed = max(end - min(known[whole].agreement(whole), end) for whole, end in zip(wholes, ends, strict=True))
        held = [max(end - fed, 0) for end in ends]
        cache = lay([known[whole] for whole in wholes], held, spare=self._opening)
        device = self.policy.model.device
        # any token where a row has none: the mask hides it
        ids = [[0] * (fed - end + h) + list(whole[h:end]) for whole, h, end in zip(wholes, held, ends, strict=True)]
        self._forward(torch.tensor(ids, device=device), torch.tensor(ends, device=device), max(held) + fed, cache)
        lifted = lift(
            cache, range(len(wholes)), [whole[:end] for whole, end in zip(wholes, ends, strict=True)], last=True
        )
        known.update(zip(wholes, lifted, strict=True))

    def _decode(
        self, keys: Sequence[int], wholes: Sequence[tuple[int, ...]], seeds: Sequence[int], cache: Cache
    ) -> list[Completion]:
        device = self.policy.model.device
        limit = self.decoding.max_new_tokens
        uniforms_NT = torch.from_numpy(np.stack([uniforms(seed, limit) for seed in seeds])).to(device)
        stop_ids = torch.tensor(sorted(self.policy.stop_token_ids), device=device)
        tokens: list[list[int]] = [[] for _ in wholes]
        logprobs: list[list[float]] = [[] for _ in wholes]
        finished = [False] * len(wholes)
        alive_N = torch.arange(len(wholes), device=device)
        lengths_N = torch.tensor([len(whole) for whole in wholes], device=device)
        next_N = torch.tensor([whole[-1] for whole in wholes], device=device)
        columns = max(map(len, wholes))
        for step in range(limit):
            hidden_NH = self._forward(next_N[:, None], lengths_N + step, columns + step, cache)
            next_N, logprobs_N = draw(self.policy.logits(hidden_NH), uniforms_NT[alive_N, step], self.decoding)
            ended_N = torch.isin(next_N, stop_ids)
            rows = alive_N.tolist()
            for row, token, logprob, ended in zip(
                rows, next_N.tolist(), logprobs_N.tolist(), ended_N.tolist(), strict=True
            ):
                tokens[row].append(token)
                logprobs[row].append(logprob)
                finished[row] = ended or self._completes_a_stop_string(tokens[row])
            going_N = torch.tensor([place for place, row in enumerate(rows) if not finished[row]], device=device)
            over = len(going_N) == 0 or step + 1 == limit
            if self.grows:
                leaving = [place for place, row in enumerate(rows) if finished[row] or over]
                # the token just drawn has not been fed
                held = [(*wholes[rows[place]], *tokens[rows[place]][:-1]) for place in leaving]
                prefixes = lift(cache, leaving, held, last=over)
                self._remembered.update((keys[rows[p]], prefix) for p, prefix in zip(leaving, prefixes, strict=True))
            if over:
                break
            if len(going_N) < len(alive_N):
                cache.batch_select_indices(going_N)
                next_N, alive_N, lengths_N = next_N[going_N], alive_N[going_N], lengths_N[going_N]
        return [Completion(tuple(t), tuple(p), f) for t, p, f in zip(tokens, logprobs, finished, strict=True)]

    def _completes_a_stop_string(self, tokens: Sequence[int]) -> bool:
        """Whether the text contains a stop string; its last token has just been drawn."""
        if not self.decoding.stop_strings:
            return False
        longest = max(map(len, self.decoding.stop_strings))
        text = str(
            self.policy.tokenizer.decode(list(tokens[-4 * longest :]))
        )  # a character takes at most four tokens, of a byte
        return any(stop in text for stop in self.decoding.stop_strings)

    def _forward(self, ids_NT: Tensor, lengths_N: Tensor, columns: int, cache: Cache) -> Tensor:
        """Last hidden states `[N, H]` after feeding the last tokens of rows that end in the same column."""
        positions_NT = torch.arange(columns, device=lengths_N.device) - columns + lengths_N[:, None]
        output = self._decoder(
            input_ids=ids_NT,
            attention_mask=(positions_NT >= 0).long(),
            position_ids=positions_NT[:, columns - ids_NT.shape[1] :].clamp(min=0),
            cache=cache,
            use_cache=True,
        )
        self.peak_bytes = max(self.peak_bytes, len(ids_NT) * columns * self.token_bytes)
        hidden_NH: Tensor = output.last_hidden_state[:, -1]
        return hidden_NH
