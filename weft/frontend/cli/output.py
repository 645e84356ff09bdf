"""Files that commands write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.ir.errors import InvalidArgumentError


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Around what writes the file or folder `path`: InvalidArgumentError if that cannot be done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        what = error.filename or path
        raise InvalidArgumentError(f"{what} cannot be written: {reason}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text file. InvalidArgumentError if it cannot be written."""
    with writing(path):
        Path(path).write_text(text, encoding="utf-8")
