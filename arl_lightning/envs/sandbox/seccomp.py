"""A filter that lets through the system calls a calculation needs and refuses all others.

An allow-list: what is not named fails with EPERM, so sockets, exec, fork, threads, signals to anybody, ptrace, mounts,
chmod, xattr, memfd, io_uring, bpf, keyrings and calls of future kernels need no mention. Calls of a foreign
architecture, and of x86's x32 interface, end the process. Files can be opened for reading only, memory is never
writable and executable, and anonymous memory never executable.

Source: Linux kernel documentation, userspace-api/seccomp_filter; numbers from asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Mapping

from arl_lightning.envs.sandbox import syscalls

AUDIT_ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (number on x86_64, number on aarch64); None where the architecture lacks the call. The frequent ones lead.
ALLOWED: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "fadvise64": (221, 223),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "alarm": (37, None),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "pause": (34, None),
    "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "uname": (63, 160),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "exit": (60, 93),
    "exit_group": (231, 94),
}

# Calls whose arguments decide.
EXAMINED: Mapping[str, tuple[int | None, int | None]] = {
    "openat": (257, 56),
    "open": (2, None),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "fcntl": (72, 25),
    "prlimit64": (302, 261),
    "ioctl": (16, 29),
}

_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_X32_BIT = 0x40000000
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
# write-only, read-write, create, truncate, append, path-only, temporary file: the same bits on both architectures
_NOT_JUST_READING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o10000000 | 0o20000000
_PROT_WRITE, _PROT_EXEC, _MAP_ANONYMOUS = 2, 4, 0x20
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; F_SETOWN would send signals
_HARMLESS_FCNTL = (0, 1, 2, 3, 4, 1030)

Instruction = tuple[int, int, int, int]
"""Code, instructions skipped when true, instructions skipped when false, operand."""

_PASS: Instruction = (_RETURN, 0, 0, _ALLOW)
_REFUSE: Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_END: Instruction = (_RETURN, 0, 0, _KILL)


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * high)  # both architectures are little-endian


def _unless_bits(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), _REFUSE, _PASS]


def _decision(name: str) -> list[Instruction]:
    """The instructions that end one of the `EXAMINED` calls."""
    match name:
        case "open":
            return _unless_bits(1, _NOT_JUST_READING)
        case "openat":
            return _unless_bits(2, _NOT_JUST_READING)
        case "mprotect":
            return _unless_bits(2, _PROT_EXEC)
        case "mmap":
            executable = [_argument(2), (_ANY_BIT, 1, 0, _PROT_EXEC), _PASS]
            return [*executable, (_ANY_BIT, 0, 1, _PROT_WRITE), _REFUSE, *_unless_bits(3, _MAP_ANONYMOUS)]
        case "fcntl":
            known = [step for command in _HARMLESS_FCNTL for step in ((_EQUAL, 0, 1, command), _PASS)]
            return [_argument(1), *known, _REFUSE]
        case "prlimit64":  # own limits may be read: process 0 and no new limit
            words = [_argument(0), _argument(2), _argument(2, high=True)]
            return [step for word in words for step in (word, (_EQUAL, 1, 0, 0), _REFUSE)] + [_PASS]
        case "ioctl":  # no descriptor of the program is a terminal
            return [(_RETURN, 0, 0, _ERRNO | errno.ENOTTY)]
    raise KeyError(name)


def build_filter(machine: str) -> list[Instruction]:
    """The filter's instructions for `x86_64` or `aarch64`.

    Raises:
        KeyError: there is no table for the machine.
    """
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]), _END, (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, _X32_BIT), _END]
    column = list(AUDIT_ARCHITECTURES).index(machine)
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), _PASS]
    for name, numbers in EXAMINED.items():
        if (number := numbers[column]) is not None:
            decision = _decision(name)
            steps += [(_EQUAL, 0, len(decision), number), *decision]
    return [*steps, _REFUSE]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def assemble(steps: list[Instruction]) -> bytes:
    """The instructions as the kernel reads them, eight bytes each."""
    return b"".join(
        code.to_bytes(2, "little") + bytes((true, false)) + operand.to_bytes(4, "little")
        for code, true, false, operand in steps
    )


def install(program: bytes) -> None:
    """This process runs under the filter for good; it must have no_new_privs."""
    header = _Program(len(program) // 8, program)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, 2, ctypes.cast(ctypes.pointer(header), ctypes.c_void_p))
