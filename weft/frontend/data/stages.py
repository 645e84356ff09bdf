"""Stages of a pipeline: immutable descriptions, linked from the last to the source.

`Stage.open` starts a stage from its beginning and gives an iterator of items. An item is a function
that makes its element when it is called; `skip(n)` passes over up to n items and says over how
many, so skipped elements are never made. `map` with workers and `prefetch` work ahead in threads,
under a `Coordinator`, which start with the first element that is asked for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from weft.frontend.core.pytree import Structure, flatten, tree_map, unflatten
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import string
from weft.ir.errors import (
    CancelledError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    WeftError,
)
from weft.ir.locations import Locations
from weft.runtime.files.decoding import bytes_array
from weft.runtime.resources.components import Components
from weft.runtime.resources.coordinator import Coordinator
from weft.runtime.resources.queue import Queue

_GRACE = 10.0  # seconds that `close` waits for a function of the user's that still runs


class Failure:
    """An error that a thread hands on in place of an element."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Crew:
    """Threads and a queue, the core of `wf.tf1.FIFOQueue`; it carries Python objects, uncopied."""

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


Array = np.ndarray[Any, Any]
Item = Callable[[], Any]


class Items(ABC):
    """An open stage: an iterator of items. It may be asked by one thread at a time."""

    @abstractmethod
    def __next__(self) -> Item: ...

    def skip(self, n: int) -> int:
        """Pass over n items, or as many as there are; how many. Here by pulling them, which does
        not call them."""
        for done in range(n):
            try:
                next(self)
            except StopIteration:
                return done
        return n


class Value:
    """An element that is there."""

    __slots__ = ("element",)

    def __init__(self, element: Any) -> None:
        self.element = element

    def __call__(self) -> Any:
        return self.element


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


class Row:
    """A row of a table."""

    __slots__ = ("index", "table")

    def __init__(self, table: Table, index: int) -> None:
        self.table = table
        self.index = index

    def __call__(self) -> Any:
        return self.table.take(self.index)


class Function:
    """A function given to `map`, and where."""

    __slots__ = ("call", "location", "name")

    def __init__(self, call: Callable[..., Any], location: Locations) -> None:
        self.call = call
        self.location = location
        self.name = getattr(call, "__qualname__", type(call).__name__)

    def __call__(self, element: Any) -> Any:
        try:
            return self.call(*element) if type(element) is tuple else self.call(element)
        except BaseException as error:
            place = f", {self.location[0].describe()}" if self.location else ""
            error.add_note(f"in map({self.name}) of a wf.data.Dataset{place}")
            if isinstance(error, StopIteration):  # it would end the loop, and nobody would know
                raise RuntimeError(f"map({self.name}) raised StopIteration") from error
            raise


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
        leaves, structure = flatten(elements[0])
        columns = [leaves]
        for i, element in enumerate(elements[1:], 1):
            leaves, other = flatten(element)
            if other != structure:
                raise InvalidArgumentError(
                    f"batch: element {i} of a batch has another structure than the first: "
                    f"{element!r:.80}, {elements[0]!r:.80}",
                    hint="map(fn) may bring them into one form",
                ).at(self.location)
            columns.append(leaves)
        try:
            return unflatten(structure, [_stack(c) for c in zip(*columns, strict=True)])
        except WeftError as error:
            raise error.at(self.location) from None


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
            hint="map(fn) may convert, pad or cut them; a wf.tf1.PaddingFIFOQueue pads",
        )
    return np.stack(arrays)


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


@dataclass
class Run:
    """One iteration of a pipeline: its crews, the seeds of its shuffles, and whether it only
    passes over items now, so that no threads are to start."""

    seeds: dict[int, int]
    crews: list[Crew] = field(default_factory=list)
    skipping: bool = False
    closed: bool = False

    def crew(self, name: str, capacity: int) -> Crew:
        """A new crew, closed with the run."""
        made = Crew(name, capacity)
        self.crews = [*(c for c in self.crews if not c.closed), made]
        if self.closed:  # by another thread, which may not have seen the new one
            made.close(wait=False)
        return made

    def close(self, wait: bool = True) -> None:
        """Stop all threads. Takes no lock: a finaliser may call it in the middle of anything."""
        self.closed = True
        crews = list(self.crews)
        for crew in crews:
            crew.close(wait=False)
        for crew in crews if wait else ():
            crew.close()


@dataclass(frozen=True)
class Stage(ABC):
    """Base: a stage with one before it. `text` is how the pipeline is printed."""

    before: Stage | None
    text: str

    def cardinality(self) -> int | None:
        """The number of elements; None if it is not known or there is no end."""
        return self.up.cardinality()

    @abstractmethod
    def open(self, run: Run, epoch: int) -> Items:
        """Start over. `epoch` counts repetitions: shuffles have another order in each."""

    @property
    def up(self) -> Stage:
        """The stage before this one."""
        assert self.before is not None
        return self.before

    def chain(self) -> list[Stage]:
        """All stages, the source first."""
        return [*(self.before.chain() if self.before else ()), self]


# ------------------------------------------------------------------------------------------ sources
@dataclass(frozen=True)
class FromTable(Stage):
    """The rows of arrays."""

    table: Table
    count: int

    def cardinality(self) -> int | None:
        return self.count

    def open(self, run: Run, epoch: int) -> Items:
        return _Rows(self.table, self.count)


class _Rows(Items):
    def __init__(self, table: Table, count: int) -> None:
        self._table, self._count, self._at = table, count, 0

    def __next__(self) -> Item:
        at = self._at
        if at == self._count:
            raise StopIteration
        self._at = at + 1
        return Row(self._table, at)

    def skip(self, n: int) -> int:
        done = min(n, self._count - self._at)
        self._at += done
        return done


@dataclass(frozen=True)
class FromIterables(Stage):
    """The elements of an iterable that a function gives, called once for each epoch."""

    make: Callable[[], Iterable[Any]]
    copy: bool  # the arrays may be written to after they were given

    def cardinality(self) -> int | None:
        return None

    def open(self, run: Run, epoch: int) -> Items:
        return _Elements(iter(self.make()), self.copy)


class _Elements(Items):
    def __init__(self, elements: Iterator[Any], copy: bool) -> None:
        self._elements, self._copy = elements, copy

    def __next__(self) -> Item:
        element = next(self._elements)
        return Value(tree_map(_copied, element) if self._copy else element)

    def skip(self, n: int) -> int:
        for done in range(n):
            try:
                next(self._elements)
            except StopIteration:
                return done
        return n


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.flags.writeable else leaf


# ------------------------------------------------------------------------------------------- stages
@dataclass(frozen=True)
class Map(Stage):
    """A function of each element, in the thread that asks or in `workers` threads."""

    function: Function
    workers: int

    def open(self, run: Run, epoch: int) -> Items:
        up = self.up.open(run, epoch)
        if not self.workers:
            return _MapItems(self.function, up)
        return ParallelMap(self.function, up, self.workers, run)


class _MapItems(Items):
    def __init__(self, function: Function, up: Items) -> None:
        self._function, self._up = function, up

    def __next__(self) -> Item:
        return Mapped(self._function, next(self._up))

    def skip(self, n: int) -> int:
        return self._up.skip(n)


@dataclass(frozen=True)
class Shuffle(Stage):
    """One at random of the next `buffer` elements, again and again."""

    buffer: int
    seed: int

    def open(self, run: Run, epoch: int) -> Items:
        sequence = np.random.SeedSequence([run.seeds[id(self)], epoch])
        return _Shuffled(self.up.open(run, epoch), self.buffer, np.random.PCG64(sequence))


class _Shuffled(Items):
    def __init__(self, up: Items, buffer: int, bits: np.random.PCG64) -> None:
        self._up, self._buffer, self._bits = up, buffer, bits
        self._held: list[Item] = []
        self._numbers: list[int] = []
        self._ended = False

    def __next__(self) -> Item:
        held = self._held
        while not self._ended and len(held) < self._buffer:
            try:
                held.append(next(self._up))
            except StopIteration:
                self._ended = True
        if not held:
            raise StopIteration
        if not self._numbers:  # 64 random bits each: NumPy keeps this stream as it is
            self._numbers = self._bits.random_raw(256).tolist()
        at = self._numbers.pop() * len(held) >> 64
        held[at], held[-1] = held[-1], held[at]
        return held.pop()


@dataclass(frozen=True)
class Grouped(Stage):
    """Batches of `size` elements."""

    size: int
    drop_remainder: bool
    location: Locations

    def cardinality(self) -> int | None:
        n = self.up.cardinality()
        if n is None:
            return None
        return n // self.size if self.drop_remainder else -(-n // self.size)

    def open(self, run: Run, epoch: int) -> Items:
        return _Batches(self, self.up.open(run, epoch))


class _Batches(Items):
    def __init__(self, stage: Grouped, up: Items) -> None:
        self._stage, self._up = stage, up

    def __next__(self) -> Item:
        items: list[Item] = []
        size = self._stage.size
        try:
            while len(items) < size:
                items.append(next(self._up))
        except StopIteration:
            if not items or self._stage.drop_remainder:
                raise
        return Batch(items, self._stage.location)

    def skip(self, n: int) -> int:
        full, rest = divmod(self._up.skip(n * self._stage.size), self._stage.size)
        return full + bool(rest and not self._stage.drop_remainder)


@dataclass(frozen=True)
class Repeat(Stage):
    """The elements again and again, `times` times or (None) without end."""

    times: int | None

    def cardinality(self) -> int | None:
        n = self.up.cardinality()
        if n == 0 or self.times == 0:
            return 0
        return None if n is None or self.times is None else n * self.times

    def open(self, run: Run, epoch: int) -> Items:
        # a repetition within a repetition goes on counting
        first = epoch * (self.times or 1)
        return _Repeated(self.up, run, first, None if self.times is None else first + self.times)


class _Repeated(Items):
    def __init__(self, stage: Stage, run: Run, epoch: int, end: int | None) -> None:
        self._stage, self._run, self._epoch, self._end = stage, run, epoch, end
        self._items: Items | None = None
        self._some = True  # the last epoch had elements
        self._ever = False  # any had

    def _open(self) -> Items:
        if self._items is None:
            if self._epoch == self._end:
                raise StopIteration
            if not self._some:
                if self._ever:
                    raise FailedPreconditionError(
                        f"repeat: epoch {self._epoch - 1} has no elements, those before had some",
                        hint="what a function for Dataset.from_generator returns must be new for "
                        "each call, not an iterator that was used before",
                    )
                raise StopIteration
            self._items = self._stage.open(self._run, self._epoch)
            self._epoch += 1
            self._some = False
        return self._items

    def __next__(self) -> Item:
        while True:
            try:
                item = next(self._open())
            except StopIteration:
                if self._items is None:
                    raise
                self._items = None
            else:
                self._some = self._ever = True
                return item

    def skip(self, n: int) -> int:
        left = n
        while left:
            try:
                items = self._open()
            except StopIteration:
                break
            done = items.skip(left)
            self._some |= done > 0
            self._ever |= self._some
            left -= done
            if left:
                self._items = None
        return n - left


@dataclass(frozen=True)
class Shard(Stage):
    """Every `count`-th element, from `index` on."""

    index: int
    count: int

    def cardinality(self) -> int | None:
        n = self.up.cardinality()
        return None if n is None else max(0, -(-(n - self.index) // self.count))

    def open(self, run: Run, epoch: int) -> Items:
        return _Sharded(self.up.open(run, epoch), self.index, self.count)


class _Sharded(Items):
    def __init__(self, up: Items, index: int, count: int) -> None:
        self._up, self._before, self._between = up, index, count - 1

    def __next__(self) -> Item:
        self._up.skip(self._before)
        self._before = self._between
        return next(self._up)


@dataclass(frozen=True)
class Prefetch(Stage):
    """Elements made ahead of the loop, `size` at most, by a thread."""

    size: int

    def open(self, run: Run, epoch: int) -> Items:
        return Prefetched(self.up.open(run, epoch), self.size, run)


def at_least(value: Any, least: int, what: str) -> int:
    """An int of at least `least`. InvalidArgumentError, naming `what`, for others."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidArgumentError(f"{what}={value!r:.40} must be an integer of at least {least}")
    return int(value)
