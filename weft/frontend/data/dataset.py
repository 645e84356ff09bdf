"""`Dataset`: elements from arrays, files or generators, and the steps on their way to training;
`progress` shows a bar in the terminal while something is iterated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

import numpy as np

from weft.frontend.core.pytree import flatten
from weft.frontend.core.trace import current_trace
from weft.frontend.data.caching import CacheInFile, CacheInMemory
from weft.frontend.data.combining import Chosen, Concatenate, FlatMap, Interleave, Sampled, Zip
from weft.frontend.data.grouping import Buckets, Padded, Padding, Unbatch, Window
from weft.frontend.data.items import Batch, Function, at_least, in_rows
from weft.frontend.data.iterator import DatasetIterator
from weft.frontend.data.selecting import (
    Enumerate,
    Filter,
    FromList,
    IgnoreErrors,
    Scan,
    Skip,
    Take,
    Whole,
)
from weft.frontend.data.stages import (
    FromFiles,
    FromIterables,
    FromTable,
    Grouped,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Stage,
)
from weft.frontend.random.generator import default_generator
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.files.paths import Path, exists


class Dataset:
    """A pipeline of elements: arrays, or tuples, lists and dicts of them. It is a description that
    never changes; each method gives a new one, each `iter` starts from the first element.

    Two iterations of one dataset give the same elements in the same order, also with workers and
    shuffles. More epochs come from `repeat`, in which each has an order of its own.

    >>> x, y = np.arange(5), np.arange(5) ** 2
    >>> dataset = wf.data.Dataset.from_arrays({"x": x, "y": y}).shuffle(5, seed=0).batch(2)
    >>> for batch in dataset:
    ...     print(batch["x"], batch["y"])
    [2 1] [4 1]
    [4 3] [16  9]
    [0] [0]
    >>> dataset
    <Dataset arrays(5) -> shuffle(5, seed=0) -> batch(2)>
    """

    __slots__ = ("_stage",)

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __repr__(self) -> str:
        return f"<Dataset {self._stage.shown()}>"

    # ---------------------------------------------------------------------------------- sources
    @staticmethod
    def from_arrays(arrays: Any) -> Dataset:
        """The rows of arrays: an array, or a tuple, list or dict of arrays whose first axes have
        one length. Elements are read-only views; the arrays must not change meanwhile."""
        table, count = in_rows(arrays, "Dataset.from_arrays", caller_location())
        return Dataset(FromTable(None, f"arrays({count})", table, count))

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
            if not exists(name):
                raise NotFoundError(f"{os.fspath(name)}: no such file", location=caller_location())
        reads: object = read
        if not callable(reads) or not names:
            raise _error(
                "Dataset.from_files takes files and a function that reads one",
                "such as Dataset.from_files(paths, wf.data.read_tfrecords)",
            )

        shown = ", ".join(os.path.basename(os.fspath(n)) for n in names[:3])
        more = f", ... {len(names)} files" if len(names) > 3 else ""
        return Dataset(FromFiles(None, f"files({shown}{more})", tuple(names), read))

    @staticmethod
    def range(*args: int) -> Dataset:
        """The numbers of Python's `range(*args)`, int64, one at a time.

        >>> [int(n) for n in wf.data.Dataset.range(2, 8, 3)]
        [2, 5]
        """
        try:
            numbers = range(*args)
            len(numbers)
        except (TypeError, ValueError, OverflowError) as error:
            raise _error(f"Dataset.range{args!r:.60}: {error}") from None
        if numbers and not all(-(2**63) <= n < 2**63 for n in (numbers[0], numbers[-1])):
            raise _error(f"Dataset.range{args!r:.60}: its numbers do not fit int64")
        text = f"range({', '.join(map(str, args))})"
        return Dataset(FromList(None, text, Whole(numbers)))

    @staticmethod
    def zip(*datasets: Any) -> Dataset:
        """An element of each dataset at a time, as a tuple; of one dict, list or tuple of datasets
        an element of its form. It ends with the shortest.

        >>> words = wf.data.Dataset.from_generator(lambda: ["a", "b", "c"])
        >>> list(wf.data.Dataset.zip(words, wf.data.Dataset.range(2)))
        [('a', array(0)), ('b', array(1))]
        """
        one = len(datasets) == 1 and not isinstance(datasets[0], Dataset)
        leaves, structure = flatten(datasets[0] if one else datasets)
        return Dataset(Zip(None, "zip", _stages("zip", leaves), structure))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset], weights: Sequence[float] | None = None,
        seed: int | None = None, stop_on_empty_dataset: bool = False,
    ) -> Dataset:  # fmt: skip
        """Each time the next element of one of the datasets, drawn with `weights` (None: equal
        ones). What an exhausted one would get, the others share; with stop_on_empty_dataset the
        first that is exhausted is the end. seed as of `shuffle`.

        >>> some = [wf.data.Dataset.range(n, n + 3) for n in (0, 10)]
        >>> mixed = wf.data.Dataset.sample_from_datasets(some, [0.9, 0.1], seed=1)
        >>> sorted(int(n) for n in mixed)
        [0, 1, 2, 10, 11, 12]
        """
        what = "sample_from_datasets"
        stages = _stages(what, datasets)
        try:
            given = np.ones(len(stages)) if weights is None else np.asarray(weights, np.float64)
        except (TypeError, ValueError):
            given = np.full(len(stages), np.nan)
        fine = np.isfinite(given) & (given >= 0)
        if given.shape != (len(stages),) or not fine.all() or not given.any():
            raise _error(
                f"{what}: weights={weights!r:.60} for {len(stages)} datasets",
                "one for each, none of them negative, and not all of them 0",
            )
        number = _drawn() if seed is None else _count(seed, 0, f"{what}: seed")
        chosen, stop = tuple(float(w) for w in given), bool(stop_on_empty_dataset)
        shown = _settings(
            weights=None if weights is None else list(chosen),
            seed=None if seed is None else number,
            stop_on_empty_dataset=stop or None,
        )
        return Dataset(Sampled(None, what, number, stages, chosen, stop, shown))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """The next element of the dataset that each number of `choice_dataset` names. With
        stop_on_empty_dataset=False numbers of exhausted datasets are passed over.

        >>> some = [wf.data.Dataset.range(n, n + 3) for n in (0, 10)]
        >>> choices = wf.data.Dataset.from_arrays(np.array([1, 0, 0, 1]))
        >>> [int(n) for n in wf.data.Dataset.choose_from_datasets(some, choices)]
        [10, 0, 1, 11]
        """
        what = "choose_from_datasets"
        stages, (choices,) = _stages(what, datasets), _stages(what, [choice_dataset])
        stop = bool(stop_on_empty_dataset)
        shown = _settings(stop_on_empty_dataset=None if stop else False)
        return Dataset(Chosen(None, what, stages, choices, stop, caller_location(), shown))

    # ----------------------------------------------------------------------------------- stages
    def map(self, fn: Callable[..., Any], workers: int = 0, deterministic: bool = True) -> Dataset:
        """`fn(element)` for each element; a tuple is given as several arguments.

        workers: how many threads call it, ahead of the loop; the order stays, unless
        deterministic=False: then each result comes when it is there. 0: the thread that asks calls
        it, when it asks. What `fn` raises, the loop raises, at that element's turn.
        """
        function, count = _function(fn, "map"), _count(workers, 0, "map: workers")
        return Dataset(Map(self._stage, function.text, function, count, bool(deterministic)))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements of which `predicate` says True (a bool of any kind). A tuple is given as
        several arguments.

        >>> [int(n) for n in wf.data.Dataset.range(5).filter(lambda n: n % 2 == 0)]
        [0, 2, 4]
        """
        function = _function(predicate, "filter")
        return Dataset(Filter(self._stage, function.text, function))

    def flat_map(self, fn: Callable[..., Any]) -> Dataset:
        """The elements of the datasets that `fn` makes of each element, one after the other.

        >>> few = wf.data.Dataset.range(3).flat_map(lambda n: wf.data.Dataset.range(int(n)))
        >>> [int(n) for n in few]
        [0, 0, 1]
        """
        function = _function(fn, "flat_map")
        return Dataset(FlatMap(self._stage, function.text, function))

    def interleave(
        self, fn: Callable[..., Any], cycle_length: int, block_length: int = 1, workers: int = 0,
        deterministic: bool = True,
    ) -> Dataset:  # fmt: skip
        """As `flat_map`, but of `cycle_length` datasets at a time, `block_length` elements of each
        in turn; where one ends the next is opened when the turn comes round.

        workers: threads that open datasets and make a block of each ahead; the order stays, unless
        deterministic=False: then each reads one dataset, and gives elements as it makes them.

        >>> files = wf.data.Dataset.range(1, 4)
        >>> rows = files.interleave(lambda n: wf.data.Dataset.range(int(n)), cycle_length=2)
        >>> [int(n) for n in rows]
        [0, 0, 1, 0, 1, 2]
        """
        function = _function(fn, "interleave")
        cycle = _count(cycle_length, 1, "interleave: cycle_length")
        block = _count(block_length, 1, "interleave: block_length")
        count = _count(workers, 0, "interleave: workers")
        text = f"interleave({function.name}, {cycle}, {block})"
        return Dataset(
            Interleave(self._stage, text, function, cycle, block, count, bool(deterministic))
        )

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """`scan_func(state, element)` gives the next state and the element that comes instead.

        >>> sums = wf.data.Dataset.range(1, 5).scan(0, lambda total, n: (total + n, total + n))
        >>> [int(n) for n in sums]
        [1, 3, 6, 10]
        """
        function = _function(scan_func, "scan")
        return Dataset(Scan(self._stage, function.text, function, initial_state))

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Go through the dataset now: `reduce_func(state, element)` gives the next state. The last
        one, `initial_state` if there are no elements.

        >>> wf.data.Dataset.range(5).reduce(0, lambda total, n: total + int(n))
        10
        """
        function = _function(reduce_func, "reduce")
        state = initial_state
        with self.iterate() as elements:
            for element in elements:
                state = function.of(state, element)
        return state

    def take(self, count: int) -> Dataset:
        """The first `count` elements, if there are as many; -1: all.

        >>> [int(n) for n in wf.data.Dataset.range(9).take(2)]
        [0, 1]
        """
        n = _count(count, -1, "take: count")
        return self if n < 0 else Dataset(Take(self._stage, f"take({n})", n))

    def skip(self, count: int) -> Dataset:
        """The elements after the first `count`; -1: none. Functions before are not called for those
        that are passed over.

        >>> [int(n) for n in wf.data.Dataset.range(5).skip(3)]
        [3, 4]
        """
        n = _count(count, -1, "skip: count")
        return Dataset(Skip(self._stage, f"skip({n})", None if n < 0 else n))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this dataset, then those of another.

        >>> [int(n) for n in wf.data.Dataset.range(2).concatenate(wf.data.Dataset.range(7, 9))]
        [0, 1, 7, 8]
        """
        (other,) = _stages("concatenate", [dataset])
        return Dataset(Concatenate(self._stage, "concatenate", other))

    def enumerate(self, start: int = 0) -> Dataset:
        """Pairs of a number (int64, from `start` on) and an element.

        >>> list(wf.data.Dataset.from_generator(lambda: ["a", "b"]).enumerate(5))
        [(array(5), 'a'), (array(6), 'b')]
        """
        first = _count(start, -(2**63), "enumerate: start")
        return Dataset(Enumerate(self._stage, f"enumerate({first or ''})", first))

    def shuffle(
        self, buffer: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Each time one at random of the next `buffer` elements.

        seed: the same seed gives the same order, another one in each epoch of a later `repeat`,
        unless reshuffle_each_iteration=False. None: one drawn now from weft's generator
        (`wf.random.set_random_seed`).
        """
        size, each = _count(buffer, 1, "shuffle: buffer"), bool(reshuffle_each_iteration)
        number = _drawn() if seed is None else _count(seed, 0, "shuffle: seed")
        shown = f"shuffle({size}" if seed is None else f"shuffle({size}, seed={number}"
        text = f"{shown})" if each else f"{shown}, once)"
        return Dataset(Shuffle(self._stage, text, number, size, each))

    def batch(self, n: int, drop_remainder: bool = False) -> Dataset:
        """n elements at a time, each array stacked along a new first axis; the last batch may be
        smaller, or is dropped. Rows of arrays that follow each other are a view, not a copy.

        InvalidArgumentError if arrays of a batch differ in dtype or shape.
        """
        size = _count(n, 1, "batch: n")
        text = f"batch({size}{', drop_remainder' if drop_remainder else ''})"
        batch = partial(Batch, location=caller_location())
        return Dataset(Grouped(self._stage, text, size, bool(drop_remainder), batch))

    def padded_batch(
        self, n: int, padded_shapes: Any = None, padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:  # fmt: skip
        """As `batch`, but arrays of different sizes are filled up at their ends.

        padded_shapes: of one element, as a tree of shapes; None (or -1) for a size is the largest
        of the batch, None for a shape is that for all its axes. padding_values: a tree of them, or
        one for all; None: 0, of strings b"". InvalidArgumentError for arrays that are larger, or
        differ in dtype or number of axes.

        >>> rows = wf.data.Dataset.from_generator(lambda: (np.arange(n) for n in (1, 3)))
        >>> for batch in rows.padded_batch(2, padding_values=-1):
        ...     print(batch)
        [[ 0 -1 -1]
         [ 0  1  2]]
        """
        size = _count(n, 1, "padded_batch: n")
        padding = Padding("padded_batch", padded_shapes, padding_values, caller_location())
        shown = _settings(padded_shapes=padded_shapes, padding_values=padding_values)
        text = f"padded_batch({size}{', drop_remainder' if drop_remainder else ''}{shown})"
        batch = partial(Padded, padding=padding)
        return Dataset(Grouped(self._stage, text, size, bool(drop_remainder), batch))

    def bucket_by_sequence_length(
        self, element_length_func: Callable[..., Any], bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int], padded_shapes: Any = None, padding_values: Any = None,
        pad_to_bucket_boundary: bool = False, no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:  # fmt: skip
        """Batches of elements of about one length, each when it is full: those shorter than the
        first of `bucket_boundaries`, those from there up to below the second, and so on, the rest.
        bucket_batch_sizes: how many elements a batch of each has. At the end what is left comes,
        shortest first, or with drop_remainder does not.

        They are filled up as by `padded_batch`; pad_to_bucket_boundary: sizes that padded_shapes
        leaves open (without it: the first axes) to one less than the bucket's boundary, and longer
        elements than the last are an InvalidArgumentError. no_padding: not at all.

        >>> rows = wf.data.Dataset.from_generator(lambda: (np.arange(n) for n in (5, 1, 2, 6)))
        >>> for batch in rows.bucket_by_sequence_length(len, [4], [2, 2]):
        ...     print(batch.shape)
        (2, 2)
        (2, 6)
        """
        what = "bucket_by_sequence_length"
        length = _function(element_length_func, what)
        boundaries = tuple(_count(b, 1, f"{what}: a boundary") for b in bucket_boundaries)
        sizes = tuple(_count(b, 1, f"{what}: a batch size") for b in bucket_batch_sizes)
        if not boundaries or list(boundaries) != sorted({*boundaries}):
            raise _error(f"{what}: bucket_boundaries={list(boundaries)} must rise, one at least")
        if len(sizes) != len(boundaries) + 1:
            raise _error(
                f"{what}: {len(sizes)} bucket_batch_sizes for {len(boundaries)} boundaries",
                "one for each boundary, and one for what is longer than all of them",
            )
        if no_padding and pad_to_bucket_boundary:
            raise _error(f"{what}: no_padding and pad_to_bucket_boundary exclude each other")
        padding = Padding(what, padded_shapes, padding_values, caller_location())
        shown = f"{list(boundaries)}, {list(sizes)}{', drop_remainder' if drop_remainder else ''}"
        shown += _settings(
            padded_shapes=padded_shapes, padding_values=padding_values,
            pad_to_bucket_boundary=pad_to_bucket_boundary or None, no_padding=no_padding or None,
        )  # fmt: skip
        return Dataset(Buckets(
            self._stage, f"{what}({length.name}, {shown})", length, boundaries, sizes,
            None if no_padding else padding, bool(pad_to_bucket_boundary), bool(drop_remainder),
        ))  # fmt: skip

    def unbatch(self) -> Dataset:
        """The rows of each element: what `batch` made one, several again. InvalidArgumentError if
        the first axes of an element's arrays differ.

        >>> [int(n) for n in wf.data.Dataset.range(5).batch(2).unbatch()]
        [0, 1, 2, 3, 4]
        """
        return Dataset(Unbatch(self._stage, "unbatch()", caller_location()))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Dataset:
        """Datasets of `size` elements, `stride` apart; each begins `shift` (None: `size`) elements
        after the one before. The last ones may be shorter, or are dropped. Of elements that are
        tuples, lists or dicts a window is one of datasets, as in TensorFlow.

        >>> numbers = wf.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> [batch.tolist() for batch in numbers.flat_map(lambda window: window.batch(3))]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        n = _count(size, 1, "window: size")
        by = n if shift is None else _count(shift, 1, "window: shift")
        apart = _count(stride, 1, "window: stride")
        text = f"window({n}, {by}, {apart}{', drop_remainder' if drop_remainder else ''})"
        drop, place = bool(drop_remainder), caller_location()
        return Dataset(Window(self._stage, text, n, by, apart, drop, _window, place))

    def cache(self, filename: Path | None = None) -> Dataset:
        """Keep the elements of the first whole pass, in memory or in a file; later passes make none
        anew. Shuffles before it have one order. Cached arrays are read-only.

        In memory it is for all iterations of this dataset, while it lives. A file is for others,
        too, and is there when it is whole: of arrays, numbers, str and bytes in dicts, lists and
        tuples (UnsupportedError for others); InvalidArgumentError if it is that of another
        pipeline, DataLossError if it is damaged. Functions and data that changed are not noticed:
        remove it.

        >>> calls = []
        >>> few = wf.data.Dataset.range(3).map(lambda n: calls.append(int(n)) or n).cache()
        >>> [int(n) for n in few.repeat(2)], calls
        ([0, 1, 2, 0, 1, 2], [0, 1, 2])
        """
        if filename is None or filename == "":
            return Dataset(CacheInMemory(self._stage, "cache()"))
        if not isinstance(filename, (str, os.PathLike)):
            raise _error(f"cache: filename={filename!r:.60} is no name of a file")
        text = f"cache({os.path.basename(os.fspath(filename))})"
        return Dataset(CacheInFile(self._stage, text, filename, caller_location()))

    def ignore_errors(self, log_warning: bool = False) -> Dataset:
        """The elements that could be made: an Exception while one is made, or read, leaves it out.
        Of files (`from_files`) what comes next is the next file; a generator has ended.
        log_warning: log each to `weft.data`.

        >>> some = wf.data.Dataset.range(3).map(lambda n: 6 // int(n)).ignore_errors()
        >>> list(some)
        [6, 3]
        """
        return Dataset(IgnoreErrors(self._stage, "ignore_errors()", bool(log_warning)))

    def repeat(self, times: int | None = None) -> Dataset:
        """All elements so far `times` times, or again and again (None, -1); shuffles before have
        another order each time."""
        count = None if times is None or times == -1 else _count(times, 0, "repeat: times")
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


def _window(elements: list[Any]) -> Dataset:
    return Dataset(FromList(None, f"window({len(elements)})", elements))


def _settings(**given: Any) -> str:
    """Those that are not None, for the text of a stage."""
    return "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)


def _function(fn: Any, stage: str) -> Function:
    if not callable(fn):
        raise _error(f"{stage} takes a function, not {type(fn).__name__}")
    return Function(fn, caller_location(), stage)


def _stages(what: str, datasets: Any) -> tuple[Stage, ...]:
    given = datasets if isinstance(datasets, (list, tuple)) else [datasets]
    wrong = [d for d in given if not isinstance(d, Dataset)]
    if wrong or not given:
        found = f"not {wrong[0]!r:.60}" if wrong else "at least one"
        raise _error(
            f"{what} takes datasets, {found}", "wf.data.Dataset.from_arrays(arrays) makes one"
        )
    return tuple(d._stage for d in given)


def _count(value: Any, least: int, what: str) -> int:
    try:
        return at_least(value, least, what)
    except WeftError as error:
        raise error.at(caller_location()) from None


def _error(what: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(what, hint=hint, location=caller_location())


def _drawn() -> int:
    return int(np.asarray(default_generator().randint((), 0, 2**31 - 1, np.int64)))


T = TypeVar("T")


def progress(
    elements: Iterable[T], description: str = "", total: int | None = None, **options: Any
) -> Iterator[T]:
    """The elements, with a rich progress bar: how many of `total`, elements per second, the time
    left. `total` is known for datasets of known size and for what has a `len`; without it the bar
    shows what is done.

    options: those of `rich.progress.Progress`, such as disable=True or console=. The threads of a
    dataset end with the loop, however it ends.

    >>> dataset = wf.data.Dataset.from_arrays(np.arange(4))
    >>> total = 0
    >>> for x in wf.data.progress(dataset, "adding", disable=True):  # without a bar
    ...     total += int(x)
    >>> total
    6
    """
    if total is None:
        if isinstance(elements, Dataset):
            total = elements.cardinality()
        elif isinstance(elements, DatasetIterator):
            whole = elements.cardinality()
            total = None if whole is None else whole - elements.delivered
        elif isinstance(elements, Sized):
            total = len(elements)
    return _shown(elements, description, total, options)


def _shown(
    elements: Iterable[T], description: str, total: int | None, options: dict[str, Any]
) -> Iterator[T]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    iterator = iter(elements)
    try:
        with Progress(*columns, **options) as bar:
            task = bar.add_task(description, total=total)
            for element in iterator:
                yield element
                bar.advance(task)
    finally:
        if isinstance(iterator, DatasetIterator) and iterator is not elements:
            iterator.close()
