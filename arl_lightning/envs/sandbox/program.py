"""A program's run inside the confined child: a fresh main module, fixed seeds, and the error's line on descriptor 2."""

from __future__ import annotations

import io
import os
import random
import sys
import types
from typing import NoReturn

import arl_lightning

_LONGEST_ERROR = 300


def run_and_exit(code: str, memory_error: str) -> NoReturn:
    """The program has run and this process is over: status 0, or 1 with the error as the last line on descriptor 2."""
    _forget_the_server()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "replace")
    sys.stdout, sys.stderr = _line_writer(1), _line_writer(2)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status = 1
    try:
        exec(compile(code, "<program>", "exec"), main.__dict__)  # noqa: S102  (what a sandbox is for)
        sys.stdout.flush()
        status = 0
    except MemoryError:
        _say(memory_error)
    except SystemExit as ending:
        status = 0 if ending.code in (None, 0) else 1
        _say(_line_of(ending))
    except BaseException as error:  # noqa: BLE001  (whatever the program raised is its result)
        _say(_line_of(error))
    finally:
        os._exit(status)


def _line_writer(descriptor: int) -> io.TextIOWrapper:
    """A text stream that a killed program leaves complete up to its last full line."""
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", "replace", line_buffering=True)


def _forget_the_server() -> None:
    """The program finds none of our modules, an empty environment and a plain command line."""
    for name in [name for name in sys.modules if name.partition(".")[0] == arl_lightning.__name__]:
        del sys.modules[name]
    os.environ.clear()
    sys.argv[:] = [""]


def _line_of(error: BaseException) -> str:
    """What a traceback's last line would say, in one line."""
    try:
        message = str(error)
        if isinstance(error, ImportError):  # where a module lies differs between machines
            message = message.replace(f" ({error.path or 'unknown location'})", "")
    except Exception:  # noqa: BLE001  (the program wrote this __str__)
        message = "<exception str() failed>"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _say(line: str) -> None:
    """What was printed stands before the error, which is the last line on descriptor 2."""
    words = " ".join(line.split())[:_LONGEST_ERROR]
    try:
        sys.stdout.flush()
    finally:
        os.write(2, ("\n" + words + "\n").encode("utf-8", "replace"))
