"""Ops on files: readers, whole files, decoding of records, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.errors import FailedPreconditionError, WeftError
from weft.ir.graph import Operation
from weft.ir.ops.resources import part_type
from weft.ir.spec import int_attr, ints_attr, strs_attr
from weft.runtime.checkpoint.folder import restore_arrays, save_arrays
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.files.decoding import decode_csv, matching_files, parse_examples
from weft.runtime.files.images import decode_sized
from weft.runtime.files.permissions import confined
from weft.runtime.files.records import read_whole
from weft.runtime.files.streams import unreadable
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.queue import Queue
from weft.runtime.resources.reader import Reader, as_arrays

Objects = tuple[Reader, Queue]


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
def _read(o: Objects, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    def given(made: Any) -> None:
        done(made if isinstance(made, WeftError) else [text(part) for part in made[0]])

    o[0].start_read(o[1], 1, given, c)


def _read_up_to(o: Objects, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    def given(made: Any) -> None:
        done(made if isinstance(made, WeftError) else as_arrays(made))

    o[0].start_read(o[1], int_attr(op.attrs, "n"), given, c, "read_up_to")


def _produced(r: Reader, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(r.records_produced(), np.int64)])


def _finished(r: Reader, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done([np.array(r.files_finished(), np.int64)])


def _reset(r: Reader, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    r.reset()
    done([None])


# --------------------------------------------------------------------------------------- the others
def _at_once(run: Callable[[Operation, list[Array]], list[Any]]) -> Begin:
    """A row that waits for nothing."""

    def begin(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
        try:
            made: Any = run(op, arrays)
        except WeftError as error:
            made = error
        done(made)

    return begin


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


def _read_file(op: Operation, arrays: list[Array]) -> list[Any]:
    return [text(read_whole(confined(os.fsdecode(_one(arrays[0])), strs_attr(op.attrs, "within"))))]


def _write_file(op: Operation, arrays: list[Array]) -> list[Any]:
    name = _one(arrays[0])
    confined(os.fsdecode(name), strs_attr(op.attrs, "within"))
    write_bytes(name, _one(arrays[1]))
    return [None]


def _matching(op: Operation, arrays: list[Array]) -> list[Any]:
    return [matching_files(arrays[0], strs_attr(op.attrs, "within"))]


def _csv(op: Operation, arrays: list[Array]) -> list[Any]:
    a = op.attrs
    delimiter, quote, na_value = (str(a[k]) for k in ("delimiter", "quote", "na_value"))
    columns = ints_attr(a, "columns")
    return [*decode_csv(arrays[0], arrays[1:], delimiter, quote, na_value, columns)]


def _example(op: Operation, arrays: list[Array]) -> list[Any]:
    types = [part_type(p) for p in strs_attr(op.attrs, "parts")]
    defaults = dict(zip(ints_attr(op.attrs, "defaults"), arrays[1:], strict=True))
    return [*parse_examples(arrays[0], strs_attr(op.attrs, "names"), types, defaults)]


def _image(op: Operation, arrays: list[Array]) -> list[Any]:
    sizes = [int_attr(op.attrs, k) for k in ("height", "width", "channels")]
    return [decode_sized(_one(arrays[0]), *sizes)]


def _save(op: Operation, arrays: list[Array]) -> list[Any]:
    named = dict(zip(strs_attr(op.attrs, "names"), arrays[1:], strict=True))
    save_arrays(_one(arrays[0]), named, int_attr(op.attrs, "keep"), strs_attr(op.attrs, "within"))
    return [None]


def _restore(op: Operation, arrays: list[Array]) -> list[Any]:
    types = [part_type(p) for p in strs_attr(op.attrs, "parts")]
    within = strs_attr(op.attrs, "within")
    return [*restore_arrays(_one(arrays[0]), strs_attr(op.attrs, "names"), types, within)]


ROWS: Mapping[str, Begin] = {
    "reader_read": _read,
    "reader_read_up_to": _read_up_to,
    "reader_num_records_produced": _produced,
    "reader_num_work_units_completed": _finished,
    "reader_reset": _reset,
    "read_file": _at_once(_read_file),
    "write_file": _at_once(_write_file),
    "matching_files": _at_once(_matching),
    "decode_csv": _at_once(_csv),
    "parse_example": _at_once(_example),
    "decode_image": _at_once(_image),
    "save": _at_once(_save),
    "restore": _at_once(_restore),
}
