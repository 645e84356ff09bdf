"""CSV files (RFC 4180, by the csv module): rows as named values of declared dtypes."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import DataLossError, InvalidArgumentError, suggest
from weft.runtime.files.streams import Path, opened

Array = np.ndarray[Any, Any]
Row = dict[str, Array]


class Column(NamedTuple):
    """A column: what it holds, and what an empty field stands for (None: it is an error)."""

    dtype: DType
    default: Any = None


class _Parser(NamedTuple):
    name: str
    place: int
    column: Column
    parse: Callable[[str], Any]


def read_csv(
    path: Path,
    columns: Mapping[str, Column],
    *,
    header: bool = True,
    delimiter: str = ",",
    quotechar: str = '"',
) -> Iterator[Row]:
    """The rows of a file as {name: array without axes}; empty lines are passed over.

    With a header, `columns` chooses by name; without, it names all columns in order. Strings are
    bytes. InvalidArgumentError or DataLossError name the file, the line and the column.
    """
    name = os.fspath(path)
    # whatever the bytes are, they come back: numbers do not parse, strings are not looked into
    with opened(path, "r", encoding="utf-8", errors="surrogateescape", newline="") as file:
        reader = _reader(name, file, delimiter, quotechar)
        lines = _rows(name, reader)
        names: Sequence[str] = list(columns)
        if header:
            line, names = next(lines, (1, []))
            if not names:
                raise DataLossError(f"{name}: the file is empty, but should begin with a header")
            names = [names[0].removeprefix("\ufeff"), *names[1:]]
        parsers = _parsers(name, names, columns)
        for line, fields in lines:
            if len(fields) != len(names):
                raise DataLossError(
                    f"{name}:{line}: {len(fields)} fields, where {len(names)} are expected "
                    f"({', '.join(names)})"
                )
            yield {p.name: _value(name, line, p, fields[p.place]) for p in parsers}


def _reader(name: str, file: Any, delimiter: str, quotechar: str) -> Any:
    try:
        return csv.reader(file, delimiter=delimiter, quotechar=quotechar, strict=True)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{name}: delimiter={delimiter!r}, quotechar={quotechar!r}: {error}"
        ) from None


def _rows(name: str, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The first line of each row, and its fields."""
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataLossError(
                f"{name}:{line}: {error}",
                hint="is a quote missing? A row begins in that line"
                if "limit" not in str(error)
                else "csv.field_size_limit(n) allows longer fields",
            ) from error
        if fields:
            yield line, fields


def _parsers(name: str, names: Sequence[str], columns: Mapping[str, Column]) -> list[_Parser]:
    twice = sorted({n for n in names if n in columns and names.count(n) > 1})
    if twice:
        raise InvalidArgumentError(f"{name}: the header has {', '.join(map(repr, twice))} twice")
    missing = [c for c in columns if c not in names]
    if missing:
        raise InvalidArgumentError(
            f"{name}: the header has no column {', '.join(map(repr, missing))}"
            f"{suggest(missing[0], names)}",
            hint=f"it has {', '.join(map(repr, names))}",
        )
    return [
        _Parser(n, names.index(n), column, parser(column.dtype)) for n, column in columns.items()
    ]


def _value(name: str, line: int, p: _Parser, text: str) -> Array:
    dtype = p.column.dtype
    if not text and (p.column.default is not None or dtype is not string):
        value = p.column.default
        if value is None:
            _refuse(name, line, p, "the field is empty, and the column has no default")
        if isinstance(value, str):
            value = value.encode()
    else:
        try:
            value = p.parse(text)
        except ValueError:
            _refuse(name, line, p, f"{text!r:.60} is no {dtype.name}")
    try:
        with np.errstate(over="ignore"):
            if dtype is string:
                out = np.empty((), object)
                out[()] = value
                return out
            return np.array(value, dtype.numpy)
    except (OverflowError, TypeError, ValueError):
        _refuse(name, line, p, f"{value!r:.60} does not fit {dtype.name}")


def _refuse(name: str, line: int, p: _Parser, what: str) -> NoReturn:
    raise InvalidArgumentError(f"{name}:{line}: column {p.name!r}: {what}")


def parser(dtype: DType) -> Callable[[str], Any]:
    """What makes a Python value of a field. It raises ValueError for other text."""
    if dtype is string:
        return lambda text: text.encode("utf-8", "surrogateescape")
    if dtype.kind == "bool":
        return _truth
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "uint": int, "float": float}
    if dtype.kind not in kinds:
        raise InvalidArgumentError(f"a CSV column of {dtype.name} is not supported")
    number = kinds[dtype.kind]

    def parse(text: str) -> Any:
        if "_" in text:  # Python's own way of writing numbers
            raise ValueError
        return number(text)

    return parse


def _truth(text: str) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def as_columns(columns: Any) -> dict[str, Column]:
    """{name: dtype, or (dtype, default)} checked. InvalidArgumentError if there is none."""
    if not isinstance(columns, Mapping) or not columns:
        raise InvalidArgumentError(
            "columns must be a dict of names and dtypes",
            hint='such as {"age": wf.int64, "income": (wf.float32, 0.0)}',
        )
    out = {}
    for name, given in columns.items():
        dtype, default = given if isinstance(given, tuple) else (given, None)
        out[str(name)] = column = Column(as_dtype(dtype), default)
        parser(column.dtype)
    return out


__all__ = ["Column", "Row", "as_columns", "parser", "read_csv"]
