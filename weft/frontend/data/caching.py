"""The stage `cache`: the elements of its first whole pass, kept in memory or in a file.

A file has a header with the pipeline before the stage as text, the elements, and an end with their
number; each part is its length (8 bytes), its CRC-32 (4 bytes) and msgpack, in which arrays are
dtype, shape and bytes. Nothing is unpickled. The file is there when it is whole: a first pass
writes to a temporary one, which goes if the pass ends early."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import tempfile
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field
from typing import IO, Any

import msgpack
import numpy as np

from weft.frontend.core.pytree import tree_map
from weft.frontend.core.tensor import Tensor
from weft.frontend.data.items import Item, Items, Run, Value
from weft.frontend.data.selecting import FromList
from weft.frontend.data.stages import Seeded, Stage
from weft.ir.dataclass import dataclass
from weft.ir.errors import DataLossError, InvalidArgumentError, UnsupportedError
from weft.ir.locations import Locations
from weft.runtime.files.paths import Path, exists, is_url, upload
from weft.runtime.files.streams import opened, unreadable

_MAGIC = "weft cached dataset 1"
_HEAD = struct.Struct("<QI")
_PIECE = 1 << 26
_numbers = itertools.count()


class _Sink(ABC):
    """Where the elements of a first pass go."""

    @abstractmethod
    def add(self, element: Any) -> Any:
        """Keep an element; gives it as later passes will."""

    @abstractmethod
    def finish(self) -> None:
        """All elements were added."""

    @abstractmethod
    def drop(self) -> None:
        """The pass is not whole: keep nothing."""


class _Filling(Items):
    def __init__(self, up: Items, sink: _Sink, run: Run) -> None:
        self._up, self._run = up, run
        self._sink: _Sink | None = sink

    def _give_up(self) -> None:
        if self._sink is not None:
            self._sink.drop()
            self._sink = None

    def __next__(self) -> Item:
        if self._run.skipping:  # elements that are passed over are not made
            self._give_up()
        sink = self._sink
        if sink is None:
            return next(self._up)
        try:
            return Value(sink.add(next(self._up)()))
        except StopIteration:
            self._sink = None  # what fails now fails once
            try:
                sink.finish()
            except BaseException:
                sink.drop()
                raise
            raise
        except BaseException:
            self._give_up()
            raise

    def skip(self, n: int) -> int:
        if not self._run.skipping and self._sink is not None:
            return super().skip(n)  # makes them: they are kept
        self._give_up()
        return self._up.skip(n)


# --------------------------------------------------------------------------------------- memory
class Memory:
    """The elements of a whole pass, and the seeds that it had."""

    def __init__(self) -> None:
        self.held: tuple[tuple[int, ...], list[Any]] | None = None


class _MemorySink(_Sink):
    def __init__(self, memory: Memory, seeds: tuple[int, ...]) -> None:
        self._memory, self._seeds = memory, seeds
        self._elements: list[Any] = []

    def add(self, element: Any) -> Any:
        kept = tree_map(_kept, element)
        self._elements.append(kept)
        return kept

    def finish(self) -> None:
        self._memory.held = self._seeds, self._elements

    def drop(self) -> None:
        self._elements = []


def _kept(leaf: Any) -> Any:
    """An array that nobody writes to: a copy, if anybody could."""
    if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
        leaf = leaf.copy()
        leaf.flags.writeable = False
    return leaf


@dataclass(frozen=True)
class CacheInMemory(Stage):
    """Elements kept in memory, for all iterations of the dataset."""

    memory: Memory = field(default_factory=Memory)

    def open(self, run: Run, epoch: int) -> Items:
        drawing = [s for s in self.up.walk() if isinstance(s, Seeded)]
        seeds = tuple(s.seed_in(run) for s in drawing)
        held = self.memory.held
        if held is not None and held[0] == seeds:
            return FromList(None, "", held[1]).open(run, epoch)
        return _Filling(self.up.open(run, 0), _MemorySink(self.memory, seeds), run)


# ----------------------------------------------------------------------------------------- file
@dataclass(frozen=True)
class CacheInFile(Stage):
    """Elements kept in a file, for other processes, too."""

    path: Path
    location: Locations

    def own(self, ahead: bool) -> str:
        return self.text if ahead else "cache()"

    def open(self, run: Run, epoch: int) -> Items:
        if exists(self.path):
            return _Stored(self)
        return _Filling(self.up.open(run, 0), _FileSink(self), run)


class _FileSink(_Sink):
    def __init__(self, stage: CacheInFile) -> None:
        self._stage, self._count = stage, 0
        self._file: IO[bytes] | None = None
        self._temporary = ""

    def _begun(self) -> IO[bytes]:
        if self._file is None:
            path = self._stage.path
            if is_url(path):  # an object is uploaded when it is whole
                number, self._temporary = tempfile.mkstemp(prefix="weft-cache-")
                self._file = os.fdopen(number, "wb")
            else:
                ending = f".{os.getpid()}-{next(_numbers)}.tmp"
                self._temporary = os.fspath(path) + ending
                try:
                    self._file = open(self._temporary, "xb")  # noqa: SIM115, closed by drop, finish
                except (OSError, ValueError) as error:
                    raise unreadable(path, error).at(self._stage.location) from error
            self._discard = weakref.finalize(self, _discard, self._file, self._temporary)
            self._write({"magic": _MAGIC, "pipeline": self._stage.up.shown(ahead=False)})
        return self._file

    def _write(self, tree: Any) -> None:
        assert self._file is not None
        data: bytes = msgpack.packb(tree)
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)))
        self._file.write(data)

    def add(self, element: Any) -> Any:
        self._begun()
        packed = _packed(element, self._stage)
        self._write(packed)
        self._count += 1
        return _unpacked(packed)

    def finish(self) -> None:
        path = self._stage.path
        with self._begun():
            self._write({"count": self._count})
        try:
            if is_url(path):
                upload(self._temporary, path)
            else:
                os.replace(self._temporary, path)
        except OSError as error:
            raise unreadable(path, error).at(self._stage.location) from error
        self._discard()

    def drop(self) -> None:
        if self._file is not None:
            self._discard()


def _discard(file: IO[bytes], path: str) -> None:
    file.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class _Stored(Items):
    def __init__(self, stage: CacheInFile) -> None:
        self._parts = _elements(stage)

    def __next__(self) -> Item:
        packed = next(self._parts)
        return lambda: _unpacked(packed)


def _elements(stage: CacheInFile) -> Iterator[Any]:
    path = os.fspath(stage.path)
    with opened(path) as file:
        head = _part(file, path, 0)
        if not isinstance(head, dict) or head.get("magic") != _MAGIC:
            raise DataLossError(f"{path}: it is no cache of a dataset", location=stage.location)
        if head["pipeline"] != stage.up.shown(ahead=False):
            raise InvalidArgumentError(
                f"cache: {path} has the elements of another dataset:\n  it has   "
                f"{head['pipeline']}\n  this is  {stage.up.shown(ahead=False)}",
                hint="remove the file, or give another name",
                location=stage.location,
            )
        number = 0
        while True:
            packed = _part(file, path, number + 1)
            if isinstance(packed, dict) and "count" in packed:
                if packed["count"] != number:
                    raise DataLossError(f"{path}: {number} of {packed['count']} elements are there")
                return
            yield packed
            number += 1


def _part(file: IO[bytes], path: str, number: int) -> Any:
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        length, crc = _HEAD.unpack(head)
        data, wanted = b"", length
        while wanted and (piece := file.read(min(wanted, _PIECE))):  # the length may be damaged
            data, wanted = data + piece, wanted - len(piece)
        if len(data) == length and zlib.crc32(data) == crc:
            return msgpack.unpackb(data, strict_map_key=False)
    raise DataLossError(f"{path}: part {number} of the cached dataset is damaged or not there")


def _packed(tree: Any, stage: CacheInFile) -> Any:
    """A tree as what msgpack knows: every container is a list that begins with its kind."""
    if isinstance(tree, Tensor):
        tree = tree.numpy()
    if isinstance(tree, (np.ndarray, np.generic)):
        return _packed_array(np.asarray(tree), isinstance(tree, np.generic), stage)
    if tree is None or isinstance(tree, (bool, float, str, bytes)):
        return tree
    if type(tree) is int and -(2**63) <= tree < 2**64:
        return tree
    if type(tree) in (list, tuple):
        return ["list" if type(tree) is list else "tuple", *(_packed(t, stage) for t in tree)]
    if type(tree) is dict and all(isinstance(k, (str, int)) for k in tree):
        return ["dict", *(part for k, v in tree.items() for part in (k, _packed(v, stage)))]
    raise UnsupportedError(
        f"cache: a file cannot hold a {type(tree).__name__}: {tree!r:.60}",
        hint="elements may be arrays, numbers, str and bytes, in dicts, lists and tuples; cache() "
        "keeps them in memory",
        location=stage.location,
    )


def _packed_array(array: Any, scalar: bool, stage: CacheInFile) -> Any:
    kind, dtype = "scalar" if scalar else "array", array.dtype
    if dtype.kind == "O":
        strings = array.ravel().tolist()
        if all(isinstance(s, (bytes, str)) for s in strings):
            return [kind, "O", list(array.shape), strings]
    elif not dtype.hasobject and dtype.names is None:
        # bfloat16 and the like have no letter of their own
        name = dtype.str if np.dtype(dtype.str) == dtype else dtype.name
        return [kind, name, list(array.shape), np.ascontiguousarray(array).tobytes()]
    raise UnsupportedError(
        f"cache: a file cannot hold an array of {dtype}",
        hint="cache() keeps elements in memory",
        location=stage.location,
    )


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed
    if kind in ("array", "scalar"):
        dtype, shape, data = rest
        if dtype == "O":
            array: Any = np.empty(len(data), object)
            array[:] = data
        else:
            array = np.frombuffer(data, np.dtype(dtype))
        array = array.reshape(shape)
        array.flags.writeable = False
        return array[()] if kind == "scalar" else array
    if kind == "dict":
        return {k: _unpacked(v) for k, v in zip(rest[::2], rest[1::2], strict=True)}
    parts = [_unpacked(p) for p in rest]
    return parts if kind == "list" else tuple(parts)
