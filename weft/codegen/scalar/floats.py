"""Elementwise operations as LLVM: on floats, at f32 or f64 (16-bit floats compute in f32), and on
complex numbers (re, im).

Every op on floats is rounded by itself, so its bits do not depend on what is in the kernel with it;
where a product and a sum are rounded together, the graph says so (`fma`, from
`passes/simplify/algebra.py`). Comparisons, NaN, inf and signed zero behave as in NumPy.

Transcendental functions of complex numbers call the C library's ``double complex`` functions, as
NumPy does, for c64 too (rounded afterwards); the rest is inline, and loops around it vectorise.
Order comparisons are lexicographic with NumPy's rules for NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64, PART, Emitter
from weft.codegen.scalar.element_access import make_complex
from weft.codegen.scalar.integers import COMPARISONS
from weft.codegen.vector import functions as vector_math
from weft.codegen.vector.float_builder import FloatBuilder, truncated_remainder
from weft.codegen.vector.powers import hypot

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


ComplexOp = Callable[[Emitter, str, list[ir.Value]], ir.Value]
_Parts = tuple[ir.Value, ir.Value]


def parts(e: Emitter, value: ir.Value) -> _Parts:
    """(real, imaginary) of a register value."""
    return e.builder.extract_value(value, 0), e.builder.extract_value(value, 1)


def _partwise(method: str) -> ComplexOp:
    """The same float instruction on both parts."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        pairs = zip(*(parts(e, value) for value in args), strict=True)
        real, imaginary = (getattr(e.builder, method)(*pair) for pair in pairs)
        return make_complex(e, real, imaginary)

    return emit


def _multiply(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    (a, b), (c, d) = (parts(e, value) for value in args)
    build = e.builder
    real = build.fsub(build.fmul(a, c), build.fmul(b, d))
    imaginary = build.fadd(build.fmul(a, d), build.fmul(b, c))
    return make_complex(e, real, imaginary)


def _complex_square(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return _multiply(e, dtype, [args[0], args[0]])


def _divide(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """R. Smith, "Algorithm 116: Complex division", 1962, as NumPy."""
    m = FloatBuilder(e.builder, PART[dtype])
    (a, b), (c, d) = (parts(e, value) for value in args)
    by_real = e.builder.fcmp_ordered(">=", m.abs(c), m.abs(d))
    # Divide by c + i d with |c| >= |d|, or else, both sides turned by -i, by d - i c.
    large, small = m.select(by_real, c, d), m.select(by_real, d, c)
    first, second = m.select(by_real, a, b), m.select(by_real, b, a)
    ratio = m.div(small, large)
    scale = m.div(1.0, m.add(large, m.mul(small, ratio)))
    real = m.mul(m.add(first, m.mul(second, ratio)), scale)
    imaginary = m.mul(m.sub(second, m.mul(first, ratio)), scale)
    imaginary = m.select(by_real, imaginary, m.neg(imaginary))
    both_zero = e.builder.and_(m.compare("==", c, 0.0), m.compare("==", d, 0.0))
    real = m.select(both_zero, m.div(a, m.abs(c)), real)
    imaginary = m.select(both_zero, m.div(b, m.abs(c)), imaginary)
    return make_complex(e, real, imaginary)


def _constant(dtype: str, value: float) -> ir.Constant:
    kind = F32 if PART[dtype] == "f32" else F64
    pair = ir.LiteralStructType([kind, kind])
    return ir.Constant(pair, [ir.Constant(kind, value), ir.Constant(kind, 0.0)])


def _complex_reciprocal(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return _divide(e, dtype, [_constant(dtype, 1.0), args[0]])


def _abs(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return hypot(FloatBuilder(e.builder, PART[dtype]), *parts(e, args[0]))


def _complex_sign(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """z / |z|, 0 for 0; of one infinite part its sign, NaN of two; NaN + NaN i of NaN."""
    m = FloatBuilder(e.builder, PART[dtype])
    magnitude = _abs(e, dtype, args)
    is_zero, is_far = m.compare("==", magnitude, 0.0), m.compare("==", magnitude, math.inf)
    infinite = [m.compare("==", m.abs(part), math.inf) for part in parts(e, args[0])]
    both = e.builder.and_(*infinite)
    unknown = e.builder.or_(*(m.is_nan(part) for part in parts(e, args[0])))
    both = e.builder.or_(both, unknown)
    is_far = e.builder.or_(is_far, unknown)
    result = []
    for part, far in zip(parts(e, args[0]), infinite, strict=True):
        one = m.copysign(1.0, part)
        limit = m.select(both, math.nan, m.select(far, one, 0.0))
        near = m.select(is_zero, 0.0, m.div(part, magnitude))
        result.append(m.select(is_far, limit, near))
    return make_complex(e, *result)


def _conj(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    real, imaginary = parts(e, args[0])
    return make_complex(e, real, e.builder.fneg(imaginary))


def widen(e: Emitter, dtype: str, value: ir.Value) -> ir.Value:
    """The value as c128."""
    if dtype == "c128":
        return value
    return make_complex(e, *(e.builder.fpext(part, F64) for part in parts(e, value)))


def narrow(e: Emitter, dtype: str, value: ir.Value) -> ir.Value:
    """A c128 value as ``dtype``."""
    if dtype == "c128":
        return value
    return make_complex(e, *(e.builder.fptrunc(part, F32) for part in parts(e, value)))


def _call(e: Emitter, name: str, args: list[ir.Value]) -> ir.Value:
    """Call a C function of c128 operands.

    Each is passed, and returned, as two doubles: so the ABIs of x86-64 Linux and macOS and of
    AArch64 have it (Windows on x86-64 has not, nor has it C99's complex functions).
    """
    flat = [part for value in args for part in parts(e, value)]
    return call_libm(e, name, args[0].type, flat)


def _libm(name: str, scale: float = 1.0) -> ComplexOp:
    """A C function of one operand, its result times ``scale``."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        result = _call(e, name, [widen(e, dtype, args[0])])
        if scale != 1.0:
            factor = ir.Constant(F64, scale)
            result = make_complex(e, *(e.builder.fmul(p, factor) for p in parts(e, result)))
        return narrow(e, dtype, result)

    return emit


def _exp2(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    log_2 = ir.Constant(F64, math.log(2.0))
    wide = widen(e, dtype, args[0])
    scaled = make_complex(e, *(e.builder.fmul(part, log_2) for part in parts(e, wide)))
    return narrow(e, dtype, _call(e, "cexp", [scaled]))


def _expm1(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """expm1(x) cos(y) - 2 sin(y/2)**2 + i e**x sin(y), as NumPy; real where y is 0; where x is
    infinite and y has no angle -1 + 0i or inf + NaN i (as the op's meaning)."""
    real, imaginary = parts(e, widen(e, dtype, args[0]))
    m = FloatBuilder(e.builder, "f64")
    half_sine = call_libm(e, "sin", F64, [m.mul(imaginary, 0.5)])
    sine, cosine = (call_libm(e, name, F64, [imaginary]) for name in ("sin", "cos"))
    growth = call_libm(e, "expm1", F64, [real])
    correction = m.mul(m.mul(half_sine, half_sine), 2.0)
    result_real = m.sub(m.mul(growth, cosine), correction)
    exponential = call_libm(e, "exp", F64, [real])
    result_imaginary = m.mul(exponential, sine)
    flat = m.compare("==", imaginary, 0.0)
    endless = m.compare("==", m.abs(real), math.inf)
    lost = e.builder.and_(endless, e.builder.not_(m.compare("<", m.abs(imaginary), math.inf)))
    low = e.builder.and_(lost, m.compare("<", real, 0.0))
    result_real = m.select(e.builder.or_(flat, lost), growth, result_real)
    level = m.select(low, m.copysign(0.0, imaginary), result_imaginary)
    return narrow(e, dtype, make_complex(e, result_real, m.select(flat, imaginary, level)))


def _log1p(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """log(|1 + z|) + i arg(1 + z), as NumPy: absolutely, not relatively, accurate near 0."""
    real, imaginary = parts(e, widen(e, dtype, args[0]))
    shifted = e.builder.fadd(real, ir.Constant(F64, 1.0))
    modulus = call_libm(e, "hypot", F64, [shifted, imaginary])
    angle = call_libm(e, "atan2", F64, [imaginary, shifted])
    return narrow(e, dtype, make_complex(e, call_libm(e, "log", F64, [modulus]), angle))


def _sigmoid(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """1 / (1 + e**-z)"""
    negated = _partwise("fneg")(e, "c128", [widen(e, dtype, args[0])])
    real, imaginary = parts(e, _call(e, "cexp", [negated]))
    shifted = make_complex(e, e.builder.fadd(real, ir.Constant(F64, 1.0)), imaginary)
    return narrow(e, dtype, _complex_reciprocal(e, "c128", [shifted]))


def _rsqrt(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    root = _call(e, "csqrt", [widen(e, dtype, args[0])])
    return narrow(e, dtype, _complex_reciprocal(e, "c128", [root]))


def _power(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """cpow; z**0 == 1 and 0**positive == 0 exactly, as NumPy."""
    base, exponent = args
    m = FloatBuilder(e.builder, PART[dtype])
    result = narrow(e, dtype, _call(e, "cpow", [widen(e, dtype, value) for value in args]))
    exponent_real, exponent_imaginary = parts(e, exponent)
    is_zero = [
        e.builder.and_(*(m.compare("==", part, 0.0) for part in parts(e, value)))
        for value in (base, exponent)
    ]
    real_exponent = m.compare("==", exponent_imaginary, 0.0)
    vanishes = e.builder.and_(m.compare(">", exponent_real, 0.0), real_exponent)
    vanishes = e.builder.and_(is_zero[0], vanishes)
    real, imaginary = parts(e, result)
    real = m.select(is_zero[1], 1.0, m.select(vanishes, 0.0, real))
    imaginary = m.select(e.builder.or_(is_zero[1], vanishes), 0.0, imaginary)
    return make_complex(e, real, imaginary)


def _equal(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    (a, b), (c, d) = (parts(e, value) for value in args)
    return e.builder.and_(e.builder.fcmp_ordered("==", a, c), e.builder.fcmp_ordered("==", b, d))


def _not_equal(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return e.builder.not_(_equal(e, dtype, args))


def _order(operator: str) -> ComplexOp:
    """Real parts first, imaginary parts if those are equal; false if a deciding part is NaN."""
    strict = operator[0]

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        (a, b), (c, d) = (parts(e, value) for value in args)
        by_real = e.builder.and_(
            e.builder.fcmp_ordered(strict, a, c), e.builder.fcmp_ordered("ord", b, d)
        )
        tie = e.builder.fcmp_ordered("==", a, c)
        by_imaginary = e.builder.and_(tie, e.builder.fcmp_ordered(operator, b, d))
        return e.builder.or_(by_real, by_imaginary)

    return emit


def _round(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """Each part to the nearest whole number, half to even."""
    m = FloatBuilder(e.builder, PART[dtype])
    return make_complex(e, *(m.call("roundeven", part) for part in parts(e, args[0])))


def _any_part(method: str) -> ComplexOp:
    """Whether a test of FloatBuilder holds for a part: "is_nan", or |part| == inf."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        m = FloatBuilder(e.builder, PART[dtype])
        real, imaginary = parts(e, args[0])
        if method == "is_nan":
            return e.builder.or_(m.is_nan(real), m.is_nan(imaginary))
        return e.builder.or_(*(m.compare("==", m.abs(p), math.inf) for p in (real, imaginary)))

    return emit


def _isfinite(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    m = FloatBuilder(e.builder, PART[dtype])
    return e.builder.and_(*(m.compare("<", m.abs(p), math.inf) for p in parts(e, args[0])))


def _complex_extremum(operator: str) -> ComplexOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        first = e.builder.or_(
            _order(operator)(e, dtype, args), _any_part("is_nan")(e, dtype, [args[0]])
        )
        return select(e, first, args[0], args[1])

    return emit


def select(e: Emitter, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """condition ? a : b, part by part so that it vectorises."""
    chosen = [
        e.builder.select(condition, *pair) for pair in zip(parts(e, a), parts(e, b), strict=True)
    ]
    return make_complex(e, *chosen)


COMPLEX_OPS: dict[str, ComplexOp] = {
    "add": _partwise("fadd"),
    "subtract": _partwise("fsub"),
    "negative": _partwise("fneg"),
    "multiply": _multiply,
    "divide": _divide,
    "square": _complex_square,
    "reciprocal": _complex_reciprocal,
    "abs": _abs,
    "sign": _complex_sign,
    "conj": _conj,
    "round": _round,
    "real": lambda e, dtype, args: e.builder.extract_value(args[0], 0),
    "imag": lambda e, dtype, args: e.builder.extract_value(args[0], 1),
    "equal": _equal,
    "not_equal": _not_equal,
    "less": _order("<"),
    "less_equal": _order("<="),
    "greater": _order(">"),
    "greater_equal": _order(">="),
    "maximum": _complex_extremum(">="),
    "minimum": _complex_extremum("<="),
    "isnan": _any_part("is_nan"),
    "isinf": _any_part("is_inf"),
    "isfinite": _isfinite,
    "sqrt": _libm("csqrt"),
    "exp": _libm("cexp"),
    "log": _libm("clog"),
    "log2": _libm("clog", 1.4426950408889634),
    "log10": _libm("clog", 0.4342944819032518),
    **{op: _libm("c" + op) for op in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{op: _libm("c" + op) for op in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
    "exp2": _exp2,
    "expm1": _expm1,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
    "power": _power,
}
