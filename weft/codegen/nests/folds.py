"""Folds: the reductions in nests.

The value that a fold starts from, one step of it, partial results, and what it holds in registers
while it runs over elements.

What is folded over rows or blocks is cut into fixed blocks - a function of the extents alone - and
each leaves a partial result in scratch memory; a second call adds them up in order. So the bits
depend neither on how many threads there are nor on which of them did what.

`Held`, the state of a fold in registers, is one number, or three integers. The bits of floats order
as the floats do: of those that are not negative as they are, of negative ones from behind. So of
all elements' bits the greatest and the least as unsigned numbers and the greatest as signed ones
say what the greatest and the least element are, with -0 below 0, and whether one is NaN. These are
three instructions of one cycle, in any order. `llvm.maximum`, which means the same, becomes a chain
of six for AVX2 and AVX-512."""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, cut_call
from weft.codegen.llvm.emitter import F64, HALVES, I32, I64, Emitter, memory_type, register_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import has_feature
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.vector.float_builder import intrinsic, splat_constant
from weft.ir.cost.rates import FOLDED_PARTIAL_NS
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.ops.reduction import FOLDS

SUM_BLOCK = 4096
#: A fold over rows or blocks has at most so many partial results.
MOST_PARTIALS = 64
#: Columns that one unit of the combining call adds up: whole cache lines of every dtype.
COMBINE_COLUMNS = 256
#: Lets a loop add up in lanes. Not with nsz: LLVM then cancels x - x in what is added up, whatever
#: flags that has (InstCombine's FAddCombine), and with it the NaN of an infinite x.
REASSOCIATED = ("reassoc",)
_SIZE = {"f32": 4, "f64": 8}


def is_wide_sum(reduction: str | None, dtype: str) -> bool:
    """Sums in f32 are cut into blocks, whose totals add up in f64."""
    return reduction == "sum" and dtype in ("f32", *HALVES)


def running_dtype(reduction: str, dtype: str, one_number: bool) -> str:
    """The dtype in which partial results are kept: f64 for a single sum of f32, f32 for halves."""
    if one_number and is_wide_sum(reduction, dtype):
        return "f64"
    return "f32" if dtype in HALVES else dtype


def fold(e: Emitter, reduction: str, dtype: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """One step of a reduction on register values; floats may be vectors of them."""
    op = FOLDS[reduction]
    if dtype in ("f32", "f64", *HALVES):
        if op == "add":
            return e.builder.fadd(a, b, flags=REASSOCIATED)
        if op == "multiply":
            return e.builder.fmul(a, b, flags=REASSOCIATED)
        # llvm.maximum propagates NaN as NumPy does, and its reductions vectorise
        binary = ir.FunctionType(a.type, [a.type, a.type])
        return e.builder.call(intrinsic(e.module, op, [a.type], binary), [a, b])
    return emit_scalar(e, op, dtype, [a, b], {})


def identity(reduction: str | None, dtype: str) -> ir.Value:
    """The value that a fold starts from."""
    known = as_dtype(dtype)
    if reduction in ("sum", "any"):
        return constant(dtype, 0)
    if reduction in ("prod", "all"):
        return constant(dtype, 1)
    if known.is_floating:
        return constant(dtype, float("-inf") if reduction == "max" else float("inf"))
    lowest, highest = _integer_range(dtype)
    return constant(dtype, lowest if reduction == "max" else highest)


def _integer_range(dtype: str) -> tuple[int, int]:
    bits = as_dtype(dtype).bits
    if as_dtype(dtype).kind == "bool":
        return 0, 1
    if as_dtype(dtype).kind == "uint":
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def convert(e: Emitter, value: ir.Value, source: str, target: str) -> ir.Value:
    """Between a dtype and the one that its partial results are kept in."""
    kinds = register_type(source), register_type(target)
    if kinds[0] == kinds[1]:
        return value
    return (
        e.builder.fpext(value, kinds[1]) if target == "f64" else e.builder.fptrunc(value, kinds[1])
    )


@dataclass(frozen=True, slots=True)
class Partials:
    """The partial results of one fold: `blocks` times `count` elements at byte `offset`."""

    reduction: str
    dtype: str
    running: str
    blocks: int
    count: int
    offset: int
    output: Address


def lay_out(folds: list[tuple[str, str, int, Address]], blocks: int) -> tuple[list[Partials], int]:
    """Partial results of (reduction, dtype, elements, output) each; and their bytes in all."""
    made, offset = [], 0
    for reduction, dtype, count, output in folds:
        running = running_dtype(reduction, dtype, count == 1)
        made.append(Partials(reduction, dtype, running, blocks, count, offset, output))
        size = 1 if running == "bool" else as_dtype(running).bits // 8
        offset += (blocks * count * size + 63) // 64 * 64
    return made, offset


def combine_call(partials: Partials, scratch: Scratch) -> KernelCall:
    """Add up partial results: args scratch, offset, output, blocks, count. No call may be between
    this one and the one that made them: they see the same scratch memory.
    """
    p = partials
    key = f"combine-2-{p.reduction}-{p.running}-{p.dtype}"
    name = f"combine_{p.reduction}_{p.dtype}"
    if _has_vectors(p):
        kernel = Kernel(key, name, lambda e: _emit_vector_combine(e, p), loops=False)
    else:
        kernel = Kernel(key, name, lambda e: _emit_combine(e, p))
    units = -(-p.count // COMBINE_COLUMNS)
    args = (scratch, p.offset, p.output, p.blocks, p.count)
    return cut_call(kernel, args, units, COMBINE_COLUMNS * p.blocks * FOLDED_PARTIAL_NS)


def _has_vectors(p: Partials) -> bool:
    """Whether its vectors are written out: sums of floats, which every training step has. Compiling
    this takes a fifth of what LLVM's loop vectoriser takes."""
    return p.reduction == "sum" and {p.dtype, p.running} <= {"f32", "f64"}


def _emit_vector_combine(e: Emitter, p: Partials) -> None:
    """Columns by 64, then by 16, then one by one; of each the partial results in order."""
    b = e.builder
    base = b.inttoptr(b.add(e.argument(0), e.argument(1)), memory_type(p.running).as_pointer())
    out = e.pointer_argument(2, p.dtype)
    blocks, count = e.argument(3), e.argument(4)
    start = b.mul(e.lo, e.index(COMBINE_COLUMNS))
    end = b.mul(e.hi, e.index(COMBINE_COLUMNS))
    stop = b.select(b.icmp_signed("<", end, count), end, count)
    for lanes, vectors in ((16, 4), (16, 1), (1, 1)):
        columns = e.index(lanes * vectors)
        whole = b.sub(stop, b.srem(b.sub(stop, start), columns))
        with e.for_range(start, whole, columns) as j:
            places = [b.add(j, e.index(lanes * k)) for k in range(vectors)]
            totals = _sums(e, p, base, places, lanes, (blocks, count))
            for place, total in zip(places, totals, strict=True):
                kind = _vector(p.dtype, lanes)
                if p.dtype != p.running:
                    total = b.fptrunc(total, kind)
                pointer = b.bitcast(e.at(out, place), kind.as_pointer())
                b.store(total, pointer, align=_SIZE[p.dtype])
        start = whole


def _sums(
    e: Emitter,
    p: Partials,
    base: ir.Value,
    places: list[ir.Value],
    lanes: int,
    sizes: tuple[ir.Value, ir.Value],
) -> list[ir.Value]:
    """Of `lanes` columns from each place on."""
    b, (blocks, count) = e.builder, sizes
    kind = _vector(p.running, lanes)

    def part(at: ir.Value) -> ir.Value:
        return b.load(b.bitcast(e.at(base, at), kind.as_pointer()), align=_SIZE[p.running])

    totals = []
    for place in places:
        total = e.alloca(kind)
        b.store(part(place), total)
        totals.append(total)
    with e.for_range(e.index(1), blocks) as k:
        row = b.mul(k, count)
        for place, total in zip(places, totals, strict=True):
            b.store(b.fadd(b.load(total), part(b.add(row, place))), total)
    return [b.load(total) for total in totals]


def _vector(dtype: str, lanes: int) -> ir.Type:
    element = register_type(dtype)
    return ir.VectorType(element, lanes) if lanes > 1 else element


def _emit_combine(e: Emitter, p: Partials) -> None:
    b = e.builder
    base = b.inttoptr(b.add(e.argument(0), e.argument(1)), memory_type(p.running).as_pointer())
    out = e.pointer_argument(2, p.dtype)
    numbers = [e.argument(3), e.argument(4), e.lo, e.hi]
    with e.loop_function("combine", [base, out], numbers) as (f, (parts, out), sizes):
        blocks, count, lo, hi = sizes
        b, one = f.builder, f.index(1)
        start = b.mul(lo, f.index(COMBINE_COLUMNS))
        end = b.mul(hi, f.index(COMBINE_COLUMNS))
        stop = b.select(b.icmp_signed("<", end, count), end, count)
        with f.for_range(one, blocks) as k:
            row = f.at(parts, b.mul(k, count))
            with f.for_range(start, stop) as j:
                total = load_element(f, f.at(parts, j), p.running)
                part = load_element(f, f.at(row, j), p.running)
                store_element(
                    f, fold(f, p.reduction, p.running, total, part), f.at(parts, j), p.running
                )
        with f.for_range(start, stop) as j:
            total = load_element(f, f.at(parts, j), p.running)
            store_element(f, convert(f, total, p.running, p.dtype), f.at(out, j), p.dtype)


#: Of the bits of all elements: these three.
_EXTREMA = ("umax", "umin", "smax")
#: By integer type: the bits of infinity, and of a NaN.
_INFINITY = {I32: 0x7F80_0000, I64: 0x7FF0_0000_0000_0000}
_NAN = {I32: 0x7FC0_0000, I64: 0x7FF8_0000_0000_0000}


def is_in_bits(reduction: str | None, dtype: str) -> bool:
    """Whether the fold holds integers: extrema of floats where vectors of such integers have these
    instructions."""
    if reduction not in ("max", "min"):
        return False
    if dtype == "f64":
        return has_feature("avx512f") and has_feature("avx512vl")
    return dtype in ("f32", *HALVES) and has_feature("sse4_1")


@cache
def counting(bits: int, first: int, lanes: int) -> ir.Constant:
    """The vector first, first + 1, ... of integers; one object, whose long text is made once."""
    kind = ir.VectorType(ir.IntType(bits), lanes)
    return ir.Constant(kind, list(range(first, first + lanes)))


class Held:
    """The state of a fold, in stack slots of which LLVM makes registers; with `lanes`, that of a
    fold in each lane."""

    def __init__(self, e: Emitter, reduction: str, dtype: str, lanes: int = 1) -> None:
        self.e, self.reduction, self.dtype, self.lanes = e, reduction, dtype, lanes
        one = register_type(dtype)
        self.kind = one if lanes == 1 else ir.VectorType(one, lanes)
        self.in_bits = is_in_bits(reduction, dtype)
        kinds = [self._bits_kind()] * len(_EXTREMA) if self.in_bits else [self.kind]
        self.slots = [e.alloca(kind) for kind in kinds]

    def begin(self) -> None:
        """Nothing is folded yet."""
        start = identity(self.reduction, self.dtype)
        if self.lanes > 1:
            start = splat_constant(self.kind, start.constant)
        self._store(self._parts(start))

    def add(self, value: ir.Value) -> None:
        """One more element, or one in each lane; or in twice, four times, ... as many lanes."""
        parts = self._load()
        if isinstance(value.type, ir.VectorType) and value.type.count > self.lanes:
            starts = range(0, value.type.count, self.lanes)
            values = [self._some(value, first, self.lanes) for first in starts]
        else:
            values = [value]
        for one in values:
            parts = self._joined(parts, self._parts(one))
        self._store(parts)

    def join(self, other: Held) -> None:
        """All that `other` has folded in twice, four times, ... as many lanes."""
        self._store(self._joined(self._load(), other.narrowed(self.lanes)))

    def take(self, other: Held) -> None:
        """As `join` where nothing is folded yet."""
        self._store(other.narrowed(self.lanes))

    def value(self) -> ir.Value:
        """What all elements so far, of all lanes, give."""
        parts, b = self.narrowed(1), self.e.builder
        if self.lanes > 1:
            parts = [b.extract_element(p, ir.Constant(I32, 0)) for p in parts]
        return self._extremum(parts) if self.in_bits else parts[0]

    def narrowed(self, lanes: int) -> list[ir.Value]:
        """The state in so many lanes: lower and upper halves together, until no more are left."""
        parts, count = self._load(), self.lanes
        while count > lanes:
            count //= 2
            low, high = ([self._some(p, k * count, count) for p in parts] for k in (0, 1))
            parts = self._joined(low, high)
        return parts

    def _some(self, part: ir.Value, first: int, lanes: int) -> ir.Value:
        """`lanes` lanes from number `first` on, as a vector."""
        nothing = ir.Constant(part.type, ir.Undefined)
        return self.e.builder.shuffle_vector(part, nothing, counting(32, first, lanes))

    def _load(self) -> list[ir.Value]:
        return [self.e.builder.load(slot) for slot in self.slots]

    def _store(self, parts: list[ir.Value]) -> None:
        for part, slot in zip(parts, self.slots, strict=True):
            self.e.builder.store(part, slot)

    def _bits_kind(self) -> ir.Type:
        one = I64 if register_type(self.dtype) == F64 else I32
        return one if self.lanes == 1 else ir.VectorType(one, self.lanes)

    def _parts(self, value: ir.Value) -> list[ir.Value]:
        """The state of one element alone."""
        if not self.in_bits:
            return [value]
        return [self.e.builder.bitcast(value, self._bits_kind())] * len(_EXTREMA)

    def _joined(self, a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        if not self.in_bits:
            return [fold(self.e, self.reduction, self.dtype, a[0], b[0])]
        kind = a[0].type
        binary = ir.FunctionType(kind, [kind, kind])
        functions = [intrinsic(self.e.module, name, [kind], binary) for name in _EXTREMA]
        return [self.e.builder.call(f, [x, y]) for f, x, y in zip(functions, a, b, strict=True)]

    def _extremum(self, parts: list[ir.Value]) -> ir.Value:
        """The greatest or the least element, by the extrema of the bits."""
        (most, least, signed), b = parts, self.e.builder
        kind = most.type
        zero, infinity = ir.Constant(kind, 0), ir.Constant(kind, _INFINITY[kind])
        below = ir.Constant(kind, _INFINITY[kind] - (1 << (kind.width - 1)))  # -inf
        if self.reduction == "max":  # no element without a sign: the least bits of all
            found = b.select(b.icmp_signed("<", signed, zero), least, signed)
        else:
            found = b.select(b.icmp_signed("<", most, zero), most, least)
        nan = b.or_(b.icmp_signed(">", signed, infinity), b.icmp_unsigned(">", most, below))
        found = b.select(nan, ir.Constant(kind, _NAN[kind]), found)
        return b.bitcast(found, register_type(self.dtype))
