"""Transcripts: which episodes are kept, where, and what is written of them."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.callbacks.transcripts import Transcripts
from arl_lightning.protocols import RolloutObserver
from arl_lightning.types import Completion, Episode, EpisodeGroup, Rollout, StopReason, Turn


def episode(task_seed: int, member: int) -> Episode:
    turn = Turn((1,), Completion((2,), (0.0,), True), "#P√#", "<a>up</a>", "up", True, 0.1 + 0.2, 0.0, 0)
    return Episode(task_seed, member, (turn,), StopReason.TERMINATED, success=True)


def rollout(stage: str = "train", epoch: int = 0, groups: int = 3) -> Rollout:
    made = [EpisodeGroup(seed, (episode(seed, 0), episode(seed, 1))) for seed in range(groups)]
    return Rollout(stage, epoch, tuple(made), {})


def attached(folder: Path, logger: Any = False, **arguments: int) -> Transcripts:
    callback = Transcripts(**arguments)
    trainer = Trainer(accelerator="cpu", logger=logger, default_root_dir=folder, enable_progress_bar=False)
    callback.setup(trainer, LightningModule(), "fit")
    return callback


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_transcript_is_the_episode_in_plain_text(tmp_path: Path) -> None:
    callback = attached(tmp_path / "new", episodes=1)
    assert isinstance(callback, RolloutObserver)
    callback.rollout_finished(rollout())
    turn = {"observation": "#P√#", "response": "<a>up</a>", "action": "up", "valid": True, "reward": 0.1 + 0.2}
    assert written(tmp_path / "new") == [
        {
            "stage": "train",
            "epoch": 0,
            "task_seed": 0,
            "success": True,
            "score": 0.3,  # rounded to 6 places
            "stop": "terminated",
            "error": None,
            "turns": [turn],
        }
    ]
    assert "√" in (tmp_path / "new" / "transcripts.jsonl").read_text(encoding="utf-8")  # not escaped


def test_one_episode_of_each_of_the_first_groups_is_kept_every_so_many_epochs(tmp_path: Path) -> None:
    callback = attached(tmp_path, episodes=2, every_n_epochs=5)
    for epoch in range(6):
        callback.rollout_finished(rollout(epoch=epoch))
    callback.rollout_finished(rollout("val", epoch=10, groups=1))
    kept = [(line["stage"], line["epoch"], line["task_seed"]) for line in written(tmp_path)]
    assert kept == [("train", 0, 0), ("train", 0, 1), ("train", 5, 0), ("train", 5, 1), ("val", 10, 0)]


def test_tensorboard_gets_the_text(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    attached(tmp_path, logger).rollout_finished(rollout())
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Tensors("transcripts/train/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert text.startswith("task 0: success, terminated, score 0.3")
    assert "`<a>up</a>` → up, reward 0.3" in text
    assert text.count("---") == 1  # two episodes
