"""`NodeTrace`: the trace of one run of a step on the executor, an event for each node, with its
times, and, if the recorder asks for them, for each kernel of its regions.

The native loop notes (node, iteration, begin, end) for each node that it runs itself
(`native_executor.py`); the executor adds what ran beside it: host ops, nodes on other threads. The
kernels of a region are timed by a walk of its table in segments, which takes the place of the
walker in the row of its plan until the run is over."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations
from weft.ir.types import RefType, TensorType
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built, HostOp
from weft.runtime.dataflow.nodes import Node, Tables, words
from weft.runtime.dataflow.run import PlanWords
from weft.runtime.dataflow.state import State, iterations_of
from weft.runtime.native.activation import Activation
from weft.runtime.native.executable import Executable
from weft.runtime.native.kernel_times import TracedWalk
from weft.runtime.recorder import AnyRecorder, Output, TraceEvent, clock

#: The walker of a plan: its header, and words that it does not look at.
WALK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


#: Events between two looks of Python.
ROOM = 4096
KINDS = {
    at.NO_OP: "no_op", at.IDENTITY: "identity", at.SWITCH: "switch", at.MERGE: "merge",
    at.ENTER: "enter", at.EXIT: "exit", at.NEXT_ITERATION: "next_iteration",
    at.CONSTANT: "constant", at.FEED: "feed", at.FETCH: "fetch", at.HOST: "host", at.PLAN: "plan",
    at.DEAR: "plan",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Events of one thread: rows of `layout.EVENT_WORDS` words. made: what a node of the host gave;
    None: the types of the values say what each node gives."""

    labels: Labels
    rows: np.ndarray[Any, Any]
    thread: int
    waits: bool
    step: int
    device: str
    made: tuple[Output, ...] | None = None

    def events(self) -> list[TraceEvent]:
        """The rows for people."""
        out = []
        for address, dead, begin, end, *numbers in self.rows.tolist():
            name, kind, ops, locations, frame, nbytes, given = self.labels.of(address)
            outputs = given if self.made is None else self.made
            inside = tuple(n for n in reversed(numbers) if n >= 0)
            ran = (begin, end, self.thread, dead != 0, self.waits, self.step)
            out.append(
                TraceEvent(
                    name, kind, ops, locations, frame, inside, *ran, nbytes,
                    () if dead else outputs, self.device,
                )
            )  # fmt: skip
        return out


_Label = tuple[str, str, tuple[str, ...], Locations, str, int, tuple[Output, ...]]


class Labels:
    """Names and places of a graph's nodes, by their address."""

    def __init__(self, built: Built, tables: Tables) -> None:
        self._built, self._tables = built, tables

    def of(self, address: int) -> _Label:
        """(name, kind, names of ops, locations, frame, bytes, what it gives)."""
        built, node = self._built, self._tables.node_at(address)
        op, region = built.op_of.get(node), built.region_of.get(node)
        ops: tuple[Operation, ...] = region.ops if region is not None else (op,) if op else ()
        kind = KINDS[node.kind]
        if region is not None:
            uses_state = any(isinstance(v.type, RefType) for o in ops for v in o.operands)
            kind = "state" if uses_state else "plan"
        names = tuple(o.name for o in ops)
        frame = built.frame_names[node.frame]
        locations = tuple(dict.fromkeys(where for o in ops for where in o.locations))
        name = built.feed_names[node.number] if node.kind == at.FEED else _name(node, names, kind)
        values: tuple[Value, ...] = ()
        given = self._gives(node)
        if region is not None:
            values = (*region.inputs, *given)
        elif op is not None and node.kind == at.HOST:
            values = (*op.operands, *given)
        types = [v.type for v in values if isinstance(v.type, TensorType)]
        nbytes = sum(t.nbytes for t in types if t.is_static and t.dtype.kind != "string")
        outputs = tuple([o for v in given if (o := _output(v, None)) is not None])
        return name, kind, names, locations, frame, nbytes, outputs

    def number_of(self, made: Executable) -> int:
        """The number of a region, from 1."""
        return next(n for n, one in enumerate(self._built.compiled, 1) if one is made)

    def look_at(self, region: int) -> None:
        """Have a region know its ops, which a plan from disk makes anew, before it is timed."""
        made = self._built.compiled[region - 1]
        if isinstance(made, Executable):
            _ = made.report

    def made(self, address: int, made: Sequence[Any]) -> tuple[Output, ...]:
        """What a node of the host gave, by the arrays themselves."""
        given = self._gives(self._tables.node_at(address))
        return tuple(
            [
                output
                for value, array in zip(given, made, strict=True)
                if (output := _output(value, array)) is not None
            ]
        )

    def _gives(self, node: Node) -> Sequence[Value]:
        """The results of a region, or of an op of the host."""
        region, op = self._built.region_of.get(node), self._built.op_of.get(node)
        if region is not None:
            return region.results
        return op.results if op is not None and node.kind == at.HOST else ()


def _output(value: Value, array: Any) -> Output | None:
    """What a value is: an array, or as its type says it; None where the sizes are not known. The
    memory of strings is not counted."""
    kind, op = value.type, value.op
    if not isinstance(kind, TensorType) or op is None:
        return None
    given = kind.shape if array is None else getattr(array, "shape", (None,))
    shape = tuple([n for n in given if isinstance(n, int)])
    if len(shape) < len(given):
        return None  # a dead value, or one of any size
    nbytes = 0 if kind.dtype.kind == "string" else math.prod(shape) * kind.dtype.itemsize
    return Output(op.name, op.locations, kind.dtype.name, shape, nbytes)


def _name(node: Node, ops: Sequence[str], kind: str) -> str:
    if not ops:
        return f"{kind} {node.number}"
    shown = list(dict.fromkeys(ops))
    return " ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")


class NodeTrace:
    """One traced step: its place in a recorder, and the room that native code writes to."""

    def __init__(self, recorder: AnyRecorder, labels: Labels, state: State) -> None:
        self._recorder, self._labels, self._state = recorder, labels, state
        self._step = recorder.next_step()
        self._thread = threading.get_ident()
        self._room = words(ROOM * at.EVENT_WORDS)
        self._walks: dict[Activation, TracedWalk] = {}
        self._calls: list[Any] = []  # what native code calls
        self._undo: list[Callable[[], None]] = []
        state.trace_into(ctypes.addressof(self._room), ROOM)

    def drain(self) -> None:
        """Take what native code has noted."""
        count = self._state.word(at.S_TRACE_COUNT)
        if count:
            found = np.frombuffer(self._room, np.int64, count * at.EVENT_WORDS)
            rows = found.reshape(count, at.EVENT_WORDS).copy()
            self._keep(rows, self._thread, waits=False)
            self._state.set(at.S_TRACE_COUNT, 0)

    def begun(self, address: int, iteration: int) -> list[int]:
        """The row of a node that begins now and is not run by the native loop."""
        around = iterations_of(iteration)[: at.TRACE_DEPTH]
        return [address, 0, clock(), 0, *around, *[-1] * (at.TRACE_DEPTH - len(around))]

    def ended(
        self, row: list[int], end: int, thread: int | None, *, waits: bool, made: Any = None
    ) -> None:
        """It was over at `end`; it ran on that thread (None: this one). made: what a node of the
        host gave."""
        row[at.T_END // 8] = end
        given = self._labels.made(row[0], made) if isinstance(made, list) else None
        self._keep(np.array([row], np.int64), thread or self._thread, waits=waits, made=given)

    def _keep(
        self,
        rows: np.ndarray[Any, Any],
        thread: int,
        *,
        waits: bool,
        made: tuple[Output, ...] | None = None,
    ) -> None:
        chunk = _Chunk(self._labels, rows, thread, waits, self._step, self._recorder.device, made)
        self._recorder.add(chunk)

    # ---------------------------------------------------------------------- kernels of regions
    def host(self, host: HostOp) -> HostOp:
        """A node of the host as it runs in this step: of a region its kernels are recorded."""
        if host.recorded is None or not self._recorder.kernels:
            return host
        self._labels.look_at(host.region)
        return host.recorded(self._recorder.within(self._recorder.device, host.region))

    def walk_in(self, made: Executable, plan: PlanWords, walk_by: Callable[[int], None]) -> None:
        """Have a region walked kernel by kernel until the step is over. plan: what it runs on;
        walk_by: is given the address of what walks its table."""
        if not self._recorder.kernels or plan.activation in self._walks:
            return
        number = self._labels.number_of(made)
        recorder = self._recorder.within(self._recorder.device, number)
        walk = TracedWalk(made, plan.activation, recorder, self._step)

        def call(header: int, *_: int) -> None:
            try:
                walk(header)
            except BaseException as error:  # Ctrl-C: native code passes no exception on
                walk.stop(error)

        native = WALK(call)
        address = ctypes.cast(native, ctypes.c_void_p).value
        assert address is not None
        walk_by(address)
        self._walks[plan.activation] = walk
        self._calls.append(native)
        self._undo.append(partial(walk_by, plan.words[0]))

    def close(self) -> None:
        """The step is over, whole or half."""
        self.drain()
        self._state.trace_into(0, 0)
        for undo in self._undo:
            undo()
        for walk in self._walks.values():
            walk.flush()
