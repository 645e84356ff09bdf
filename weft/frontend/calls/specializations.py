"""The specialisations of one function or session: at most `limit`, each made once however many
threads ask."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from weft.frontend.calls.waiting import TraceLock
from weft.ir.errors import FailedPreconditionError
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock


class RecompileWarning(UserWarning):
    """A function is compiled again and again: some argument makes each call's signature new."""


class CacheInfo(NamedTuple):
    """size: specialisations held. made: ever made. evicted: thrown away to stay within limit."""

    size: int
    made: int
    evicted: int
    limit: int


class Specialization:
    """What is kept per signature; later calls set `used`, the clock hand clears it. compiled: it
    was, and has not only filled its sizes into what others have, too."""

    __slots__ = ("compiled", "number", "used")

    def __init__(self) -> None:
        self.used = False
        self.compiled = True
        self.number = 0

    def take_used(self) -> bool:
        """Whether it was used since this was last asked."""
        used, self.used = self.used, False
        return used


S = TypeVar("S", bound=Specialization)


class Specializations(Generic[S]):
    """A map from signature to specialisation with one lock per signature being made.

    The eviction is the CLOCK approximation of least-recently-used (Corbato 1969): setting one flag
    is all that a call pays for it.
    """

    def __init__(self, name: str, limit: int = 256, look: str | None = None) -> None:
        """look: a call that shows what makes signatures new."""
        self.name = name
        self._look = look or f"{name}.explain(...)"
        self.limit = limit
        self.entries: dict[Hashable, S] = {}
        self.made = 0
        self.evicted = 0
        self._compiled = 0  # of those made
        self._lock = ForkLock()
        self._pending: dict[Hashable, TraceLock] = {}
        self._warned = False

    def get_or_make(self, key: Hashable, make: Callable[[], S]) -> S:
        """The specialisation for `key`; `make` runs at most once per key at a time.

        FailedPreconditionError where it can never end: in a thread that `make` itself waits for.
        """
        with self._lock:
            entry = self.entries.get(key)
            if entry is not None:
                entry.used = True
                return entry
            lock = self._pending.setdefault(key, TraceLock())
        if not lock.acquire(self.name):
            raise FailedPreconditionError(
                f"'{self.name}' is called with arguments of the types that it is being traced for, "
                "by a thread that the trace waits for",
                hint="do not call the function from a thread that it starts itself",
                location=caller_location(),
            )
        try:
            entry = self.entries.get(key)
            if entry is None:
                try:
                    entry = make()
                    self._add(key, entry)
                finally:
                    with self._lock:
                        self._pending.pop(key, None)
            return entry
        finally:
            lock.release()

    def info(self) -> CacheInfo:
        """The counts."""
        return CacheInfo(len(self.entries), self.made, self.evicted, self.limit)

    def _add(self, key: Hashable, entry: S) -> None:
        with self._lock:
            while len(self.entries) >= self.limit:
                self._evict()
            self.made += 1
            entry.number = self.made
            self.entries[key] = entry
            self._compiled += entry.compiled
            many = self._compiled > self.limit
            warn, self._warned = many and not self._warned, self._warned or many
        if warn:
            self._warn()

    def _evict(self) -> None:
        """Move the hand: recently used entries go to the back without their flag, the first other
        goes."""
        while True:
            key, entry = next(iter(self.entries.items()))
            del self.entries[key]
            if not entry.take_used():
                self.evicted += 1
                return
            self.entries[key] = entry

    def _warn(self) -> None:
        place = caller_location()
        message = (
            f"'{self.name}' has been compiled for {self.limit} different signatures; "
            "the least recently used ones are dropped, and planned again when they come back (with "
            "the kernels that there are).\n"
            f"  hint: {self._look} shows which argument differs from call to call"
        )
        file, line = (place[0].file, place[0].line) if place else ("<unknown>", 0)
        warnings.warn_explicit(message, RecompileWarning, file, line)
