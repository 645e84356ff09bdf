"""Elementwise functions: arithmetic, rounding, comparison, logic, bits, selection and casts.
Exponentials, logarithms, powers, trigonometry and special functions are in `ops/special.py`.

Shapes: the operands broadcast; the result has the common shape. Dtypes: the operands promote to one
dtype (`weft.frontend.ops.promotion`), which the result has unless said otherwise; where a function
is said to be *inexact*, bools and integers first become the default float, and the result has the
promoted floating (or complex) dtype. Integers wrap on overflow. Errors, at the caller's line:
TypeRuleError for a dtype that the function is not defined on, ShapeError for shapes that do not
broadcast. Outside the domain of a real function the result is NaN, as in NumPy; nothing raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.eager.numpy_calls import quick_where
from weft.frontend.ops.dispatch import apply, in_order, on_device
from weft.frontend.ops.promotion import (
    TensorLike,
    binary,
    broadcast_tensors,
    cast,
    check_dtype,
    common_dtype,
    elementwise,
    filled,
    iinfo,
    is_scalar,
    promote_tensors,
    unary,
    weaken,
)
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, bool_
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.spec import fits


def add(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 + x2, for numbers.

    >>> wf.add([1, 2], [[10], [20]])
    Tensor([[11, 12],
            [21, 22]], dtype=int64)
    >>> wf.asarray([250], dtype=wf.uint8) + 10  # a Python number takes the dtype it meets
    Tensor([4], dtype=uint8)
    """
    return binary("add", x1, x2)


def subtract(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 - x2, for numbers.

    >>> wf.subtract(wf.asarray([3, 5], dtype=wf.uint8), 4)
    Tensor([255,   1], dtype=uint8)
    """
    return binary("subtract", x1, x2)


def multiply(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 * x2, for numbers.

    >>> wf.multiply([2, 3], [0.5, 2.0])  # int64 with float32: NumPy would take float64
    Tensor([1., 6.], dtype=float32)
    """
    return binary("multiply", x1, x2)


def divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 / x2; integers first become the default float. x/0 is inf, -inf or NaN (IEEE 754).

    >>> wf.divide([1, 0, -1], 0)  # no warning; float32, where NumPy gives float64
    Tensor([ inf,  nan, -inf], dtype=float32)
    """
    return binary("divide", x1, x2, inexact=True)


def floor_divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """floor(x1 / x2) for real numbers, as Python's `//`. An integer divided by 0 gives 0.

    >>> wf.floor_divide([7, -7, 1], [2, 2, 0])
    Tensor([ 3, -4,  0], dtype=int64)
    """
    return binary("floor_divide", x1, x2)


def remainder(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 - floor_divide(x1, x2)*x2, with the sign of x2, as Python's `%`. An integer % 0 is 0.

    >>> wf.remainder([7, -7, 7, 7], [3, 3, -3, 0])
    Tensor([ 1,  2, -2,  0], dtype=int64)
    """
    return binary("remainder", x1, x2)


def negative(x: TensorLike, /) -> Tensor:
    """-x, for numbers (unsigned integers wrap).

    >>> wf.negative(wf.asarray([0, 1], dtype=wf.uint8))
    Tensor([  0, 255], dtype=uint8)
    """
    return unary("negative", x)


def positive(x: TensorLike, /) -> Tensor:
    """+x: the number itself.

    >>> +wf.asarray([-1, 2])
    Tensor([-1,  2], dtype=int64)
    """
    return _numbers("positive", as_tensor(x))


def _numbers(name: str, t: Tensor) -> Tensor:
    """The tensor itself, of the public function `name`."""
    if not t.dtype.is_numeric:
        raise TypeRuleError(
            f"wf.{name} needs numbers, got {t.dtype.name}", location=caller_location()
        )
    return in_order(t)


def abs(x: TensorLike, /) -> Tensor:
    """|x|; real for complex x. The least signed integer stays itself.

    >>> wf.abs([3 - 4j, -1])
    Tensor([5., 1.], dtype=float32)
    >>> wf.abs(wf.asarray([-128, -1], dtype=wf.int8))
    Tensor([-128,    1], dtype=int8)
    """
    return unary("abs", x)


def sign(x: TensorLike, /) -> Tensor:
    """-1, 0 or 1 with the dtype of x, NaN for NaN; x/|x| for complex x.

    >>> wf.sign([-2.5, -0.0, np.nan])
    Tensor([-1.,  0., nan], dtype=float32)
    >>> wf.sign([3 + 4j, 0])
    Tensor([0.6+0.8j, 0. +0.j ], dtype=complex64)
    """
    return unary("sign", x)


def square(x: TensorLike, /) -> Tensor:
    """x * x.

    >>> wf.square(wf.asarray([-3, 16], dtype=wf.int8))
    Tensor([9, 0], dtype=int8)
    """
    return unary("square", x)


def reciprocal(x: TensorLike, /) -> Tensor:
    """1 / x; integers first become the default float.

    >>> wf.reciprocal([2, 4, 0])
    Tensor([0.5 , 0.25,  inf], dtype=float32)
    """
    return unary("reciprocal", x, inexact=True)


@runs_native
def squared_difference(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """(x1 - x2) squared (TF1's name).

    >>> wf.tf1.squared_difference([1, 5], [4, 3])
    Tensor([9, 4], dtype=int64)
    """
    return square(subtract(x1, x2))


def add_n(inputs: Sequence[TensorLike]) -> Tensor:
    """The sum of several tensors of one shape, from the first to the last (TF1's AddN). One kernel
    where it is compiled.

    >>> wf.tf1.add_n([[1, 2], [10, 20], [100, 200]])
    Tensor([111, 222], dtype=int64)
    """
    parts = promote_tensors(*inputs, op="add_n")
    for p in parts[1:]:
        if not fits(p.shape, parts[0].shape):
            raise ShapeError(
                f"wf.tf1.add_n: shapes {format_shape(parts[0].shape)} and {format_shape(p.shape)} "
                "differ",
                hint="operands of wf.add broadcast",
                location=caller_location(),
            )
    total = _numbers("add_n", parts[0])
    for p in parts[1:]:
        total = add(total, p)
    return total if len(parts) > 1 else in_order(total)


def _round_op(op: str, x: TensorLike) -> Tensor:
    t = as_tensor(x)
    return t if t.dtype.is_integer else unary(op, t)


def ceil(x: TensorLike, /) -> Tensor:
    """The least integer >= x, in the dtype of x; real x. Integers are returned as they are.

    >>> wf.ceil([-1.5, 0.2, 2.0])
    Tensor([-1.,  1.,  2.], dtype=float32)
    >>> wf.ceil([1, 2])
    Tensor([1, 2], dtype=int64)
    """
    return _round_op("ceil", x)


def floor(x: TensorLike, /) -> Tensor:
    """The greatest integer <= x, in the dtype of x; real x. Integers are returned as they are.

    >>> wf.floor([-1.5, 0.2, 2.0])
    Tensor([-2.,  0.,  2.], dtype=float32)
    """
    return _round_op("floor", x)


def trunc(x: TensorLike, /) -> Tensor:
    """x without its fraction, towards 0, in the dtype of x; real x. Integers are returned as they
    are.

    >>> wf.trunc([-1.5, 0.2, 2.9])
    Tensor([-1.,  0.,  2.], dtype=float32)
    """
    return _round_op("trunc", x)


def round(x: TensorLike, /) -> Tensor:
    """The nearest integer in the dtype of x, ties to even (Python's and NumPy's rule). Of complex
    numbers both parts.

    >>> wf.round([0.5, 1.5, 2.5, -0.5])  # to a whole number: there is no `decimals`
    Tensor([ 0.,  2.,  2., -0.], dtype=float32)
    """
    return _round_op("round", x)


def maximum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The greater of two real numbers; NaN if either is.

    >>> wf.maximum([1.0, np.nan, -2.0], 0)
    Tensor([ 1., nan,  0.], dtype=float32)
    """
    return binary("maximum", x1, x2)


def minimum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The lesser of two real numbers; NaN if either is.

    >>> wf.minimum([1, 5], [[3], [0]])
    Tensor([[1, 3],
            [0, 0]], dtype=int64)
    """
    return binary("minimum", x1, x2)


@runs_native
def clip(x: TensorLike, /, min: TensorLike = None, max: TensorLike = None) -> Tensor:
    """minimum(maximum(x, min), max), either bound left out if None; NaN stays NaN. Real numbers.
    The dtype is that of x, unless a bound is of a higher kind.

    Bounds beyond the range of an integer x are its ends; InvalidArgumentError for a Python number
    that no element of the dtype can satisfy.

    >>> wf.clip([-2.0, 0.5, np.nan, 9.0], 0, 1)
    Tensor([0. , 0.5, nan, 1. ], dtype=float32)
    >>> wf.clip([-2, 5], max=3)
    Tensor([-2,  3], dtype=int64)
    """
    out: TensorLike = x if is_scalar(x) else as_tensor(x)
    given = out.dtype if isinstance(out, Tensor) and not out.weak else None
    if min is not None and not _beyond(given, min, -1):
        out = maximum(out, _bound(given, min))
    if max is not None and not _beyond(given, max, 1):
        out = minimum(out, _bound(given, max))
    return as_tensor(out)


def _beyond(dtype: DType | None, bound: TensorLike, side: int) -> bool:
    """Whether a Python integer lies beyond all numbers of an integer dtype, above (side 1) or
    below."""
    if dtype is None or not dtype.is_integer or type(bound) is not int:
        return False
    info = iinfo(dtype)
    return bound > info.max if side > 0 else bound < info.min


def _bound(dtype: DType | None, bound: TensorLike) -> TensorLike:
    """A bound of the kind of x in its dtype: floats rounded, which keeps the order, so that it is
    the clipped number that is rounded; integers at the ends of its range, at most."""
    if dtype is None or is_scalar(bound):
        return bound
    t = as_tensor(bound)
    if t.weak or t.dtype is dtype:
        return t
    if dtype.is_integer and t.dtype.is_integer:
        own, other = iinfo(dtype), iinfo(t.dtype)
        t = maximum(t, own.min) if own.min > other.min else t
        t = minimum(t, own.max) if own.max < other.max else t
        return cast(t, dtype)
    return cast(t, dtype) if dtype.is_floating and t.dtype.is_floating else t


def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """|x1| with the sign of x2, that of -0. and NaN too; floating (integers become the default).

    >>> wf.copysign([3, -2], [-0.0, 5.0])
    Tensor([-3.,  2.], dtype=float32)
    """
    return binary("copysign", x1, x2, inexact=True)


def fma(x1: TensorLike, x2: TensorLike, x3: TensorLike, /) -> Tensor:
    """x1 * x2 + x3 with one rounding (IEEE 754, fusedMultiplyAdd); real, integers become the
    default float. 16-bit floats: in float32, then to 16 bits. Compiled functions write a product
    and a sum as this by themselves; said so, it is one rounding also outside of them.

    >>> x = wf.asarray(1 + 2**-12)
    >>> wf.fma(x, x, -1 - 2**-11) * 2**24  # x * x has one bit more than float32 holds
    Tensor(1., dtype=float32)
    >>> (x * x - 1 - 2**-11) * 2**24
    Tensor(0., dtype=float32)
    """
    return elementwise("fma", x1, x2, x3, inexact=True)


def nextafter(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """The floating number after x1 in the direction of x2; x2 where they are equal.

    >>> after = wf.nextafter(wf.asarray([1.0, 1.0]), [2.0, 0.0])
    >>> (after - 1) / wf.finfo(wf.float32).eps
    Tensor([ 1. , -0.5], dtype=float32)
    """
    return binary("nextafter", x1, x2, inexact=True)


def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 == x2 -> bool; NaN equals nothing.

    >>> wf.equal([1.0, 2.0, np.nan], [1.0, 0.0, np.nan])
    Tensor([ True, False, False], dtype=bool)
    """
    return binary("equal", x1, x2)


def not_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 != x2 -> bool.

    >>> wf.not_equal([1.0, 2.0, np.nan], [1.0, 0.0, np.nan])
    Tensor([False,  True,  True], dtype=bool)
    """
    return binary("not_equal", x1, x2)


def less(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 < x2 -> bool, for real numbers and bools.

    >>> wf.less([1, 2, 3], [[2], [3]])
    Tensor([[ True, False, False],
            [ True,  True, False]], dtype=bool)
    """
    return binary("less", x1, x2)


def less_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 <= x2 -> bool, for real numbers and bools.

    >>> wf.less_equal([1, 2, 3], 2)
    Tensor([ True,  True, False], dtype=bool)
    """
    return binary("less_equal", x1, x2)


def greater(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 > x2 -> bool, for real numbers and bools.

    >>> wf.greater([1.0, 2.0, np.nan], 1.5)
    Tensor([False,  True, False], dtype=bool)
    """
    return binary("greater", x1, x2)


def greater_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 >= x2 -> bool, for real numbers and bools.

    >>> wf.greater_equal([1, 2, 3], 2)
    Tensor([False,  True,  True], dtype=bool)
    """
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
    """|x1 - x2| <= atol + rtol*|x2| -> bool; equal infinities are close (NumPy's isclose).

    >>> wf.isclose([1.0, 1.0, np.inf], [1.000001, 1.1, np.inf])
    Tensor([ True, False,  True], dtype=bool)
    >>> wf.isclose(np.nan, np.nan, equal_nan=True)
    Tensor(True, dtype=bool)
    """
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
        return filled(op == "isfinite", bool_, t.shape)
    return unary(op, t)


def isfinite(x: TensorLike, /) -> Tensor:
    """Whether x is neither infinite nor NaN -> bool; both parts, for complex x.

    >>> wf.isfinite([1.0, np.inf, np.nan])
    Tensor([ True, False, False], dtype=bool)
    >>> wf.isfinite([1, 2])
    Tensor([ True,  True], dtype=bool)
    """
    return _float_test("isfinite", x)


def isinf(x: TensorLike, /) -> Tensor:
    """Whether x is infinite -> bool; either part, for complex x.

    >>> wf.isinf([-np.inf, np.nan, 1.0])
    Tensor([ True, False, False], dtype=bool)
    """
    return _float_test("isinf", x)


def isnan(x: TensorLike, /) -> Tensor:
    """Whether x is NaN -> bool; either part, for complex x.

    >>> wf.isnan([np.nan, np.inf, complex(0, np.nan)])
    Tensor([ True, False,  True], dtype=bool)
    """
    return _float_test("isnan", x)


def signbit(x: TensorLike, /) -> Tensor:
    """Whether the sign bit of floating x is set -> bool: true for -0. and below, and some NaN.

    >>> wf.signbit([-1.0, -0.0, 0.0])
    Tensor([ True,  True, False], dtype=bool)
    >>> wf.less([-1.0, -0.0, 0.0], 0)
    Tensor([ True, False, False], dtype=bool)
    """
    return unary("signbit", x, inexact=True)


@runs_native
def _logical(op: str, *xs: TensorLike) -> Tensor:
    held = broadcast_tensors(*(cast(x, bool_) for x in xs), op=op)
    return apply(op, *held)


def logical_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 and x2 -> bool; a number counts as true unless it is 0.

    >>> wf.logical_and([0, 1, 2], [True, True, False])
    Tensor([False,  True, False], dtype=bool)
    """
    return _logical("logical_and", x1, x2)


def logical_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 or x2 -> bool; a number counts as true unless it is 0.

    >>> wf.logical_or([0.0, 0.0, np.nan], [False, True, False])
    Tensor([False,  True,  True], dtype=bool)
    """
    return _logical("logical_or", x1, x2)


def logical_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Exactly one of x1 and x2 -> bool; a number counts as true unless it is 0.

    >>> wf.logical_xor([0, 1, 2], [1, 0, 1])
    Tensor([ True,  True, False], dtype=bool)
    """
    return _logical("logical_xor", x1, x2)


def logical_not(x: TensorLike, /) -> Tensor:
    """not x -> bool; a number counts as true unless it is 0.

    >>> wf.logical_not([0.0, 0.5])
    Tensor([ True, False], dtype=bool)
    """
    return _logical("logical_not", x)


def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 & x2, for integers and bool.

    >>> wf.bitwise_and([6, 5], 3)
    Tensor([2, 1], dtype=int64)
    """
    return binary("bitwise_and", x1, x2)


def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 | x2, for integers and bool.

    >>> wf.bitwise_or([True, False], [False, False])
    Tensor([ True, False], dtype=bool)
    """
    return binary("bitwise_or", x1, x2)


def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 ^ x2, for integers and bool.

    >>> wf.bitwise_xor([6, 5], 3)
    Tensor([5, 6], dtype=int64)
    """
    return binary("bitwise_xor", x1, x2)


def bitwise_invert(x: TensorLike, /) -> Tensor:
    """~x, for integers and bool.

    >>> wf.bitwise_invert(wf.asarray([0, 1], dtype=wf.uint8))
    Tensor([255, 254], dtype=uint8)
    >>> wf.bitwise_invert([True, False])
    Tensor([False,  True], dtype=bool)
    """
    return unary("bitwise_invert", x)


def bitwise_left_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 << x2, for integers; x2 >= 0, and 0 where it is the width of the dtype or more.

    >>> ones = wf.ones(3, dtype=wf.int8)
    >>> wf.bitwise_left_shift(ones, wf.asarray([1, 7, 8], dtype=wf.int8))
    Tensor([   2, -128,    0], dtype=int8)
    """
    return binary("bitwise_left_shift", x1, x2)


def bitwise_right_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1 >> x2, for integers; x2 >= 0. Signed x1 keeps its sign (arithmetic shift).

    >>> wf.bitwise_right_shift([8, -8], 1)
    Tensor([ 4, -4], dtype=int64)
    """
    return binary("bitwise_right_shift", x1, x2)


def real(x: TensorLike, /) -> Tensor:
    """The real part: float32 for complex64, float64 for complex128; real x itself.

    >>> wf.real([1 + 2j, 3])
    Tensor([1., 3.], dtype=float32)
    """
    t = as_tensor(x)
    return unary("real", t) if t.dtype.is_complex else _numbers("real", t)


def imag(x: TensorLike, /) -> Tensor:
    """The imaginary part: float32 for complex64, float64 for complex128; 0 for real x.

    >>> wf.imag([1 + 2j, 3])
    Tensor([2., 0.], dtype=float32)
    >>> wf.imag([1, 2])
    Tensor([0, 0], dtype=int64)
    """
    t = as_tensor(x)
    return unary("imag", t) if t.dtype.is_complex else multiply(_numbers("imag", t), 0)


def conj(x: TensorLike, /) -> Tensor:
    """The complex conjugate; real x itself.

    >>> wf.conj([1 + 2j, 3])
    Tensor([1.-2.j, 3.-0.j], dtype=complex64)
    """
    t = as_tensor(x)
    return unary("conj", t) if t.dtype.is_complex else _numbers("conj", t)


def where(
    condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None, /
) -> Tensor:
    """x1 where the condition holds, x2 elsewhere; all three broadcast, x1 and x2 promote. A choice
    between Python scalars takes the dtype of what it meets, whatever the condition's shape.

    condition: bool, or numbers that count as true unless they are 0. Both x1 and x2 are computed;
    gradients flow only to the one that was selected. The condition alone is refused: libraries
    differ in what that gives.

    >>> x = wf.asarray([-1.0, 4.0])
    >>> wf.where(x > 0, wf.sqrt(x), 0)
    Tensor([0., 2.], dtype=float32)
    >>> wf.where([True, False], 1, 0)
    Tensor([1, 0], dtype=int64, weak)
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


def astype(
    x: TensorLike, dtype: object, /, *, copy: bool = True, device: str | None = None
) -> Tensor:
    """x converted to `dtype` (a weft or NumPy dtype, or a name). Tensors are immutable: no copy.
    device: where the result is to be, as for `wf.zeros`.

    Floats convert to integers by truncation; out of the integer's range the result is unspecified.

    >>> wf.astype([1.9, -1.9, 0.0], wf.int32)
    Tensor([ 1, -1,  0], dtype=int32)
    >>> wf.astype([1.9, -1.9, 0.0], "bool")
    Tensor([ True,  True, False], dtype=bool)
    """
    if device is not None:
        return on_device(device, astype, x, dtype, copy=copy)
    t = as_tensor(x)
    made = cast(t, check_dtype(dtype))
    return in_order(made) if made is t else made


def bitcast(x: TensorLike, dtype: object, /) -> Tensor:
    """The bits of a real number read as the real `dtype` of the same width (TF1's name).

    >>> wf.bitcast([1.0, -0.0], wf.uint32)
    Tensor([1065353216, 2147483648], dtype=uint32)
    """
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

    >>> wf.nan_to_num([np.nan, np.inf, 1.0], posinf=9)
    Tensor([0., 9., 1.], dtype=float32)
    >>> wf.nan_to_num([-np.inf]) == wf.finfo(wf.float32).min
    Tensor([ True], dtype=bool)
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
