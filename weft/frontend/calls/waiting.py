"""A lock for tracing that notices when its holder waits for the thread that wants it.

Tracing runs the user's Python code, which may start threads that call compiled functions and wait
for them; with a plain lock both sides would wait for ever.
"""

from __future__ import annotations

import concurrent.futures.thread as executors
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import FrameType

from weft.ir.errors import FailedPreconditionError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock, in_child

_POLL = 0.05  # seconds between two looks at what the holder does
PATIENCE = 60.0  # seconds that the holder may spend in one wait for what cannot be told
_JOIN = threading.Thread.join.__code__
_RESULT = Future.result.__code__
_RUN = executors._WorkItem.run.__code__

_wanted: dict[int, TraceLock] = {}  # by thread: the lock that it waits for
in_child(_wanted.clear)  # the numbers of threads that are gone are given out again


class TraceLock:
    """A reentrant lock. `acquire` gives up where waiting for it could never end."""

    def __init__(self) -> None:
        self._lock = ForkLock()

    @property
    def owner(self) -> int | None:
        """The thread that holds it."""
        return self._lock.owner

    def acquire(self, name: str) -> bool:
        """True once this thread holds the lock; False if the holder waits for this thread.

        FailedPreconditionError if the holder stays for a minute in one wait for something else (a
        queue, an event), because that might be this thread, too.
        """
        if not self._lock.acquire(blocking=False):
            _wanted[threading.get_ident()] = self
            try:
                if not self._wait(name):
                    return False
            finally:
                _wanted.pop(threading.get_ident(), None)
        return True

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def _wait(self, name: str) -> bool:
        place: tuple[FrameType, int] | None = None
        since = 0.0
        while not self._lock.acquire(timeout=_POLL):
            owner = self.owner
            if owner is None:
                continue
            if _waits_for_me(owner):
                return False
            now = _waiting_place(owner)
            if now is None or now != place:
                place, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise FailedPreconditionError(
                    f"'{name}' is being traced by another thread, which has been waiting for "
                    f"something for {PATIENCE:g} seconds",
                    hint="if it waits for this thread, neither can go on: call the function once "
                    "before threads are started, and wait for no thread in it",
                    location=caller_location(),
                )
        return True


def _frames(thread: int) -> Iterator[FrameType]:
    """The Python frames of a thread, innermost first."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_for_me(thread: int) -> bool:
    """Whether `thread` waits for this thread, or for one that does."""
    seen = set[int]()
    waiting: int | None = thread
    while waiting is not None and waiting not in seen:
        seen.add(waiting)
        waiting = _awaited(waiting)
        if waiting == threading.get_ident():
            return True
    return False


def _awaited(thread: int) -> int | None:
    """The thread that `thread` waits for now, if that can be told: in Thread.join, Future.result,
    or for a `TraceLock`."""
    lock = _wanted.get(thread)
    if lock is not None:
        return lock.owner
    for frame in _frames(thread):
        if frame.f_code is _JOIN:
            found: int | None = frame.f_locals["self"].ident
            return found
        if frame.f_code is _RESULT:
            return _runner(frame.f_locals["self"])
        if frame.f_code.co_filename != _JOIN.co_filename:
            return None
    return None


def _runner(future: object) -> int | None:
    """The thread of an executor that works on `future`."""
    for thread in list(sys._current_frames()):
        for frame in _frames(thread):
            if frame.f_code is _RUN and frame.f_locals["self"].future is future:
                return thread
    return None


def _waiting_place(thread: int) -> tuple[FrameType, int] | None:
    """Where `thread` waits for a lock, condition or event of `threading`; None if it does not."""
    frame = next(_frames(thread), None)
    if frame is None or frame.f_code.co_filename != _JOIN.co_filename:
        return None
    return frame, frame.f_lasti  # holding the frame tells a later wait from this one
