"""Elementwise ops: one row each, with the meaning both in NumPy and on one element.

Operands of a row have equal dtypes and equal shapes (`where`'s condition is bool): promotion and
broadcasting happen in the frontend. The meaning is NumPy 2's: integers wrap, floor_divide and
remainder are Python's, integer x // 0 and x % 0 are 0, round goes half to even, NaN propagates.
float16 and bfloat16 are computed in float32 and rounded once per op. `fma` is x * y + z with one
rounding, which NumPy has no function for.

A `scalar` expression is Python over a, b, c with C's names for functions (`asin`, `atan2`)."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal

import numpy as np

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    ANY,
    BOOL,
    FLOATING,
    INEXACT,
    INTEGER,
    NUMERIC,
    ORDERED,
    REAL,
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    InferRule,
    OpSpec,
    Reference,
    check_same_dtype,
    dtype_attr,
    elementwise_shape,
    quietly,
    require_dtype,
    tensors,
    widen,
)
from weft.ir.types import TensorType, Type


@cache
def mathematics() -> ctypes.CDLL:
    """The library of fma, sin and the like. OSError if there is none."""
    if sys.platform == "linux":
        try:
            return ctypes.CDLL("libm.so.6")
        except OSError:  # another C library than GNU's
            pass
    # it loads eight modules more, 8 ms, and runs programs of the system: 5 ms and more
    from ctypes.util import find_library

    return ctypes.CDLL(find_library("m") or find_library("c"))


_FmaArray = np.ndarray[Any, Any]


def fma(x: _FmaArray, y: _FmaArray, z: _FmaArray) -> _FmaArray:
    """x * y + z of equal dtypes, f32 or f64, rounded once (IEEE 754, fusedMultiplyAdd)."""
    if x.dtype == np.float32:
        return _single(x, y, z)
    out: _FmaArray = np.asarray(np.frompyfunc(_double(), 3, 1)(x, y, z), np.float64)
    return out


def _single(x: _FmaArray, y: _FmaArray, z: _FmaArray) -> _FmaArray:
    """In f64 the product is exact. The sum is rounded to odd there, so that rounding it to f32 is
    the only rounding (S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums:
    proved algorithms using rounding to odd", 2008)."""
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)  # D. Knuth's exact error of the sum
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    return (bits + np.where(even, np.where(away, 1, -1), 0)).view(np.float64).astype(np.float32)


@functools.cache
def _double() -> Callable[[float, float, float], float]:
    """C's fma; Python has it since 3.13, where it raises for what IEEE 754 calls invalid."""
    function = mathematics().fma
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double] * 3
    assert math.isnan(function(math.inf, 0.0, 1.0))
    return function


Function = Callable[..., Any]
Result = Literal["same", "bool", "real"]  # the operands' dtype, bool, the real part's dtype

_ELEMENTWISE = frozenset({"elementwise"})
_COMMUTATIVE = frozenset({"elementwise", "commutative"})
_BITS = INTEGER | BOOL


def _result_dtype(result: Result, operand: DType) -> DType:
    if result == "bool":
        return dtypes.bool_
    return dtypes.real_of(operand) if result == "real" else operand


def _rule(name: str, allowed: DTypeClass, result: Result) -> InferRule:
    def infer(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        operands = tensors(name, types)
        for operand in operands:
            require_dtype(name, operand, allowed)
        dtype = check_same_dtype(name, operands)
        return [TensorType(_result_dtype(result, dtype), elementwise_shape(name, operands))]

    return infer


def _reference(function: Function, result: Result, native: bool) -> Reference:
    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        return quietly(compute, arrays)

    def compute(arrays: Sequence[Array]) -> Array:
        dtype = _result_dtype(result, dtypes.as_dtype(arrays[0].dtype)).numpy
        out = function(*(arrays if native else map(widen, arrays)))
        return np.asarray(out).astype(dtype, copy=False)

    return reference


#: What an op does to arrays of the dtypes that NumPy has; ON_REALS: NumPy's own, where these alone
#: are the same.
FUNCTIONS: dict[str, Function] = {}
ON_REALS: dict[str, Function] = {}


def unary(
    name: str,
    allowed: DTypeClass,
    function: Function,
    scalar: str,
    doc: str,
    result: Result = "same",
    *,
    on_reals: Function | None = None,
) -> OpSpec:
    """The row of a one-operand op whose NumPy meaning is `function` (given f16 and bf16 as f32);
    on_reals: NumPy's own, which is the same for real operands."""
    rule, reference = _rule(name, allowed, result), _reference(function, result, False)
    FUNCTIONS[name] = function
    if on_reals is not None:
        ON_REALS[name] = on_reals
    return OpSpec(name, 1, rule, reference, doc, traits=_ELEMENTWISE, scalar=scalar)


def binary(
    name: str,
    allowed: DTypeClass,
    function: Function,
    scalar: str,
    doc: str,
    result: Result = "same",
    *,
    traits: frozenset[str] = _ELEMENTWISE,
    native: bool = False,
) -> OpSpec:
    """The row of a two-operand op; `native` gives f16 and bf16 to `function` as they are."""
    rule, reference = _rule(name, allowed, result), _reference(function, result, native)
    FUNCTIONS[name] = function
    return OpSpec(name, 2, rule, reference, doc, traits=traits, scalar=scalar)


predicate = partial(unary, result="bool")
compare = partial(binary, result="bool")
symmetric = partial(binary, traits=_COMMUTATIVE)


def _special(name: str) -> Function:
    """The function of `scipy.special`, which is loaded when first called (it takes 0.1 s)."""

    @cache
    def loaded() -> Function:
        import scipy.special

        return getattr(scipy.special, name)  # type: ignore[no-any-return]

    return lambda x: loaded()(x)


#: NumPy's functions without the look for arrays of other libraries among their arguments, which is
#: 0.2 us.
_where, _putmask, _count_nonzero = (
    getattr(import_module("numpy._core._multiarray_umath"), name)
    for name in ("where", "putmask", "count_nonzero")
)
#: So many elements are chosen by a copy that is overwritten in part, in 0.6 of `np.where`'s time.
_OVERWRITTEN = 4096

_expit, _erfc_of_scipy = _special("expit"), _special("erfc")


def _sigmoid(x: Array) -> Any:
    """SciPy's gives 0 where exp(-x) overflows; there it is exp(x), a subnormal number or nearly."""
    result = np.asarray(_expit(x))
    if _count_nonzero(result) == result.size:
        return result
    small = (result == 0) & np.isfinite(x)
    if small.any():
        result = result.copy()
        result[small] = np.exp(np.asarray(x)[small])
    return result


def _erfc(x: Array) -> Any:
    """SciPy's gives 0 below 2e-308 (x > 26.54); the C library has the subnormal numbers as well."""
    result = np.asarray(_erfc_of_scipy(x))
    small = (result == 0) & np.isfinite(x)
    if result.dtype == np.float64 and small.any():
        result = result.copy()
        result[small] = [math.erfc(v) for v in np.asarray(x)[small]]
    return result


def _nextafter(a: Array, b: Array) -> Any:
    """b where they are equal, as in C: NumPy gives float16 the other zero."""
    out = np.nextafter(a, b)
    return np.where(a == b, b, out) if a.dtype.itemsize == 2 else out


def _sign(a: Array) -> Any:
    """NaN + NaN i where a part is NaN (the array API); NumPy forgets it beside an infinite one."""
    out = np.sign(a)
    return np.where(np.isnan(a), complex(np.nan, np.nan), out) if a.dtype.kind == "c" else out


def _real(a: Array) -> Any:
    return np.real(a).copy()


def _imag(a: Array) -> Any:
    return np.imag(a).copy()


def _expm1(a: Array) -> Any:
    """NumPy's, and for complex a + bi at the borders the array API's, as C's cexp has them: real
    for real a, whatever e**a; at a = -inf without an angle -1, at a = inf without one inf + NaN i.
    """
    out = np.asarray(np.expm1(a))
    if a.dtype.kind != "c":
        return out
    real, imaginary = a.real, a.imag
    lost = np.isinf(real) & ~np.isfinite(imaginary)
    flat, low = imaginary == 0, lost & (real < 0)
    out.real = np.where(flat | lost, np.expm1(real), out.real)
    out.imag = np.where(flat, imaginary, np.where(low, np.copysign(0, imaginary), out.imag))
    return out


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "i":
        # NumPy refuses negative exponents; here the exact power is truncated: 0 unless |a| is 1
        unit = np.where(b % 2 == 0, np.abs(a), a)
        inverse = np.where(np.abs(a) == 1, unit, 0)
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))
    out: Array = np.power(a, b)
    if a.dtype.kind == "f" and (b.size == 1 or 0 in b.strides):
        # NumPy takes the root for an exponent of 0.5 for all: that of -inf is NaN, of -0 -0
        half = b == 0.5
        if half.any():
            out = np.where(half & (a == -np.inf), np.asarray(np.inf, out.dtype), np.asarray(out))
            out = np.where(half & (a == 0), np.zeros((), out.dtype), out)
    return out


def choose(condition: Array, a: Array, b: Array) -> Array:
    """`np.where` for arrays of which `a` and `b` have one dtype."""
    shape = b.shape
    if condition.size > _OVERWRITTEN or condition.shape != shape or a.shape not in ((), shape):
        return _where(condition, a, b)  # type: ignore[no-any-return]
    made = b.copy()
    _putmask(made, condition, a)
    return made


_SIGN = "a / abs(a) if a != 0 else a * 0"
_NEXT = "The number of the dtype that is next to a, towards b."
_SHIFT_RIGHT = "Bits moved down by b, the sign copied in; no bit stays unless 0 <= b < bits."

UNARY = (
    unary("abs", NUMERIC, np.abs, "abs(a)", "Absolute value; |a|, a real, if complex.", "real"),
    unary(
        "sign",
        NUMERIC,
        _sign,
        _SIGN,
        "-1, 0 or 1; a / |a| if complex; NaN of NaN.",
        on_reals=np.sign,
    ),
    unary("negative", NUMERIC, np.negative, "-a", "-a; wraps around for integers."),
    unary("square", NUMERIC, np.square, "a * a", "a times a."),
    unary("sqrt", INEXACT, np.sqrt, "sqrt(a)", "Square root, the principal one if complex."),
    unary("cbrt", FLOATING, np.cbrt, "cbrt(a)", "Cube root, negative if a is."),
    unary("rsqrt", INEXACT, lambda a: 1 / np.sqrt(a), "1 / sqrt(a)", "One over the square root."),
    unary("reciprocal", INEXACT, np.reciprocal, "1 / a", "One over a."),
    unary("exp", INEXACT, np.exp, "exp(a)", "e to the power a."),
    unary("exp2", INEXACT, np.exp2, "exp2(a)", "2 to the power a."),
    unary("expm1", INEXACT, _expm1, "expm1(a)", "exp(a) - 1, accurate near 0.", on_reals=np.expm1),
    unary("log", INEXACT, np.log, "log(a)", "Natural logarithm."),
    unary("log1p", INEXACT, np.log1p, "log1p(a)", "log(1 + a), accurate near 0."),
    unary("log2", INEXACT, np.log2, "log2(a)", "Logarithm to base 2."),
    unary("log10", INEXACT, np.log10, "log10(a)", "Logarithm to base 10."),
    unary("sin", INEXACT, np.sin, "sin(a)", "Sine of a in radians."),
    unary("cos", INEXACT, np.cos, "cos(a)", "Cosine of a in radians."),
    unary("tan", INEXACT, np.tan, "tan(a)", "Tangent of a in radians."),
    unary("asin", INEXACT, np.arcsin, "asin(a)", "Inverse sine."),
    unary("acos", INEXACT, np.arccos, "acos(a)", "Inverse cosine."),
    unary("atan", INEXACT, np.arctan, "atan(a)", "Inverse tangent."),
    unary("sinh", INEXACT, np.sinh, "sinh(a)", "Hyperbolic sine."),
    unary("cosh", INEXACT, np.cosh, "cosh(a)", "Hyperbolic cosine."),
    unary("tanh", INEXACT, np.tanh, "tanh(a)", "Hyperbolic tangent."),
    unary("asinh", INEXACT, np.arcsinh, "asinh(a)", "Inverse hyperbolic sine."),
    unary("acosh", INEXACT, np.arccosh, "acosh(a)", "Inverse hyperbolic cosine."),
    unary("atanh", INEXACT, np.arctanh, "atanh(a)", "Inverse hyperbolic tangent."),
    unary("erf", FLOATING, _special("erf"), "erf(a)", "2/sqrt(pi) times int_0^a exp(-t^2) dt."),
    unary("erfc", FLOATING, _erfc, "erfc(a)", "1 - erf(a), accurate for large a."),
    unary("erfinv", FLOATING, _special("erfinv"), "erfinv(a)", "The x with erf(x) = a."),
    unary("lgamma", FLOATING, _special("gammaln"), "lgamma(a)", "log |Gamma(a)|."),
    unary("digamma", FLOATING, _special("psi"), "digamma(a)", "Derivative of log Gamma at a."),
    unary("sigmoid", FLOATING, _sigmoid, "1 / (1 + exp(-a))", "Logistic function."),
    unary("ceil", REAL, np.ceil, "ceil(a)", "Smallest whole number >= a."),
    unary("floor", REAL, np.floor, "floor(a)", "Largest whole number <= a."),
    unary("round", NUMERIC, np.round, "round(a)", "Nearest whole number, half to even, by parts."),
    unary("trunc", REAL, np.trunc, "trunc(a)", "Nearest whole number towards 0."),
    predicate("isnan", NUMERIC, np.isnan, "a != a", "Whether a, or a part of it, is NaN."),
    predicate("isinf", NUMERIC, np.isinf, "isinf(a)", "Whether a, or a part of it, is infinite."),
    predicate(
        "isfinite", NUMERIC, np.isfinite, "isfinite(a)", "Whether a is not NaN nor infinite."
    ),
    predicate(
        "signbit", FLOATING, np.signbit, "copysign(1, a) < 0", "Whether the sign bit is set."
    ),
    unary("logical_not", BOOL, np.logical_not, "not a", "Not a."),
    unary("bitwise_invert", _BITS, np.invert, "~a", "All bits flipped; not a for bools."),
    unary("conj", NUMERIC, np.conj, "conj(a)", "Complex conjugate; a itself if real."),
    unary("real", NUMERIC, _real, "real(a)", "Real part.", "real"),
    unary("imag", NUMERIC, _imag, "imag(a)", "Imaginary part; 0 if a is real.", "real"),
)

BINARY = (
    symmetric("add", NUMERIC, np.add, "a + b", "a plus b."),
    binary("subtract", NUMERIC, np.subtract, "a - b", "a minus b."),
    symmetric("multiply", NUMERIC, np.multiply, "a * b", "a times b."),
    binary("divide", INEXACT, np.divide, "a / b", "a over b."),
    binary(
        "floor_divide", REAL, np.floor_divide, "a // b", "Floor of a over b; integer x // 0 is 0."
    ),
    binary("remainder", REAL, np.remainder, "a % b", "a - (a // b) * b; integer x % 0 is 0."),
    binary("power", NUMERIC, _power, "a ** b", "a to the power b; truncated if integer."),
    symmetric("maximum", REAL, np.maximum, "max(a, b)", "The larger one; NaN if one is."),
    symmetric("minimum", REAL, np.minimum, "min(a, b)", "The smaller one; NaN if one is."),
    binary("atan2", FLOATING, np.arctan2, "atan2(a, b)", "Angle of the point x=b, y=a in radians."),
    symmetric("hypot", FLOATING, np.hypot, "hypot(a, b)", "sqrt(a^2 + b^2) without overflow."),
    symmetric("logaddexp", FLOATING, np.logaddexp, "logaddexp(a, b)", "log(exp(a) + exp(b))."),
    binary("copysign", FLOATING, np.copysign, "copysign(a, b)", "|a| with the sign of b."),
    binary("nextafter", FLOATING, _nextafter, "nextafter(a, b)", _NEXT, native=True),
    symmetric("equal", ANY, np.equal, "a == b", "Whether a is b.", "bool"),
    symmetric("not_equal", ANY, np.not_equal, "a != b", "Whether a is not b.", "bool"),
    compare("less", ORDERED, np.less, "a < b", "Whether a is smaller than b."),
    compare("less_equal", ORDERED, np.less_equal, "a <= b", "Whether a is b or smaller."),
    compare("greater", ORDERED, np.greater, "a > b", "Whether a is larger than b."),
    compare("greater_equal", ORDERED, np.greater_equal, "a >= b", "Whether a is b or larger."),
    symmetric("logical_and", BOOL, np.logical_and, "a and b", "Both."),
    symmetric("logical_or", BOOL, np.logical_or, "a or b", "At least one."),
    symmetric("logical_xor", BOOL, np.logical_xor, "a != b", "Exactly one."),
    symmetric("bitwise_and", _BITS, np.bitwise_and, "a & b", "Bits set in both."),
    symmetric("bitwise_or", _BITS, np.bitwise_or, "a | b", "Bits set in one or both."),
    symmetric("bitwise_xor", _BITS, np.bitwise_xor, "a ^ b", "Bits set in exactly one."),
    binary("bitwise_left_shift", INTEGER, np.left_shift, "a << b", "0 unless 0 <= b < bits."),
    binary("bitwise_right_shift", INTEGER, np.right_shift, "a >> b", _SHIFT_RIGHT),
)


def _where_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    condition, *values = operands = tensors("where", types)
    require_dtype("where", condition, BOOL)
    return [TensorType(check_same_dtype("where", values), elementwise_shape("where", operands))]


def _astype_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (given,), dtype = tensors("astype", types), dtype_attr(attrs, "dtype")
    if given.dtype is not dtype and "string" in (given.dtype.kind, dtype.kind):
        raise TypeRuleError(
            f"op 'astype' cannot convert {given} to {dtype.name}",
            hint="wf.tf1.string_to_number reads numbers from strings, wf.tf1.as_string writes them",
        )
    if given.dtype.is_complex and not dtype.is_complex and dtype is not dtypes.bool_:
        raise TypeRuleError(
            f"op 'astype' would lose the imaginary part: {given} to {dtype.name}",
            hint="take wf.real(x) first",
        )
    return [TensorType(dtype, given.shape)]


def _astype(arrays: Sequence[Array], attrs: Attrs) -> Array:
    # to bfloat16, ml_dtypes converts float64 and integers by way of float32; so does compiled code
    with np.errstate(all="ignore"):
        return arrays[0].astype(dtype_attr(attrs, "dtype").numpy, copy=False)


def _bitcast_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (given,), dtype = tensors("bitcast", types), dtype_attr(attrs, "dtype")
    require_dtype("bitcast", given, REAL)
    if dtype not in REAL or dtype.bits != given.dtype.bits:
        fits = ", ".join(d.name for d in dtypes.ALL if d in REAL and d.bits == given.dtype.bits)
        raise TypeRuleError(
            f"op 'bitcast' cannot read the bits of {given} as {dtype.name}",
            hint=f"a dtype of {given.dtype.bits} bits is needed: {fits}",
        )
    return [TensorType(dtype, given.shape)]


def _bitcast(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return arrays[0].view(dtype_attr(attrs, "dtype").numpy)


_TO_DTYPE = {"dtype": AttrSpec("dtype")}

TABLE: tuple[OpSpec, ...] = (
    *UNARY,
    *BINARY,
    OpSpec(
        "where",
        3,
        _where_type,
        lambda arrays, attrs: np.where(*arrays).astype(arrays[1].dtype, copy=False),
        "The second operand where the first is true, the third elsewhere.",
        traits=_ELEMENTWISE,
        scalar="b if a else c",
    ),
    OpSpec(
        "fma",
        3,
        _rule("fma", FLOATING, "same"),
        _reference(fma, "same", False),
        "a * b + c, rounded once (16-bit floats: in float32, then to 16 bits).",
        traits=_ELEMENTWISE,
        scalar="fma(a, b, c)",
    ),
    OpSpec(
        "astype",
        1,
        _astype_type,
        _astype,
        "The number as another dtype; floats to integers towards 0 (out of range: any integer).",
        _TO_DTYPE,
        _ELEMENTWISE,
        scalar="astype(a)",
    ),
    OpSpec(
        "bitcast",
        1,
        _bitcast_type,
        _bitcast,
        "The same bits read as another dtype of the same width.",
        _TO_DTYPE,
        _ELEMENTWISE,
        scalar="bitcast(a)",
    ),
)
