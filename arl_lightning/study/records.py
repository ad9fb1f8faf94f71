"""What is written down of an attempt at a cell, and the lock that keeps two processes off one cell."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from arl_lightning.study.cells import Cell


@contextmanager
def held(cell: Cell, wait: bool = False) -> Iterator[int | None]:
    """The descriptor of the cell's lock; None where another process runs the cell.

    A child that inherits it keeps the lock even if this process is killed, so that no cell runs twice at once.
    """
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield file.fileno()


@contextmanager
def recorded(cell: Cell, verb: str, command: list[str]) -> Iterator[dict[str, Any]]:
    """The record of one attempt, written when it begins and again when it ends; the caller sets `exit_code`."""
    attempt = {"verb": verb, "command": command, "started": _now(), "ended": None, "exit_code": None, **revision()}
    attempts = [*cell.attempts(), attempt]
    _write(cell, attempts)
    yield attempt
    attempt["ended"] = _now()
    _write(cell, attempts)


def _write(cell: Cell, attempts: list[dict[str, Any]]) -> None:
    record = {
        "label": cell.label,
        "seed": cell.seed,
        "start": cell.start.folder.name if cell.start else None,
        "recreate": cell.recreate().splitlines(),
        "attempts": attempts,
        "versions": {found.name: found.version for found in metadata.distributions()},
    }
    draft = cell.folder / "record.json.new"
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(cell.folder / "record.json")  # whole or not at all, since a kill may come at any time


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def revision() -> dict[str, Any]:
    """The git revision of the package and whether tracked files differ from it; None outside a checkout."""
    folder = Path(__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (folder / ".git").exists():
        return {"revision": None, "dirty": None}

    def ask(*words: str) -> str:
        command = [git, "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own words

    changed = ask("status", "--porcelain", "--untracked-files=no")
    return {"revision": ask("rev-parse", "HEAD").strip(), "dirty": bool(changed.strip())}
