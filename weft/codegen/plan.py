"""A step as one native call: a flat table of kernel calls, walked by native code.

A `Plan` is data: which kernel runs when, on which buffers, with which extents. The machine code
behind it - the kernels and the walker - knows no sizes, so a plan for another batch size compiles
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    KernelCall,
    Pool,
    Scratch,
    Status,
    WorkerScratch,
    worker_stride,
)
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel, compile_kernels
from weft.codegen.lowerings import LOWERINGS
from weft.codegen.nest import Nest
from weft.codegen.nest_emit import nest_call
from weft.ir.attributes import ConstArray
from weft.ir.errors import InternalError, PassError, UnsupportedError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.source import Locations
from weft.ir.types import RefType, TensorType, Type

#: Ops that need no code: they name buffers or order effects.
NO_CODE = frozenset(
    {"variable", "read", "assign", "constant", "group", "reshape", "identity", "stop_gradient"}
)

SlotOf = Callable[[Value], tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One row of the plan; `op` is None for copies, `nest` is set for loop nests."""

    call: KernelCall
    op: Operation | None
    nest: Nest | None = None
    why: str = ""

    def describe(self) -> str:
        """The call for people: pseudo-code for nests, one line for the rest."""
        if self.nest is not None:
            return self.nest.describe()
        return f"{self.call.kernel.name}  # {self.why or (self.op.name if self.op else '')}"


@dataclass(slots=True)
class Table:
    """The plan as int64 words, before addresses are known.

    words: the arguments of all calls, one after another. calls: per call the kernel's address, its
    first word, its units and its chunk (`CALL_WORDS` words).
    patches: (word, slot number, byte offset) to fill per call; arena: (word, byte offset) to fill
    per frame; workers: words that hold the address of the workers' scratch (`worker_bytes` for each
    thread that may run the step); status: words that hold the address of the status word.
    """

    words: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    arena: list[tuple[int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    scratch_bytes: int = 0
    worker_bytes: int = 0


def plan_calls(
    graph: Graph, slot_of: SlotOf, copies: dict[int, list[PlannedCall]]
) -> list[PlannedCall]:
    """The kernel calls of a fused graph in order. UnsupportedError for ops without native code."""
    calls = list(copies.get(-1, ()))
    for position, op in enumerate(graph.ops):
        if op.name == "fused":
            call, nest = nest_call(op, _in_place(op, slot_of))
            calls.append(PlannedCall(call, op, nest))
        elif op.name not in NO_CODE:
            calls += [PlannedCall(call, op) for call in _lower(op, graph.stage)]
        calls += copies.get(position, ())
    return calls


def _in_place(op: Operation, slot_of: SlotOf) -> tuple[tuple[int, int], ...]:
    outputs = {slot_of(v): j for j, v in enumerate(op.results)}
    return tuple(
        (i, outputs[slot_of(v)]) for i, v in enumerate(op.operands) if slot_of(v) in outputs
    )


def check_supported(graph: Graph) -> None:
    """Raises UnsupportedError for strings (native code only moves bytes, they are objects), and for
    dimensions without a size.
    """
    for arg, name in zip(graph.args, graph.arg_names, strict=True):
        _check_type(arg.type, f"input '{name}'", ())
    for op in graph.ops:
        for value in (*op.operands, *op.results):
            _check_type(value.type, f"op '{op.name}'", op.locations)


def _check_type(given: Type, where: str, location: Locations) -> None:
    held = given.tensor if isinstance(given, RefType) else given
    if not isinstance(held, TensorType):
        return
    if held.dtype.kind == "string":
        raise UnsupportedError(
            f"{where} on strings ({given}) is not supported in compiled code",
            hint="call it outside @wf.compile; strings stay on the host",
            location=location,
        )
    if not held.is_static:
        raise UnsupportedError(
            f"{where}: {given} has a dimension without a size, compiled code is made for shapes",
            hint="specialise the graph to the shapes of its inputs first",
            location=location,
        )


def _lower(op: Operation, stage: str) -> list[KernelCall]:
    lowering = LOWERINGS.get(op.name)
    if lowering is None and stage != "fused":
        raise PassError(
            f"the graph cannot run: the pipeline does not end with 'fuse', which makes the kernel "
            f"of op '{op.name}'",
            hint="add 'fuse' as the last pass",
            location=op.locations,
        )
    if lowering is None:
        raise UnsupportedError(
            f"op '{op.name}' has no native CPU kernel",
            hint="call it outside @wf.compile, where the reference interpreter runs it",
            location=op.locations,
        )
    try:
        return lowering(op)
    except UnsupportedError as error:
        raise error.at(op.locations) from None


def copy_call(source: Arg, target: Arg, nbytes: int, why: str) -> PlannedCall:
    """A byte copy from one buffer to another."""
    kernel = Kernel("copy-bytes", "copy", _emit_copy)
    return PlannedCall(KernelCall(kernel, (target, source, nbytes)), None, why=why)


def _emit_copy(e: Emitter) -> None:
    target, source = e.pointer_argument(0, "u8"), e.pointer_argument(1, "u8")
    i1 = ir.IntType(1)
    memcpy = e.module.declare_intrinsic("llvm.memcpy", [target.type, source.type, I64])
    e.builder.call(memcpy, [target, source, e.argument(2), ir.Constant(i1, 0)])


def build_table(
    calls: list[PlannedCall],
    slot_of: SlotOf,
    slot_number: dict[tuple[str, int | str], int],
    constants: list[np.ndarray[Any, Any]],
) -> Table:
    """Compile what is missing and lay the calls out as words."""
    table = Table()
    addresses = compile_kernels([c.call.kernel for c in calls])
    pool: dict[ConstArray, np.ndarray[Any, Any]] = {}
    for planned in calls:
        call = planned.call
        table.calls += [addresses[call.kernel.key], len(table.words), call.units, call.chunk]
        for arg in call.args:
            table.words.append(_word(table, arg, slot_of, slot_number, constants, pool))
    table.keep += [constants, pool]
    return table


def _word(
    table: Table,
    arg: Arg,
    slot_of: SlotOf,
    slot_number: dict[tuple[str, int | str], int],
    constants: list[np.ndarray[Any, Any]],
    pool: dict[ConstArray, np.ndarray[Any, Any]],
) -> int:
    position = len(table.words)
    match arg:
        case int():
            return arg
        case Pool(held):
            if held not in pool:
                pool[held] = held.array
            return int(pool[held].ctypes.data)
        case Scratch(nbytes):
            table.scratch_bytes = max(table.scratch_bytes, nbytes)
            table.arena.append((position, -1))
            return 0
        case WorkerScratch(nbytes):
            table.worker_bytes = max(table.worker_bytes, worker_stride(nbytes))
            table.workers.append(position)
            return 0
        case Status():
            table.status.append(position)
            return 0
        case Address(value, offset):
            kind, which = slot_of(value)
            if kind == "arena":
                assert isinstance(which, int)
                table.arena.append((position, which + offset))
            elif kind == "constant":
                assert isinstance(which, int)
                return int(constants[which].ctypes.data) + offset
            else:
                table.patches += [position, slot_number[(kind, which)], offset]
            return 0
    raise InternalError(f"unknown kernel argument {arg!r}")
