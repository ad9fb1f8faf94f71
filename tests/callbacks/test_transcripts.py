"""Transcripts: which episodes are kept, where, and what is written of them and their tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.callbacks.transcripts import Transcripts, token_texts
from arl_lightning.protocols import RolloutObserver
from arl_lightning.types import (
    ArlError,
    Completion,
    Episode,
    EpisodeGroup,
    PassRecord,
    Rollout,
    StopReason,
    TrajectoryBatch,
    Turn,
)


def episode(task_seed: int, member: int) -> Episode:
    turn = Turn((1,), Completion((2, 3), (-0.5, -1.25), True), "#P√#", "<a>up</a>", "up", True, 0.1 + 0.2, 0.0, 0)
    return Episode(task_seed, member, (turn,), StopReason.TERMINATED, success=True)


def rollout(stage: str = "train", epoch: int = 0, groups: int = 3) -> Rollout:
    made = [EpisodeGroup(seed, (episode(seed, 0), episode(seed, 1))) for seed in range(groups)]
    return Rollout(stage, epoch, tuple(made), {})


def record(turns: list[int]) -> PassRecord:
    """The rows of these turns: a token of prompt, then two of which the mask drops the second."""
    acts_NT = torch.tensor([[False, True, True]]).expand(len(turns), 3)
    old_NT = torch.zeros(acts_NT.shape)
    batch = TrajectoryBatch(
        input_ids_NT=torch.tensor([[1, 2, 3]]).expand(len(turns), 3),
        lengths_N=torch.full((len(turns),), 3),
        action_mask_NT=acts_NT,
        segment_ids_NT=torch.where(acts_NT, torch.tensor(turns)[:, None], -1),
        behavior_logprobs_NT=old_NT,
        old_logprobs_NT=old_NT,
        ref_logprobs_NT=old_NT,
        advantages_NT=torch.where(acts_NT, torch.tensor(turns)[:, None] + 0.5, 0.0),
        policy_version=0,
    )
    new_NT = torch.tensor([[0.0, 0.25, float("nan")]]).expand(len(turns), 3)
    keep_NT = torch.tensor([[False, True, False]]).expand(len(turns), 3)
    return PassRecord(batch, new_NT, torch.ones(acts_NT.shape), acts_NT & ~keep_NT, keep_NT)


class Run:
    """A callback and the run that it watches."""

    def __init__(self, folder: Path, logger: Any = False, **arguments: int) -> None:
        self.file = folder / "transcripts.jsonl"
        self.callback = Transcripts(**arguments)
        self.module = LightningModule()
        self.trainer = Trainer(accelerator="cpu", logger=logger, default_root_dir=folder, enable_progress_bar=False)
        self.trainer.datamodule = SimpleNamespace(sequence="turn")  # type: ignore[attr-defined]
        self.callback.setup(self.trainer, self.module, "fit")

    def epoch(self, played: Rollout, records: tuple[PassRecord, ...] = ()) -> None:
        """One epoch of training on what was played, of one mini-batch."""
        self.callback.rollout_finished(played)
        self.callback.on_train_batch_end(self.trainer, self.module, {"records": records}, None, 0)
        self.callback.on_train_epoch_end(self.trainer, self.module)

    @property
    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]


def test_a_transcript_is_the_episode_in_plain_text_and_what_the_update_made_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "new", groups=1, members=2)
    assert isinstance(run.callback, RolloutObserver)
    run.epoch(rollout(), (record([4, 1]), record([5])))  # turn 1 is the second episode's; 4 and 5 are not kept
    turn = {
        "observation": "#P√#",
        "response": "<a>up</a>",
        "action": "up",
        "valid": True,
        "reward": 0.3,  # rounded to 6 places
        "penalty": 0.0,
        "tokens": None,  # the module has no tokenizer
        "behavior_logprobs": [-0.5, -1.25],
    }
    update = {
        "minibatch": 0,
        "advantage": 1.5,
        "log_ratios": [0.25, None],  # JSON knows no NaN
        "entropies": [1.0, 1.0],
        "kept": [1, 0],
        "clipped": [0, 1],
    }
    outcome = {"success": True, "score": 0.3, "stop": "terminated", "error": None}
    place = {"stage": "train", "epoch": 0, "group": 0, "task_seed": 0}
    assert run.written == [
        {**place, "member": 0, **outcome, "turns": [{**turn, "update": None}]},  # no row of it was in a mini-batch
        {**place, "member": 1, **outcome, "turns": [{**turn, "update": update}]},
    ]
    assert "√" in run.file.read_text(encoding="utf-8")  # not escaped


def test_some_episodes_of_the_first_groups_are_kept_every_so_many_epochs(tmp_path: Path) -> None:
    run = Run(tmp_path, groups=2, members=1, every_n_epochs=5)
    for epoch in range(6):
        run.epoch(rollout(epoch=epoch))
    run.callback.rollout_finished(rollout("val", epoch=10, groups=1))
    kept = [(line["stage"], line["epoch"], line["task_seed"]) for line in run.written]
    assert kept == [("train", 0, 0), ("train", 0, 1), ("train", 5, 0), ("train", 5, 1), ("val", 10, 0)]


def test_what_was_played_and_not_learned_from_before_the_end_is_not_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.callback.rollout_finished(rollout())
    assert not run.file.exists()


def test_a_resumed_run_takes_out_the_epochs_that_it_plays_again(tmp_path: Path) -> None:
    run = Run(tmp_path, groups=1, members=1, every_n_epochs=1)
    for stage, epoch in (("test", 4), ("train", 0), ("val", 0), ("train", 1), ("train", 2)):
        run.epoch(rollout(stage, epoch))
    with run.file.open("a") as file:
        file.write('{"stage": "train", "ep')  # killed while it wrote
    resumed = Run(tmp_path, groups=1, members=1, every_n_epochs=1)
    resumed.trainer.fit_loop.epoch_progress.current.completed = 1
    resumed.callback.on_train_start(resumed.trainer, resumed.module)
    resumed.epoch(rollout("train", 1))
    assert [(line["stage"], line["epoch"]) for line in resumed.written] == [
        ("test", 4),
        ("train", 0),
        ("val", 0),
        ("train", 1),
    ]
    assert sorted(child.name for child in tmp_path.iterdir()) == ["transcripts.jsonl"]


def test_tensorboard_gets_the_text(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="", version="")
    Run(tmp_path, logger, groups=2, members=1).epoch(rollout())
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Tensors("transcripts/train/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert text.startswith("task 0: success, terminated, score 0.3")
    assert "`<a>up</a>` → up, reward 0.3" in text
    assert text.count("---") == 1  # two episodes


@pytest.mark.parametrize("name", ["groups", "members", "every_n_epochs"])
def test_nothing_to_keep_is_refused(name: str) -> None:
    with pytest.raises(ArlError, match="groups, members and every_n_epochs of at least 1"):
        Transcripts(**{name: 0})


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")


def test_token_texts_join_to_the_response_and_split_no_character() -> None:
    token_ids = [*"a√b".encode(), 0xFF, *b"c", *"√".encode()[:2]]  # √ is three bytes
    texts = token_texts(Bytes(), token_ids)  # type: ignore[arg-type]
    assert texts == ["a", "", "", "√", "b", "", "\ufffdc", "", "\ufffd"]
    assert "".join(texts) == Bytes().decode(token_ids)


class Blanks:
    """A tokenizer that drops the blank before the first token of a text, as many do."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(f" w{token}" for token in token_ids).lstrip()


def test_a_blank_before_a_token_is_not_lost() -> None:
    assert token_texts(Blanks(), (1, 2, 3)) == ["w1", " w2", " w3"]  # type: ignore[arg-type]
