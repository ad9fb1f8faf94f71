"""The frozen records that data walks through: completion, turn, episode, group, row, batch, loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

import torch
from torch import Tensor

INVALID_ACTION = "invalid"  # what an environment is told when the model's answer could not be parsed


class ArlError(Exception):
    """A fault that the user can mend; its message is one sentence that says how."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"  # the environment said so
    TRUNCATED = "truncated"  # the environment's own step limit
    TURN_LIMIT = "turn_limit"  # the task's max_turns
    CONTEXT_LIMIT = "context_limit"  # the next prompt would not fit
    ERROR = "error"  # the environment raised; leaves every statistic


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are drawn. The model's own shipped generation defaults are never used.

    Args:
        temperature: divisor of the logits; 0 means greedy.
        top_p: nucleus mass kept, 1 keeps everything.
        top_k: number of most likely tokens kept, 0 keeps everything.
        max_new_tokens: limit of one response, in tokens.
        stop_strings: texts of which each ends a response at the token that completes it, as an end token does.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_new_tokens < 1:
            raise ArlError(f"{self} is out of range: temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_new_tokens >= 1")
        if "" in self.stop_strings:
            raise ArlError("stop_strings holds an empty text, which would end every response at once: leave it out")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response, an end token included; `finished` is False when `max_new_tokens` cut it.

    `logprobs` (float32, nats) are of the sampled distribution.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.logprobs)} log-probs: masks would shift")


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation, the tokens that presented it, and the response that the policy sampled.

    `prompt_ids` are the tokens that the model was fed since the previous response of the same row: the whole prompt
    when each turn is a row of its own, only the newly appended tokens when the row is the episode.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    observation: str
    response: str
    action: str
    valid: bool
    reward: float
    penalty: float
    state_key: Hashable

    @property
    def training_reward(self) -> float:
        """Environment reward less the format penalty of this very turn."""
        return self.reward - self.penalty


@dataclass(frozen=True, slots=True)
class Episode:
    """One member's play of one task. An episode that stopped by ERROR, or with a non-finite reward, is not `usable`."""

    task_seed: int
    member: int
    turns: tuple[Turn, ...]
    stop: StopReason
    success: bool
    task_type: str = ""
    error: str | None = None

    @property
    def score(self) -> float:
        """Undiscounted sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def training_return(self) -> float:
        """Undiscounted sum of rewards less format penalties: the R of the advantage formulas."""
        return sum(turn.training_reward for turn in self.turns)

    @property
    def usable(self) -> bool:
        """True when the episode may enter statistics and the loss."""
        return self.stop is not StopReason.ERROR and bool(self.turns) and math.isfinite(self.training_return)


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """All `group_size` members' episodes of one task, begun from the identical initial state."""

    task_seed: int
    episodes: tuple[Episode, ...]

    @property
    def usable_episodes(self) -> tuple[Episode, ...]:
        """Members that did not fail by an error."""
        return tuple(episode for episode in self.episodes if episode.usable)


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether a group stays, and the reason under which a dropped one is counted (`all_success`, `all_fail`, ...)."""

    keep: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric as a sum and the count to divide it by, so that micro-batches and ranks add up exactly."""

    total: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measure:
        """The mean of `values`, as its sum and count."""
        return cls(math.fsum(values), len(values))


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one round of play left behind: the groups that stay, and measures by full metric name."""

    stage: str
    epoch: int
    groups: tuple[EpisodeGroup, ...]
    measures: Mapping[str, Measure]

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """All members of all groups."""
        return tuple(episode for group in self.groups for episode in group.episodes)


@dataclass(frozen=True, slots=True)
class Row:
    """What one forward pass sees: tokens, where the policy acted, and which turn and segment each action token is of.

    All fields have one entry a token; `turn_of_token` and `segment_of_token` are -1 where `action_mask` is False,
    `behavior_logprobs` 0. Turns are numbered through the whole rollout, segments likewise.
    """

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    behavior_logprobs: tuple[float, ...]
    turn_of_token: tuple[int, ...]
    segment_of_token: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, f.name)) for f in fields(self)}
        if len(lengths) != 1:
            raise ValueError(f"a row's fields have lengths {sorted(lengths)}: the mask would not fit the tokens")


@dataclass(frozen=True)
class TokenBatch:
    """Rows padded on the right to `[N, T]`.

    Attributes:
        input_ids_NT: int64 token ids.
        lengths_N: int64 number of real tokens of each row.
        action_mask_NT: True exactly where the policy sampled the token.
        segment_ids_NT: int64 id of the token's segment, -1 off the action mask; rows of one segment are neighbours.
        temperature: the temperature at which log-probs of this batch are taken.
    """

    input_ids_NT: Tensor
    lengths_N: Tensor
    action_mask_NT: Tensor
    segment_ids_NT: Tensor
    temperature: float = 1.0

    def __post_init__(self) -> None:
        shape = self.input_ids_NT.shape
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name.endswith("_NT") and value.shape != shape:
                raise ValueError(f"{f.name} has shape {tuple(value.shape)}, the tokens {tuple(shape)}")
            if "logprobs" in f.name and value.dtype != torch.float32:
                raise ValueError(f"{f.name} is {value.dtype}: log-probs below float32 err by more than a clip band")

    def __len__(self) -> int:
        return self.input_ids_NT.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on `device`; dtypes never change."""
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def take(self, rows: Sequence[int]) -> Self:
        """The named rows in that order, cut to the longest of them."""
        index_N = torch.as_tensor(rows, dtype=torch.int64, device=self.lengths_N.device)
        longest = max(self.lengths_N[index_N].tolist(), default=0)
        return self._map(lambda value: value[index_N, :longest] if value.dim() == 2 else value[index_N])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {
            f.name: change(value) for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **changed)


@dataclass(frozen=True)
class TrajectoryBatch(TokenBatch):
    """One optimiser step's rows with everything the loss needs.

    Attributes:
        behavior_logprobs_NT: float32 log-probs that the sampler reported.
        old_logprobs_NT: float32 log-probs of the policy before the epoch's first step, by the training forward.
        ref_logprobs_NT: float32 log-probs of the frozen reference.
        advantages_NT: float32 advantage of the turn that the token belongs to, 0 off the action mask.
        policy_version: optimiser steps taken when the rows were played; a mismatch at use is an error.
    """

    behavior_logprobs_NT: Tensor = field(kw_only=True)
    old_logprobs_NT: Tensor = field(kw_only=True)
    ref_logprobs_NT: Tensor = field(kw_only=True)
    advantages_NT: Tensor = field(kw_only=True)
    policy_version: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Scores:
    """What the no-gradient pass found at action positions, 0 elsewhere; all `[N, T]` float32 (nats)."""

    logprobs_NT: Tensor
    ref_logprobs_NT: Tensor
    entropies_NT: Tensor
    penalties_NT: Tensor  # taken off each turn's reward: 0 unless the objective puts its KL there


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Denominators of one whole optimiser step, shared by all its passes and ranks."""

    tokens: int
    segments: int

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(self.tokens + other.tokens, self.segments + other.segments)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A surrogate's loss of each token and whether its limit was active there; both `[N, T]`."""

    loss_NT: Tensor
    clipped_NT: Tensor


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One forward pass of an optimiser step, without gradient: its rows and which tokens were clipped and kept."""

    batch: TrajectoryBatch
    logprobs_NT: Tensor
    entropies_NT: Tensor
    clipped_NT: Tensor
    keep_NT: Tensor


Advantages = Sequence[Sequence[Sequence[float]]]  # `[P][G][K]`: one a turn; an unusable episode's turns have 0
