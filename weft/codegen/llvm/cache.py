"""Compiled kernels, cubins and plans on disk: one file each, found by content, checked when read;
and the key of them, all that machine code depends on, as text.

WEFT_CACHE=0        neither reads nor writes the cache (kernels: only kernels)
WEFT_CACHE_DIR=dir  where it is; otherwise $XDG_CACHE_HOME/weft or ~/.cache/weft
WEFT_CACHE_SIZE=n   at most so many bytes (k, M, G, T and decimals
                    allowed; 512M if not set), least used go first

A file is written under a temporary name and renamed, so that readers see all of it or nothing, and
two writers of one kernel replace each other's equal file. Objects are code that will run: a file or
folder that another user owns, or that others may write, is not read. What a plan says is up to
`runtime/plan_store.py`, a cubin to `codegen/cuda/cubins/cache.py`, a choice (what does a
product on a GPU) to `runtime/device/libraries/choice.py`, what a scalar function of the user's is
to `codegen/llvm/scalar_texts.py`: here they are a name, fields that JSON can hold, and bytes.

Two processes share a kernel's object only if the lines of its key are equal: the kernel's own
content key, the sources of the code that emits it (their sizes and times, so that an edit never
meets a stale object), the passes, and the processor with the version of LLVM."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from weft.codegen.llvm.compile import PIPELINE_VERSION
from weft.codegen.llvm.jit import LOADED_AT, Kernel
from weft.codegen.llvm.target import machine_line, per_isa
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.ir.process import ForkLock

T = TypeVar("T")
DEFAULT_SIZE = 512 << 20
SUFFIX = ".kernel"
PLAN_SUFFIX = ".plan"
CUBIN_SUFFIX = ".cubin"
CHOICE_SUFFIX = ".choice"
SCALAR_SUFFIX = ".scalar"
_MAGIC = {
    SUFFIX: b"weft-kernel-1", PLAN_SUFFIX: b"weft-plan-1", CUBIN_SUFFIX: b"weft-cubin-1",
    CHOICE_SUFFIX: b"weft-choice-1", SCALAR_SUFFIX: b"weft-scalar-1",
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_STALE_SECONDS = 3600.0  # a temporary file this old has lost its writer
_USED_SECONDS = 3600.0  # how exactly the time of the last use is kept
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True)
class CachedObject:
    """A kernel's name for people, its exported symbol, its object code and its LLVM bitcode."""

    name: str
    symbol: str
    code: bytes
    bitcode: bytes
    from_disk: bool = True


@dataclass(frozen=True)
class CachedRecord:
    """The name for people, the fields and the bytes of a plan or a cubin."""

    name: str
    fields: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True)
class CacheFile:
    """A file of the cache: bytes on disk, and seconds since the epoch of its last use."""

    path: Path
    size: int
    used: float

    @property
    def kind(self) -> str:
        """ "kernel", "plan", "cubin", "choice" or "scalar"."""
        return self.path.suffix[1:]


class DamagedFileError(ValueError):
    """A cache file that does not hold what it should."""


class KernelCache:
    """The cache in `folder`, of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int = DEFAULT_SIZE) -> None:
        self.folder = folder
        self.limit = limit
        self._written = limit  # since the folder was last looked through: the first store does
        self._broken = False

    def exists(self) -> bool:
        """False if there is nothing in it: whoever looks something up need not describe it."""
        return os.path.isdir(self.folder)  # Path.is_dir raises where the process may not look

    def load(self, description: str) -> CachedObject | None:
        """The kernel whose description this is, None if it is not there."""
        return self.load_file(file_name(description))

    def load_file(self, name: str) -> CachedObject | None:
        """The kernel in the file of this name (`file_name`), None if it is not there."""
        return self._load(name, SUFFIX, _as_object)

    def load_record(
        self, description: str, suffix: str, read: Callable[[CachedRecord], T]
    ) -> T | None:
        """What `read` makes of the plan or cubin whose description this is, None if it is not
        there. A file that `read` raises an exception for is damaged: the same, with a warning."""

        def as_record(fields: dict[str, Any], payload: bytes) -> T:
            return read(CachedRecord(fields["name"], fields, payload))

        return self._load(file_name(description), suffix, as_record)

    def reject(self, description: str, error: object) -> None:
        """Say that the kernel of this description, which was loaded, turned out to be damaged."""
        path = self.folder / (file_name(description) + SUFFIX)
        _log.warning("cache: %s is damaged (%s), its kernel is compiled again", path, error)

    def store(self, description: str, kernel: CachedObject) -> None:
        """Write the kernel; whatever prevents that is logged once and costs nothing more."""
        self._store(file_name(description) + SUFFIX, pack(description, kernel))

    def store_record(self, description: str, suffix: str, record: CachedRecord) -> None:
        """Write the plan or cubin; whatever prevents that is logged once and costs nothing more."""
        fields = {**record.fields, "name": record.name, "description": description}
        data = _seal(suffix, fields, record.payload)
        self._store(file_name(description) + suffix, data)

    def _load(self, name: str, suffix: str, read: Callable[[dict[str, Any], bytes], T]) -> T | None:
        path = self.folder / (name + suffix)
        what = f"its {suffix[1:]} is compiled again"
        try:
            data = read_trusted(path, what)
            if data is None:
                return None
            fields, payload = _unseal(suffix, data)
            if file_name(fields["description"]) != name:
                raise DamagedFileError(f"it is another {suffix[1:]}'s")
            found = _read_as(read, fields, payload)
            if time.time() - path.stat().st_mtime > _USED_SECONDS:
                with contextlib.suppress(OSError):  # a file system that is read-only
                    os.utime(path)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            _log.warning("cache: %s is damaged (%s), %s", path, error, what)
            return None
        except OSError as error:
            self._give_up("read", error)
            return None
        return found

    def _store(self, name: str, data: bytes) -> None:
        if self._broken:
            return
        path = self.folder / name
        temporary = path.with_name(f".{path.stem[:16]}-{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            make_private(self.folder)
            try:
                with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                if path.is_dir():
                    return  # in the way of this file alone
                raise
            self._written += len(data)
            # looking through the folder takes a system call for each file
            if self._written > self.limit // 16:
                self._written = 0
                self._shrink()
        except OSError as error:
            self._give_up("write", error)

    def files(self) -> list[CacheFile]:
        """All kernels, cubins and plans in the cache, the least recently used first."""
        found = []
        for path, status in self._entries():
            if path.suffix in _MAGIC and not stat.S_ISDIR(status.st_mode):
                found.append(CacheFile(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda f: (f.used, f.path.name))

    def clear(self) -> list[CacheFile]:
        """Remove all files, and what interrupted writers left; returns the others."""
        removed = self.files()
        for path, _ in self._entries():
            if path.suffix in (*_MAGIC, ".tmp") and not path.is_dir():
                path.unlink(missing_ok=True)
        return removed

    def _shrink(self) -> None:
        """Down to nine tenths of the limit if it is passed. Two processes may do it at once."""
        for path, status in self._entries():
            if path.suffix == ".tmp" and time.time() - status.st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)
        files = self.files()
        total = sum(f.size for f in files)
        if total <= self.limit:
            return
        for file in files:
            if total <= self.limit * 9 // 10:
                break
            file.path.unlink(missing_ok=True)
            total -= file.size

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            paths = list(self.folder.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                yield path, path.lstat()

    def _give_up(self, verb: str, error: OSError) -> None:
        if not self._broken:
            _log.warning("cache: cannot %s %s (%s): going on without", verb, self.folder, error)
        self._broken = True


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


def file_name(description: str) -> str:
    """The name, without suffix, of the file of what is described so."""
    return hashlib.sha256(description.encode()).hexdigest()


def _seal(suffix: str, fields: Mapping[str, Any], payload: bytes) -> bytes:
    """The content of a file: magic and checksum, a line of JSON, the payload."""
    body = json.dumps(fields).encode() + b"\n" + payload
    return _MAGIC[suffix] + b" " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _unseal(suffix: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    """The opposite of `_seal`. DamagedFileError unless every bit is as it was written."""
    magic, _, rest = data.partition(b" ")
    checksum, _, body = rest.partition(b"\n")
    if magic != _MAGIC[suffix]:
        raise DamagedFileError(f"it does not begin as a {suffix[1:]} does")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise DamagedFileError("its checksum is wrong")
    header, _, payload = body.partition(b"\n")
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"its header is no JSON: {error}") from None
    if not isinstance(fields, dict) or not all(
        isinstance(fields.get(name), str) for name in ("name", "description")
    ):
        raise DamagedFileError("its header does not say what it is")
    return fields, payload


def _read_as(
    read: Callable[[dict[str, Any], bytes], T], fields: dict[str, Any], payload: bytes
) -> T:
    """What `read` makes of a file. DamagedFileError if it raises anything: whoever wrote the file
    wrote a checksum that fits, but not what weft writes."""
    try:
        return read(fields, payload)
    except DamagedFileError:
        raise
    except Exception as error:
        raise DamagedFileError(f"{type(error).__name__}: {error}") from error


def pack(description: str, kernel: CachedObject) -> bytes:
    """The content of a kernel's file: object code and bitcode are the payload."""
    fields = {
        "name": kernel.name,
        "symbol": kernel.symbol,
        "description": description,
        "code": len(kernel.code),
        "bitcode": len(kernel.bitcode),
    }
    return _seal(SUFFIX, fields, kernel.code + kernel.bitcode)


def unpack(data: bytes, description: str | None = None) -> CachedObject:
    """The opposite of `pack`. DamagedFileError unless every bit is as it was written, and, if a
    description is given, the kernel is that one."""
    fields, payload = _unseal(SUFFIX, data)
    if description is not None and fields["description"] != description:
        raise DamagedFileError("it is another kernel's")
    return _read_as(_as_object, fields, payload)


def _as_object(fields: Mapping[str, Any], payload: bytes) -> CachedObject:
    size, rest = fields["code"], fields["bitcode"]
    if not isinstance(fields["symbol"], str) or min(size, rest) < 0 or size + rest != len(payload):
        raise DamagedFileError("its header does not fit its code")
    return CachedObject(fields["name"], fields["symbol"], payload[:size], payload[size:])


def read_name(path: Path) -> str:
    """The name of what is in a cache file, for people; "(damaged)" if it cannot be read."""
    try:
        return str(_unseal(path.suffix, path.read_bytes())[0]["name"])
    except (OSError, DamagedFileError):
        return "(damaged)"


def read_trusted(path: Path, otherwise: str) -> bytes | None:
    """The file's bytes; None, with a line in the log, if it is no file of ours: a folder, a link,
    or what someone else could have written."""
    if not stat.S_ISREG(path.lstat().st_mode):
        _log.warning("cache: %s is no file, %s", path, otherwise)
        return None
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe must not block
    descriptor = os.open(path, os.O_RDONLY | flags)
    with os.fdopen(descriptor, "rb") as file:
        for where, status in ((path, os.fstat(descriptor)), (path.parent, path.parent.stat())):
            if not _is_private(status):
                _log.warning("cache: %s is not read, other users can write it", where)
                return None
        return file.read()


def _is_private(status: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_private(folder: Path) -> None:
    """Make a folder that only this user writes. PermissionError if others can write it."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder.stat()):
        raise PermissionError(f"other users can write {folder}")


def cache_folder() -> Path | None:
    """Where the cache is, by the environment; None if there is no home directory."""
    given = os.environ.get("WEFT_CACHE_DIR", "")
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base:
        return Path(base) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError:
        return None


def cache_limit() -> int:
    """WEFT_CACHE_SIZE in bytes. Raises InvalidArgumentError if it is not a size."""
    given = os.environ.get("WEFT_CACHE_SIZE", "").strip()
    if not given:
        return DEFAULT_SIZE
    found = _SIZE.fullmatch(given)
    if found is None:
        raise InvalidArgumentError(
            f"WEFT_CACHE_SIZE={given} is not a number of bytes",
            hint="512M, for example, or 1.5G; WEFT_CACHE=0 turns the cache off",
        )
    from fractions import Fraction  # with `decimal` 3 ms, for who sets it

    return int(Fraction(found[1]) * (1 << _SHIFT[found[2].lower()]))


_caches: dict[tuple[Path, int], KernelCache] = {}


def _chosen() -> str:
    """What WEFT_CACHE says. InvalidArgumentError for what it cannot say."""
    given = os.environ.get("WEFT_CACHE", "")
    if given not in ("", "0", "1", "kernels"):
        raise InvalidArgumentError(
            f"WEFT_CACHE={given!r} means nothing", hint="it is 0, 1 (the default) or kernels"
        )
    return given


def plan_cache() -> KernelCache | None:
    """As `kernel_cache`; None with WEFT_CACHE=kernels, too."""
    return None if _chosen() == "kernels" else kernel_cache()


def kernel_cache() -> KernelCache | None:
    """The cache that the environment names; None with WEFT_CACHE=0 or without a home directory."""
    if _chosen() == "0":
        return None
    folder = cache_folder()
    if folder is None:
        return None
    where = folder, cache_limit()
    return _caches.setdefault(where, KernelCache(*where))


#: Bumped when the layout of a file in the cache changes.
FORMAT_VERSION = 1
_PACKAGE = Path(__file__).resolve().parents[2]
# The parts of weft that write machine code, or say what an op means.
_SOURCES = ("codegen", "ir", "runtime")
# Those that say what a plan is besides.
_PLAN_SOURCES = ("passes",)
# How long importing them may take: what changed since may or may not be what was imported.
_LOADING_SECONDS = 2.0
_lock = ForkLock()


def describe_kernel(kernel: Kernel) -> str | None:
    """All that the kernel's machine code depends on; None if that cannot be known."""
    defined_in, common = _emitter_file(kernel), _common_once()
    if defined_in is None or common is None:
        return None
    return f"{common}\nemitter {defined_in}\nloops {kernel.loops}\nkernel {kernel.key}"


def describe_plan(
    graph: str, passes: Sequence[str], donated: Sequence[int], target: str = ""
) -> str | None:
    """All that the plan of a traced graph depends on; None if that cannot be known.

    graph: its digest (`runtime/plan_store.py`). target: what it is for, if not for this processor.
    Constants are folded with NumPy.
    """
    common, sources = _common_once(), _plan_sources()
    if common is None or sources is None:
        return None
    return (
        f"{common}\npasses {' '.join(passes)}\npass sources {sources}\n"
        f"numpy {np.__version__} python {sys.version_info[:2]}\n"
        f"donated {list(donated)}\n{target}graph {graph}"
    )


@cache
def cuda_sources() -> str | None:
    """A digest of the code that writes and compiles CUDA kernels; None if that cannot be known."""
    return _sources(("codegen/cuda", "codegen/llvm"))


@cache
def _plan_sources() -> str | None:
    return _sources(_PLAN_SOURCES)


def _emitter_file(kernel: Kernel) -> str | None:
    """The file of `emit`, with its size and time if `_sources` does not cover it."""
    code = getattr(kernel.emit, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    if path.is_relative_to(_PACKAGE):
        return path.relative_to(_PACKAGE).as_posix()
    try:
        status = path.stat()
    except OSError:  # typed into a console, say
        return None
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _common_once() -> str | None:
    # two threads ask at once in a process's first step: one of them waits
    with _lock:
        return _common()


@per_isa
def _common() -> str | None:
    sources = _sources(_SOURCES)
    if sources is None:
        _log.info("cache: not used, weft's sources are no files, or changed while they were loaded")
        return None
    return (
        f"format {FORMAT_VERSION}\npipeline {PIPELINE_VERSION}\n"
        f"sources {sources}\ntarget {machine_line()}"
    )


def _sources(folders: Sequence[str]) -> str | None:
    """A digest of the files' names, sizes and times; None if the code that runs may be older, or
    comes from elsewhere (a zip file)."""
    digest = hashlib.sha256()
    try:
        rows = sorted(row for f in folders for row in _stamps(_PACKAGE / f))
    except OSError:
        return None
    for path, size, changed in rows:
        if changed / 1e9 > LOADED_AT - _LOADING_SECONDS:
            return None
        digest.update(f"{path} {size} {changed}\n".encode())
    return digest.hexdigest()[:32]


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _stamps(Path(entry.path))
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
