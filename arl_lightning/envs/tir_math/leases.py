"""Helpers that all environments of a process share: opened for the first holder, closed with the last."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be shared: anything that frees itself when told to."""

    def close(self) -> None:
        """It is freed."""
        ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closable)


@dataclass(frozen=True, slots=True)
class Lease(Generic[T]):
    """A holder's claim to a shared thing, of use in the process that took it.

    Attributes:
        thing: what is shared.
        release: gives the claim up; again without effect. Called by itself when the holder or the interpreter goes.
        pid: the process that took it; a forked child must take its own.
    """

    thing: T
    release: Callable[[], object]
    pid: int


class Shared(Generic[K, T]):
    """At most one open thing per process and set of options.

    Args:
        open_thing: makes the thing for its options.
    """

    def __init__(self, open_thing: Callable[[K], T]) -> None:
        self._open_thing = open_thing
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def lease(self, holder: object, options: K) -> Lease[T]:
        """A claim of `holder` to the thing with these options, opened now when nobody else holds it."""
        with self._lock:
            thing, holders = self._open.get(options) or (self._open_thing(options), 0)
            self._open[options] = (thing, holders + 1)
        pid = os.getpid()
        return Lease(thing, weakref.finalize(holder, self._release, options, pid), pid)

    def __len__(self) -> int:
        """Number of things that are open in this process."""
        return len(self._open)

    def _release(self, options: K, pid: int) -> None:
        if pid != os.getpid():
            return  # the parent's, and still in use there
        with self._lock:
            thing, holders = self._open.pop(options)
            if holders > 1:
                self._open[options] = (thing, holders - 1)
                return
        thing.close()

    def _forget(self) -> None:
        self._open: dict[K, tuple[T, int]] = {}
        self._lock = threading.RLock()  # a holder may be collected, and so released, while this thread leases
