"""Stages of a pipeline: immutable descriptions, linked from the last to the source.

`Stage.open` starts a stage from its beginning and gives an iterator of items (`items.py`). Here are
the sources, and stages that order elements anew or take each by itself; `selecting.py`,
`grouping.py`, `combining.py` and `caching.py` have the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from weft.frontend.core.pytree import tree_map
from weft.frontend.data.items import (
    Function,
    Gap,
    Interrupted,
    Item,
    Items,
    Mapped,
    ParallelMap,
    Prefetched,
    Row,
    Run,
    Table,
    UnorderedMap,
    Value,
    passed_over,
    pulled,
)
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError


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

    @property
    def parts(self) -> tuple[Stage, ...]:
        """Stages that it reads beside the one before."""
        return ()

    def own(self, ahead: bool) -> str:
        """The stage alone as text."""
        return self.text

    def shown(self, ahead: bool = True) -> str:
        """The pipeline as text; with ahead=False without what decides only how far ahead elements
        are made."""
        own = self.own(ahead)
        before = self.before.shown(ahead) if self.before else ""
        return f"{before} -> {own}" if before and own else before or own

    def walk(self) -> Iterator[Stage]:
        """All stages, those of parts too, sources first."""
        for stage in (*((self.before,) if self.before else ()), *self.parts):
            yield from stage.walk()
        yield self

    @property
    def ordered(self) -> bool:
        """Whether its elements come in an order that threads do not decide."""
        return True


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
class FromFiles(Stage):
    """The elements of one file after the other."""

    names: tuple[Any, ...]
    read: Callable[[Any], Iterable[Any]]

    def cardinality(self) -> int | None:
        return None

    def open(self, run: Run, epoch: int) -> Items:
        return _FileElements(self.names, self.read)


class _FileElements(Items):
    def __init__(self, names: tuple[Any, ...], read: Callable[[Any], Iterable[Any]]) -> None:
        self._names, self._read = iter(names), read
        self._elements: Iterator[Any] | None = None

    def __next__(self) -> Item:
        while True:
            if self._elements is None:
                name = next(self._names)
                self._elements = iter(self._read(name))
            try:
                return Value(next(self._elements))
            except StopIteration:
                self._elements = None
            except BaseException:
                self._elements = None  # what comes after the error is the next file
                raise


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
        return pulled(self._elements.__next__, n)  # without copies


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.flags.writeable else leaf


# ------------------------------------------------------------------------------------------- stages
@dataclass(frozen=True)
class Map(Stage):
    """A function of each element, in the thread that asks or in `workers` threads."""

    function: Function
    workers: int
    deterministic: bool = True

    @property
    def ordered(self) -> bool:
        return self.deterministic or self.workers < 2

    def open(self, run: Run, epoch: int) -> Items:
        up = self.up.open(run, epoch)
        if not self.workers:
            return _MapItems(self.function, up)
        kind = ParallelMap if self.ordered else UnorderedMap
        return kind(self.function, up, self.workers, run)


class _MapItems(Items):
    def __init__(self, function: Function, up: Items) -> None:
        self._function, self._up = function, up

    def __next__(self) -> Item:
        return Mapped(self._function, next(self._up))

    def skip(self, n: int) -> int:
        return self._up.skip(n)


@dataclass(frozen=True)
class Seeded(Stage):
    """Base: a stage that draws numbers, the same ones in each run that has its seed."""

    seed: int

    def bits(self, run: Run, epoch: int) -> np.random.PCG64:
        """Where it draws from."""
        return np.random.PCG64(np.random.SeedSequence([self.seed_in(run), epoch]))

    def seed_in(self, run: Run) -> int:
        """Its seed in a run, which may be one that was saved."""
        # a stage of a dataset that a function made, in the run, is not among those with seeds
        return run.seeds.get(id(self), self.seed)


@dataclass(frozen=True)
class Shuffle(Seeded):
    """One at random of the next `buffer` elements, again and again."""

    buffer: int
    each: bool = True  # another order in each epoch

    def open(self, run: Run, epoch: int) -> Items:
        bits = self.bits(run, epoch if self.each else 0)
        return _Shuffled(self.up.open(run, epoch), self.buffer, bits)


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
    """Batches of `size` elements. batch: several items as one."""

    size: int
    drop_remainder: bool
    batch: Callable[[list[Item]], Item]

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
        try:
            while len(items) < self._stage.size:
                items.append(next(self._up))
        except StopIteration:
            if not items or self._stage.drop_remainder:
                raise
        return self._stage.batch(items)

    def skip(self, n: int) -> int:
        size = self._stage.size
        try:
            full, rest = divmod(self._up.skip(n * size), size)
        except Interrupted as stopped:  # it ends the batch that it is in
            raise Interrupted(-(-stopped.passed // size), stopped.error) from None
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
                    self._end = self._epoch  # the error comes once
                    raise FailedPreconditionError(
                        f"repeat: epoch {self._epoch - 1} has no elements, those before had some",
                        hint="what a function for Dataset.from_generator returns must be new for "
                        "each call, not an iterator that was used before",
                    )
                raise StopIteration
            epoch, self._epoch = self._epoch, self._epoch + 1
            self._some = False  # an epoch that cannot begin has no elements, either
            self._items = self._stage.open(self._run, epoch)
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
        return passed_over(n, self._skip_some)

    def _skip_some(self, n: int) -> int:
        """Pass over up to n items of one epoch that has some."""
        while True:
            items, done = self._open(), 0
            try:
                done = items.skip(n)
            except Interrupted as stopped:
                done = stopped.passed - 1
                raise
            finally:
                self._some |= done > 0
                self._ever |= self._some
            if done < n:
                self._items = None
            if done:
                return done


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
        self._up, self._before, self._between = up, Gap(up, index), count - 1

    def __next__(self) -> Item:
        self._before.close()
        self._before.left = self._between
        return next(self._up)


@dataclass(frozen=True)
class Prefetch(Stage):
    """Elements made ahead of the loop, `size` at most, by a thread."""

    size: int

    def own(self, ahead: bool) -> str:
        return self.text if ahead else ""

    def open(self, run: Run, epoch: int) -> Items:
        return Prefetched(self.up.open(run, epoch), self.size, run)
