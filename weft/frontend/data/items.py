"""Items of an open pipeline, the threads that make them, and one run of a pipeline.

An item is a function that makes its element when it is called. `Items.skip(n)` passes over up to n
items and says over how many, so skipped elements are never made. Threads work ahead under a
`Coordinator`, and start with the first element that is asked for. An error of `next` or of an item
takes the place of an item: the next one is the one after, or there is none (`ignore_errors` goes
on), and stages that count items count it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft.frontend.core.pytree import Structure, flatten, unflatten
from weft.ir.dtypes import string
from weft.ir.errors import CancelledError, InvalidArgumentError, OutOfRangeError, WeftError
from weft.ir.locations import Locations
from weft.runtime.files.decoding import bytes_array
from weft.runtime.resources.components import Components
from weft.runtime.resources.coordinator import Coordinator
from weft.runtime.resources.queue import Queue

_GRACE = 10.0  # seconds that `close` waits for a function of the user's that still runs


class Crew:
    """Threads and a queue, the core of `wf.tf1.FIFOQueue`; it carries Python objects, uncopied."""

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self._queue = Queue(Components(name, [string]), capacity, name)
        self._coordinator = Coordinator()
        self._threads: list[threading.Thread] = []
        self.lock = threading.Lock()  # for who takes what they work on
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
        """The next item, waited for. StopIteration at the end."""
        try:
            ((item,),) = self._queue.dequeue(1)
        except OutOfRangeError:
            self.close()
            raise StopIteration from None
        return item

    def close(self, wait: bool = True) -> None:
        """Stop the threads and drop what they made. A second time is allowed."""
        self.closed = True
        self._coordinator.request_stop()
        self._queue.close(cancel_pending_enqueues=True)
        if wait and threading.current_thread() not in self._threads:
            self._coordinator.join(self._threads, _GRACE, ignore_live_threads=True)


Array = np.ndarray[Any, Any]
Item = Callable[[], Any]


class Items(ABC):
    """An open stage: an iterator of items. It may be asked by one thread at a time."""

    @abstractmethod
    def __next__(self) -> Item: ...

    def skip(self, n: int) -> int:
        """Pass over n items, or as many as there are; how many. Here by pulling them, which does
        not call them. Interrupted for an error of one of them."""
        return pulled(self.__next__, n)


class Interrupted(Exception):  # it carries the error
    """An error met while items were passed over: it takes the place of the last of `passed`."""

    def __init__(self, passed: int, error: BaseException) -> None:
        super().__init__(passed, error)
        self.passed, self.error = passed, error


def pulled(pull: Callable[[], Any], n: int) -> int:
    """How many of n elements `pull` gives, one each. Interrupted for an error of one of them."""
    done = 0
    try:
        for done in range(n):  # noqa: B007
            pull()
    except StopIteration:
        return done
    except BaseException as error:
        raise Interrupted(done + 1, error) from None
    return n


def passed_over(n: int, some: Callable[[int], int]) -> int:
    """How many of n items were passed over by `some(left)`, which passes over up to `left` at a
    time and says over how many; at the end 0, or StopIteration."""
    left = n
    while left:
        try:
            done = some(left)
        except StopIteration:
            break
        except Interrupted as stopped:
            raise Interrupted(n - left + stopped.passed, stopped.error) from None
        except BaseException as error:
            raise Interrupted(n - left + 1, error) from None
        if not done:
            break
        left -= done
    return n - left


class Gap:
    """Items to be passed over before others. An error of one of them does not lose the rest."""

    def __init__(self, up: Items, count: int) -> None:
        self._up, self.left = up, count

    def close(self) -> int:
        """Pass over them, or over those that are left after an error; how many there were."""
        try:
            done = self._up.skip(self.left)
        except Interrupted as stopped:
            self.left -= stopped.passed
            error = stopped.error
        else:
            self.left = 0
            return done
        raise error  # as it was raised: of no other


class Value:
    """An element that is there."""

    __slots__ = ("element",)

    def __init__(self, element: Any) -> None:
        self.element = element

    def __call__(self) -> Any:
        return self.element


class Raises:
    """An error in place of an element."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self) -> Any:
        raise self.error


def made(item: Item) -> Item:
    """The element of an item, or its error, as an item."""
    try:
        return Value(item())
    except BaseException as error:  # the loop's to see, whatever it is
        return Raises(error)


class Table:
    """Arrays with one first axis; the rows are elements."""

    __slots__ = ("leaves", "structure")

    def __init__(self, leaves: Sequence[Array], structure: Structure) -> None:
        self.leaves = leaves
        self.structure = structure

    def take(self, rows: int | slice | Array) -> Any:
        """The element of these rows: views, but for an array of row numbers."""
        picked = [a[rows, ...] if isinstance(rows, int) else a[rows] for a in self.leaves]
        return unflatten(self.structure, picked)


def in_rows(arrays: Any, what: str, location: Locations) -> tuple[Table, int]:
    """The table of a tree of arrays, read-only, and how many rows it has. InvalidArgumentError,
    naming `what`, for first axes of several lengths, or none."""
    leaves, structure = flatten(arrays)
    columns = [np.asarray(leaf).view() for leaf in leaves]  # of no subclass, such as memmap
    lengths = {a.shape[0] for a in columns if a.ndim}
    if len(lengths) != 1 or not all(a.ndim for a in columns):
        shown = ", ".join(f"{a.dtype}{list(a.shape)}" for a in columns) or "nothing"
        raise InvalidArgumentError(
            f"{what}: the arrays must have first axes of one length, these are {shown}",
            location=location,
        )
    for column in columns:
        column.flags.writeable = False
    (count,) = lengths
    return Table(columns, structure), count


class Row:
    """A row of a table."""

    __slots__ = ("index", "table")

    def __init__(self, table: Table, index: int) -> None:
        self.table = table
        self.index = index

    def __call__(self) -> Any:
        return self.table.take(self.index)


class Function:
    """A function given to a stage, such as `map`, and where."""

    __slots__ = ("call", "location", "name", "stage")

    def __init__(self, call: Callable[..., Any], location: Locations, stage: str = "map") -> None:
        self.call = call
        self.location = location
        self.name = getattr(call, "__qualname__", type(call).__name__)
        self.stage = stage

    @property
    def text(self) -> str:
        """The stage with its function, as pipelines and errors show it."""
        return f"{self.stage}({self.name})"

    def __call__(self, element: Any) -> Any:
        """The function of an element; a tuple is several arguments."""
        return self.of(*element) if type(element) is tuple else self.of(element)

    def of(self, *arguments: Any) -> Any:
        """The function of these arguments; what it raises says where the stage was made."""
        try:
            return self.call(*arguments)
        except BaseException as error:
            place = f", {self.location[0].describe()}" if self.location else ""
            error.add_note(f"in {self.text} of a wf.data.Dataset{place}")
            if isinstance(error, StopIteration):  # it would end the loop, and nobody would know
                raise RuntimeError(f"{self.text} raised StopIteration") from error
            raise

    def refused(self, what: str, hint: str | None = None) -> InvalidArgumentError:
        """The error for what the function gave, at the stage's line."""
        return InvalidArgumentError(
            f"{self.text} of a wf.data.Dataset {what}", hint=hint, location=self.location
        )


class Mapped:
    """A function of another item."""

    __slots__ = ("function", "item")

    def __init__(self, function: Function, item: Item) -> None:
        self.function = function
        self.item = item

    def __call__(self) -> Any:
        return self.function(self.item())


class Batch:
    """Several items, each leaf stacked along a new first axis. Rows of one table that follow each
    other are a view of it; others are gathered at once."""

    __slots__ = ("items", "location")

    def __init__(self, items: list[Item], location: Locations) -> None:
        self.items = items
        self.location = location

    def __call__(self) -> Any:
        items = self.items
        first = items[0]
        if isinstance(first, Row):
            table = first.table
            rows = [i.index for i in items if isinstance(i, Row) and i.table is table]
            if len(rows) == len(items):
                return _rows(table, rows)
        return self._stacked([item() for item in items])

    def _stacked(self, elements: list[Any]) -> Any:
        structure, columns = in_columns(elements, "batch", self.location)
        try:
            return unflatten(structure, [_stack(c) for c in columns])
        except WeftError as error:
            raise error.at(self.location) from None


def in_columns(
    elements: Sequence[Any], stage: str, location: Locations
) -> tuple[Structure, list[tuple[Any, ...]]]:
    """The structure that all elements have, and for each of its leaves those of all elements.
    InvalidArgumentError, naming the stage, if one has another structure."""
    leaves, structure = flatten(elements[0])
    rows = [leaves]
    for i, element in enumerate(elements[1:], 1):
        leaves, other = flatten(element)
        if other != structure:
            raise InvalidArgumentError(
                f"{stage}: element {i} of a {stage} has another structure than the first: "
                f"{element!r:.80}, {elements[0]!r:.80}",
                hint="map(fn) may bring them into one form",
                location=location,
            )
        rows.append(leaves)
    return structure, list(zip(*rows, strict=True))


def _rows(table: Table, rows: list[int]) -> Any:
    low, count = rows[0], len(rows)
    if rows == list(range(low, low + count)):
        return table.take(slice(low, low + count))
    return table.take(np.array(rows))


def _stack(leaves: Sequence[Any]) -> Array:
    if isinstance(leaves[0], (bytes, str)):
        return bytes_array([v.encode() if isinstance(v, str) else v for v in leaves])
    arrays = [np.asarray(leaf) for leaf in leaves]
    kinds = dict.fromkeys((a.dtype, a.shape) for a in arrays)
    if len(kinds) > 1:
        shown = ", ".join(f"{d}{list(s)}" for d, s in list(kinds)[:4])
        raise InvalidArgumentError(
            f"batch: the arrays of a batch must have one dtype and shape, these are {shown}",
            hint="map(fn) may convert or cut them, padded_batch pads them",
        )
    return np.stack(arrays)


class ParallelMap(Items):
    """Applies a function in several threads; the results keep the order of the elements.

    A worker takes an item and, still holding the lock, appends a Future to the queue; so the queue
    has the order, and bounds how far the workers are ahead.
    """

    def __init__(self, function: Function, up: Items, workers: int, run: Run) -> None:
        self._function, self._up, self._workers, self._run = function, up, workers, run
        self._crew: Crew | None = None
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
            with crew.lock:
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
            self._ended = True
            crew.end()
            return None
        except BaseException as error:
            return Raises(error)


class Unordered(Items):
    """Base: threads take an item each, and give what they make of it when it is there."""

    def __init__(self, name: str, up: Items, workers: int, run: Run) -> None:
        self._name, self._up, self._workers, self._run = name, up, workers, run
        self._crew: Crew | None = None
        self._busy = workers

    @abstractmethod
    def _give(self, crew: Crew, item: Item) -> bool:
        """Put what is made of an item; False if the crew was closed."""

    def __next__(self) -> Item:
        if self._crew is None:
            self._crew = self._run.crew(self._name, 2 * self._workers)
            self._crew.start(self._work, self._workers)
        item: Item = self._crew.take()
        return item

    def _work(self) -> None:
        crew = self._crew
        assert crew is not None
        while not crew.should_stop():
            with crew.lock:
                try:
                    item = next(self._up)
                except StopIteration:
                    self._busy -= 1
                    if not self._busy:  # the last one: the others have put what they made
                        crew.end()
                    return
                except BaseException as error:
                    item = Raises(error)
            if not self._give(crew, item):
                return


class UnorderedMap(Unordered):
    """Applies a function in several threads; each result comes when it is there."""

    def __init__(self, function: Function, up: Items, workers: int, run: Run) -> None:
        super().__init__("weft-data-map", up, workers, run)
        self._function = function

    def _give(self, crew: Crew, item: Item) -> bool:
        return crew.put(made(Mapped(self._function, item)))


class Prefetched(Items):
    """Makes elements in a thread, up to `size` ahead."""

    def __init__(self, up: Items, size: int, run: Run) -> None:
        self._up, self._size, self._run = up, size, run
        self._crew: Crew | None = None

    def __next__(self) -> Item:
        if self._crew is None:
            if self._run.skipping:
                return next(self._up)
            self._crew = self._run.crew("weft-data-prefetch", self._size)
            self._crew.start(self._work, 1)
        item: Item = self._crew.take()
        return item

    def skip(self, n: int) -> int:
        return super().skip(n) if self._crew is not None else self._up.skip(n)

    def _work(self) -> None:
        crew = self._crew
        assert crew is not None
        while not crew.should_stop():
            try:
                item = made(next(self._up))
            except StopIteration:
                break
            except BaseException as error:  # the loop's to see, whatever it is
                item = Raises(error)
            if not crew.put(item):
                return
        crew.end()


class Run:
    """One iteration of a pipeline: its crews, the seeds of its stages, and whether it only passes
    over items now, so that no threads are to start."""

    def __init__(self, seeds: dict[int, int], whole: Run | None = None) -> None:
        self.seeds = seeds
        self.closed = False
        self._whole = whole or self
        self._adding = threading.Lock()
        self._skipping = False
        self._crews: list[Crew | Run] = []

    @property
    def skipping(self) -> bool:
        """Whether it only passes over items."""
        return self._whole._skipping

    @skipping.setter
    def skipping(self, value: bool) -> None:
        self._whole._skipping = value

    def crew(self, name: str, capacity: int) -> Crew:
        """A new crew, closed with the run."""
        made = Crew(name, capacity)
        self._add(made)
        return made

    def part(self) -> Run:
        """A part of the run, whose threads may be stopped before those of the others: for stages
        that do not read what is before them to its end."""
        made = Run(self.seeds, self._whole)
        self._add(made)
        return made

    def _add(self, made: Crew | Run) -> None:
        with self._adding:
            self._crews = [*(c for c in self._crews if not c.closed), made]
        if self.closed:  # by another thread, which may not have seen the new one
            made.close(wait=False)

    def close(self, wait: bool = True) -> None:
        """Stop all threads. Takes no lock: a finaliser may call it in the middle of anything."""
        self.closed = True
        crews = list(self._crews)
        for crew in crews:
            crew.close(wait=False)
        for crew in crews if wait else ():
            crew.close()


def at_least(value: Any, least: int, what: str) -> int:
    """An int of at least `least`. InvalidArgumentError, naming `what`, for others."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidArgumentError(f"{what}={value!r:.40} must be an integer of at least {least}")
    return int(value)
