"""Products of f32 and quantised weights: x W', W of 8 or 4 bits with scales, as `quantized_matmul`.

Few rows of x (`FEW_PRODUCT_ROWS`): the time is that of reading W, so its rows go through registers
once.
A unit is `CHANNELS` rows of W, each a run of bytes from one end to the other:

    for each group of k: for each vector of it:
        load weights of each row, widen, convert to f32
        sums of the group += them * x, for several rows of x
    at a group's end: totals += scale * sums of the group;  at last: the lanes of each total

Of 4 bits a lane of 32 bits holds 8 neighbours of k, and a step is 8 vectors of weights: those of
place 0, 1, ... of each lane. A call before the product puts x in that order. With AVX-512 the 16
values of a weight are a vector in which they are looked up (vpermps). Else they are masked where
they are, as 16^place times the weight, and that call divides x by it. A step may be parts of
several groups: its sums are multiplied by a vector of scales.

More rows: the product's own kernel, which has its panels of B made by a prologue from W, block by
block (`weft.codegen.products.calls`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Scratch, cut_call
from weft.codegen.llvm.emitter import F32, I8, I32, I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.products.calls import Before, block_words, gemm_calls
from weft.codegen.products.gemm import dense_product
from weft.codegen.tiles.micro_kernel import Tile, Vectors, internal_function, tile_of
from weft.codegen.tiles.packing import interleave
from weft.ir.cost.rates import streamed
from weft.ir.cost.thresholds import FEW_PRODUCT_ROWS
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.spec import int_attr
from weft.ir.types import TensorType

#: Rows of W side by side: they share what is loaded of x, and no sum waits for another.
CHANNELS = 4
#: Rows of x and of W that are done at a time: of one row, of two, and of more.
FORMS = ((1, CHANNELS), (2, 2), (4, 2))
#: Weights of 4 bits in 32.
PLACES = 8


@dataclass(frozen=True, slots=True)
class Weights:
    """How weights lie: `dtype` in memory, `bits` of each, what stands for 0; signed: halves are
    to have their highest bit turned first, so that -8 is the least."""

    dtype: str
    bits: int
    zero: int
    signed: bool

    @property
    def key(self) -> str:
        """The part of a kernel's key that names them."""
        return f"{self.dtype}-{self.bits}-{self.zero}-{self.signed:d}"

    @property
    def each(self) -> int:
        """Weights in a byte."""
        return 8 // self.bits


def lower_quantized(op: Operation) -> list[KernelCall]:
    """The calls of `quantized_matmul`."""
    x, weights, scale = op.operands
    bits, zero = int_attr(op.attrs, "bits"), int_attr(op.attrs, "zero")
    signed = bits == 4 and bool(op.attrs["signed"])
    form = Weights(_type(weights).dtype.short, bits, zero + 8 * signed, signed)
    m, k = _type(x).static_shape
    n, groups = _type(scale).static_shape
    if m <= FEW_PRODUCT_ROWS:
        return _few_calls(op, form, (m, n, k, groups))
    product = dense_product("f32", (m, n, k), (0,), (0,), (False, False))
    key = f"quantized-panels-1-{form.key}-{tile_of('f32').key}"
    kernel = Kernel(key, f"dequantize_{form.bits}_bits", lambda e: _emit_panels(e, form))
    made = Before(kernel, [Address(weights), Address(scale), n, k, groups], 4, False)
    return gemm_calls(
        product, Address(op.result), Address(x), Address(weights), before=(None, made)
    )


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _few_calls(op: Operation, form: Weights, sizes: tuple[int, int, int, int]) -> list[KernelCall]:
    m, n, k, groups = sizes
    x, weights, scale = op.operands
    tile = tile_of("f32")
    given: Arg = Address(x)
    first: list[KernelCall] = []
    if form.bits == 4:
        steps = -(-k // (PLACES * tile.lanes))
        given = Scratch(4 * m * steps * PLACES * tile.lanes)
        kernel = Kernel(f"quantized-order-2-{tile.key}", "by_place", lambda e: _emit_order(e, tile))
        first = [KernelCall(kernel, (given, Address(x), m, k), 1)]
    kernel = Kernel(
        f"quantized-few-6-{form.key}-{tile.key}", f"quantized_matmul_{form.bits}_bits",
        lambda e: (_FewOfBytes if form.bits == 8 else _FewOfHalves)(e, form, tile).write(),
    )  # fmt: skip
    args = (Address(op.result), given, Address(weights), Address(scale), m, n, k, groups)
    units = -(-n // CHANNELS)
    each = streamed(n * k // form.each) / units + CHANNELS * k * m / tile.multiply_adds_per_ns
    return [*first, cut_call(kernel, args, units, each)]


def _emit_order(e: Emitter, tile: Tile) -> None:
    """args: target, x, m, k. Of each step the elements of place 0 of all lanes, of place 1, ...;
    zeros after the last."""
    b, (m, k), lanes = e.builder, (e.argument(2), e.argument(3)), tile.lanes
    target, x = e.pointer_argument(0, "f32"), e.pointer_argument(1, "f32")
    step = e.index(PLACES * lanes)
    wide = b.mul(b.sdiv(b.add(k, b.sub(step, e.index(1))), step), step)
    looks_up = tile.mask_registers
    with e.for_range(e.index(0), m) as row:
        source, to = e.at(x, b.mul(row, k)), e.at(target, b.mul(row, wide))
        with e.for_range(e.index(0), wide, e.index(PLACES)) as i:
            start, lane = b.sdiv(i, step), b.sdiv(b.srem(i, step), e.index(PLACES))
            there = b.icmp_signed("<", i, k)
            given = e.at(source, b.select(there, i, e.index(0)))
            made = e.at(to, b.add(b.mul(start, step), lane))
            for place in range(PLACES):
                held = b.load(e.at(given, e.index(place)))
                if not looks_up:
                    held = b.fmul(held, ir.Constant(F32, 2.0 ** -_bit(place)))
                held = b.select(there, held, ir.Constant(F32, 0.0))
                b.store(held, e.at(made, e.index(place * lanes)))


def _bit(place: int) -> int:
    """At which bit the weight of a place is when it is converted: 24 bits are exact in f32."""
    return 4 * (place if place < 6 else place - 2)


class _Widening:
    """Weights as vectors of f32, at an emitter's position."""

    def __init__(self, e: Emitter, form: Weights, tile: Tile) -> None:
        self.e, self.form, self.lanes = e, form, tile.lanes
        self.words = ir.VectorType(I32, tile.lanes)
        self.floats = ir.VectorType(F32, tile.lanes)
        self.looks_up = tile.mask_registers

    def all(self, word: int) -> ir.Constant:
        """All lanes that word."""
        return ir.Constant(self.words, [word] * self.lanes)

    def of_words(self, words: ir.Value, bit: int = 0) -> ir.Value:
        """Integers as what they are above zero, in f32; bit: at which they begin."""
        b, zero = self.e.builder, self.form.zero
        words = b.sub(words, self.all(zero << bit)) if zero else words
        return b.sitofp(words, self.floats)

    def of_bytes(self, place: ir.Value) -> ir.Value:
        """As many weights of 8 bits as a vector has lanes."""
        b, kind = self.e.builder, ir.VectorType(I8, self.lanes)
        held = b.load(b.bitcast(place, kind.as_pointer()), align=1)
        signed = self.form.dtype == "i8"
        return self.of_words((b.sext if signed else b.zext)(held, self.words))

    def turned(self, words: ir.Value) -> ir.Value:
        """Halves as numbers of which 0 is the least."""
        turn = self.all(-0x77777778)  # bit 3 of each
        return self.e.builder.xor(words, turn) if self.form.signed else words

    def of_place(self, words: ir.Value, place: int) -> ir.Value:
        """The weights of 4 bits at one place of all lanes; times 2 to the power `_bit(place)` if
        they are not looked up."""
        b, bit = self.e.builder, _bit(place)
        if self.looks_up:
            return self._looked_up(b.lshr(words, self.all(4 * place)) if place else words)
        if bit != 4 * place:
            words = b.lshr(words, self.all(4 * place - bit))
        return self.of_words(b.and_(words, self.all(15 << bit)), bit)

    def in_order(self, place: ir.Value) -> ir.Value:
        """The weights of one vector, as they follow each other."""
        if self.form.bits == 8:
            return self.of_bytes(place)
        b, kind = self.e.builder, ir.VectorType(I8, self.lanes // 2)
        held = b.load(b.bitcast(place, kind.as_pointer()), align=1)
        twice = ir.Constant(self.words, [i // 2 for i in range(self.lanes)])
        word = self.turned(b.zext(b.shuffle_vector(held, held, twice), self.words))
        word = b.lshr(word, ir.Constant(self.words, [4 * (i % 2) for i in range(self.lanes)]))
        return self.of_words(b.and_(word, self.all(15)))

    def _looked_up(self, words: ir.Value) -> ir.Value:
        """By the low 4 bits of each lane."""
        name = "llvm.x86.avx512.permvar.sf.512"
        kind = ir.FunctionType(self.floats, [self.floats, self.words])
        held = self.e.module.globals.get(name)
        function = held if held is not None else ir.Function(self.e.module, kind, name)
        table = ir.Constant(self.floats, [float(i - self.form.zero) for i in range(16)])
        return self.e.builder.call(function, [table, words])


@dataclass(slots=True)
class _Dots:
    """A tile of the kernel of few rows: of so many rows of x and of W, their sums over k."""

    f: Emitter
    xs: list[ir.Value]
    ws: list[ir.Value]
    scales: list[ir.Value]
    k: ir.Value
    groups: ir.Value
    sums: dict[tuple[int, int], ir.Value]
    totals: dict[tuple[int, int], ir.Value]


class _Few:
    """The kernel of few rows of x. args: out, x, weights, scale, m, n, k, groups."""

    def __init__(self, e: Emitter, form: Weights, tile: Tile) -> None:
        self.e, self.form, self.tile = e, form, tile

    def write(self) -> None:
        e, b = self.e, self.e.builder
        places = [e.pointer_argument(i, d) for i, d in enumerate(("f32", "f32", "i8", "f32"))]
        m, n, k, groups = (e.argument(i) for i in range(4, 8))
        dots = {form: self._dots(*form) for form in FORMS}

        def unit(form: tuple[int, int], first: ir.Value) -> None:
            rows, channels = (e.index(x) for x in form)
            last = b.add(first, e.index(CHANNELS))
            with e.for_range(e.index(0), m, rows) as r, e.for_range(first, last, channels) as j:
                b.call(dots[form], [*places, m, n, k, groups, r, j])

        with e.for_range(e.lo, e.hi) as number:
            first = b.mul(number, e.index(CHANNELS))
            for form in FORMS:
                if form == FORMS[-1]:
                    chosen = b.icmp_signed(">=", m, e.index(form[0] - 1))
                else:
                    chosen = b.icmp_signed("==", m, e.index(form[0]))
                with b.if_then(chosen):
                    unit(form, first)

    def _dots(self, rows: int, channels: int) -> ir.Function:
        """out[r + i, j + c] for so many i and c; those past the last repeat it."""
        kinds = [F32.as_pointer(), F32.as_pointer(), I8.as_pointer(), F32.as_pointer(), *[I64] * 6]
        name = f"dots{rows}x{channels}"
        with internal_function(self.e, name, kinds, (0,)) as (function, f):
            b, (out, x, weights, scale, m, n, k, groups, r, j) = f.builder, function.args
            with b.if_then(b.icmp_signed("<", j, n)):
                long = self._row_of_x(f, k)
                xs = [f.at(x, b.mul(_at_most(f, r, i, m), long)) for i in range(rows)]
                held = b.sdiv(k, f.index(self.form.each))
                numbers = [_at_most(f, j, c, n) for c in range(channels)]
                ws = [f.at(weights, b.mul(number, held)) for number in numbers]
                scales = [f.at(scale, b.mul(number, groups)) for number in numbers]
                v, pairs = (
                    Vectors(f, self.tile),
                    [(i, c) for i in range(rows) for c in range(channels)],
                )
                sums, totals = ({p: f.alloca(v.kind) for p in pairs} for _ in range(2))
                for slot in totals.values():
                    b.store(v.zero(), slot)
                self._add_up(_Dots(f, xs, ws, scales, k, groups, sums, totals), v)
                for (i, c), slot in totals.items():
                    row, column = b.add(r, f.index(i)), b.add(j, f.index(c))
                    inside = b.and_(b.icmp_signed("<", row, m), b.icmp_signed("<", column, n))
                    with b.if_then(inside):
                        total = _sum_of(f, v, b.load(slot))
                        b.store(total, f.at(out, b.add(b.mul(row, n), column)))
        return function

    def _row_of_x(self, f: Emitter, k: ir.Value) -> ir.Value:
        """Elements from a row of x to the next."""
        raise NotImplementedError

    def _add_up(self, dots: _Dots, v: Vectors) -> None:
        """Add everything to the totals."""
        raise NotImplementedError

    @staticmethod
    def _multiply(
        dots: _Dots,
        v: Vectors,
        by: Sequence[ir.Value],
        c: int,
        factors: Sequence[Sequence[ir.Value]],
    ) -> None:
        """Add the products of row c of W, as vectors, and of each row of x to their sums."""
        b = dots.f.builder
        for i, given in enumerate(factors):
            total = b.load(dots.sums[i, c])
            for factor, weight in zip(given, by, strict=True):
                total = v.multiply_add(factor, weight, total)
            b.store(total, dots.sums[i, c])

    @staticmethod
    def _scale(dots: _Dots, v: Vectors, c: int, by: ir.Value) -> None:
        """Add the sums of row c of W, times their scales, to the totals."""
        b = dots.f.builder
        for i in range(len(dots.xs)):
            slot = dots.totals[i, c]
            b.store(v.multiply_add(b.load(dots.sums[i, c]), by, b.load(slot)), slot)

    @staticmethod
    def _clear(dots: _Dots, v: Vectors) -> None:
        for slot in dots.sums.values():
            dots.f.builder.store(v.zero(), slot)


class _FewOfBytes(_Few):
    def _row_of_x(self, f: Emitter, k: ir.Value) -> ir.Value:
        return k

    def _add_up(self, dots: _Dots, v: Vectors) -> None:
        f, b, widening = dots.f, dots.f.builder, _Widening(dots.f, self.form, self.tile)
        depth = b.sdiv(dots.k, dots.groups)
        with f.for_range(f.index(0), dots.groups) as group:
            start = b.mul(group, depth)
            self._clear(dots, v)
            with f.for_range(start, b.add(start, depth), f.index(v.lanes)) as p:
                given = [[v.load(f.at(x, p))] for x in dots.xs]
                for c, row in enumerate(dots.ws):
                    self._multiply(dots, v, [widening.of_bytes(f.at(row, p))], c, given)
            for c, place in enumerate(dots.scales):
                self._scale(dots, v, c, v.splat(b.load(f.at(place, group))))


class _FewOfHalves(_Few):
    def _row_of_x(self, f: Emitter, k: ir.Value) -> ir.Value:
        b, step = f.builder, f.index(PLACES * self.tile.lanes)
        return b.mul(b.sdiv(b.add(k, b.sub(step, f.index(1))), step), step)

    def _add_up(self, dots: _Dots, v: Vectors) -> None:
        f, b = dots.f, dots.f.builder
        step = PLACES * v.lanes
        rest = b.srem(dots.k, f.index(step))
        whole = b.sub(dots.k, rest)
        # groups are powers of two, or there is one
        zeros = b.cttz(b.sdiv(dots.k, dots.groups), ir.Constant(ir.IntType(1), 0))
        one = b.icmp_signed("==", dots.groups, f.index(1))
        shift = b.select(one, f.index(63), zeros)
        with f.for_range(f.index(0), whole, f.index(step)) as p:
            self._step(dots, v, p, shift)
        if step > 32:
            with b.if_then(b.icmp_signed("!=", rest, f.index(0))):
                self._step(dots, v, whole, shift, v.mask(b.sdiv(rest, f.index(PLACES))))

    def _step(
        self, dots: _Dots, v: Vectors, p: ir.Value, shift: ir.Value, mask: ir.Value | None = None
    ) -> None:
        """One word of each lane; mask: of the lanes that have one."""
        f, b, widening = dots.f, dots.f.builder, _Widening(dots.f, self.form, self.tile)
        at = b.sdiv(p, f.index(2))
        self._clear(dots, v)
        starts = [f.at(x, p) for x in dots.xs]
        words = [self._words(f, v, f.at(row, at), mask) for row in dots.ws]
        for row in dots.ws if mask is None else ():  # the same place of the next rows
            ahead = f.at(row, b.add(at, b.mul(dots.k, f.index(CHANNELS // 2))))
            b.call(v.prefetch(), [ahead, *(ir.Constant(I32, x) for x in (0, 3, 1))])
        for place in range(PLACES):
            given = [[v.load(f.at(x, f.index(place * v.lanes)))] for x in starts]
            for c, held in enumerate(words):
                self._multiply(dots, v, [widening.of_place(held, place)], c, given)
        self._scale_all(dots, v, p, shift)

    def _words(self, f: Emitter, v: Vectors, place: ir.Value, mask: ir.Value | None) -> ir.Value:
        b, kind = f.builder, ir.VectorType(I32, v.lanes)
        if mask is None:
            held = b.load(b.bitcast(place, kind.as_pointer()), align=1)
        else:
            held = b.bitcast(v.masked_load(b.bitcast(place, F32.as_pointer()), mask), kind)
        return _Widening(f, self.form, self.tile).turned(held)

    def _scale_all(self, dots: _Dots, v: Vectors, p: ir.Value, shift: ir.Value) -> None:
        """The step's sums times the scale of the group that each lane is of."""
        f, b = dots.f, dots.f.builder
        quarters = max(1, v.lanes // 4)  # 32 neighbours of k are in one group
        groups = [b.lshr(b.add(p, f.index(32 * q)), shift) for q in range(quarters)]
        last = b.sub(dots.groups, f.index(1))
        groups = [b.select(b.icmp_signed("<", g, last), g, last) for g in groups]
        first = groups[0]
        same = b.icmp_signed("==", first, groups[-1])
        for c, place in enumerate(dots.scales):
            with b.if_else(same) as (then, otherwise):
                with then:
                    self._scale(dots, v, c, v.splat(b.load(f.at(place, first))))
                with otherwise:
                    by = ir.Constant(v.kind, ir.Undefined)
                    for q, group in enumerate(groups):
                        held = b.load(f.at(place, group))
                        by = b.insert_element(by, held, ir.Constant(I32, q))
                    spread = ir.Constant(
                        ir.VectorType(I32, v.lanes), [i // 4 for i in range(v.lanes)]
                    )
                    self._scale(dots, v, c, b.shuffle_vector(by, by, spread))


def _at_most(f: Emitter, first: ir.Value, number: int, count: ir.Value) -> ir.Value:
    """first + number, or the last one."""
    b, last = f.builder, f.builder.sub(count, f.index(1))
    at = b.add(first, f.index(number))
    return b.select(b.icmp_signed("<", at, last), at, last)


def _sum_of(f: Emitter, v: Vectors, vector: ir.Value) -> ir.Value:
    """The sum of the lanes, by halves."""
    b, lanes = f.builder, v.lanes
    while lanes > 1:
        lanes //= 2
        kind = ir.VectorType(I32, lanes)
        halves = [
            b.shuffle_vector(vector, vector, ir.Constant(kind, list(range(s, s + lanes))))
            for s in (0, lanes)
        ]
        vector = reduce(b.fadd, halves)
    return b.extract_element(vector, ir.Constant(I32, 0))


def _emit_panels(e: Emitter, form: Weights) -> None:
    """A prologue of B: k by columns, from rows of W. Its words: weights, scale, n, k, groups.

    Squares of a vector's lanes are turned in registers. Columns past the last repeat it: a row of
    the block has room for whole vectors, and what is in those of no column reaches no result."""
    b, tile = e.builder, tile_of("f32")
    where, word = block_words(e)
    weights = b.inttoptr(word(), I8.as_pointer())
    scale = b.inttoptr(word(), F32.as_pointer())
    n, k, groups = word(), word(), word()
    target = b.inttoptr(where["tile"], F32.as_pointer())
    v, widening, lanes = Vectors(e, tile), _Widening(e, form, tile), e.index(tile.lanes)
    depth, zero, last = b.sdiv(k, groups), e.index(0), b.sub(n, e.index(1))
    with e.for_range(zero, where["columns"], lanes) as column:
        first = b.add(where["column"], column)
        numbers = []
        for i in range(tile.lanes):
            at = b.add(first, e.index(i))
            numbers.append(b.select(b.icmp_signed("<", at, last), at, last))
        with e.for_range(zero, where["rows"], lanes) as p:
            row = b.add(where["row"], p)
            group = b.sdiv(row, depth)
            rows = []
            for number in numbers:
                place = b.sdiv(b.add(b.mul(number, k), row), e.index(form.each))
                by = b.load(e.at(scale, b.add(b.mul(number, groups), group)))
                rows.append(b.fmul(widening.in_order(e.at(weights, place)), v.splat(by)))
            for i, made in enumerate(interleave(b, rows)):
                to = b.add(b.mul(b.add(p, e.index(i)), where["tile_row"]), column)
                v.store(made, e.at(target, to))
