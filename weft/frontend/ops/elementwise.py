"""Elementwise functions: arithmetic, rounding, comparison, logic, bits, selection and casts; then
exponentials, logarithms, powers, trigonometry and special functions.

Shapes: the operands broadcast; the result has the common shape. Dtypes: the operands promote to one
dtype (`weft.frontend.ops.promotion`), which the result has unless said otherwise; where a function
is said to be *inexact*, bools and integers first become the default float, and the result has the
promoted floating (or complex) dtype. Integers wrap on overflow. Errors, at the caller's line:
TypeRuleError for a dtype that the function is not defined on, ShapeError for shapes that do not
broadcast. Outside the domain of a real function the result is NaN, as in NumPy; nothing raises."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.eager.numpy_calls import quick_where
from weft.frontend.ops.dispatch import apply, in_order
from weft.frontend.ops.promotion import (
    TensorLike,
    binary,
    broadcast_tensors,
    cast,
    check_dtype,
    common_dtype,
    elementwise,
    expand,
    is_scalar,
    promote_tensors,
    scalar_tensor,
    unary,
    weaken,
)
from weft.ir.dtypes import bool_
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location


def add(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 + x2, for numbers."""
    return binary("add", x1, x2)


def subtract(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 - x2, for numbers."""
    return binary("subtract", x1, x2)


def multiply(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 * x2, for numbers."""
    return binary("multiply", x1, x2)


def divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 / x2; integers first become the default float. x/0 is inf, -inf or NaN (IEEE 754)."""
    return binary("divide", x1, x2, inexact=True)


def floor_divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """floor(x1 / x2) for real numbers, as Python's `//`. An integer divided by 0 gives 0."""
    return binary("floor_divide", x1, x2)


def remainder(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 - floor_divide(x1, x2)*x2, with the sign of x2, as Python's `%`. An integer % 0 is 0."""
    return binary("remainder", x1, x2)


def negative(x: TensorLike, /) -> Tensor:
    """-x, for numbers (unsigned integers wrap)."""
    return unary("negative", x)


def positive(x: TensorLike, /) -> Tensor:
    """+x: the number itself."""
    t = as_tensor(x)
    if not t.dtype.is_numeric:
        raise TypeRuleError(
            f"wf.positive needs numbers, got {t.dtype.name}", location=caller_location()
        )
    return in_order(t)


def abs(x: TensorLike, /) -> Tensor:
    """|x|; real for complex x. The least signed integer stays itself."""
    return unary("abs", x)


def sign(x: TensorLike, /) -> Tensor:
    """-1, 0 or 1 with the dtype of x, NaN for NaN; x/|x| for complex x."""
    return unary("sign", x)


def square(x: TensorLike, /) -> Tensor:
    """x * x."""
    return unary("square", x)


def reciprocal(x: TensorLike, /) -> Tensor:
    """1 / x; integers first become the default float."""
    return unary("reciprocal", x, inexact=True)


@runs_native
def squared_difference(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """(x1 - x2) squared (TF1's name)."""
    return square(subtract(x1, x2))


def _round_op(op: str, x: TensorLike) -> Tensor:
    t = as_tensor(x)
    return t if t.dtype.is_integer else unary(op, t)


def ceil(x: TensorLike, /) -> Tensor:
    """The least integer >= x, in the dtype of x; real x. Integers are returned as they are."""
    return _round_op("ceil", x)


def floor(x: TensorLike, /) -> Tensor:
    """The greatest integer <= x, in the dtype of x; real x. Integers are returned as they are."""
    return _round_op("floor", x)


def trunc(x: TensorLike, /) -> Tensor:
    """The integer nearest to x on the side of 0, in the dtype of x; real x."""
    return _round_op("trunc", x)


def round(x: TensorLike, /) -> Tensor:
    """The nearest integer in the dtype of x, ties to even (Python's and NumPy's rule)."""
    return _round_op("round", x)


def maximum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The greater of two real numbers; NaN if either is."""
    return binary("maximum", x1, x2)


def minimum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The lesser of two real numbers; NaN if either is."""
    return binary("minimum", x1, x2)


@runs_native
def clip(x: TensorLike, /, min: TensorLike = None, max: TensorLike = None) -> Tensor:
    """minimum(maximum(x, min), max), either bound left out if None; NaN stays NaN. Real numbers."""
    out: TensorLike = x if is_scalar(x) else as_tensor(x)
    if min is not None:
        out = maximum(out, min)
    if max is not None:
        out = minimum(out, max)
    return as_tensor(out)


def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """|x1| with the sign of x2, that of -0. and NaN too; floating (integers become the default)."""
    return binary("copysign", x1, x2, inexact=True)


def fma(x1: TensorLike, x2: TensorLike, x3: TensorLike, /) -> Tensor:
    """x1 * x2 + x3 with one rounding (IEEE 754, fusedMultiplyAdd); real, integers become the
    default float. 16-bit floats: in float32, then to 16 bits. Compiled functions write a product
    and a sum as this by themselves; said so, it is one rounding also outside of them."""
    return elementwise("fma", x1, x2, x3, inexact=True)


def nextafter(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The floating number after x1 in the direction of x2; x2 where they are equal."""
    return binary("nextafter", x1, x2, inexact=True)


def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 == x2 -> bool; NaN equals nothing."""
    return binary("equal", x1, x2)


def not_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 != x2 -> bool."""
    return binary("not_equal", x1, x2)


def less(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 < x2 -> bool, for real numbers."""
    return binary("less", x1, x2)


def less_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 <= x2 -> bool, for real numbers."""
    return binary("less_equal", x1, x2)


def greater(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 > x2 -> bool, for real numbers."""
    return binary("greater", x1, x2)


def greater_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 >= x2 -> bool, for real numbers."""
    return binary("greater_equal", x1, x2)


@runs_native
def isclose(
    x1: TensorLike,
    x2: TensorLike,
    /,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """|x1 - x2| <= atol + rtol*|x2| -> bool; equal infinities are close (NumPy's isclose)."""
    a, b = promote_tensors(x1, x2, op="isclose")
    if a.dtype.kind == "bool":
        return equal(a, b)
    bound = add(atol, multiply(rtol, abs(b)))
    near = logical_and(isfinite(b), less_equal(abs(subtract(a, b)), bound))
    close = logical_or(near, equal(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


def _float_test(op: str, x: TensorLike) -> Tensor:
    t = as_tensor(x)
    if t.dtype.is_integer or t.dtype.kind == "bool":  # every integer is finite and no NaN
        return expand(scalar_tensor(op == "isfinite", bool_), t.shape)
    return unary(op, t)


def isfinite(x: TensorLike, /) -> Tensor:
    """Whether x is neither infinite nor NaN -> bool; both parts, for complex x."""
    return _float_test("isfinite", x)


def isinf(x: TensorLike, /) -> Tensor:
    """Whether x is infinite -> bool; either part, for complex x."""
    return _float_test("isinf", x)


def isnan(x: TensorLike, /) -> Tensor:
    """Whether x is NaN -> bool; either part, for complex x."""
    return _float_test("isnan", x)


def signbit(x: TensorLike, /) -> Tensor:
    """Whether the sign bit of floating x is set -> bool: true for -0. and below, and some NaN."""
    return unary("signbit", x, inexact=True)


@runs_native
def _logical(op: str, *xs: TensorLike) -> Tensor:
    held = broadcast_tensors(*(cast(x, bool_) for x in xs), op=op)
    return apply(op, *held)


def logical_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 and x2 -> bool; a number counts as true unless it is 0."""
    return _logical("logical_and", x1, x2)


def logical_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 or x2 -> bool; a number counts as true unless it is 0."""
    return _logical("logical_or", x1, x2)


def logical_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Exactly one of x1 and x2 -> bool; a number counts as true unless it is 0."""
    return _logical("logical_xor", x1, x2)


def logical_not(x: TensorLike, /) -> Tensor:
    """not x -> bool; a number counts as true unless it is 0."""
    return _logical("logical_not", x)


def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 & x2, for integers and bool."""
    return binary("bitwise_and", x1, x2)


def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 | x2, for integers and bool."""
    return binary("bitwise_or", x1, x2)


def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 ^ x2, for integers and bool."""
    return binary("bitwise_xor", x1, x2)


def bitwise_invert(x: TensorLike, /) -> Tensor:
    """~x, for integers and bool."""
    return unary("bitwise_invert", x)


def bitwise_left_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 << x2, for integers; x2 >= 0, and 0 where it is the width of the dtype or more."""
    return binary("bitwise_left_shift", x1, x2)


def bitwise_right_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 >> x2, for integers; x2 >= 0. Signed x1 keeps its sign (arithmetic shift)."""
    return binary("bitwise_right_shift", x1, x2)


def real(x: TensorLike, /) -> Tensor:
    """The real part: float32 for complex64, float64 for complex128; real x itself."""
    t = as_tensor(x)
    return unary("real", t) if t.dtype.is_complex else positive(t)


def imag(x: TensorLike, /) -> Tensor:
    """The imaginary part: float32 for complex64, float64 for complex128; 0 for real x."""
    t = as_tensor(x)
    return unary("imag", t) if t.dtype.is_complex else multiply(positive(t), 0)


def conj(x: TensorLike, /) -> Tensor:
    """The complex conjugate; real x itself."""
    t = as_tensor(x)
    return unary("conj", t) if t.dtype.is_complex else positive(t)


def where(
    condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None, /
) -> Tensor:
    """x1 where the condition holds, x2 elsewhere; all three broadcast, x1 and x2 promote. A choice
    between Python scalars takes the dtype of what it meets, whatever the condition's shape.

    condition: bool, or numbers that count as true unless they are 0. Both x1 and x2 are computed;
    gradients flow only to the one that was selected. The condition alone is refused: libraries
    differ in what that gives.
    """
    if x1 is None or x2 is None:
        raise InvalidArgumentError(
            "wf.where takes both x1 and x2",
            hint="where the condition holds say wf.argwhere(condition), rows of indices as "
            "TensorFlow's tf.where, and wf.nonzero(condition), an array for each axis as NumPy's",
            location=caller_location(),
        )
    made = quick_where(condition, x1, x2)
    return _where(condition, x1, x2) if made is None else made


@runs_native
def _where(condition: TensorLike, x1: TensorLike, x2: TensorLike) -> Tensor:
    held = [x if is_scalar(x) else as_tensor(x) for x in (x1, x2)]
    selector = cast(condition, bool_)
    dtype = common_dtype("where", held, wide=True)
    operands = broadcast_tensors(selector, *(cast(x, dtype) for x in held), op="where")
    return weaken(apply("where", *operands), held)


def astype(x: TensorLike, dtype: object, /, *, copy: bool = True) -> Tensor:
    """x converted to `dtype` (a weft or NumPy dtype, or a name). Tensors are immutable: no copy.

    Floats convert to integers by truncation; out of the integer's range the result is unspecified.
    """
    t = as_tensor(x)
    made = cast(t, check_dtype(dtype))
    return in_order(made) if made is t else made


def bitcast(x: TensorLike, dtype: object, /) -> Tensor:
    """The bits of a real number read as the real `dtype` of the same width (TF1's name)."""
    return apply("bitcast", as_tensor(x), dtype=check_dtype(dtype))


@runs_native
def nan_to_num(
    x: TensorLike,
    /,
    *,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """x with NaN, inf and -inf replaced; None: by the largest and least finite number of the
    dtype. Of complex numbers both parts.
    """
    t = as_tensor(x)
    if t.dtype.is_complex:
        parts = (nan_to_num(v, nan=nan, posinf=posinf, neginf=neginf) for v in (real(t), imag(t)))
        return _complex(*parts)
    if not t.dtype.is_floating:
        return positive(t)
    info: Any = ml_dtypes.finfo(t.dtype.numpy)  # type: ignore[no-untyped-call]
    top, bottom = (float(v) for v in (info.max, info.min))
    out = where(equal(t, float("inf")), top if posinf is None else posinf, t)
    out = where(equal(t, float("-inf")), bottom if neginf is None else neginf, out)
    return where(isnan(t), nan, out)


def _complex(re: Tensor, im: Tensor) -> Tensor:
    """re + im * i; an infinite im stays apart from re, as it would not in a product."""
    turned = multiply(where(isfinite(im), im, 0), 1j)
    ends = where(equal(im, float("inf")), complex(0, float("inf")), complex(0, float("-inf")))
    ends = where(isnan(im), complex(0, float("nan")), ends)
    return add(re, where(isfinite(im), turned, ends))


#: sin(a)/a = 1 - a^2/3! + a^4/5! - ...: enough terms for |a| < 1 and two derivatives in float64.
_SINC_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(11))


def sqrt(x: TensorLike, /) -> Tensor:
    """The principal square root of x; inexact. sqrt(-0.) is -0., negative real x gives NaN."""
    return unary("sqrt", x, inexact=True)


def cbrt(x: TensorLike, /) -> Tensor:
    """The real cube root of x, negative for negative x; inexact, real. Its gradient at 0 is inf."""
    return unary("cbrt", x, inexact=True)


def rsqrt(x: TensorLike, /) -> Tensor:
    """1 / sqrt(x); inexact. rsqrt(0.) is inf, negative real x gives NaN (TF1's name)."""
    return unary("rsqrt", x, inexact=True)


def exp(x: TensorLike, /) -> Tensor:
    """e to the power x; inexact. exp(-inf) is 0, exp(inf) is inf."""
    return unary("exp", x, inexact=True)


def exp2(x: TensorLike, /) -> Tensor:
    """2 to the power x; inexact (NumPy's name)."""
    return unary("exp2", x, inexact=True)


def expm1(x: TensorLike, /) -> Tensor:
    """exp(x) - 1 without cancellation for small x; inexact."""
    return unary("expm1", x, inexact=True)


def log(x: TensorLike, /) -> Tensor:
    """The natural logarithm of x; inexact. log(0.) is -inf, negative real x gives NaN."""
    return unary("log", x, inexact=True)


def log1p(x: TensorLike, /) -> Tensor:
    """log(1 + x) without cancellation for small x; inexact."""
    return unary("log1p", x, inexact=True)


def log2(x: TensorLike, /) -> Tensor:
    """The logarithm of x to base 2; inexact."""
    return unary("log2", x, inexact=True)


def log10(x: TensorLike, /) -> Tensor:
    """The logarithm of x to base 10; inexact."""
    return unary("log10", x, inexact=True)


def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow; inexact, real."""
    return binary("logaddexp", x1, x2, inexact=True)


def pow(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 to the power x2, in the promoted dtype (integers stay integers).

    A Python exponent of 2 is computed as `square(x1)`, which is exact and cheaper. Real negative x1
    with a fractional x2 gives NaN. pow(x, 0) is 1 for every x, NaN too (IEEE 754).
    """
    if is_scalar(x2) and x2 == 2 and not is_scalar(x1):
        (base, _) = promote_tensors(x1, x2, op="pow")
        return unary("square", base)
    return binary("power", x1, x2, name="pow")


def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """sqrt(x1*x1 + x2*x2) without overflow or underflow on the way; inexact, real."""
    return binary("hypot", x1, x2, inexact=True)


def sin(x: TensorLike, /) -> Tensor:
    """The sine of x in radians; inexact. Infinite x gives NaN."""
    return unary("sin", x, inexact=True)


def cos(x: TensorLike, /) -> Tensor:
    """The cosine of x in radians; inexact. Infinite x gives NaN."""
    return unary("cos", x, inexact=True)


def tan(x: TensorLike, /) -> Tensor:
    """The tangent of x in radians; inexact. Infinite x gives NaN."""
    return unary("tan", x, inexact=True)


def asin(x: TensorLike, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; inexact. NaN outside [-1, 1]."""
    return unary("asin", x, inexact=True)


def acos(x: TensorLike, /) -> Tensor:
    """The angle in [0, pi] whose cosine is x; inexact. NaN outside [-1, 1]."""
    return unary("acos", x, inexact=True)


def atan(x: TensorLike, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose tangent is x; inexact."""
    return unary("atan", x, inexact=True)


def atan2(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The angle in [-pi, pi] of the point (x2, x1), signs of zeros respected; inexact, real."""
    return binary("atan2", x1, x2, inexact=True)


def sinh(x: TensorLike, /) -> Tensor:
    """The hyperbolic sine (exp(x) - exp(-x)) / 2; inexact."""
    return unary("sinh", x, inexact=True)


def cosh(x: TensorLike, /) -> Tensor:
    """The hyperbolic cosine (exp(x) + exp(-x)) / 2; inexact."""
    return unary("cosh", x, inexact=True)


def tanh(x: TensorLike, /) -> Tensor:
    """The hyperbolic tangent sinh(x) / cosh(x), in [-1, 1]; inexact."""
    return unary("tanh", x, inexact=True)


def asinh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic sine; inexact."""
    return unary("asinh", x, inexact=True)


def acosh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic cosine, >= 0; inexact. NaN below 1."""
    return unary("acosh", x, inexact=True)


def atanh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic tangent; inexact. NaN outside [-1, 1], infinite at its ends."""
    return unary("atanh", x, inexact=True)


def sigmoid(x: TensorLike, /) -> Tensor:
    """The logistic function 1 / (1 + exp(-x)), in [0, 1], without overflow; inexact."""
    return unary("sigmoid", x, inexact=True)


def erf(x: TensorLike, /) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x; inexact, real.

    Source: Abramowitz and Stegun 7.1.1.
    """
    return unary("erf", x, inexact=True)


def erfc(x: TensorLike, /) -> Tensor:
    """1 - erf(x) without cancellation for large x; inexact, real (Abramowitz and Stegun 7.1.2)."""
    return unary("erfc", x, inexact=True)


def erfinv(x: TensorLike, /) -> Tensor:
    """The y with erf(y) == x; inexact, real. NaN outside [-1, 1], infinite at its ends."""
    return unary("erfinv", x, inexact=True)


def lgamma(x: TensorLike, /) -> Tensor:
    """The logarithm of |gamma(x)|; inexact, real. inf at 0 and the negative integers.

    Source: Abramowitz and Stegun 6.1.1.
    """
    return unary("lgamma", x, inexact=True)


def digamma(x: TensorLike, /) -> Tensor:
    """The derivative of lgamma; inexact, real (Abramowitz and Stegun 6.3.1)."""
    return unary("digamma", x, inexact=True)


@runs_native
def xlogy(x: TensorLike, y: TensorLike, /) -> Tensor:
    """x * log(y), and 0 where x is 0 and y is not NaN; inexact (SciPy's xlogy).

    At x == 0 the gradient for x is log(y); where log(y) is not a finite number it is 0, and that
    for y too.
    """
    return _x_times_log("log", "xlogy", x, y)


@runs_native
def xlog1py(x: TensorLike, y: TensorLike, /) -> Tensor:
    """x * log1p(y), and 0 where x is 0 and y is not NaN; inexact (SciPy's xlog1py).

    At x == 0 the gradient for x is log1p(y); where that is not a finite number it is 0, and that
    for y too.
    """
    return _x_times_log("log1p", "xlog1py", x, y)


def _x_times_log(log_op: str, name: str, x: TensorLike, y: TensorLike) -> Tensor:
    a, b = promote_tensors(x, y, op=name)
    # where x is 0 and the logarithm no number it is taken of a harmless one: no NaN, in the
    # gradient either
    pole = 0 if log_op == "log" else -1
    number = not_equal(b, pole) if b.dtype.is_complex else greater(b, pole)
    counts = logical_or(logical_and(number, isfinite(b)), isnan(b))
    unused = logical_and(equal(a, 0), logical_not(counts))
    safe = where(unused, pole + 1, b)
    return multiply(a, unary(log_op, safe, inexact=True))


@runs_native
def sinc(x: TensorLike, /) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0; inexact (NumPy's normalised sinc).

    Below |pi x| = 1 the power series, whose derivatives do not cancel as those of the quotient do.
    """
    angle = multiply(x, math.pi)
    near = less(abs(angle), 1)
    v = square(where(near, angle, 0))
    series: TensorLike = _SINC_SERIES[-1]
    for term in reversed(_SINC_SERIES[:-1]):
        series = add(multiply(series, v), term)
    far = where(near, 1, angle)
    return where(near, series, divide(sin(far), far))


def rad2deg(x: TensorLike, /) -> Tensor:
    """Radians to degrees, x * 180 / pi; inexact (NumPy's name)."""
    return multiply(x, 180.0 / math.pi)


def deg2rad(x: TensorLike, /) -> Tensor:
    """Degrees to radians, x * pi / 180; inexact (NumPy's name)."""
    return multiply(x, math.pi / 180.0)
