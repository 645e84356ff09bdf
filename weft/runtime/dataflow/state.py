"""State of one running step, its cells, and the native functions that work on it.

A cell over an array that Python keeps (`Boxes`: of any shape, which only its values decide, or of
strings) is never written to, so queues and other cells may share it. Native code passes the cell on
and counts it as any other; it cannot let the array go, so a cell that nobody reads any more lies on
the free list of class BOXED until Python comes by."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import time
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from weft.codegen.llvm import jit
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.native_language import LANGUAGE_VERSION, emit_source
from weft.ir.cost.thresholds import WORTH_A_BOX_BYTES
from weft.ir.errors import ResourceExhaustedError
from weft.ir.types import TensorType, Type
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow import native_executor
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.dataflow.nodes import Node, Tables, words
from weft.runtime.native.ahead import address

_Array = np.ndarray[Any, Any]


class Boxes:
    """The boxed cells of one step. free_list: the address of the word where native code puts
    them."""

    def __init__(self, free_list: int) -> None:
        self._free_list = ctypes.c_int64.from_address(free_list)
        self._words: dict[int, Any] = {}  # of all cells, by address
        self._arrays: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}  # of cells of others
        self._idle: list[int] = []

    def __len__(self) -> int:
        """How many arrays are held."""
        return len(self._arrays)

    def hold(self, array: Any) -> int:
        """The address of a cell over `array` (C-contiguous, or a value on a device), counted
        once."""
        if self._free_list.value:
            self.reclaim()
        cell = self._idle.pop() if self._idle else self._new()
        words = self._words[cell]
        words[at.C_COUNT // 8] = 1
        # what lies on a device is read by nobody who looks at addresses
        words[at.C_DATA // 8] = address(array) if isinstance(array, np.ndarray) else 0
        self._arrays[cell] = array
        return cell

    def share(self, cell: int, array: Any) -> None:
        """Know the array of a cell that lives elsewhere, until `unshare`."""
        self._shared[cell] = array

    def unshare(self, cell: int) -> None:
        """Nobody reads that cell any more."""
        self._shared.pop(cell, None)

    def array(self, cell: int) -> Any:
        """What a cell holds, which nobody may write to: an array, or a value on a device; None if
        it is neither a boxed nor a shared one."""
        return self._arrays.get(cell) if cell in self._arrays else self._shared.get(cell)

    def drop(self) -> None:
        """Let all arrays go: the step has failed, and nobody reads its cells any more."""
        self._arrays.clear()

    def reclaim(self) -> None:
        """Let the arrays go whose cells nobody reads any more."""
        cell, self._free_list.value = self._free_list.value, 0
        while cell:
            del self._arrays[cell]
            self._idle.append(cell)
            cell = self._words[cell][at.C_NEXT // 8]

    def _new(self) -> int:
        words = (ctypes.c_int64 * (at.CELL_HEADER // 8))()
        words[at.C_CLASS // 8] = at.BOXED
        cell = ctypes.addressof(words)
        self._words[cell] = words
        return cell


Array = np.ndarray[Any, Any]

_EXPORTS = (
    "run", "run_traced", "run_here", "prepare", "start", "end", "complete", "new_cell", "release",
    "give_back", "class_of",
)  # fmt: skip
#: They take less than handing the GIL over and getting it back does.
_BRIEF = frozenset({"start", "end", "complete", "new_cell", "release", "class_of"})
_LIBC = {
    at.S_MALLOC: "malloc", at.S_FREE: "free", at.S_MEMCPY: "memcpy", at.S_MEMSET: "memset",
    at.S_REALLOC: "realloc", at.S_CLOCK: "clock_gettime",
}  # fmt: skip
#: Host ops that wait for Python at a time; more stay ready.
HOST_ROOM = 64
FIRST_READY_ROOM = 256


@cache
def executor_kernel() -> jit.Kernel:
    """The executor as a kernel that stores its functions' addresses."""
    source = inspect.getsource(native_executor)
    layout = inspect.getsource(at)

    def emit(e: Emitter) -> None:
        emit_source(e, source, {"at": at}, _EXPORTS)

    text = hashlib.sha256((source + layout + LANGUAGE_VERSION).encode()).hexdigest()
    return jit.Kernel(f"dataflow-{text}", "dataflow", emit, loops=True)


@cache
def native() -> dict[str, Any]:
    """The executor's functions, compiled on first use. Calling one releases the GIL, but for those
    that are brief and `run_held`, which is `run`."""
    kernel = executor_kernel()
    address = jit.compile_kernels([kernel])[kernel.key]
    found = words(len(_EXPORTS))
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    store(address)(ctypes.addressof(found), 0, 0, 0)
    known = vars(native_executor)
    arity = {name: len(inspect.signature(known[name]).parameters) for name in _EXPORTS}
    made = {}
    for name, where in zip(_EXPORTS, found, strict=True):
        kind = ctypes.PYFUNCTYPE if name in _BRIEF else ctypes.CFUNCTYPE
        made[name] = kind(ctypes.c_int64, *[ctypes.c_int64] * arity[name])(where)
    held = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    made["run_held"] = held(found[_EXPORTS.index("run")])
    return made


class ExternalCell:
    """A cell over memory of NumPy's, kept until the next one, or None, is given."""

    def __init__(self) -> None:
        self._words = (ctypes.c_int64 * (at.CELL_HEADER // 8))()
        self._words[at.C_CLASS // 8] = at.EXTERNAL
        self._words[at.C_COUNT // 8] = 1
        self.address = ctypes.addressof(self._words)
        self._array: Any = None

    def hold(self, array: Any) -> None:
        """Be the cell of `array` from now on: an array, a value on a device, or None."""
        self._array = array
        self._words[at.C_COUNT // 8] = 1
        self._words[at.C_DATA // 8] = address(array) if isinstance(array, np.ndarray) else 0


class Taker(Protocol):
    """A reader of cells: `build.HostOp`."""

    @property
    def types(self) -> Sequence[TensorType]: ...
    @property
    def reads_only(self) -> bool: ...
    @property
    def keeps(self) -> bool: ...
    @property
    def elsewhere(self) -> bool: ...


class State:
    """The memory of one running step. Reused by the next step of the same graph; one thread at a
    time."""

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
        self.host, self.dear = (words(HOST_ROOM * at.READY_BYTES // 8) for _ in range(2))
        self._lists = [words(at.CELL_CLASSES), words(frames), words(frames)]
        self.boxes = Boxes(ctypes.addressof(self._lists[0]) + 8 * at.BOXED)
        ready = self._libc.malloc(FIRST_READY_ROOM * at.READY_BYTES)
        if not ready:
            raise ResourceExhaustedError("there is no memory for the executor's ready list")
        given = {
            at.S_READY: ready, at.S_READY_ROOM: FIRST_READY_ROOM,
            at.S_HOST: ctypes.addressof(self.host), at.S_HOST_ROOM: HOST_ROOM,
            at.S_DEAR: ctypes.addressof(self.dear),
            at.S_OUTS: ctypes.addressof(self.outs), at.S_FEEDS: ctypes.addressof(self.feeds),
            at.S_FETCHES: ctypes.addressof(self.fetches),
            at.S_CELLS: ctypes.addressof(self._lists[0]),
            at.S_BLOCKS: ctypes.addressof(self._lists[1]),
            at.S_FRAME_BLOCKS: ctypes.addressof(self._lists[2]),
            at.S_CLOCK_NUMBER: time.CLOCK_MONOTONIC,
        }  # fmt: skip
        for offset, name in _LIBC.items():
            given[offset] = ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value or 0
        for offset, value in given.items():
            self.words[offset // 8] = value
        # a `__del__` would run while the interpreter goes down, without this module's names
        give_back = self._native["give_back"]
        weakref.finalize(self, _give_back, give_back, self._libc, self.words).atexit = False

    def word(self, offset: int) -> int:
        """One word of the state."""
        return int(self.words[offset // 8])

    def set(self, offset: int, value: int) -> None:
        """Write one word of the state."""
        self.words[offset // 8] = value

    def start(self) -> int:
        """Begin a step; the address of the root iteration."""
        root = self._native["start"](self.address, *self.tables.begin)
        self._check()
        return int(root)

    def run(self, budget: int) -> int:
        """Run up to `budget` nodes; whether there is more to do at once."""
        loop = "run_held" if self.tables.brief else "run"
        if self.words[at.S_TRACE // 8]:
            loop = "run_traced"
        left = self._native[loop](self.address, budget)
        self._check()
        return int(left)

    def trace_into(self, room: int, events: int) -> None:
        """Note what runs from now on at the address `room`, which has room for so many events; no
        more if it is 0."""
        for offset, value in ((at.S_TRACE, room), (at.S_TRACE_COUNT, 0), (at.S_TRACE_ROOM, events)):
            self.set(offset, value)

    def end(self, root: int) -> bool:
        """The step is over; whether it ended, and the state is as new. It did not if a loop never
        ended, as an enter of it got no value, live or dead."""
        self.boxes.reclaim()
        if ctypes.c_int64.from_address(root + at.I_OUTSTANDING).value:
            return False
        self._native["end"](self.address, root)
        return True

    def take_host(self) -> list[tuple[int, int]]:
        """The host nodes that wait, with their iterations; they are Python's now."""
        return self._taken(self.host, at.S_HOST_COUNT)

    def take_dear(self) -> list[tuple[int, int]]:
        """The dear plans that are ready, the same way: for `run_here`, or `prepare`."""
        return self._taken(self.dear, at.S_DEAR_COUNT)

    def _taken(self, held: Any, counted: int) -> list[tuple[int, int]]:
        count, step = self.words[counted // 8], at.READY_BYTES // 8
        if not count:
            return []
        self.words[counted // 8] = 0
        return [(held[step * i], held[step * i + 1]) for i in range(count)]

    def run_here(self, address: int, iteration: int) -> None:
        """Run a dear plan on this thread."""
        self._native["run_here"](self.address, address, iteration)
        self._check()

    def prepare(self, address: int, iteration: int, plan: int, outs: int) -> None:
        """Give the plan of the row at `plan` its inputs, and cells for its results, which are at
        `outs` as well; `complete_plan` when it has run."""
        self._native["prepare"](self.address, address, iteration, plan, outs)
        self._check()

    def complete_plan(self, address: int, iteration: int, outs: int) -> None:
        """A plan that ran elsewhere is done."""
        self._native["complete"](self.address, address, iteration, outs)

    def inputs(self, node: Node, iteration: int, host: Taker) -> list[Any]:
        """What a waiting host node reads: copies, or what nobody may write to, nor, if it does not
        keep its inputs, read when the node is complete. DEAD for what is dead."""
        first = iteration + self.tables.slot_at(node)
        cells = (ctypes.c_int64 * len(host.types)).from_address(first)
        copied, shared = not host.reads_only, host.reads_only or host.keeps
        far = host.elsewhere
        return [
            self.array(cell, t, copied=copied, shared=shared, far=far) if cell else DEAD
            for cell, t in zip(cells, host.types, strict=True)
        ]

    def array(
        self,
        cell: int,
        t: TensorType,
        *,
        copied: bool = True,
        shared: bool = False,
        far: bool = False,
    ) -> Any:
        """A copy of a cell's value; else a view of it. shared: what is boxed, which nobody writes
        to, is given as it is. far: so is what lies on a device."""
        boxed = self.boxes.array(cell)
        if boxed is not None:
            if not isinstance(boxed, np.ndarray):
                return boxed if far else boxed.numpy()
            return boxed if shared else boxed.copy()
        data = ctypes.c_int64.from_address(cell + at.C_DATA).value
        if t.dtype.numpy.hasobject:  # a feed of strings: each is counted by who reads it
            made = np.empty(t.static_shape, t.dtype.numpy)
            objects = (ctypes.py_object * made.size).from_address(data)
            for i in range(made.size):
                made.flat[i] = objects[i]
            return made
        if not copied:
            memory: Any = (ctypes.c_char * t.nbytes).from_address(data)
            return np.ndarray(t.static_shape, t.dtype.numpy, memory)
        made = np.empty(t.static_shape, t.dtype.numpy)
        ctypes.memmove(address(made), data, made.nbytes)
        return made

    def result(
        self, number: int, t: TensorType, *, shared: bool = False, far: bool = False
    ) -> Array | None:
        """A fetched result of the step that has ended; None if it is dead. shared: one that nobody
        else has, which is given as it is. far: as of `array`."""
        cell = self.fetches[number]
        if not cell:
            return None
        self.fetches[number] = 0
        array: Array = self.array(cell, t, shared=shared, far=far)
        self.release(cell)
        return array

    def complete(
        self,
        address: int,
        iteration: int,
        results: Sequence[Any],
        types: Sequence[Type],
    ) -> None:
        """A host node is done. Its results are nobody else's to write to; DEAD is a dead one."""
        for i, (made, t) in enumerate(zip(results, types, strict=True)):
            self.outs[i] = 0 if made is None or made is DEAD else self._cell(made, t)
        self._native["complete"](self.address, address, iteration, ctypes.addressof(self.outs))

    def _cell(self, array: Any, t: Type) -> int:
        if not isinstance(array, np.ndarray):
            return self.boxes.hold(array)
        held = array if array.flags.c_contiguous else np.array(array, order="C")
        if held.nbytes >= WORTH_A_BOX_BYTES or held.dtype.hasobject:
            return self.boxes.hold(held)
        if not (isinstance(t, TensorType) and t.is_static):
            return self.boxes.hold(held)
        cell = self._native["new_cell"](self.address, self.class_of(array.nbytes))
        self._check()
        data = ctypes.c_int64.from_address(cell + at.C_DATA).value
        ctypes.memmove(data, address(held), held.nbytes)
        return int(cell)

    def class_of(self, nbytes: int) -> int:
        """The size class of a cell for so many bytes."""
        return int(self._native["class_of"](nbytes))

    def release(self, cell: int) -> None:
        """Give one count of a cell back."""
        self._native["release"](self.address, cell)

    def _check(self) -> None:
        if self.words[at.S_FAILED // 8] == at.NO_MEMORY:
            raise ResourceExhaustedError("there is no memory for the values of the graph")


def _give_back(native: Any, libc: Any, words: Any) -> None:
    """Free what a state holds."""
    native(ctypes.addressof(words))
    libc.free(ctypes.c_void_p(words[at.S_READY // 8]))


def word_at(address: int) -> int:
    """The word at an address."""
    return int(ctypes.c_int64.from_address(address).value)


def iterations_of(iteration: int) -> list[int]:
    """The numbers of the iteration at this address and of those around it, innermost first."""
    found = []
    while around := word_at(word_at(iteration + at.I_FRAME) + at.FI_PARENT) if iteration else 0:
        found.append(word_at(iteration + at.I_NUMBER))
        iteration = around
    return found
