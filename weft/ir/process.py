"""Process-wide services: locks that survive `os.fork`, the garbage collector's pause, late loading.

Forks: a child has the thread that forked, and no other. What takes long, or is held by the user's
code, is a `ForkLock`: the fork does not wait, and the child finds the lock free. What native code
holds while it writes must be waited for: `around_fork`.

Collector: passes make new ops by the thousand and keep them, as loading keeps modules; every so
many of them Python's cyclic collector would look through all that there are without finding
anything to free. That is a quarter of the time that Python takes for a transformer's training step,
and a tenth of loading. `collector_paused` turns it off; reference counts free what is dropped.

C: `cpython` are the functions of CPython's C API, with prototypes of weft's own.

Loading: `load` imports a module of weft with the first use of one of its names. A child that is
forked meanwhile would have half a module, so the fork waits (`loading`)."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

#: The functions of `ctypes.pythonapi` are one for the whole process, and other libraries set their
#: prototypes: with numba.cuda's, `Py_DecRef` of an address drops a reference to the number.
cpython = ctypes.PyDLL(ctypes.pythonapi._name, handle=ctypes.pythonapi._handle)


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


class _Row(NamedTuple):
    before: Callable[[], object] | None
    in_parent: Callable[[], object] | None
    in_child: Callable[[], object] | None


#: Held by a thread that loads modules of weft: a child would have half a module, and its lock for
#: ever. A fork waits for the thread; not without end, as who forks may hold what that one needs.
loading = threading.RLock()
MOST_SECONDS = 10.0  # many times what loading all of weft takes, on a busy machine too
_rows: list[_Row] = []
_forks = threading.local()  # what `_before_all` did, for the other two


def in_child(after: Callable[[], object]) -> None:
    """Have `after` called in every child, where there is fork at all."""
    _rows.append(_Row(None, None, after))


def around_fork(
    before: Callable[[], object],
    after: Callable[[], object],
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Have `before` called ahead of a fork and `after` behind it, in parent and child (in the child
    `after_in_child` instead, if it is given).

    What was given last runs first ahead of a fork, and last behind it.
    """
    _rows.append(_Row(before, after, after_in_child or after))


def _before_all() -> None:
    """Modules that are loaded meanwhile add rows: those wait for the next fork."""
    _forks.waited = loading.acquire(timeout=MOST_SECONDS)
    _forks.rows = list(_rows)
    _run([row.before for row in reversed(_forks.rows)])


def _after_in_parent() -> None:
    _after_all([row.in_parent for row in _forks.rows])


def _after_in_child() -> None:
    _after_all([row.in_child for row in _forks.rows])


def _after_all(handlers: list[Callable[[], object] | None]) -> None:
    try:
        _run(handlers)
    finally:
        if _forks.waited:
            loading.release()


def _run(handlers: list[Callable[[], object] | None]) -> None:
    """All of them, whatever one raises; then that is raised, and Python reports it."""
    errors: list[Exception] = []
    for handler in handlers:
        try:
            if handler is not None:
                handler()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _renew_all() -> None:
    for lock in list(_locks):
        lock._renew()


in_child(_renew_all)
if hasattr(os, "register_at_fork"):
    # ahead of a fork Python calls what was registered last first. This one must run before those of
    # modules whose locks weft takes under its own
    importlib.import_module("logging")
    importlib.import_module("concurrent.futures.thread")
    os.register_at_fork(
        before=_before_all, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


_lock = ForkLock()
_state = {"depth": 0, "was_enabled": False}


def _after_fork_in_child() -> None:
    """No other thread is here to end its pause. One of the thread that forked ends early."""
    if _state["depth"] and _state["was_enabled"]:
        gc.enable()
    _state["depth"] = 0


in_child(_after_fork_in_child)


@contextmanager
def collector_paused(old: bool = False) -> Iterator[None]:
    """No automatic collections in any thread; only for work that runs none of the user's code.

    old: whether all objects there are then count as old: only a full collection looks at them.
    """
    with _lock:
        if not _state["depth"]:
            _state["was_enabled"] = gc.isenabled()
            gc.disable()
        _state["depth"] += 1
    try:
        yield
    finally:
        if old and not gc.get_freeze_count():  # else what the user froze would thaw
            gc.freeze()
            gc.unfreeze()  # to the oldest generation, in no time
        with _lock:
            _state["depth"] = max(0, _state["depth"] - 1)
            if not _state["depth"] and _state["was_enabled"]:
                gc.enable()


#: When this process began to read weft's sources, roughly (seconds since the epoch). Of a file that
#: changed later nobody knows which text runs.
LOADED_AT = time.time()


def load(module: str, name: str | None = None) -> object:
    """A module, or what it calls `name`. Errors as those of `import`."""
    with loading, collector_paused(old=module not in sys.modules):
        found = importlib.import_module(module)
    return found if name is None else getattr(found, name)
