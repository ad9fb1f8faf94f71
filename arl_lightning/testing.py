"""Scripted worlds and policies, so that tests need no language model, and the contract check of every kind of part."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import gymnasium
import torch
from gymnasium.envs.registration import register, registry
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text
from lightning.pytorch import LightningDataModule

from arl_lightning.datamodules.conversation import Context, WindowContext
from arl_lightning.datamodules.prompting import PromptTemplate, TaggedAction
from arl_lightning.datamodules.task import Task
from arl_lightning.envs.contract import ContractError as ContractError  # re-exported
from arl_lightning.envs.contract import check_text_env as check_text_env
from arl_lightning.modules.contract import check_aggregation as check_aggregation
from arl_lightning.modules.contract import check_kl as check_kl
from arl_lightning.modules.contract import check_segment_mask as check_segment_mask
from arl_lightning.modules.contract import check_surrogate as check_surrogate
from arl_lightning.modules.group_contract import check_estimator as check_estimator
from arl_lightning.modules.group_contract import check_gate as check_gate
from arl_lightning.modules.policy import Policy
from arl_lightning.modules.tiny_model import TinyModel, build_tokenizer
from arl_lightning.protocols import ChatTokenizer
from arl_lightning.types import (
    Advantages,
    Completion,
    Decoding,
    Episode,
    EpisodeGroup,
    Scores,
    StopReason,
    TokenBatch,
    Turn,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action of a script does.

    Args:
        reward: reward of the step; a NaN is handed on as it is.
        move: added to the place.
        success: whether the task is then solved.
        terminated: whether the episode then ends.
        truncated: whether the environment's own limit then cuts the episode.
        error: message of the RuntimeError that the step raises instead; none when empty.
    """

    reward: float = 0.0
    move: int = 0
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    error: str = ""


SCRIPT: Mapping[str, Outcome] = {
    "win": Outcome(reward=1.0, success=True, terminated=True),
    "lose": Outcome(terminated=True),
    "cut": Outcome(truncated=True),
    "wait": Outcome(),
    "go": Outcome(move=1),
    "nan": Outcome(reward=math.nan, terminated=True),
    "crash": Outcome(error="the script says crash"),
}
"""What `ScriptedEnv` does by default; `nan` and `crash` work but are not listed as admissible."""

WORDS = ("<action>", "</action>", "place ", *SCRIPT)
"""One token each for scripted and tiny policies: `<action>win</action>` is three tokens and the end."""

SCRIPTED_ENV = "arl_lightning.testing:arl/Scripted-v0"
"""The Gymnasium id of `ScriptedEnv`, which imports this module by itself."""


class ScriptedEnv(gymnasium.Env[str, str]):
    """A text environment whose actions do what a script says; its state is a place.

    Args:
        script: outcome by action; any other text is invalid and changes nothing. None for `SCRIPT`.
        places: initial states; a task's is number `seed % len(places)` of them.
        expert: optimal actions at each step from the first on; the last entry holds for all later steps.
        failing_seeds: tasks at which a RuntimeError is raised.
        failing_step: the step that raises it, from 1; 0 for `reset`.
    """

    def __init__(
        self,
        script: Mapping[str, Outcome] | None = None,
        places: Sequence[int] = range(1000),
        expert: Sequence[tuple[str, ...]] = (("win",),),
        failing_seeds: Collection[int] = (),
        failing_step: int = 0,
    ) -> None:
        self.script = SCRIPT if script is None else script
        self.places = places
        self.expert = tuple(expert)
        self.failing_seeds = failing_seeds
        self.failing_step = failing_step
        self.observation_space = self.action_space = Text(32, charset=frozenset(string.printable))
        self._admissible = tuple(name for name, o in self.script.items() if math.isfinite(o.reward) and not o.error)
        self._seed = self._place = self._steps = 0
        self._going = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The initial state of task `seed`, 0 when None."""
        super().reset(seed=seed, options=options)
        self._seed, self._steps, self._going = seed or 0, 0, True
        self._place = self.places[self._seed % len(self.places)]
        self._fail_if_scripted()
        return self._show(success=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The outcome of `action`.

        Raises:
            ResetNeeded: the episode is over.
            RuntimeError: the script says so.
        """
        if not self._going:
            raise ResetNeeded("the scripted episode is over")
        self._steps += 1
        self._fail_if_scripted()
        outcome = self.script.get(action, Outcome())
        if outcome.error:
            raise RuntimeError(outcome.error)
        self._place += outcome.move
        self._going = not (outcome.terminated or outcome.truncated)
        observation, info = self._show(outcome.success)
        info["action_valid"] = action in self.script
        return observation, outcome.reward, outcome.terminated, outcome.truncated, info

    def expert_actions(self) -> tuple[str, ...]:
        """What `expert` says for the present step."""
        return self.expert[min(self._steps, len(self.expert) - 1)]

    def _fail_if_scripted(self) -> None:
        if self._seed in self.failing_seeds and self._steps == self.failing_step:
            raise RuntimeError(f"scripted failure of task {self._seed} at step {self._steps}")

    def _show(self, success: bool) -> tuple[str, dict[str, Any]]:
        info = {"success": success, "state_key": self._place, "task_type": "scripted"}
        return f"place {self._place}", info | {"admissible_actions": self._admissible}


if (_env_id := SCRIPTED_ENV.partition(":")[2]) not in registry:
    register(id=_env_id, entry_point="arl_lightning.testing:ScriptedEnv")


class Asked(NamedTuple):
    """One call of `ScriptedPolicy.sample`: the prompts as text, and the seeds."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]


class ScriptedPolicy:
    """A `RolloutPolicy` without weights: answers by script, keeps what it was asked in `calls`.

    An answer that exceeds `max_new_tokens` with its end token is cut, as a sampled one would be.

    Args:
        answers: texts of which `seed` picks number `seed % len(answers)`, or a function of (prompt text, seed).
        logprob: log-prob of every sampled token, by the sampler and by `score` (nats).
        ref_logprob: the reference's log-prob of every sampled token (nats).
        entropy: entropy at every sampled token (nats).
        estimate: the advantage estimator.
        max_context: tokens that prompt and response may fill together.
        admits: conversations that its sampler admits at once.
    """

    def __init__(
        self,
        answers: Sequence[str] | Callable[[str, int], str],
        logprob: float = 0.0,
        ref_logprob: float = 0.0,
        entropy: float = 0.0,
        estimate: Callable[[Sequence[EpisodeGroup], Advantages], Advantages] | None = None,
        max_context: int = 2048,
        admits: int = 1_000_000,
    ) -> None:
        self.answers = answers
        self.admits = admits
        self.logprob = logprob
        self.ref_logprob = ref_logprob
        self.entropy = entropy
        self.estimate = estimate or share_returns
        self.max_context = max_context
        self.policy_version = 0
        self.tokenizer: ChatTokenizer = cast(Any, build_tokenizer(WORDS, max_context))
        self.stop_token_ids = frozenset({cast(int, self.tokenizer.eos_token_id)})
        self.calls: list[Asked] = []

    def sampler(self, decoding: Decoding, *, grows: bool) -> ScriptedSampler:  # noqa: ARG002
        """Answers by the script and remembers nothing."""
        return ScriptedSampler(self, decoding)

    def answer(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Completion]:
        """The scripted answers, each with its end token where that fits."""
        texts = tuple(self.tokenizer.decode(prompt) for prompt in prompts)
        self.calls.append(Asked(texts, tuple(seeds)))
        return [self._complete(*asked, decoding.max_new_tokens) for asked in zip(texts, seeds, strict=True)]

    def score(self, batch: TokenBatch) -> Scores:
        """The given numbers at action positions."""
        acts_NT = batch.action_mask_NT.to(torch.float32)
        return Scores(self.logprob * acts_NT, self.ref_logprob * acts_NT, self.entropy * acts_NT, 0 * acts_NT)

    def estimate_advantages(self, groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:
        """What the given function says."""
        return self.estimate(groups, entropies_PGK)

    def _complete(self, prompt: str, seed: int, max_new_tokens: int) -> Completion:
        answer = self.answers(prompt, seed) if callable(self.answers) else self.answers[seed % len(self.answers)]
        ids = (*self.tokenizer.encode(answer, add_special_tokens=False), *self.stop_token_ids)
        kept = ids[:max_new_tokens]
        return Completion(kept, (self.logprob,) * len(kept), finished=len(kept) == len(ids))


class ScriptedSampler:
    """The sampler of a scripted policy; it admits `policy.admits` conversations at once."""

    def __init__(self, policy: ScriptedPolicy, decoding: Decoding) -> None:
        self.policy = policy
        self.decoding = decoding

    def admit(self, keys: Sequence[int], lengths: Sequence[int]) -> int:  # noqa: ARG002
        """As many as the policy says."""
        return min(len(keys), self.policy.admits)

    def sample(self, keys: Sequence[int], prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Completion]:  # noqa: ARG002
        """The policy's answers."""
        return self.policy.answer(prompts, seeds, self.decoding)

    def forget(self, keys: Sequence[int]) -> None:
        """Nothing is remembered."""


def share_returns(groups: Sequence[EpisodeGroup], entropies_PGK: Advantages) -> Advantages:  # noqa: ARG001
    """The episode's training return at each of its turns, 0 where the episode is not usable."""
    return [[[e.training_return if e.usable else 0.0] * len(e.turns) for e in group.episodes] for group in groups]


def scripted_task(
    context: Context | None = None, max_turns: int = 5, format_penalty: float = 0.1, **env_options: Any
) -> Task:
    """`ScriptedEnv` shown as it is and answered by `<action>…</action>`; None is a `WindowContext` without history."""
    context = WindowContext(history_window=0) if context is None else context
    return Task(SCRIPTED_ENV, PromptTemplate(), TaggedAction(), context, env_options, max_turns, format_penalty)


def scripted_episode(
    rewards: Sequence[float], success: bool = False, stop: StopReason = StopReason.TERMINATED, member: int = 0
) -> Episode:
    """An episode of one turn a reward, all valid and of one token, for tests of gates, estimators and measures."""
    turns = tuple(
        Turn((1,), Completion((2,), (0.0,), True), f"place {k}", "", "go", True, reward, 0.0, k)
        for k, reward in enumerate(rewards)
    )
    return Episode(0, member, turns, stop, success)


def attach(data: LightningDataModule, module: object, callbacks: Sequence[object] = (), epoch: int = 0) -> None:
    """`data` finds `module`, `callbacks` and `epoch` where a Trainer would offer them; there is no Trainer."""
    data.trainer = cast(Any, SimpleNamespace(lightning_module=module, callbacks=list(callbacks), current_epoch=epoch))


def tiny_policy(words: Sequence[str] = WORDS, seed: int = 0) -> Policy:
    """A neural policy of one layer and some thousand weights, made in milliseconds."""
    return Policy(*TinyModel(words, hidden_size=16, layers=1, heads=2, mlp_size=32, seed=seed).load())
