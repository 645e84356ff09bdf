"""Files that hold arrays: NumPy's .npy and .npz files, mapped into memory where that is possible,
never unpickled; and CSV files (RFC 4180), rows of named values of declared dtypes."""

from __future__ import annotations

import csv
import mmap
import os
import tokenize
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import DataLossError, InvalidArgumentError, WeftError, suggest
from weft.runtime.files.paths import Path, is_url
from weft.runtime.files.streams import opened

if TYPE_CHECKING:
    import zipfile


Array = np.ndarray[Any, Any]
# what NumPy's reader of headers raises for damaged ones
_BAD_HEADER = (ValueError, SyntaxError, TypeError, OverflowError, tokenize.TokenError)
_LOCAL_HEADER = 30  # bytes before the name in a zip file's local header (APPNOTE.TXT, 4.3.7)


def read_npy(path: Path) -> Array:
    """The array of a .npy file, read-only and mapped: rows are read from disk when they are used.

    DataLossError if the file is damaged or truncated, InvalidArgumentError if it holds objects.
    """
    with opened(path) as file:
        if is_url(path):
            return _read(os.fspath(path), file)
        return _mapped(os.fspath(path), file, 0, os.fstat(file.fileno()).st_size)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file by name, read-only: mapped if the file is not compressed
    (np.savez); else (np.savez_compressed) read, with zip's checksums."""
    import zipfile  # 4 ms that `import weft` need not take

    name = os.fspath(path)
    out: dict[str, Array] = {}
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    key = member.filename.removesuffix(".npy")
                    place = f"{name}, array {key!r}"
                    stored = member.compress_type == zipfile.ZIP_STORED
                    if stored and not is_url(path) and not member.flag_bits & 1:
                        out[key] = _stored(place, file, member)
                    else:
                        out[key] = _compressed(place, archive, member)
        except WeftError:
            raise
        # what zipfile raises for damaged archives: RuntimeError if one looks encrypted, ValueError
        # for names, OSError for places before the file, MemoryError for sizes
        except (
            zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError,
            ValueError, OverflowError, MemoryError,
        ) as error:  # fmt: skip
            raise DataLossError(f"{name}: no whole .npz file ({error})") from error
    return out


def _stored(place: str, file: Any, member: zipfile.ZipInfo) -> Array:
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04":
        raise DataLossError(f"{place}: its header at byte {member.header_offset} is damaged")
    sizes = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = member.header_offset + _LOCAL_HEADER + sizes
    return _mapped(place, file, start, start + member.file_size)


def _compressed(place: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        return _read(place, file)


def _read(place: str, file: Any) -> Array:
    try:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise DataLossError(f"{place}: there are bytes after the array")
    except _BAD_HEADER as error:
        raise _refused(place, error) from error
    array.flags.writeable = False
    return array


def _mapped(place: str, file: Any, start: int, end: int) -> Array:
    """The array whose .npy header is at byte `start`; its data must end before `end`."""
    file.seek(start)
    try:
        shape, fortran, dtype = _header(file)
    except _BAD_HEADER as error:
        raise _refused(place, error) from error
    if dtype.hasobject:
        raise InvalidArgumentError(
            f"{place}: it holds pickled Python objects, which are not read",
            hint="save numbers; strings go into text, CSV or TFRecord files",
        )
    offset, count = file.tell(), int(np.prod(shape, dtype=object))
    if min(shape, default=0) < 0:
        raise DataLossError(f"{place}: no whole .npy file (its shape is {list(shape)})")
    if offset + count * dtype.itemsize > min(end, os.fstat(file.fileno()).st_size):
        raise DataLossError(
            f"{place}: truncated: {dtype}{list(shape)} needs {count * dtype.itemsize} bytes from "
            f"byte {offset} on"
        )
    if not count:
        return np.empty(shape, dtype)
    block = mmap.mmap(file.fileno(), offset + count * dtype.itemsize, access=mmap.ACCESS_READ)
    flat = np.frombuffer(block, dtype, count, offset)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its format version {version} is not known")


def _refused(place: str, error: Exception) -> DataLossError | InvalidArgumentError:
    if "allow_pickle" in str(error):
        return InvalidArgumentError(f"{place}: it holds pickled Python objects, which are not read")
    return DataLossError(f"{place}: no whole .npy file ({error})")


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
