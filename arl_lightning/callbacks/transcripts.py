"""Keeps a few episodes to read: as text in TensorBoard and as JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from arl_lightning.types import ArlError, Episode, Rollout


class Transcripts(Callback):
    """Writes the first episodes of a rollout to `transcripts.jsonl` in the run's folder and to TensorBoard.

    Args:
        episodes: episodes kept of a rollout.
        every_n_epochs: epochs between rollouts that are kept.
    """

    def __init__(self, episodes: int = 2, every_n_epochs: int = 10) -> None:
        if episodes < 1 or every_n_epochs < 1:
            raise ArlError("Transcripts needs episodes >= 1 and every_n_epochs >= 1")
        self.episodes = episodes
        self.every_n_epochs = every_n_epochs
        self._trainer: Trainer | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes where to write."""
        self._trainer = trainer

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to keep yet."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to keep yet."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """Keeps the first episodes, one of each group."""
        trainer = self._trainer
        if trainer is None or rollout.epoch % self.every_n_epochs:
            return
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # which all ranks must ask for together
        if not trainer.is_global_zero:
            return
        chosen = [group.episodes[0] for group in rollout.groups[: self.episodes]]
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "transcripts.jsonl").open("a", encoding="utf-8") as file:
            for episode in chosen:
                file.write(json.dumps(_record(rollout, episode), ensure_ascii=False) + "\n")
        if isinstance(trainer.logger, TensorBoardLogger):
            text = "\n\n---\n\n".join(_markdown(episode) for episode in chosen)
            trainer.logger.experiment.add_text(f"transcripts/{rollout.stage}", text, trainer.global_step)


def _record(rollout: Rollout, episode: Episode) -> dict[str, Any]:
    return {
        "stage": rollout.stage,
        "epoch": rollout.epoch,
        "task_seed": episode.task_seed,
        "success": episode.success,
        "score": _number(round(episode.score, 6)),
        "stop": episode.stop.value,
        "error": episode.error,
        "turns": [
            {
                "observation": turn.observation,
                "response": turn.response,
                "action": turn.action,
                "valid": turn.valid,
                "reward": _number(turn.reward),
            }
            for turn in episode.turns
        ],
    }


def _number(value: float) -> float | None:
    """The value; None for what JSON cannot say."""
    return value if math.isfinite(value) else None


def _markdown(episode: Episode) -> str:
    outcome = "success" if episode.success else "failure"
    turns = [
        f"```\n{turn.observation}\n```\n`{turn.response}` → {turn.action}, reward {turn.reward:g}"
        for turn in episode.turns
    ]
    return "\n\n".join([f"task {episode.task_seed}: {outcome}, {episode.stop.value}, score {episode.score:g}", *turns])
