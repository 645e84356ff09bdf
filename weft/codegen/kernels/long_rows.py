"""Cumulative ops and arg-reductions of few long rows: fixed blocks of a row are units of their own.

Cumulative: every block is scanned by itself, then the ends of the blocks are combined in order,
then each block's elements with what comes before it (Blelloch, Prefix Sums and Their Applications,
1990). The blocks depend on the extents alone, and so do the bits. A block's last element is exactly
what the next one goes on from: sums of numbers that are not negative never fall.
Positions: the winner of each block, then the first winner of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, cut_call
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import COMPLEXES, HALVES, INTEGERS, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels.scan import (
    COMBINE,
    NS_DEAR,
    NS_IN_ROW,
    ROWS,
    axis_sizes,
    lower_arg_reduction,
    lower_cumulative,
    search,
    search_by_blocks,
    wins,
)
from weft.codegen.kernels.shape import tensor
from weft.codegen.pool.words import repeat_while
from weft.codegen.scalar.scalar import emit_scalar
from weft.ir.cost import streamed
from weft.ir.graph import Operation

#: Elements of a block.
SCANNED, SEARCHED = 4096, 1 << 15
#: An element of a block that is searched.
NS_SEARCHED = 0.12
#: Rows are cut into blocks if there are fewer, and they have so many blocks at least.
FEW_ROWS, LEAST_BLOCKS = 16, 4


def in_blocks(op: Operation, sizes: tuple[int, int, int]) -> bool:
    """Whether the rows (outer, n, inner) of `op` are few and long, and may be cut into blocks.

    Not products of floats: a part of one may overflow, or vanish, where the whole does not. Not
    sums of 16-bit floats, whose blocks' ends are rounded.
    """
    outer, n, inner = sizes
    dtype = tensor(op.operands[0]).dtype.short
    if op.name == "cumulative_prod" and dtype not in INTEGERS:
        return False
    if op.name in ("cumulative_sum", "cumulative_logsumexp") and dtype in HALVES:
        return False
    block = SCANNED if op.name in COMBINE else SEARCHED
    return inner == 1 and 0 < outer < FEW_ROWS and n >= LEAST_BLOCKS * block


def cumulative_calls(op: Operation) -> list[KernelCall]:
    """A cumulative op, its long rows in blocks."""
    sizes = axis_sizes(op)
    return _long_cumulative(op, sizes) if in_blocks(op, sizes) else lower_cumulative(op)


def position_calls(op: Operation) -> list[KernelCall]:
    """argmax or argmin, its long rows in blocks."""
    sizes = axis_sizes(op)
    return _long_positions(op, sizes) if in_blocks(op, sizes) else lower_arg_reduction(op)


def _long_cumulative(op: Operation, sizes: tuple[int, int, int]) -> list[KernelCall]:
    """args of all three: result, operand, n, reverse, block, blocks, scratch (where each block goes
    on from). Units: blocks of all rows; of the second, rows."""
    outer, n, _ = sizes
    type_ = tensor(op.result).dtype
    dtype, blocks = type_.short, -(-n // SCANNED)
    scratch = Scratch(outer * blocks * width_bits(dtype) // 8)
    args = (
        Address(op.result), Address(op.operands[0]), n, int(bool(op.attrs["reverse"])), SCANNED,
        blocks, scratch,
    )  # fmt: skip
    units, bytes_each = outer * blocks, SCANNED * type_.itemsize
    in_row, per_byte = NS_DEAR.get(op.name, (NS_IN_ROW, 0.0))
    again = streamed(2.0 * units * bytes_each) / units + per_byte * bytes_each
    calls = []
    for part, emit, count, price in (
        ("blocks", _emit_blocks, units, in_row * SCANNED),
        ("ends", _emit_ends, outer, 0.0),
        ("rest", _emit_rest, units, again),
    ):
        kernel = Kernel(
            f"{op.name}-{part}-1-{dtype}",
            f"{op.name}_{part}_{dtype}",
            lambda e, emit=emit: emit(e, op.name, dtype),  # type: ignore[misc]
        )
        calls.append(cut_call(kernel, args, count, price))
    return calls


class _Blocks:
    """The blocks of the rows of `out`, in the order of the scan."""

    def __init__(
        self, f: Emitter, n: ir.Value, reverse: ir.Value, block: ir.Value, count: ir.Value
    ) -> None:
        self.f, self.n, self.block, self.count = f, n, block, count  # count: blocks of a row
        self.backward = f.builder.icmp_signed("!=", reverse, f.index(0))

    def place(self, row: ir.Value, j: ir.Value) -> ir.Value:
        """Where element j of the scan over a row is."""
        b = self.f.builder
        from_end = b.sub(b.sub(self.n, self.f.index(1)), j)
        return b.add(b.mul(row, self.n), b.select(self.backward, from_end, j))

    def bounds(self, number: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The elements j of block `number` of a row."""
        b = self.f.builder
        start = b.mul(number, self.block)
        stop = b.add(start, self.block)
        return start, b.select(b.icmp_signed("<", stop, self.n), stop, self.n)


@contextmanager
def _scan_function(
    e: Emitter, name: str, dtype: str, other: int
) -> Iterator[tuple[Emitter, list[ir.Value], _Blocks, list[ir.Value]]]:
    """A loop function of `_long_cumulative`'s kernels: (emitter inside, the result and the array at
    argument `other`, the blocks, [lo, hi]).
    """
    pointers = [e.pointer_argument(0, dtype), e.pointer_argument(other, dtype)]
    scalars = [*(e.argument(2 + k) for k in range(4)), e.lo, e.hi]
    with e.loop_function(name, pointers, scalars) as (f, arrays, values):
        yield f, arrays, _Blocks(f, *values[:4]), values[4:]


def _emit_blocks(e: Emitter, op: str, dtype: str) -> None:
    with _scan_function(e, "scan", dtype, 1) as (f, (out, x), walk, (lo, hi)):
        b, n, block, blocks = f.builder, walk.n, walk.block, walk.count
        step = b.select(walk.backward, f.index(-1), f.index(1))
        unit = f.alloca(lo.type)
        held = [f.alloca(load_element(f, x, dtype).type) for _ in range(ROWS)]
        b.store(lo, unit)

        def scan(count: int) -> None:
            first = b.load(unit)
            row = b.udiv(first, blocks)
            start, stop = walk.bounds(b.sub(first, b.mul(row, blocks)))
            starts = [walk.place(row, b.add(start, b.mul(block, f.index(k)))) for k in range(count)]
            for k, at in enumerate(starts):
                b.store(load_element(f, f.at(x, at), dtype), held[k])
                store_element(f, b.load(held[k]), f.at(out, at), dtype)
            with f.for_range(f.index(1), b.sub(stop, start)) as j:
                for k in range(count):
                    at = b.add(starts[k], b.mul(j, step))
                    args = [b.load(held[k]), load_element(f, f.at(x, at), dtype)]
                    b.store(emit_scalar(f, COMBINE[op], dtype, args, {}), held[k])
                    store_element(f, b.load(held[k]), f.at(out, at), dtype)
            b.store(b.add(first, f.index(count)), unit)

        with repeat_while(f, lambda: b.icmp_signed("<", b.load(unit), hi)):
            after = b.add(b.load(unit), f.index(ROWS))
            whole = b.udiv(n, block)  # blocks of a row that are not shorter
            fits = b.icmp_signed("<=", b.add(b.urem(b.load(unit), blocks), f.index(ROWS)), whole)
            together = b.and_(fits, b.icmp_signed("<=", after, hi))
            with b.if_else(together, likely=True) as (some, one):
                with some:
                    scan(ROWS)
                with one:
                    scan(1)


def _emit_ends(e: Emitter, op: str, dtype: str) -> None:
    with _scan_function(e, "ends", dtype, 6) as (f, (out, before), walk, (lo, hi)):
        b = f.builder
        held = f.alloca(load_element(f, out, dtype).type)

        def end(row: ir.Value, number: ir.Value) -> ir.Value:
            _, stop = walk.bounds(number)
            return load_element(f, f.at(out, walk.place(row, b.sub(stop, f.index(1)))), dtype)

        with f.for_range(lo, hi) as row:
            b.store(end(row, f.index(0)), held)
            with f.for_range(f.index(1), walk.count) as k:
                at = f.at(before, b.add(b.mul(row, walk.count), k))
                store_element(f, b.load(held), at, dtype)
                args = [b.load(held), end(row, k)]
                b.store(emit_scalar(f, COMBINE[op], dtype, args, {}), held)


def _emit_rest(e: Emitter, op: str, dtype: str) -> None:
    with _scan_function(e, "rest", dtype, 6) as (f, (out, before), walk, (lo, hi)):
        b = f.builder
        with f.for_range(lo, hi) as unit:
            row = b.udiv(unit, walk.count)
            number = b.sub(unit, b.mul(row, walk.count))
            start, stop = walk.bounds(number)
            first = b.select(walk.backward, b.sub(stop, f.index(1)), start)
            base = f.at(out, walk.place(row, first))
            with b.if_then(b.icmp_signed(">", number, f.index(0))):
                held = load_element(f, f.at(before, unit), dtype)
                with f.for_range(f.index(0), b.sub(stop, start)) as j:
                    at = f.at(base, j)
                    value = emit_scalar(
                        f, COMBINE[op], dtype, [held, load_element(f, at, dtype)], {}
                    )
                    store_element(f, value, at, dtype)


def _long_positions(op: Operation, sizes: tuple[int, int, int]) -> list[KernelCall]:
    """argmax, argmin; args of both: result, operand, n, block, blocks, scratch (a position for each
    block). Units: blocks of all rows; of the second, rows."""
    outer, n, _ = sizes
    dtype, blocks = tensor(op.operands[0]).dtype.short, -(-n // SEARCHED)
    scratch = Scratch(outer * blocks * 8)
    args = (Address(op.result), Address(op.operands[0]), n, SEARCHED, blocks, scratch)
    units = outer * blocks
    kernels = [
        Kernel(
            f"{op.name}-{part}-1-{dtype}",
            f"{op.name}_{part}_{dtype}",
            lambda e, emit=emit: emit(e, op.name, dtype),  # type: ignore[misc]
        )
        for part, emit in (("blocks", _emit_winners), ("first", _emit_first_winner))
    ]
    each = NS_SEARCHED * SEARCHED
    return [cut_call(kernels[0], args, units, each), KernelCall(kernels[1], args, outer)]


def _emit_winners(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(5, "i64"), e.pointer_argument(1, dtype)]
    scalars = [*(e.argument(2 + k) for k in range(3)), e.lo, e.hi]
    with (
        e.loop_function("winners", pointers, scalars) as (
            f,
            (places, x),
            (n, block, blocks, lo, hi),
        ),
        f.for_range(lo, hi) as unit,
    ):
        b = f.builder
        row = b.udiv(unit, blocks)
        walk = _Blocks(f, n, f.index(0), block, blocks)
        start, stop = walk.bounds(b.sub(unit, b.mul(row, blocks)))
        base, count = f.at(x, b.add(b.mul(row, n), start)), b.sub(stop, start)
        if dtype in COMPLEXES or dtype == "bool":
            found = search(f, op, dtype, base, f.index(0), count)
        else:
            found = search_by_blocks(f, op, dtype, base, count)
        b.store(b.add(start, found), f.at(places, unit))


def _emit_first_winner(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(k, d) for k, d in ((0, "i64"), (1, dtype), (5, "i64"))]
    scalars = [e.argument(2), e.argument(4), e.lo, e.hi]
    with (
        e.loop_function("first", pointers, scalars) as (f, (out, x, places), (n, blocks, lo, hi)),
        f.for_range(lo, hi) as row,
    ):
        b = f.builder
        base, mine = f.at(x, b.mul(row, n)), f.at(places, b.mul(row, blocks))
        b.store(b.load(mine), f.at(out, row))
        with f.for_range(f.index(1), blocks) as k:
            at, held = b.load(f.at(mine, k)), b.load(f.at(out, row))
            values = [load_element(f, f.at(base, place), dtype) for place in (at, held)]
            better = wins(f, op, dtype, *values)
            b.store(b.select(better, at, held), f.at(out, row))
