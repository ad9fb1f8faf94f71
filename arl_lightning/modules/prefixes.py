"""Keys and values of token sequences: kept row by row without padding, laid side by side for a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from arl_lightning.types import ArlError

_NOTHING = (torch.empty(0), torch.empty(0))
Layer = tuple[Tensor, Tensor]
"""Keys and values of some tokens in one layer, `[T, heads, dimensions]` each."""


@dataclass(slots=True, eq=False)
class Prefix:
    """The beginning of a conversation as a model remembers it; no layers for no tokens, or once it is spent."""

    token_ids: tuple[int, ...] = ()
    layers: list[Layer] = field(default_factory=list)

    def agreement(self, token_ids: tuple[int, ...]) -> int:
        """Number of leading tokens that both have in common."""
        own = self.token_ids
        if token_ids[: len(own)] == own:
            return len(own)
        return next((i for i, (a, b) in enumerate(zip(own, token_ids, strict=False)) if a != b), len(token_ids))


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # what transformers runs for each subclass
    """Keys and values of one layer with room for more tokens, so that not all are copied for each one that is added."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones included, as views of what is held."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = _appended(self.keys, key_states), _appended(self.values, value_states)
        return self.keys, self.values


_ROOM = 64  # tokens


def _appended(held: Any, states: Tensor) -> Tensor:
    """`held` and `states` in one line: in the room behind `held` when there is any, otherwise in a larger place."""
    before = held.shape[2] if held.numel() else 0
    after = before + states.shape[2]
    place = held._base  # None for what was copied, as when rows are selected
    if place is None or place.shape[2] < after:
        place = states.new_empty(*states.shape[:2], after + _ROOM, states.shape[3])
        place[:, :, :before] = held if before else place[:, :, :0]
    place[:, :, before:after] = states
    appended: Tensor = place[:, :, :after]
    return appended


def new_cache() -> Cache:
    """A cache without tokens that all models of plain attention can fill."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def lay(prefixes: Sequence[Prefix], lengths: Sequence[int], spare: Prefix) -> Cache:
    """The first `lengths[i]` tokens of each prefix as the rows of one cache, padded on the left.

    The prefixes are spent, layer by layer, so that nothing is held twice; only `spare` stays. Sliding layers keep all
    of their tokens too: what they may see is the mask's business.
    """
    cache = new_cache()
    spent = {id(prefix): prefix for prefix in prefixes if prefix is not spare}.values()
    template = max(prefixes, key=lambda prefix: len(prefix.token_ids))
    for layer in range(len(template.layers) if max(lengths) else 0):
        none = [part[:0] for part in template.layers[layer]]
        held = [
            [part[:length] for part in prefix.layers[layer]] if length else none
            for prefix, length in zip(prefixes, lengths, strict=True)
        ]
        keys, values = (
            pad_sequence(list(part), batch_first=True, padding_side="left").transpose(1, 2)
            for part in zip(*held, strict=True)
        )
        cache.update(keys, values, layer)
        for prefix in spent:
            if prefix.layers:
                prefix.layers[layer] = _NOTHING
    return cache


def lift(cache: Cache, rows: Sequence[int], token_ids: Sequence[tuple[int, ...]], *, last: bool) -> list[Prefix]:
    """Copies of the last columns of these rows, which are those of their `token_ids`.

    Args:
        cache: rows that end in the same column.
        rows: which of them.
        token_ids: what each of them remembers.
        last: whether the cache is of no further use: it is then freed layer by layer, so that nothing is held twice.
    """
    prefixes = [Prefix(ids) for ids in token_ids]
    for layer in _parts(cache):
        for row, prefix in zip(rows, prefixes, strict=True):
            first = layer.keys.shape[2] - len(prefix.token_ids)
            keys, values = (part[row, :, first:].transpose(0, 1).contiguous() for part in (layer.keys, layer.values))
            prefix.layers.append((keys, values))
        if last:
            layer.keys, layer.values = _NOTHING
    return prefixes


def bytes_per_token(model: PreTrainedModel) -> int:
    """What keys and values of one token take, by asking the model to remember two.

    Raises:
        ArlError: the model remembers otherwise than by keys and values of each token.
    """
    cache = new_cache()
    with torch.no_grad():
        ids_NT = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
        model.get_decoder()(input_ids=ids_NT, cache=cache, use_cache=True)  # type: ignore[no-untyped-call]
    plain = all(type(layer) is RoomyLayer for layer in cache.layers)
    parts = [part for layer in _parts(cache) for part in (layer.keys, layer.values)] if plain else []
    if {part.shape[2] for part in parts} != {2}:
        raise ArlError(
            f"{type(model).__name__} does not remember by keys and values of each token alone, so it cannot be sampled "
            "from here: choose a model of full or sliding-window attention"
        )
    return sum(part.element_size() * part[:, :, 0].numel() for part in parts)


def _parts(cache: Cache) -> list[Any]:
    """Its layers; transformers types them by all that a layer could be."""
    return list(cache.layers)
