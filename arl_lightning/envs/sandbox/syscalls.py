"""System calls that Python 3.11 does not wrap, as functions that raise OSError."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    """The processor architecture as this process's system calls see it: `x86_64`, `aarch64`, or another name."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


def checked(result: int, what: str) -> int:
    """The result of a C call.

    Raises:
        OSError: it is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def syscall(number: int, *arguments: int | ctypes.c_void_p | ctypes.Array[ctypes.c_char] | None) -> int:
    """The result of a system call named by its number; integers are passed as 64 bits."""
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return checked(int(_libc.syscall(ctypes.c_long(number), *words)), f"system call {number}")


def prctl(option: int, second: int = 0, third: ctypes.c_void_p | int = 0) -> None:
    """One attribute of this process is set."""
    third = ctypes.c_ulong(third) if isinstance(third, int) else third  # type: ignore[assignment]
    nothing = ctypes.c_ulong(0)
    checked(_libc.prctl(option, ctypes.c_ulong(second), third, nothing, nothing), f"prctl {option}")


def unshare(flags: int) -> None:
    """This process has left the namespaces that the flags name for new ones."""
    checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """This process has joined a namespace; for CLONE_NEWPID, its next children."""
    checked(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """A file system is mounted."""
    words = [word.encode() or None for word in (source, target, kind)]
    checked(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def detach(target: str) -> None:
    """A mount point is gone from the tree."""
    checked(_libc.umount2(target.encode(), 2), f"umount {target}")


def pivot_root_here() -> None:
    """The working folder, a mount point, is the root; the old root is gone."""
    here = ctypes.create_string_buffer(b".")
    syscall(_PIVOT_ROOT[machine()], here, here)
    detach(".")  # the old root lies stacked on the new one


def make_read_only(target: str) -> None:
    """A mount and those below it refuse writes, set-user-id bits and devices."""
    attributes = ctypes.create_string_buffer((1 | 2 | 4).to_bytes(8, "little") + bytes(24), 32)
    at_cwd, recursive, mount_setattr = -100, 0x8000, 442
    syscall(mount_setattr, at_cwd, ctypes.create_string_buffer(target.encode()), recursive, attributes, 32)


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; the caller closes it."""
    return syscall(434, pid, 0)


def drop_capabilities() -> None:
    """This process holds no capability and can get none back, since it also has no_new_privs."""
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), 8)
    syscall(_CAPSET[machine()], header, ctypes.create_string_buffer(24))
