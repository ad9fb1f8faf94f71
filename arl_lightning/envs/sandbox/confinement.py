"""The state from which a child cannot come back: small limits, no privileges, no files, hardly a system call."""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arl_lightning.envs.sandbox import landlock, seccomp, syscalls

NOBODY = 65534
"""The user and group that a child of root becomes."""

OPEN_FILES = 32
"""Descriptors that a program may hold at a time."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What is laid on a child before it sees the program.

    Args:
        timeout_s: limit of wall-clock time, seconds; the limit of processor time lies one second above.
        address_bytes: limit of the address space, what the server itself holds included.
        ruleset: descriptor of the Landlock ruleset, None where the kernel has no Landlock.
        program: assembled seccomp filter.
        unsafe: go on without a layer that the kernel refuses.
    """

    timeout_s: float
    address_bytes: int
    ruleset: int | None
    program: bytes
    unsafe: bool

    def apply(self) -> None:
        """This process is confined for good.

        Raises:
            OSError: the kernel refuses a layer, and `unsafe` is not set.
        """
        layers: list[Callable[[], object]] = [
            os.setsid,
            lambda: _limit(self.timeout_s, self.address_bytes),
            drop_identity,
            lambda: syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0),
            # after the change of user, which clears it
            lambda: syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL),
            lambda: syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1),
            lambda: landlock.restrict(self.ruleset) if self.ruleset is not None else None,
            lambda: os.closerange(3, 4 * OPEN_FILES),
            lambda: seccomp.install(self.program),
        ]
        for layer in layers:
            try:
                layer()
            except OSError:
                if not self.unsafe:
                    raise


def prepare(timeout_s: float, address_bytes: int, folders: Sequence[str], unsafe: bool) -> Confinement:
    """The strongest confinement that this kernel offers, with reads of the folders only.

    Raises:
        KeyError: there is no system call table for this processor.
    """
    version = landlock.abi()
    ruleset = landlock.read_only_ruleset(folders, version) if version else None
    program = seccomp.assemble(seccomp.build_filter(syscalls.machine()))
    return Confinement(timeout_s, address_bytes, ruleset, program, unsafe)


def drop_identity() -> None:
    """A root process is nobody, in no group; no process has a capability left.

    Raises:
        OSError: root may not become another user here.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    syscalls.drop_capabilities()


def _limit(timeout_s: float, address_bytes: int) -> None:
    seconds = math.ceil(timeout_s) + 1
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: address_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in limits.items():
        highest = resource.getrlimit(kind)[1]
        value = value if highest == resource.RLIM_INFINITY else min(value, highest)
        resource.setrlimit(kind, (value, value))
