"""Records of one file: TFRecord's format, and the records with their keys, for each kind of reader,
as TensorFlow's readers give them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, Self

from weft.ir.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
)
from weft.runtime.files.paths import Path
from weft.runtime.files.permissions import confined
from weft.runtime.files.streams import (
    Damaged,
    Input,
    Output,
    check_compression,
    open_input,
    opened,
    read_lines,
)

_HEADER = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_PIECE = 1 << 24  # bytes asked for at once: a length is believed no further than the file goes


@cache
def crc32c() -> Callable[[bytes], int]:
    """The CRC-32C (Castagnoli, RFC 3720) of bytes, by google-crc32c: 18 GB/s and 0.1 us a call
    here; a table in Python does 6 MB/s. UnsupportedError where it is not installed."""
    try:
        import google_crc32c
    except ImportError as error:
        raise UnsupportedError(
            "TFRecord files need the package google-crc32c, for the checksums of their records",
            hint="pip install 'weft[data]'",
        ) from error
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def checksum() -> Callable[[bytes], int]:
    """The CRC-32C of bytes: as `crc32c`, where that is not installed by a table, for files that are
    small."""
    try:
        return crc32c()
    except UnsupportedError:
        return by_table


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (0x82F63B78 if row & 1 else 0)  # the polynomial, its bits reversed
        rows.append(row)
    return tuple(rows)


def by_table(data: bytes) -> int:
    """The CRC-32C of bytes, byte by byte."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[crc & 0xFF ^ byte] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def framed(record: bytes, crc: Callable[[bytes], int]) -> bytes:
    """A record as it stands in the file: its length, the data, and a checksum of each."""
    length = len(record).to_bytes(8, "little")
    return b"".join(
        (length, _SUM.pack(masked(crc(length))), record, _SUM.pack(masked(crc(record))))
    )


def masked(crc: int) -> int:
    """A CRC as it is stored, so that the CRC of data that hold CRCs is no special one."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The records of a file, each with both checksums verified.

    DataLossError, with file, record and byte, for a file that is truncated or damaged.
    """
    crc, name = crc32c(), os.fspath(path)
    compressed = check_compression(compression_type)
    with open_input(path, compressed) as file:
        number = at = 0
        while True:
            place = f"{name}: record {number} at byte {at}" + (
                " of the decompressed data" if compressed else ""
            )
            try:
                header = file.read(_HEADER.size)
                if not header:
                    return
                data = _record(file, header, crc)
            except Damaged as damage:
                raise DataLossError(
                    f"{place}: {damage}", hint=_hint(path, compressed, number)
                ) from damage.__cause__
            yield data
            number += 1
            at += _HEADER.size + len(data) + _SUM.size


def _record(file: Input, header: bytes, crc: Callable[[bytes], int]) -> bytes:
    """One record, its header given. `Damaged` says what is wrong."""
    if len(header) < _HEADER.size:
        raise Damaged(f"the file ends after {len(header)} of the 12 bytes of its header")
    length, stored = _HEADER.unpack(header)
    computed = masked(crc(header[:8]))
    if computed != stored:
        raise Damaged(
            f"the checksum of its length does not fit (stored {stored:08x}, computed "
            f"{computed:08x})"
        )
    data = file.read(length) if length <= _PIECE else _long(file, length)
    if len(data) < length:
        raise Damaged(f"the file ends after {len(data)} of its {length} bytes")
    tail = file.read(_SUM.size)
    if len(tail) < _SUM.size:
        raise Damaged("the file ends before the checksum of its data")
    (stored,) = _SUM.unpack(tail)
    computed = masked(crc(data))
    if computed != stored:
        raise Damaged(
            f"the checksum of its {length} bytes does not fit (stored {stored:08x}, computed "
            f"{computed:08x})"
        )
    return data


def _long(file: Input, length: int) -> bytes:
    parts = []
    while length:
        part = file.read(min(length, _PIECE))
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _hint(path: Path, compressed: str, number: int) -> str | None:
    """What the reader may have done wrong, if the very first record is damaged."""
    if number:
        return None
    with opened(path) as file:
        magic = file.read(2)
    if not compressed and magic == b"\x1f\x8b":
        return 'it looks like a gzip file: compression_type="GZIP"'
    if not compressed and magic[:1] == b"\x78" and int.from_bytes(magic) % 31 == 0:
        return 'it looks like a zlib file: compression_type="ZLIB"'
    return "is it a TFRecord file of this compression?"


class RecordWriter:
    """Writes a TFRecord file (an existing one is replaced). A context manager.

    >>> with wf.data.TFRecordWriter("one.tfrecord") as writer:
    ...     writer.write(wf.data.encode_example({"id": 7}))
    >>> [wf.data.decode_example(record) for record in wf.data.read_tfrecords("one.tfrecord")]
    [{'id': array([7])}]
    """

    def __init__(self, path: Path, compression_type: str | None = None) -> None:
        self._crc = crc32c()
        self._name = os.fspath(path)
        self._out = Output(path, compression_type)

    def write(self, record: bytes) -> None:
        """Append one record. InvalidArgumentError for what is no bytes."""
        if not isinstance(record, bytes):
            raise InvalidArgumentError(
                f"{self._name}: a record is bytes, this is {type(record).__name__}",
                hint="wf.data.encode_example(features) makes bytes of named arrays",
            )
        if self._out.closed:
            raise FailedPreconditionError(f"{self._name}: the writer is closed")
        self._out.write(framed(record, self._crc))

    def flush(self) -> None:
        """Hand what was written to the system."""
        if not self._out.closed:
            self._out.flush()

    def close(self) -> None:
        """End the file. A second time is allowed."""
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Record = tuple[bytes, bytes]


class Layout(NamedTuple):
    """The layout of the files of one kind of reader. skip: lines, or bytes, before the first
    record; hop: bytes from one record's start to the next's (0: they follow each other); within:
    the folders whose files may be read (none: any)."""

    kind: str
    skip: int = 0
    record: int = 0
    footer: int = 0
    hop: int = 0
    compression: str = ""
    within: tuple[str, ...] = ()


def records(name: str, layout: Layout) -> Iterator[Record]:
    """(key, value) of each record of a file. NotFoundError if there is none, DataLossError with
    file and place where it is damaged, PermissionDeniedError for one that may not be read."""
    if layout.kind != "identity":
        confined(name, layout.within)
    yield from KINDS[layout.kind](name, layout)


def _lines(name: str, layout: Layout) -> Iterator[Record]:
    start = os.fsencode(name) + b":"
    for number, line in enumerate(read_lines(name, layout.compression), 1):
        if number > layout.skip:
            yield start + b"%d" % number, line


def _tfrecords(name: str, layout: Layout) -> Iterator[Record]:
    start, at = os.fsencode(name) + b":", 0
    for record in read_records(name, layout.compression):
        yield start + b"%d" % at, record
        at += 16 + len(record)  # its length and two checksums


def _whole(name: str, layout: Layout) -> Iterator[Record]:
    yield os.fsencode(name), read_whole(name, layout.compression)


def _identity(name: str, layout: Layout) -> Iterator[Record]:
    yield os.fsencode(name), os.fsencode(name)


def read_whole(name: str, compression: str = "") -> bytes:
    """All bytes of a file."""
    with open_input(name, compression) as file:
        parts = []
        try:
            while part := file.read(1 << 24):
                parts.append(part)
        except Damaged as damage:
            raise DataLossError(f"{name}: {damage}") from damage.__cause__
        return b"".join(parts)


def _fixed(name: str, layout: Layout) -> Iterator[Record]:
    """Records of one length between a header and a footer."""
    start = os.fsencode(name) + b":"
    size, hop = layout.record, layout.hop or layout.record
    with open_input(name, layout.compression) as file:
        _skipped(file, layout.skip, name)
        ahead, number, at = b"", 0, layout.skip
        while True:  # `ahead` begins at byte `at`, with record `number`
            try:
                ahead += _more(file, size + layout.footer - len(ahead))
            except Damaged as damage:
                raise DataLossError(f"{name}: record {number} at byte {at}: {damage}") from None
            if len(ahead) < size + layout.footer:
                break
            yield start + b"%d" % number, ahead[:size]
            if hop > len(ahead):
                _more(file, hop - len(ahead))
            ahead, number, at = ahead[hop:], number + 1, at + hop
    if len(ahead) != layout.footer and hop == size:
        raise DataLossError(
            f"{name}: record {number} at byte {at}: the file ends after "
            f"{max(len(ahead) - layout.footer, 0)} of its {size} bytes",
            hint="header, footer and record length must fit the length of the file",
        )


def _skipped(file: Input, count: int, name: str) -> None:
    if len(_more(file, count)) < count:
        raise DataLossError(f"{name}: the file ends within its header of {count} bytes")


def _more(file: Input, count: int) -> bytes:
    parts = []
    while count > 0 and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


#: By the attribute `kind` of the op `reader`.
KINDS: Mapping[str, Callable[[str, Layout], Iterator[Record]]] = {
    "text_line": _lines,
    "tfrecord": _tfrecords,
    "whole_file": _whole,
    "fixed_length": _fixed,
    "identity": _identity,
}
