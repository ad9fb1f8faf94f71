"""Keeps a few episodes to read, token by token with what the update made of them: as JSON lines and in TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from arl_lightning.callbacks.run_log import TRANSCRIPTS, append_lines, forget
from arl_lightning.callbacks.token_traces import Place, TokenTraces, TurnTrace
from arl_lightning.protocols import ChatTokenizer, RolloutPolicy
from arl_lightning.types import ArlError, Episode, Rollout, Turn


class Transcripts(Callback):
    """Writes some episodes of a rollout to `transcripts.jsonl` in the run's folder and to TensorBoard.

    Each turn has its tokens with the sampler's log-probs; in training also, token by token, log-ratio, entropy, and
    whether mask and clip left it alone, as of the one mini-batch that the turn was in. They are written when their
    epoch ends, and a resumed run writes no epoch twice; of one that a stop cut in two there are none. `arl view` shows
    them.

    A rollout leaves at most `groups` · `members` episodes; a turn about 300 bytes and 40 for each of its tokens.

    Args:
        groups: groups of a rollout of which episodes are kept; held-out tasks are groups of one.
        members: episodes kept of a group.
        every_n_epochs: epochs between rollouts that are kept.
    """

    def __init__(self, groups: int = 2, members: int = 2, every_n_epochs: int = 10) -> None:
        if min(groups, members, every_n_epochs) < 1:
            raise ArlError("Transcripts needs groups, members and every_n_epochs of at least 1")
        self.groups = groups
        self.members = members
        self.every_n_epochs = every_n_epochs
        self._trainer: Trainer | None = None
        self._rollout: Rollout | None = None
        self._traces: TokenTraces | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes where to write."""
        self._trainer = trainer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes out the epochs that are now played again; those of tests have another count."""
        epoch = trainer.current_epoch
        forget(trainer, TRANSCRIPTS, lambda line: line["epoch"] >= epoch and not line["stage"].startswith("test"))

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to keep yet."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to keep yet."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """Writes held-out episodes; those of training wait for their update."""
        trainer = self._trainer
        if trainer is None or rollout.epoch % self.every_n_epochs:
            return
        sequence = getattr(getattr(trainer, "datamodule", None), "sequence", None)
        if rollout.stage != "train":
            self._write(trainer, rollout, {})
        elif sequence is not None:
            self._rollout = rollout
            self._traces = TokenTraces(rollout, self._chosen(rollout), sequence)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Takes over what the passes of all processes found at the tokens of the kept episodes."""
        if self._traces is not None and isinstance(outputs, Mapping):
            for record in outputs.get("records", ()):
                self._traces.note(record, batch_idx)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the training episodes that were kept."""
        if self._rollout is not None and self._traces is not None:
            self._write(trainer, self._rollout, self._traces.found)
        self._rollout = self._traces = None

    def _chosen(self, rollout: Rollout) -> dict[int, tuple[int, Episode]]:
        """Group and episode of each kept one, by its number in the rollout."""
        chosen: dict[int, tuple[int, Episode]] = {}
        first = 0
        for g, group in enumerate(rollout.groups[: self.groups]):
            chosen |= {first + m: (g, episode) for m, episode in enumerate(group.episodes[: self.members])}
            first += len(group.episodes)
        return chosen

    def _write(self, trainer: Trainer, rollout: Rollout, traces: Mapping[Place, TurnTrace]) -> None:
        if not trainer.is_global_zero:
            return
        module = trainer.lightning_module
        tokenizer = module.tokenizer if isinstance(module, RolloutPolicy) else None
        chosen = self._chosen(rollout)
        lines = [
            {
                "stage": rollout.stage,
                "epoch": rollout.epoch,
                "group": g,
                **_outcome(episode),
                "turns": [_turn(turn, tokenizer, traces.get((n, k))) for k, turn in enumerate(episode.turns)],
            }
            for n, (g, episode) in chosen.items()
        ]
        append_lines(trainer, TRANSCRIPTS, lines)
        if isinstance(trainer.logger, TensorBoardLogger):
            text = "\n\n---\n\n".join(_markdown(episode) for _, episode in chosen.values())
            trainer.logger.experiment.add_text(f"transcripts/{rollout.stage}", text, trainer.global_step)


def _outcome(episode: Episode) -> dict[str, Any]:
    return {
        "task_seed": episode.task_seed,
        "member": episode.member,
        "success": episode.success,
        "score": _number(episode.score),
        "stop": episode.stop.value,
        "error": episode.error,
    }


def _turn(turn: Turn, tokenizer: ChatTokenizer | None, trace: TurnTrace | None) -> dict[str, Any]:
    completion = turn.completion
    record: dict[str, Any] = {
        "observation": turn.observation,
        "response": turn.response,
        "action": turn.action,
        "valid": turn.valid,
        "reward": _number(turn.reward),
        "penalty": _number(turn.penalty),
        "tokens": None if tokenizer is None else token_texts(tokenizer, completion.token_ids),
        "behavior_logprobs": [_number(value) for value in completion.logprobs],
        "update": None,
    }
    if trace is not None:
        record["update"] = {
            "minibatch": trace.minibatch,
            "advantage": _number(trace.advantage),
            "log_ratios": [_number(value) for value in trace.log_ratios],
            "entropies": [_number(value) for value in trace.entropies],
            "kept": [int(kept) for kept in trace.kept],
            "clipped": [int(clipped) for clipped in trace.clipped],
        }
    return record


def token_texts(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> list[str]:
    """The text that each token adds; a character that takes several tokens stands at its last one.

    A token is decoded after those before it, since some tokenizers give the first token of a text no blank.
    """
    texts: list[str] = []
    begin = seen = 0
    for end in range(1, len(token_ids) + 1):
        before, text = tokenizer.decode(token_ids[begin:seen]), tokenizer.decode(token_ids[begin:end])
        whole = not text.endswith("\ufffd") or end == len(token_ids)
        texts.append(text[len(before) :] if whole else "")
        begin, seen = (seen, end) if whole else (begin, seen)
    return texts


def _number(value: float) -> float | None:
    """The value to six places; None for what JSON cannot say."""
    return round(value, 6) if math.isfinite(value) else None


def _markdown(episode: Episode) -> str:
    outcome = "success" if episode.success else "failure"
    turns = [
        f"```\n{turn.observation}\n```\n`{turn.response}` → {turn.action}, reward {turn.reward:g}"
        for turn in episode.turns
    ]
    return "\n\n".join([f"task {episode.task_seed}: {outcome}, {episode.stop.value}, score {episode.score:g}", *turns])
