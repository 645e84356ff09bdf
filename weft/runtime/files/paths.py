"""Names of files that are URLs, such as "s3://bucket/a.csv" or "memory://a": read and written by
fsspec (an extra), which is loaded at the first one. All others are files of the system."""

from __future__ import annotations

import glob
import os
import re
from typing import IO, Any

from weft.ir.errors import UnsupportedError

Path = str | os.PathLike[str]
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: "C://" is a drive


def is_url(path: Path | bytes) -> bool:
    """Whether fsspec reads it.

    >>> from weft.runtime.files.paths import is_url
    >>> [is_url(name) for name in ("s3://bucket/a", b"memory://a", "folder/a", "C:/a")]
    [True, True, False, False]
    """
    return _URL.match(os.fsdecode(path)) is not None


def file_system(url: Path) -> tuple[Any, str]:
    """The fsspec file system of a URL, and its name there. UnsupportedError where fsspec, or the
    package that it needs for such URLs, is not installed, or knows none of that kind."""
    name = os.fsdecode(url)
    try:
        import fsspec.core
    except ImportError as error:
        raise UnsupportedError(
            f"{name}: files named by URLs need the package fsspec",
            hint="pip install 'weft[fsspec]'",
        ) from error
    try:
        system, inner = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:  # of another package; of a kind that it has not
        raise UnsupportedError(
            f"{name}: fsspec cannot open such URLs: {error}",
            hint="fsspec's page on built-in implementations says which package each kind needs",
        ) from error
    return system, str(inner)


def open_path(path: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """As `open`; a URL's content that is written is there when the file is closed."""
    if not is_url(path):
        return open(path, mode, **options)
    system, name = file_system(path)
    file: IO[Any] = system.open(name, mode, **options)
    return file


def exists(path: Path) -> bool:
    """As `os.path.exists`."""
    if not is_url(path):
        return os.path.exists(path)
    system, name = file_system(path)
    return bool(system.exists(name))


def upload(source: Path, url: Path) -> None:
    """Copy a file of the system to a URL."""
    system, name = file_system(url)
    system.put_file(os.fsdecode(source), name)


def matching(pattern: bytes) -> list[bytes]:
    """The names of the files that fit a pattern, as `glob.glob` knows them, URLs as URLs."""
    if not is_url(pattern):
        return [n for n in glob.glob(pattern) if os.path.isfile(n)]
    system, name = file_system(os.fsdecode(pattern))
    found = system.glob(name, detail=True)
    return [
        os.fsencode(system.unstrip_protocol(n)) for n, i in found.items() if i["type"] == "file"
    ]


def refuse_url(path: Path, what: str, hint: str) -> None:
    """UnsupportedError, naming what was to be done, for a URL where only files of the system do."""
    if is_url(path):
        raise UnsupportedError(f"{what} is not built for URLs: {os.fsdecode(path)}", hint=hint)
