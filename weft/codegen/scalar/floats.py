"""Elementwise operations on floats, as LLVM at f32 or f64 (16-bit floats compute in f32).

Every op is rounded by itself, so its bits do not depend on what is in the kernel with it; where a
product and a sum are rounded together, the graph says so (`fma`, from
`passes/simplify/algebra.py`).
Comparisons, NaN, inf and signed zero behave as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.scalar.integers import COMPARISONS
from weft.codegen.vector import functions as vector_math
from weft.codegen.vector.float_builder import FloatBuilder
from weft.codegen.vector.slow_path import truncated_remainder

FloatOp = Callable[[Emitter, str, list[ir.Value]], ir.Value]


def _compare(operator: str) -> FloatOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        if operator == "!=":
            return e.builder.fcmp_unordered(operator, *args)
        return e.builder.fcmp_ordered(operator, *args)

    return emit


def _method(name: str) -> FloatOp:
    """One method of llvmlite's builder."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return getattr(e.builder, name)(*args)

    return emit


def _unary(function: vector_math.UnaryFunction) -> FloatOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return function(FloatBuilder(e.builder, dtype, args[0]), args[0])

    return emit


def _binary(function: vector_math.BinaryFunction) -> FloatOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return function(FloatBuilder(e.builder, dtype, args[0]), *args)

    return emit


def _intrinsic(name: str) -> FloatOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return FloatBuilder(e.builder, dtype, args[0]).call(name, *args)

    return emit


def call_libm(e: Emitter, name: str, result: ir.Type, args: list[ir.Value]) -> ir.Value:
    """Call a C function by name; declared free of memory effects so that LLVM may move it."""
    function = e.module.globals.get(name)
    if function is None:
        function = ir.Function(e.module, ir.FunctionType(result, [a.type for a in args]), name)
        function.attributes.add("nounwind")
        function.attributes.add("readnone")
    return e.builder.call(function, args)


def _reciprocal(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return m.div(1.0, x)


def _sign(m: FloatBuilder, x: ir.Value) -> ir.Value:
    nonzero = m.select(m.compare("!=", x, 0.0), m.copysign(1.0, x), 0.0)
    return m.select(m.is_nan(x), x, nonzero)


def _square(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return e.builder.fmul(args[0], args[0])


def _signbit(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return m.builder.icmp_signed("<", m.bits(x), m.int_const(0))


def _extremum(operator: str) -> FloatOp:
    """The first operand if it wins or is NaN; else the second, NaN included (so 0, -0 give -0)."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        m = FloatBuilder(e.builder, dtype, args[0])
        first = m.either(m.compare(operator, *args), m.is_nan(args[0]))
        return m.select(first, *args)

    return emit


def _floor_modulus(m: FloatBuilder, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(a mod b with the sign of b, quotient before rounding), as NumPy's npy_divmod."""
    truncated = truncated_remainder(m, a, b)
    quotient = m.div(m.sub(a, truncated), b)
    zero = m.compare("==", truncated, 0.0)
    signs_differ = m.builder.xor(m.compare("<", b, 0.0), m.compare("<", truncated, 0.0))
    adjust = m.builder.and_(m.compare("!=", truncated, 0.0), signs_differ)
    modulus = m.select(adjust, m.add(truncated, b), truncated)
    return m.select(zero, m.copysign(0.0, b), modulus), m.select(
        adjust, m.sub(quotient, 1.0), quotient
    )


def _remainder(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return _floor_modulus(FloatBuilder(e.builder, dtype), *args)[0]


def _floor_divide(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    m = FloatBuilder(e.builder, dtype)
    a, b = args
    _, quotient = _floor_modulus(m, a, b)
    floor = m.call("floor", quotient)
    # The quotient is near an integer but for rounding errors.
    above = m.compare(">", m.sub(quotient, floor), 0.5)
    floor = m.select(above, m.add(floor, 1.0), floor)
    ratio = m.div(a, b)
    floor = m.select(m.compare("==", quotient, 0.0), m.copysign(0.0, ratio), floor)
    return m.select(m.compare("==", b, 0.0), ratio, floor)


def _logaddexp(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """max + log(1 + e**-|x - y|); equal operands, infinities among them, apart (as NumPy)."""
    m = FloatBuilder(e.builder, dtype)
    x, y = args
    difference = m.sub(x, y)
    larger = m.select(m.compare(">", difference, 0.0), x, y)
    decay = vector_math.VECTORISED["exp"](m, m.neg(m.abs(difference)))
    total = m.add(larger, vector_math.VECTORISED["log1p"](m, decay))
    return m.select(m.compare("==", x, y), m.add(x, math.log(2.0)), total)


def _nextafter(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    m = FloatBuilder(e.builder, dtype)
    return m.from_bits(next_bits(m, m.bits(args[0]), m.bits(args[1]), args))


def next_bits(
    m: FloatBuilder, x_bits: ir.Value, y_bits: ir.Value, args: list[ir.Value]
) -> ir.Value:
    """The bits, of any width, after those of x towards y; ``args`` are x and y (C99 F.9.8.3)."""
    x, y = args
    kind = x_bits.type
    one = ir.Constant(kind, 1)
    sign = ir.Constant(kind, 1 << (kind.width - 1))
    smallest = m.builder.or_(m.builder.and_(y_bits, sign), one)
    # Bits of one sign order as integers: away from 0 is + 1.
    outward = m.builder.xor(m.compare("<", x, y), m.compare("<", x, 0.0))
    step = m.builder.select(outward, one, ir.Constant(kind, -1))
    moved = m.builder.select(m.compare("==", x, 0.0), smallest, m.builder.add(x_bits, step))
    result = m.builder.select(m.compare("!=", x, y), moved, y_bits)
    return m.builder.select(m.is_nan(x), x_bits, result)


FLOAT_OPS: dict[str, FloatOp] = {
    **{op: _compare(operator) for op, operator in COMPARISONS.items()},
    "add": _method("fadd"),
    "subtract": _method("fsub"),
    "multiply": _method("fmul"),
    "divide": _method("fdiv"),
    "fma": _intrinsic("fma"),
    "negative": lambda e, dtype, args: e.builder.fneg(args[0]),
    "square": _square,
    "abs": _intrinsic("fabs"),
    "ceil": _intrinsic("ceil"),
    "floor": _intrinsic("floor"),
    "round": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "copysign": _intrinsic("copysign"),
    "sign": _unary(_sign),
    "reciprocal": _unary(_reciprocal),
    **{op: _unary(function) for op, function in vector_math.VECTORISED.items()},
    **{op: _binary(function) for op, function in vector_math.VECTORISED_BINARY.items()},
    "logaddexp": _logaddexp,
    "nextafter": _nextafter,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "maximum": _extremum(">"),
    "minimum": _extremum("<"),
    "isnan": _unary(lambda m, x: m.is_nan(x)),
    "isinf": _unary(lambda m, x: m.compare("==", m.abs(x), math.inf)),
    "isfinite": _unary(lambda m, x: m.compare("<", m.abs(x), math.inf)),
    "signbit": _unary(_signbit),
    **dict.fromkeys(("conj", "real"), lambda e, dtype, args: args[0]),
    "imag": lambda e, dtype, args: ir.Constant(args[0].type, 0.0),
}
