"""A sandbox whose programs run in confined children of a server that has numpy and sympy loaded (Linux)."""

from __future__ import annotations

import os
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import arl_lightning
from arl_lightning.envs.sandbox import messages, seccomp, syscalls
from arl_lightning.envs.sandbox.execution import (
    LONGEST_PROGRAM,
    SHORTEST_OUTPUT,
    Execution,
    length_sentence,
    time_sentence,
)
from arl_lightning.types import ArlError

_OWN_FOLDER = str(Path(arl_lightning.__file__).resolve().parents[1])
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from arl_lightning.envs.sandbox.server import main; "
    "sys.path.remove(sys.argv[1]); main()"
)
_START_S = 120.0
_GRACE_S = 10.0
_TRIES = 2


class ForkServer:
    """Programs run one at a time, each in a forked child that can compute and print, and do nothing else.

    The server starts with the first program, holds the libraries loaded, and ends with `close`, with this process, or
    with the interpreter. One instance may be shared by all environments of a process, threads included; a copy in
    another process (by pickle or fork) starts a server of its own. Each program sees a new `__main__`, empty
    environment variables, no input, and generators seeded with 0: the same code prints the same output.

    A child has no network, no writable file, no other process, thread or signal, and reads only the standard library
    and site-packages; where the kernel has namespaces and Landlock, nothing else is even there. Needs Linux 5.8 on
    x86_64 or aarch64, and no root. The sandbox keeps out programs that a language model writes; against attackers with
    an exploit for the kernel itself use a virtual machine.

    Args:
        timeout_s: wall-clock seconds after which a program is killed, greater than 0.
        memory_mb: memory that a program may take beyond the loaded libraries, MiB, at least 16.
        max_output: most characters of output that are kept, at least 64; a cut is marked with what is missing.
        preload: modules the server loads beforehand; one that is not installed is left out.
        unsafe: run programs even where a layer is refused or the self-test finds them able to do what they must not.
    """

    def __init__(
        self,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        max_output: int = 512,
        preload: Sequence[str] = ("numpy", "sympy"),
        unsafe: bool = False,
    ) -> None:
        if not 0 < timeout_s < 1e6 or memory_mb < 16 or max_output < SHORTEST_OUTPUT:
            raise ArlError(
                f"timeout_s={timeout_s}, memory_mb={memory_mb}, max_output={max_output} are out of range: choose "
                f"0 < timeout_s < 1e6, memory_mb >= 16 and max_output >= {SHORTEST_OUTPUT}."
            )
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.max_output = max_output
        self.preload: tuple[str, ...] = tuple(preload)
        self.unsafe = unsafe
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.timeout_s, self.memory_mb, self.max_output, self.preload, self.unsafe)

    def run(self, code: str) -> Execution:
        """What the program printed, and its error; its own faults never raise.

        Raises:
            ArlError: no server can be started here, or programs would run unconfined.
        """
        if len(code) > LONGEST_PROGRAM:
            return Execution("", length_sentence())
        if os.getpid() != self._owner:
            if self._end is not None:
                self._end()  # after a fork the server is the other process's
            self._forget()
        with self._lock:
            for _ in range(_TRIES):
                channel = self._channel or self._start()
                try:
                    messages.send(channel, {"code": code}, _GRACE_S)
                    answer = messages.receive(channel, time.monotonic() + self.timeout_s + _GRACE_S)
                except TimeoutError:
                    self._stop()
                    return Execution("", time_sentence(self.timeout_s))
                except (EOFError, ConnectionError):
                    self._stop()
                    continue
                return Execution(answer["stdout"], answer["error"])
        return Execution("", "the sandbox died while it ran the program")

    def layers(self) -> dict[str, Any]:
        """What confines programs here: `namespaces`, `landlock` (version, 0 for none), `seccomp` (architecture)."""
        if not self.run("").ok:
            raise ArlError("the sandbox does not run the empty program: look at the machine's memory and processes.")
        return dict(self._layers)

    def close(self) -> None:
        """The server and its child are gone; the next program would start a new one."""
        if os.getpid() == self._owner:
            with self._lock:
                self._stop()

    def _forget(self) -> None:
        """This process has no server yet."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._end: weakref.finalize[..., ForkServer] | None = None
        self._layers: dict[str, Any] = {}

    def _start(self) -> socket.socket:
        """A socket to a new server that has tested itself."""
        if sys.platform != "linux" or syscalls.machine() not in seccomp.AUDIT_ARCHITECTURES:
            raise ArlError("the fork server needs Linux on x86_64 or aarch64: use WasmSandbox here.")
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as complaints:
            process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  (our own interpreter, no shell)
                [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT, _OWN_FOLDER],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
            theirs.close()
            self._channel = ours
            self._end = weakref.finalize(self, _end_server, process, ours, os.getpid())
            try:
                messages.send(ours, self._settings(), _START_S)
                report = messages.receive(ours, time.monotonic() + _START_S)
            except (EOFError, ConnectionError, TimeoutError) as error:
                self._stop()
                raise ArlError(f"the sandbox does not start ({_last_line(complaints) or error}).") from error
        self._layers = report["layers"]
        if report["breaches"] and not self.unsafe:
            self._stop()
            raise ArlError(
                f"a program in the sandbox could {', '.join(report['breaches'])} on this machine ({report['layers']}): "
                "use a kernel with Landlock or user namespaces, use WasmSandbox, or set unsafe: true."
            )
        return ours

    def _settings(self) -> dict[str, Any]:
        return {
            "own_folder": _OWN_FOLDER,
            "site_folders": _site_folders(),
            "preload": self.preload,
            "timeout_s": self.timeout_s,
            "memory_mb": self.memory_mb,
            "max_output": self.max_output,
            "unsafe": self.unsafe,
        }

    def _stop(self) -> None:
        """No server of ours runs."""
        if self._end is not None:
            self._end()
        self._end = self._channel = None


def _end_server(process: subprocess.Popen[bytes], channel: socket.socket, owner: int) -> None:
    """The server is dead and reaped; in a forked copy of its owner only the copied socket is closed."""
    if os.getpid() == owner:
        process.kill()  # the warden, whose death ends the server, and the server's every child
        process.wait(_GRACE_S)
        channel.settimeout(_GRACE_S)
        with suppress(ConnectionError):
            while channel.recv(4096):
                pass  # the server's end closes when it dies
    channel.close()


def _environment() -> dict[str, str]:
    """Fixed hashes and one thread; of ours only what the interpreter and its numerical library need to load."""
    kept = {name: value for name, value in os.environ.items() if name in ("LD_LIBRARY_PATH", "OPENBLAS_CORETYPE")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **threads, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


def _site_folders() -> list[str]:
    """Where this interpreter's installed packages lie."""
    named = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return [folder for folder in dict.fromkeys(named) if os.path.isdir(folder)]


def _last_line(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
