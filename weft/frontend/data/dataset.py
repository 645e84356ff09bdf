"""`Dataset`: elements from arrays, files or generators, and the steps on their way to training;
readers of one file each, and the features of a tf.train.Example.

`DatasetIterator` is one pass over a dataset, which can be saved and goes on where it was;
`progress` shows a bar in the terminal while something is iterated."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from weft.frontend.core.pytree import flatten
from weft.frontend.core.trace import current_trace
from weft.frontend.data.stages import (
    FromIterables,
    FromTable,
    Function,
    Grouped,
    Items,
    Map,
    Prefetch,
    Repeat,
    Run,
    Shard,
    Shuffle,
    Stage,
    Table,
    at_least,
)
from weft.frontend.random.generator import default_generator
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, float32, int64, string
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.runtime.files import array_files, records, streams
from weft.runtime.files.decoding import bytes_array, parse_examples
from weft.runtime.files.streams import Path, check_compression


def read_tfrecords(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The records of a TFRecord file, as bytes; compression_type: "", "GZIP" or "ZLIB".

    Both checksums of each record are verified: DataLossError with file, record number (from 0) and
    byte for a file that is truncated or has a bit flipped. NotFoundError if there is none.

    >>> with wf.data.TFRecordWriter("words.tfrecord", "GZIP") as writer:
    ...     for word in (b"weft", b"warp"):
    ...         writer.write(word)
    >>> list(wf.data.read_tfrecords("words.tfrecord", "GZIP"))
    [b'weft', b'warp']
    """
    check_compression(compression_type)
    return records.read_records(path, compression_type)


def read_csv(
    path: Path,
    columns: Any,
    *,
    header: bool = True,
    delimiter: str = ",",
    quotechar: str = '"',
) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file, each a dict of arrays without axes.

    columns: {name: dtype} or {name: (dtype, default)}; the default is for empty fields, which are
    an error without one (strings: b""). With a header the names choose columns; without, they name
    all of them in order. Strings are bytes. Errors name file, line and column.

    >>> np.savetxt("people.csv", ["name,age,height", "Ada,36,1.65", "Alan,41,"], fmt="%s")
    >>> columns = {"name": wf.string, "height": (wf.float32, 0.0)}  # 0.0 where a field is empty
    >>> for row in wf.data.read_csv("people.csv", columns):
    ...     print(row["name"].item(), row["height"])
    b'Ada' 1.65
    b'Alan' 0.0
    """
    return array_files.read_csv(
        path,
        array_files.as_columns(columns),
        header=header,
        delimiter=delimiter,
        quotechar=quotechar,
    )


def read_lines(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The lines of a text file as bytes, without their ends ("\\n" or "\\r\\n").

    >>> np.savetxt("lines.txt.gz", ["one", "two"], fmt="%s")
    >>> list(wf.data.read_lines("lines.txt.gz", "GZIP"))
    [b'one', b'two']
    """
    check_compression(compression_type)
    return streams.read_lines(path, compression_type)


def read_npy(path: Path) -> Any:
    """The array of a .npy file, read-only. It is mapped: what is used is read, when it is used.

    DataLossError if it is damaged, InvalidArgumentError if it holds pickled objects.

    >>> np.save("table.npy", np.arange(6).reshape(3, 2))
    >>> table = wf.data.read_npy("table.npy")
    >>> table.shape, table[2]
    ((3, 2), array([4, 5]))
    """
    return array_files.read_npy(path)


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of a .npz file by name, read-only; mapped, unless they are compressed.

    >>> np.savez("arrays.npz", x=np.zeros((2, 3)), y=[1, 2])
    >>> {name: array.shape for name, array in wf.data.read_npz("arrays.npz").items()}
    {'x': (2, 3), 'y': (2,)}
    """
    return array_files.read_npz(path)


Array = np.ndarray[Any, Any]


class FixedLenFeature(NamedTuple):
    """A feature of one shape. default_value: for examples that do not have it.

    >>> record = wf.data.encode_example({"size": [28, 28]})
    >>> features = {
    ...     "size": wf.data.FixedLenFeature([2], wf.int64),
    ...     "label": wf.data.FixedLenFeature([], wf.int64, default_value=-1),
    ... }
    >>> wf.data.parse_single_example(record, features)
    {'size': array([28, 28]), 'label': array(-1)}
    """

    shape: Sequence[int]
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature of any length: an array with one axis, of length 0 where it is not there.

    >>> features = {"words": wf.data.VarLenFeature(wf.string)}
    >>> for given in ({"words": ["a", "b"]}, {}):
    ...     print(wf.data.parse_single_example(wf.data.encode_example(given), features))
    {'words': array([b'a', b'b'], dtype=object)}
    {'words': array([], dtype=object)}
    """

    dtype: Any


def parse_single_example(
    serialized: bytes, features: Mapping[str, FixedLenFeature | VarLenFeature]
) -> dict[str, Array]:
    """The features of a serialized tf.train.Example as arrays of float32, int64 or string (bytes).

    InvalidArgumentError, naming the feature, if one is missing without a default, or has another
    type or number of values; DataLossError if `serialized` is no Example.

    >>> record = wf.data.encode_example({"x": [0.5, 1.5], "label": 3})
    >>> x = wf.data.FixedLenFeature([2], wf.float32)
    >>> wf.data.parse_single_example(record, {"x": x})
    {'x': array([0.5, 1.5], dtype=float32)}
    >>> wf.data.parse_single_example(record, {"y": x})
    Traceback (most recent call last):
        ...
    weft.ir.errors.InvalidArgumentError: the example has no feature 'y'...
    """
    named = {name: part_of(name, wanted) for name, wanted in features.items()}
    defaults = {i: d for i, (_, d) in enumerate(named.values()) if d is not None}
    given = np.empty((), object)
    given[()] = serialized
    found = parse_examples(given, list(named), [t for t, _ in named.values()], defaults)
    return dict(zip(named, found, strict=True))


def part_of(name: str, wanted: FixedLenFeature | VarLenFeature) -> tuple[TensorType, Array | None]:
    """The type of a feature (`[?]` for one of any length), and what an example without it has."""
    dtype = _dtype(name, wanted.dtype)
    if isinstance(wanted, VarLenFeature):
        return TensorType(dtype, (None,)), None
    shape = tuple(int(d) for d in wanted.shape)
    default = None
    if wanted.default_value is not None:
        default = _default(name, wanted.default_value, dtype, shape)
    return TensorType(dtype, shape), default


def _dtype(name: str, given: Any) -> DType:
    dtype = as_dtype(given)
    if dtype not in (float32, int64, string):
        raise InvalidArgumentError(
            f"feature {name!r}: an Example holds float32, int64 and string, not {dtype.name}"
        )
    return dtype


def _default(name: str, value: Any, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype is string:
        given = [value] if isinstance(value, (bytes, str)) else list(value)
        flat = bytes_array([v.encode() if isinstance(v, str) else v for v in given])
        array = flat.reshape(()) if isinstance(value, (bytes, str)) else flat
    else:
        array = np.asarray(value, dtype.numpy)
    try:
        return np.broadcast_to(array if array.size != math.prod(shape) else array.reshape(shape),
                               shape).copy()  # fmt: skip
    except ValueError:
        raise InvalidArgumentError(
            f"feature {name!r}: default_value={value!r:.60} does not fit {format_shape(shape)}"
        ) from None


class DatasetIterator:
    """The elements of a dataset, from the first on. Made by `iter(dataset)`.

    Its threads end at the last element, at an error, with `close()`, at the end of a `with` block,
    or when nobody refers to it any more. Several threads may call `next`.

    >>> dataset = wf.data.Dataset.from_arrays(np.array([10, 20, 30]))
    >>> with iter(dataset) as elements:
    ...     first, state = next(elements), elements.state_dict()
    >>> again = iter(dataset)
    >>> again.load_state_dict(state)
    >>> [int(element) for element in again]
    [20, 30]
    """

    def __init__(self, stage: Stage, epoch: int) -> None:
        self._stage = stage
        self._shuffles = [s for s in stage.chain() if isinstance(s, Shuffle)]
        self._lock = threading.RLock()
        self._begin(epoch, 0, [s.seed for s in self._shuffles])

    def _begin(self, epoch: int, delivered: int, seeds: list[int]) -> None:
        self._epoch, self._delivered, self._seeds = epoch, delivered, seeds
        self._to_skip = delivered
        self._run = Run({id(s): n for s, n in zip(self._shuffles, seeds, strict=True)})
        self._items: Items | None = None  # opened with the first element
        self._ended = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._run.close, wait=False)

    @property
    def delivered(self) -> int:
        """How many elements were given."""
        return self._delivered

    def cardinality(self) -> int | None:
        """The number of elements of the dataset, those given included; None if not known."""
        return self._stage.cardinality()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopIteration
            if self._process != os.getpid():
                raise FailedPreconditionError(
                    "this iterator of a dataset was made before a fork, and its threads are the "
                    "parent's",
                    hint="make one in the child; load_state_dict(parent's state) takes it there",
                    location=caller_location(),
                )
            try:
                element = self._pull()
            except StopIteration:
                self.close()
                raise
            except BaseException as error:
                self.close()
                self._error = error
                raise
            self._delivered += 1
            return element

    def _pull(self) -> Any:
        items = self._items
        if items is None:
            items = self._items = self._stage.open(self._run, self._epoch)
        if self._to_skip:
            self._pass_over(items)
        item = next(items)
        try:
            return item()
        except StopIteration as error:  # it would end the loop, and nobody would know
            raise RuntimeError("making an element raised StopIteration") from error

    def _pass_over(self, items: Items) -> None:
        self._run.skipping = True
        done = items.skip(self._to_skip)
        self._run.skipping = False
        if done < self._to_skip:
            raise FailedPreconditionError(
                f"the iterator's state is after element {self._to_skip}, but there are only {done} "
                f"now: {self._describe()}",
                hint="the data must be the same as when the state was saved",
                location=caller_location(),
            )
        self._to_skip = 0

    def close(self) -> None:
        """Stop the threads and wait for them; there are no more elements. A second time is
        allowed."""
        self._ended = True
        self._finalizer.detach()
        self._run.close()
        self._items = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    # ------------------------------------------------------------------------------- checkpoints
    def _describe(self) -> str:
        """The stages that decide what comes; how far ahead it is made may change."""
        chain = self._stage.chain()
        return " -> ".join(s.text for s in chain if not isinstance(s, Prefetch))

    def state_dict(self) -> dict[str, Any]:
        """Where it is: the number of elements given, the seeds, and the pipeline as text. It takes
        no lock and waits for nobody, so a `wf.train.Saver` may save it."""
        return {
            "pipeline": self._describe(),
            "epoch": self._epoch,
            "delivered": self._delivered,
            "seeds": list(self._seeds),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the element that `state` was saved after, with its seeds.

        What comes before is passed over with the next element: rows of arrays at once, elements of
        files and generators by reading them again; functions given to `map` are not called for
        them. InvalidArgumentError, and no change, for the state of another pipeline.
        """
        if state.get("pipeline") != self._describe():
            raise InvalidArgumentError(
                f"the state is that of another dataset:\n  it has   {state.get('pipeline')}\n"
                f"  this is  {self._describe()}",
                hint="load it into an iterator of a dataset that is made alike",
                location=caller_location(),
            )
        epoch, delivered = (at_least(state[k], 0, f"state[{k!r}]") for k in ("epoch", "delivered"))
        seeds = [at_least(n, 0, "a seed") for n in state["seeds"]]
        if len(seeds) != len(self._shuffles):
            raise InvalidArgumentError(
                f"the state has {len(seeds)} seeds, not {len(self._shuffles)}"
            )
        with self._lock:
            self.close()
            self._begin(epoch, delivered, seeds)


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
        None: one drawn now from weft's generator (`wf.random.set_random_seed`).
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
