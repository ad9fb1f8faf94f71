"""A world of one's own: no network, no other processes, and a root that holds a few read-only folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from arl_lightning.envs.sandbox import syscalls
from arl_lightning.envs.sandbox.confinement import NOBODY, drop_identity

_BIND_RECURSIVELY = 4096 | 16384
_PRIVATE_RECURSIVELY = 1 << 18 | 16384
_NOSUID_NODEV = 2 | 4
_WORLD = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET
)


def allowed_flags(folders: Sequence[str]) -> int:
    """The namespaces that this process may enter, tried out in a child; 0 when it may enter none.

    Root enters them as it is; everybody else, and a root who cannot become another user, as the root of a new user
    namespace.
    """
    candidates = [_WORLD, _WORLD | syscalls.CLONE_NEWUSER] if os.geteuid() == 0 else [_WORLD | syscalls.CLONE_NEWUSER]
    return next((flags for flags in candidates if _succeeds(flags, folders)), 0)


def enter(flags: int, folders: Sequence[str]) -> None:
    """This process lives in new namespaces, with a root that holds only the folders; its next child is process 1."""
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(flags)
    if flags & syscalls.CLONE_NEWUSER:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {group} 1")
    _build_root(folders)


def _succeeds(flags: int, folders: Sequence[str]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            enter(flags, folders)
            drop_identity()
            code = os.getuid() == 0
        except OSError:
            code = 1  # the kernel, or a container's policy, said no: that is the answer
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _build_root(folders: Sequence[str]) -> None:
    """The root is a small read-only file system that holds the folders at the paths they had."""
    sources = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for folder in _outermost(folders)}
    root = tempfile.gettempdir()
    syscalls.mount("", "/", "", _PRIVATE_RECURSIVELY)
    syscalls.mount("none", root, "tmpfs", _NOSUID_NODEV, "mode=755,size=64k")
    os.umask(0o022)
    for folder, descriptor in sources.items():  # /tmp may have hidden a folder: the descriptor still names it
        os.makedirs(root + folder)
        syscalls.mount(f"/proc/self/fd/{descriptor}", root + folder, "", _BIND_RECURSIVELY)
        os.close(descriptor)
    syscalls.make_read_only(root)
    os.chdir(root)
    syscalls.pivot_root_here()
    os.chdir("/")


def _outermost(folders: Sequence[str]) -> list[str]:
    """The folders that lie in no other one, sorted."""
    kept: list[str] = []
    for folder in sorted(folders):
        if not any(folder == outer or folder.startswith(outer + "/") for outer in kept):
            kept.append(folder)
    return kept


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
