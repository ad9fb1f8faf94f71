"""Frames: an episode's pictures are those of its own play, and cost play nothing."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arl_lightning.callbacks.frames import Frames, offers_pictures, replay, strip
from arl_lightning.envs.sokoban import SokobanEnv
from arl_lightning.protocols import RolloutObserver
from arl_lightning.testing import SCRIPTED_ENV
from arl_lightning.types import ArlError, Completion, Episode, EpisodeGroup, Rollout, StopReason, Turn

OPTIONS = {"size": 6, "split": "train"}


def episode(seed: int, *actions: str) -> Episode:
    """What these actions make of the room of `seed`."""
    env, turns = SokobanEnv(**OPTIONS), []  # type: ignore[arg-type]
    observation, _ = env.reset(seed=seed)
    for action in actions:
        turns.append(Turn((1,), Completion((2,), (0.0,), True), observation, action, action, True, 0.0, 0.0, 0))
        observation, *_ = env.step(action)
    return Episode(seed, 0, tuple(turns), StopReason.TRUNCATED, success=False)


def pictures(seed: int, *actions: str) -> list[Any]:
    env = SokobanEnv(render_mode="rgb_array", **OPTIONS)  # type: ignore[arg-type]
    env.reset(seed=seed)
    seen = [env.render()]
    for action in actions:
        env.step(action)
        seen.append(env.render())
    return seen


def test_the_frames_are_those_that_play_would_have_drawn() -> None:
    actions = ("up", "nonsense", "left")
    drawn = replay("arl/Sokoban-v0", OPTIONS, episode(7, *actions))
    assert len(drawn) == 4
    assert all(np.array_equal(left, right) for left, right in zip(drawn, pictures(7, *actions), strict=True))


def test_frames_end_where_the_environment_shows_something_else() -> None:
    played = episode(7, "up", "left")
    forged = replace(played, turns=(played.turns[0], replace(played.turns[1], observation="another room")))
    with pytest.warns(UserWarning, match="does not play the same episode again"):
        assert len(replay("arl/Sokoban-v0", OPTIONS, forged)) == 2


@pytest.mark.parametrize(("frames", "shape"), [(1, (144, 144, 3)), (8, (144, 1180, 3)), (9, (292, 1180, 3))])
def test_a_strip_has_eight_frames_a_line(frames: int, shape: tuple[int, ...]) -> None:
    # 8 · 144 and 7 gaps of 4 pixels are 1180; two lines and a gap are 292
    assert strip([np.zeros((144, 144, 3), np.uint8)] * frames).shape == shape


@pytest.mark.parametrize(
    ("env_id", "offers"),
    [
        ("arl/Sokoban-v0", True),
        ("arl_lightning.envs.registration:arl/Sokoban-v0", True),
        (SCRIPTED_ENV, False),
        ("arl/TIRMath-v0", False),
    ],
)
def test_an_environment_is_known_by_its_metadata_without_being_made(env_id: str, offers: bool) -> None:
    assert offers_pictures(SimpleNamespace(env_id=env_id, env_options={})) is offers


def shown(folder: Path, env_id: str, epochs: range, **arguments: int) -> list[tuple[str, int]]:
    """Tags and numbers of images after these epochs of four groups."""
    logger = TensorBoardLogger(folder, name="", version="")
    trainer = Trainer(accelerator="cpu", logger=logger, default_root_dir=folder, enable_progress_bar=False)
    task = SimpleNamespace(env_id=env_id, env_options={"size": 6})
    trainer.datamodule = SimpleNamespace(task=task, env_options={"split": "train"})  # type: ignore[attr-defined]
    callback = Frames(**arguments)
    assert isinstance(callback, RolloutObserver)
    callback.setup(trainer, LightningModule(), "fit")
    for epoch in epochs:
        for stage in ("train", "val"):
            groups = tuple(EpisodeGroup(seed, (episode(seed, "up"),)) for seed in range(4))
            callback.rollout_finished(Rollout(stage, epoch, groups, {}))
    logger.finalize("success")
    events = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()
    return [(tag, len(events.Images(tag))) for tag in events.Tags()["images"]]


def test_tensorboard_gets_a_strip_of_the_first_groups_every_so_many_epochs(tmp_path: Path) -> None:
    found = shown(tmp_path, "arl/Sokoban-v0", range(7), episodes=2, every_n_epochs=3)
    assert found == [("frames/train/0", 3), ("frames/train/1", 3)]  # epochs 0, 3, 6


def test_an_environment_that_draws_nothing_is_left_alone(tmp_path: Path) -> None:
    assert shown(tmp_path, SCRIPTED_ENV, range(1)) == []


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(ArlError, match="at least 1"):
        Frames(episodes=0)
