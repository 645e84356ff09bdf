"""The state of one running step of a dataflow graph, and the native functions that work on it."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from weft.codegen import jit
from weft.codegen.emitter import Emitter
from weft.codegen.native_language import LANGUAGE_VERSION, emit_source
from weft.ir.errors import ResourceExhaustedError
from weft.ir.types import TensorType
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow import native_frames, native_loop, native_memory
from weft.runtime.dataflow.nodes import Node, Tables, words

Array = np.ndarray[Any, Any]

_EXPORTS = ("run", "start", "end", "complete", "new_cell", "release", "give_back", "class_of")
_MODULES = (native_memory, native_frames, native_loop)
_LIBC = {
    at.S_MALLOC: "malloc", at.S_FREE: "free", at.S_MEMCPY: "memcpy", at.S_MEMSET: "memset",
    at.S_REALLOC: "realloc",
}  # fmt: skip
#: Host ops that wait for Python at a time; more stay ready.
HOST_ROOM = 64
FIRST_READY_ROOM = 256


@cache
def executor_kernel() -> jit.Kernel:
    """The executor as a kernel that stores its functions' addresses."""
    source = "\n".join(inspect.getsource(m) for m in _MODULES)
    layout = inspect.getsource(at)

    def emit(e: Emitter) -> None:
        emit_source(e, source, {"at": at}, _EXPORTS)

    text = hashlib.sha256((source + layout + LANGUAGE_VERSION).encode()).hexdigest()
    return jit.Kernel(f"dataflow-{text}", "dataflow", emit, loops=True)


@cache
def native() -> dict[str, Any]:
    """The executor's functions, compiled on first use; calling one releases the GIL."""
    kernel = executor_kernel()
    address = jit.compile_kernels([kernel])[kernel.key]
    found = words(len(_EXPORTS))
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    store(address)(ctypes.addressof(found), 0, 0, 0)
    known = {name: f for m in _MODULES for name, f in vars(m).items() if inspect.isfunction(f)}
    arity = {name: len(inspect.signature(known[name]).parameters) for name in _EXPORTS}
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arity[name])(where)
        for name, where in zip(_EXPORTS, found, strict=True)
    }


class ExternalCell:
    """A cell over memory of NumPy's, kept until the next one, or None, is given."""

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * (at.CELL_HEADER // 8))()
        self._words[at.C_CLASS // 8] = at.EXTERNAL
        self._words[at.C_COUNT // 8] = 1
        self.address = ctypes.addressof(self._words)
        self._array: Array | None = None

    def hold(self, array: Array | None) -> None:
        """Be the cell of `array` from now on."""
        self._array = array
        self._words[at.C_COUNT // 8] = 1
        self._words[at.C_DATA // 8] = 0 if array is None else array.ctypes.data


class State:
    """What one step owns. Reused by the next step of the same graph; one thread at a time."""

    def __init__(self, tables: Tables, feeds: int, fetches: int) -> None:
        self.tables = tables
        self._native = native()
        self.words = words(at.STATE_WORDS)
        self.address = ctypes.addressof(self.words)
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        frames = len(tables.frames)
        self.feeds, self.fetches = words(feeds), words(fetches)
        self.outs = words(max(tables.most_outputs, 2))
        self.host = words(HOST_ROOM * at.READY_BYTES // 8)
        self._objects: list[Array] = []  # whose strings the cells of this step point to
        self._lists = [words(at.CELL_CLASSES), words(frames), words(frames)]
        ready = self._libc.malloc(FIRST_READY_ROOM * at.READY_BYTES)
        if not ready:
            raise ResourceExhaustedError("there is no memory for the executor's ready list")
        given = {
            at.S_READY: ready, at.S_READY_ROOM: FIRST_READY_ROOM,
            at.S_HOST: ctypes.addressof(self.host), at.S_HOST_ROOM: HOST_ROOM,
            at.S_OUTS: ctypes.addressof(self.outs), at.S_FEEDS: ctypes.addressof(self.feeds),
            at.S_FETCHES: ctypes.addressof(self.fetches),
            at.S_CELLS: ctypes.addressof(self._lists[0]),
            at.S_BLOCKS: ctypes.addressof(self._lists[1]),
            at.S_FRAME_BLOCKS: ctypes.addressof(self._lists[2]),
        }  # fmt: skip
        for offset, name in _LIBC.items():
            given[offset] = ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value or 0
        for offset, value in given.items():
            self.words[offset // 8] = value

    def word(self, offset: int) -> int:
        """One word of the state."""
        return int(self.words[offset // 8])

    def set(self, offset: int, value: int) -> None:
        """Write one word of the state."""
        self.words[offset // 8] = value

    def start(self) -> int:
        """Begin a step; the address of the root iteration."""
        tables = self.tables
        root = self._native["start"](
            self.address, tables.frame_address(0), tables.roots.ctypes.data, tables.root_count
        )
        self._check()
        return int(root)

    def run(self, budget: int) -> int:
        """Run up to `budget` nodes; how many are still ready."""
        left = self._native["run"](self.address, budget)
        self._check()
        return int(left)

    def end(self, root: int) -> bool:
        """The step is over; whether the state is as new. It is not if a loop never ended, as an
        enter of it got no value, live or dead."""
        self._objects.clear()
        if ctypes.c_int64.from_address(root + at.I_OUTSTANDING).value:
            return False
        self._native["end"](self.address, root)
        return True

    def take_host(self) -> list[tuple[int, int]]:
        """The host nodes that wait, with their iterations; they are Python's now."""
        count, step = self.word(at.S_HOST_COUNT), at.READY_BYTES // 8
        self.set(at.S_HOST_COUNT, 0)
        return [(self.host[step * i], self.host[step * i + 1]) for i in range(count)]

    def inputs(self, node: Node, iteration: int, types: Sequence[TensorType]) -> list[Array]:
        """Copies of what a waiting host node reads."""
        first = iteration + self.tables.slot_at(node)
        cells = (ctypes.c_int64 * len(types)).from_address(first)
        return [self.array(cell, t) for cell, t in zip(cells, types, strict=True)]

    def array(self, cell: int, t: TensorType) -> Array:
        """A copy of a cell's value."""
        data = ctypes.c_int64.from_address(cell + at.C_DATA).value
        made = np.empty(t.static_shape, t.dtype.numpy)
        if made.dtype.hasobject:  # strings: each is counted by who reads it
            objects = (ctypes.py_object * made.size).from_address(data)
            for i in range(made.size):
                made.flat[i] = objects[i]
            return made
        ctypes.memmove(made.ctypes.data, data, made.nbytes)
        return made

    def complete(self, address: int, iteration: int, results: Sequence[Array | None]) -> None:
        """A host node is done."""
        for i, made in enumerate(results):
            self.outs[i] = 0 if made is None else self._cell(made)
        self._native["complete"](self.address, address, iteration, ctypes.addressof(self.outs))

    def _cell(self, array: Array) -> int:
        cell = self._native["new_cell"](self.address, self.class_of(array.nbytes))
        self._check()
        held = np.ascontiguousarray(array)
        if held.dtype.hasobject:
            self._objects.append(held)
        data = ctypes.c_int64.from_address(cell + at.C_DATA).value
        ctypes.memmove(data, held.ctypes.data, held.nbytes)
        return int(cell)

    def class_of(self, nbytes: int) -> int:
        """The size class of a cell for so many bytes."""
        return int(self._native["class_of"](nbytes))

    def release(self, cell: int) -> None:
        """Give one count of a cell back."""
        self._native["release"](self.address, cell)

    def _check(self) -> None:
        if self.word(at.S_FAILED) == at.NO_MEMORY:
            raise ResourceExhaustedError("there is no memory for the values of the graph")

    def __del__(self) -> None:
        if getattr(self, "words", None) is not None and self.word(at.S_READY):
            self._native["give_back"](self.address)
            self._libc.free(ctypes.c_void_p(self.word(at.S_READY)))
            self.words[at.S_READY // 8] = 0
