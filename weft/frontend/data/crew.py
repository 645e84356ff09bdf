"""Threads that work ahead of the loop, under a `Coordinator`, and the queue they fill."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weft.ir.dtypes import string
from weft.ir.errors import CancelledError, OutOfRangeError
from weft.runtime.resources.components import Components
from weft.runtime.resources.coordinator import Coordinator
from weft.runtime.resources.queue import Queue

_GRACE = 10.0  # seconds that `close` waits for a function of the user's that still runs


class Failure:
    """What a thread hands on in place of an element."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Crew:
    """Threads and one queue, the core of `wf.FIFOQueue`; it carries Python objects, uncopied."""

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self._queue = Queue(Components(name, [string]), capacity, name)
        self._coordinator = Coordinator()
        self._threads: list[threading.Thread] = []
        self.closed = False

    def start(self, work: Callable[[], None], count: int) -> None:
        """Run `work` in `count` threads; it ends when `should_stop`, or when `put` says False."""
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"{self._name}-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            self._coordinator.register_thread(thread)
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        with self._coordinator.stop_on_exception():
            work()

    def should_stop(self) -> bool:
        """Whether the threads are to end."""
        return self._coordinator.should_stop()

    def put(self, item: Any) -> bool:
        """Append an item, when there is room; False if the crew was closed."""
        try:
            self._queue.enqueue([(item,)])
        except CancelledError:
            return False
        return True

    def end(self) -> None:
        """There will be no more items."""
        self._queue.close()

    def take(self) -> Any:
        """The next item, waited for. StopIteration at the end; the error of a `Failure`."""
        try:
            ((item,),) = self._queue.dequeue(1)
        except OutOfRangeError:
            self.close()
            raise StopIteration from None
        if isinstance(item, Failure):
            self.close()
            raise item.error
        return item

    def close(self, wait: bool = True) -> None:
        """Stop the threads and drop what they made. A second time is allowed."""
        self.closed = True
        self._coordinator.request_stop()
        self._queue.close(cancel_pending_enqueues=True)
        if wait and threading.current_thread() not in self._threads:
            self._coordinator.join(self._threads, _GRACE, ignore_live_threads=True)
