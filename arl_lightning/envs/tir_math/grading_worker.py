"""The process that grades: one short-lived child an answer, so that no answer can stall or spoil the next."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

from arl_lightning.envs.tir_math.judges import Key, is_right

READY = b"ready\n"
RIGHT, WRONG, OVERRUN, RAISED = b"right\n", b"wrong\n", b"overrun\n", b"raised "
_MEMORY_BYTES = 2**31
_WATCH_S = 1.0  # how often the worker looks whether its parent lives


def serve(requests: BinaryIO, replies: BinaryIO, parent: int) -> None:
    """Grades what comes in, until the parent process closes the pipe or is gone.

    Args:
        requests: pickled triples of key, answer and limit in seconds.
        replies: one line for each.
        parent: process id of who started this one.
    """
    while os.getppid() == parent:
        if readable(requests.fileno(), _WATCH_S):
            try:
                key, answer, limit_s = pickle.load(requests)  # noqa: S301 - written by the parent process
            except EOFError:
                return
            if key.generator:
                importlib.import_module("reasoning_gym")  # here, once, and not in each child
            replies.write(grade_in_child(key, answer, limit_s))
            replies.flush()


def grade_in_child(key: Key, answer: str, limit_s: float) -> bytes:
    """The verdict on one answer; a child that needs more than `limit_s` of wall-clock time is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, _verdict(key, answer, limit_s))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return (os.read(reader, 4096) or OVERRUN) if readable(reader, limit_s) else OVERRUN
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def readable(descriptor: int, timeout_s: float) -> bool:
    """True when the descriptor has bytes, or its end, to read within the time; `poll` knows no highest descriptor."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _verdict(key: Key, answer: str, limit_s: float) -> bytes:
    cpu_s = int(limit_s) + 1  # should this child lose its parent, it does not outlive it for long
    for limit, value in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(limit, (value, value))
    try:
        return RIGHT if is_right(key, answer) else WRONG
    except Exception as error:  # noqa: BLE001 - the parent logs it, and the answer counts as wrong
        return RAISED + repr(error).encode(errors="replace")[:2000].replace(b"\n", b" ") + b"\n"


def main() -> None:
    """Loads math-verify once, proves that it grades, says so, and serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    logging.disable(logging.CRITICAL)  # math-verify warns about the time limits that this process replaces
    for right, answer in (("\\frac{1}{2}", "0.5"), ("\\{1,2\\}", "\\{2,1\\}"), ("x+1", "1+x")):
        if not is_right(Key(right), answer):
            sys.exit(f"math-verify does not find {right} and {answer} equal")
    replies = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints must not look like a reply
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads it from here on, and a full pipe would stall
    with suppress(BrokenPipeError):
        replies.write(READY)
        replies.flush()
        serve(sys.stdin.buffer, replies, int(sys.argv[1]))


if __name__ == "__main__":
    main()
