"""Atomic writes: files that are there whole or not at all.

A temporary file, fsync, rename, fsync of the folder. A temporary file is locked while it is
written, so that what a killed process left can be told from what another process is writing: the
kernel frees the lock of a process that is gone. `check_file_name` is for names of files that a file
names: state files and manifests may come from anywhere."""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    WeftError,
)

SUFFIX = ".safetensors"
#: Of the file that says which files a checkpoint of several consists of.
MANIFEST = ".manifest.json"


def check_file_name(name: object, suffixes: tuple[str, ...] = (SUFFIX, MANIFEST)) -> str:
    """`name`, if it is that of a file in the folder of the file that names it, with one of the
    suffixes; ValueError otherwise."""
    if not isinstance(name, str) or not name.endswith(suffixes):
        raise ValueError(f"it names {name!r}, which is no {' or '.join(suffixes)} file")
    if "\0" in name or os.path.basename(name) != name:
        raise ValueError(f"it names {name!r}, which is not in its folder")
    return name


_SUFFIX = ".weft-tmp"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# for what somebody else may have made: a pipe must not block, a link not lead elsewhere
_NO_WAIT, _NO_LINK = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
_numbers = itertools.count()
# none where there is no POSIX: there leftovers stay until they are removed by hand
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


def write_atomically(path: Path, chunks: Iterable[memoryview]) -> None:
    """Write `chunks` to `path`, replacing what is there; once this returns a power cut loses
    nothing.

    Makes the folder if it is not there. If it fails `path` is as it was and no temporary file
    stays: ResourceExhaustedError for a full disk or quota, FailedPreconditionError for whatever
    else the system says (a folder that cannot be written, say), with the OSError as cause;
    InvalidArgumentError for what is no name of a file.
    """
    if "\0" in str(path):
        raise InvalidArgumentError(f"cannot write {str(path)!r}: no name of a file has a byte 0")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _remove_leftovers(path.parent)
        with _temporary(path) as (temporary, file):
            for chunk in chunks:
                _write_all(file, chunk)
            os.fsync(file)
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise _as_weft_error(path, error) from error


def read_whole(path: Path) -> bytes:
    """The content of a regular file. OSError for anything else: a pipe would block for ever."""
    with os.fdopen(os.open(path, os.O_RDONLY | _NO_WAIT), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read()


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` on disk: without it a rename may be lost in a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, int]]:
    """A new, locked file beside `path`; removed at the end if it is still there."""
    while True:
        name = f".{path.name[:40]}-{os.getpid()}-{next(_numbers)}-{os.urandom(3).hex()}{_SUFFIX}"
        temporary = path.with_name(name)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _lock(file, wait=True)
            if not _is_at(file, temporary):
                continue  # another process took it for a leftover before it was locked
            try:
                yield temporary, file
            finally:
                with contextlib.suppress(FileNotFoundError):
                    temporary.unlink()
            return
        finally:
            os.close(file)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files that nobody writes any more."""
    for path in folder.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | _NO_WAIT | _NO_LINK)
            try:
                if stat.S_ISREG(os.fstat(file).st_mode) and _lock(file, wait=False):
                    path.unlink()
            finally:
                os.close(file)


def _lock(file: int, wait: bool) -> bool:
    """Whether the file is locked now; never on file systems that have no locks."""
    if _fcntl is None:
        return False
    try:
        _fcntl.flock(file, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _write_all(file: int, rest: memoryview) -> None:
    while len(rest):  # one call writes 2 GiB at most, and less where a disk is nearly full
        rest = rest[os.write(file, rest) :]


def _as_weft_error(path: Path, error: OSError) -> WeftError:
    what = f"cannot write '{path}': {error.strerror or error}"
    if error.errno in _NO_SPACE:
        return ResourceExhaustedError(
            what,
            hint="nothing was changed: earlier checkpoints are as they were; make room, or keep "
            "fewer checkpoints (max_to_keep)",
        )
    return FailedPreconditionError(
        what, hint="nothing was changed; the folder must exist or be possible to make, and writable"
    )
