"""Ops on files: readers, whole files, decoding of records, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.errors import FailedPreconditionError
from weft.ir.ops.resources import part_type
from weft.ir.spec import Attrs, int_attr, ints_attr, strs_attr
from weft.runtime.checkpoint.folder import restore_arrays, save_arrays
from weft.runtime.dataflow.host_ops.row import Array, HostRow, at_once, waits, without_object
from weft.runtime.files.decoding import decode_csv, matching_files, parse_examples
from weft.runtime.files.images import decode_sized
from weft.runtime.files.permissions import confined
from weft.runtime.files.records import read_whole
from weft.runtime.files.streams import unreadable
from weft.runtime.resources.attempts import Attempt, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.reader import Reader, as_arrays


def text(value: bytes) -> Array:
    """One string as an array."""
    out = np.empty((), object)
    out[()] = value
    return out


def _one(array: Array) -> bytes:
    value: Any = array[()]
    assert isinstance(value, bytes)
    return value


# ------------------------------------------------------------------------------------------ readers
def _reader_and_queue(given: Any) -> tuple[Reader, Queue]:
    reader, queue = given
    return reader, queue


def _read(
    given: Any, arrays: list[Array], attrs: Attrs, done: Done, cancel: CancelToken | None
) -> Attempt:
    reader, queue = _reader_and_queue(given)
    return reader.start_read(queue, 1, done, cancel)


def _read_up_to(
    given: Any, arrays: list[Array], attrs: Attrs, done: Done, cancel: CancelToken | None
) -> Attempt:
    reader, queue = _reader_and_queue(given)
    return reader.start_read(queue, int_attr(attrs, "n"), done, cancel, "read_up_to")


READER_ROWS: Mapping[str, HostRow] = {
    "reader_read": waits(Reader, _read, lambda _, found: [text(part) for part in found[0]]),
    "reader_read_up_to": waits(Reader, _read_up_to, lambda _, found: as_arrays(found)),
    "reader_num_records_produced": at_once(
        Reader, lambda reader, *_: np.array(reader.records_produced(), np.int64)
    ),
    "reader_num_work_units_completed": at_once(
        Reader, lambda reader, *_: np.array(reader.files_finished(), np.int64)
    ),
    "reader_reset": at_once(Reader, lambda reader, *_: reader.reset()),
}


# --------------------------------------------------------------------------------------- the others
def write_bytes(name: bytes, contents: bytes) -> None:
    """Write a file. FailedPreconditionError with what the system says, InvalidArgumentError for
    what is no name."""
    path = os.fsdecode(name)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(contents)
    except OSError as error:
        raise FailedPreconditionError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise unreadable(path, error) from error


def _read_file(arrays: list[Array], attrs: Attrs) -> Array:
    return text(read_whole(confined(os.fsdecode(_one(arrays[0])), strs_attr(attrs, "within"))))


def _write_file(arrays: list[Array], attrs: Attrs) -> None:
    name = _one(arrays[0])
    confined(os.fsdecode(name), strs_attr(attrs, "within"))
    write_bytes(name, _one(arrays[1]))


def _matching(arrays: list[Array], attrs: Attrs) -> Array:
    return matching_files(arrays[0], strs_attr(attrs, "within"))


def _csv(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    delimiter, quote, na_value = (str(attrs[k]) for k in ("delimiter", "quote", "na_value"))
    columns = ints_attr(attrs, "columns")
    return decode_csv(arrays[0], arrays[1:], delimiter, quote, na_value, columns)


def _example(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    types = [part_type(p) for p in strs_attr(attrs, "parts")]
    defaults = dict(zip(ints_attr(attrs, "defaults"), arrays[1:], strict=True))
    return parse_examples(arrays[0], strs_attr(attrs, "names"), types, defaults)


def _image(arrays: list[Array], attrs: Attrs) -> Array:
    sizes = [int_attr(attrs, k) for k in ("height", "width", "channels")]
    return decode_sized(_one(arrays[0]), *sizes)


def _save(arrays: list[Array], attrs: Attrs) -> None:
    named = dict(zip(strs_attr(attrs, "names"), arrays[1:], strict=True))
    save_arrays(_one(arrays[0]), named, int_attr(attrs, "keep"), strs_attr(attrs, "within"))


def _restore(arrays: list[Array], attrs: Attrs) -> Sequence[Array]:
    types = [part_type(p) for p in strs_attr(attrs, "parts")]
    within = strs_attr(attrs, "within")
    return restore_arrays(_one(arrays[0]), strs_attr(attrs, "names"), types, within)


FILE_ROWS: Mapping[str, HostRow] = {
    "read_file": without_object(_read_file),
    "write_file": without_object(_write_file),
    "matching_files": without_object(_matching),
    "decode_csv": without_object(_csv),
    "parse_example": without_object(_example),
    "decode_image": without_object(_image),
    "save": without_object(_save),
    "restore": without_object(_restore),
}
