"""Trace events of the dataflow executor: one for each node of a traced step, with its times.

The native loop notes (node, iteration, begin, end) for each node that it runs itself
(`native_executor.py`); the executor adds what ran beside it: host ops, nodes on other threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations
from weft.ir.types import RefType, TensorType
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built
from weft.runtime.dataflow.nodes import Node, Tables, words
from weft.runtime.dataflow.state import State
from weft.runtime.recorder import TraceEvent, TraceRecorder, clock

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
    """Events of one thread: rows of `layout.EVENT_WORDS` words."""

    labels: Labels
    rows: np.ndarray[Any, Any]
    thread: int
    waits: bool
    step: int

    def events(self) -> list[TraceEvent]:
        """The rows for people."""
        out = []
        for address, dead, begin, end, *numbers in self.rows.tolist():
            name, kind, ops, locations, frame, nbytes = self.labels.of(address)
            inside = tuple(n for n in reversed(numbers) if n >= 0)
            ran = (begin, end, self.thread, dead != 0, self.waits, self.step)
            out.append(TraceEvent(name, kind, ops, locations, frame, inside, *ran, nbytes))
        return out


_Label = tuple[str, str, tuple[str, ...], Locations, str, int]


class Labels:
    """Names and places of a graph's nodes, by their address."""

    def __init__(self, built: Built, tables: Tables) -> None:
        self._built, self._tables = built, tables

    def of(self, address: int) -> _Label:
        """(name, kind, names of ops, locations, frame, bytes)."""
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
        if region is not None:
            values = (*region.inputs, *region.results)
        elif op is not None and node.kind == at.HOST:
            values = (*op.operands, *op.results)
        types = [v.type for v in values if isinstance(v.type, TensorType)]
        nbytes = sum(t.nbytes for t in types if t.is_static and t.dtype.kind != "string")
        return name, kind, names, locations, frame, nbytes


def _name(node: Node, ops: Sequence[str], kind: str) -> str:
    if not ops:
        return f"{kind} {node.number}"
    shown = list(dict.fromkeys(ops))
    return " ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")


class NodeTrace:
    """One traced step: its place in a recorder, and the room that native code writes to."""

    def __init__(self, recorder: TraceRecorder, labels: Labels, state: State) -> None:
        self._recorder, self._labels, self._state = recorder, labels, state
        self._step = recorder.next_step()
        self._thread = threading.get_ident()
        self._room = words(ROOM * at.EVENT_WORDS)
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
        row = [address, 0, clock(), 0]
        for _ in range(at.TRACE_DEPTH):
            around = _word(_word(iteration + at.I_FRAME) + at.FI_PARENT) if iteration else 0
            row.append(_word(iteration + at.I_NUMBER) if around else -1)
            iteration = around
        return row

    def ended(self, row: list[int], end: int, thread: int | None, *, waits: bool) -> None:
        """It was over at `end`; it ran on that thread (None: this one)."""
        row[at.T_END // 8] = end
        self._keep(np.array([row], np.int64), thread or self._thread, waits=waits)

    def _keep(self, rows: np.ndarray[Any, Any], thread: int, *, waits: bool) -> None:
        self._recorder.add(_Chunk(self._labels, rows, thread, waits, self._step))

    def close(self) -> None:
        """The step is over, whole or half."""
        self.drain()
        self._state.trace_into(0, 0)


def _word(address: int) -> int:
    return int(ctypes.c_int64.from_address(address).value)
