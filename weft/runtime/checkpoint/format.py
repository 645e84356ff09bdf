"""Checkpoint format: a safetensors file whose metadata hold checksums of all that is in it, and
atomic writes: files that are there whole or not at all.

The metadata of a file that weft wrote: `weft.tensors` (the sha256 of each array's dtype, shape and
bytes), `weft.dtypes` (those that safetensors does not have, see below), `weft.notes` (step,
metric, nested state, as JSON), `weft.format` and `weft.sha256`, over all the others. So every bit
that has a meaning is covered, and a part of a large file can be read and verified alone. sha256 and
not crc32c: it is in Python's standard library, as fast as a disk (2 GiB/s with the processor's own
instructions), and tells any two contents apart.

Files are written here, not by the safetensors package: that gives them the mode 0600, renames them
itself, and cannot lock, fsync or name its temporary file. They are read by it: it checks that the
header is well formed and that the arrays fill the file, and reads without mapping it (where a file
is cut short later, a mapped one kills the process).

What safetensors has no word for is encoded: complex128 is stored as float64 with a last axis of 2;
strings as their bytes, one after the other, with their lengths beside them. Nested state (what a
`state_dict()` returns) is JSON in which every array is a reference to one in the file.

An atomic write is a temporary file, fsync, rename, fsync of the folder. The temporary file is
locked while it is written, so that what a killed process left can be told from what another process
is writing: the kernel frees the lock of a process that is gone. `check_file_name` is for names of
files that a file names: state files and manifests may come from anywhere."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import importlib
import itertools
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import ALL, DType, as_dtype, bool_, complex128, string
from weft.ir.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.runtime.files.paths import UrlPath, is_file, is_there

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
    if isinstance(url := cast(object, path), UrlPath):
        _write_object(url, chunks)
        return
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


def _write_object(url: UrlPath, chunks: Iterable[memoryview]) -> None:
    """As one object, put when all of it is there: a store shows the one before or this one."""
    try:
        with tempfile.NamedTemporaryFile(prefix="weft-save-") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            url.upload(file.name)
    except WeftError:
        raise
    except Exception as error:  # each store has exceptions of its own
        raise FailedPreconditionError(f"cannot write '{url}': {error}") from error


def read_whole(path: Path) -> bytes:
    """The content of a regular file. OSError for anything else: a pipe would block for ever."""
    if isinstance(url := cast(object, path), UrlPath):
        return url.read_bytes()
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


Array: TypeAlias = np.ndarray[Any, Any]

#: Names in a file that are not a variable's begin so.
RESERVED = "weft."
_LENGTHS = "weft.lengths/"


def encode_array(name: str, array: Array) -> dict[str, Array]:
    """The arrays that stand for one in the file, C-contiguous. TypeRuleError for a dtype that is
    not weft's, or elements of a string array that are neither bytes nor str."""
    dtype = as_dtype(array.dtype)
    if dtype is string:
        items = [_as_bytes(name, item) for item in array.ravel().tolist()]
        lengths = np.array([len(b) for b in items], np.int64).reshape(array.shape)
        return {name: np.frombuffer(b"".join(items), np.uint8), _LENGTHS + name: lengths}
    native = np.ascontiguousarray(array, dtype.numpy).reshape(-1)  # a view needs an axis
    if dtype is complex128:
        return {name: native.view(np.float64).reshape((*array.shape, 2))}
    return {name: native.reshape(array.shape)}


def parts_of(name: str, dtype: DType) -> tuple[str, ...]:
    """The names in the file that `encode_array` makes for an array of that dtype."""
    return (name, _LENGTHS + name) if dtype is string else (name,)


def is_part(name: str) -> bool:
    """Whether a name in the file is one that only belongs to another."""
    return name.startswith(_LENGTHS)


def decode_array(name: str, dtype: DType, parts: Mapping[str, Array]) -> Array:
    """The array that `encode_array` was given. DataLossError if its parts do not fit together."""
    stored = parts[name]
    if dtype is complex128:
        return stored.reshape(-1).view(np.complex128).reshape(stored.shape[:-1])
    if dtype is not string:
        return stored
    lengths, data = parts[_LENGTHS + name], stored.tobytes()
    ends = np.cumsum(lengths.ravel())
    if (lengths < 0).any() or (int(ends[-1]) if ends.size else 0) != len(data):
        raise DataLossError(f"the strings of '{name}' and their lengths do not fit together")
    out = np.empty(lengths.shape, object)
    starts = ends - lengths.ravel()
    out.ravel()[:] = [data[a:b] for a, b in zip(starts, ends, strict=True)]
    return out


def _as_bytes(name: str, item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeRuleError(
        f"'{name}' holds a {type(item).__name__} in an array of objects",
        hint="such arrays are weft's strings: bytes or str",
    )


def encode_tree(tree: Any, name: str, add: Callable[[str, Array], None]) -> Any:
    """`tree` as JSON; `add(name, array)` is called for each array in it.

    Dicts, lists, tuples, None, bool, int, float, str, bytes, arrays and NumPy scalars (which become
    arrays of rank 0). TypeRuleError, with the place, for anything else.
    """
    if isinstance(tree, np.ndarray | np.generic):  # first: np.float64 is a Python float, too
        add(name, np.asarray(tree))
        return {"$array": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, bytes):
        return {"$bytes": base64.b64encode(tree).decode()}
    if isinstance(tree, Mapping):
        keys = list(tree)
        if all(isinstance(k, str) and not k.startswith("$") for k in keys):
            return {k: encode_tree(v, f"{name}/{k}", add) for k, v in tree.items()}
        pairs = [[k, encode_tree(v, f"{name}/{k}", add)] for k, v in tree.items()]
        if all(isinstance(k, str | int) and not isinstance(k, bool) for k in keys):
            return {"$dict": pairs}
    elif isinstance(tree, list | tuple):
        items = [encode_tree(v, f"{name}/{i}", add) for i, v in enumerate(tree)]
        return items if isinstance(tree, list) else {"$tuple": items}
    raise TypeRuleError(
        f"the state '{name}' holds a {type(tree).__name__}, which a checkpoint cannot store",
        hint="state_dict() returns dicts (keys: str or int), lists and tuples of arrays, numbers, "
        "str, bytes, bool and None",
    )


def decode_tree(tree: Any, get: Callable[[str], Array]) -> Any:
    """What `encode_tree` was given; `get(name)` returns an array of the file."""
    if isinstance(tree, list):
        return [decode_tree(v, get) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if "$bytes" in tree:
        return base64.b64decode(tree["$bytes"])
    if "$array" in tree:
        return get(tree["$array"])
    if "$tuple" in tree:
        return tuple(decode_tree(v, get) for v in tree["$tuple"])
    if "$dict" in tree:
        return {k: decode_tree(v, get) for k, v in tree["$dict"]}
    return {k: decode_tree(v, get) for k, v in tree.items()}


_FORMAT, _DIGEST, _TENSORS = "weft.format", "weft.sha256", "weft.tensors"
_DTYPES, _NOTES = "weft.dtypes", "weft.notes"
_VERSION = "1"
_LONGEST_HEADER = 100_000_000  # what the safetensors package reads
_KIND = {"float": "F", "int": "I", "uint": "U", "complex": "C"}
_STORED = {
    d: "BF16" if d.name == "bfloat16" else "BOOL" if d is bool_ else f"{_KIND[d.kind]}{d.bits}"
    for d in ALL
    if d not in (string, complex128)
}
_BY_STORED = {name: d for d, name in _STORED.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of one array in a file. `dtype` is None for one that weft does not have; `kind` is
    its name in any case."""

    dtype: DType | None
    shape: tuple[int, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}{list(self.shape)}"


def write_file(path: Path, arrays: Mapping[str, Array], notes: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all. `notes` is what JSON can hold.

    Errors as `write_atomically`; TypeRuleError for what has no dtype of weft's.
    """
    stored: dict[str, Array] = {}
    dtypes = {}
    for name, array in arrays.items():
        stored.update(encode_array(name, array))
        dtype = as_dtype(array.dtype)
        if dtype in (string, complex128):
            dtypes[name] = dtype.name
    table = {name: _digest(_kind(a), a.shape, _bytes(a)) for name, a in stored.items()}
    metadata = {
        _FORMAT: _VERSION,
        _TENSORS: json.dumps(table),
        _DTYPES: json.dumps(dtypes),
        _NOTES: json.dumps(notes),
    }
    metadata[_DIGEST] = _digest_of_metadata(metadata)
    write_atomically(path, _layout(stored, metadata))


def _layout(stored: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    """The bytes of the file: the header's length, the header, the arrays (widest elements first,
    so that each is aligned)."""
    names = sorted(stored, key=lambda name: (-stored[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name in names:
        array = stored[name]
        span = [at, at + array.nbytes]
        header[name] = {"dtype": _kind(array), "shape": array.shape, "data_offsets": span}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise UnsupportedError(
            f"the header of a safetensors file has at most {_LONGEST_HEADER:,} bytes, this one "
            f"would have {len(text):,}",
            hint="store state as few large arrays, not as many small ones",
        )
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in names:
        yield _bytes(stored[name]).data


class CheckpointFile:
    """A safetensors file, open for reading: its header is checked at once, arrays as they are read.

    entries: name -> Entry of every array. notes: what `write_file` was given. verified: whether the
    file has checksums; one that others wrote has none. NotFoundError if there is no such file,
    DataLossError naming it for a damaged one, UnsupportedError for a later format.
    """

    def __init__(self, path: Path) -> None:
        # not with the module: it is needed only here, and `import weft` should be quick
        from safetensors import SafetensorError, safe_open

        self.path = path
        if not is_there(path):
            raise NotFoundError(f"there is no checkpoint file '{path}'")
        if not is_file(path):
            raise InvalidArgumentError(
                f"'{path}' is not a file",
                hint="wf.train.latest_checkpoint(folder) is the newest checkpoint of a folder",
            )
        self._failures = (SafetensorError, OSError, ValueError)
        try:
            with _local(path) as local:
                opened: Any = safe_open(local, "numpy", backend="pread")
                self._file = opened.__enter__()
        except PermissionError as error:
            raise InvalidArgumentError(f"cannot read '{path}': {error.strerror}") from error
        except self._failures as error:
            raise self._damaged(str(error)) from error
        try:
            self._read_header()
        except WeftError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def read(self, name: str) -> Array:
        """The array of an entry whose dtype weft has. DataLossError if it is damaged."""
        entry = self.entries[name]
        assert entry.dtype is not None
        parts = {part: self._read_stored(part) for part in parts_of(name, entry.dtype)}
        return decode_array(name, entry.dtype, parts)

    def _read_stored(self, name: str) -> Array:
        try:
            array: Array = self._file.get_tensor(name)
        except self._failures as error:
            raise self._damaged(f"reading '{name}': {error}") from error
        if self.verified and self._digests[name] != _digest(
            _kind(array), array.shape, _bytes(array)
        ):
            raise self._damaged(f"the checksum of '{name}' does not fit its content")
        if array.dtype == np.bool_ and (_bytes(array) > 1).any():
            raise self._damaged(f"'{name}' has elements that are neither False nor True")
        return array

    def _read_header(self) -> None:
        metadata: dict[str, str] = self._file.metadata() or {}
        names: list[str] = self._file.keys()
        slices = {name: self._file.get_slice(name) for name in names}
        raw = {name: (str(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}
        # more than one mark: a flipped bit must not make a file look like one that others wrote
        self.verified = any(key.startswith("weft.") for key in metadata)
        self._digests: dict[str, str] = {}
        #: The sha256 of its metadata, which have those of all arrays; "" where others wrote it.
        self.digest = metadata.get(_DIGEST, "")
        self.notes: dict[str, Any] = {}
        dtypes: dict[str, str] = {}
        if self.verified:
            if metadata.get(_DIGEST) != _digest_of_metadata(metadata):
                raise self._damaged("the checksum of its header does not fit")
            if metadata.get(_FORMAT) != _VERSION:
                raise UnsupportedError(
                    f"'{self.path}' has the format {metadata.get(_FORMAT)}, this weft reads "
                    f"{_VERSION}",
                    hint="it was written by a later weft",
                )
            self._digests = json.loads(metadata[_TENSORS])
            self.notes = json.loads(metadata[_NOTES])
            dtypes = json.loads(metadata[_DTYPES])
            if self._digests.keys() != raw.keys():
                raise self._damaged("its header does not list the arrays that were written")
        self.entries = {
            name: _entry(name, raw, dtypes.get(name))
            for name in sorted(raw)
            if not (self.verified and is_part(name))
        }

    def _damaged(self, why: str) -> DataLossError:
        return DataLossError(
            f"the checkpoint '{self.path}' is damaged: {why}",
            hint="restore an earlier one; restore_or_initialize(..., or_previous=True) does",
        )


@contextlib.contextmanager
def _local(path: Path) -> Iterator[str | Path]:
    """A file of the system with the content of `path`, which may be a URL; whoever opens it in the
    block can read it after."""
    if not isinstance(url := cast(object, path), UrlPath):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="weft-restore-") as file:
        url.download(file.name)
        yield file.name


def _entry(name: str, raw: Mapping[str, tuple[str, tuple[int, ...]]], logical: str | None) -> Entry:
    kind, shape = raw[name]
    if logical is None:
        dtype = _BY_STORED.get(kind)
        return Entry(dtype, shape, kind if dtype is None else dtype.short)
    dtype = as_dtype(logical)
    if dtype is complex128:
        return Entry(dtype, shape[:-1], dtype.short)
    return Entry(dtype, raw[parts_of(name, dtype)[1]][1], dtype.short)


def _kind(array: Array) -> str:
    return _STORED[as_dtype(array.dtype)]


def _bytes(array: Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _digest(kind: str, shape: tuple[int, ...], data: np.ndarray[Any, Any]) -> str:
    found = hashlib.sha256(f"{kind} {list(shape)} ".encode())
    found.update(data.data)
    return found.hexdigest()


def _digest_of_metadata(metadata: Mapping[str, str]) -> str:
    covered = {key: value for key, value in metadata.items() if key != _DIGEST}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()
