"""One checkpoint: a safetensors file whose metadata hold checksums of all that is in it.

The metadata of a file that weft wrote: `weft.tensors` (the sha256 of each array's dtype, shape and
bytes), `weft.dtypes` (those that safetensors does not have, see encoding.py), `weft.notes` (step,
metric, nested state, as JSON), `weft.format` and `weft.sha256`, over all the others. So every bit
that has a meaning is covered, and a part of a large file can be read and verified alone. sha256 and
not crc32c: it is in Python's standard library, as fast as a disk (2 GiB/s with the processor's own
instructions), and tells any two contents apart.

Files are written here, not by the safetensors package: that gives them the mode 0600, renames them
itself, and cannot lock, fsync or name its temporary file. They are read by it: it checks that the
header is well formed and that the arrays fill the file, and reads without mapping it (where a file
is cut short later, a mapped one kills the process).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dtypes import ALL, DType, as_dtype, bool_, complex128, string
from weft.ir.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    WeftError,
)
from weft.runtime.checkpoint.atomic import write_atomically
from weft.runtime.checkpoint.encoding import (
    Array,
    decode_array,
    encode_array,
    is_part,
    parts_of,
)
from weft.runtime.checkpoint.names import SUFFIX as SUFFIX

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
    """What a file says of one array. `dtype` is None for one that weft does not have; `kind` is
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
        if not os.path.exists(path):
            raise NotFoundError(f"there is no checkpoint file '{path}'")
        if not os.path.isfile(path):
            raise InvalidArgumentError(
                f"'{path}' is not a file",
                hint="wf.train.latest_checkpoint(folder) is the newest checkpoint of a folder",
            )
        self._failures = (SafetensorError, OSError, ValueError)
        try:
            opened: Any = safe_open(path, "numpy", backend="pread")
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
