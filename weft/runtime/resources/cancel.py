"""`CancelToken`: one signal that ends any number of waiting operations."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from weft.ir.errors import CancelledError, DeadlineExceededError, WeftError
from weft.ir.graph import Operation

T = TypeVar("T")


class CancelToken:
    """Given to operations that may wait; `cancel()` makes each of them fail with CancelledError.

    It stays cancelled: operations that are given it afterwards fail at once, without any effect.
    exchange: what a step that is a part of a larger one exchanges messages by with the other parts
    (`dataflow.host_ops.communication.Exchange`); None for all others. until: the time by
    `time.monotonic` at which whoever looks at the token is to end with DeadlineExceededError; the
    token itself does nothing then.
    """

    # Without a lock, so that a signal handler may cancel at any moment: each line is one operation
    # on a dict, and whoever takes a callback out of the dict calls it.
    __slots__ = ("_callbacks", "_cancelled", "_kept", "_numbers", "exchange", "reason", "until")

    def __init__(self, exchange: Any = None) -> None:
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count()
        self._cancelled = False
        self._kept: list[object] = []
        self.reason = ""
        self.exchange = exchange
        self.until: float | None = None

    def __repr__(self) -> str:
        return f"<CancelToken{': cancelled' if self._cancelled else ''}>"

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel()` was called."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """Whether who looks at the token is to end: it is cancelled, or the time is up."""
        return self._cancelled or (self.until is not None and time.monotonic() > self.until)

    def end_if_over(self) -> None:
        """For a loop that goes on: DeadlineExceededError if the step's time is up, CancelledError
        if it was cancelled."""
        if self.until is not None and time.monotonic() > self.until:
            raise too_late()
        if self._cancelled:
            raise CancelledError(f"the step was cancelled: {self.reason or 'no reason given'}")

    def error(self, doing: str) -> WeftError:
        """What they raise then; doing: what they were at."""
        if self._cancelled:
            why = self.reason or "no reason given"
            return CancelledError(f"the step was cancelled: {why}; {doing}")
        return DeadlineExceededError(
            f"the step did not end in time; {doing}", hint="give a longer timeout"
        )

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[CancelToken]:
        """A token that ends as this one does, and after so many seconds; None: this one."""
        if seconds is None:
            yield self
            return
        own = CancelToken(self.exchange)
        own.until = time.monotonic() + seconds
        forget = self.register(lambda: own.cancel(self.reason))
        try:
            yield own
        finally:
            forget()

    def cancel(self, reason: str = "") -> None:
        """End what waits with this token; further calls do nothing. `reason` goes into the
        errors."""
        if not self._cancelled:
            self.reason = reason
            self._cancelled = True  # before the look: what is registered later sees it
        for number in list(self._callbacks):
            self._call(number)

    def register(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called by `cancel()`, at once if that was before. Returns what takes the
        registration back (it may be called twice)."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        if self._cancelled:
            self._call(number)
        return lambda: self._unregister(number)

    def keep(self, held: object) -> None:
        """Keep `held` as long as this token, or until `let_go()`; cancelling does not end it."""
        self._kept.append(held)

    def kept(self, kind: type[T]) -> T | None:
        """The first thing of that class that the token keeps."""
        return next((held for held in self._kept if isinstance(held, kind)), None)

    def let_go(self) -> None:
        """Drop what the token keeps."""
        self._kept.clear()

    def _call(self, number: int) -> None:
        callback = self._callbacks.pop(number, None)
        if callback is not None:
            callback()

    def _unregister(self, number: int) -> None:
        self._callbacks.pop(number, None)


def too_late(waits: Sequence[Operation] = ()) -> DeadlineExceededError:
    """The error of a step whose time is up while it waits for these ops."""
    names = sorted({op.name for op in waits})
    return DeadlineExceededError(
        f"the step did not end in time; it waits for {', '.join(names) or 'computation'}",
        hint="give a longer timeout, or see why nothing arrives there",
        location=waits[0].locations if waits else (),
    )
