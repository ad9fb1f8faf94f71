"""The process that holds the libraries loaded and forks one confined child for each program.

It imports the standard library and its neighbours only. Two processes: a warden in the outer world, which ends the
server when the client is gone, and the server, process 1 of its own world where the kernel allows one, with which
every child dies.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn

from arl_lightning.envs.sandbox import landlock, messages, namespaces, self_test, syscalls
from arl_lightning.envs.sandbox.confinement import OPEN_FILES, Confinement, prepare
from arl_lightning.envs.sandbox.execution import Execution, memory_sentence
from arl_lightning.envs.sandbox.program import run_and_exit
from arl_lightning.envs.sandbox.watch import watch

_CLIENT_CHECK_S = 1.0

# Loaded once here rather than in each child; those that need shared libraries could not be loaded there.
_STANDARD = (
    "bisect calendar cmath collections copy ctypes dataclasses datetime decimal enum fractions functools "
    "hashlib heapq inspect itertools json math operator pickle pprint random re socket statistics string "
    "textwrap time traceback typing zlib"
)


def main() -> NoReturn:
    """The server has answered until its client closed the socket, which is descriptor 0."""
    client = os.getppid()
    channel = socket.socket(fileno=0)
    settings = messages.receive(channel, deadline=None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * OPEN_FILES, 4 * OPEN_FILES))
    sys.path[:] = [entry for entry in sys.path if entry != settings["own_folder"]] + settings["site_folders"]
    _preload([*_STANDARD.split(), *settings["preload"]])
    folders = _readable_folders()
    limit_bytes = _address_space_bytes() + settings["memory_mb"] * 2**20
    with suppress(OSError):  # a container may forbid it; then the kernel chooses by size
        _write("/proc/self/oom_score_adj", "1000")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    flags = namespaces.allowed_flags(folders)
    if flags:
        namespaces.enter(flags, folders)
    server = os.fork()
    if server:
        channel.close()
        _guard(server, client)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    confinement = prepare(settings["timeout_s"], limit_bytes, folders, settings["unsafe"])
    _Server(channel, confinement, bool(flags), settings).serve()


class _Server:
    """The answers to one client, one program at a time.

    Args:
        channel: socket to the client.
        confinement: what is laid on each child.
        own_world: whether this is process 1 of its own namespaces.
        settings: the client's `memory_mb` and `max_output`.
    """

    def __init__(
        self, channel: socket.socket, confinement: Confinement, own_world: bool, settings: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._confinement = confinement
        self._self = syscalls.pidfd_open(os.getpid()) if own_world else None
        self._memory_error = memory_sentence(settings["memory_mb"])
        self._max_output = settings["max_output"]

    def serve(self) -> NoReturn:
        """The client is told how far programs are confined, then gets an answer to each program."""
        gc.collect()
        gc.freeze()  # the children's collections leave the shared pages alone
        layers = {"namespaces": self._self is not None, "landlock": landlock.abi(), "seccomp": syscalls.machine()}
        messages.send(self._channel, {"layers": layers, "breaches": self_test.breaches(self._run)}, None)
        while True:
            try:
                code = messages.receive(self._channel, deadline=None)["code"]
            except EOFError:
                os._exit(0)
            done = self._run(code)
            messages.send(self._channel, {"stdout": done.stdout, "error": done.error}, None)

    def _run(self, code: str) -> Execution:
        """What a child that ran the program left behind."""
        pipes = [os.pipe() for _ in range(3)]
        if self._self is not None:
            syscalls.unshare(syscalls.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            self._become_the_program(code, [pipes[0][0], pipes[1][1], pipes[2][1]])
        if self._self is not None:
            syscalls.setns(self._self, syscalls.CLONE_NEWPID)
        for descriptor in (*pipes[0], pipes[1][1], pipes[2][1]):
            os.close(descriptor)
        return watch(pid, pipes[1][0], pipes[2][0], self._confinement.timeout_s, self._max_output)

    def _become_the_program(self, code: str, standard: list[int]) -> NoReturn:
        """This process is confined and has run the program; an empty pipe is its input."""
        try:
            for target, descriptor in enumerate(standard):
                os.dup2(descriptor, target)
            self._confinement.apply()
            run_and_exit(code, self._memory_error)
        except (OSError, ValueError) as error:
            os.write(2, f"the sandbox could not be closed: {error}".encode())
        finally:
            os._exit(1)  # whatever happens, the child never goes on as a second server


def _preload(names: Iterable[str]) -> None:
    """The modules that exist are loaded; a program that needs another one is told so by its own import."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # numpy loads it late, and each child seeds it
    if "sympy" in sys.modules:
        _warm(sys.modules["sympy"])


def _warm(sympy: Any) -> None:
    """Sympy has loaded what it loads at first use, which takes a child longer than all the rest."""
    x = sympy.Symbol("x")
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.integrate(x * sympy.exp(x), x)
    sympy.latex(sympy.factor(x**2 - 1))
    sympy.solve([x**2 - 2], [x])
    sympy.Matrix([[1, 2], [3, 4]]).eigenvals()
    sympy.sympify("x + 1")


def _readable_folders() -> list[str]:
    """The standard library and the site-packages, by the paths they go by and by their real ones, sorted."""
    existing = [entry for entry in sys.path if os.path.isdir(entry)]
    return sorted({os.path.abspath(entry) for entry in existing} | {os.path.realpath(entry) for entry in existing})


def _address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _guard(server: int, client: int) -> NoReturn:
    """The server is over, and so is this process: by itself, or because the client is no longer the parent."""
    while os.waitpid(server, os.WNOHANG)[0] == 0:
        if os.getppid() != client:
            os.kill(server, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], _CLIENT_CHECK_S)
    os._exit(0)
