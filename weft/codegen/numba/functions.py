"""The functions that printed kernels call: elementwise ops that are no Python operator, conversions
of 16-bit floats, and reports of indices out of bounds. Numba compiles them into the kernel.

Their meaning is the interpreter's (`weft.ir.ops.elementwise`). erfinv and digamma are SciPy's own
C functions. Importing this imports Numba."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import get_cython_function_address, intrinsic
from numpy import (
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

from weft.codegen.faults import FaultWords

_numba: Any = numba
_types: Any = numba.types
_intrinsic: Any = intrinsic
#: Division by zero gives what NumPy gives.
njit: Any = _numba.njit(error_model="numpy", inline="never")


def _bits_functions(number: Any, bits: Any) -> tuple[Any, Any]:
    """The bits of a float as an unsigned integer, and the opposite."""

    def cast(source: Any, target: Any) -> Any:
        @_intrinsic  # type: ignore[untyped-decorator]
        def reinterpret(typing_context: Any, value: Any) -> Any:
            def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
                return builder.bitcast(args[0], context.get_value_type(target))

            return target(source), codegen

        return reinterpret

    return cast(number, bits), cast(bits, number)


f32_bits, f32_of_bits = _bits_functions(_types.float32, _types.uint32)
f64_bits, f64_of_bits = _bits_functions(_types.float64, _types.uint64)


@_intrinsic  # type: ignore[untyped-decorator]
def _fused(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
        kind = args[0].type
        binary = ir.FunctionType(kind, [kind] * 3)
        name = f"llvm.fma.{'f32' if kind == ir.FloatType() else 'f64'}"
        function = builder.module.globals.get(name) or ir.Function(builder.module, binary, name)
        return builder.call(function, args)

    return x(x, x, x), codegen


# ------------------------------------------------------------------------------------ 16-bit floats
@njit
def from_bf16(bits):  # type: ignore[no-untyped-def]
    """The float32 equal to the bfloat16 with these bits."""
    return f32_of_bits(uint32(uint32(bits) << uint32(16)))


@njit
def to_bf16(x):  # type: ignore[no-untyped-def]
    """The bits of the bfloat16 nearest to a float32, ties to even."""
    bits = int64(f32_bits(x))
    if x != x:
        return uint16((bits >> 16) | 0x40)
    return uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


@njit
def from_f16(given):  # type: ignore[no-untyped-def]
    """The float32 equal to the float16 with these bits."""
    bits = int64(given)
    magnitude = (bits & 0x7FFF) << 13
    if magnitude >= 0x7C00 << 13:  # inf and NaN
        magnitude |= 0x7F800000
        if magnitude > 0x7F800000:
            magnitude |= 0x400000
    else:  # the product sets the exponent's bias right, and makes small numbers normal
        magnitude = int64(f32_bits(f32_of_bits(uint32(magnitude)) * float32(2.0**112)))
    return f32_of_bits(uint32(magnitude | ((bits & 0x8000) << 16)))


@njit
def to_f16(x):  # type: ignore[no-untyped-def]
    """The bits of the float16 nearest to a float32, ties to even."""
    bits = int64(f32_bits(x))
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return uint16(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF))
    if magnitude >= 143 << 23:  # 65536 and more
        return uint16(sign | 0x7C00)
    if magnitude < 113 << 23:  # below the normal numbers: 0.5 has its last bit where theirs is
        total = f32_of_bits(uint32(magnitude)) + float32(0.5)
        return uint16(sign | (int64(f32_bits(total)) - 0x3F000000))
    odd = (magnitude >> 13) & 1
    return uint16(sign | ((magnitude + 0xFFF - (112 << 23) + odd) >> 13))


@njit
def round_bf16(x):  # type: ignore[no-untyped-def]
    """A float32 rounded to bfloat16."""
    return from_bf16(to_bf16(x))


@njit
def round_f16(x):  # type: ignore[no-untyped-def]
    """A float32 rounded to float16."""
    return from_f16(to_f16(x))


@njit
def round_f16_once(x):  # type: ignore[no-untyped-def]
    """A float64 rounded to float16: to float32 with the last bit odd if that is not exact, so that
    the second rounding is as one (S. Boldo, G. Melquiond, 2008)."""
    near = float32(x)
    back = float64(near)
    if back != x and x == x:
        bits = f32_bits(near)
        if abs(back) > abs(x):
            bits = uint32(bits - uint32(1))
        near = f32_of_bits(uint32(bits | uint32(1)))
    return round_f16(near)


@njit
def f16_bits(x):  # type: ignore[no-untyped-def]
    """The bits of a float16."""
    return to_f16(x)


@njit
def bf16_bits(x):  # type: ignore[no-untyped-def]
    """The bits of a bfloat16."""
    return to_bf16(x)


f16_of_bits, bf16_of_bits = from_f16, from_bf16


def _towards(from_bits: Any, to_bits: Any) -> Any:
    @njit
    def nextafter(x, y):  # type: ignore[no-untyped-def]
        if x != x:
            return x
        if x == y or y != y:
            return y
        bits, sign = int64(to_bits(x)), int64(to_bits(y)) & 0x8000
        if x == 0:
            return from_bits(uint16(sign | 1))
        step = 1 if (x < y) != (x < 0) else -1
        return from_bits(uint16(bits + step))

    return nextafter


nextafter_f16, nextafter_bf16 = _towards(from_f16, to_f16), _towards(from_bf16, to_bf16)


# ----------------------------------------------------------------------------------------- integers
@njit
def integer_floor_divide(a, b):  # type: ignore[no-untyped-def]
    """Floor of a over b; 0 if b is 0. The least number over -1 wraps around."""
    if b == 0:
        return int64(0)
    if b == -1:
        return -int64(a)
    return int64(a) // int64(b)


@njit
def integer_remainder(a, b):  # type: ignore[no-untyped-def]
    """a - (a // b) * b; 0 if b is 0."""
    if b == 0 or b == -1:
        return int64(0)
    return int64(a) % int64(b)


@njit
def integer_floor_divide_unsigned(a, b):  # type: ignore[no-untyped-def]
    """a over b; 0 if b is 0."""
    if b == 0:
        return uint64(0)
    return uint64(a) // uint64(b)


@njit
def integer_remainder_unsigned(a, b):  # type: ignore[no-untyped-def]
    """The rest of a over b; 0 if b is 0."""
    if b == 0:
        return uint64(0)
    return uint64(a) % uint64(b)


@njit
def integer_power(a, b):  # type: ignore[no-untyped-def]
    """a to the power b, wrapping around; the exact result truncated if b is negative."""
    base, left = int64(a), int64(b)
    if left < 0:
        if base == 1 or base == -1:
            return base if left & 1 else int64(1)
        return int64(0)
    made = int64(1)
    while left:
        if left & 1:
            made *= base
        base *= base
        left >>= 1
    return made


@njit
def integer_power_unsigned(a, b):  # type: ignore[no-untyped-def]
    """a to the power b, wrapping around."""
    base, left = uint64(a), uint64(b)
    made = uint64(1)
    while left:
        if left & uint64(1):
            made = made * base
        base = base * base
        left = left >> uint64(1)
    return made


@njit
def integer_maximum(a, b):  # type: ignore[no-untyped-def]
    """The larger one."""
    return a if a >= b else b


@njit
def integer_minimum(a, b):  # type: ignore[no-untyped-def]
    """The smaller one."""
    return a if a <= b else b


@njit
def integer_sign(a):  # type: ignore[no-untyped-def]
    """-1, 0 or 1."""
    return int64(a > 0) - int64(a < 0)


@njit
def bitwise_left_shift(a, b, bits):  # type: ignore[no-untyped-def]
    """a << b; 0 unless 0 <= b < bits."""
    if b < 0 or b >= bits:
        return int64(0)
    return int64(a) << int64(b)


@njit
def bitwise_right_shift(a, b, bits):  # type: ignore[no-untyped-def]
    """a >> b, the sign copied in; all bits go out unless 0 <= b < bits."""
    if b < 0 or b >= bits:
        return a >> (bits - 1) if a < 0 else a ^ a
    return a >> b


# ------------------------------------------------------------------------------- floats to integers
def _to_integer(kind: Any, wide: Any, low: float, high: float) -> Any:
    """Towards 0. Out of range, which NumPy leaves open: the nearest number of 32 or 64 bits, which
    wraps around if the integer is narrower; 0 of NaN."""
    least, most = wide(int(low)), wide(int(high))

    @njit
    def convert(x):  # type: ignore[no-untyped-def]
        if x != x:
            return kind(0)
        if x <= low:
            return kind(least)
        if x >= high:
            return kind(most)
        return kind(wide(x))

    return convert


_I32 = (int32, -(2.0**31), 2.0**31 - 1)
_LOW, _HIGH = -(2.0**63), 9223372036854774784.0  # the float64 below 2**63
float_to_i8, float_to_i16, float_to_i32 = (_to_integer(k, *_I32) for k in (int8, int16, int32))
float_to_u8, float_to_u16 = (_to_integer(k, *_I32) for k in (uint8, uint16))
float_to_u32, float_to_i64 = (_to_integer(k, int64, _LOW, _HIGH) for k in (uint32, int64))
float_to_u64 = _to_integer(uint64, uint64, 0.0, 18446744073709549568.0)


# ------------------------------------------------------------------------------------------- floats
def _named(function: Any, doc: str) -> Any:
    """A function of NumPy that Numba compiles at float32, float64 and complex numbers."""

    def call(x):  # type: ignore[no-untyped-def]
        return function(x)

    call.__doc__ = doc
    return njit(call)


sqrt, exp, log, sin, cos, tan = (
    _named(f, f.__name__) for f in (np.sqrt, np.exp, np.log, np.sin, np.cos, np.tan)
)
exp2, expm1, log1p, log2, log10 = (
    _named(f, f.__name__) for f in (np.exp2, np.expm1, np.log1p, np.log2, np.log10)
)
asin, acos, atan = (_named(f, f.__name__) for f in (np.arcsin, np.arccos, np.arctan))
sinh, cosh, tanh = (_named(f, f.__name__) for f in (np.sinh, np.cosh, np.tanh))
asinh, acosh, atanh = (_named(f, f.__name__) for f in (np.arcsinh, np.arccosh, np.arctanh))
ceil, floor, trunc, round_even = (
    _named(f, f.__name__) for f in (np.ceil, np.floor, np.trunc, np.rint)
)
isnan, isinf, isfinite, signbit = (
    _named(f, f.__name__) for f in (np.isnan, np.isinf, np.isfinite, np.signbit)
)
cbrt = _named(np.cbrt, "Cube root.")


def _named_of_two(function: Any) -> Any:
    """As `_named`, of two operands."""

    def call(a, b):  # type: ignore[no-untyped-def]
        return function(a, b)

    call.__doc__ = function.__name__
    return njit(call)


float_power, atan2, hypot, copysign, nextafter = (
    _named_of_two(f) for f in (np.power, np.arctan2, np.hypot, np.copysign, np.nextafter)
)


@njit
def rsqrt(x):  # type: ignore[no-untyped-def]
    """One over the square root."""
    return type(x)(1) / np.sqrt(x)


@njit
def erf(x):  # type: ignore[no-untyped-def]
    """The error function."""
    return math.erf(x)


@njit
def erfc(x):  # type: ignore[no-untyped-def]
    """1 - erf(x), accurate for large x."""
    return math.erfc(x)


@njit
def lgamma(x):  # type: ignore[no-untyped-def]
    """log |Gamma(x)|."""
    return math.lgamma(x)


def _of_scipy(name: str) -> Any:
    """A function of SciPy's Cython interface, computed in float64."""
    kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    function = kind(get_cython_function_address("scipy.special.cython_special", name))

    @njit
    def call(x):  # type: ignore[no-untyped-def]
        return type(x)(function(float64(x)))

    return call


erfinv, digamma = _of_scipy("__pyx_fuse_0erfinv"), _of_scipy("__pyx_fuse_1psi")


@njit
def sigmoid(x):  # type: ignore[no-untyped-def]
    """The logistic function."""
    one, grown = type(x)(1), np.exp(-abs(x))
    return grown / (one + grown) if x < 0 else one / (one + grown)


@njit
def sign(x):  # type: ignore[no-untyped-def]
    """-1, 0 or 1; NaN of NaN."""
    if x != x:
        return x
    return type(x)(1) if x > 0 else type(x)(-1) if x < 0 else type(x)(0)


@njit
def maximum(a, b):  # type: ignore[no-untyped-def]
    """The larger one; NaN if one is."""
    return a if a > b or a != a else b


@njit
def minimum(a, b):  # type: ignore[no-untyped-def]
    """The smaller one; NaN if one is."""
    return a if a < b or a != a else b


@njit
def fma(a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c, rounded once."""
    return _fused(a, b, c)


@njit
def logaddexp(a, b):  # type: ignore[no-untyped-def]
    """log(exp(a) + exp(b))."""
    if a == b:
        return a + type(a)(math.log(2.0))
    difference = a - b
    if difference > 0:
        return a + np.log1p(np.exp(-difference))
    if difference <= 0:
        return b + np.log1p(np.exp(difference))
    return difference


@njit
def remainder(a, b):  # type: ignore[no-untyped-def]
    """a mod b with the sign of b, as NumPy."""
    left = np.fmod(a, b)
    if left == 0:
        return np.copysign(type(a)(0), b)
    return left + b if (b < 0) != (left < 0) else left


@njit
def floor_divide(a, b):  # type: ignore[no-untyped-def]
    """Floor of a over b, as NumPy."""
    if b == 0:
        return a / b
    left = np.fmod(a, b)
    quotient = (a - left) / b
    if left != 0 and (b < 0) != (left < 0):
        quotient -= type(a)(1)
    if quotient == 0:
        return np.copysign(type(a)(0), a / b)
    below = np.floor(quotient)
    return below + type(a)(1) if quotient - below > type(a)(0.5) else below


# ---------------------------------------------------------------------------------- complex numbers
complex_sqrt, complex_exp, complex_log, complex_sin, complex_cos, complex_tan = (
    _named(f, f.__name__) for f in (np.sqrt, np.exp, np.log, np.sin, np.cos, np.tan)
)
complex_asin, complex_acos, complex_atan, complex_sinh, complex_cosh, complex_tanh = (
    _named(f, f.__name__) for f in (np.arcsin, np.arccos, np.arctan, np.sinh, np.cosh, np.tanh)
)
complex_asinh, complex_atanh = (_named(f, f.__name__) for f in (np.arcsinh, np.arctanh))


@njit
def complex_acosh(x):  # type: ignore[no-untyped-def]
    """W. Kahan, "Branch cuts for complex elementary functions", 1987: Numba's own has another
    branch on the cut."""
    below, above = np.sqrt(complex(x.real - 1, x.imag)), np.sqrt(complex(x.real + 1, x.imag))
    return complex(
        math.asinh(below.real * above.real + below.imag * above.imag),
        2 * math.atan2(below.imag, above.real),
    )


@njit
def complex_log2(x):  # type: ignore[no-untyped-def]
    """Logarithm to base 2."""
    made = np.log(x)
    return complex(made.real * 1.4426950408889634, made.imag * 1.4426950408889634)


@njit
def complex_log10(x):  # type: ignore[no-untyped-def]
    """Logarithm to base 10."""
    made = np.log(x)
    return complex(made.real * 0.4342944819032518, made.imag * 0.4342944819032518)


@njit
def complex_exp2(x):  # type: ignore[no-untyped-def]
    """2 to the power x."""
    return np.exp(complex(x.real * 0.6931471805599453, x.imag * 0.6931471805599453))


@njit
def complex_expm1(x):  # type: ignore[no-untyped-def]
    """exp(x) - 1: expm1(a) cos(b) - 2 sin(b/2)**2 + i e**a sin(b), as NumPy; real where b is 0;
    where a is infinite and b has no angle -1 + 0i or inf + NaN i."""
    a, b = x.real, x.imag
    if b == 0:
        return complex(math.expm1(a), b)
    if math.isinf(a) and not math.isfinite(b):
        return complex(math.expm1(a), math.copysign(0.0, b) if a < 0 else math.nan)
    half = math.sin(b / 2)
    return complex(math.expm1(a) * math.cos(b) - 2 * half * half, math.exp(a) * math.sin(b))


@njit
def complex_log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) by its parts, as NumPy."""
    return complex(math.log(math.hypot(x.real + 1, x.imag)), math.atan2(x.imag, x.real + 1))


@njit
def complex_divide(x, y):  # type: ignore[no-untyped-def]
    """R. Smith, "Algorithm 116: Complex division", 1962, as NumPy."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    if abs(c) >= abs(d):
        if c == 0 and d == 0:
            return type(x)(complex(a / abs(c), b / abs(c)))
        ratio = d / c
        scale = type(c)(1) / (c + d * ratio)
        return type(x)(complex((a + b * ratio) * scale, (b - a * ratio) * scale))
    ratio = c / d
    scale = type(c)(1) / (d + c * ratio)
    return type(x)(complex((a * ratio + b) * scale, (b * ratio - a) * scale))


@njit
def complex_reciprocal(x):  # type: ignore[no-untyped-def]
    """One over x."""
    return complex_divide(type(x)(complex(1.0, 0.0)), x)


@njit
def complex_sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x))."""
    grown = np.exp(-x)
    return complex_reciprocal(complex(1 + grown.real, grown.imag))


@njit
def complex_rsqrt(x):  # type: ignore[no-untyped-def]
    """One over the square root."""
    return complex_reciprocal(np.sqrt(x))


@njit
def complex_power(x, y):  # type: ignore[no-untyped-def]
    """x to the power y; x**0 is 1, and 0 to a power with a positive real part is 0, as NumPy."""
    if y.real == 0 and y.imag == 0:
        return complex(1.0, 0.0)
    if x.real == 0 and x.imag == 0:
        if y.real > 0:
            return complex(0.0, 0.0)
        return complex(math.nan, math.nan)
    if y.imag == 0 and abs(y.real) < 100 and y.real == math.floor(y.real):
        made, base, left = complex(1.0, 0.0), x, int(abs(y.real))
        while left:  # as NumPy: by squaring
            if left & 1:
                made = made * base
            base = base * base
            left >>= 1
        return made if y.real > 0 else complex_reciprocal(made)
    return np.exp(y * np.log(x))


@njit
def complex_sign(x):  # type: ignore[no-untyped-def]
    """x / |x|, 0 for 0; of one infinite part its sign, NaN of two; NaN + NaN i of NaN."""
    zero = type(x.real)(0)
    size = np.hypot(x.real, x.imag)
    if size == 0:
        return type(x)(complex(0.0, 0.0))
    if math.isnan(x.real) or math.isnan(x.imag):
        return type(x)(complex(math.nan, math.nan))
    if size == math.inf:
        first, second = abs(x.real) == math.inf, abs(x.imag) == math.inf
        if first and second:
            return type(x)(complex(math.nan, math.nan))
        one = type(x.real)(1)
        return type(x)(complex(np.copysign(one if first else zero, x.real),
                               np.copysign(one if second else zero, x.imag)))  # fmt: skip
    return type(x)(complex(x.real / size, x.imag / size))


@njit
def complex_round(x):  # type: ignore[no-untyped-def]
    """Each part to the nearest whole number, half to even."""
    return type(x)(complex(np.rint(x.real), np.rint(x.imag)))


@njit
def complex_isnan(x):  # type: ignore[no-untyped-def]
    """Whether a part is NaN."""
    return x.real != x.real or x.imag != x.imag


@njit
def complex_isinf(x):  # type: ignore[no-untyped-def]
    """Whether a part is infinite."""
    return abs(x.real) == math.inf or abs(x.imag) == math.inf


@njit
def complex_isfinite(x):  # type: ignore[no-untyped-def]
    """Whether no part is infinite or NaN."""
    return abs(x.real) < math.inf and abs(x.imag) < math.inf


@njit
def complex_less(x, y):  # type: ignore[no-untyped-def]
    """By real parts, then by imaginary parts; false if the deciding part is NaN."""
    if x.real < y.real:
        return x.imag == x.imag and y.imag == y.imag
    return x.real == y.real and x.imag < y.imag


@njit
def complex_less_equal(x, y):  # type: ignore[no-untyped-def]
    """As `complex_less`, or equal."""
    if x.real < y.real:
        return x.imag == x.imag and y.imag == y.imag
    return x.real == y.real and x.imag <= y.imag


@njit
def complex_greater(x, y):  # type: ignore[no-untyped-def]
    """As `complex_less` of y and x."""
    return complex_less(y, x)


@njit
def complex_greater_equal(x, y):  # type: ignore[no-untyped-def]
    """As `complex_less_equal` of y and x."""
    return complex_less_equal(y, x)


@njit
def complex_maximum(x, y):  # type: ignore[no-untyped-def]
    """The larger one; the first that has a NaN."""
    return x if complex_isnan(x) or complex_less_equal(y, x) else y


@njit
def complex_minimum(x, y):  # type: ignore[no-untyped-def]
    """The smaller one; the first that has a NaN."""
    return x if complex_isnan(x) or complex_less_equal(x, y) else y


# ------------------------------------------------------------------------------------------ indices
#: As `weft.codegen.faults.FAULT_SHIFT`: where the status word keeps the number of the op.
_SHIFT = 40


@njit
def fault(faults, position, index, number):  # type: ignore[no-untyped-def]
    """Report that element `position` of an index operand, `index`, is out of bounds; number: of the
    op in the kernel. Of several the one at the smallest position stays."""
    word = int64(1) + ((int64(1) << _SHIFT) - 1) + (int64(number) << _SHIFT) - int64(position)
    if word > faults[0]:
        faults[0] = word
        faults[1] = int64(index)


@njit
def wrapped(index, size):  # type: ignore[no-untyped-def]
    """An index as a number in 0 .. size - 1, from the end if it is negative; -1 out of bounds."""
    if index < 0:
        if int64(index) + size < 0:
            return int64(-1)
        return int64(index) + size
    return int64(index) if uint64(index) < uint64(size) else int64(-1)


# -------------------------------------------------------------------------------------------- loops
#: Which of the fault words is the address of `look`.
_LOOK = FaultWords.look.offset // 8


@_intrinsic  # type: ignore[untyped-decorator]
def _look(typing_context: Any, faults: Any, function: Any) -> Any:
    """Call the native function `look` (`loops/interrupt.py`) with the address of the words."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        called = builder.inttoptr(args[1], kind.as_pointer())
        return builder.call(called, [builder.ptrtoint(data, ir.IntType(64))])

    return _types.int64(faults, function), codegen


@_intrinsic  # type: ignore[untyped-decorator]
def _status(typing_context: Any, faults: Any) -> Any:
    """The status word as it is now, whoever wrote it."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "monotonic", 8)

    return _types.int64(faults), codegen


@njit
def stopped(faults, worker):  # type: ignore[no-untyped-def]
    """Whether a loop is to end, which asks now and then: after a signal, at a deadline, or as the
    step has failed elsewhere. Only the thread that runs the step, `worker` 0, asks Python."""
    if worker == 0 and faults[_LOOK] != 0:
        _look(faults, faults[_LOOK])
    return _status(faults) != 0


@njit
def threefry(key0, key1, low, high):  # type: ignore[no-untyped-def]
    """The two words of block (low, high): Threefry-2x32 with 20 rounds (`weft.ir.ops.random`)."""
    mask = int64(0xFFFFFFFF)
    keys = (int64(key0), int64(key1), int64(key0) ^ int64(key1) ^ int64(0x1BD11BDA))
    turns = (13, 15, 26, 6, 17, 29, 16, 24)
    x, y = (int64(low) + keys[0]) & mask, (int64(high) + keys[1]) & mask
    for i in range(20):
        turn = turns[i % 8]
        x = (x + y) & mask
        y = (((y << turn) | (y >> (32 - turn))) & mask) ^ x
        if i % 4 == 3:
            n = i // 4 + 1
            x = (x + keys[n % 3]) & mask
            y = (y + keys[(n + 1) % 3] + n) & mask
    return uint32(x), uint32(y)


@njit
def sorts_before(x, y):  # type: ignore[no-untyped-def]
    """Whether x comes before y in ascending order, NaN last."""
    return x < y or (y != y and x == x)
