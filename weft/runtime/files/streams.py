"""Files read from front to back, decompressed on the way; text files line by line."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Protocol, Self

from weft.ir.errors import DataLossError, InvalidArgumentError, NotFoundError, WeftError
from weft.runtime.files.paths import Path, open_path

#: TensorFlow's names of compressions, and zlib's `wbits` for each.
_WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
_BLOCK = 1 << 18


class Damaged(Exception):
    """Compressed data that do not decompress; the reader adds the file and the place."""


class Input(Protocol):
    """The interface of a file that readers read."""

    def read(self, n: int, /) -> bytes:
        """The next n bytes, fewer at the end."""


def check_compression(compression_type: str | None) -> str:
    """ "", "GZIP" or "ZLIB". InvalidArgumentError for others."""
    given = compression_type or ""
    if given and given not in _WINDOW_BITS:
        raise InvalidArgumentError(
            f"compression_type={compression_type!r} is not known", hint='"", "GZIP" or "ZLIB"'
        )
    return given


@contextmanager
def opened(path: Path, mode: str = "rb", **options: Any) -> Iterator[IO[Any]]:
    """`open(path, mode)`, of a URL by fsspec. NotFoundError or InvalidArgumentError, naming the
    file, if it cannot."""
    try:
        file = open_path(path, mode, **options)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    with file:
        yield file


def unreadable(path: Path, error: OSError | ValueError) -> WeftError:
    """The error for a file that cannot be opened. ValueError: its name is none (a byte 0)."""
    if isinstance(error, ValueError):
        return InvalidArgumentError(f"{os.fspath(path)!r} is no name of a file: {error}")
    what = f"{os.fspath(path)}: {error.strerror or error}"
    kind = NotFoundError if isinstance(error, FileNotFoundError) else InvalidArgumentError
    return kind(what)


@contextmanager
def open_input(path: Path, compression_type: str | None = None) -> Iterator[Input]:
    """A file to read, decompressed."""
    compression = check_compression(compression_type)
    with opened(path) as file:
        yield Inflated(file, _WINDOW_BITS[compression]) if compression else file


class Inflated:
    """A gzip (RFC 1952, also several members) or zlib (RFC 1950) file, decompressed. zlib checks
    the sums that these formats carry. `Damaged` if it is not whole."""

    def __init__(self, file: IO[bytes], window_bits: int) -> None:
        self._file = file
        self._bits = window_bits
        self._inflate = zlib.decompressobj(window_bits)
        self._begun = False  # the present member
        self._left = b""  # compressed bytes that were read and not used
        self._out = b""
        self._at = 0  # what of `_out` was given

    def read(self, n: int, /) -> bytes:
        """The next n bytes, fewer at the end."""
        parts: list[bytes] = []
        while n > 0:
            if self._at == len(self._out) and not self._more():
                break
            part = self._out[self._at : self._at + n]
            self._at += len(part)
            n -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _more(self) -> bool:
        """Decompress another block; False at the end."""
        while True:
            raw = self._left or self._file.read(_BLOCK)
            if not raw:
                if self._begun:
                    raise Damaged("the compressed data end too early")
                return False
            self._begun = True
            try:
                self._out = self._inflate.decompress(raw, _BLOCK)
            except zlib.error as error:
                raise Damaged(f"it does not decompress ({error})") from error
            self._at = 0
            self._left = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._left = self._inflate.unused_data
                self._inflate = zlib.decompressobj(self._bits)
                self._begun = False
            if self._out:
                return True


class Output:
    """A file to write, compressed if asked for. A context manager; `close` ends the compression."""

    def __init__(self, path: Path, compression_type: str | None = None) -> None:
        compression = check_compression(compression_type)
        self._deflate = zlib.compressobj(wbits=_WINDOW_BITS[compression]) if compression else None
        try:
            self._file: IO[bytes] = open_path(path, "wb")  # closed by close()
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data if self._deflate is None else self._deflate.compress(data))

    def flush(self) -> None:
        """Hand what was written to the system, such that it can be read."""
        if self._deflate is not None:
            self._file.write(self._deflate.flush(zlib.Z_FULL_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Write the end. A second time is allowed."""
        if self._file.closed:
            return
        with self._file:
            if self._deflate is not None:
                self._file.write(self._deflate.flush())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


_LINE_BLOCK = 1 << 18


def read_lines(path: Path, compression_type: str | None = None) -> Iterator[bytes]:
    """The lines of a file as bytes, without the line feed (and a carriage return before it).

    DataLossError, naming file and line, for compressed files that are damaged.
    """
    number, rest = 0, b""
    with open_input(path, compression_type) as file:
        while True:
            try:
                block = file.read(_LINE_BLOCK)
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
