"""Planner for a GPU: a fused graph and its memory plan become a plan of launches.

`lowering_of` says which launches ops become, by the pipeline that made the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from weft.codegen.call import Address, Arg, Pool, Scratch, Status
from weft.codegen.cuda.kernels.data_movement import check_launches
from weft.codegen.cuda.lowerings import fused_launches, launches_of
from weft.codegen.cuda.source.kernel import MOST_BLOCKS, Launch
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest, checking_ops
from weft.codegen.steps.plan import NO_CODE, in_place, loop_limit, unchecked_gathers
from weft.ir.analysis.effects import written_in
from weft.ir.analysis.index_maps import index_sizes, is_gather
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import InternalError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import element_type
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.sizes import largest
from weft.ir.spec import ConstArray, int_attr
from weft.ir.types import RefType, TensorType
from weft.passes.fusion.fuse import fuse
from weft.passes.in_place import UPDATES
from weft.passes.manager import Pass
from weft.passes.memory.block import Copy, MemoryPlan, Moving, Slot, aligned
from weft.passes.memory.plan_memory import variable_name
from weft.passes.pipelines import GPU_REPRODUCIBLE
from weft.runtime.device.libraries import cublaslt, cudnn
from weft.runtime.device.plan import (
    FAULT_BYTES,
    CheckFaults,
    DeviceAdd,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    DevicePlan,
    DevicePop,
    DevicePush,
    DevicePython,
    Place,
    PlanArg,
    PlannedCopy,
    PlannedLaunch,
    looked_first,
)
from weft.runtime.device.planning.routes import (
    Pairs,
    Way,
    conv_ways,
    convolution_in,
    is_gemm,
    ways_of,
    with_routes,
)

#: Buffers begin at multiples of it: kernels read and write so many bytes at once.
BUFFER_ALIGNMENT = 16

Fused = tuple[Sequence[Launch], "Nest | RowNest | None"]
_Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Lowering:
    """The rules by which ops become launches. fused: of a `fused` op and the pairs (operand,
    result) that share a buffer; op: of any other; check: of the indices, which come from outside,
    of a gather in a nest; ways: what a library could do of a product instead; None of what is no
    product.
    """

    fused: Callable[[Operation, _Pairs], Fused]
    op: Callable[[Operation], Sequence[Launch]]
    check: Callable[[Operation, Value], Sequence[Launch]]
    ways: Callable[[Operation, _Pairs, MathMode], Sequence[Way] | None] = lambda op, pairs, math: (
        None
    )


def device_plan(
    graph: Graph, memory: MemoryPlan, lowering: Lowering, math: MathMode = "ieee"
) -> DevicePlan:
    """The plan of a fused graph of static shapes, whose buffers are where `memory` says. math: how
    libraries may multiply f32.

    UnsupportedError for an op without a GPU kernel, with its line.
    """
    return _Planner(graph, memory, lowering, math).run()


@dataclass(slots=True)
class _Planner:
    graph: Graph
    memory: MemoryPlan
    lowering: Lowering
    math: MathMode = "ieee"
    constants: list[np.ndarray[Any, Any]] = field(default_factory=list)
    pool: dict[ConstArray, int] = field(default_factory=dict)
    faults: list[tuple[Operation, ...]] = field(default_factory=list)
    scratch_bytes: int = 0
    unchecked: bool = False  # a launch so far may have told of a fault since the last check
    copies: dict[tuple[Block | None, int], list[Copy]] = field(default_factory=dict)
    rows: dict[Slot, Place] = field(default_factory=dict)  # where rows are that lie at odd places
    arena_bytes: int = 0

    def run(self) -> DevicePlan:
        self.constants += self.memory.constant_arrays()
        self.copies = self.memory.copies_by_place()
        self._place_rows()
        nodes = self.block(self.graph.block, None)
        return DevicePlan(
            nodes,
            tuple(_tensor(v) for v in self.graph.args),
            tuple(v.type if isinstance(v.type, TensorType) else None for v in self.graph.results),
            tuple(self.constants), self._variables(), tuple(self.faults),
            self.arena_bytes, self.scratch_bytes, self._moving(), self.math, self.memory.donated,
            tuple(sorted(written_in(self.graph))),
        )  # fmt: skip

    def _variables(self) -> dict[str, tuple[TensorType, bool]]:
        read = {variable_name(op.operands[0]) for op in self.graph.ops if op.name == "read"}
        refs = [(str(op.attrs["name"]), op.result.type) for op in self.graph.ops
                if op.name == "variable"]  # fmt: skip
        return {n: (t.tensor, n in read) for n, t in refs if isinstance(t, RefType)}

    def _moving(self) -> tuple[tuple[Moving, Place, Place], ...]:
        return tuple(
            (m, self.at(m.even, m.offset, 0), self.at(m.odd, m.offset, 0))
            for m in self.memory.moving
        )

    def _place_rows(self) -> None:
        """Kernels want buffers to begin at multiples of 16 bytes. A row of a loop's sequence or
        stack that need not is in a place of its own during an iteration."""
        self.arena_bytes = self.memory.arena_bytes
        for k, moving in enumerate(self.memory.moving):
            if moving.stride % BUFFER_ALIGNMENT:
                nbytes = abs(moving.stride)
                self.rows[Slot("moving", k)] = Place("arena", 0, self.arena_bytes, nbytes)
                self.arena_bytes += aligned(nbytes)

    # -- nodes ------------------------------------------------------------------------------------

    def block(self, block: Block, where: Block | None) -> tuple[DeviceNode, ...]:
        nodes: list[DeviceNode] = self._copies(where, -1)
        checked: set[object] = set()
        for position, op in enumerate(block.ops):
            for gather, index in unchecked_gathers(op, checked):
                nodes += self._planned(gather, self.lowering.check(gather, index))
            nodes += self._op(op)
            nodes += self._copies(where, position)
        return tuple(nodes)

    def _op(self, op: Operation) -> list[DeviceNode]:
        if op.name in NO_CODE:
            return []
        if op.name == "cond":
            then, orelse = (self._region(region) for region in op.regions)
            return [DeviceBranch(op, self.value(op.operands[0]), then, orelse)]
        if op.name in ("while", "scan"):
            return self._loop(op)
        if op.name in PYTHON_CALLS:
            return [*self._check_before(True), self._python(op)]
        if op.name == "arena_push":
            limit = int_attr(op.attrs, "limit")
            stack, value = map(self.value, op.operands)
            return [DevicePush(op, stack, value, self.value(op.result), limit)]
        if op.name == "arena_pop":
            return [DevicePop(op, *map(self.value, (op.operands[0], *op.results)))]
        if op.name == "arena_add":
            return [self._add(op)]
        try:
            if op.name == "fused":
                if any(_is_empty(op, gather) for gather in op.regions[0].ops):
                    return []  # the check of its indices tells that they are out of bounds
                launches, nest = self.lowering.fused(op, in_place(op, self._slot))
                return self._with_routes(op, self._planned(op, launches, nest))
            launches = self.lowering.op(op)
        except UnsupportedError as error:
            raise error.at(op.locations) from None
        nodes = self._with_routes(op, self._planned(op, launches))
        return self._with_base(op, nodes)

    def _with_routes(self, op: Operation, nodes: list[DeviceNode]) -> list[DeviceNode]:
        """What a library could do instead, if it is a product."""
        pairs = in_place(op, self._slot) if op.name == "fused" else ()
        ways = self.lowering.ways(op, pairs, self.math)
        if ways is None:
            return nodes
        made, nbytes = with_routes(op, nodes, ways, lambda arg: self._arg(arg, -1))
        self.scratch_bytes = largest(self.scratch_bytes, nbytes)
        return made

    def _python(self, op: Operation) -> DeviceNode:
        given = [v for v in op.results if isinstance(v.type, TensorType)]
        types = tuple(map(_tensor, (*op.operands, *given)))
        operands, results = (tuple(map(self.value, values)) for values in (op.operands, given))
        return DevicePython(op, op.attrs, operands, results, types)

    def _add(self, op: Operation) -> DeviceNode:
        """Stacks are added up by the host, their elements by a kernel."""
        held = element_type(op.attrs)
        one = _sum_of_two(held, op)
        launches, nest = self.lowering.fused(one, ())
        cells = dict(zip((*one.operands, one.result), range(3), strict=True))

        def place(arg: Arg) -> PlanArg:
            if isinstance(arg, Address):
                return Place("cell", cells[arg.value], arg.offset, held.nbytes - arg.offset)
            return self._arg(arg, -1)

        planned = [PlannedLaunch(one, tuple(map(place, one.args)), op, nest=nest)
                   for one in launches]  # fmt: skip
        a, b, result = map(self.value, (*op.operands, op.result))
        depth = int_attr(op.attrs, "depth")
        return DeviceAdd(op, a, b, result, depth, held.nbytes, tuple(planned))

    def _region(self, block: Block) -> tuple[DeviceNode, ...]:
        """A region may run or not: what it leaves to be checked is, and so what came before."""
        before = self.unchecked
        nodes = self.block(block, block)
        self.unchecked = self.unchecked or before
        return nodes

    def _loop(self, op: Operation) -> list[DeviceNode]:
        limit = loop_limit(op)
        if limit == 0:
            return []
        known = len(self.faults)
        *tests, body = (self._region(region) for region in op.regions)
        body = self._with_rows(op, body)
        test = tests[0] if tests else ()
        if len(self.faults) > known:  # of which the iteration before may have told
            test, looked = looked_first(test)
            body = body if looked else looked_first(body)[0]
        if not tests:
            return [DeviceLoop(op, limit, (), None, body)]
        decision = self.value(op.regions[0].results[0])
        return [DeviceLoop(op, limit, test, decision, body)]

    def _with_rows(self, op: Operation, body: tuple[DeviceNode, ...]) -> tuple[DeviceNode, ...]:
        """The body of a loop between the copies of rows that have places of their own."""
        read = {self.memory.slots[arg] for arg in op.regions[-1].args}
        before: list[DeviceNode] = []
        after: list[DeviceNode] = []
        for slot, held in self.rows.items():
            assert isinstance(slot.which, int)
            if self.memory.moving[slot.which].loop is op:
                row = Place("moving", slot.which, 0, held.nbytes)
                if slot in read:
                    before.append(PlannedCopy(row, held, "rows begin at multiples of 16 bytes"))
                else:
                    after.append(PlannedCopy(held, row, "rows begin at multiples of 16 bytes"))
        return (*before, *body, *after)

    def _planned(
        self, op: Operation, launches: Sequence[Launch], nest: Nest | RowNest | None = None
    ) -> list[DeviceNode]:
        nodes: list[DeviceNode] = []
        slots = {v: self.memory.slots.get(v) for v in op.results}
        for launch in launches:
            if len(launch.args) != len(launch.kernel.parameters):
                raise InternalError(
                    f"kernel '{launch.kernel.name}' has {len(launch.kernel.parameters)} parameters "
                    f"and is given {len(launch.args)} arguments"
                )
            if launch.blocks == 0:
                continue
            if launch.blocks > MOST_BLOCKS:
                raise UnsupportedError(
                    f"kernel '{launch.kernel.name}' of op '{op.name}' would have {launch.blocks} "
                    f"blocks: a GPU takes at most {MOST_BLOCKS}",
                    hint="compile this step for the CPU, or do it in parts",
                    location=op.locations,
                )
            held = [slots.get(a.value) for a in launch.args if isinstance(a, Address)]
            writes = tuple(sorted({str(s.which) for s in held if s and s.kind == "variable"}))
            fault = -1
            if any(isinstance(a, Status) for a in launch.args):
                fault = len(self.faults)
                self.faults.append(checking_ops(op) if op.name == "fused" else (op,))
            nodes += self._check_before(bool(writes))
            args = tuple(self._arg(a, fault) for a in launch.args)
            nodes.append(PlannedLaunch(launch, args, op, fault, writes, nest))
            self.unchecked = self.unchecked or fault >= 0
        return nodes

    def _check_before(self, writes: bool) -> list[DeviceNode]:
        if not (writes and self.unchecked):
            return []
        self.unchecked = False
        return [CheckFaults()]

    def _with_base(self, op: Operation, nodes: list[DeviceNode]) -> list[DeviceNode]:
        """An update works on its result: operand 0 comes there first, unless it is there; but to a
        variable not before the indices have been looked at.
        """
        if op.name not in UPDATES:
            return nodes
        source, target = self.value(op.operands[0]), self.value(op.result)
        if source == target or not source.nbytes:
            return nodes
        copy = PlannedCopy(source, target, f"the operand that {op.name} updates is needed later")
        if target.kind != "variable":
            return [copy, *nodes]
        writing = (i for i, n in enumerate(nodes) if isinstance(n, PlannedLaunch) and n.writes)
        first = next(writing, None)
        if first is None:
            return [*nodes, *self._check_before(True), copy]
        return [*nodes[:first], copy, *nodes[first:]]

    def _copies(self, where: Block | None, position: int) -> list[DeviceNode]:
        nodes: list[DeviceNode] = []
        for copy in self.copies.get((where, position), ()):
            source, target = (self.at(s, 0, copy.nbytes) for s in (copy.source, copy.target))
            nodes += self._check_before(target.kind == "variable")
            nodes.append(PlannedCopy(source, target, copy.why))
        return nodes

    # -- places -----------------------------------------------------------------------------------

    def _slot(self, value: Value) -> Slot:
        return self.memory.slots[value]

    def value(self, value: Value) -> Place:
        """Where a value is."""
        return self.at(self._slot(value), 0, _tensor(value).nbytes)

    def at(self, slot: Slot, offset: int, nbytes: int) -> Place:
        """A place in a slot of the memory plan."""
        if slot in self.rows:
            held = self.rows[slot]
            return Place(held.kind, held.which, held.offset + offset, nbytes)
        if slot.kind == "arena":
            assert isinstance(slot.which, int)
            return Place("arena", 0, slot.which + offset, nbytes)
        return Place(slot.kind, slot.which, offset, nbytes)

    def _arg(self, arg: Arg, fault: int) -> PlanArg:
        match arg:
            case int():
                return arg
            case Address(value, offset):
                return self.at(self._slot(value), offset, _tensor(value).nbytes - offset)
            case Pool(held):
                if held not in self.pool:
                    self.pool[held] = len(self.constants)
                    self.constants.append(held.array)
                return Place("constant", self.pool[held], 0, held.array.nbytes)
            case Scratch(nbytes):
                self.scratch_bytes = max(self.scratch_bytes, nbytes)
                return Place("scratch", 0, 0, nbytes)
            case Status():
                return Place("fault", 0, FAULT_BYTES * fault, FAULT_BYTES)
        raise InternalError(f"a kernel argument that no GPU kernel has: {arg!r}")


def _sum_of_two(held: TensorType, op: Operation) -> Operation:
    """A `fused` op that adds two tensors, where `op` is in the user's program."""
    builder = Builder([held, held])
    total = builder.emit1("add", *builder.args, locations=op.locations)
    return fuse(builder.graph("sum", ("a", "b"), [total])).ops[0]


def _is_empty(fused: Operation, op: Operation) -> bool:
    """Whether an op in a fused one gathers from an axis that has nothing: no index can be right."""
    if not is_gather(op) or 0 not in index_sizes(op):
        return False
    index = fused.operands[fused.regions[0].args.index(op.operands[1])]
    return 0 not in _tensor(index).static_shape


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def lowering_of(passes: Sequence[Pass], ahead: bool = False) -> Lowering:
    """Of the pipeline "gpu_reproducible": kernels whose bits do not depend on what else is in them,
    and no library, which would choose among several orders of a sum. ahead: for a machine that may
    have libraries which this one has not."""
    if tuple(passes) == GPU_REPRODUCIBLE:
        return _EXACT
    return _AHEAD if ahead else _PLAIN


def _ways(op: Operation, pairs: Pairs, math: MathMode) -> Sequence[Way] | None:
    """None for what no library could do."""
    found = ways_of if convolution_in(op) is None else conv_ways
    return found(op, pairs, math) or None


def _ways_here(op: Operation, pairs: Pairs, math: MathMode) -> Sequence[Way] | None:
    """As `_ways`; none where no library is installed, as an eighth of planning goes into them."""
    convolution = convolution_in(op) is not None
    if (cudnn if convolution else cublaslt).installed():
        return _ways(op, pairs, math)
    return () if convolution or is_gemm(op) else None


def _exactly(launches: Sequence[Launch]) -> list[Launch]:
    return [replace(one, kernel=replace(one.kernel, contract=False)) for one in launches]


def _fused(op: Operation, pairs: Pairs) -> Fused:
    launches, nest = fused_launches(op, pairs)
    return _exactly(launches), nest


_PLAIN = Lowering(fused_launches, launches_of, check_launches, _ways_here)
_AHEAD = replace(_PLAIN, ways=_ways)
_EXACT = Lowering(_fused, lambda op: _exactly(launches_of(op)), check_launches)
