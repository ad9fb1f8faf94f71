"""What running a program gives back, and what every sandbox offers."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Protocol

SHORTEST_OUTPUT = 64
"""Fewest characters that `max_output` may name: the marker of a cut output must fit."""

LONGEST_PROGRAM = 200_000
"""Most characters of a program; a longer one is not run."""

_ERROR_TAIL_BYTES = 4096

OUTPUT_LIMIT_BYTES = 16 * 2**20
"""Most bytes that a program may print before it is ended; far beyond what is kept."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What a program left behind.

    Args:
        stdout: what it printed, at most `max_output` characters, the marker of a cut included.
        error: last line of its traceback, or the sentence of the limit that ended it; empty when it ended well.
    """

    stdout: str
    error: str

    @property
    def ok(self) -> bool:
        """Whether the program ended well."""
        return not self.error


class Sandbox(Protocol):
    """Something that runs Python programs which nobody has read."""

    def run(self, code: str) -> Execution:
        """What the program prints, and its error; the program's own faults and limits never raise."""
        ...

    def close(self) -> None:
        """Everything the sandbox holds is freed; a second call does nothing."""
        ...


class OutputHead:
    """The first characters of a stream of bytes, and how many there were; memory does not grow with the stream.

    Args:
        limit: most characters that `text` gives, the marker of a cut included, at least 64.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""
        self._characters = 0

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """The stream went on by these bytes."""
        self.total_bytes += len(chunk)
        text = self._decoder.decode(chunk, final)
        self._characters += len(text)
        if len(self._kept) < self.limit:
            self._kept += text[: self.limit - len(self._kept)]

    def text(self) -> str:
        """The head of the stream; a cut one ends with a marker of how many characters are missing."""
        if self._characters <= self.limit:
            return self._kept
        kept = self.limit
        while True:  # the number's own length decides how much fits: at most two rounds
            marker = f"\n... [{self._characters - kept} more characters]"
            if kept + len(marker) <= self.limit:
                return self._kept[:kept] + marker
            kept = self.limit - len(marker)


class ErrorTail:
    """The end of a stream of bytes; memory does not grow with the stream."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._kept = b""

    def feed(self, chunk: bytes) -> None:
        """The stream went on by these bytes."""
        self.total_bytes += len(chunk)
        self._kept = (self._kept + chunk)[-_ERROR_TAIL_BYTES:]

    def last_line(self) -> str:
        """The last line that is not blank; empty when there is none."""
        lines = self._kept.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def time_sentence(timeout_s: float) -> str:
    """The error of a program that ran too long."""
    return f"time limit of {timeout_s:g} s exceeded"


def memory_sentence(memory_mb: int) -> str:
    """The error of a program that asked for too much memory."""
    return f"memory limit of {memory_mb} MB exceeded"


def output_sentence() -> str:
    """The error of a program that never stopped printing."""
    return f"output limit of {OUTPUT_LIMIT_BYTES // 2**20} MB exceeded"


def length_sentence() -> str:
    """The error of a program that is too long to be run."""
    return f"program longer than {LONGEST_PROGRAM} characters"
