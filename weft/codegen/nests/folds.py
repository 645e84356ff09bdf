"""Reductions in nests: the value that a fold starts from, one step of it, partial results.

What is folded over rows or blocks is cut into fixed blocks - a function of the extents alone - and
each leaves a partial result in scratch memory; a second call adds them up in order. So the bits
depend neither on how many threads there are nor on which of them did what.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch, cut_call
from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import HALVES, memory_type, register_type
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.nests.cost import CHEAP
from weft.codegen.scalar.float_builder import intrinsic
from weft.codegen.scalar.scalar import emit_scalar
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
    return cut_call(kernel, args, units, COMBINE_COLUMNS * p.blocks * CHEAP)


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
