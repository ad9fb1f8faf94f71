"""Checkpoints that are whole or not there: a run that dies in writing one leaves the one before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from arl_lightning.types import ArlError

PART = ".part"
"""What the name of a file that is being written ends in."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's way of writing checkpoints, by a file beside the target that takes its place when it is on the disk.

    Lightning's own writes into the system's temporary folder first, and a move from another disk is a copy, which can
    be cut short. Addresses such as `s3://...` are left to it.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Leaves the checkpoint at `path`.

        Raises:
            ArlError: the disk is full or the folder cannot be written; what was at `path` is still there.
        """
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        part = target.with_name(target.name + PART)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__  # torch.save speaks of a position
            if not isinstance(cause, OSError):
                raise
            before = "; the one before is whole" if target.is_file() else ""
            raise ArlError(
                f"the checkpoint {str(target)!r} cannot be written: {cause.strerror}{before}: mend that, then continue "
                "with --ckpt_path last"
            ) from error
        finally:
            with suppress(OSError):  # what keeps it from being taken away is told above
                part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Takes away what runs that were killed in writing have left in `folder`."""
    for part in folder.glob(f"*{PART}"):
        part.unlink()
