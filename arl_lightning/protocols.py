"""What neighbours must offer each other; methods are named, since jsonargparse reads `__call__` as a factory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from arl_lightning.types import (
    Advantages,
    Completion,
    Decoding,
    EpisodeGroup,
    GateDecision,
    Rollout,
    Scores,
    StepTotals,
    TokenBatch,
    TokenLoss,
)


class TextEnv(Protocol):
    """A Gymnasium environment with text observations and actions.

    `info` carries `success` (bool), `state_key` (hashable: the state without history, header or step count),
    `admissible_actions` (tuple of str or None), `task_type` (str) and, after a step, `action_valid` (bool).
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]: ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    def close(self) -> None: ...


@runtime_checkable
class ExpertEnv(Protocol):
    """An environment that knows good actions for its present state; demonstrations come from it."""

    def expert_actions(self) -> tuple[str, ...]:
        """Optimal actions of the present state, best first; empty when there is none."""
        ...


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that conversations need."""

    name_or_path: str
    eos_token_id: int | None
    pad_token_id: int | None

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Tokens matched in raw text before any other; each offers `special` and, by `str()`, its text."""
        ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...


class Sampler(Protocol):
    """Draws responses in conversations, which are known by a key and may be remembered from turn to turn."""

    def admit(self, keys: Sequence[int], lengths: Sequence[int]) -> int:
        """How many of these conversations, with prompts so long, may be sampled together; at least the first."""
        ...

    def sample(self, keys: Sequence[int], prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Completion]:
        """One response a prompt; row `i` depends on `prompts[i]` and `seeds[i]` only."""
        ...

    def forget(self, keys: Sequence[int]) -> None:
        """These conversations are over."""
        ...


@runtime_checkable
class RolloutPolicy(Protocol):
    """What the rollout asks of the policy. `AgentModule` offers it; scripted policies in `testing` do too."""

    @property
    def tokenizer(self) -> ChatTokenizer: ...

    @property
    def stop_token_ids(self) -> frozenset[int]: ...

    @property
    def policy_version(self) -> int:
        """Optimiser steps taken so far."""
        ...

    @property
    def max_context(self) -> int:
        """Tokens that prompt and response may fill together."""
        ...

    def sampler(self, decoding: Decoding, *, grows: bool) -> Sampler:
        """Draws responses with the weights of this moment.

        Args:
            decoding: how tokens are drawn.
            grows: whether a conversation's next prompt begins with its last one and the response.
        """
        ...

    def score(self, batch: TokenBatch) -> Scores:
        """Log-probs, reference log-probs, entropies and reward penalties at action positions, without gradient."""
        ...

    def estimate_advantages(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """One advantage a turn, by the module's estimator."""
        ...


class AdvantageEstimator(Protocol):
    """Turns episode groups into one advantage a turn.

    One that has an attribute `reads_entropies` that is False spares an epoch of one step the pass that computes them.
    """

    def estimate(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """`entropies_PGK[p][g][k]` is the mean token entropy of the turn's response (nats)."""
        ...


class Surrogate(Protocol):
    """The importance ratio and its limit: a loss to minimise for each token."""

    def compute(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> TokenLoss: ...


class SegmentMask(Protocol):
    """Says which action tokens stay in the policy term (numerator and denominator)."""

    def keep(
        self, logprobs_NT: Tensor, old_logprobs_NT: Tensor, advantages_NT: Tensor, segment_ids_NT: Tensor
    ) -> Tensor:
        """Bool `[N, T]`, True = use it; never True off the action mask."""
        ...


class Aggregation(Protocol):
    """Reduces token losses to this micro-batch's share of the optimiser step's loss."""

    def compute(self, loss_NT: Tensor, mask_NT: Tensor, segment_ids_NT: Tensor, totals: StepTotals) -> Tensor:
        """Shares of all micro-batches with the same `totals` add up to the loss of the whole step."""
        ...


class KLRegularizer(Protocol):
    """Estimates the divergence from the reference, token by token."""

    @property
    def coefficient(self) -> float: ...

    def compute(self, logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
        """KL estimate in nats, `[N, T]`, differentiable in `logprobs_NT`."""
        ...


@runtime_checkable
class AdjustableCoefficient(Protocol):
    """A weight that callbacks may scale while a run goes on, each by a factor of its own."""

    @property
    def coefficient(self) -> float:
        """The configured weight times all factors."""
        ...

    def set_factor(self, owner: str, factor: float) -> None:
        """From now on `owner` scales the configured weight by `factor`, in place of its earlier one; 1 undoes it."""
        ...


@runtime_checkable
class Steerable(Protocol):
    """A module whose objective callbacks may change between epochs; what they changed they do again on resume."""

    objective: Any


class RewardPenalty(Protocol):
    """Takes the divergence from the reference off the reward, before advantages are estimated."""

    def penalize(self, logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
        """What each token takes off its turn's reward, `[N, T]`."""
        ...


class SamplerCorrection(Protocol):
    """Weighs tokens for the disagreement between the sampler and the trainer."""

    def weigh(self, old_logprobs_NT: Tensor, behavior_logprobs_NT: Tensor) -> Tensor:
        """Factor of each token's policy loss, `[N, T]`, without gradient."""
        ...


@runtime_checkable
class GroupGate(Protocol):
    """Decides which groups stay in the batch. Callbacks that offer this are asked by the data module."""

    @property
    def max_attempts(self) -> int:
        """Rounds of play an epoch may take, the first included."""
        ...

    @property
    def exhausted(self) -> str:
        """`fill`, `shrink` or `skip`: what becomes of a deficit after the last attempt."""
        ...

    def admit(self, groups: Sequence[EpisodeGroup], epoch: int) -> Sequence[GateDecision]:
        """One decision a group."""
        ...


@runtime_checkable
class RolloutObserver(Protocol):
    """Is told how play goes. Callbacks that offer this are called by the data module."""

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None: ...

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None: ...

    def rollout_finished(self, rollout: Rollout) -> None: ...


class PromptFormat(Protocol):
    """Writes the user's message of a turn."""

    def system(self) -> str | None:
        """System text, or None for no system message."""
        ...

    def message(self, observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """User text of the present turn; `history` holds earlier (observation, action) pairs, oldest first."""
        ...


class ActionParser(Protocol):
    """Reads the action out of a response, strictly."""

    def parse(self, response: str) -> str | None:
        """The action, or None when the response has not exactly the demanded form."""
        ...

    def write(self, action: str) -> str:
        """The response that `parse` reads as `action`: what a demonstrator says."""
        ...


@runtime_checkable
class Exportable(Protocol):
    """A module whose model other programs can load."""

    def export(self, folder: Path) -> None:
        """Leaves the model in `folder` in Hugging Face format."""
        ...
