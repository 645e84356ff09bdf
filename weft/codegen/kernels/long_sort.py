"""sort and argsort of few long rows: radix sort whose passes are cut over threads.

As in `kernels/sort.py` each digit of the keys is one stable pass, left out if it is the same
everywhere. A row is fixed blocks: a pass counts each block's digits, says in one sweep over the
counts where each block puts each of its digits, and moves the blocks' words there (Zagha and
Blelloch, Radix Sort for Vector Multiprocessors, 1991). A stable order is unique: nothing depends on
the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, cut_call
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import FLOATS, I64
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels.scan import axis_sizes
from weft.codegen.kernels.shape import tensor
from weft.codegen.kernels.sort import DIGIT_BITS, DIGITS, key_bits, key_of, lower_sort, value_of
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

#: Rows are sorted so if there are fewer and their sides have more bytes: moving what fits into
#: caches between processors may cost more than the second one gives. Words of a block.
FEW_ROWS, LEAST_BYTES, BLOCK = 16, 64 << 20, 1 << 14
#: One element: its key made, its digit counted, its word moved, its result written.
NS_MADE, NS_COUNTED, NS_MOVED, NS_WRITTEN = 1.0, 0.4, 1.2, 1.0
#: Words of a row's state: for each pass the side its words are on, and from `_SKIPPED` on, whether
#: it is left out.
_STATE, _SKIPPED = 32, 16


@dataclass(frozen=True)
class _Form:
    """places: positions lie beside the keys; else they are in the words' low halves, or not wanted
    (integers of 64 bits: the key is all of the value)."""

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
    if inner != 1 or not 0 < outer < FEW_ROWS or 8 * counts < LEAST_BYTES or n >= 2**32:
        return lower_sort(op)
    blocks = -(-n // BLOCK)
    state = counts + blocks * DIGITS
    words = -(-(state + _STATE) // 16) * 16
    args = (
        Address(op.result), Address(op.operands[0]), Scratch(8 * outer * words), words, counts,
        state, n, BLOCK, blocks, int(bool(op.attrs["descending"])),
    )  # fmt: skip
    units = outer * blocks

    def call(what: str, emit: Callable[[_Row], None], ns: float) -> KernelCall:
        kernel = Kernel(
            f"long-sort-1-{what}-{form.key}", f"{op.name}_{what}", lambda e: emit(_Row(e, form))
        )
        return cut_call(kernel, args, units if ns else outer, ns * BLOCK)

    made = [call("keys", _emit_keys, NS_MADE)]
    for k in range(form.passes):
        if k:
            made.append(call(f"count{k}", partial(_emit_counts, number=k), NS_COUNTED))
        made.append(call(f"sweep{k}", partial(_emit_sweep, number=k), 0.0))
        ns = NS_MOVED * (1.5 if form.places else 1.0)
        made.append(call(f"move{k}", partial(_emit_move, number=k), ns))
    emit = partial(_emit_results, positions=positions)
    return [*made, call("positions" if positions else "values", emit, NS_WRITTEN)]


class _Row:
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


def _emit_keys(r: _Row) -> None:
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


def _emit_counts(r: _Row, number: int) -> None:
    e, b = r.e, r.e.builder
    with e.for_range(e.lo, e.hi) as unit:
        _, block, start, stop = r.enter_block(unit)
        words, counts = r.side(b.load(r.state(number)), False), r.counts(block)
        r.clear(counts)
        with e.for_range(start, stop) as j:
            r.add_one(e.at(counts, r.digit(b.load(e.at(words, j)), number)))


def _emit_sweep(r: _Row, number: int) -> None:
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


def _emit_move(r: _Row, number: int) -> None:
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


def _emit_results(r: _Row, positions: bool) -> None:
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


def _store_value(r: _Row, word: ir.Value, own: ir.Value, target: ir.Value) -> None:
    """A value is its key turned back, but for those that share one, zeros and NaNs: `own` says."""
    e, b, dtype = r.e, r.e.builder, r.form.dtype
    key = b.xor(b.lshr(word, e.index(32)) if r.form.packed else word, r.flip)
    value, shared = value_of(e, key, dtype)
    store_element(e, value, target, dtype)
    if shared is not None:
        with b.if_then(shared, likely=False):
            store_element(e, load_element(e, own, dtype), target, dtype)
