"""A lock for tracing that notices when its holder waits for the thread that wants it.

Tracing runs the user's Python code, which may start threads that call compiled functions and wait
for them; with a plain lock both sides would wait for ever.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import FrameType

from weft.ir.errors import FailedPreconditionError
from weft.ir.source import caller_location

_POLL = 0.05  # seconds between two looks at what the holder does
_PATIENCE = 60.0  # seconds that the holder may stay in one wait that cannot be seen through
_JOIN = threading.Thread.join.__code__
_RESULT = Future.result.__code__


class TraceLock:
    """A reentrant lock. `acquire` gives up where waiting for it could never end."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread that holds it
        self._depth = 0

    def acquire(self, name: str) -> bool:
        """True once this thread holds the lock; False if the holder waits for this thread to end.

        FailedPreconditionError if the holder stays for a minute in a wait for something else (a
        queue, an event): this thread might be what it waits for.
        """
        stuck: tuple[int, int] | None = None
        since = 0.0
        while not self._lock.acquire(timeout=_POLL):
            owner = self._owner
            if owner is None:
                continue
            if _waits_for_me(owner):
                return False
            place = _waiting_place(owner)
            if place is None or place != stuck:
                stuck, since = place, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                raise FailedPreconditionError(
                    f"'{name}' is being traced by another thread, which has been waiting for "
                    f"something for {_PATIENCE:.0f} seconds",
                    hint="if it waits for this thread, neither can go on: call the function once "
                    "before you start threads, and do not wait for threads in it",
                    location=caller_location(),
                )
        self._owner = threading.get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._lock.release()


def _frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_for_me(thread: int) -> bool:
    """Whether `thread` waits in Thread.join or Future.result for this thread, or for one that
    does."""
    me, seen = threading.get_ident(), set[int]()
    waiting: int | None = thread
    while waiting is not None and waiting not in seen:
        seen.add(waiting)
        waiting = _awaited(waiting)
        if waiting == me:
            return True
    return False


def _awaited(thread: int) -> int | None:
    """The thread that `thread` waits for now, if that can be told."""
    for frame in _frames(thread):
        if frame.f_code is _JOIN:
            found: int | None = frame.f_locals["self"].ident
            return found
        if frame.f_code is _RESULT:
            return _runs(frame.f_locals["self"])
        if frame.f_code.co_filename != threading.__file__:
            return None
    return None


def _runs(future: object) -> int | None:
    """The thread that works on `future`: below it is the work item of an executor."""
    for thread in list(sys._current_frames()):
        for frame in _frames(thread):
            if getattr(frame.f_locals.get("self"), "future", None) is future:
                return thread
    return None


def _waiting_place(thread: int) -> tuple[int, int] | None:
    """Where `thread` waits for a lock, a condition or an event of `threading`; None if it runs."""
    frame = next(_frames(thread), None)
    if frame is None or frame.f_code.co_filename != threading.__file__:
        return None
    return id(frame), frame.f_lasti
