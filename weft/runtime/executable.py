"""From a traced graph to something that runs: passes, memory plan, native plan, and the call."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from weft.codegen.jit import (
    Kernel,
    compile_count,
    kernel_asm,
    kernel_llvm,
    load_count,
)
from weft.codegen.steps.plan import check_supported
from weft.codegen.steps.program import Node, PlannedCall, describe_program
from weft.codegen.steps.scalar_check import in_registers
from weft.codegen.steps.table import Table
from weft.codegen.steps.walker import CALL_WORDS, HEADER
from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
)
from weft.ir.graph import Graph, Operation
from weft.ir.types import RefType, TensorType
from weft.passes.manager import PLAN_FILE, PassOptions, PassReport, dump_folder, run_passes
from weft.passes.memory.plan_memory import MemoryPlan, plan_memory
from weft.passes.pipelines import STANDARD
from weft.runtime.ahead import native_walker
from weft.runtime.collector import collector_paused
from weft.runtime.native.api import NativeApi, begin_native_api, native_api_or_none
from weft.runtime.native.step import NativeStep, frame_words
from weft.runtime.pool.pool import POOL
from weft.runtime.program import step_program
from weft.runtime.variables import VariableState

Array = np.ndarray[Any, Any]
SlotKey = tuple[str, int | str]
_log = logging.getLogger("weft.compile")
#: Steps that take less keep the GIL: giving it away and taking it back costs 0.1 us and more.
SHORT_NS = 5_000
NS_PER_BYTE_IN_CACHE = 0.25  # of a nest that does some arithmetic too
MOST_IDLE_FRAMES = 8
LARGE_ARENA = 1 << 20


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What compiling did: the passes, the memory plan, the program, its kernel calls, and how many
    kernels were new."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    program: tuple[Node, ...]
    calls: tuple[PlannedCall, ...]
    kernels_compiled: int
    seconds: float
    kernels_loaded: int = 0

    def describe_program(self) -> list[str]:
        """The kernel calls, numbered as in `calls`, and loops and branches, as lines for people."""
        return describe_program(self.program).splitlines()


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
        threads: int | None = None,
    ) -> None:
        self.graph = graph
        self.report = report
        self._table = table
        cut = any(c.call.chunk for c in report.calls)
        self.pool, self.threads = POOL.enter(threads, table.worker_bytes) if cut else (0, 1)
        self._arena_bytes = _aligned(report.memory.arena_bytes + table.scratch_bytes)
        self._calls = np.array(table.calls, np.int64)
        self._patches = np.array(table.patches, np.int64)
        self._moves = np.array(table.moves, np.int64)
        self._results = [
            (v.type.static_shape, v.type.dtype.numpy)
            if isinstance(v.type, TensorType) and i not in report.memory.donated
            else None
            for i, v in enumerate(graph.results)
        ]
        self._donated = tuple(report.memory.donated.items())
        read, written = _state_use(graph)
        used = [(variables[n], slot_number[("variable", n)], n in read) for n in read | written]
        # one order of locks for all steps, or two could wait for each other; a name is the graph's
        self._variables = sorted(used, key=lambda row: id(row[0]))
        self._result_slots = [slot_number.get(("result", i), -1) for i in range(len(self._results))]
        self._slot_count = max(len(slot_number), 1)
        self._frames: list[_Frame] = []
        self._walker_address, self._walker = native_walker()
        self._was_called = False
        self.native: NativeStep | None = None
        self.native_step()

    def __call__(self, inputs: list[Array]) -> list[Any]:
        """Run one step. `inputs` have exactly the types of `graph.args` (the caller checks)."""
        native = self.native or self._next_native_step()
        if native is not None:
            made = native.run(inputs)
            if made is not None:
                for number, given in self._donated:
                    made[number] = inputs[given]
                return made
        try:
            results = [None if r is None else np.empty(r[0], r[1]) for r in self._results]
            frame = self._take_frame()
        except MemoryError:
            self.raise_no_memory()
        slots = frame.slots
        for i, array in enumerate(inputs):
            slots[i] = id(array)
        for result, slot in zip(results, self._result_slots, strict=True):
            if result is not None:
                slots[slot] = id(result)
        if self._variables:
            self._run_with_state(frame)
        else:
            self._walker(frame.header)
        if frame.failed.value >= 0:
            self.raise_failed(frame.failed.value, frame.status.value)
        if self.native is None and len(self._frames) < self._most_idle():
            self._frames.append(frame)
        for number, given in self._donated:
            results[number] = inputs[given]
        return results

    def idle_frames(self) -> int:
        """How many frames wait for the next call."""
        return len(self._frames) + (0 if self.native is None else self.native.idle_frames())

    def _take_frame(self) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return _Frame(self)

    def describe(self) -> str:
        """The step for people: each kernel call as pseudo-code, then where the values are."""
        rows = [*self.report.describe_program(), f"memory: {self.report.memory.describe()}"]
        return "\n".join(rows)

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
            self._walker(frame.header)
            if frame.failed.value >= 0:
                for variable in fresh:
                    variable.array = None

    # ------------------------------------------------------------------- for the native call path
    def _next_native_step(self) -> NativeStep | None:
        """From the second call on, have the native call path compiled."""
        if self._was_called:
            begin_native_api()
        self._was_called = True
        return self.native_step()

    def native_step(self) -> NativeStep | None:
        """The step for the native call path, once that is compiled: None until then."""
        api = native_api_or_none()
        if self.native is None and api is not None:
            self.native = self._make_native_step(api)
            self._frames.clear()  # the native path has frames of its own
        return self.native

    def _make_native_step(self, api: NativeApi) -> NativeStep:
        results = [
            None if r is None else (r[1], r[0], slot)
            for r, slot in zip(self._results, self._result_slots, strict=True)
        ]
        variables = [(state, slot) for state, slot, _ in self._variables]
        return NativeStep(api, self, self._walker_address, len(self.graph.args), results, variables,
                          not self._is_short(), self._most_idle())  # fmt: skip

    def _is_short(self) -> bool:
        """Whether the step is over before another Python thread could use the GIL: it is loop
        nests and copies alone, and estimated at less than SHORT_NS."""
        calls = self.report.calls
        if len(calls) != len(self.report.program):
            return False  # loops
        if any(c.nest is None and c.op is not None for c in calls):
            return False
        moved = self.report.passes[-1].bytes
        return moved is not None and 20 * len(calls) + moved * NS_PER_BYTE_IN_CACHE < SHORT_NS

    def _most_idle(self) -> int:
        """How many frames are kept for later calls: their arenas are memory that nobody uses."""
        return MOST_IDLE_FRAMES if self._arena_bytes < LARGE_ARENA else 1

    def new_frame(self) -> int:
        """The address of the words of a new frame, which belongs to who asked."""
        try:
            frame = _Frame(self)
        except MemoryError:
            self.raise_no_memory()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))
        return ctypes.addressof(frame.native)

    def raise_no_memory(self, *_: int) -> NoReturn:
        """Arena or results did not fit into memory."""
        raise ResourceExhaustedError(
            f"'{self.graph.name}' needs {self.report.memory.peak_bytes:,} bytes, which are not "
            "there",
            hint="the memory plan in .explain() says what for",
            location=self.graph.ops[-1].locations if self.graph.ops else (),
        )

    def raise_not_arrays(self) -> NoReturn:
        """An input that is no array of class ndarray: weft's fault, never the user's."""
        raise InternalError(f"'{self.graph.name}' was given an input that is no plain NumPy array")

    def raise_failed(self, call: int, status: int) -> NoReturn:
        """The step stopped at row `call` of the table, whose kernel stored `status`."""
        failed = self.report.calls[self._table.owner[call]]
        op, element = failed.fault(status)
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

    __slots__ = ("arena", "block", "failed", "header", "native", "slots", "status", "words")

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
            "pool": executable.pool,
            "threads": executable.threads,
            "moves": executable._moves.ctypes.data,
        }
        self.block = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
        self.header = ctypes.addressof(self.block)
        self.native = frame_words(self, self.header, given["slots"], given["status"],
                                  given["failed"], len(executable.graph.args))  # fmt: skip


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def compile_graph(
    graph: Graph,
    variables: Mapping[str, VariableState] | None = None,
    *,
    name: str = "",
    passes: Sequence[Any] = STANDARD,
    threads: int | None = None,
    donated: Sequence[int] = (),
) -> Executable:
    """Compile a traced graph of static shapes into an Executable.

    `donated`: inputs whose memory results may take; `report.memory.donated` says which did.
    `variables` holds the state behind each `variable` op by name; `threads`: how many threads a
    step may use (None: as many as all others). Raises UnsupportedError for an op
    or dtype that has no native code, FailedPreconditionError for a variable that is not in
    `variables`, ShapeError for one of another dtype or shape.
    """
    started, before, loaded = time.perf_counter(), compile_count(), load_count()
    variables = variables or {}
    _check_variables(graph, variables)
    options = PassOptions.from_environment()
    folder = dump_folder(options, graph.name)
    with collector_paused():
        fused, reports = run_passes(graph, passes, options=options, folder=folder)
        check_supported(fused)
        memory = plan_memory(fused, in_registers, donated)
        program = step_program(fused, memory)
    calls = program.calls
    seconds = time.perf_counter() - started
    new = compile_count() - before, seconds, load_count() - loaded
    report = CompileReport(tuple(reports), memory, program.nodes, calls, *new)
    _log.info("compiled %s: %d calls, %d new kernels, %.1f ms; %s", name or graph.name, len(calls),
              report.kernels_compiled, seconds * 1e3, memory.describe())  # fmt: skip
    made = Executable(fused, variables, report, program.table, program.slot_number, threads)
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
