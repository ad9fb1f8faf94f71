"""A Landlock domain in which a few folders can be read and nothing can be written.

Source: Linux kernel documentation, userspace-api/landlock.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from arl_lightning.envs.sandbox import syscalls

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# How many rights over files each version knows: they are the lowest bits.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_FILE_RIGHTS = 16
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def abi() -> int:
    """The version of Landlock that the kernel offers, 0 when it offers none."""
    try:
        return syscalls.syscall(_CREATE_RULESET, None, 0, 1)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def ruleset_bytes(version: int) -> bytes:
    """The attributes of a ruleset that handles, and so refuses, all that this version knows."""
    words = [(1 << _FILE_RIGHTS.get(version, _ALL_FILE_RIGHTS)) - 1]
    if version >= 4:
        words.append(_BIND_AND_CONNECT_TCP)
    if version >= 6:
        words.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    return b"".join(word.to_bytes(8, "little") for word in words)


def read_only_ruleset(folders: Sequence[str], version: int) -> int:
    """A descriptor of a ruleset that lets these folders be read and refuses everything else; the caller closes it."""
    attributes = ruleset_bytes(version)
    ruleset = syscalls.syscall(
        _CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0
    )
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = (_READ_FILE | _READ_DIR).to_bytes(8, "little") + descriptor.to_bytes(4, "little")
        syscalls.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
        os.close(descriptor)
    return ruleset


def restrict(ruleset: int) -> None:
    """This process and its children live in the ruleset's domain for good; it must have no_new_privs."""
    syscalls.syscall(_RESTRICT_SELF, ruleset, 0)
