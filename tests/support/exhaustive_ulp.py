"""All 2**32 float32 arguments of a function: its largest error against its float64 form, natively.

The kernel computes both forms and the error in units of the last place of the float64 result,
denormals included, for a range of bit patterns, and keeps the largest of each block. NaN where the
other is a number, and a zero of the wrong sign, count as infinitely wrong.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64, I32, I64, Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.vector.float_builder import FloatBuilder

BLOCK = 1 << 16  # arguments of which one maximum is kept


def error_kernel(op: str, form: str = "") -> Kernel:
    """``out[b] = max error over the block of bit patterns that starts at first[b]``; (out, first).

    Blocks [lo, hi) of them, patterns first[b] + i * step with step = args[2]. ``form`` names the
    code that is emitted just now, if a function has several.
    """

    def emit(e: Emitter) -> None:
        pointers = [e.pointer_argument(0, "f64"), e.pointer_argument(1, "i64")]
        scalars = [e.argument(2), e.lo, e.hi]
        with e.loop_function("blocks", pointers, scalars) as (inner, (out, first), (step, lo, hi)):
            b = inner.builder
            with inner.for_range(lo, hi) as block:
                start = b.load(inner.at(first, block))
                largest = inner.alloca(F64)
                b.store(ir.Constant(F64, 0.0), largest)
                with inner.for_range(inner.index(0), inner.index(BLOCK)) as i:
                    pattern = b.trunc(b.add(start, b.mul(i, step)), I32)
                    error = _error(inner, op, b.bitcast(pattern, F32))
                    maximum = b.module.declare_intrinsic("llvm.maximum", [F64], _BINARY)
                    b.store(b.call(maximum, [b.load(largest), error]), largest)
                b.store(b.load(largest), inner.at(out, block))

    return Kernel(key=f"tests.exhaustive.{op}{form}", name=f"exhaustive.{op}", emit=emit)


_BINARY = ir.FunctionType(F64, [F64, F64])


def _error(e: Emitter, op: str, x: ir.Value) -> ir.Value:
    m, narrow = FloatBuilder(e.builder, "f64"), FloatBuilder(e.builder, "f32")
    got = emit_scalar(e, op, "f32", [x], {})
    exact = emit_scalar(e, op, "f64", [e.builder.fpext(x, F64)], {})
    rounded = e.builder.fptrunc(exact, F32)
    same = e.builder.icmp_signed("==", narrow.bits(got), narrow.bits(rounded))
    same = m.either(same, e.builder.and_(narrow.is_nan(got), narrow.is_nan(rounded)))
    # 2**-(exponent of the last place): 23 below that of the exact result, or that of denormals.
    biased = e.builder.and_(
        e.builder.lshr(m.bits(exact), ir.Constant(I64, 52)), ir.Constant(I64, 0x7FF)
    )
    lowest = ir.Constant(I64, 1023 - 126)
    biased = e.builder.select(e.builder.icmp_signed("<", biased, lowest), lowest, biased)
    inverse = m.power_of_two(e.builder.sub(ir.Constant(I64, 1023 + 23), biased))
    error = m.mul(m.abs(m.sub(e.builder.fpext(got, F64), exact)), inverse)
    zeros = e.builder.and_(narrow.compare("==", got, 0.0), narrow.compare("==", rounded, 0.0))
    wrong = m.either(m.is_nan(error), zeros)
    return m.select(same, 0.0, m.select(wrong, float("inf"), error))


@cache
def _function(op: str, form: str) -> ctypes._FuncPointer:  # type: ignore[name-defined]
    kernel = error_kernel(op, form)
    word = ctypes.c_int64
    address = compile_kernels([kernel])[kernel.key]
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, word, word, word)(address)


def block_errors(op: str, first: np.ndarray, step: int, threads: int, form: str = "") -> np.ndarray:
    """Largest error of each block of bit patterns first[b] + i * step."""
    out = np.empty(first.size)
    args = np.array([out.ctypes.data, first.ctypes.data, step], np.int64)
    function = _function(op, form)
    cuts = np.linspace(0, first.size, 8 * threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
        list(pool.map(lambda r: function(args.ctypes.data, r[0], r[1], 0), ranges))
    return out


_HUGE_ANGLES = (np.float32(2.0**25).view(np.uint32), 0x7F800000)


def all_arguments_error(op: str, threads: int, form: str = "") -> tuple[float, float]:
    """(largest error over all float32 numbers, first number of the block it is in).

    In CI, which has not the time for all, over every other block of each exponent.
    """
    first = np.arange(1 << 16, dtype=np.int64) * BLOCK
    if "CI" in os.environ:
        first = first[::2]
    if op in ("sin", "cos", "tan"):
        # There f32 is the C library's f64 function rounded, which takes its time.
        magnitude = first & 0x7FFFFFFF
        huge = (magnitude >= _HUGE_ANGLES[0]) & (magnitude < _HUGE_ANGLES[1])
        first = first[~huge | (first // BLOCK % 16 == 0)]
    return _worst(first, block_errors(op, first, 1, threads, form))


def every_exponent_error(op: str, form: str = "") -> tuple[float, float]:
    """The same over 2**21 numbers: evenly spread bit patterns of every exponent and both signs."""
    first = np.arange(32, dtype=np.int64) * (1 << 27) + np.arange(32) * 37
    return _worst(first, block_errors(op, first, 2047, 1, form))


def _worst(first: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    worst = int(np.argmax(errors))
    return float(errors[worst]), float(np.uint32(first[worst]).view(np.float32))
