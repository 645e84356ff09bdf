"""sort, argsort, searchsorted: each dtype maps to unsigned 64-bit keys that order as it does.

Order: false < true, -0.0 ties with 0.0, NaN is largest and ties with NaN; ties keep their order,
also descending (keys are complemented). Rows of up to `SMALL` elements are sorted by counting
ranks (quadratic, but branch-free and vectorised), longer ones by least-significant-digit radix
sort with 8-bit digits (Knuth, The Art of Computer Programming 3, algorithm 5.2.5R).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import HALVES, I64, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels_scan import axis_sizes
from weft.codegen.kernels_shape import tensor
from weft.codegen.scalar import emit_scalar
from weft.ir.graph import Operation

SMALL = 48
DIGIT_BITS, DIGITS = 8, 256


def lower_sort(op: Operation) -> list[KernelCall]:
    """sort and argsort; args: result, operand, scratch, outer, n, inner, descending.

    scratch: two arrays of n keys, two of n positions, one of 256 counts, all 8 bytes each.
    """
    dtype = tensor(op.operands[0]).dtype.short
    outer, n, inner = axis_sizes(op)
    positions = op.name == "argsort"
    kernel = Kernel(
        f"{op.name}-1-{dtype}", f"{op.name}_{dtype}", lambda e: _emit_sort(e, dtype, positions)
    )
    scratch = Scratch(8 * (4 * n + DIGITS))
    sizes = (outer, n, inner, int(bool(op.attrs["descending"])))
    return [KernelCall(kernel, (Address(op.result), Address(op.operands[0]), scratch, *sizes))]


def lower_searchsorted(op: Operation) -> list[KernelCall]:
    """args: result, sorted data, values, n, number of values, 1 for side="right"."""
    data, values = op.operands
    dtype = tensor(data).dtype.short
    kernel = Kernel(
        f"searchsorted-1-{dtype}", f"searchsorted_{dtype}", lambda e: _emit_search(e, dtype)
    )
    count = int(np.prod(tensor(values).static_shape, dtype=np.int64))
    sizes = (tensor(data).static_shape[0], count, int(op.attrs["side"] == "right"))
    return [KernelCall(kernel, (Address(op.result), Address(data), Address(values), *sizes))]


def _key(f: Emitter, value: ir.Value, dtype: str) -> ir.Value:
    """The unsigned 64-bit key of a register value."""
    b = f.builder
    if dtype in ("f32", "f64", *HALVES):
        wide = "f64" if dtype == "f64" else "f32"
        bits = 64 if wide == "f64" else 32
        kind = ir.IntType(bits)
        nan = emit_scalar(f, "isnan", dtype, [value], {})
        zero = ir.Constant(value.type, 0.0)
        plain = b.select(b.fcmp_ordered("==", value, zero), zero, value)
        pattern = b.bitcast(plain, kind)
        sign = ir.Constant(kind, 1 << (bits - 1))
        key = b.select(
            b.icmp_signed("<", pattern, ir.Constant(kind, 0)), b.not_(pattern), b.or_(pattern, sign)
        )
        key = b.select(nan, ir.Constant(kind, 2**bits - 1), key)
        return key if bits == 64 else b.zext(key, I64)
    if dtype == "bool" or dtype.startswith("u"):
        return value if value.type == I64 else b.zext(value, I64)
    sign = ir.Constant(value.type, 1 << (value.type.width - 1))
    flipped = b.xor(value, sign)
    return flipped if value.type == I64 else b.zext(flipped, I64)


def _passes(dtype: str) -> int:
    """How many digits: an even number, so that the result ends where it began."""
    bits = 32 if dtype in HALVES else width_bits(dtype)
    return max(2, bits // DIGIT_BITS)


def _emit_sort(e: Emitter, dtype: str, positions: bool) -> None:
    out_dtype = "i64" if positions else dtype
    pointers = [e.pointer_argument(0, out_dtype), e.pointer_argument(1, dtype)]
    work, n = e.pointer_argument(2, "i64"), e.argument(4)
    for k in range(5):  # keys, keys, positions, positions, counts
        pointers.append(e.at(work, e.builder.mul(n, e.index(k))))
    sizes = [e.argument(3), n, e.argument(5), e.argument(6)]
    with e.loop_function("sort", pointers, sizes) as (
        f,
        (out, x, *scratch),
        (outer, n, inner, descending),
    ):
        b = f.builder
        zero = f.index(0)
        flip = b.sub(zero, descending)  # all ones to complement the keys
        with f.for_range(zero, outer) as o, f.for_range(zero, inner) as i:
            start = b.add(b.mul(b.mul(o, n), inner), i)
            with f.for_range(zero, n) as j:
                value = load_element(f, f.at(x, b.add(start, b.mul(j, inner))), dtype)
                b.store(b.xor(_key(f, value, dtype), flip), f.at(scratch[0], j))
                b.store(j, f.at(scratch[2], j))
            with b.if_else(b.icmp_signed("<=", n, f.index(SMALL))) as (small, large):
                with small:
                    _rank_sort(f, scratch, n)
                with large:
                    _radix_sort(f, scratch, n, _passes(dtype) * DIGIT_BITS)
            with f.for_range(zero, n) as j:
                found = b.load(f.at(scratch[2], j))
                target = f.at(out, b.add(start, b.mul(j, inner)))
                if positions:
                    b.store(found, target)
                else:
                    source = f.at(x, b.add(start, b.mul(found, inner)))
                    store_element(f, load_element(f, source, dtype), target, dtype)


def _rank_sort(f: Emitter, scratch: list[ir.Value], n: ir.Value) -> None:
    """positions[rank of j] = j, where rank counts smaller keys and equal ones before."""
    b, keys, positions = f.builder, scratch[0], scratch[2]
    zero, rank = f.index(0), f.alloca(I64)
    with f.for_range(zero, n) as j:
        mine = b.load(f.at(keys, j))
        b.store(zero, rank)
        with f.for_range(zero, n) as i:
            other = b.load(f.at(keys, i))
            tie = b.and_(b.icmp_unsigned("==", other, mine), b.icmp_signed("<", i, j))
            before = b.or_(b.icmp_unsigned("<", other, mine), tie)
            b.store(b.add(b.load(rank), b.zext(before, I64)), rank)
        b.store(j, f.at(positions, b.load(rank)))


def _radix_sort(f: Emitter, scratch: list[ir.Value], n: ir.Value, bits: int) -> None:
    keys, spare_keys, positions, spare_positions, counts = scratch
    b = f.builder
    with f.for_range(f.index(0), f.index(bits), f.index(2 * DIGIT_BITS)) as shift:
        _radix_pass(f, (keys, positions), (spare_keys, spare_positions), counts, n, shift)
        following = b.add(shift, f.index(DIGIT_BITS))
        _radix_pass(f, (spare_keys, spare_positions), (keys, positions), counts, n, following)


def _radix_pass(
    f: Emitter,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    counts: ir.Value,
    n: ir.Value,
    shift: ir.Value,
) -> None:
    b, zero, one = f.builder, f.index(0), f.index(1)

    def digit(key: ir.Value) -> ir.Value:
        return f.at(counts, b.and_(b.lshr(key, shift), f.index(DIGITS - 1)))

    with f.for_range(zero, f.index(DIGITS)) as d:
        b.store(zero, f.at(counts, d))
    with f.for_range(zero, n) as j:
        slot = digit(b.load(f.at(source[0], j)))
        b.store(b.add(b.load(slot), one), slot)
    total = f.alloca(I64)
    b.store(zero, total)
    with f.for_range(zero, f.index(DIGITS)) as d:
        slot = f.at(counts, d)
        count = b.load(slot)
        b.store(b.load(total), slot)
        b.store(b.add(b.load(total), count), total)
    with f.for_range(zero, n) as j:
        key = b.load(f.at(source[0], j))
        slot = digit(key)
        place = b.load(slot)
        b.store(b.add(place, one), slot)
        b.store(key, f.at(target[0], place))
        b.store(b.load(f.at(source[1], j)), f.at(target[1], place))


def _emit_search(e: Emitter, dtype: str) -> None:
    """Binary search: the first element that is not before the value (left), or after it (right)."""
    pointers = [
        e.pointer_argument(0, "i64"),
        e.pointer_argument(1, dtype),
        e.pointer_argument(2, dtype),
    ]
    sizes = [e.argument(3 + k) for k in range(3)]
    with e.loop_function("search", pointers, sizes) as (f, (out, data, values), (n, count, right)):
        b = f.builder
        zero, one = f.index(0), f.index(1)
        low, length = f.alloca(I64), f.alloca(I64)
        # after k halvings the rest is at most n >> k long: bits(n) steps always suffice
        steps = f.alloca(I64)
        b.store(zero, steps)
        with f.for_range(zero, f.index(63)) as k:
            more = b.icmp_signed(">", b.lshr(n, k), zero)
            b.store(b.add(b.load(steps), b.zext(more, I64)), steps)
        with f.for_range(zero, count) as i:
            wanted = _key(f, load_element(f, f.at(values, i), dtype), dtype)
            b.store(zero, low)
            b.store(n, length)
            with f.for_range(zero, b.load(steps)):
                half = b.lshr(b.load(length), one)
                middle = b.add(b.load(low), half)
                with b.if_then(b.icmp_signed(">", b.load(length), zero)):
                    key = _key(f, load_element(f, f.at(data, middle), dtype), dtype)
                    tie = b.and_(
                        b.icmp_unsigned("==", key, wanted), b.icmp_signed("!=", right, zero)
                    )
                    goes_right = b.or_(b.icmp_unsigned("<", key, wanted), tie)
                    rest = b.sub(b.sub(b.load(length), half), one)
                    b.store(b.select(goes_right, b.add(middle, one), b.load(low)), low)
                    b.store(b.select(goes_right, rest, half), length)
            b.store(b.load(low), f.at(out, i))
