"""Records of a run as JSON lines in its folder: written by one process, cut back when a resumed run writes them anew."""

from __future__ import annotations

import json
import os
import time
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
    """Where the run's log lies."""
    return Path(trainer.log_dir or trainer.default_root_dir)


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


def record_event(trainer: Trainer, kind: str, text: str) -> None:
    """Leaves one sentence about the present epoch in `events.jsonl` and among TensorBoard's texts.

    Args:
        trainer: the run.
        kind: one word that tells events apart, for example `watch`, `danger` or `action`.
        text: the sentence.
    """
    place = {"epoch": trainer.current_epoch, "step": trainer.global_step, "time": round(time.time(), 3)}
    append_lines(trainer, EVENTS, [{**place, "kind": kind, "text": text}])
    if trainer.is_global_zero and isinstance(trainer.logger, TensorBoardLogger):
        trainer.logger.experiment.add_text(f"events/{kind}", text, trainer.global_step)


def _text(lines: Sequence[Line]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
