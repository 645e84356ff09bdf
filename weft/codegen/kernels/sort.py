"""sort, argsort, searchsorted: each dtype maps to unsigned keys that order as it does.

Order: false < true, -0.0 ties with 0.0, NaN is largest and ties with NaN; ties keep their order,
also descending (keys are complemented). A key of up to 32 bits and its position make one word, so
that moving the word moves both; longer keys have their positions beside them. Rows of up to
`SHORT_SORT` elements are sorted by counting ranks (quadratic, but branch-free and vectorised),
longer ones by least-significant-digit radix sort with 8-bit digits (Knuth, The Art of Computer
Programming 3, algorithm 5.2.5R), all digits counted in one pass, those that are the same everywhere
left out.
The units are the rows; a binary search's are the values searched for.

Of few long rows, the passes of the radix sort are cut over threads. A row is fixed blocks: a pass
counts each block's digits, says in one sweep over the counts where each block puts each of its
digits, and moves the blocks' words there (Zagha and Blelloch, Radix Sort for Vector
Multiprocessors, 1991). A stable order is unique: nothing depends on the cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, WorkerScratch, cut_call, worker_stride
from weft.codegen.kernels.data_movement import tensor
from weft.codegen.kernels.scan import axis_sizes
from weft.codegen.llvm.emitter import FLOATS, HALVES, I64, Emitter, register_type, width_bits
from weft.codegen.llvm.jit import Kernel
from weft.codegen.pool import repeat_while
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.ir.cost.rates import (
    NS_COUNTED,
    NS_MADE,
    NS_MOVED,
    NS_PER_STEP,
    NS_WRITTEN,
    WIDE_SORT,
    sorted_row,
)
from weft.ir.cost.thresholds import FEW_ROWS, SHORT_SORT, SORTED_BYTES
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

#: Binary searches that go side by side.
TOGETHER = 32
DIGIT_BITS, DIGITS = 8, 256


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
    return [cut_call(kernel, args, outer * inner, sorted_row(n, digits, wide))]


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

    with b.if_else(b.icmp_signed("<=", n, f.index(SHORT_SORT))) as (small, large):
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


#: Words of a block.
BLOCK = 1 << 14
#: Words of a row's state: for each pass the side its words are on, and from `_SKIPPED` on, whether
#: it is left out.
_STATE, _SKIPPED = 32, 16


@dataclass(frozen=True)
class _Form:
    """The form of the words that are sorted. places: positions lie beside the keys; else they are
    in the words' low halves, or not wanted (integers of 64 bits: the key is all of the value)."""

    dtype: str
    places: bool

    @property
    def packed(self) -> bool:
        return key_bits(self.dtype) <= 32

    @property
    def key(self) -> str:
        return f"{self.dtype}-{'places' if self.places else 'words'}"

    @property
    def passes(self) -> int:
        return key_bits(self.dtype) // DIGIT_BITS


def sort_calls(op: Operation) -> list[KernelCall]:
    """sort or argsort, its long rows cut over threads.

    args of all calls: result, operand, scratch, its words per row, where the counts and the state
    begin in it, n, block, blocks, descending. Units: blocks of all rows; of the sweeps rows.
    scratch of a row, in words: two sides of n words, two of n positions if they are apart, counts
    for each block, the state.
    """
    outer, n, inner = axis_sizes(op)
    dtype, positions = tensor(op.operands[0]).dtype.short, op.name == "argsort"
    form = _Form(dtype, key_bits(dtype) > 32 and (positions or dtype in FLOATS))
    counts = (4 if form.places else 2) * n
    if inner != 1 or not 0 < outer < FEW_ROWS or 8 * counts < SORTED_BYTES or n >= 2**32:
        return lower_sort(op)
    blocks = -(-n // BLOCK)
    state = counts + blocks * DIGITS
    words = -(-(state + _STATE) // 16) * 16
    args = (
        Address(op.result), Address(op.operands[0]), Scratch(8 * outer * words), words, counts,
        state, n, BLOCK, blocks, int(bool(op.attrs["descending"])),
    )  # fmt: skip
    units = outer * blocks

    def call(what: str, emit: Callable[[_LongRow], None], ns: float) -> KernelCall:
        kernel = Kernel(
            f"long-sort-1-{what}-{form.key}", f"{op.name}_{what}", lambda e: emit(_LongRow(e, form))
        )
        return cut_call(kernel, args, units if ns else outer, ns * BLOCK)

    made = [call("keys", _emit_keys, NS_MADE)]
    for k in range(form.passes):
        if k:
            made.append(call(f"count{k}", partial(_emit_counts, number=k), NS_COUNTED))
        made.append(call(f"sweep{k}", partial(_emit_sweep, number=k), 0.0))
        ns = NS_MOVED * (WIDE_SORT if form.places else 1.0)
        made.append(call(f"move{k}", partial(_emit_move, number=k), ns))
    emit = partial(_emit_results, positions=positions)
    return [*made, call("positions" if positions else "values", emit, NS_WRITTEN)]


class _LongRow:
    """A kernel's arguments, and the row that it works on: `base` is its scratch."""

    def __init__(self, e: Emitter, form: _Form) -> None:
        self.e, self.form = e, form
        self.scratch = e.pointer_argument(2, "i64")
        self.words, self.counts_at, self.state_at, self.n, self.block, self.blocks, down = (
            e.argument(k) for k in range(3, 10)
        )
        mask = e.index(2 ** key_bits(form.dtype) - 1)
        self.flip = e.builder.and_(e.builder.neg(down), mask)  # all ones to complement the keys
        self.base = self.scratch

    def enter(self, row: ir.Value) -> None:
        """From now on it is about this row."""
        self.base = self.e.at(self.scratch, self.e.builder.mul(row, self.words))

    def enter_block(self, unit: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        """The unit's (row, block, first element, the one after its last)."""
        b = self.e.builder
        row = b.udiv(unit, self.blocks)
        self.enter(row)
        number = b.sub(unit, b.mul(row, self.blocks))
        start = b.mul(number, self.block)
        stop = b.add(start, self.block)
        return row, number, start, b.select(b.icmp_signed("<", stop, self.n), stop, self.n)

    def side(self, which: ir.Value, places: bool) -> ir.Value:
        """The words, or positions, of one side."""
        b = self.e.builder
        number = b.add(which, self.e.index(2 if places else 0))
        return self.e.at(self.base, b.mul(number, self.n))

    def counts(self, block: ir.Value) -> ir.Value:
        """The block's counts of each digit; after the sweep, where its next one goes."""
        b = self.e.builder
        return self.e.at(self.base, b.add(self.counts_at, b.mul(block, self.e.index(DIGITS))))

    def state(self, word: int) -> ir.Value:
        """The address of a word of the row's state."""
        return self.e.at(self.base, self.e.builder.add(self.state_at, self.e.index(word)))

    def digit(self, word: ir.Value, number: int) -> ir.Value:
        b = self.e.builder
        shift = (32 if self.form.packed else 0) + number * DIGIT_BITS
        return b.and_(b.lshr(word, self.e.index(shift)), self.e.index(DIGITS - 1))

    def clear(self, counts: ir.Value) -> None:
        with self.e.for_range(self.e.index(0), self.e.index(DIGITS)) as d:
            self.e.builder.store(self.e.index(0), self.e.at(counts, d))

    def add_one(self, cell: ir.Value) -> ir.Value:
        """Count the cell up; what it was."""
        b = self.e.builder
        before = b.load(cell)
        b.store(b.add(before, self.e.index(1)), cell)
        return before


def _emit_keys(r: _LongRow) -> None:
    """Words, positions, and the counts of the first digit."""
    e, b, dtype = r.e, r.e.builder, r.form.dtype
    x = e.pointer_argument(1, dtype)
    with e.for_range(e.lo, e.hi) as unit:
        row, number, start, stop = r.enter_block(unit)
        words, places = (r.side(e.index(0), apart) for apart in (False, True))
        counts, source = r.counts(number), e.at(x, b.mul(row, r.n))
        r.clear(counts)
        with b.if_then(b.icmp_signed("==", number, e.index(0))):
            b.store(e.index(0), r.state(0))
        with e.for_range(start, stop) as j:
            key = b.xor(key_of(e, load_element(e, e.at(source, j), dtype), dtype), r.flip)
            if r.form.packed:
                key = b.or_(b.shl(key, e.index(32)), j)
            b.store(key, e.at(words, j))
            if r.form.places:
                b.store(j, e.at(places, j))
        with e.for_range(start, stop) as j:
            r.add_one(e.at(counts, r.digit(b.load(e.at(words, j)), 0)))


def _emit_counts(r: _LongRow, number: int) -> None:
    e, b = r.e, r.e.builder
    with e.for_range(e.lo, e.hi) as unit:
        _, block, start, stop = r.enter_block(unit)
        words, counts = r.side(b.load(r.state(number)), False), r.counts(block)
        r.clear(counts)
        with e.for_range(start, stop) as j:
            r.add_one(e.at(counts, r.digit(b.load(e.at(words, j)), number)))


def _emit_sweep(r: _LongRow, number: int) -> None:
    """Where each block puts its first word of each digit; whether the pass is left out."""
    e, b = r.e, r.e.builder
    zero, every = e.index(0), e.index(DIGITS)
    held = e.alloca(ir.ArrayType(I64, DIGITS))
    total = b.bitcast(held, I64.as_pointer())
    sum_, skipped = e.alloca(I64), e.alloca(I64)
    with e.for_range(e.lo, e.hi) as row:
        r.enter(row)
        r.clear(total)
        with e.for_range(zero, r.blocks) as k, e.for_range(zero, every) as d:
            count = b.load(e.at(r.counts(k), d))
            b.store(b.add(b.load(e.at(total, d)), count), e.at(total, d))
        b.store(zero, sum_)
        b.store(zero, skipped)
        with e.for_range(zero, every) as d:
            count = b.load(e.at(total, d))
            same = b.zext(b.icmp_signed("==", count, r.n), I64)
            b.store(b.or_(b.load(skipped), same), skipped)
            b.store(b.load(sum_), e.at(total, d))
            b.store(b.add(b.load(sum_), count), sum_)
        with e.for_range(zero, r.blocks) as k, e.for_range(zero, every) as d:
            cell, place = e.at(r.counts(k), d), b.load(e.at(total, d))
            b.store(b.add(place, b.load(cell)), e.at(total, d))
            b.store(place, cell)
        left_out = b.load(skipped)
        b.store(left_out, r.state(_SKIPPED + number))
        other = b.xor(b.load(r.state(number)), b.sub(e.index(1), left_out))
        b.store(other, r.state(number + 1))


def _emit_move(r: _LongRow, number: int) -> None:
    e, b = r.e, r.e.builder
    with e.for_range(e.lo, e.hi) as unit:
        _, block, start, stop = r.enter_block(unit)
        here, there = b.load(r.state(number)), b.load(r.state(number + 1))
        moves = b.icmp_signed("==", b.load(r.state(_SKIPPED + number)), e.index(0))
        apart = (False, True) if r.form.places else (False,)
        sides = [(r.side(here, a), r.side(there, a)) for a in apart]
        counts = r.counts(block)
        with b.if_then(moves), e.for_range(start, stop) as j:
            word = b.load(e.at(sides[0][0], j))
            place = r.add_one(e.at(counts, r.digit(word, number)))
            for source, target in sides:
                b.store(b.load(e.at(source, j)), e.at(target, place))


def _emit_results(r: _LongRow, positions: bool) -> None:
    e, b, dtype = r.e, r.e.builder, r.form.dtype
    out = e.pointer_argument(0, "i64" if positions else dtype)
    x = e.pointer_argument(1, dtype)
    with e.for_range(e.lo, e.hi) as unit:
        row, _, start, stop = r.enter_block(unit)
        side = b.load(r.state(r.form.passes))
        words, places = (r.side(side, apart) for apart in (False, True))
        source, target = e.at(x, b.mul(row, r.n)), e.at(out, b.mul(row, r.n))
        with e.for_range(start, stop) as j:
            word = b.load(e.at(words, j))
            low = b.and_(word, e.index(2**32 - 1))
            place = b.load(e.at(places, j)) if r.form.places else low
            if positions:
                b.store(place, e.at(target, j))
            else:
                _store_value(r, word, e.at(source, place), e.at(target, j))


def _store_value(r: _LongRow, word: ir.Value, own: ir.Value, target: ir.Value) -> None:
    """A value is its key turned back, but for those that share one, zeros and NaNs: `own` says."""
    e, b, dtype = r.e, r.e.builder, r.form.dtype
    key = b.xor(b.lshr(word, e.index(32)) if r.form.packed else word, r.flip)
    value, shared = value_of(e, key, dtype)
    store_element(e, value, target, dtype)
    if shared is not None:
        with b.if_then(shared, likely=False):
            store_element(e, load_element(e, own, dtype), target, dtype)
