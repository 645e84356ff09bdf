"""Plan of a step as one native call: kernel calls, loops and branches for a fused graph.

The program is data: which kernel runs when, on which buffers, with which extents; `layout.py` lays
it out for the walker. The machine code behind it - the kernels and the walker - knows no sizes, so
a plan for another batch size compiles nothing. Memory of stacks goes back after each iteration out
of which no stack leads."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Scratch, Status, cut_call
from weft.codegen.engines import engine
from weft.codegen.kernels.data_movement import check_call
from weft.codegen.kernels.lowerings import LOWERINGS, fused_product_calls
from weft.codegen.kernels.stack import mark_call
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.loops.batch_parallel import Parts, parts_of
from weft.codegen.loops.program import Branch, Loop, Node, PlannedCall
from weft.codegen.loops.register_kernel import scalar_loop_call
from weft.codegen.nests.calls import nest_calls
from weft.codegen.nests.rows import checking_ops
from weft.codegen.numba.replacements import replacement, replacements
from weft.codegen.products.calls import is_product
from weft.codegen.stacks import MOST_MARKS, keeps_no_stacks, leaves_stacks, makes_stacks
from weft.codegen.steps.walker import PART_WORDS, WALK_PARTS, SlotOf
from weft.ir.analysis.index_maps import index_sizes, is_gather
from weft.ir.cost.rates import streamed
from weft.ir.cost.thresholds import LARGE_SCRATCH_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import uint8
from weft.ir.errors import PassError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import Locations
from weft.ir.ops import REGISTERED
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.process import load
from weft.ir.spec import int_attr
from weft.ir.types import RefType, TensorType, Type

_WHY = {
    "begin": "memory of stacks that an earlier step has left",
    "end": "gives memory of stacks back",
    "mark": "where the memory of stacks ends before a loop",
    "release": "gives back what stacks took in this iteration",
}


def stack_call(name: str, mark: int = 0) -> PlannedCall:
    """The call `begin`, `end`, `mark` or `release`."""
    made: Any = mark_call
    if engine() == "numba":
        made = load("weft.codegen.numba.calls", "mark_call")
    return PlannedCall(made(name, mark), None, why=_WHY[name])


def releases(op: Operation, level: int) -> bool:
    """Whether a loop, `level` such loops deep, gives back what stacks took in each iteration."""
    return level < MOST_MARKS and keeps_no_stacks(op)


#: Ops that need no code: they name buffers or order effects.
NO_CODE = frozenset(
    {
        "variable",
        "read",
        "assign",
        "constant",
        "group",
        "reshape",
        "identity",
        "stop_gradient",
        "tap",
        "optimization_barrier",
    }
)


#: Kernel calls for the memory plan's copies, by block (None: the graph itself) and op position.
Copies = Mapping[tuple[Block | None, int], Sequence[PlannedCall]]


def plan_program(
    graph: Graph,
    slot_of: SlotOf,
    copies: Copies,
    registers: Container[Operation] = (),
    in_parts: Container[Operation] = (),
) -> list[Node]:
    """The program of a fused graph. UnsupportedError for ops without native code.

    registers: the control flow that becomes one kernel each. in_parts: the loops that run in parts.
    """
    planner = _Planner(graph.stage, slot_of, copies, registers, in_parts)
    nodes = list(planner.block(graph.block, None))
    if not makes_stacks(graph.block) or leaves_stacks(graph.block):
        return nodes
    return [stack_call("begin"), *nodes, stack_call("end")]


def calls_of(
    op: Operation, stage: str, in_place: Sequence[tuple[int, int]] = ()
) -> list[KernelCall]:
    """The kernel calls of one op of a graph at `stage`; a loop or branch is one kernel. in_place:
    the numbers of operands and results that share memory."""
    shared = {op.results[b]: op.operands[a] for a, b in in_place}
    one = (op,) if op.name in CONTROL else ()
    planner = _Planner(stage, lambda v: ("value", id(shared.get(v, v))), {}, one)
    return [node.call for node in planner.op(op) if isinstance(node, PlannedCall)]


@dataclass(frozen=True, slots=True)
class _Planner:
    stage: str
    slot_of: SlotOf
    copies: Copies
    registers: Container[Operation] = ()
    in_parts: Container[Operation] = ()
    level: int = 0  # of loops around the block that give memory of stacks back

    def block(self, block: Block, where: Block | None) -> tuple[Node, ...]:
        nodes: list[Node] = list(self.copies.get((where, -1), ()))
        checked: set[object] = set()
        for position, op in enumerate(block.ops):
            nodes += self.checks(op, checked)
            nodes += self.op(op)
            nodes += self.copies.get((where, position), ())
        return tuple(nodes)

    def checks(self, op: Operation, done: set[object]) -> Iterator[PlannedCall]:
        for gather, index in unchecked_gathers(op, done):
            if engine() == "numba":
                checked: Any = load("weft.codegen.numba.calls", "check_call")
                call = checked(gather, index)
            else:
                call = check_call(gather, index)
            if call.units:
                yield PlannedCall(call, gather, why=f"the indices of {gather.name} in a nest")

    def op(self, op: Operation) -> Sequence[Node]:
        if op.name in NO_CODE:
            return ()
        printed = self.printed(op)
        if printed is not None:
            return printed
        if is_product(op):
            made = fused_product_calls(op, in_place(op, self.slot_of))
            return [PlannedCall(call, op, nest, why=why) for call, nest, why in made]
        if op.name == "fused":
            calls, nest = nest_calls(op, in_place(op, self.slot_of))
            more = [PlannedCall(c, op, why="adds up partial results") for c in calls[1:]]
            return [PlannedCall(calls[0], op, nest, faults=checking_ops(op)), *more]
        if op in self.registers:
            return self.one_kernel(op)
        if op.name == "cond":
            then, orelse = (self.block(region, region) for region in op.regions)
            return [Branch(op, op.operands[0], then, orelse)]
        if op.name in ("while", "scan"):
            return self.loop(op)
        calls = _lower(op, self.stage)
        return [PlannedCall(call, op) for call in calls if self.is_needed(op, call, calls)]

    def printed(self, op: Operation) -> Sequence[Node] | None:
        """The calls of an op's printed kernels; None where machine code of weft's own is called, or
        Python."""
        if op.name in ("cond", "while", "scan") or op.name in REGISTERED or op.name in PYTHON_CALLS:
            return None
        numba = engine() == "numba"
        if not (numba or replacements()):
            return None
        # who uses weft's own code generator alone does not wait for these modules
        calls: Any = load("weft.codegen.numba.calls", "planned_kernels")
        made = calls(op, in_place(op, self.slot_of), not numba)
        if made is None:
            return None
        faults = checking_ops(op) if op.name == "fused" else ()
        return [PlannedCall(call, op, nest, why, faults) for call, nest, why in made]

    def one_kernel(self, op: Operation) -> Sequence[Node]:
        """The call of control flow in registers, after copies of the arrays that it changes."""
        planned, copied = scalar_loop_call(op)
        pairs = [(op.operands[k], op.results[k]) for k in copied]
        copies = [_copy_of(a, b) for a, b in pairs if self.slot_of(a) != self.slot_of(b)]
        if engine() == "numba" or replacement(planned.call.kernel.key):
            source: Any = load("weft.codegen.loops.register_source", "loop_source")
            made: Any = load("weft.codegen.numba.calls", "kernel_call")
            planned = replace(planned, call=made(source(op)))
        return [*copies, planned]

    def loop(self, op: Operation) -> Sequence[Node]:
        limit = loop_limit(op)
        if limit == 0:
            return ()
        parts = parts_of(op)
        if isinstance(parts, Parts) and op in self.in_parts:
            given = tuple([Status() if name == "status" else 0 for name in PART_WORDS])
            walk = PlannedCall(KernelCall(WALK_PARTS, given, parts.count, 1), op)
            return [Loop(op, limit, (), None, self.part(op, parts), parts, walk)]
        why = parts if isinstance(parts, str) else "the graph's stage does not allow it"
        if releases(op, self.level):
            *nodes, body = replace(self, level=self.level + 1).regions(op)
            body = (*body, stack_call("release", self.level))
            return [stack_call("mark", self.level), _whole_loop(op, limit, (*nodes, body), why)]
        return [_whole_loop(op, limit, self.regions(op), why)]

    def regions(self, op: Operation) -> list[tuple[Node, ...]]:
        """The nodes of each region of a loop."""
        return [self.block(region, region) for region in op.regions]

    def part(self, op: Operation, parts: Parts) -> tuple[Node, ...]:
        """The body of a loop for one of its parts; copies are of as many bytes less."""
        whole, (body,) = self.slot_of, op.regions
        copies: dict[tuple[Block | None, int], list[PlannedCall]] = {}
        for position in range(-1, len(body.ops)):
            for planned in self.copies.get((body, position), ()):
                copies.setdefault((parts.body, position), []).append(_part_of(planned, parts))
        planner = replace(self, slot_of=lambda v: whole(parts.origin.get(v, v)), copies=copies)
        return planner.block(parts.body, parts.body)

    def is_needed(self, op: Operation, call: KernelCall, calls: Sequence[KernelCall]) -> bool:
        """False for the copy that an update begins with, of an operand that is there already, and
        for the check of indices before one that leaves variables and inputs alone if it fails: the
        update itself checks them again.
        """
        if not op.operands or len(calls) < 2:
            return True
        place = self.slot_of(op.result)
        if call.kernel.key.startswith("check-"):
            return place[0] in ("variable", "input") or call is calls[-1]
        addresses = (Address(op.result), Address(op.operands[0]))
        copies = call.kernel.name == "strided_copy" and call.args[:2] == addresses
        return not copies or place != self.slot_of(op.operands[0])


def _whole_loop(op: Operation, limit: int, nodes: Sequence[tuple[Node, ...]], why: str) -> Loop:
    if op.name == "scan":
        return Loop(op, limit, (), None, nodes[0], whole=why)
    return Loop(op, limit, nodes[0], op.regions[0].results[0], nodes[1], whole=why)


def loop_limit(op: Operation) -> int:
    """How often a loop goes round at most; a scan, exactly."""
    return int_attr(op.attrs, "limit" if op.name == "while" else "length")


def in_place(op: Operation, slot_of: Callable[[Value], Hashable]) -> tuple[tuple[int, int], ...]:
    """The numbers of the operands and results that are in the same place."""
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
    for op in graph.walk():
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


def large_scratch(op: Operation) -> int:
    """Bytes of scratch of an op with a kernel of its own, if they are many: 0 otherwise. What is
    small is shared by all calls, and stays in the caches."""
    if op.regions or is_product(op) or op.name not in LOWERINGS:
        return 0
    args = [a for call in _lower(op, "fused") for a in call.args]
    nbytes = max((a.nbytes for a in args if isinstance(a, Scratch)), default=0)
    return nbytes if nbytes >= LARGE_SCRATCH_BYTES else 0


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


def unchecked_gathers(op: Operation, done: set[object]) -> Iterator[tuple[Operation, Value]]:
    """The gathers that a nest reads through, and their indices, but for those that are `done`."""
    for gather in op.regions[0].ops if op.name == "fused" else ():
        if is_gather(gather):
            index = op.operands[op.regions[0].args.index(gather.operands[1])]
            held = (index, *index_sizes(gather))
            if held not in done:
                yield gather, index
            done.add(held)


def _part_of(planned: PlannedCall, parts: Parts) -> PlannedCall:
    """The copy of one part of what a loop in parts copies."""
    target, source = (a for a in planned.call.args if isinstance(a, Address))
    nbytes = planned.call.args[-1]
    assert isinstance(nbytes, int)
    share = nbytes // parts.count
    ends: list[Address] = []
    for end in (source, target):
        value = Value(TensorType(uint8, (share,)))
        parts.origin[value] = end.value
        parts.split.add(value)
        ends.append(Address(value))
    return copy_call(ends[0], ends[1], share, planned.why)


def _copy_of(source: Value, target: Value) -> PlannedCall:
    assert isinstance(source.type, TensorType)
    why = "the first value of a carry that a loop changes in place"
    return copy_call(Address(source), Address(target), source.type.nbytes, why)


def copy_call(source: Arg, target: Arg, nbytes: int, why: str) -> PlannedCall:
    """A byte copy from one buffer to another."""
    if engine() == "numba" and isinstance(source, Address) and isinstance(target, Address):
        copied: Any = load("weft.codegen.numba.calls", "bytes_call")
        return PlannedCall(copied(target, source, nbytes), None, why=why)
    kernel = Kernel("copy-bytes-3", "copy", _emit_copy)
    pages = -(-nbytes // 4096)
    each = streamed(2 * nbytes) / max(pages, 1)
    return PlannedCall(cut_call(kernel, (target, source, nbytes), pages, each), None, why=why)


def _emit_copy(e: Emitter) -> None:
    target, source = e.pointer_argument(0, "u8"), e.pointer_argument(1, "u8")
    i1 = ir.IntType(1)
    memcpy = e.module.declare_intrinsic("llvm.memcpy", [target.type, source.type, I64])
    apart = e.builder.icmp_unsigned("!=", target, source)  # a carry may be home already
    page, size, b = e.index(4096), e.argument(2), e.builder
    first, last = b.mul(e.lo, page), b.mul(e.hi, page)
    last = b.select(b.icmp_signed("<", last, size), last, size)
    with b.if_then(b.and_(apart, b.icmp_signed("<", first, last))):
        ends = [e.at(target, first), e.at(source, first), b.sub(last, first)]
        b.call(memcpy, [*ends, ir.Constant(i1, 0)])
