"""Names of files that are URLs, such as "s3://bucket/a.csv" or "memory://a": read and written by
fsspec (an extra), which is loaded at the first one. All others are files of the system."""

from __future__ import annotations

import glob
import io
import os
import pathlib
import re
from typing import IO, Any, cast

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


def _fresh(system: Any) -> Any:
    """A file system, which forgets what it has listed: others may have written, and a file is read
    as far as the size that was listed."""
    system.invalidate_cache()
    return system


def open_path(path: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """As `open`; a URL's content that is written is there when the file is closed."""
    if not is_url(path):
        return open(path, mode, **options)
    system, name = file_system(path)
    if mode == "rb" and _shares_positions(system):
        return io.BytesIO(system.cat_file(name))
    file: IO[Any] = _fresh(system).open(name, mode, **options)
    return file


def _shares_positions(system: Any) -> bool:
    """Whether all who have a file open read on from one position, as those of memory:// do."""
    return bool(system.protocol == "memory")


def exists(path: Path) -> bool:
    """As `os.path.exists`."""
    return is_there(path_of(path))


def upload(source: Path, url: Path) -> None:
    """Copy a file of the system to a URL."""
    system, name = file_system(url)
    system.put_file(os.fsdecode(source), name)


def matching(pattern: bytes) -> list[bytes]:
    """The names of the files that fit a pattern, as `glob.glob` knows them, URLs as URLs."""
    if not is_url(pattern):
        return [n for n in glob.glob(pattern) if os.path.isfile(n)]
    system, name = file_system(os.fsdecode(pattern))
    found = _fresh(system).glob(name, detail=True)
    return [
        os.fsencode(system.unstrip_protocol(n)) for n, i in found.items() if i["type"] == "file"
    ]


class UrlPath:
    """What checkpoints use of `pathlib.Path`, for a URL. Stores of objects have no folders: one
    is there when something in it is."""

    __slots__ = ("_name", "_system", "_url")

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._system, self._name = file_system(self._url)

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"UrlPath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __lt__(self, other: UrlPath) -> bool:
        return self._url < other._url

    def __truediv__(self, name: str) -> UrlPath:
        return UrlPath(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        """The last part; "" of a store itself."""
        return self._url.partition("://")[2].rpartition("/")[2]

    @property
    def parent(self) -> UrlPath:
        """Without the last part."""
        return UrlPath(self._url.removesuffix(self.name))

    def with_name(self, name: str) -> UrlPath:
        """With another last part."""
        return UrlPath(self._url.removesuffix(self.name) + name)

    def exists(self) -> bool:
        """Whether there is an object, or something in a folder of that name."""
        return bool(_fresh(self._system).exists(self._name))

    def is_file(self) -> bool:
        """Whether there is an object."""
        return bool(_fresh(self._system).isfile(self._name))

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        return bool(_fresh(self._system).isdir(self._name))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: an object is put without a folder."""

    def write_bytes(self, data: bytes) -> None:
        """Put these in its place, as one object."""
        self._system.pipe_file(self._name, data)

    def glob(self, pattern: str) -> list[UrlPath]:
        """What is in the folder and fits the pattern."""
        return [UrlPath(os.fsdecode(n)) for n in matching(os.fsencode(f"{self._url}/{pattern}"))]

    def unlink(self) -> None:
        """Remove the object."""
        self._system.rm_file(self._name)

    def read_bytes(self) -> bytes:
        """The whole object. FileNotFoundError if there is none."""
        data: bytes = _fresh(self._system).cat_file(self._name)
        return data

    def download(self, local: str) -> None:
        """Copy it to a file of the system."""
        if _shares_positions(self._system):
            pathlib.Path(local).write_bytes(self.read_bytes())
        else:
            _fresh(self._system).get_file(self._name, local)

    def upload(self, local: str) -> None:
        """Put a file of the system in its place, as one object."""
        upload(local, self._url)


def path_of(name: Path) -> pathlib.Path:
    """The path of a file; of a URL one that has the methods which checkpoints use."""
    given = os.fsdecode(name)
    return cast(pathlib.Path, UrlPath(given)) if is_url(given) else pathlib.Path(given)


def absolute(path: pathlib.Path) -> str:
    """As `os.path.abspath`, for others, who may be in another folder; a URL is the same for all."""
    return str(path) if isinstance(cast(object, path), UrlPath) else os.path.abspath(path)


def resolved(path: pathlib.Path) -> str:
    """As `os.path.realpath`: one name for what links and ".." may name otherwise; a URL is its own
    name."""
    return str(path) if isinstance(cast(object, path), UrlPath) else os.path.realpath(path)


def is_there(path: pathlib.Path) -> bool:
    """As `os.path.exists`, which is False, no error, for a name that is none."""
    return path.exists() if isinstance(cast(object, path), UrlPath) else os.path.exists(path)


def is_file(path: pathlib.Path) -> bool:
    """As `os.path.isfile`, which is False, no error, for a name that is none."""
    return path.is_file() if isinstance(cast(object, path), UrlPath) else os.path.isfile(path)


def is_folder(path: pathlib.Path) -> bool:
    """As `os.path.isdir`, which is False, no error, for a name that is none."""
    return path.is_dir() if isinstance(cast(object, path), UrlPath) else os.path.isdir(path)
