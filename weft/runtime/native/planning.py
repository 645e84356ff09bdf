"""Planning: a traced graph through the passes, the memory plan and the table that the walker runs.

A step whose plan is on disk does not load this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.codegen.call import Address, Scratch
from weft.codegen.engines import engine
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import multiplies_and_adds
from weft.codegen.loops.batch_parallel import runs_in_parts
from weft.codegen.loops.in_registers import in_registers
from weft.codegen.loops.program import Node, PlannedCall, all_calls
from weft.codegen.steps.layout import build_table, kernels_of
from weft.codegen.steps.plan import check_supported, copy_call, large_scratch, plan_program
from weft.codegen.steps.walker import MovingPlace, SlotKey, Table
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import uint8
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.types import TensorType
from weft.passes.fusion.fuse import fuse, fuse_folds
from weft.passes.manager import Pass, PassOptions, PassReport, run_passes
from weft.passes.memory.block import Copy, MemoryPlan, Slot
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.pipelines import GPU, GPU_REPRODUCIBLE, REPRODUCIBLE
from weft.passes.simplify.algebra import contract

#: Regions of a graph that has gone through all passes as a whole: what lowering has added.
REGION: tuple[Pass, ...] = (fuse,)


def for_machine(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """`passes` without `contract` on processors where a multiply-add is a call of a function."""
    return tuple(p for p in passes if multiplies_and_adds() or p is not contract)


def gpu_passes(passes: Sequence[Pass]) -> Sequence[Pass]:
    """The pipeline for a GPU that does what these passes do for the CPU."""
    return GPU_REPRODUCIBLE if tuple(passes) == REPRODUCIBLE else GPU


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The program of a step. nodes: what runs, as a tree; calls: the kernel calls in it, in the
    order of the table; kernels: what must be compiled for it.

    slot_number: the number of each buffer that comes anew with every call.
    """

    nodes: tuple[Node, ...]
    calls: tuple[PlannedCall, ...]
    kernels: tuple[Kernel, ...]
    table: Table
    slot_number: dict[SlotKey, int]


def step_program(graph: Graph, memory: MemoryPlan) -> StepProgram:
    """Lay the step of a fused graph out; compiles nothing. Errors as `plan_program`."""
    copies = _copies(memory)

    def slot_of(value: Value) -> SlotKey:
        return _key(memory.slots[value])

    nodes = plan_program(graph, slot_of, copies, memory.registers, memory.in_parts)
    nodes = _place_scratch(nodes, memory)
    moving = [
        MovingPlace(m.loop, _key(m.even), _key(m.odd), m.offset, m.stride) for m in memory.moving
    ]
    numbers = slot_numbers(graph)
    table = build_table(nodes, slot_of, numbers, memory.constant_arrays(), moving)
    calls = tuple(all_calls(nodes))
    return StepProgram(tuple(nodes), calls, tuple(kernels_of(calls)), table, numbers)


def _place_scratch(nodes: Sequence[Node], memory: MemoryPlan) -> list[Node]:
    """Scratch that the memory plan has a place for is there; the rest is shared by all calls."""
    places: dict[Operation, Address] = {}
    for op, slot in memory.scratch.items():
        value = Value(TensorType(uint8, (1,)))
        memory.slots[value] = slot
        places[op] = Address(value)
    return [
        _with_scratch(node, places[node.op])
        if isinstance(node, PlannedCall) and node.op in places
        else node
        for node in nodes
    ]


def _with_scratch(planned: PlannedCall, place: Address) -> PlannedCall:
    args = tuple(place if isinstance(a, Scratch) else a for a in planned.call.args)
    return replace(planned, call=replace(planned.call, args=args))


def _key(slot: Slot) -> SlotKey:
    return (slot.kind, slot.which)


def slot_numbers(graph: Graph) -> dict[SlotKey, int]:
    """The number of each buffer that comes anew with every call."""
    keys: list[SlotKey] = [("input", i) for i in range(len(graph.args))]
    keys += [("result", i) for i, v in enumerate(graph.results) if isinstance(v.type, TensorType)]
    keys += [("variable", str(op.attrs["name"])) for op in graph.ops if op.name == "variable"]
    return {key: i for i, key in enumerate(dict.fromkeys(keys))}


def _copies(memory: MemoryPlan) -> dict[tuple[Block | None, int], list[PlannedCall]]:
    """The plan's copies as calls; a stand-in value carries each slot."""

    def call(copy: Copy) -> PlannedCall:
        source, target = (_slot_value(memory, copy, s) for s in (copy.source, copy.target))
        return copy_call(source, target, copy.nbytes, copy.why)

    return {place: [*map(call, held)] for place, held in memory.copies_by_place().items()}


def _slot_value(memory: MemoryPlan, copy: Copy, slot: Slot) -> Address:
    value = Value(TensorType(uint8, (copy.nbytes,)))
    memory.slots[value] = slot
    return Address(value)


def planned(
    graph: Graph,
    passes: Sequence[Any],
    donated: Sequence[int],
    options: PassOptions,
) -> tuple[Graph, list[PassReport], MemoryPlan, StepProgram]:
    """Passes, memory plan and program of a traced graph; errors as
    `native.executable.compile_graph`."""
    passes = for_machine(passes)
    fused, reports = run_passes(graph, passes, options=options)
    check_supported(fused)
    small_loops = in_registers if fuse_folds not in passes else _of_one_element
    if engine() == "numba":  # its kernels have no such scratch
        memory = plan_memory(fused, small_loops, donated, runs_in_parts)
    else:
        memory = plan_memory(fused, small_loops, donated, runs_in_parts, large_scratch)
    return fused, reports, memory, step_program(fused, memory)


def _of_one_element(op: Operation) -> int:
    """`in_registers` for values of one element: elsewhere registers add up in an order of their
    own."""
    return 1 if in_registers(op) == 1 else 0
