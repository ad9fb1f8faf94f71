"""Shows episodes as pictures in TensorBoard, for environments that can draw themselves."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from arl_lightning.envs.registration import make_text_env
from arl_lightning.types import ArlError, Episode, Rollout

_FRAMES_A_LINE = 8
_GAP_PIXELS = 4


class _Played(Protocol):
    """What a task says of its environment."""

    env_id: str
    env_options: dict[str, Any]


class Frames(Callback):
    """Puts a strip of frames of training episodes into TensorBoard, as `frames/train/NUMBER`.

    Play draws nothing: the actions of a finished episode are played again from its seed, in an environment of its own
    with Gymnasium's `render_mode="rgb_array"`. One that does not offer that mode is left alone.

    Args:
        episodes: episodes shown of a rollout, the first of each of the first groups.
        every_n_epochs: epochs between rollouts that are shown.
    """

    def __init__(self, episodes: int = 2, every_n_epochs: int = 10) -> None:
        if min(episodes, every_n_epochs) < 1:
            raise ArlError("Frames needs episodes and every_n_epochs of at least 1")
        self.episodes = episodes
        self.every_n_epochs = every_n_epochs
        self._trainer: Trainer | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes where to draw."""
        self._trainer = trainer

    def rollout_started(self, stage: str, epoch: int, episodes: int) -> None:
        """Nothing to draw yet."""

    def rollout_advanced(self, finished: int, succeeded: int, turns: int) -> None:
        """Nothing to draw yet."""

    def rollout_finished(self, rollout: Rollout) -> None:
        """Draws the first episodes, one of each group."""
        trainer = self._trainer
        if trainer is None or not trainer.is_global_zero or rollout.stage != "train":
            return
        if rollout.epoch % self.every_n_epochs:
            return
        played = getattr(trainer, "datamodule", None)
        if played is None or not isinstance(trainer.logger, TensorBoardLogger) or not offers_pictures(played.task):
            return
        options = {**played.task.env_options, **played.env_options}
        for number, group in enumerate(rollout.groups[: self.episodes]):
            picture = strip(replay(played.task.env_id, options, group.episodes[0]))
            trainer.logger.experiment.add_image(
                f"frames/{rollout.stage}/{number}", picture, trainer.global_step, dataformats="HWC"
            )


def offers_pictures(task: _Played) -> bool:
    """Whether the task's environment names `rgb_array` among its render modes; it is not made to find out."""
    module, _, env_id = task.env_id.rpartition(":")
    if module:
        import_module(module)
    entry = gymnasium.spec(env_id).entry_point
    maker = load_env_creator(entry) if isinstance(entry, str) else entry
    return "rgb_array" in getattr(maker, "metadata", {}).get("render_modes", ())


def replay(env_id: str, options: dict[str, Any], episode: Episode) -> list[NDArray[np.uint8]]:
    """The frame before each turn and after the last one, as far as the environment shows again what it showed then."""
    env = cast(gymnasium.Env[str, str], make_text_env(env_id, {**options, "render_mode": "rgb_array"}))
    observation, _ = env.reset(seed=episode.task_seed)
    frames = [_frame(env)]
    for turn in episode.turns:
        if observation != turn.observation:
            rank_zero_warn(f"{env_id} does not play the same episode again, so its frames are left out from there on")
            break
        observation, *_ = env.step(turn.action)
        frames.append(_frame(env))
    env.close()
    return frames


def strip(frames: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The frames side by side, 8 a line, in one picture `[height, width, 3]` on white."""
    height, width, _ = frames[0].shape
    columns = min(len(frames), _FRAMES_A_LINE)
    lines = -(-len(frames) // columns)
    down, right = height + _GAP_PIXELS, width + _GAP_PIXELS
    picture = np.full((lines * down - _GAP_PIXELS, columns * right - _GAP_PIXELS, 3), 255, np.uint8)
    for place, frame in enumerate(frames):
        line, column = divmod(place, columns)
        picture[line * down : line * down + height, column * right : column * right + width] = frame
    return picture


def _frame(env: gymnasium.Env[str, str]) -> NDArray[np.uint8]:
    return np.asarray(env.render(), np.uint8)
