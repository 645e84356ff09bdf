"""sort, argsort, searchsorted: each dtype maps to unsigned keys that order as it does.

Order: false < true, -0.0 ties with 0.0, NaN is largest and ties with NaN; ties keep their order,
also descending (keys are complemented). A key of up to 32 bits and its position make one word, so
that moving the word moves both; longer keys have their positions beside them. Rows of up to `SMALL`
elements are sorted by counting ranks (quadratic, but branch-free and vectorised), longer ones by
least-significant-digit radix sort with 8-bit digits (Knuth, The Art of Computer Programming 3,
algorithm 5.2.5R), all digits counted in one pass, those that are the same everywhere left out.
The units are the rows; a binary search's are the values searched for.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, WorkerScratch, cut_call, worker_stride
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import HALVES, I64, register_type, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels.scan import axis_sizes
from weft.codegen.kernels.shape import tensor
from weft.codegen.pool.words import repeat_while
from weft.codegen.scalar.scalar import emit_scalar
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

SMALL = 48
#: Binary searches that go side by side.
TOGETHER = 32
DIGIT_BITS, DIGITS = 8, 256
#: One digit of one element; one step of a binary search that misses the cache now and then.
NS_PER_DIGIT, NS_PER_STEP = 1.2, 2.5


def lower_sort(op: Operation) -> list[KernelCall]:
    """sort and argsort; args: result, operand, scratch, bytes of it per worker, n, inner,
    descending.

    scratch: two arrays of n words (two more of n positions if they are not in the words), and 256
    counts for each digit, all 8 bytes each.
    """
    dtype = tensor(op.operands[0]).dtype.short
    outer, n, inner = axis_sizes(op)
    positions, wide = op.name == "argsort", key_bits(dtype) > 32 or n >= 2**32
    kernel = Kernel(
        f"{op.name}-2-{dtype}-{'wide' if wide else 'packed'}",
        f"{op.name}_{dtype}",
        lambda e: _emit_sort(e, dtype, positions, wide),
    )
    digits = key_bits(dtype) // DIGIT_BITS
    scratch = 8 * ((4 if wide else 2) * n + digits * DIGITS)
    sizes = (worker_stride(scratch), n, inner, int(bool(op.attrs["descending"])))
    args = (Address(op.result), Address(op.operands[0]), WorkerScratch(scratch), *sizes)
    each = n * (0.1 * n if n <= SMALL else NS_PER_DIGIT * (digits + 2) * (1.5 if wide else 1.0))
    return [cut_call(kernel, args, outer * inner, each)]


def lower_searchsorted(op: Operation) -> list[KernelCall]:
    """args: result, sorted data, values, n, number of values, 1 for side="right"."""
    data, values = op.operands
    dtype = tensor(data).dtype.short
    kernel = Kernel(
        f"searchsorted-5-{dtype}", f"searchsorted_{dtype}", lambda e: _emit_search(e, dtype)
    )
    count = math.prod(tensor(values).static_shape)
    sizes = (tensor(data).static_shape[0], count, int(op.attrs["side"] == "right"))
    args = (Address(op.result), Address(data), Address(values), *sizes)
    each = NS_PER_STEP * max(1, sizes[0].bit_length())
    return [cut_call(kernel, args, count, each)]


def key_of(f: Emitter, value: ir.Value, dtype: str) -> ir.Value:
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


def value_of(f: Emitter, key: ir.Value, dtype: str) -> tuple[ir.Value, ir.Value | None]:
    """The register value of a key, and whether others have the same key: zeros, NaNs (None: no)."""
    b = f.builder
    kind = register_type(dtype)
    if dtype in ("f32", "f64", *HALVES):
        bits = key_bits(dtype)
        word = ir.IntType(bits)
        pattern = key if bits == 64 else b.trunc(key, word)
        sign = ir.Constant(word, 1 << (bits - 1))
        negative = b.icmp_signed(">=", pattern, ir.Constant(word, 0))
        back = b.select(negative, b.not_(pattern), b.xor(pattern, sign))
        zero = b.icmp_unsigned("==", pattern, sign)
        nan = b.icmp_unsigned("==", pattern, ir.Constant(word, 2**bits - 1))
        return b.bitcast(back, kind), b.or_(zero, nan)
    value = key if kind == I64 else b.trunc(key, kind)
    if dtype == "bool" or dtype.startswith("u"):
        return value, None
    return b.xor(value, ir.Constant(kind, 1 << (kind.width - 1))), None


def key_bits(dtype: str) -> int:
    return 32 if dtype in HALVES else width_bits(dtype)


@dataclass(frozen=True)
class _Row:
    """One row in scratch: `words` and `spare` hold n words; `places` and `spare_places` positions
    (None where they are in the words' low halves, the keys in the high ones)."""

    f: Emitter
    n: ir.Value
    words: ir.Value
    spare: ir.Value
    counts: ir.Value
    places: ir.Value | None
    spare_places: ir.Value | None

    @property
    def low(self) -> int:
        """The lowest bit of the keys."""
        return 32 if self.places is None else 0


def _emit_sort(e: Emitter, dtype: str, positions: bool, wide: bool) -> None:
    b = e.builder
    pointers = [e.pointer_argument(0, "i64" if positions else dtype), e.pointer_argument(1, dtype)]
    base = b.add(e.argument(2), b.mul(e.worker, e.argument(3)))
    work, n = b.inttoptr(base, I64.as_pointer()), e.argument(4)
    pointers += [e.at(work, b.mul(n, e.index(k))) for k in range(5 if wide else 3)]
    scalars = [n, e.argument(5), e.argument(6), e.lo, e.hi]
    with e.loop_function("sort", pointers, scalars) as (
        f,
        (out, x, words, spare, *rest),
        (n, inner, descending, lo, hi),
    ):
        places = rest[:2] if wide else [None, None]
        row = _Row(f, n, words, spare, rest[-1], *places)
        with f.for_range(lo, hi) as unit:
            _sort_row(row, out, x, unit, inner, descending, dtype, positions)


def _sort_row(
    row: _Row,
    out: ir.Value,
    x: ir.Value,
    unit: ir.Value,
    inner: ir.Value,
    descending: ir.Value,
    dtype: str,
    positions: bool,
) -> None:
    f, b, n = row.f, row.f.builder, row.n
    zero = f.index(0)
    outer = b.udiv(unit, inner)
    start = b.add(b.mul(b.mul(outer, n), inner), b.sub(unit, b.mul(outer, inner)))
    mask = f.index(2 ** key_bits(dtype) - 1)
    flip = b.and_(b.sub(zero, descending), mask)  # all ones to complement the keys
    with f.for_range(zero, n) as j:
        value = load_element(f, f.at(x, b.add(start, b.mul(j, inner))), dtype)
        key = b.xor(key_of(f, value, dtype), flip)
        if row.places is None:
            key = b.or_(b.shl(key, f.index(32)), j)
        else:
            b.store(j, f.at(row.places, j))
        b.store(key, f.at(row.words, j))

    def finish(found: ir.Value, j: ir.Value) -> None:
        target = f.at(out, b.add(start, b.mul(j, inner)))
        if positions:
            b.store(found, target)
        else:
            source = f.at(x, b.add(start, b.mul(found, inner)))
            store_element(f, load_element(f, source, dtype), target, dtype)

    with b.if_else(b.icmp_signed("<=", n, f.index(SMALL))) as (small, large):
        with small, f.for_range(zero, n) as j:
            finish(j, _rank(row, j))
        with large:
            words, places = _radix_sort(row, key_bits(dtype) // DIGIT_BITS)
            with f.for_range(zero, n) as j:
                if places is None:
                    finish(b.and_(b.load(f.at(words, j)), f.index(2**32 - 1)), j)
                else:
                    finish(b.load(f.at(places, j)), j)


def _rank(row: _Row, j: ir.Value) -> ir.Value:
    """How many elements come before element j: smaller keys, and equal ones at its left."""
    f, b = row.f, row.f.builder
    rank = f.alloca(I64)
    mine = b.load(f.at(row.words, j))
    b.store(f.index(0), rank)
    with f.for_range(f.index(0), row.n) as i:
        other = b.load(f.at(row.words, i))
        before = b.icmp_unsigned("<", other, mine)
        if row.places is not None:  # in a packed word the position decides between equal keys
            tie = b.and_(b.icmp_unsigned("==", other, mine), b.icmp_signed("<", i, j))
            before = b.or_(before, tie)
        b.store(b.add(b.load(rank), b.zext(before, I64)), rank)
    return b.load(rank)


def _radix_sort(row: _Row, digits: int) -> tuple[ir.Value, ir.Value | None]:
    """Sort the row; where its words, and its positions, are then."""
    f, b = row.f, row.f.builder
    word = I64.as_pointer()
    pairs = [(row.words, row.spare), (row.places, row.spare_places)]
    cells = [None if p[0] is None else (f.alloca(word), f.alloca(word)) for p in pairs]
    for pair, cell in zip(pairs, cells, strict=True):
        if cell is not None:
            b.store(pair[0], cell[0])
            b.store(pair[1], cell[1])
    _count_digits(row, digits)
    first = b.load(f.at(row.words, f.index(0)))
    for number in range(digits):
        counts = f.at(row.counts, f.index(number * DIGITS))
        shift = f.index(row.low + number * DIGIT_BITS)
        same = b.load(f.at(counts, _digit(f, first, shift)))
        with b.if_then(b.icmp_signed("!=", same, row.n)):
            _radix_pass(row, cells, counts, shift)
    found = [None if cell is None else b.load(cell[0]) for cell in cells]
    return found[0], found[1]


def _digit(f: Emitter, word: ir.Value, shift: ir.Value) -> ir.Value:
    return f.builder.and_(f.builder.lshr(word, shift), f.index(DIGITS - 1))


def _count_digits(row: _Row, digits: int) -> None:
    f, b = row.f, row.f.builder
    with f.for_range(f.index(0), f.index(digits * DIGITS)) as d:
        b.store(f.index(0), f.at(row.counts, d))
    with f.for_range(f.index(0), row.n) as j:
        word = b.load(f.at(row.words, j))
        for number in range(digits):
            digit = _digit(f, word, f.index(row.low + number * DIGIT_BITS))
            cell = f.at(row.counts, b.add(digit, f.index(number * DIGITS)))
            b.store(b.add(b.load(cell), f.index(1)), cell)


def _radix_pass(
    row: _Row, cells: list[tuple[ir.Value, ir.Value] | None], counts: ir.Value, shift: ir.Value
) -> None:
    """Move the words, and positions, to where this digit puts them; then the two sides swap."""
    f, b = row.f, row.f.builder
    total = f.alloca(I64)
    b.store(f.index(0), total)
    with f.for_range(f.index(0), f.index(DIGITS)) as d:
        slot = f.at(counts, d)
        count = b.load(slot)
        b.store(b.load(total), slot)
        b.store(b.add(b.load(total), count), total)
    sides = [None if cell is None else (b.load(cell[0]), b.load(cell[1])) for cell in cells]
    with f.for_range(f.index(0), row.n) as j:
        assert sides[0] is not None
        word = b.load(f.at(sides[0][0], j))
        slot = f.at(counts, _digit(f, word, shift))
        place = b.load(slot)
        b.store(b.add(place, f.index(1)), slot)
        for side in sides:
            if side is not None:
                b.store(b.load(f.at(side[0], j)), f.at(side[1], place))
    for cell, side in zip(cells, sides, strict=True):
        if cell is not None and side is not None:
            b.store(side[1], cell[0])
            b.store(side[0], cell[1])


def _emit_search(e: Emitter, dtype: str) -> None:
    """Binary search: the first element that is not before the value (left), or after it (right).

    All searches take the same steps whatever they find, so TOGETHER of them go step by step side
    by side: no branch depends on data, and their loads overlap.
    """
    kinds = ("i64", dtype, dtype)
    pointers = [e.pointer_argument(k, kind) for k, kind in enumerate(kinds)]
    sizes = [e.argument(3), e.argument(5), e.lo, e.hi]
    with e.loop_function("search", pointers, sizes) as (f, (out, data, values), (n, right, lo, hi)):
        b = f.builder
        zero, one = f.index(0), f.index(1)
        to_the_right = b.icmp_signed("!=", right, zero)
        length = f.alloca(I64)
        lows, keys = (f.alloca(ir.ArrayType(I64, TOGETHER)) for _ in range(2))

        def passes(position: ir.Value, wanted: ir.Value) -> ir.Value:
            key = key_of(f, load_element(f, f.at(data, position), dtype), dtype)
            tie = b.and_(b.icmp_unsigned("==", key, wanted), to_the_right)
            return b.or_(b.icmp_unsigned("<", key, wanted), tie)

        with f.for_range(lo, hi, f.index(TOGETHER)) as i:
            rest = b.sub(hi, i)
            most = f.index(TOGETHER)
            width = b.select(b.icmp_signed("<", rest, most), rest, most)
            with f.for_range(zero, width) as c:
                wanted = load_element(f, f.at(values, b.add(i, c)), dtype)
                b.store(key_of(f, wanted, dtype), b.gep(keys, [zero, c]))
                b.store(zero, b.gep(lows, [zero, c]))
            b.store(n, length)
            with repeat_while(f, lambda: b.icmp_signed(">", b.load(length), one)):
                half = b.lshr(b.load(length), one)
                with f.for_range(zero, width) as c:
                    cell = b.gep(lows, [zero, c])
                    after = b.add(b.load(cell), half)
                    goes = passes(b.sub(after, one), b.load(b.gep(keys, [zero, c])))
                    b.store(b.select(goes, after, b.load(cell)), cell)
                b.store(b.sub(b.load(length), half), length)
            some = b.icmp_signed(">", n, zero)
            with b.if_then(some), f.for_range(zero, width) as c:
                cell = b.gep(lows, [zero, c])
                last = passes(b.load(cell), b.load(b.gep(keys, [zero, c])))
                b.store(b.add(b.load(cell), b.zext(last, I64)), cell)
            with f.for_range(zero, width) as c:
                b.store(b.load(b.gep(lows, [zero, c])), f.at(out, b.add(i, c)))
