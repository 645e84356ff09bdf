"""A step as one native call: the program of kernel calls, loops and branches for a fused graph.

The program is data: which kernel runs when, on which buffers, with which extents; `table.py` lays
it out for the walker. The machine code behind it - the kernels and the walker - knows no sizes, so
a plan for another batch size compiles nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall
from weft.codegen.cost import NS_PER_BYTE_STREAMED, split
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.epilogue import is_product, product_calls
from weft.codegen.jit import Kernel
from weft.codegen.lowerings import LOWERINGS, PRODUCTS
from weft.codegen.nests.emit import nest_calls
from weft.codegen.nests.rows import checking_ops
from weft.codegen.steps.program import Branch, Loop, Node, PlannedCall
from weft.codegen.steps.scalar_emit import scalar_loop_call
from weft.codegen.steps.table import SlotOf
from weft.ir.errors import PassError, UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.rules import int_attr
from weft.ir.source import Locations
from weft.ir.types import RefType, TensorType, Type

__all__ = ["PlannedCall", "check_supported", "copy_call", "plan_program"]

#: Ops that need no code: they name buffers or order effects.
NO_CODE = frozenset(
    {"variable", "read", "assign", "constant", "group", "reshape", "identity", "stop_gradient"}
)

#: Kernel calls for the memory plan's copies, by block (None: the graph itself) and op position.
Copies = Mapping[tuple[Block | None, int], Sequence[PlannedCall]]


def plan_program(
    graph: Graph, slot_of: SlotOf, copies: Copies, registers: Container[Operation] = ()
) -> list[Node]:
    """The program of a fused graph. UnsupportedError for ops without native code.

    registers: the control flow that becomes one kernel each.
    """
    return list(_Planner(graph.stage, slot_of, copies, registers).block(graph.block, None))


@dataclass(frozen=True, slots=True)
class _Planner:
    stage: str
    slot_of: SlotOf
    copies: Copies
    registers: Container[Operation]

    def block(self, block: Block, where: Block | None) -> tuple[Node, ...]:
        nodes: list[Node] = list(self.copies.get((where, -1), ()))
        for position, op in enumerate(block.ops):
            nodes += self.op(op)
            nodes += self.copies.get((where, position), ())
        return tuple(nodes)

    def op(self, op: Operation) -> Sequence[Node]:
        if op.name in NO_CODE:
            return ()
        if is_product(op):
            lower = PRODUCTS[op.regions[0].ops[0].name]
            calls, follows = product_calls(op, _in_place(op, self.slot_of), lower)
            packing = [PlannedCall(call, op, why="packs the product's B") for call in calls[:-1]]
            return [*packing, PlannedCall(calls[-1], op, follows)]
        if op.name == "fused":
            made, nest = nest_calls(op, _in_place(op, self.slot_of))
            more = [PlannedCall(c, op, why="adds up partial results") for c in made[1:]]
            return [PlannedCall(made[0], op, nest, faults=checking_ops(op)), *more]
        if op in self.registers:
            call, copied = scalar_loop_call(op)
            pairs = [(op.operands[k], op.results[k]) for k in copied]
            copies = [_copy_of(a, b) for a, b in pairs if self.slot_of(a) != self.slot_of(b)]
            return [*copies, call]
        if op.name == "cond":
            then, orelse = (self.block(region, region) for region in op.regions)
            return [Branch(op, op.operands[0], then, orelse)]
        if op.name in ("while", "scan"):
            return self.loop(op)
        calls = _lower(op, self.stage)
        return [PlannedCall(call, op) for call in calls if self.is_needed(op, call, calls)]

    def loop(self, op: Operation) -> Sequence[Node]:
        limit = int_attr(op.attrs, "limit" if op.name == "while" else "length")
        if limit == 0:
            return ()
        *tests, body = op.regions
        nodes = [self.block(region, region) for region in (*tests, body)]
        if not tests:
            return [Loop(op, limit, (), None, nodes[0])]
        return [Loop(op, limit, nodes[0], tests[0].results[0], nodes[1])]

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


def _copy_of(source: Value, target: Value) -> PlannedCall:
    assert isinstance(source.type, TensorType)
    why = "the first value of a carry that a loop changes in place"
    return copy_call(Address(source), Address(target), source.type.nbytes, why)


def copy_call(source: Arg, target: Arg, nbytes: int, why: str) -> PlannedCall:
    """A byte copy from one buffer to another."""
    kernel = Kernel("copy-bytes-3", "copy", _emit_copy)
    pages = -(-nbytes // 4096)
    chunk = split(pages, 2 * 4096 * NS_PER_BYTE_STREAMED)
    return PlannedCall(KernelCall(kernel, (target, source, nbytes), pages, chunk), None, why=why)


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
