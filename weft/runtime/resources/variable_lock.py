"""Readers-writer lock of a variable: many steps read it at once, or one writes it.

A writer holds the `gate`, a reentrant lock, from before it waits for the readers to its end. While
`depth` is 0 a reader only notes its thread; else it goes through the gate, behind the writer, so
that no stream of readers keeps a writer out. The thread that comes second sees the first: a reader
notes itself, then looks at `depth`; a writer sets `depth`, then looks for readers. So no mutex is
held in between, and what a signal handler or finaliser takes, and gives back, at any point of that
is in order. The GIL orders loads and stores.

Native steps (`native/call_path.py`) note themselves in `cells`, without Python; all others, and
those for which no cell is free, in a list. A thread may hold the lock several times, and read what
it writes. One that reads becomes a writer as soon as nobody else reads; if two want that, each
would wait for the other, and the second gets a FailedPreconditionError.

Forks: a fork waits for writers, whose variables are half written, and not for readers. A child has
no readers but the thread that forked."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from weft.ir.errors import FailedPreconditionError

#: So many native readers are noted without Python.
CELLS = 4
_ALONE = (1).to_bytes(8, sys.byteorder) + bytes(8 * CELLS)  # one writer, no reader in a cell
_LOW = 0 if sys.byteorder == "little" else 7  # of `depth`: nobody holds it 256 times in Python
_LOOK = 0.05  # seconds between two looks of who waits for a gate while others wait for it
_ident = threading.get_ident


class VariableLock:
    """The lock of one variable. `acquire`, `release` and `with` are a writer's, as of
    `threading.RLock`; `shared` is a reader's `with`.

    gate: who holds it keeps writers out, and nobody else. words: `depth`, how often its writer
    holds it, then the cells. readers: those that are in no cell.
    """

    __slots__ = ("_buffer", "_sleeper", "gate", "readers", "words")

    def __init__(self) -> None:
        self.gate = threading.RLock()
        self._buffer = bytearray(8 * (1 + CELLS))
        self.words = (ctypes.c_int64 * (1 + CELLS)).from_buffer(self._buffer)
        self.readers: list[int] = []  # one object for ever: native code looks here, too
        self._sleeper: threading.Lock | None = None  # of a writer that waits for the readers

    # ------------------------------------------------------------------------------------- writers
    def acquire(self, timeout: float = -1) -> bool:
        """Be the writer; False if that takes more seconds (-1: no limit)."""
        if not self.gate.acquire(False) and not self._wait_for_gate(timeout):
            return False
        self._buffer[_LOW] += 1
        if self._buffer == _ALONE and not self.readers:
            return True
        try:
            done = self._wait_for_readers(timeout)
        except BaseException:
            self.release()
            raise
        if not done:
            self.release()
        return done

    def release(self) -> None:
        """Give it back once."""
        self._buffer[_LOW] -= 1
        self.gate.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait_for_gate(self, timeout: float) -> bool:
        """The gate, which was not free. Of those that hold it, only a writer may wait for this
        thread, if that reads."""
        if not self._is_read_by(_ident()):
            return self.gate.acquire(timeout=timeout)
        until = None if timeout < 0 else time.monotonic() + timeout
        while not self.gate.acquire(timeout=_LOOK):
            if self.words[0]:
                raise FailedPreconditionError(
                    "a variable cannot be written in the middle of a step that reads it, while "
                    "another thread waits to write it",
                    hint="let the step return the new value, or write it after the step",
                )
            if until is not None and time.monotonic() > until:
                return False
        return True

    def _wait_for_readers(self, timeout: float) -> bool:
        """The gate is held, and `depth` says so: no other thread begins to read."""
        until = None if timeout < 0 else time.monotonic() + timeout
        me, outer = _ident(), self._sleeper  # outer: of what this thread does below a handler
        try:
            while self._is_read_beside(me):
                sleeper = threading.Lock()
                sleeper.acquire()
                self._sleeper = sleeper
                if not self._is_read_beside(me):
                    break
                left = -1.0 if until is None else max(0.0, until - time.monotonic())
                if not sleeper.acquire(timeout=left):
                    return False
        finally:
            self._sleeper = outer
            if outer is not None:
                _wake(outer)
        return True

    # ------------------------------------------------------------------------------------- readers
    def acquire_shared(self, timeout: float = -1) -> bool:
        """Be a reader; False if that takes more seconds (-1: no limit)."""
        me = _ident()
        self.readers.append(me)
        if not self.words[0] or [*self.readers, *self.words[1:]].count(me) > 1:
            return True  # if this thread read before, who waits to write waits for it already
        self.release_shared()
        if not self.gate.acquire(timeout=timeout):
            return False
        self.readers.append(me)  # nobody writes now but this thread
        self.gate.release()
        return True

    def release_shared(self) -> None:
        """Give it back once."""
        me = _ident()
        try:
            self.readers.remove(me)
        except ValueError:
            self.words[1 + self.words[1:].index(me)] = 0
        sleeper = self._sleeper
        if sleeper is not None:
            _wake(sleeper)

    def shared(self) -> _Shared:
        """Be a reader in a `with` block."""
        return _Shared(self)

    def ways(self, writes: bool) -> tuple[Callable[..., bool], Callable[[], None]]:
        """What takes it for a writer or a reader, and what gives it back."""
        if writes:
            return self.acquire, self.release
        return self.acquire_shared, self.release_shared

    def _is_read_by(self, thread: int) -> bool:
        return thread in self.readers or thread in self.words[1:]

    def _is_read_beside(self, thread: int) -> bool:
        """Whether another thread reads."""
        held = [*self.readers, *self.words[1:]]
        return any(reader not in (0, thread) for reader in held)

    # --------------------------------------------------------------------------------------- forks
    def before_fork(self) -> bool:
        """Keep writers out; whether that took the gate. While this thread reads nobody writes, and
        who waits to may hold the gate."""
        return not self._is_read_by(_ident()) and self.gate.acquire()

    def after_fork_in_child(self) -> None:
        """No other thread reads or writes."""
        me = _ident()
        if self.gate.acquire(blocking=False):
            self.gate.release()
        else:  # of a thread that waited for this one
            self.gate._at_fork_reinit()  # type: ignore[attr-defined]
            self.words[0] = 0
            self._sleeper = None
        self.readers[:] = [reader for reader in self.readers if reader == me]
        for i, reader in enumerate(self.words[1:], 1):
            if reader != me:
                self.words[i] = 0


class _Shared:
    __slots__ = ("_lock",)

    def __init__(self, lock: VariableLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire_shared()

    def __exit__(self, *_: object) -> None:
        self._lock.release_shared()


def _wake(sleeper: threading.Lock) -> None:
    with suppress(RuntimeError):  # another reader was as late, and has woken it
        sleeper.release()
