"""`Coordinator`: threads that stop together, and whose first exception reaches who joins them
(TensorFlow 1's `tf.train.Coordinator`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from weft.ir.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfRangeError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.attempts import Attempt, Done, Resource

_log = logging.getLogger("weft.resources")

#: What `request_stop` takes beside an exception: `sys.exc_info()`.
ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class ThreadsStillRunningError(DeadlineExceededError, RuntimeError):
    """Threads did not end in the time that `Coordinator.join` gives them (a RuntimeError, as in
    TensorFlow)."""


class Coordinator(Resource):
    """Threads ask `should_stop()` in their loops; any of them may `request_stop`.

    clean_stop_exception_types: exceptions that ask for a stop, but are no errors (the end of the
    input by default); `join` does not raise them.

    >>> import threading
    >>> coordinator = wf.train.Coordinator()
    >>> def work(n):
    ...     with coordinator.stop_on_exception():
    ...         while not coordinator.should_stop():
    ...             1 / n
    >>> threads = [threading.Thread(target=work, args=(n,)) for n in (1, 0)]
    >>> for thread in threads:
    ...     thread.start()
    >>> coordinator.join(threads)  # both have ended; the error of the one is raised here
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    """

    kind = "Coordinator"
    #: Whether queue runners close their queues at the stop; not where others go on with them.
    closes_queues = True

    def __init__(
        self, clean_stop_exception_types: Sequence[type[BaseException]] | None = None
    ) -> None:
        super().__init__("coordinator")
        self._clean = (
            (OutOfRangeError,)
            if clean_stop_exception_types is None
            else tuple(clean_stop_exception_types)
        )
        self._stopped = False
        self._joined = False
        self._error: BaseException | None = None
        self._registered: dict[threading.Thread, None] = {}
        # all that wait here have conditions of their own: a line for each
        self._conditions: deque[Attempt] = deque()
        self._lines = (self._conditions,)

    # -------------------------------------------------------------------------------- stopping
    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """Ask all threads to stop. `join` raises `ex` (an exception or `sys.exc_info()`), if it is
        the first and no clean stop. After `join` it is raised here: nobody else would see it."""
        error = self._exception(ex)
        if self._joined:
            if error is not None:
                raise error
            return

        def stop() -> None:
            if not self._stopped:
                self._stopped, self._error = True, error

        if error is not None:
            _log.info("stop requested because of %r", error)
        self._change(stop)

    def clear_stop(self) -> None:
        """Forget that a stop was asked for, and why; threads may be run again."""

        def clear() -> None:
            self._joined = self._stopped = False
            self._error = None

        self._change(clear)

    def should_stop(self) -> bool:
        """Whether a stop was asked for."""
        return self._stopped

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is asked for, at most `timeout` seconds; whether it was."""
        return self._until("wait_for_stop", lambda: self._stopped, timeout)

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Any exception in the block asks for a stop, with that exception, and ends there."""
        try:
            yield
        except BaseException as error:  # also SystemExit: the thread ends, all others must
            self.request_stop(error)

    def raise_requested_exception(self) -> None:
        """Raise what was given to `request_stop`, if it was an error."""
        error = self._error
        if error is not None:
            raise error

    def _exception(self, ex: object) -> BaseException | None:
        if isinstance(ex, tuple):
            error = ex[1] if len(ex) == 3 else ex
            if isinstance(error, BaseException) and error.__traceback__ is None:
                error = error.with_traceback(ex[2])
        else:
            error = ex
        if error is not None and not isinstance(error, BaseException):
            raise InvalidArgumentError(
                f"request_stop(ex={ex!r}) takes an exception or sys.exc_info()",
                location=caller_location(),
            )
        return None if isinstance(error, self._clean) else error

    # --------------------------------------------------------------------------------- joining
    @property
    def joined(self) -> bool:
        """Whether `join` has ended since the last `clear_stop`."""
        return self._joined

    def register_thread(self, thread: threading.Thread) -> None:
        """Have `join()` wait for this thread, too."""
        with self._lock:
            self._registered[thread] = None

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until the threads (and the registered ones) have ended. Once a stop is asked for,
        they have `stop_grace_period_secs` to do so.

        Then raises the exception given to `request_stop`, if any; else ThreadsStillRunningError (a
        RuntimeError) naming the threads that still run, unless `ignore_live_threads`.
        """
        with self._lock:
            all_threads = [*dict.fromkeys([*self._registered, *(threads or ())])]
        if threading.current_thread() in all_threads:
            raise InvalidArgumentError(
                "a thread cannot wait in Coordinator.join for itself", location=caller_location()
            )
        ended = self._watch(all_threads)
        self._until("join", lambda: self._stopped or ended.is_set(), None)
        if not ended.is_set():
            self._until("join", ended.is_set, max(stop_grace_period_secs, 0))
        running = [t.name for t in all_threads if t.is_alive()]
        with self._lock:
            self._joined = True
            self._registered.clear()
        self.raise_requested_exception()
        if not running:
            return
        what = f"threads still run after the stop: {', '.join(running)}"
        if not ignore_live_threads:
            raise ThreadsStillRunningError(
                f"{what} (grace period {stop_grace_period_secs} s)",
                hint="their loops must ask should_stop(), or wait on what is closed at a stop",
                location=caller_location(),
            )
        _log.info(what)

    def _watch(self, threads: Sequence[threading.Thread]) -> threading.Event:
        """An event that is set when all threads have ended."""
        ended = threading.Event()

        def watch() -> None:
            for thread in threads:
                if thread.is_alive():  # one that was never started counts as ended
                    thread.join()
            self._change(ended.set)

        if any(t.is_alive() for t in threads):
            threading.Thread(target=watch, name="coordinator-join", daemon=True).start()
        else:
            ended.set()
        return ended

    def _until(self, operation: str, condition: Callable[[], bool], timeout: float | None) -> bool:
        def look(attempt: Attempt) -> bool:
            if condition():
                self._finish(attempt, None)
            return not attempt.pending

        def start(done: Done) -> Attempt:
            return self._start(Attempt(operation, look, done), self._conditions)

        try:
            self.wait(start, timeout)
        except DeadlineExceededError:
            return False
        return True

    def _advance(self, line: deque[Attempt]) -> bool:
        """Whoever's condition holds goes on, in whatever order they came."""
        for attempt in list(line):
            attempt.step(attempt)
        return False  # nobody's going on makes another's condition hold
