"""`Dataset`: elements from arrays, files or generators, and the steps on their way to training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.frontend.data.items import Function, Table
from weft.frontend.data.iterator import DatasetIterator
from weft.frontend.data.stages import (
    FromIterables,
    FromTable,
    Grouped,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Stage,
    at_least,
)
from weft.frontend.pytree import flatten
from weft.frontend.random.state import default_generator
from weft.frontend.tracing.trace import current_trace
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.files.streams import Path


class Dataset:
    """A pipeline of elements: arrays, or tuples, lists and dicts of them. It is a description that
    never changes; each method gives a new one, each `iter` starts from the first element.

    Two iterations of one dataset give the same elements in the same order, also with workers and
    shuffles. More epochs come from `repeat`, in which each has an order of its own.
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __repr__(self) -> str:
        return f"<Dataset {' -> '.join(s.text for s in self._stage.chain())}>"

    # ---------------------------------------------------------------------------------- sources
    @staticmethod
    def from_arrays(arrays: Any) -> Dataset:
        """The rows of arrays: an array, or a tuple, list or dict of arrays whose first axes have
        one length. Elements are read-only views; the arrays must not change meanwhile."""
        leaves, structure = flatten(arrays)
        columns = [_array(leaf) for leaf in leaves]
        lengths = {a.shape[0] for a in columns if a.ndim}
        if len(lengths) != 1 or not all(a.ndim for a in columns):
            raise _error(
                "Dataset.from_arrays takes arrays with first axes of one length, not "
                f"{', '.join(f'{a.dtype}{list(a.shape)}' for a in columns) or 'nothing'}"
            )
        (count,) = lengths
        return Dataset(FromTable(None, f"arrays({count})", Table(columns, structure), count))

    @staticmethod
    def from_generator(generator: Callable[[], Iterable[Any]], *, copy: bool = True) -> Dataset:
        """What `generator()` gives, called anew for each epoch.

        Writable arrays are copied, as a generator may reuse them; copy=False leaves that out.
        """
        if not callable(generator):
            raise _error(
                f"Dataset.from_generator takes a function, not {type(generator).__name__}",
                "each epoch calls it; give the generator function, not what it returns",
            )
        name = getattr(generator, "__qualname__", type(generator).__name__)
        return Dataset(FromIterables(None, f"generator({name})", generator, copy))

    @staticmethod
    def from_files(paths: Path | Sequence[Path], read: Callable[[Path], Iterable[Any]]) -> Dataset:
        """The elements of files, one file after the other. `read(path)` gives those of one, such
        as `wf.data.read_tfrecords`, or a function that calls `wf.data.read_csv(path, columns)`.

        NotFoundError at once if a file is not there.
        """
        names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        for name in names:
            if not os.path.exists(name):
                raise NotFoundError(f"{os.fspath(name)}: no such file", location=caller_location())
        reads: object = read
        if not callable(reads) or not names:
            raise _error(
                "Dataset.from_files takes files and a function that reads one",
                "such as Dataset.from_files(paths, wf.data.read_tfrecords)",
            )

        def elements() -> Iterator[Any]:
            for name in names:
                yield from read(name)

        shown = ", ".join(os.path.basename(os.fspath(n)) for n in names[:3])
        more = f", ... {len(names)} files" if len(names) > 3 else ""
        return Dataset(FromIterables(None, f"files({shown}{more})", elements, False))

    # ----------------------------------------------------------------------------------- stages
    def map(self, fn: Callable[..., Any], workers: int = 0) -> Dataset:
        """`fn(element)` for each element; a tuple is given as several arguments.

        workers: how many threads call it, ahead of the loop; the order stays. 0: the thread that
        asks calls it, when it asks. What `fn` raises, the loop raises, at that element's turn.
        """
        if not callable(fn):
            raise _error(f"map takes a function, not {type(fn).__name__}")
        count = _count(workers, 0, "map: workers")
        function = Function(fn, caller_location())
        return Dataset(Map(self._stage, f"map({function.name})", function, count))

    def shuffle(self, buffer: int, seed: int | None = None) -> Dataset:
        """Each time one at random of the next `buffer` elements.

        seed: the same seed gives the same order, another one in each epoch of a later `repeat`.
        None: one drawn now from weft's generator (`wf.set_random_seed`).
        """
        size = _count(buffer, 1, "shuffle: buffer")
        number = _drawn() if seed is None else _count(seed, 0, "shuffle: seed")
        shown = f"shuffle({size})" if seed is None else f"shuffle({size}, seed={number})"
        return Dataset(Shuffle(self._stage, shown, size, number))

    def batch(self, n: int, drop_remainder: bool = False) -> Dataset:
        """n elements at a time, each array stacked along a new first axis; the last batch may be
        smaller, or is dropped. Rows of arrays that follow each other are a view, not a copy.

        InvalidArgumentError if arrays of a batch differ in dtype or shape.
        """
        size = _count(n, 1, "batch: n")
        text = f"batch({size}{', drop_remainder' if drop_remainder else ''})"
        return Dataset(Grouped(self._stage, text, size, bool(drop_remainder), caller_location()))

    def repeat(self, times: int | None = None) -> Dataset:
        """All elements so far `times` times, or again and again; shuffles before have another order
        each time."""
        count = None if times is None else _count(times, 0, "repeat: times")
        return Dataset(Repeat(self._stage, f"repeat({'' if count is None else count})", count))

    def shard(self, index: int, count: int) -> Dataset:
        """Every `count`-th element from `index` on: one worker's part of `count`."""
        parts = _count(count, 1, "shard: count")
        part = _count(index, 0, "shard: index")
        if part >= parts:
            raise _error(f"shard: index={part} must be less than count={parts}")
        return Dataset(Shard(self._stage, f"shard({part}, {parts})", part, parts))

    def prefetch(self, n: int) -> Dataset:
        """Have a thread make elements ahead of the loop, n at most."""
        size = _count(n, 1, "prefetch: n")
        return Dataset(Prefetch(self._stage, f"prefetch({size})", size))

    # -------------------------------------------------------------------------------- iterating
    def cardinality(self) -> int | None:
        """The number of elements, if it is known without reading: that of arrays is, that of files
        and generators is not, and without an end there is none."""
        return self._stage.cardinality()

    def iterate(self, epoch: int = 0) -> DatasetIterator:
        """A new iterator; `epoch` is which order shuffles have. UnsupportedError inside of a
        function that is being compiled."""
        trace = current_trace()
        if trace is not None and trace.root().kind != "graph":
            raise UnsupportedError(
                "a wf.data.Dataset was iterated while the function "
                f"{trace.root().describe()} is compiled: its elements would become constants",
                hint="iterate outside, and pass the elements as arguments",
                location=caller_location(),
            )
        return DatasetIterator(self._stage, _count(epoch, 0, "iterate: epoch"))

    def __iter__(self) -> DatasetIterator:
        return self.iterate()


def _array(leaf: Any) -> np.ndarray[Any, Any]:
    """A read-only view, of no subclass (a memmap's rows would be memmaps)."""
    array = np.asarray(leaf)
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def _count(value: Any, least: int, what: str) -> int:
    try:
        return at_least(value, least, what)
    except WeftError as error:
        raise error.at(caller_location()) from None


def _error(what: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(what, hint=hint, location=caller_location())


def _drawn() -> int:
    return int(np.asarray(default_generator().randint((), 0, 2**31 - 1, np.int64)))
