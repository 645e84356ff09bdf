"""Plain loop nests as kernel calls: run-time extents, one noalias pointer per buffer.

Argument layout of the kernel (all int64): one address per output (of folds with partial results,
the scratch memory), one per load from a buffer (operands in place use the output's), then the
extents, the cut (`nest_cut.Cut`: outer, inner, inner_blocks, elements of one partial result), per
fold the byte offset of its partial results, and the run-time strides of loads and stores in order,
followed by stride and size of each pick; for "index" loads their offset and strides.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Arg, KernelCall, Pool, cut_call
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.nests.cut import cut_nest, fold_count, unit_nanoseconds
from weft.codegen.nests.nest import Access, Nest, Store, build_nest
from weft.codegen.nests.rows import RowNest, build_rows
from weft.codegen.nests.rows_emit import rows_calls
from weft.codegen.nests.writer import NestWriter, output_of, store_dtype
from weft.ir.analysis.index_maps import frame_of
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Operation
from weft.ir.spec import ConstArray


def nest_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> tuple[list[KernelCall], Nest | RowNest]:
    """The kernel calls for a `fused` op, and the nest for people to read."""
    outputs, operands = [Address(v) for v in op.results], [Address(v) for v in op.operands]
    frame = frame_of(op.regions[0])
    if frame is not None:
        rows = build_rows(op, frame, in_place)
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
    for walk in _walks(nest):
        if _is_index(walk):
            assert isinstance(walk, Access)
            args += [walk.offset, *walk.strides]
        else:
            args += [s for s in walk.strides if s not in (0, 1)]
            args += [n for _, *sizes in _picks(walk) for n in sizes]
    kernel = Kernel(nest.key, nest.name, lambda e: _emit(e, nest))
    call = cut_call(kernel, tuple(args), cut.units, unit_nanoseconds(nest, cut))
    return [call, *cut.combine_calls()]


def _walks(nest: Nest) -> list[Access | Store]:
    """What moves through the loops by itself: an operand in place moves with its output."""
    apart = [load for load in nest.loads if output_of(nest, load) is None]
    return [*apart, *nest.stores]


def _picks(walk: Access | Store) -> tuple[tuple[int, int, int], ...]:
    return walk.picks if isinstance(walk, Access) else ()


def _is_index(walk: Access | Store) -> bool:
    return isinstance(walk, Access) and walk.leaf == "index"


def _emit(e: Emitter, nest: Nest) -> None:
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
    for walk in _walks(nest):
        moving = sum(s not in (0, 1) for s in walk.strides)
        count += 1 + len(walk.strides) if _is_index(walk) else moving + 2 * len(_picks(walk))
    scalars += [e.argument(position + k) for k in range(count)]
    with e.loop_function("nest", pointers, [*scalars, e.lo, e.hi]) as (inner, buffers, numbers):
        NestWriter(inner, nest, buffers, numbers[:-2]).write(numbers[-2], numbers[-1])
