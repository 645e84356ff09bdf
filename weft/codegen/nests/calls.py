"""Kernel calls of `fused` ops: plain nests and row kernels, with run-time extents.

Arguments of a plain nest (all int64; one noalias pointer per buffer): one address per output (of
folds with partial results, the scratch memory), one per load from a buffer (operands in place use
the output's), then the extents, the cut (`writer.Cut`: outer, inner, inner_blocks, elements of one
partial result), per fold the byte offset of its partial results, and the run-time strides of loads
and stores in order, followed by stride and size of each pick; for "index" loads their offset and
strides.

Arguments of a row kernel (all int64): per output its address, or that of the scratch memory of its
partial results; per load from a buffer its address (operands in place use the output's); the
threads' scratch, its bytes per thread, and per kept node its offset there; the status word if an
index is checked; the extents; rows (blocks of columns) and how many of them are a unit; then per
walk (loads that are no operand in place, outputs) its run-time strides, then stride and size of
each pick; for "index" loads offset and strides; per total the byte offset of its partial results.

A unit of a row kernel is one row, or one block of columns (`RowNest.by_columns`), unless all rows
are folded into totals; then it is a fixed number of those: each unit has partial results of its
own, and further calls add them up (`folds.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    KernelCall,
    Pool,
    Scratch,
    Status,
    WorkerScratch,
    cut_call,
    worker_stride,
)
from weft.codegen.llvm.emitter import I64, Emitter, memory_type, width_bits
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import narrower
from weft.codegen.nests.folds import MOST_PARTIALS, combine_call, lay_out, running_dtype
from weft.codegen.nests.nest import Access, Nest, Store, build_nest, op_nanoseconds
from weft.codegen.nests.row_vectors import ColumnWriter, VectorRowWriter, is_in_vectors
from weft.codegen.nests.row_writer import RowWriter, Walk
from weft.codegen.nests.rows import Node, Output, RowNest, Schedule, build_rows, schedule
from weft.codegen.nests.writer import (
    NestWriter,
    PickWalk,
    cut_nest,
    fold_count,
    output_of,
    pick_walks,
    store_dtype,
    unit_nanoseconds,
)
from weft.ir.analysis.index_maps import row_space_of
from weft.ir.cost.rates import PASS_NS, ROW_NS, streamed
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Operation
from weft.ir.spec import ConstArray

#: A block of rows whose results are added up has at least so many rows.
LEAST_ROWS = 8


def rows_calls(
    nest: RowNest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[KernelCall]:
    """The kernel's call, and one for each output that adds up partial results."""
    plan = schedule(nest)
    blocks, block = _row_blocks(nest)
    folds = [(o.total or "", o.dtype, _row_count(nest, o), outputs[o.output]) for o in nest.totals]
    partials, nbytes = lay_out(folds, blocks)
    scratch = Scratch(nbytes)
    args: list[Arg] = [scratch if o.total else outputs[o.output] for o in nest.outputs]
    for _, node in _buffers(nest):
        if isinstance(node.leaf, ConstArray):
            args.append(Pool(node.leaf))
        else:
            assert isinstance(node.leaf, int)
            held = operands[node.leaf]
            size = as_dtype(node.dtype).itemsize
            args.append(Address(held.value, held.offset + node.offset * size))
    args += _scratch_arguments(nest, plan)
    args += [Status()] if _has_checks(nest) else []
    args += [*nest.extents, nest.blocks, block]
    for walk in _row_walks(nest):
        if isinstance(walk, Node) and walk.leaf == "index":
            args += [walk.offset, *walk.strides]
        else:
            args += [s for s in walk.strides if s not in (0, 1)]
            args += [n for _, *sizes in _row_picks(walk) for n in sizes]
    args += [p.offset for p in partials]
    loops = not is_in_vectors(nest, plan)  # what is in vectors needs few of LLVM's passes
    kernel = Kernel(nest.key, nest.name, lambda e: _emit_rows(e, nest), loops)
    unit = block * nest.at_once
    call = cut_call(kernel, tuple(args), blocks, _row_nanoseconds(nest, plan) * unit)
    return [call, *(combine_call(p, scratch) for p in partials)]


def _row_blocks(nest: RowNest) -> tuple[int, int]:
    """(units, rows or blocks of columns in each): from the extents alone, or the bits would
    depend on the machine.
    """
    if not nest.totals:
        return nest.blocks, 1
    block = max(-(-nest.blocks // MOST_PARTIALS), 1 if nest.by_columns else LEAST_ROWS)
    return -(-nest.blocks // block), block


def _row_count(nest: RowNest, output: Output) -> int:
    """Elements of one partial result: a row's, or one number."""
    return nest.row_elements if nest.moves_in_row(output.strides) else 1


def _row_nanoseconds(nest: RowNest, plan: Schedule) -> float:
    work, nbytes = 0.0, 0.0
    for k, step in enumerate(plan.passes):
        nodes = [nest.nodes[n] for n in step.compute if n not in step.reload]
        computed = sum(op_nanoseconds(n.name, n.dtype) for n in nodes if n.kind != "load")
        work += PASS_NS + computed * narrower()
        moved = [n.dtype for n in nodes if n.kind == "load"] if k == 0 else []
        nbytes += sum(map(width_bits, [*moved, *(o.dtype for o in step.stores)])) / 8
    through = streamed(nbytes * nest.row_elements * nest.rows) / max(nest.rows, 1)
    return max(work * nest.row_elements, through) + ROW_NS * len(plan.passes)


def _scratch_arguments(nest: RowNest, plan: Schedule) -> list[Arg]:
    offsets, nbytes = [], 0
    for node in _in_scratch(plan):
        offsets.append(nbytes)
        size = _kept_bytes(nest.nodes[node].result_dtype)
        nbytes += (nest.row_elements * nest.at_once * size + 63) // 64 * 64
    return [WorkerScratch(nbytes), worker_stride(nbytes), *offsets] if offsets else []


def _has_checks(nest: RowNest) -> bool:
    return any(n.kind == "check" for n in nest.nodes)


def _in_scratch(plan: Schedule) -> list[int]:
    return [n for n, held in plan.kept.items() if held is None]


def _kept_dtype(dtype: str) -> str:
    return running_dtype("", dtype, False)


def _kept_bytes(dtype: str) -> int:
    return as_dtype(_kept_dtype(dtype)).itemsize


def _shared_output(nest: RowNest, node: Node) -> Output | None:
    """The output in whose buffer and place the load's operand is."""
    if not isinstance(node.leaf, int):
        return None
    output = dict(nest.in_place).get(node.leaf)
    return next((o for o in nest.outputs if o.output == output and o.total is None), None)


def _buffers(nest: RowNest) -> list[tuple[int, Node]]:
    """Loads that have a pointer of their own."""
    return [
        (n, node)
        for n, node in enumerate(nest.nodes)
        if node.kind == "load" and node.leaf != "index" and _shared_output(nest, node) is None
    ]


def _row_walks(nest: RowNest) -> list[Node | Output]:
    loads = [n for n in nest.nodes if n.kind == "load" and _shared_output(nest, n) is None]
    return [*loads, *nest.outputs]


def _row_picks(walk: Node | Output) -> tuple[tuple[int, int, int], ...]:
    return walk.picks if isinstance(walk, Node) else ()


@dataclass(slots=True)
class _Reader:
    """Takes the scalar arguments in order."""

    numbers: list[ir.Value]
    at: int = 0

    def next(self) -> ir.Value:
        self.at += 1
        return self.numbers[self.at - 1]


def _emit_rows(e: Emitter, nest: RowNest) -> None:
    plan = schedule(nest)
    dtypes = [
        running_dtype(o.total, o.dtype, _is_one(nest, o)) if o.total else o.dtype
        for o in nest.outputs
    ]
    loads = _buffers(nest)
    position = len(dtypes) + len(loads)
    b = e.builder
    in_scratch = _in_scratch(plan)
    pointers = [e.pointer_argument(k, d) for k, d in enumerate(dtypes)]
    pointers += [e.pointer_argument(len(dtypes) + k, n.dtype) for k, (_, n) in enumerate(loads)]
    if in_scratch:
        mine = b.add(e.argument(position), b.mul(e.worker, e.argument(position + 1)))
        for k, node in enumerate(in_scratch):
            place = b.add(mine, e.argument(position + 2 + k))
            kind = memory_type(_kept_dtype(nest.nodes[node].result_dtype))
            pointers.append(b.inttoptr(place, kind.as_pointer()))
        position += 2 + len(in_scratch)
    if _has_checks(nest):
        pointers.append(e.pointer_argument(position, "i64"))
        position += 1
    count = len(nest.extents) + 2
    for walk in _row_walks(nest):
        index = isinstance(walk, Node) and walk.leaf == "index"
        moving = sum(s not in (0, 1) for s in walk.strides) + 2 * len(_row_picks(walk))
        count += 1 + len(walk.strides) if index else moving
    numbers = [e.argument(position + k) for k in range(count)]
    # each total starts at its own part of the scratch memory
    for k, o in enumerate(nest.totals):
        at = nest.outputs.index(o)
        raw = b.add(b.ptrtoint(pointers[at], ir.IntType(64)), e.argument(position + count + k))
        pointers[at] = b.inttoptr(raw, pointers[at].type)
    scalars = [*numbers, e.lo, e.hi]
    with e.loop_function("rows", pointers, scalars) as (inner, buffers, values):
        _write(inner, nest, plan, buffers, values)


def _is_one(nest: RowNest, output: Output) -> bool:
    return not nest.moves_in_row(output.strides)


def _write(
    e: Emitter, nest: RowNest, plan: Schedule, buffers: list[ir.Value], values: list[ir.Value]
) -> None:
    numbers = _Reader(values[:-2])
    extents = [numbers.next() for _ in nest.extents]
    rows, block = numbers.next(), numbers.next()

    def strides(of: tuple[int, ...]) -> list[ir.Value | None]:
        return [None if s == 0 else e.index(1) if s == 1 else numbers.next() for s in of]

    def picks(of: Node) -> list[PickWalk]:
        held = [nest.nodes[k] for k, _, _ in of.picks]
        return pick_walks(of.picks, [(at.dtype, at.strides) for at in held], numbers.next)

    outputs = buffers[: len(nest.outputs)]
    buffer = iter(buffers[len(nest.outputs) :])
    loads: dict[int, Walk | Output] = {}
    for n, node in enumerate(nest.nodes):
        if node.kind != "load":
            continue
        shared = _shared_output(nest, node)
        if shared is not None:
            assert node.strides == shared.strides
            loads[n] = shared
        elif node.leaf == "index":
            loads[n] = Walk(numbers.next(), [numbers.next() for _ in node.strides])
        else:
            loads[n] = Walk(next(buffer), strides(node.strides), picks(node))
    stores = {o: Walk(p, strides(o.strides)) for o, p in zip(nest.outputs, outputs, strict=True)}
    scratch = {n: next(buffer) for n in _in_scratch(plan)}
    status = next(buffer) if _has_checks(nest) else None
    kind = ColumnWriter if nest.by_columns else RowWriter
    if is_in_vectors(nest, plan):
        kind = VectorRowWriter
    writer = kind(e, nest, plan, extents, loads, stores, scratch, status)
    writer.write(rows, block, values[-2], values[-1])


def nest_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> tuple[list[KernelCall], Nest | RowNest]:
    """The kernel calls for a `fused` op, and the nest for people to read."""
    outputs, operands = [Address(v) for v in op.results], [Address(v) for v in op.operands]
    row_space = row_space_of(op.regions[0])
    if row_space is not None:
        rows = build_rows(op, row_space, in_place)
        return rows_calls(rows, outputs, operands), rows
    nest = build_nest(op, in_place)
    return plain_calls(nest, outputs, operands), nest


def call_nest(nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]) -> KernelCall:
    """The call of a nest without reductions on these buffers."""
    (call,) = plain_calls(nest, outputs, operands)
    return call


def plain_calls(
    nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[KernelCall]:
    """The call of a nest on these buffers, and one for each fold that has partial results."""
    cut = cut_nest(nest, list(outputs))
    args: list[Arg] = [
        cut.scratch if s.reduction and cut.scratch else outputs[s.output] for s in nest.stores
    ]
    for load in nest.loads:
        if isinstance(load.leaf, ConstArray):
            args.append(Pool(load.leaf))
        elif isinstance(load.leaf, int) and output_of(nest, load) is None:
            held = operands[load.leaf]
            args.append(
                Address(held.value, held.offset + load.offset * as_dtype(load.dtype).itemsize)
            )
    args += [*nest.extents, cut.outer, cut.inner, cut.inner_blocks, fold_count(nest)]
    folds = [s for s in nest.stores if s.reduction]
    args += [p.offset for p in cut.partials] or [0] * len(folds)
    for walk in _nest_walks(nest):
        if _is_index(walk):
            assert isinstance(walk, Access)
            args += [walk.offset, *walk.strides]
        else:
            args += [s for s in walk.strides if s not in (0, 1)]
            args += [n for _, *sizes in _nest_picks(walk) for n in sizes]
    kernel = Kernel(nest.key, nest.name, lambda e: _emit_nest(e, nest))
    call = cut_call(kernel, tuple(args), cut.units, unit_nanoseconds(nest, cut))
    return [call, *cut.combine_calls()]


def _nest_walks(nest: Nest) -> list[Access | Store]:
    """What moves through the loops by itself: an operand in place moves with its output."""
    apart = [load for load in nest.loads if output_of(nest, load) is None]
    return [*apart, *nest.stores]


def _nest_picks(walk: Access | Store) -> tuple[tuple[int, int, int], ...]:
    return walk.picks if isinstance(walk, Access) else ()


def _is_index(walk: Access | Store) -> bool:
    return isinstance(walk, Access) and walk.leaf == "index"


def _emit_nest(e: Emitter, nest: Nest) -> None:
    pointers = [e.pointer_argument(k, store_dtype(nest, s)) for k, s in enumerate(nest.stores)]
    for load in nest.loads:
        if load.leaf != "index" and output_of(nest, load) is None:
            pointers.append(e.pointer_argument(len(pointers), load.dtype))
    position = len(pointers)
    fixed = len(nest.extents) + 4
    scalars = [e.argument(position + k) for k in range(fixed)]
    position += fixed
    for k, store in enumerate(nest.stores):
        if store.reduction:
            raw = e.builder.add(e.builder.ptrtoint(pointers[k], I64), e.argument(position))
            pointers[k] = e.builder.inttoptr(raw, pointers[k].type)
            position += 1
    count = 0
    for walk in _nest_walks(nest):
        moving = sum(s not in (0, 1) for s in walk.strides)
        count += 1 + len(walk.strides) if _is_index(walk) else moving + 2 * len(_nest_picks(walk))
    scalars += [e.argument(position + k) for k in range(count)]
    with e.loop_function("nest", pointers, [*scalars, e.lo, e.hi]) as (inner, buffers, numbers):
        NestWriter(inner, nest, buffers, numbers[:-2]).write(numbers[-2], numbers[-1])
