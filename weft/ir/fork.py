"""What `os.fork` means for locks: the child has the thread that forked, and no other.

Two ways to be safe. What takes long, or is held by the user's code, is a `ForkLock`: the fork does
not wait, and the child finds the lock free. What native code holds while it writes must be waited
for: `around_fork`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


class ForkLock:
    """A reentrant lock that no thread holds in a forked child but the one that forked.

    What it guards must make sense after every single step of a holder that is gone.
    """

    __slots__ = ("__weakref__", "_depth", "_lock", "owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self.owner: int | None = None  # the thread that holds it
        _locks.add(self)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`."""
        if not self._lock.acquire(blocking, timeout):
            return False
        self.owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        """Give it back once."""
        self._depth -= 1
        if not self._depth:
            self.owner = None
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renew(self) -> None:
        if self._lock.acquire(blocking=False):  # free, or held by the thread that forked
            self._lock.release()
            return
        self._lock = threading.RLock()
        self._depth = 0
        self.owner = None


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def in_child(after: Callable[[], object]) -> None:
    """Have `after` called in every child, where there is fork at all."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after)


def around_fork(before: Callable[[], object], after: Callable[[], object]) -> None:
    """Have `before` called ahead of a fork and `after` behind it, in parent and child.

    What was given last runs first ahead of a fork, and last behind it.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)


def _renew_all() -> None:
    for lock in list(_locks):
        lock._renew()


in_child(_renew_all)
