"""A queue of requests, and threads that run them: those that fit together as one call.

As in Triton (its "dynamic batcher"), a thread that is free takes the oldest request at once, and of
those that wait for the same signature as many as `max_batch` rows hold; only a `max_delay` has it
wait for more. weft's kernels take sizes at run time, so nothing is padded: requests go together if
all their sizes but the first are the same. How long calls of 1, 2, 4, ... rows take is tried before
the first request, and fewer go together where that is quicker. Results are cut apart by rows. Calls
that take less time than a thread takes to wake do without queue and threads (`QuickCalls`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate
from typing import Any

import numpy as np

from weft.frontend.serving.metrics import Metrics
from weft.frontend.serving.models import Signature, Version, worthwhile
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.step import RunContext

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """threads: calls at a time; max_batch: rows of a call; max_delay: seconds that a call waits for
    more rows; max_queue: requests that wait; timeout: seconds until a request is given up.
    InvalidArgumentError for what is none."""

    threads: int = 1
    max_batch: int = 64
    max_delay: float = 0.0
    max_queue: int = 1000
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in ("threads", "max_batch", "max_queue"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not (self.max_delay >= 0 and self.timeout > 0):
            raise InvalidArgumentError("a delay must be 0 or more, a timeout more than 0 seconds")


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a request, and how it came to them. rows: of the call that it was a part of;
    None if its signature is not batched."""

    arrays: list[Array]
    queued: float
    computed: float
    rows: int | None


class _Asked(Future[Answer]):
    """What a request waits for. Cancelling it takes the request out of the queue; if its call runs,
    that is stopped, as soon as none of its requests is waited for any more."""

    def __init__(self) -> None:
        super().__init__()
        self.is_left, self.call = False, None

    call: _Call | None

    def cancel(self) -> bool:
        if super().cancel():
            return True
        self.is_left, call = True, self.call
        if call is not None:
            call.look()
        return False


class Waiting:
    """A request in the queue."""

    __slots__ = ("arrays", "future", "key", "rows", "signature", "since", "version")

    def __init__(
        self,
        version: Version,
        signature: Signature,
        arrays: Sequence[Array],
        future: _Asked | asyncio.Future[Answer],
    ) -> None:
        self.version, self.signature, self.arrays = version, signature, arrays
        self.rows = arrays[0].shape[0] if signature.by_rows else None
        # dtypes are those of the signature
        sizes = tuple([a.shape[1:] for a in arrays]) if signature.by_rows else ()
        self.key = (id(signature), sizes)
        self.future: Any = future
        self.since = time.monotonic()


class Scheduler:
    """Threads that run requests, `limits.threads` at a time, those that have waited longest first;
    `close` ends them."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._changed = threading.Condition()
        self._queues: dict[object, deque[Waiting]] = {}  # by key
        self._waiting = 0
        self._closed = self._hurried = False
        self._threads = [
            threading.Thread(target=self._work, name=f"weft serve {i}", daemon=True)
            for i in range(limits.threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return self._waiting

    def submit(
        self, version: Version, signature: Signature, arrays: Sequence[Array]
    ) -> Future[Answer]:
        """Queue a call of a signature with arrays that fit it. Cancelling the future drops it, if
        it has not begun, and stops loops of one that nobody waits for. UnavailableError if the
        queue is full, FailedPreconditionError after `close`."""
        future = _Asked()
        one = Waiting(version, signature, arrays, future)
        future.add_done_callback(lambda future: self._drop(one) if future.cancelled() else None)
        with self._changed:
            self.check_open()
            if self._waiting >= self.limits.max_queue:
                raise UnavailableError(f"{self._waiting} requests wait already: try again later")
            self._queues.setdefault(one.key, deque()).append(one)
            self._waiting += 1
            self._changed.notify()
        return future

    def check_open(self) -> None:
        """FailedPreconditionError after `close`."""
        if self._closed:
            raise FailedPreconditionError("the server is closed")

    def hurry(self) -> None:
        """Let no call wait for more rows from now on."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """Run what is queued, then end the threads."""
        with self._changed:
            self._closed = self._hurried = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _drop(self, one: Waiting) -> None:
        """Take a request whose client has gone out of the queue."""
        with self._changed:
            queue = self._queues.get(one.key)
            if queue is not None and one in queue:
                self._take(queue, [one])

    def _take(self, queue: deque[Waiting], taken: Sequence[Waiting]) -> None:
        for one in taken:
            queue.remove(one)
            self._waiting -= 1
            if not queue:
                del self._queues[one.key]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (batch := self._next()):
                    if self._closed and not self._waiting:
                        return
                    self._changed.wait(self._until_due())
            # a future that is set to running can no longer be cancelled
            batch = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if batch:
                writes, version = int(batch[0].signature.writes), batch[0].version
                version.add_writer(writes)
                try:
                    _Call(batch, self.metrics, self.limits.timeout).run()
                finally:
                    version.add_writer(-writes)
                del batch

    def _next(self) -> list[Waiting]:
        """Requests for one call, taken out of the queue; none if none is due."""
        now = time.monotonic()
        for queue in sorted(self._queues.values(), key=lambda queue: queue[0].since):
            batch, rows = [queue[0]], queue[0].rows
            full = rows is None
            if rows is not None:
                for one in list(queue)[1:]:
                    assert one.rows is not None
                    if rows + one.rows > self.limits.max_batch:
                        full = True
                        break
                    batch.append(one)
                    rows += one.rows
                full = full or rows >= self.limits.max_batch
            if full or self._hurried or now - queue[0].since >= self.limits.max_delay:
                batch = joined(batch)
                self._take(queue, batch)
                if self._waiting:
                    self._changed.notify()
                return batch
        return []

    def _until_due(self) -> float | None:
        """Seconds until the delay of the oldest request is over; None if there is none."""
        if not self._queues:
            return None
        oldest = min(queue[0].since for queue in self._queues.values())
        return max(0.0, oldest + self.limits.max_delay - time.monotonic())


def joined(batch: list[Waiting], fits: Callable[[int], bool] = lambda rows: True) -> list[Waiting]:
    """As many of the first of these as a call is quick for, of those numbers of rows that fit, or
    the first: kernels for few rows, or for many, may take longer for each row than others."""
    sums = list(accumulate(one.rows or 0 for one in batch))
    fitting = [rows for rows in sums if fits(rows)] if len(batch) > 1 else []
    if not fitting:
        return batch[:1]
    most = max(worthwhile(batch[0].signature, fitting))
    return batch[: len(sums) - sums[::-1].index(most)]


class _Call:
    """One call for requests of a signature. Where that fails for several, each is called alone, so
    that one with wrong values spoils no other."""

    def __init__(self, batch: Sequence[Waiting], metrics: Metrics, timeout: float) -> None:
        self.batch, self.metrics, self.timeout = batch, metrics, timeout
        self.begun = time.monotonic()
        # loops may take any time; nothing else of a call can be stopped
        self.token = CancelToken() if batch[0].signature.loops else None

    def run(self) -> None:
        if self.token is not None:
            for one in self.batch:
                one.future.call = self
            self.look()
        try:
            answers = self._answers()
        except Exception as error:
            stopped = self.token is not None and self.token.is_cancelled
            if len(self.batch) == 1 or stopped:
                for one in self.batch:
                    one.future.set_exception(error)
                return
            for one in self.batch:
                _Call([one], self.metrics, self.timeout).run()
            return
        finally:
            if self.token is not None:
                for one in self.batch:
                    one.future.call = None
        for one, answer in zip(self.batch, answers, strict=True):
            one.future.set_result(answer)

    def look(self) -> None:
        """Stop it if nobody waits for its results."""
        if self.token is not None and all(one.future.is_left for one in self.batch):
            self.token.cancel("nobody waits for its results")

    def _answers(self) -> list[Answer]:
        first = self.batch[0]
        if len(self.batch) == 1:
            arrays = list(first.arrays)
        else:
            columns = zip(*[one.arrays for one in self.batch], strict=True)
            arrays = [np.concatenate(column) for column in columns]
        if self.token is None:
            results = first.signature(arrays)
        else:
            context = RunContext(timeout=self.timeout, cancel=self.token)
            results = first.signature(arrays, context)
        seconds = time.monotonic() - self.begun
        waits = [self.begun - one.since for one in self.batch]
        rows = None if first.rows is None else sum(one.rows or 0 for one in self.batch)
        first.signature.note(first.signature.rows_of(arrays) if rows is None else rows)
        self.metrics.call(
            (first.version.model, first.version.number), waits, seconds, 1 if rows is None else rows
        )
        answers, start = [], 0
        for one, wait in zip(self.batch, waits, strict=True):
            stop = start + (one.rows or 0)
            own = results if len(self.batch) == 1 else [r[start:stop] for r in results]
            answers.append(Answer(own, wait, seconds, rows))
            start = stop
        return answers


class QuickCalls:
    """Calls that take less time than a thread takes to wake: they run in the thread of the event
    loop, those that came in one turn of it together. They wait for nothing, so they are in no
    queue. Only calls of numbers of rows that ran before are: others may have to be compiled."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._waiting: dict[object, list[Waiting]] = {}

    def take(self, version: Version, signature: Signature, arrays: Sequence[Array]) -> bool:
        """Whether such a call is quick, and waits for no other, as one that reads a variable does
        for one that writes it."""
        if version.writers or (signature.by_rows and self.limits.max_delay):
            return False
        return signature.is_quick(signature.rows_of(arrays))

    def submit(
        self, version: Version, signature: Signature, arrays: Sequence[Array]
    ) -> asyncio.Future[Answer]:
        """The results, in the next turn of the running event loop; a call that is cancelled before
        is not made."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._run)
        one = Waiting(version, signature, arrays, future)
        self._waiting.setdefault(one.key, []).append(one)
        return future

    def _run(self) -> None:
        groups, self._waiting = self._waiting, {}
        for group in groups.values():
            left = [one for one in group if not one.future.done()]
            while left:
                batch = self._next(left)
                _Call(batch, self.metrics, self.limits.timeout).run()
                left = left[len(batch) :]

    def _next(self, left: list[Waiting]) -> list[Waiting]:
        if left[0].rows is None:
            return left[:1]
        most, is_quick = self.limits.max_batch, left[0].signature.is_quick
        return joined(left, lambda rows: rows <= most and is_quick(rows))


def prepare(version: Version, limits: Limits) -> list[str]:
    """Call each signature with made-up values, so that few requests wait for compilation, and find
    out which may be batched. What there is to say of them, a line each."""
    told = []
    for signature in version.signatures.values():
        if limits.max_batch > 1:
            signature.find_batches(limits.max_batch)
        else:
            signature.by_rows, signature.why_not = False, "calls have one request each"
        failed = None if signature.by_rows else signature.warm_up()
        line = f"not batched: {signature.why_not}"
        if signature.by_rows:
            best = signature.best_rows(limits.max_batch)
            line = f"batched up to {best} rows" if best > 1 else "called for one row at a time"
            if best < limits.max_batch:
                line += ": more take longer for each"
        if failed and failed not in line:
            line += f"; a call with made-up values failed: {failed}"
        told.append(f"{version.model}/{version.number}:{signature.name}: {line}")
    return told
