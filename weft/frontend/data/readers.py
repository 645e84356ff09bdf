"""Readers of one file each, for `Dataset.from_files` and for use alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.runtime.files import csv_rows, npy, tfrecord
from weft.runtime.files import streams as lines
from weft.runtime.files.streams import Path, check_compression


def read_tfrecords(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The records of a TFRecord file, as bytes; compression_type: "", "GZIP" or "ZLIB".

    Both checksums of each record are verified: DataLossError with file, record number (from 0) and
    byte for a file that is truncated or has a bit flipped. NotFoundError if there is none.
    """
    check_compression(compression_type)
    return tfrecord.read_records(path, compression_type)


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
    """
    return csv_rows.read_csv(
        path,
        csv_rows.as_columns(columns),
        header=header,
        delimiter=delimiter,
        quotechar=quotechar,
    )


def read_lines(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The lines of a text file as bytes, without their ends ("\\n" or "\\r\\n")."""
    check_compression(compression_type)
    return lines.read_lines(path, compression_type)


def read_npy(path: Path) -> Any:
    """The array of a .npy file, read-only. It is mapped: what is used is read, when it is used.

    DataLossError if it is damaged, InvalidArgumentError if it holds pickled objects.
    """
    return npy.read_npy(path)


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of a .npz file by name, read-only; mapped, unless they are compressed."""
    return npy.read_npz(path)
