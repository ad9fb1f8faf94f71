"""A child watched from outside: its output bounded as it streams, its end certain when its time is over."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from enum import Enum, auto

from arl_lightning.envs.sandbox import syscalls
from arl_lightning.envs.sandbox.execution import (
    OUTPUT_LIMIT_BYTES,
    ErrorTail,
    Execution,
    OutputHead,
    output_sentence,
    time_sentence,
)

_CHUNK = 65536
_DEATH_S = 5.0


def watch(pid: int, stdout: int, stderr: int, timeout_s: float, max_output: int) -> Execution:
    """What the child left behind; it is dead and reaped, and both descriptors are closed.

    Args:
        pid: a child of this process.
        stdout: reading end of its output.
        stderr: reading end of its errors.
        timeout_s: wall-clock seconds after which it is killed, whatever it does.
        max_output: most characters of output that are kept.

    Raises:
        TimeoutError: the kernel did not end the killed child within 5 s.
    """
    head, tail = OutputHead(max_output), ErrorTail()
    sinks: dict[int, OutputHead | ErrorTail] = {stdout: head, stderr: tail}
    process = syscalls.pidfd_open(pid)
    try:
        limit = _follow(process, sinks, time.monotonic() + timeout_s)
        if limit:
            os.kill(pid, signal.SIGKILL)
            if not select.select([process], [], [], _DEATH_S)[0]:
                raise TimeoutError(f"process {pid} survives SIGKILL")
        status = os.waitpid(pid, 0)[1]
        for descriptor, sink in sinks.items():
            _drain(descriptor, sink)
        head.feed(b"", final=True)
    finally:
        for descriptor in (process, stdout, stderr):
            os.close(descriptor)
    sentence = {_Limit.TIME: time_sentence(timeout_s), _Limit.OUTPUT: output_sentence()}
    return Execution(head.text(), (sentence[limit] if limit else _error_of(status, tail.last_line()))[:max_output])


class _Limit(Enum):
    """Why a child has to be killed."""

    TIME = auto()
    OUTPUT = auto()


def _follow(process: int, sinks: dict[int, OutputHead | ErrorTail], deadline: float) -> _Limit | None:
    """The limit that the child has reached; None when it has ended by itself."""
    poll = select.poll()
    for descriptor in (process, *sinks):
        poll.register(descriptor, select.POLLIN)
    while (remaining_ms := (deadline - time.monotonic()) * 1000) > 0:
        ready = [descriptor for descriptor, _ in poll.poll(remaining_ms)]
        for descriptor in ready:
            if descriptor in sinks and not _take(descriptor, sinks[descriptor]):
                poll.unregister(descriptor)
        if process in ready:
            return None
        if sum(sink.total_bytes for sink in sinks.values()) > OUTPUT_LIMIT_BYTES:
            return _Limit.OUTPUT
    return _Limit.TIME


def _take(descriptor: int, sink: OutputHead | ErrorTail) -> int:
    """How many bytes went from a pipe into the sink; 0 at its end."""
    chunk = os.read(descriptor, _CHUNK)
    sink.feed(chunk)
    return len(chunk)


def _drain(descriptor: int, sink: OutputHead | ErrorTail) -> None:
    """What the dead child left in the pipe is in the sink."""
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):  # somebody holds the writing end: what is there has been read, nobody waits
        while _take(descriptor, sink):
            pass


def _error_of(status: int, last_line: str) -> str:
    """The error of a child that was not killed here; empty when it ended well."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if number in (signal.SIGKILL, signal.SIGXCPU):
            return f"killed by the system ({name}): out of memory or processor time"
        return f"the interpreter crashed ({name})"
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else last_line or f"exit status {code}"
