"""From a traced graph to something that runs: passes, memory plan, native plan, and the call."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.codegen.call import Address
from weft.codegen.jit import Kernel, compile_count, compile_kernels, kernel_asm, kernel_llvm
from weft.codegen.plan import (
    PlannedCall,
    Table,
    build_table,
    check_supported,
    copy_call,
    plan_calls,
)
from weft.codegen.walker import ARRAY_DATA_OFFSET, CALL_WORDS, HEADER, WALKER
from weft.ir.attributes import ConstArray
from weft.ir.dtypes import uint8
from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
)
from weft.ir.graph import Graph, Operation, Value
from weft.ir.types import RefType, TensorType
from weft.passes.manager import PLAN_FILE, PassOptions, PassReport, dump_folder, run_passes
from weft.passes.memory import Copy, MemoryPlan, Slot, plan_memory
from weft.passes.pipelines import STANDARD
from weft.runtime.variables import VariableState

Array = np.ndarray[Any, Any]
SlotKey = tuple[str, int | str]
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling did: the passes, the memory plan, the calls, and how many kernels were new."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    calls: tuple[PlannedCall, ...]
    kernels_compiled: int
    seconds: float


class Executable:
    """A compiled graph: call it with C-contiguous input arrays, get the list of result arrays.

    Results that are tokens are None. Safe to call from any number of threads at once: each call
    takes a frame (argument words and arena) of its own; the locks of the variables it uses make its
    effect on them atomic. A step that fails (an index out of bounds) stops there: what it wrote to
    initialised variables before stays written, variables that it would have initialised stay
    uninitialised.
    """

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        report: CompileReport,
        table: Table,
        slot_number: Mapping[SlotKey, int],
    ) -> None:
        self.graph = graph
        self.report = report
        self._table = table
        self.threads = 1
        self._arena_bytes = _aligned(report.memory.arena_bytes + table.scratch_bytes)
        self._calls = np.array(table.calls, np.int64)
        self._patches = np.array(table.patches, np.int64)
        self._results = [
            (v.type.static_shape, v.type.dtype.numpy) if isinstance(v.type, TensorType) else None
            for v in graph.results
        ]
        read, written = _state_use(graph)
        used = [(variables[n], slot_number[("variable", n)], n in read) for n in read | written]
        # one order of locks for all steps, or two could wait for each other; a name is the graph's
        self._variables = sorted(used, key=lambda row: id(row[0]))
        self._result_slots = [slot_number.get(("result", i), -1) for i in range(len(self._results))]
        self._slot_count = max(len(slot_number), 1)
        self._frames: list[_Frame] = []
        self._native = _native_walker()

    def __call__(self, inputs: Sequence[Array]) -> list[Any]:
        """Run one step. `inputs` have exactly the types of `graph.args` (the caller checks)."""
        try:
            results = [None if r is None else np.empty(r[0], r[1]) for r in self._results]
            frame = self._take_frame()
        except MemoryError as error:
            raise ResourceExhaustedError(
                f"'{self.graph.name}' needs {self.report.memory.peak_bytes:,} bytes: {error}",
                hint="the memory plan in .explain() says what for",
                location=self.graph.ops[-1].locations if self.graph.ops else (),
            ) from None
        slots = frame.slots
        for i, array in enumerate(inputs):
            slots[i] = id(array)
        for result, slot in zip(results, self._result_slots, strict=True):
            if slot >= 0:
                slots[slot] = id(result)
        if self._variables:
            self._run_with_state(frame)
        else:
            self._native(frame.header)
        if frame.failed.value >= 0:
            self._raise(frame)
        self._frames.append(frame)
        return results

    def _take_frame(self) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return _Frame(self)

    def describe(self) -> str:
        """The step for people: each kernel call as pseudo-code, then where the values are."""
        rows = [f"{i}. {call.describe()}" for i, call in enumerate(self.report.calls, 1)]
        return "\n".join([*rows, f"memory: {self.report.memory.describe()}"])

    def llvm(self) -> str:
        """Optimised LLVM IR of every kernel of the step, each once."""
        return "\n".join(f"; {k.name}  {k.key}\n{kernel_llvm(k.key)}" for k in self._kernels())

    def asm(self) -> str:
        """Assembly of every kernel of the step, each once."""
        return "\n".join(f"# {k.name}  {k.key}\n{kernel_asm(k.key)}" for k in self._kernels())

    def _kernels(self) -> list[Kernel]:
        return list({c.call.kernel.key: c.call.kernel for c in self.report.calls}.values())

    def _run_with_state(self, frame: _Frame) -> None:
        with ExitStack() as stack:
            for variable, _, read in self._variables:
                stack.enter_context(variable.lock)
                if read:
                    variable.buffer()  # raises if it is not initialised
            fresh = [v for v, _, _ in self._variables if v.array is None]
            for variable in fresh:
                variable.array = np.empty(variable.shape, variable.dtype.numpy)
            for variable, slot, _ in self._variables:
                frame.slots[slot] = id(variable.array)
            self._native(frame.header)
            if frame.failed.value >= 0:
                for variable in fresh:
                    variable.array = None

    def _raise(self, frame: _Frame) -> None:
        op = self.report.calls[frame.failed.value].op
        assert op is not None
        element = frame.status.value - 1
        index = op.operands[1] if len(op.operands) > 1 else op.operands[0]
        types = ", ".join(str(v.type) for v in op.operands)
        raise InvalidArgumentError(
            f"op '{op.name}' ({types}): element {element} of its index operand ({index.type}) "
            "is out of bounds",
            hint="indices must be in -n .. n-1 for an axis of size n; "
            "clip them with wf.clip if that is meant",
            location=op.locations,
        )


class _Frame:
    """What one running step owns: argument words, arena, slot table, status."""

    __slots__ = ("arena", "block", "failed", "header", "slots", "status", "words")

    def __init__(self, executable: Executable) -> None:
        table = executable._table
        self.words = np.array(table.words or [0], np.int64)
        workers_bytes = table.worker_bytes * executable.threads
        self.arena = np.empty(executable._arena_bytes + workers_bytes + 64, np.uint8)
        base = (int(self.arena.ctypes.data) + 63) // 64 * 64
        scratch = base + executable.report.memory.arena_bytes
        workers = base + executable._arena_bytes
        for word, offset in table.arena:
            self.words[word] = scratch if offset < 0 else base + offset
        self.slots = (ctypes.c_int64 * executable._slot_count)()
        self.status = ctypes.c_int64(0)
        self.failed = ctypes.c_int64(-1)
        for word in table.workers:
            self.words[word] = workers
        for word in table.status:
            self.words[word] = ctypes.addressof(self.status)
        given = {
            "words": self.words.ctypes.data,
            "calls": executable._calls.ctypes.data,
            "call_count": len(table.calls) // CALL_WORDS,
            "patches": executable._patches.ctypes.data,
            "patch_count": len(table.patches) // 3,
            "slots": ctypes.addressof(self.slots),
            "status": ctypes.addressof(self.status),
            "failed": ctypes.addressof(self.failed),
            "pool": 0,
            "threads": executable.threads,
        }
        self.block = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
        self.header = ctypes.addressof(self.block)


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


_walker_lock = threading.Lock()
_walker: Any = None


def _native_walker() -> Any:
    """The walker as a ctypes function (it releases the GIL), after a check of NumPy's layout."""
    global _walker
    with _walker_lock:
        if _walker is None:
            probe = np.zeros(1)
            seen = ctypes.c_int64.from_address(id(probe) + ARRAY_DATA_OFFSET).value
            if seen != probe.ctypes.data:
                raise InternalError(
                    "this NumPy keeps an array's data pointer where weft does not look for it"
                )
            address = compile_kernels([WALKER])[WALKER.key]
            _walker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        return _walker


def compile_graph(
    graph: Graph,
    variables: Mapping[str, VariableState] | None = None,
    *,
    name: str = "",
    passes: Sequence[Any] = STANDARD,
) -> Executable:
    """Compile a traced graph of static shapes into an Executable.

    `variables` holds the state behind each `variable` op by name. Raises UnsupportedError for an op
    or dtype that has no native code, FailedPreconditionError for a variable that is not in
    `variables`, ShapeError for one of another dtype or shape.
    """
    started, before = time.perf_counter(), compile_count()
    variables = variables or {}
    _check_variables(graph, variables)
    options = PassOptions.from_environment()
    folder = dump_folder(options, graph.name)
    fused, reports = run_passes(graph, passes, options=options, folder=folder)
    check_supported(fused)
    memory = plan_memory(fused)

    def slot_of(value: Value) -> SlotKey:
        slot = memory.slots[value]
        return (slot.kind, slot.which)

    calls = plan_calls(fused, slot_of, _copies(memory))
    constants = [_constant(op) for op in memory.constants]
    numbers = _slot_numbers(fused, memory)
    table = build_table(calls, slot_of, numbers, constants)
    seconds = time.perf_counter() - started
    report = CompileReport(tuple(reports), memory, tuple(calls), compile_count() - before, seconds)
    _log.info("compiled %s: %d calls, %d new kernels, %.1f ms; %s", name or graph.name, len(calls),
              report.kernels_compiled, seconds * 1e3, memory.describe())  # fmt: skip
    made = Executable(fused, variables, report, table, numbers)
    if folder is not None:
        (folder / PLAN_FILE).write_text(made.describe() + "\n", encoding="utf-8")
    return made


def _check_variables(graph: Graph, variables: Mapping[str, VariableState]) -> None:
    for op in graph.ops:
        if op.name != "variable":
            continue
        name, ref = _name(op), op.result.type
        if name not in variables:
            raise FailedPreconditionError(
                f"there is no variable '{name}' to run the graph with", location=op.locations
            )
        held, wanted = variables[name], ref.tensor if isinstance(ref, RefType) else None
        given = TensorType(held.dtype, held.shape)
        if given != wanted:
            raise ShapeError(
                f"variable '{name}' holds {given}, the graph wants {wanted}", location=op.locations
            )


def _state_use(graph: Graph) -> tuple[set[str], set[str]]:
    """The variables whose value before the step is read, and those that the step writes."""
    read: set[str] = set()
    written: set[str] = set()
    for op in graph.ops:  # in the order in which they run
        if op.name == "read" and _variable_name(op) not in written:
            read.add(_variable_name(op))
        elif op.name == "assign":
            written.add(_variable_name(op))
    return read, written


def _name(op: Operation) -> str:
    return str(op.attrs["name"])


def _variable_name(op: Operation) -> str:
    ref = op.operands[0].op
    assert ref is not None
    return _name(ref)


def _constant(op: Operation) -> Array:
    held = op.attrs["value"]
    assert isinstance(held, ConstArray)
    return held.array


def _slot_numbers(graph: Graph, memory: MemoryPlan) -> dict[SlotKey, int]:
    keys: list[SlotKey] = [("input", i) for i in range(len(graph.args))]
    keys += [("result", i) for i, v in enumerate(graph.results) if isinstance(v.type, TensorType)]
    keys += [("variable", _name(op)) for op in graph.ops if op.name == "variable"]
    return {key: i for i, key in enumerate(dict.fromkeys(keys))}


def _copies(memory: MemoryPlan) -> dict[int, list[PlannedCall]]:
    """The plan's copies as calls; a stand-in value carries each slot."""
    out: dict[int, list[PlannedCall]] = {}
    for copy in memory.copies:
        source, target = (
            _slot_value(memory, copy, copy.source),
            _slot_value(memory, copy, copy.target),
        )
        out.setdefault(copy.position, []).append(copy_call(source, target, copy.nbytes, copy.why))
    return out


def _slot_value(memory: MemoryPlan, copy: Copy, slot: Slot) -> Address:
    value = Value(TensorType(uint8, (copy.nbytes,)))
    memory.slots[value] = slot
    return Address(value)
