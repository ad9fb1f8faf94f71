"""Cells in processes of their own, several at a time, each attempt recorded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from arl_lightning.study.cells import Cell
from arl_lightning.study.records import held, recorded
from arl_lightning.study.runs import last_line, start

ATTEMPTS = 2
_POLL_S = 1.0

Watch = Callable[[], bool]
"""Asked about once a second while a cell trains; True ends it."""


class CellRunner:
    """Runs cells, `jobs` at a time with one thread each; what it has started ends with it.

    A cell that is finished is not run again, one that was interrupted goes on from its checkpoint, and one that fails
    is tried once more.

    Args:
        jobs: cells at a time; None for one a processor.
        say: told of each cell when it ends, with the word for how; None tells nobody.
    """

    def __init__(self, jobs: int | None = None, say: Callable[[Cell, str], None] | None = None) -> None:
        self.jobs = jobs or processors()
        self.say = say
        self._stopping = threading.Event()

    def run(self, cells: Sequence[Cell]) -> None:
        """Every cell, the starts of all before; ends the children when it is interrupted."""
        with ended_by_signals():
            starts = {cell.start.folder: cell.start for cell in cells if cell.start}
            self._each(starts.values())
            self._each(cell for cell in cells if cell.start is None or cell.start.status() == "finished")

    def _each(self, cells: Iterable[Cell]) -> None:
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                for future in [pool.submit(self.execute, cell) for cell in cells]:
                    future.result()
            finally:
                self._stopping.set()
                pool.shutdown(cancel_futures=True)
                self._stopping.clear()

    def execute(self, cell: Cell, watch: Watch | None = None) -> str:
        """How the cell stands after this call; `busy` where another process runs it."""
        with held(cell, wait=not cell.tested) as lock:
            if lock is None:
                how = "busy"
            elif (how := cell.status()) != "finished":
                for verb in cell.verbs:
                    if not self._achieve(cell, verb, lock, watch):
                        break
                how = cell.status()
        if self.say is not None and not self._stopping.is_set():
            self.say(cell, how)
        return how

    def _achieve(self, cell: Cell, verb: str, lock: int, watch: Watch | None) -> bool:
        """Whether this part of the cell is done now."""
        for _ in range(ATTEMPTS):
            if cell.ended_well(verb):
                return True
            if self._attempt(cell, verb, lock, watch) is None:
                return False
        return cell.ended_well(verb)

    def _attempt(self, cell: Cell, verb: str, lock: int, watch: Watch | None) -> int | None:
        """The child's exit code; None where it was ended from here."""
        command = _next_command(cell, verb)
        log = cell.folder / f"{verb}.log"
        with recorded(cell, verb, command) as attempt:
            child = start(command, log, keep_open=(lock,))
            try:
                while True:
                    try:
                        code = child.wait(_POLL_S)
                        break
                    except subprocess.TimeoutExpired:
                        if self._stopping.is_set() or (watch is not None and watch()):
                            return None
            finally:
                child.kill()  # nothing, where it has ended; what it has not written since its checkpoint is done again
                child.wait()
            if self._stopping.is_set():
                return None  # an interruption from the keyboard reached it, too
            attempt["exit_code"] = code
            attempt["said"] = last_line(log)
        return code


def _next_command(cell: Cell, verb: str) -> list[str]:
    """The command of a new attempt; a fit that has a checkpoint goes on from it, another one begins anew."""
    command = cell.command(verb)
    if verb == "fit":
        if any((cell.folder / "fit").rglob("last*.ckpt")):
            command.append("--ckpt_path=last")
        else:
            shutil.rmtree(cell.folder / "fit", ignore_errors=True)
    return command


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT are exceptions that no library takes for a failed run, and end what was started."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - as the signal module calls it
        sys.exit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
