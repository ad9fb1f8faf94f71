"""Records of a run as JSON lines in its folder, by one process; a resumed run first takes out what it writes anew."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

EVENTS = "events.jsonl"
TRANSCRIPTS = "transcripts.jsonl"

Line = Mapping[str, Any]

_ESCAPE = "backslashreplace"  # half a surrogate pair, which UTF-8 has no bytes for, becomes its JSON escape


def run_folder(trainer: Trainer) -> Path:
    """Where the run's log lies; unlike `trainer.log_dir`, one process may ask without the others."""
    logger = trainer.logger
    return Path(logger.log_dir if isinstance(logger, TensorBoardLogger) else trainer.default_root_dir)


def append_lines(trainer: Trainer, name: str, lines: Sequence[Line]) -> None:
    """Adds the lines to a file of the run's folder; on all processes but the first, nothing."""
    if trainer.is_global_zero and lines:
        folder = run_folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a", encoding="utf-8", errors=_ESCAPE) as file:
            file.write(_text(lines))


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file in order; none of one that is not there, and not the one at which a run was killed."""
    if not file.is_file():
        return
    for text in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            yield line


def forget(trainer: Trainer, name: str, replayed: Callable[[Line], bool]) -> None:
    """Takes the lines out that a resumed run will write again."""
    file = run_folder(trainer) / name
    if trainer.is_global_zero and file.is_file():
        kept = [line for line in read_lines(file) if not replayed(line)]
        fresh = file.with_suffix(".part")
        fresh.write_text(_text(kept), encoding="utf-8", errors=_ESCAPE)
        os.replace(fresh, file)


def _text(lines: Sequence[Line]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
