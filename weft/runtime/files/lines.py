"""Text files, line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator

from weft.ir.errors import DataLossError
from weft.runtime.files.streams import Damaged, Path, open_input

_BLOCK = 1 << 18


def read_lines(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The lines of a file as bytes, without the line feed (and a carriage return before it).

    DataLossError, naming file and line, for compressed files that are damaged.
    """
    number, rest = 0, b""
    with open_input(path, compression_type) as file:
        while True:
            try:
                block = file.read(_BLOCK)
            except Damaged as damage:
                raise DataLossError(
                    f"{os.fspath(path)}:{number + 1}: {damage}"
                ) from damage.__cause__
            if not block:
                break
            head, *lines = block.split(b"\n")
            rest += head
            for line in lines:
                yield rest.removesuffix(b"\r")
                number, rest = number + 1, line
    if rest:
        yield rest.removesuffix(b"\r")
