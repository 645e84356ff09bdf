"""Cumulative ops and arg-reductions: one walk along an axis, the data seen as (outer, n, inner).

The units are the columns (outer, inner), each walked by one thread. Where the axis is the last one,
a few rows are walked side by side (what one row does next waits for what it did last); elsewhere
a block of neighbouring columns is, with one accumulator for each, so that loops vectorise.

Of few long rows, fixed blocks of a row are units of their own. Cumulative: every block is scanned
by itself, then the ends of the blocks are combined in order, then each block's elements with what
comes before it (Blelloch, Prefix Sums and Their Applications, 1990). The blocks depend on the
extents alone, and so do the bits. A block's last element is exactly what the next one goes on from:
sums of numbers that are not negative never fall. Positions: the winner of each block, then the
first winner of those."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, cut_call
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.llvm.emitter import (
    COMPLEXES,
    HALVES,
    I64,
    INTEGERS,
    Emitter,
    register_type,
    unit_parts,
    width_bits,
)
from weft.codegen.llvm.jit import Kernel
from weft.codegen.nests.folds import Held
from weft.codegen.pool import repeat_while
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.ir.cost.rates import NS_DEAR, NS_IN_ROW, NS_SEARCHED, scanned, streamed
from weft.ir.cost.thresholds import FEW_ROWS, LEAST_BLOCKS
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

#: Rows that are walked side by side, and columns.
ROWS, COLUMNS = 4, 64
COMBINE = {
    "cumulative_sum": "add",
    "cumulative_prod": "multiply",
    "cumulative_max": "maximum",
    "cumulative_min": "minimum",
    "cumulative_logsumexp": "logaddexp",
}


def axis_sizes(op: Operation) -> tuple[int, int, int]:
    """(outer, n, inner) of the first operand around the op's axis."""
    shape, axis = tensor(op.operands[0]).static_shape, op.attrs["axis"]
    assert isinstance(axis, int)
    outer = math.prod(shape[:axis])
    return outer, shape[axis], math.prod(shape[axis + 1 :])


def _cut(op: str, sizes: tuple[int, int, int], itemsize: int) -> tuple[int, float, int]:
    """For `cut_call`: units, what one takes, how many stay together: blocks of rows or columns."""
    outer, n, inner = sizes
    each = scanned(op, inner, itemsize)
    block = ROWS if inner == 1 else max(1, min(inner, COLUMNS))
    return outer * inner, n * each, block


def lower_cumulative(op: Operation) -> list[KernelCall]:
    """args: result, operand, n, inner, reverse."""
    type_, sizes = tensor(op.result).dtype, axis_sizes(op)
    dtype = type_.short
    emit = _emit_row_scan if sizes[2] == 1 else _emit_column_scan
    kind = "rows" if sizes[2] == 1 else "columns"
    kernel = Kernel(
        f"{op.name}-2-{kind}-{dtype}", f"{op.name}_{dtype}", lambda e: emit(e, op.name, dtype)
    )
    args = (Address(op.result), Address(op.operands[0]), *sizes[1:], int(bool(op.attrs["reverse"])))
    return [cut_call(kernel, args, *_cut(op.name, sizes, type_.itemsize))]


def lower_arg_reduction(op: Operation) -> list[KernelCall]:
    """args: result, operand, n, inner."""
    type_, sizes = tensor(op.operands[0]).dtype, axis_sizes(op)
    dtype = type_.short
    emit = _emit_row_position if sizes[2] == 1 else _emit_column_position
    kind = "rows" if sizes[2] == 1 else "columns"
    kernel = Kernel(
        f"{op.name}-2-{kind}-{dtype}", f"{op.name}_{dtype}", lambda e: emit(e, op.name, dtype)
    )
    args = (Address(op.result), Address(op.operands[0]), *sizes[1:])
    return [cut_call(kernel, args, *_cut(op.name, sizes, type_.itemsize))]


# ------------------------------------------------------------------------------------- cumulative
def _emit_row_scan(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, dtype), e.pointer_argument(1, dtype)]
    scalars = [e.argument(2), e.argument(4), e.lo, e.hi]
    with e.loop_function("scan", pointers, scalars) as (f, (out, x), (n, reverse, lo, hi)):
        b = f.builder
        last = b.sub(n, f.index(1))
        backward = b.icmp_signed("!=", reverse, f.index(0))
        first = b.select(backward, last, f.index(0))
        step = b.select(backward, f.index(-1), f.index(1))
        held = [f.alloca(register_type(dtype)) for _ in range(ROWS)]

        def walk(row: ir.Value, count: int) -> None:
            starts = [b.add(b.mul(b.add(row, f.index(k)), n), first) for k in range(count)]

            def each(j: ir.Value, combine: bool) -> None:
                for k in range(count):
                    at = b.add(starts[k], b.mul(j, step))
                    value = load_element(f, f.at(x, at), dtype)
                    if combine:
                        args = [b.load(held[k]), value]
                        value = emit_scalar(f, COMBINE[op], dtype, args, {})
                    b.store(value, held[k])
                    store_element(f, value, f.at(out, at), dtype)

            with b.if_then(b.icmp_signed(">", n, f.index(0))):
                each(f.index(0), False)
            with f.for_range(f.index(1), n) as j:
                each(j, True)

        _in_groups(f, lo, hi, walk)


def _in_groups(
    f: Emitter, lo: ir.Value, hi: ir.Value, walk: Callable[[ir.Value, int], None]
) -> None:
    """walk(row, ROWS) for whole groups of rows in [lo, hi), walk(row, 1) for the rest."""
    b = f.builder
    whole = b.add(lo, b.and_(b.sub(hi, lo), f.index(-ROWS)))
    with f.for_range(lo, whole, f.index(ROWS)) as row:
        walk(row, ROWS)
    with f.for_range(whole, hi) as row:
        walk(row, 1)


@dataclass(frozen=True)
class _Block:
    """Columns [first, first + width) of one outer index; `held` has a cell for each."""

    f: Emitter
    held: ir.Value
    base: ir.Value
    width: ir.Value
    inner: ir.Value

    def cell(self, column: ir.Value) -> ir.Value:
        return self.f.builder.gep(self.held, [self.f.index(0), column])

    def at(self, j: ir.Value, column: ir.Value) -> ir.Value:
        b = self.f.builder
        return b.add(b.add(self.base, b.mul(j, self.inner)), column)


def _emit_column_scan(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, dtype), e.pointer_argument(1, dtype)]
    scalars = [*(e.argument(2 + k) for k in range(3)), e.lo, e.hi]
    with e.loop_function("scan", pointers, scalars) as (f, (out, x), (n, inner, reverse, lo, hi)):
        b = f.builder
        held = f.alloca(ir.ArrayType(register_type(dtype), COLUMNS))
        backward = b.icmp_signed("!=", reverse, f.index(0))

        def walk(block: _Block, _: ir.Value) -> None:
            def each(step: ir.Value, combine: bool) -> None:
                j = b.select(backward, b.sub(b.sub(n, f.index(1)), step), step)
                with f.for_range(f.index(0), block.width) as c:
                    at = block.at(j, c)
                    value = load_element(f, f.at(x, at), dtype)
                    if combine:
                        args = [f.freeze(b.load(block.cell(c))), value]
                        value = emit_scalar(f, COMBINE[op], dtype, args, {})
                    b.store(value, block.cell(c))
                    store_element(f, value, f.at(out, at), dtype)

            with b.if_then(b.icmp_signed(">", n, f.index(0))):
                each(f.index(0), False)
            with f.for_range(f.index(1), n) as step:
                each(step, True)

        _in_blocks(f, (lo, hi), n, inner, held, walk)


def _in_blocks(
    f: Emitter,
    units: tuple[ir.Value, ir.Value],
    n: ir.Value,
    inner: ir.Value,
    held: ir.Value,
    walk: Callable[[_Block, ir.Value], None],
) -> None:
    """walk(block, its first unit) for the columns of `units`, up to COLUMNS at a time."""
    b = f.builder
    with (
        unit_parts(f, *units, inner) as (o, first, last),
        f.for_range(first, last, f.index(COLUMNS)) as c,
    ):
        rest = b.sub(last, c)
        most = f.index(COLUMNS)
        width = b.select(b.icmp_signed("<", rest, most), rest, most)
        base = b.add(b.mul(b.mul(o, n), inner), c)
        walk(_Block(f, held, base, width, inner), b.add(b.mul(o, inner), c))


# -------------------------------------------------------------------------------------- positions
def wins(f: Emitter, op: str, dtype: str, value: ir.Value, held: ir.Value) -> ir.Value:
    """Whether `value` comes before `held`: the first NaN wins, as in NumPy."""
    b = f.builder
    before = emit_scalar(f, "greater" if op == "argmax" else "less", dtype, [value, held], {})
    if dtype.startswith(("f", "bf")):
        nan, held_nan = (emit_scalar(f, "isnan", dtype, [v], {}) for v in (value, held))
        before = b.and_(b.or_(before, nan), b.not_(held_nan))
    return before


def _emit_row_position(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, "i64"), e.pointer_argument(1, dtype)]
    with (
        e.loop_function("position", pointers, [e.argument(2), e.lo, e.hi]) as (
            f,
            (out, x),
            (n, lo, hi),
        ),
        f.for_range(lo, hi) as row,
    ):
        start = f.at(x, f.builder.mul(row, n))
        if dtype in COMPLEXES or dtype == "bool":
            found = search(f, op, dtype, start, f.index(0), n)
        else:
            found = search_by_blocks(f, op, dtype, start, n)
        f.builder.store(found, f.at(out, row))


def search(
    f: Emitter, op: str, dtype: str, x: ir.Value, start: ir.Value, stop: ir.Value
) -> ir.Value:
    """The position of the winner among x[start:stop], one element after another."""
    b = f.builder
    best, best_at = f.alloca(register_type(dtype)), f.alloca(I64)
    b.store(load_element(f, f.at(x, start), dtype), best)
    b.store(start, best_at)
    with f.for_range(b.add(start, f.index(1)), stop) as j:
        value, held = load_element(f, f.at(x, j), dtype), b.load(best)
        better = wins(f, op, dtype, value, held)
        b.store(b.select(better, value, held), best)
        b.store(b.select(better, j, b.load(best_at)), best_at)
    return b.load(best_at)


#: Elements whose extreme is found first (vectorised); only the winning block is searched.
BLOCK = 256


def search_by_blocks(f: Emitter, op: str, dtype: str, x: ir.Value, n: ir.Value) -> ir.Value:
    b = f.builder
    kind = register_type(dtype)
    best, best_start = f.alloca(kind), f.alloca(I64)
    extreme = Held(f, "max" if op == "argmax" else "min", dtype)
    b.store(load_element(f, x, dtype), best)
    b.store(f.index(0), best_start)
    with f.for_range(f.index(0), n, f.index(BLOCK)) as start:
        stop = _block_end(f, start, n)
        extreme.begin()
        with f.for_range(start, stop) as j:
            extreme.add(load_element(f, f.at(x, j), dtype))
        found = extreme.value()
        better = wins(f, op, dtype, found, b.load(best))
        b.store(b.select(better, found, b.load(best)), best)
        b.store(b.select(better, start, b.load(best_start)), best_start)
    return _first_equal(f, dtype, x, b.load(best_start), n, b.load(best))


def _first_equal(
    f: Emitter, dtype: str, x: ir.Value, start: ir.Value, n: ir.Value, wanted: ir.Value
) -> ir.Value:
    """The least j of the block from `start` on where x[j] is `wanted`, or NaN as it is."""
    b, found = f.builder, f.alloca(I64)
    b.store(n, found)
    with f.for_range(start, _block_end(f, start, n)) as j:
        value = load_element(f, f.at(x, j), dtype)
        same = emit_scalar(f, "equal", dtype, [value, wanted], {})
        if dtype.startswith(("f", "bf")):
            nan, wanted_nan = (emit_scalar(f, "isnan", dtype, [v], {}) for v in (value, wanted))
            same = b.or_(same, b.and_(nan, wanted_nan))
        here, least = b.select(same, j, n), b.load(found)
        b.store(b.select(b.icmp_signed("<", here, least), here, least), found)
    return b.load(found)


def _block_end(f: Emitter, start: ir.Value, n: ir.Value) -> ir.Value:
    stop = f.builder.add(start, f.index(BLOCK))
    return f.builder.select(f.builder.icmp_signed("<", stop, n), stop, n)


def _emit_column_position(e: Emitter, op: str, dtype: str) -> None:
    pointers = [e.pointer_argument(0, "i64"), e.pointer_argument(1, dtype)]
    scalars = [e.argument(2), e.argument(3), e.lo, e.hi]
    with e.loop_function("position", pointers, scalars) as (f, (out, x), (n, inner, lo, hi)):
        b = f.builder
        held = f.alloca(ir.ArrayType(register_type(dtype), COLUMNS))

        def walk(block: _Block, unit: ir.Value) -> None:
            with f.for_range(f.index(0), block.width) as c:
                b.store(load_element(f, f.at(x, block.at(f.index(0), c)), dtype), block.cell(c))
                b.store(f.index(0), f.at(out, b.add(unit, c)))
            with f.for_range(f.index(1), n) as j, f.for_range(f.index(0), block.width) as c:
                value = load_element(f, f.at(x, block.at(j, c)), dtype)
                best = f.freeze(b.load(block.cell(c)))
                better = wins(f, op, dtype, value, best)
                b.store(b.select(better, value, best), block.cell(c))
                place = f.at(out, b.add(unit, c))
                b.store(b.select(better, j, f.freeze(b.load(place))), place)

        _in_blocks(f, (lo, hi), n, inner, held, walk)


#: Elements of a block.
SCANNED, SEARCHED = 4096, 1 << 15


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
