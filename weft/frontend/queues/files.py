"""Files in graphs, with TensorFlow 1's names: whole files, images and records as tensors, and
readers, which give the records of files whose names come from a queue.

Compiled functions hold their ops, too, but make no readers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect
from weft.frontend.data.readers import FixedLenFeature, VarLenFeature, part_of
from weft.frontend.ops.indexing import getitem
from weft.frontend.ops.promotion import check_int
from weft.frontend.queues.host_ops import host_effect, host_op, located, string_tensor
from weft.frontend.queues.queue import QueueBase
from weft.frontend.sparse.sparse_tensor import as_size
from weft.frontend.sparse.sparse_tensor import made as made_sparse
from weft.frontend.state.resources import eager, eager_or_graph, integer, label, made_at_once
from weft.ir.dtypes import DType, as_dtype, string, uint8
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.runtime.files.records import Layout
from weft.runtime.files.streams import check_compression
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.reader import Reader


@located
def read_file(filename: Any, name: str | None = None) -> Tensor:
    """All bytes of a file, a string without axes. NotFoundError if there is none."""
    return host_op("read_file", [_name("wf.tf1.read_file", filename)])[0]


@located
def write_file(filename: Any, contents: Any, name: str | None = None) -> Effect:
    """Write a string to a file, in place of one that is there; makes its folder. An effect.

    FailedPreconditionError with what the system says if it cannot.
    """
    contents = string_tensor("wf.tf1.write_file", contents, scalar=True)
    given = [_name("wf.tf1.write_file", filename), contents]
    return host_effect("write_file", given, name=name) or Effect(name or "write_file")


@located
def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The names of the files that fit a pattern, or one of several (`*`, `?`, `[...]`), sorted: a
    tensor of strings with one axis."""
    names = _name("wf.tf1.matching_files", pattern, scalar=False)
    return host_op("matching_files", [names], sizes=1)[0]


def _name(what: str, x: Any, *, scalar: bool = True) -> Tensor:
    if isinstance(x, os.PathLike):
        x = os.fsencode(x)
    return string_tensor(what, x, scalar=scalar)


# ------------------------------------------------------------------------------------------- images
@located
def decode_image(
    contents: Any, channels: int | None = None, dtype: Any = uint8, name: str | None = None, *,
    shape: Sequence[int | None] | None = None,
) -> Tensor:  # fmt: skip
    """A PNG, JPEG or other image as u8[height, width, channels], by Pillow.

    contents: a string without axes. channels: 0 or None (as it has them), 1, 2, 3, 4. shape:
    (height, width, channels) that the image must have, None for any; in a `wf.Graph` what is not
    given is known when the step runs. InvalidArgumentError for an image of another size,
    DataLossError for what is no whole image, UnsupportedError for another dtype than uint8.
    """
    if as_dtype(dtype) is not uint8:
        raise UnsupportedError(f"images are decoded as uint8, not as {as_dtype(dtype).name}")
    given = string_tensor("wf.tf1.decode_image", contents, scalar=True)
    sizes = [None, None, None] if shape is None else list(shape)
    if len(sizes) != 3:
        raise InvalidArgumentError(
            f"wf.tf1.decode_image: shape={shape!r} is not height, width, channels"
        )
    wanted = check_int("decode_image", channels or 0, "channels")
    if sizes[2] is not None and wanted not in (0, sizes[2]):
        raise InvalidArgumentError(f"wf.tf1.decode_image: channels={wanted}, but shape={shape!r}")
    height, width, last = (
        -1 if n is None else check_int("decode_image", n, "shape") for n in sizes
    )
    last = wanted if last < 0 else last
    return host_op(
        "decode_image", [given], sizes=(height < 0) + (width < 0) + (not last),
        height=height, width=width, channels=last,
    )[0]  # fmt: skip


decode_png = decode_jpeg = decode_image


# ------------------------------------------------------------------------------------------ records
@located
def decode_csv(
    records: Any, record_defaults: Sequence[Any], field_delim: str = ",",
    use_quote_delim: bool = True, name: str | None = None, na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:  # fmt: skip
    """The fields of CSV records (RFC 4180), a tensor of the records' shape for each column.

    records: strings. record_defaults: for each column a value ([0], 0), which an empty field or
    `na_value` stands for and which says the dtype, or a dtype alone: there an empty field is an
    error. float32, float64, int32, int64 or string; numbers of Python are float32 and int32, as in
    TensorFlow. select_cols: the columns to give, rising. InvalidArgumentError names record and
    field.

    >>> names, ages = wf.tf1.decode_csv(["Ada,36", '"B, C",'], [wf.string, [0]])
    >>> names.tolist(), ages.tolist()
    ([b'Ada', b'B, C'], [36, 0])
    """
    given = string_tensor("wf.tf1.decode_csv", records)
    defaults = [_default(d) for d in record_defaults]
    columns = tuple(check_int("decode_csv", c, "select_cols") for c in select_cols or ())
    return host_op(
        "decode_csv", [given, *defaults], delimiter=field_delim,
        quote='"' if use_quote_delim else "", na_value=na_value, columns=columns,
    )  # fmt: skip


def _default(given: Any) -> Tensor:
    if isinstance(given, (DType, type, np.dtype)):
        return Tensor(np.empty(0, as_dtype(given).numpy))
    if isinstance(given, Tensor):
        return given
    typed = isinstance(given, (np.ndarray, np.generic))
    t = as_tensor(given)
    if not typed and t.dtype.kind in ("int", "float"):  # TensorFlow's types of Python's numbers
        return Tensor(np.asarray(t.numpy(), np.int32 if t.dtype.is_integer else np.float32))
    return t


@located
def parse_example(
    serialized: Any, features: Mapping[str, FixedLenFeature | VarLenFeature],
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Features of serialized tf.train.Examples: for each name a tensor of the shape of `serialized`
    (strings of any shape) and of the feature's shape.

    A VarLenFeature of a list of examples is a `wf.sparse.SparseTensor` [examples, most values], of
    one example a tensor with one axis; in a `wf.Graph` its size is known when the step runs.
    InvalidArgumentError names example and feature, DataLossError what is no
    Example.
    """
    given = string_tensor("wf.tf1.parse_example", serialized)
    parts: list[str] = []
    defaults: dict[int, Tensor] = {}
    for i, (key, wanted) in enumerate(features.items()):
        part, default = part_of(key, wanted)
        parts.append(str(part))
        if default is not None:
            defaults[i] = Tensor(default)
    made = iter(host_op(
        "parse_example", [given, *defaults.values()], sizes=sum("?" in p for p in parts),
        names=tuple(features), parts=tuple(parts), defaults=tuple(defaults),
    ))  # fmt: skip
    found: dict[str, Any] = {}
    for key, kind in zip(features, parts, strict=True):
        first = next(made)
        if given.ndim and "?" in kind:
            values, shape = next(made), next(made)
            found[key] = made_sparse(first, values, (given.shape[0], as_size(getitem(shape, 1))))
        else:
            found[key] = first
    return found


@located
def parse_single_example(
    serialized: Any, features: Mapping[str, FixedLenFeature | VarLenFeature],
    name: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`parse_example` of one example: a string without axes."""
    return parse_example(
        string_tensor("wf.tf1.parse_single_example", serialized, scalar=True), features
    )


Pair = tuple[Tensor, Tensor]


def _queue_of(reader: ReaderBase, queue: Any) -> Queue:
    what = reader._reader.describe()
    if not isinstance(queue, QueueBase):
        raise TypeRuleError(
            f"{what} reads files that a queue names, got a {type(queue).__name__}",
            hint="wf.train.string_input_producer(names) makes one",
        )
    c = queue._queue.components
    if c.dtypes != (string,) or c.shapes not in (((),), (None,)):
        raise TypeRuleError(
            f"{what} reads files that a queue names; the elements of this one are {c}",
            hint="make it with wf.tf1.FIFOQueue(capacity, wf.string, shapes=[[]])",
        )
    return queue._queue


class ReaderBase:
    """A reader: gives the records of one file after the other, whose names come out of a queue.

    In a `wf.Graph` the methods add ops, and the steps of all sessions share the reader; eagerly
    they read at once, and `timeout=` and `cancel=` are as for queues.
    """

    __slots__ = ("_reader", "__weakref__")

    def __init__(self, layout: Layout, name: str | None) -> None:
        self._reader = Reader(layout, label(name, f"{layout.kind}_reader"))

    def __repr__(self) -> str:
        reader = self._reader
        return f"<{reader.describe()}: {reader.records_produced()} records>"

    @property
    def name(self) -> str:
        """The name given."""
        return self._reader.name

    @eager_or_graph
    def read(
        self, queue: QueueBase, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Pair:  # fmt: skip
        """The key (file and place) and the value of the next record, two strings.

        Waits for the name of a file if it is at the end of one. OutOfRangeError if the queue is
        closed and empty; NotFoundError and DataLossError for a file that is not there or damaged,
        after which it goes on with the next file.
        """
        objects = (self._reader, _queue_of(self, queue))
        key, value = host_op("reader_read", (), objects, timeout=timeout, cancel=cancel)
        return key, value

    @eager_or_graph
    def read_up_to(
        self, queue: QueueBase, num_records: int, name: str | None = None, *,
        timeout: float | None = None, cancel: CancelToken | None = None,
    ) -> Pair:  # fmt: skip
        """The keys and values of the next records, at least one and at most `num_records`, all of
        one file: two tensors of strings with one axis. Errors as `read`."""
        n = integer(num_records, "read_up_to: num_records", 1)
        objects = (self._reader, _queue_of(self, queue))
        keys, values = host_op(
            "reader_read_up_to", (), objects, n=n, sizes=1, timeout=timeout, cancel=cancel
        )
        return keys, values

    @eager_or_graph
    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records it has read, int64."""
        return host_op("reader_num_records_produced", (), (self._reader,))[0]

    @eager_or_graph
    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files it has read to their end, int64."""
        return host_op("reader_num_work_units_completed", (), (self._reader,))[0]

    @eager_or_graph
    def reset(self, name: str | None = None) -> Any:
        """Be as new: at no file, nothing counted. Names that it took off the queue stay taken."""
        return host_effect("reader_reset", (), (self._reader,), name=name or "reset")

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """Its file and the place in it, for a checkpoint."""
        return self._reader.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Go on where the reader was that gave `state`. Returns self."""
        self._reader.load_state_dict(state)
        return self


class TextLineReader(ReaderBase):
    """Lines of text files, without their ends, after `skip_header_lines` in each file.

    Keys are `file:line`, from 1. compression_type: "", "GZIP" or "ZLIB".

    >>> np.savetxt("words.csv", ["word,count", "one,1", "two,2"], fmt="%s")
    >>> files = wf.tf1.FIFOQueue(1, wf.string, shapes=[[]])
    >>> files.enqueue("words.csv")
    >>> reader = wf.tf1.TextLineReader(skip_header_lines=1)
    >>> [t.item() for t in reader.read(files)]
    [b'words.csv:2', b'one,1']
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, skip_header_lines: int | None = None, name: str | None = None, *,
        compression_type: str | None = None,
    ) -> None:  # fmt: skip
        skip = integer(skip_header_lines or 0, "TextLineReader: skip_header_lines")
        compression = check_compression(compression_type)
        super().__init__(Layout("text_line", skip, compression=compression), name)


class TFRecordReader(ReaderBase):
    """Records of TFRecord files; keys are `file:byte`. options: the compression, "", "GZIP" or
    "ZLIB".

    >>> with wf.data.TFRecordWriter("a.tfrecord") as writer:
    ...     writer.write(b"first")
    ...     writer.write(b"second")
    >>> files = wf.tf1.FIFOQueue(1, wf.string, shapes=[[]])
    >>> files.enqueue("a.tfrecord")
    >>> wf.tf1.TFRecordReader().read_up_to(files, 10)[1].tolist()
    [b'first', b'second']
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, name: str | None = None, options: str | None = None) -> None:
        super().__init__(Layout("tfrecord", compression=check_compression(options)), name)


class WholeFileReader(ReaderBase):
    """Whole files; keys are their names.

    >>> with open("greeting.txt", "w") as file:
    ...     _ = file.write("hello")
    >>> files = wf.tf1.FIFOQueue(1, wf.string, shapes=[[]])
    >>> files.enqueue("greeting.txt")
    >>> [t.item() for t in wf.tf1.WholeFileReader().read(files)]
    [b'greeting.txt', b'hello']
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, name: str | None = None) -> None:
        super().__init__(Layout("whole_file"), name)


class IdentityReader(ReaderBase):
    """The names themselves, as keys and values."""

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, name: str | None = None) -> None:
        super().__init__(Layout("identity"), name)


class FixedLengthRecordReader(ReaderBase):
    """Records of `record_bytes` bytes between a header and a footer; keys are `file:number`.

    hop_bytes: from the start of one record to that of the next (0: they follow each other; then a
    file that ends within a record is a DataLossError). encoding: "", "GZIP" or "ZLIB".

    >>> np.arange(6, dtype=np.uint8).tofile("pairs.bin")
    >>> files = wf.tf1.FIFOQueue(1, wf.string, shapes=[[]])
    >>> files.enqueue("pairs.bin")
    >>> reader = wf.tf1.FixedLengthRecordReader(record_bytes=2)
    >>> keys, values = reader.read_up_to(files, 10)
    >>> wf.tf1.decode_raw(values, wf.uint8)
    Tensor([[0, 1],
            [2, 3],
            [4, 5]], dtype=uint8)
    """

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(
        self, record_bytes: int, header_bytes: int | None = None, footer_bytes: int | None = None,
        hop_bytes: int | None = None, name: str | None = None, encoding: str | None = None,
    ) -> None:  # fmt: skip
        what = "FixedLengthRecordReader"
        size = integer(record_bytes, f"{what}: record_bytes", 1)
        rest = (("header_bytes", header_bytes), ("footer_bytes", footer_bytes))
        header, footer = (integer(n or 0, f"{what}: {k}") for k, n in rest)
        hop = integer(hop_bytes or 0, f"{what}: hop_bytes")
        compression = check_compression(encoding)
        super().__init__(Layout("fixed_length", header, size, footer, hop, compression), name)
