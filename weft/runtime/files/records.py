"""The records of one file with their keys, for each kind of reader, as TensorFlow's readers give
them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from weft.ir.errors import DataLossError
from weft.runtime.files.permissions import confined
from weft.runtime.files.streams import Damaged, Input, open_input, read_lines
from weft.runtime.files.tfrecord import read_records

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
