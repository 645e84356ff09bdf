"""Kernels that measure the machine: STREAM-like copies and sums, and independent multiply-adds.

They are written out in vectors as wide as the machine has, so that what is measured is the
machine's limit and not LLVM's choice of width.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import has_feature

#: Vectors that a loop of a stream kernel handles per iteration.
UNROLL = 4
#: Stream kernels: name -> arrays of the three that they touch (out, a, b), all f32.
STREAMS = {"copy": 2, "memcpy": 2, "triad": 3, "sum": 1, "copy_streaming": 2}
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def vector_bytes() -> int:
    """The width of the widest vector registers for floating point."""
    if has_feature("avx512f"):
        return 64
    return 32 if has_feature("avx") else 16


def fma_count() -> int:
    """Accumulators of an FMA kernel: more than two units with a latency of five need, and no more
    than fit into the registers beside the factors."""
    registers = 32 if vector_bytes() == 64 or has_feature("neon") else 16
    return 12 if registers == 16 else 16


def stream_kernel(name: str) -> Kernel:
    """One of `STREAMS`. Arguments: out, a, b, elements, bytes between units, repeats.

    copy: out = a; memcpy: the same by the C library; triad: out = a + 3 b; sum: out[0] = sum(a);
    copy_streaming: copy with stores that go around the caches. Every unit handles its own
    `elements` (a multiple of `UNROLL` vectors, aligned to 64 bytes) `repeats` times.
    """
    width = vector_bytes()
    return Kernel(f"peak-stream-1-{name}-{width}", f"stream_{name}", _stream(name, width // 4))


def fma_kernel(dtype: str) -> Kernel:
    """Arguments: address of 64 bytes per worker and of the factors (two elements), iterations.

    Each unit does `iterations * fma_count()` multiply-adds of vectors of `dtype` (f32, f64).
    """
    width, count = vector_bytes(), fma_count()
    size = 4 if dtype == "f32" else 8
    emit = _fma(_F32 if dtype == "f32" else _F64, width // size, count)
    return Kernel(f"peak-fma-2-{dtype}-{width}-{count}", f"fma_{dtype}", emit)


def _stream(name: str, lanes: int) -> Callable[[Emitter], None]:
    vector = ir.VectorType(_F32, lanes)

    def emit(e: Emitter) -> None:
        bases = [e.argument(k) for k in range(3)]
        elements, stride, repeats = (e.argument(k) for k in range(3, 6))
        step = e.index(lanes * UNROLL)
        with e.for_range(e.lo, e.hi) as unit, e.for_range(e.index(0), repeats):
            b = e.builder
            moved = b.mul(unit, stride)
            pointers = [b.inttoptr(b.add(p, moved), _F32.as_pointer()) for p in bases]
            if name == "memcpy":
                _memcpy(e, pointers[0], pointers[1], elements)
            else:
                with e.loop_function("pass", pointers, [elements]) as (inner, (out, x, y), (n,)):
                    _pass(inner, name, vector, (out, x, y), n, step)

    return emit


def _memcpy(e: Emitter, out: ir.Value, given: ir.Value, elements: ir.Value) -> None:
    byte = ir.IntType(8).as_pointer()
    copy = e.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
    ends = [e.builder.bitcast(p, byte) for p in (out, given)]
    size = e.builder.mul(elements, e.index(4))
    e.builder.call(copy, [*ends, size, ir.Constant(ir.IntType(1), 0)])


def _pass(
    e: Emitter,
    name: str,
    vector: ir.Type,
    arrays: tuple[ir.Value, ...],
    n: ir.Value,
    step: ir.Value,
) -> None:
    out, x, y = arrays
    b, lanes = e.builder, vector.count

    def place(base: ir.Value, i: ir.Value, k: int) -> ir.Value:
        at = e.at(base, b.add(i, e.index(k * lanes)))
        return b.bitcast(at, vector.as_pointer())

    zero = ir.Constant(vector, [0.0] * lanes)
    three = ir.Constant(vector, [3.0] * lanes)
    sums = [e.alloca(vector) for _ in range(UNROLL)] if name == "sum" else []
    for total in sums:
        b.store(zero, total)
    with e.for_range(e.index(0), n, step) as i:
        for k in range(UNROLL):
            held = b.load(place(x, i, k))
            if name == "sum":
                b.store(b.fadd(b.load(sums[k]), held), sums[k])
                continue
            if name == "triad":
                held = b.fadd(held, b.fmul(three, b.load(place(y, i, k))), flags=("contract",))
            stored = b.store(held, place(out, i, k))
            if name == "copy_streaming":
                one = e.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                stored.set_metadata("nontemporal", one)
    for total in sums[1:]:
        b.store(b.fadd(b.load(sums[0]), b.load(total)), sums[0])
    if sums:
        b.store(b.load(sums[0]), place(out, e.index(0), 0))


def _fma(element: ir.Type, lanes: int, count: int) -> Callable[[Emitter], None]:
    vector = ir.VectorType(element, lanes)
    suffix = f"v{lanes}f{32 if element is _F32 else 64}"

    def emit(e: Emitter) -> None:
        sink, factors, iterations = (e.argument(k) for k in range(3))
        b = e.builder
        sink = b.add(sink, b.mul(e.worker, e.index(64)))
        pointers = [
            b.inttoptr(sink, vector.as_pointer()), b.inttoptr(factors, element.as_pointer())
        ]  # fmt: skip
        fma = ir.Function(e.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.{suffix}")
        total = b.mul(b.sub(e.hi, e.lo), iterations)
        with e.loop_function("fma", pointers, [total]) as (inner, (out, given), (n,)):
            _multiply_adds(inner, fma, count, out, given, n)

    return emit


def _multiply_adds(
    e: Emitter, fma: ir.Function, count: int, out: ir.Value, given: ir.Value, n: ir.Value
) -> None:
    b = e.builder
    vector = fma.function_type.return_type
    scale, offset = (_splat(e, b.load(e.at(given, e.index(k))), vector) for k in range(2))
    sums = [e.alloca(vector) for _ in range(count)]
    for k, total in enumerate(sums):
        b.store(ir.Constant(vector, [1.0 + k / 64] * vector.count), total)
    with e.for_range(e.index(0), n):
        for total in sums:
            b.store(b.call(fma, [b.load(total), scale, offset]), total)
    held = b.load(sums[0])
    for total in sums[1:]:
        held = b.fadd(held, b.load(total))
    b.store(held, out)


def _splat(e: Emitter, value: ir.Value, vector: ir.Type) -> ir.Value:
    b = e.builder
    undefined = ir.Constant(vector, ir.Undefined)
    held = b.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return b.shuffle_vector(held, undefined, mask)
