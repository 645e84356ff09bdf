"""Decoding of many records at once to arrays: fields of CSV lines, features of Examples."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import InvalidArgumentError, WeftError, suggest
from weft.ir.ops.strings import number_of
from weft.ir.types import TensorType
from weft.runtime.files.example import decode_example
from weft.runtime.files.permissions import confined

Array = np.ndarray[Any, Any]


def decode_csv(
    records: Array, defaults: Sequence[Array], delimiter: str = ",", quote: str = '"',
    na_value: str = "", columns: Sequence[int] = (),
) -> list[Array]:  # fmt: skip
    """The fields of CSV records (RFC 4180): an array of the records' shape for each default.

    defaults: of the dtype of the column; of one value, for empty fields and `na_value`, or of none:
    such a field is an error. quote: "" for none. columns: those to give (all if there are none).
    InvalidArgumentError names the record and the field.
    """
    between, mark = delimiter.encode(), quote.encode()
    rows = [_fields(record, i, between, mark) for i, record in enumerate(records.flat)]
    chosen = columns or range(len(defaults))
    for i, fields in enumerate(rows):
        if (len(fields) <= max(chosen)) if columns else (len(fields) != len(defaults)):
            raise InvalidArgumentError(
                f"record {i} has {len(fields)} fields, "
                f"{max(chosen) + 1 if columns else len(defaults)} are expected: "
                f"{records.flat[i]!r:.80}"
            )
    missing = {b"", na_value.encode()}
    with np.errstate(over="ignore"):  # inf, as in a step
        made = [
            _column([r[at] for r in rows], default, missing, at)
            for at, default in zip(chosen, defaults, strict=True)
        ]
    return [column.reshape(records.shape) for column in made]


def _fields(record: bytes, number: int, between: bytes, mark: bytes) -> list[bytes]:
    record = record.rstrip(b"\r\n")
    if not (mark and mark in record) and b"\n" not in record and b"\r" not in record:
        return record.split(between)
    try:
        return _split(record, between, mark)
    except ValueError as error:
        raise InvalidArgumentError(f"record {number}, {error}: {record!r:.80}") from None


def _split(record: bytes, between: bytes, mark: bytes) -> list[bytes]:
    """The fields of a record, some of them perhaps in quotes (`mark`, which is doubled within
    them). ValueError as RFC 4180 wants it. As in TensorFlow, line breaks before a field count
    nothing."""
    fields: list[bytes] = []
    at = -len(between)
    while at < len(record):
        at += len(between)
        while record[at : at + 1] in (b"\r", b"\n"):
            at += 1
        where = f"field {len(fields)}"
        if mark and record.startswith(mark, at):
            parts: list[bytes] = []
            while not parts or record.startswith(mark, at):
                end = record.find(mark, at + len(mark))
                if end < 0:
                    raise ValueError(f"{where}: the quote has no end")
                parts.append(record[at + len(mark) : end])
                at = end + len(mark)
            if at < len(record) and not record.startswith(between, at):
                raise ValueError(f"{where} goes on after the quote that ends it")
            fields.append(mark.join(parts))
            continue
        end = record.find(between, at)
        field, at = record[at : end if end >= 0 else None], end if end >= 0 else len(record)
        if (mark and mark in field) or b"\n" in field or b"\r" in field:
            raise ValueError(f"{where} has a quote or a line break, but is not in quotes")
        fields.append(field)
    return fields


def _column(fields: list[bytes], default: Array, missing: set[bytes], at: int) -> Array:
    """The fields of one column as an array."""
    dtype = as_dtype(default.dtype)
    given = default.flat[0] if default.size else None
    parse: Any = bytes if dtype is string else int if dtype.is_integer else float
    try:
        there = fields
        if not missing.isdisjoint(fields):
            there = [text for text in fields if text not in missing]
        if len(there) < len(fields) and given is None:
            raise ValueError
        if dtype is not string and b"_" in b"".join(there):  # Python's own way of writing numbers
            raise ValueError
        if there is fields:
            values = list(map(parse, fields))
        else:
            values = [given if text in missing else parse(text) for text in fields]
        out = np.empty(len(fields), dtype.numpy)
        out[:] = values
    except (ValueError, OverflowError):
        raise _bad_field(fields, default, missing, at) from None
    return out


def _bad_field(
    fields: list[bytes], default: Array, missing: set[bytes], at: int
) -> InvalidArgumentError:
    """The error for the first field of a column that stands for no value."""
    for i, text in enumerate(fields):
        where = f"record {i}, field {at}"
        if text in missing:
            if not default.size:
                return InvalidArgumentError(
                    f"{where}: it is empty, and there is no default",
                    hint="give the column a default of one value",
                )
            continue
        try:
            number_of(text, as_dtype(default.dtype))
        except WeftError as error:
            return InvalidArgumentError(f"{where}: {error.what}")
    return InvalidArgumentError(f"field {at} of the records stands for no value")


def parse_examples(
    serialized: Array, names: Sequence[str], types: Sequence[TensorType],
    defaults: Mapping[int, Array],
) -> list[Array]:  # fmt: skip
    """Features of serialized Examples: an array of the shape of `serialized` and of its type for
    each name. defaults: by number, for examples without the feature.

    A type `[?]` takes any number of values, of one example (none if it does not have the feature).
    InvalidArgumentError, naming example and feature, DataLossError for what is no Example.
    """
    found: list[list[Array]] = [[] for _ in names]
    for i, data in enumerate(serialized.flat):
        try:
            features = decode_example(data)
            for k, name in enumerate(names):
                found[k].append(_feature(name, types[k], features, defaults.get(k)))
        except WeftError as error:
            if serialized.ndim:
                raise type(error)(f"example {i}: {error.what}", hint=error.hint) from None
            raise
    out = []
    for values, t in zip(found, types, strict=True):
        tail = values[0].shape if values else tuple(d or 0 for d in t.static_shape)
        stacked = np.empty((len(values), *tail), t.dtype.numpy)
        for i, value in enumerate(values):
            stacked[i, ...] = value
        out.append(stacked.reshape((*serialized.shape, *tail)))
    return out


def _feature(
    name: str, wanted: TensorType, found: Mapping[str, Array], default: Array | None
) -> Array:
    values = found.get(name)
    if values is None:
        if not wanted.is_static:
            return np.empty(0, wanted.dtype.numpy)
        if default is None:
            raise InvalidArgumentError(
                f"the example has no feature {name!r}{suggest(name, list(found))}",
                hint=f"it has {', '.join(map(repr, sorted(found))) or 'none'}; or give a "
                "default_value",
            )
        return default
    there = as_dtype(values.dtype)
    if there is not wanted.dtype:
        raise InvalidArgumentError(
            f"feature {name!r} holds {there.name}, {wanted.dtype.name} is wanted"
        )
    if not wanted.is_static:
        return values
    if values.size != math.prod(wanted.static_shape):
        raise InvalidArgumentError(
            f"feature {name!r} has {values.size} values, its shape is {format_shape(wanted.shape)}",
            hint="a VarLenFeature takes any number",
        )
    return values.reshape(wanted.static_shape)


def matching_files(patterns: Array, within: Sequence[str] = ()) -> Array:
    """The names of the files that fit any of the patterns (`*`, `?`, `[...]`), sorted.

    PermissionDeniedError for a pattern that begins outside of the folders `within`, and for a file
    that is outside, if there are any.
    """
    for pattern in patterns.flat if within else ():
        fixed = re.split(rb"[*?[]", pattern, maxsplit=1)[0]
        confined(os.fsdecode(fixed if fixed == pattern else os.path.dirname(fixed)), within)
    names = {n for p in patterns.flat for n in glob.glob(p) if os.path.isfile(n)}
    for name in names:
        confined(os.fsdecode(name), within)
    out = np.empty(len(names), object)
    out[:] = sorted(names)
    return out
