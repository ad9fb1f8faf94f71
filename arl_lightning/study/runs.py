"""Whole runs as child processes of the command `arl`, and the numbers that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arl_lightning
from arl_lightning.types import ArlError

_PACKAGE = Path(arl_lightning.__file__).parent


def config_path(name: str) -> Path:
    """The shipped configuration file `name`, for example `methods/sampo.yaml`, in a checkout or an installed wheel."""
    for folder in (_PACKAGE.parent / "configs", _PACKAGE / "configs"):
        if (folder / name).is_file():
            return folder / name
    raise ArlError(f"there is no shipped configuration {name!r}")


def arl_command(verb: str, configs: Sequence[str], *overrides: str) -> list[str]:
    """The command line of `arl VERB` with shipped configurations and overrides."""
    command = [sys.executable, "-m", "arl_lightning", verb]
    for name in configs:
        command += ["--config", str(config_path(name))]
    return [*command, *overrides]


def start(command: Sequence[str], log: Path | None = None, keep_open: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """A child with one thread, since two threads beside another job are many times slower than one.

    It adds to `log`, and holds the file descriptors of `keep_open` for as long as it lives.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if log is None:
        return subprocess.Popen(command, env=environment, pass_fds=keep_open)  # noqa: S603 - our own command
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, pass_fds=keep_open
        )


def finish(child: subprocess.Popen[bytes], log: Path | None = None) -> None:
    """Waits for the child.

    Raises:
        ArlError: the child failed; the last line of its log is in the message.
    """
    if child.wait():
        said = last_line(log) if log else ""
        raise ArlError(f"a run failed with exit code {child.returncode}{f': {said}' if said else ''}")


def last_line(log: Path) -> str:
    """What a run said last; empty where it said nothing."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else ""


def run(command: Sequence[str], log: Path | None = None) -> None:
    """Starts the child and waits for it."""
    finish(start(command, log), log)


def read_metrics(folder: Path, verb: str) -> dict[str, float]:
    """What `arl validate` or `arl test` measured into `folder`."""
    metrics: dict[str, float] = json.loads((folder / f"{verb}.json").read_text())
    return metrics


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Values by epoch, from 1, of every metric that the run in `folder` logged; none before it has begun."""
    if not folder.is_dir():
        return {}
    events = read_log(folder)
    names = events.Tags()["scalars"]
    if "epoch" not in names:
        return {}
    epoch_of = {event.step: round(event.value) + 1 for event in events.Scalars("epoch")}
    return {
        name: {epoch_of[event.step]: event.value for event in events.Scalars(name) if event.step in epoch_of}
        for name in names
    }


def read_curve(folder: Path, name: str) -> tuple[list[int], list[float]]:
    """Epochs, from 1, and values of one logged metric of the run in `folder`; empty when it was never logged."""
    points = read_curves(folder).get(name, {})
    return list(points), list(points.values())


def read_minutes(folder: Path) -> float:
    """Minutes between the first and the last number that the run in `folder` logged."""
    times = [event.wall_time for event in read_log(folder).Scalars("epoch")]
    return float(max(times) - min(times)) / 60


def read_log(folder: Path) -> Any:
    """The TensorBoard log of a run, every point of every scalar."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events
