"""Readers: the records of files whose names a queue gives, with TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from weft.frontend.ops.dynamic_sizes import fresh_sizes
from weft.frontend.queues.base import QueueBase
from weft.frontend.queues.in_graph import (
    handle,
    made_at_once,
    or_effect,
    or_in_graph,
    refuse_waiting,
)
from weft.frontend.queues.values import eager, integer, label, seconds
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Effect, Trace
from weft.ir.dtypes import string
from weft.ir.errors import TypeRuleError
from weft.ir.spec import AttrValue
from weft.runtime.files.records import Layout
from weft.runtime.files.streams import check_compression
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.reader import Reader, as_arrays

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
            hint="make it with wf.FIFOQueue(capacity, wf.string, shapes=[[]])",
        )
    return queue._queue


# ---------------------------------------------------------------------------------------- in graphs
def _read(
    trace: Trace, owner: ReaderBase, queue: Any, name: str | None = None, *,
    timeout: object = None, cancel: object = None,
) -> Pair:  # fmt: skip
    refuse_waiting("read", timeout, cancel)
    given = handle(trace, _queue_of(owner, queue))
    key, value = trace.emit("reader_read", [handle(trace, owner._reader), given])
    return trace.tensor(key), trace.tensor(value)


def _read_up_to(
    trace: Trace, owner: ReaderBase, queue: Any, num_records: Any, name: str | None = None, *,
    timeout: object = None, cancel: object = None,
) -> Pair:  # fmt: skip
    refuse_waiting("read_up_to", timeout, cancel)
    n = integer(num_records, "read_up_to: num_records", 1)
    operands = [handle(trace, owner._reader), handle(trace, _queue_of(owner, queue))]
    attrs: dict[str, AttrValue] = {"n": n, "sizes": fresh_sizes(trace, "read_up_to", 1)}
    key, value = trace.emit("reader_read_up_to", operands, attrs)
    return trace.tensor(key), trace.tensor(value)


def _number(op: str) -> Any:
    def emit(trace: Trace, owner: ReaderBase, name: str | None = None) -> Tensor:
        (made,) = trace.emit(op, [handle(trace, owner._reader)])
        return trace.tensor(made)

    return emit


def _reset(trace: Trace, owner: ReaderBase, name: str | None = None) -> Effect:
    (token,) = trace.emit("reader_reset", [handle(trace, owner._reader)])
    return Effect(trace.name_scope + (name or "reset"), token, trace)


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

    @or_in_graph(_read)
    @eager
    def read(
        self, queue: QueueBase, name: str | None = None, *, timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Pair:  # fmt: skip
        """The key (file and place) and the value of the next record, two strings.

        Waits for the name of a file if it is at the end of one. OutOfRangeError if the queue is
        closed and empty; NotFoundError and DataLossError for a file that is not there or damaged,
        after which it goes on with the next file.
        """
        made = self._reader.read(_queue_of(self, queue), 1, seconds(timeout), cancel)
        keys, values = as_arrays(made)
        return Tensor(keys.reshape(())), Tensor(values.reshape(()))

    @or_in_graph(_read_up_to)
    @eager
    def read_up_to(
        self, queue: QueueBase, num_records: int, name: str | None = None, *,
        timeout: float | None = None, cancel: CancelToken | None = None,
    ) -> Pair:  # fmt: skip
        """The keys and values of the next records, at least one and at most `num_records`, all of
        one file: two tensors of strings with one axis. Errors as `read`."""
        n = integer(num_records, "read_up_to: num_records", 1)
        found = _queue_of(self, queue)
        made = self._reader.read(found, n, seconds(timeout), cancel, "read_up_to")
        keys, values = as_arrays(made)
        return Tensor(keys), Tensor(values)

    @or_in_graph(_number("reader_num_records_produced"))
    @eager
    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records it has read, int64."""
        return Tensor(np.asarray(self._reader.records_produced(), np.int64))

    @or_in_graph(_number("reader_num_work_units_completed"))
    @eager
    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files it has read to their end, int64."""
        return Tensor(np.asarray(self._reader.files_finished(), np.int64))

    @or_effect(_reset)
    @eager
    def reset(self, name: str | None = None) -> None:
        """Be as new: at no file, nothing counted. Names that it took off the queue stay taken."""
        self._reader.reset()

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
    "ZLIB"."""

    __slots__ = ()

    @made_at_once
    @eager
    def __init__(self, name: str | None = None, options: str | None = None) -> None:
        super().__init__(Layout("tfrecord", compression=check_compression(options)), name)


class WholeFileReader(ReaderBase):
    """Whole files; keys are their names."""

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


__all__ = [
    "FixedLengthRecordReader", "IdentityReader", "ReaderBase", "TFRecordReader", "TextLineReader",
    "WholeFileReader",
]  # fmt: skip
