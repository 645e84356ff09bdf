"""Elementwise functions: exponentials, logarithms, powers, trigonometry and special functions.

Shapes, dtypes, *inexact* and errors are as `ops/elementwise.py` says."""

from __future__ import annotations

import math

from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    isfinite,
    isnan,
    less,
    logical_and,
    logical_not,
    logical_or,
    multiply,
    not_equal,
    square,
    where,
)
from weft.frontend.ops.promotion import TensorLike, binary, is_scalar, promote_tensors, unary

#: sin(a)/a = 1 - a^2/3! + a^4/5! - ...: enough terms for |a| < 1 and two derivatives in float64.
_SINC_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(11))


def sqrt(x: TensorLike, /) -> Tensor:
    """The principal square root of x; inexact. sqrt(-0.) is -0., negative real x gives NaN.

    >>> wf.sqrt([-1.0, -0.0])
    Tensor([nan, -0.], dtype=float32)
    >>> wf.sqrt([-1 + 0j])  # of complex numbers
    Tensor([0.+1.j], dtype=complex64)
    """
    return unary("sqrt", x, inexact=True)


def cbrt(x: TensorLike, /) -> Tensor:
    """The real cube root of x, negative for negative x; inexact, real. Its gradient at 0 is inf.

    >>> wf.cbrt([-8.0, 27.0]).numpy().round(3)
    array([-2.,  3.], dtype=float32)
    """
    return unary("cbrt", x, inexact=True)


def rsqrt(x: TensorLike, /) -> Tensor:
    """1 / sqrt(x); inexact. rsqrt(0.) is inf, negative real x gives NaN (TF1's name).

    >>> wf.rsqrt([4.0, 0.0, -1.0])
    Tensor([0.5, inf, nan], dtype=float32)
    """
    return unary("rsqrt", x, inexact=True)


def exp(x: TensorLike, /) -> Tensor:
    """e to the power x; inexact. exp(-inf) is 0, exp(inf) is inf.

    >>> wf.exp([0.0, -np.inf, np.inf])
    Tensor([ 1.,  0., inf], dtype=float32)
    >>> wf.exp([0, 1]).numpy().round(3)
    array([1.   , 2.718], dtype=float32)
    """
    return unary("exp", x, inexact=True)


def exp2(x: TensorLike, /) -> Tensor:
    """2 to the power x; inexact (NumPy's name).

    >>> wf.exp2([3, -1, 0]).numpy().round(3)
    array([8. , 0.5, 1. ], dtype=float32)
    """
    return unary("exp2", x, inexact=True)


def expm1(x: TensorLike, /) -> Tensor:
    """exp(x) - 1 without cancellation for small x; inexact.

    >>> (wf.expm1([1e-10]) * 1e10).numpy().round(3)
    array([1.], dtype=float32)
    >>> (wf.exp([1e-10]) - 1) * 1e10  # 1 + 1e-10 is 1 in float32
    Tensor([0.], dtype=float32)
    """
    return unary("expm1", x, inexact=True)


def log(x: TensorLike, /) -> Tensor:
    """The natural logarithm of x; inexact. log(0.) is -inf, negative real x gives NaN.

    >>> wf.log([1.0, 0.0, -1.0])
    Tensor([  0., -inf,  nan], dtype=float32)
    >>> wf.log([-1 + 0j]).numpy().round(3)
    array([0.+3.142j], dtype=complex64)
    """
    return unary("log", x, inexact=True)


def log1p(x: TensorLike, /) -> Tensor:
    """log(1 + x) without cancellation for small x; inexact.

    >>> (wf.log1p([1e-10]) * 1e10).numpy().round(3)
    array([1.], dtype=float32)
    >>> wf.log(1 + wf.asarray([1e-10]))  # 1 + 1e-10 is 1 in float32
    Tensor([0.], dtype=float32)
    """
    return unary("log1p", x, inexact=True)


def log2(x: TensorLike, /) -> Tensor:
    """The logarithm of x to base 2; inexact.

    >>> wf.log2([8, 0.5, 0]).numpy().round(3)
    array([  3.,  -1., -inf], dtype=float32)
    """
    return unary("log2", x, inexact=True)


def log10(x: TensorLike, /) -> Tensor:
    """The logarithm of x to base 10; inexact.

    >>> wf.log10([1000, 0.01, 0]).numpy().round(3)
    array([  3.,  -2., -inf], dtype=float32)
    """
    return unary("log10", x, inexact=True)


def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow; inexact, real.

    >>> wf.logaddexp([1000.0, -np.inf], [1000.0, -np.inf]).numpy().round(3)
    array([1000.693,     -inf], dtype=float32)
    """
    return binary("logaddexp", x1, x2, inexact=True)


def pow(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 to the power x2, in the promoted dtype (integers stay integers).

    An integer to a negative power is the exact power cut off towards 0, and 0 to one is 0.
    A Python exponent of 2 is computed as `square(x1)`, which is exact and cheaper. Real negative x1
    with a fractional x2 gives NaN. pow(x, 0) is 1 for every x, NaN too (IEEE 754).

    >>> wf.pow([2, 3], 3)
    Tensor([ 8, 27], dtype=int64)
    >>> wf.pow([2, -1, 0], -1)  # NumPy raises an error
    Tensor([ 0, -1,  0], dtype=int64)
    >>> wf.pow([0.0, np.nan, 2.0], [0, 0, -1])
    Tensor([1. , 1. , 0.5], dtype=float32)
    >>> wf.pow([-8.0, 4], 0.5)
    Tensor([nan,  2.], dtype=float32)
    """
    if is_scalar(x2) and x2 == 2 and not is_scalar(x1):
        (base, _) = promote_tensors(x1, x2, op="pow")
        return unary("square", base)
    return binary("power", x1, x2, name="pow")


def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """sqrt(x1*x1 + x2*x2) without overflow or underflow on the way; inexact, real.

    >>> (wf.hypot([3e30], [4e30]) / 1e30).numpy().round(3)
    array([5.], dtype=float32)
    """
    return binary("hypot", x1, x2, inexact=True)


def sin(x: TensorLike, /) -> Tensor:
    """The sine of x in radians; inexact. Infinite x gives NaN.

    >>> wf.sin([0, np.pi / 2, np.inf]).numpy().round(3)
    array([ 0.,  1., nan], dtype=float32)
    """
    return unary("sin", x, inexact=True)


def cos(x: TensorLike, /) -> Tensor:
    """The cosine of x in radians; inexact. Infinite x gives NaN.

    >>> wf.cos([0, np.pi, np.inf]).numpy().round(3)
    array([ 1., -1., nan], dtype=float32)
    """
    return unary("cos", x, inexact=True)


def tan(x: TensorLike, /) -> Tensor:
    """The tangent of x in radians; inexact. Infinite x gives NaN.

    >>> wf.tan([0, np.pi / 4]).numpy().round(3)
    array([0., 1.], dtype=float32)
    """
    return unary("tan", x, inexact=True)


def asin(x: TensorLike, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; inexact. NaN outside [-1, 1].

    >>> wf.asin([-1, 0, 1, 2]).numpy().round(3)
    array([-1.571,  0.   ,  1.571,    nan], dtype=float32)
    """
    return unary("asin", x, inexact=True)


def acos(x: TensorLike, /) -> Tensor:
    """The angle in [0, pi] whose cosine is x; inexact. NaN outside [-1, 1].

    >>> wf.acos([-1, 0, 1, 2]).numpy().round(3)
    array([3.142, 1.571, 0.   ,   nan], dtype=float32)
    """
    return unary("acos", x, inexact=True)


def atan(x: TensorLike, /) -> Tensor:
    """The angle in [-pi/2, pi/2] whose tangent is x; inexact.

    >>> wf.atan([-np.inf, 0, 1]).numpy().round(3)
    array([-1.571,  0.   ,  0.785], dtype=float32)
    """
    return unary("atan", x, inexact=True)


def atan2(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The angle in [-pi, pi] of the point (x2, x1), signs of zeros respected; inexact, real.

    >>> wf.atan2([1.0, 0.0, -0.0], [0.0, -1.0, -1.0]).numpy().round(3)
    array([ 1.571,  3.142, -3.142], dtype=float32)
    """
    return binary("atan2", x1, x2, inexact=True)


def sinh(x: TensorLike, /) -> Tensor:
    """The hyperbolic sine (exp(x) - exp(-x)) / 2; inexact.

    >>> wf.sinh([0, 1, -np.inf]).numpy().round(3)
    array([0.   , 1.175,  -inf], dtype=float32)
    """
    return unary("sinh", x, inexact=True)


def cosh(x: TensorLike, /) -> Tensor:
    """The hyperbolic cosine (exp(x) + exp(-x)) / 2; inexact.

    >>> wf.cosh([0, 1, -np.inf]).numpy().round(3)
    array([1.   , 1.543,   inf], dtype=float32)
    """
    return unary("cosh", x, inexact=True)


def tanh(x: TensorLike, /) -> Tensor:
    """The hyperbolic tangent sinh(x) / cosh(x), in [-1, 1]; inexact.

    >>> wf.tanh([0, 1, -np.inf]).numpy().round(3)
    array([ 0.   ,  0.762, -1.   ], dtype=float32)
    """
    return unary("tanh", x, inexact=True)


def asinh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic sine; inexact.

    >>> wf.asinh([0, 1, -np.inf]).numpy().round(3)
    array([0.   , 0.881,  -inf], dtype=float32)
    """
    return unary("asinh", x, inexact=True)


def acosh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic cosine, >= 0; inexact. NaN below 1.

    >>> wf.acosh([1, 2, 0.5]).numpy().round(3)
    array([0.   , 1.317,   nan], dtype=float32)
    """
    return unary("acosh", x, inexact=True)


def atanh(x: TensorLike, /) -> Tensor:
    """The inverse hyperbolic tangent; inexact. NaN outside [-1, 1], infinite at its ends.

    >>> wf.atanh([0, 0.5, 1, 2]).numpy().round(3)
    array([0.   , 0.549,   inf,   nan], dtype=float32)
    """
    return unary("atanh", x, inexact=True)


def sigmoid(x: TensorLike, /) -> Tensor:
    """The logistic function 1 / (1 + exp(-x)), in [0, 1], without overflow; inexact, real.

    >>> wf.sigmoid([-1000, 0, 2]).numpy().round(3)
    array([0.   , 0.5  , 0.881], dtype=float32)
    """
    return unary("sigmoid", x, inexact=True)


def erf(x: TensorLike, /) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x; inexact, real.

    Source: Abramowitz and Stegun 7.1.1.

    >>> wf.erf([0, 1, np.inf]).numpy().round(3)
    array([0.   , 0.843, 1.   ], dtype=float32)
    """
    return unary("erf", x, inexact=True)


def erfc(x: TensorLike, /) -> Tensor:
    """1 - erf(x) without cancellation for large x; inexact, real (Abramowitz and Stegun 7.1.2).

    >>> (wf.erfc([5.0]) * 1e12).numpy().round(2)
    array([1.54], dtype=float32)
    >>> 1 - wf.erf([5.0])
    Tensor([0.], dtype=float32)
    """
    return unary("erfc", x, inexact=True)


def erfinv(x: TensorLike, /) -> Tensor:
    """The y with erf(y) == x; inexact, real. NaN outside [-1, 1], infinite at its ends.

    >>> wf.erfinv([0, 0.5, 1, 2]).numpy().round(3)
    array([0.   , 0.477,   inf,   nan], dtype=float32)
    """
    return unary("erfinv", x, inexact=True)


def lgamma(x: TensorLike, /) -> Tensor:
    """The logarithm of |gamma(x)|; inexact, real. inf at 0 and the negative integers.

    Source: Abramowitz and Stegun 6.1.1.

    >>> wf.lgamma([5, 0.5, 0, -1]).numpy().round(3)
    array([3.178, 0.572,   inf,   inf], dtype=float32)
    """
    return unary("lgamma", x, inexact=True)


def digamma(x: TensorLike, /) -> Tensor:
    """The derivative of lgamma; inexact, real (Abramowitz and Stegun 6.3.1). NaN at the negative
    integers, infinite at 0.

    >>> wf.digamma([1, 2]).numpy().round(3)
    array([-0.577,  0.423], dtype=float32)
    >>> wf.digamma([0.0, -0.0, -1])
    Tensor([-inf,  inf,  nan], dtype=float32)
    """
    return unary("digamma", x, inexact=True)


@runs_native
def xlogy(x: TensorLike, y: TensorLike, /) -> Tensor:
    """x * log(y), and 0 where x is 0 and y is not NaN; inexact (SciPy's xlogy).

    At x == 0 the gradient for x is log(y); where log(y) is not a finite number it is 0, and that
    for y too.

    >>> wf.xlogy([0.0, 0.0, 2.0], [0.0, np.nan, 1.0])
    Tensor([ 0., nan,  0.], dtype=float32)
    >>> wf.grad(lambda x: wf.xlogy(x, 0.0))(0.0)
    Tensor(0., dtype=float64, weak)
    """
    return _x_times_log("log", "xlogy", x, y)


@runs_native
def xlog1py(x: TensorLike, y: TensorLike, /) -> Tensor:
    """x * log1p(y), and 0 where x is 0 and y is not NaN; inexact (SciPy's xlog1py).

    At x == 0 the gradient for x is log1p(y); where that is not a finite number it is 0, and that
    for y too.

    >>> wf.xlog1py([0.0, 0.0, 2.0], [-1.0, np.nan, 0.0])
    Tensor([ 0., nan,  0.], dtype=float32)
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

    >>> wf.sinc([0, 0.5, 1.5]).numpy().round(3)
    array([ 1.   ,  0.637, -0.212], dtype=float32)
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
    """Radians to degrees, x * 180 / pi; inexact (NumPy's name).

    >>> wf.rad2deg([np.pi, -1]).numpy().round(2)
    array([180. , -57.3], dtype=float32)
    """
    return multiply(x, 180.0 / math.pi)


def deg2rad(x: TensorLike, /) -> Tensor:
    """Degrees to radians, x * pi / 180; inexact (NumPy's name).

    >>> wf.deg2rad([180, 90]).numpy().round(3)
    array([3.142, 1.571], dtype=float32)
    """
    return multiply(x, math.pi / 180.0)
