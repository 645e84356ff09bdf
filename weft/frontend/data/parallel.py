"""Stages that work ahead in threads: `map` with workers, and `prefetch`. Their threads start with
the first element that is asked for.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Protocol

from weft.frontend.data.crew import Crew, Failure
from weft.frontend.data.items import Function, Item, Items, Mapped, Value


class _Run(Protocol):
    skipping: bool

    def crew(self, name: str, capacity: int) -> Crew: ...


class ParallelMap(Items):
    """Applies a function in several threads; the results keep the order of the elements.

    A worker takes an item and, still holding the lock, appends a Future to the queue; so the queue
    has the order, and bounds how far the workers are ahead.
    """

    def __init__(self, function: Function, up: Items, workers: int, run: _Run) -> None:
        self._function, self._up, self._workers, self._run = function, up, workers, run
        self._crew: Crew | None = None
        self._taking = threading.Lock()
        self._ended = False

    def __next__(self) -> Item:
        if self._crew is None:
            if self._run.skipping:
                return Mapped(self._function, next(self._up))
            self._crew = self._run.crew("weft-data-map", 2 * self._workers)
            self._crew.start(self._work, self._workers)
        future: Future[Any] = self._crew.take()
        return future.result

    def skip(self, n: int) -> int:
        return super().skip(n) if self._crew is not None else self._up.skip(n)

    def _work(self) -> None:
        crew = self._crew
        assert crew is not None
        while not crew.should_stop():
            future: Future[Any] = Future()
            with self._taking:
                item = self._take(crew)
                if item is None or not crew.put(future):
                    return
            try:
                future.set_result(self._function(item()))
            except BaseException as error:  # the loop's to see, whatever it is
                future.set_exception(error)

    def _take(self, crew: Crew) -> Item | None:
        """The next item; None at the end."""
        if self._ended:
            return None
        try:
            return next(self._up)
        except StopIteration:
            pass
        except BaseException as error:
            crew.put(Failure(error))
        self._ended = True
        crew.end()
        return None


class Prefetched(Items):
    """Makes elements in a thread, up to `size` ahead."""

    def __init__(self, up: Items, size: int, run: _Run) -> None:
        self._up, self._size, self._run = up, size, run
        self._crew: Crew | None = None

    def __next__(self) -> Item:
        if self._crew is None:
            if self._run.skipping:
                return next(self._up)
            self._crew = self._run.crew("weft-data-prefetch", self._size)
            self._crew.start(self._work, 1)
        return Value(self._crew.take())

    def skip(self, n: int) -> int:
        return super().skip(n) if self._crew is not None else self._up.skip(n)

    def _work(self) -> None:
        crew = self._crew
        assert crew is not None
        try:
            while not crew.should_stop():
                try:
                    item = next(self._up)
                except StopIteration:
                    break
                if not crew.put(item()):
                    return
        except BaseException as error:  # the loop's to see, whatever it is
            crew.put(Failure(error))
        crew.end()
