"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Never

import pytest
import torch

from arl_lightning.checkpoint_io import AtomicCheckpointIO, remove_parts
from arl_lightning.types import ArlError


class Unsaveable:
    def __reduce__(self) -> Never:
        raise ValueError("not me")


def saved(path: Path) -> Any:
    return torch.load(path, weights_only=True)["weight"]


def test_a_checkpoint_that_fails_in_the_middle_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weight": 1}, path)
    with pytest.raises(ValueError, match="not me"):
        AtomicCheckpointIO().save_checkpoint({"weight": torch.zeros(9), "other": Unsaveable()}, path)
    assert saved(path) == 1
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    AtomicCheckpointIO().save_checkpoint({"weight": 2}, path)
    assert saved(path) == 2


def test_a_full_device_is_told_in_one_sentence(tmp_path: Path) -> None:
    part = tmp_path / "last.ckpt.part"
    part.symlink_to("/dev/full")
    with pytest.raises(ArlError, match=r"'.*last.ckpt' cannot be written: No space left on device: mend that, then"):
        AtomicCheckpointIO().save_checkpoint({"weight": torch.zeros(99_999)}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


def test_parts_of_killed_runs_are_taken_away(tmp_path: Path) -> None:
    for name in ("last.ckpt", "last.ckpt.part", "healthy.part"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    remove_parts(tmp_path / "absent")
