"""Readers of one file each, and the features of a tf.train.Example."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.data.items import at_least
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, float32, int64, string
from weft.ir.errors import InvalidArgumentError
from weft.ir.types import TensorType
from weft.runtime.dynamic.door import native_examples
from weft.runtime.files import array_files, records, streams
from weft.runtime.files.decoding import bytes_array, parse_examples
from weft.runtime.files.paths import Path
from weft.runtime.files.streams import check_compression


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


def read_fixed_records(
    path: Path, record_bytes: int, header_bytes: int = 0, footer_bytes: int = 0,
    compression_type: str | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """The records of a file, `record_bytes` bytes each, between a header and a footer.

    DataLossError, naming file and record, for one that ends within a record.

    >>> np.arange(6, dtype=np.uint8).tofile("pairs.bin")
    >>> list(wf.data.read_fixed_records("pairs.bin", 2, header_bytes=2))
    [b'\\x02\\x03', b'\\x04\\x05']
    """
    given = {"record_bytes": record_bytes, "header_bytes": header_bytes,
             "footer_bytes": footer_bytes}  # fmt: skip
    sizes = [
        at_least(n, int(what == "record_bytes"), f"read_fixed_records: {what}")
        for what, n in given.items()
    ]
    layout = records.Layout(
        "fixed_length", sizes[1], sizes[0], sizes[2], 0, check_compression(compression_type)
    )
    return (value for _, value in records.records(os.fspath(path), layout))


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
    one = np.empty((), object)
    one[()] = serialized
    given = (one, list(named), [t for t, _ in named.values()], defaults)
    found = native_examples(*given)
    return dict(zip(named, parse_examples(*given) if found is None else found, strict=True))


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
