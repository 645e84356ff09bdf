"""Functions of the kernel language over NumPy values: maths, halves, bits, upper halves of
products, sums of products of bytes, and products of tensor cores.

A value is a NumPy scalar, or an array with an element for each thread. Functions of f32 are
computed in f64 and rounded, which is nearly always the nearest f32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from scipy import special

from weft.codegen.cuda.source.kernel import MMAS

#: A NumPy scalar, or an array of one for each thread.
Value = Any


def _power(x: Value, y: Value) -> Value:
    # For one exponent 0.5 NumPy takes square roots, NaN of -inf; for an array of them it does not.
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    many = np.broadcast_to(y, shape or (2,)).copy()
    return np.power(x, many) if shape else np.power(x, many)[0]


def _erfc(x: Value) -> Value:
    # SciPy's gives 0 below 2e-308; libdevice, as the C library, has the subnormal numbers as well.
    made = special.erfc(x)
    small = (made == 0) & np.isfinite(x)
    if not np.any(small):
        return made
    return np.where(small, np.vectorize(math.erfc, otypes=[np.float64])(x), made)[()]


_F64: dict[str, Callable[..., Value]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "erfc": _erfc,
    "erfinv": special.erfinv,
    "lgamma": lambda x: special.gammaln(np.where(x == -np.inf, np.inf, x)[()]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "fabs": np.abs,
    "pow": _power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "fmod": np.fmod,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
}

#: Exact on f32 as they are, so that nothing is gained in f64 (nextafter would be wrong there).
_EXACT = {"floor", "ceil", "trunc", "rint", "fabs", "fmod", "copysign", "nextafter", "sqrt"}

_F32T, _F64T, _U16T = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)
_U32T, _U64T = np.dtype(np.uint32), np.dtype(np.uint64)

_NORMAL = np.finfo(np.float32).smallest_normal
#: The bits of an f64 that an f32 has not, and those bits in the middle between two f32.
_BELOW_F32, _MIDDLE = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)


def _rounded(function: Callable[..., Value]) -> Callable[..., Value]:
    def f32(*args: Value) -> Value:
        return function(*(a.astype(_F64T) for a in args)).astype(_F32T)

    return f32


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and what rounding it lost (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b and what rounding it lost (Dekker, by Veltkamp's splitting)."""
    p = a * b
    splitter = np.float64(134217729.0)
    ca, cb = splitter * a, splitter * b
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _odd_sum(a: Value, b: Value) -> Value:
    """a + b rounded to odd: rounded again to fewer bits, it is as if rounded once."""
    s, lost = _two_sum(a, b)
    even = np.logical_not(s.view(_U64T) & np.uint64(1))
    toward = np.where(lost > 0, np.inf, -np.inf)
    fix = even & (lost != 0) & np.isfinite(s) & np.isfinite(lost)
    return _plain(np.where(fix, np.nextafter(s, toward), s))


def fma_f32(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once: the product is exact in f64."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        if not isinstance(c, np.ndarray):
            return _fma_of_one(float(a) * float(b), float(c))
    product = np.multiply(a, b, dtype=_F64T)
    near = np.add(product, c, dtype=_F64T)
    result = near.astype(_F32T)
    # Rounding the rounded sum again goes wrong in the middle between two f32 alone; among those
    # below the normal ones the middles are elsewhere.
    middle = (near.view(_U64T) & _BELOW_F32) == _MIDDLE
    size = np.abs(result)
    if not size.min() >= _NORMAL:  # NaN, too
        middle |= (size < _NORMAL) & (near != 0)
    if not middle.any():
        return result
    where = np.flatnonzero(middle)
    result = np.array(result, ndmin=1)
    product = np.broadcast_to(product, result.shape)[where]
    addend = np.broadcast_to(c, result.shape)[where].astype(_F64T)
    result[where] = _odd_sum(product, addend).astype(_F32T)
    return result if np.ndim(near) else result[0]


def _fma_of_one(product: float, addend: float) -> Value:
    near = np.float64(product + addend)
    result = near.astype(_F32T)
    if (int(near.view(_U64T)) & 0x1FFFFFFF) != 0x10000000 and (near == 0 or abs(result) >= _NORMAL):
        return result
    return _odd_sum(np.float64(product), np.float64(addend)).astype(_F32T)


def fma_f64(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once (Boldo and Melquiond 2008), but for products near the limits of f64,
    whose lost part is none."""
    high, low = _two_product(a, b)
    t, t_lost = _two_sum(c, low)
    v, v_lost = _two_sum(high, t)
    exact = v + _odd_sum(t_lost, v_lost)
    # Of a zero the plain sum has the sign.
    known = np.isfinite(low) & np.isfinite(exact) & (exact != 0)
    return _plain(np.where(known, exact, high + c))


def _plain(value: Value) -> Value:
    """A scalar for an array of no dimension."""
    return value[()]


def f16_to_f32(u: Value) -> Value:
    """The value of 16 bits of IEEE's binary16."""
    return u.view(np.dtype(np.float16)).astype(_F32T)


def f32_to_f16(x: Value) -> Value:
    """The bits of the nearest binary16, ties to even."""
    return x.astype(np.dtype(np.float16)).view(_U16T)


def bf16_to_f32(u: Value) -> Value:
    """The value of the upper 16 bits of an f32."""
    return (u.astype(_U32T) << np.uint32(16)).view(_F32T)


def f32_to_bf16(x: Value) -> Value:
    """The upper 16 bits of x, rounded to nearest, ties to even."""
    return _plain(np.asarray(x).astype(ml_dtypes.bfloat16).view(_U16T))


def mul_high_u32(a: Value, b: Value) -> Value:
    """The upper 32 bits of a * b."""
    return ((a.astype(_U64T) * b.astype(_U64T)) >> np.uint64(32)).astype(_U32T)


def mul_high_u64(a: Value, b: Value) -> Value:
    """The upper 64 bits of a * b, by halves."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    return a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half)


def _dp4a(byte: type[np.integer[Any]]) -> Callable[..., Value]:
    """c and the products of four bytes each of a and b, modulo 2**32."""

    def dp4a(a: Value, b: Value, c: Value) -> Value:
        total = c.astype(np.int64)
        for shift in range(0, 32, 8):
            x, y = ((word >> word.dtype.type(shift)).astype(byte) for word in (a, b))
            total = total + x.astype(np.int64) * y.astype(np.int64)
        return total.astype(c.dtype)

    return dp4a


#: Name in kernel source -> what it computes.
NUMPY_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{f"{name}_f64": function for name, function in _F64.items()},
    **{
        f"{name}_f32": function if name in _EXACT else _rounded(function)
        for name, function in _F64.items()
    },
    "fma_f32": fma_f32,
    "fma_f64": fma_f64,
    "f16_to_f32": f16_to_f32,
    "f32_to_f16": f32_to_f16,
    "bf16_to_f32": bf16_to_f32,
    "f32_to_bf16": f32_to_bf16,
    "bits_f32": lambda x: x.view(_U32T),
    "f32_bits": lambda u: u.view(_F32T),
    "bits_f64": lambda x: x.view(_U64T),
    "f64_bits": lambda u: u.view(_F64T),
    "mul_high_u32": mul_high_u32,
    "mul_high_u64": mul_high_u64,
    "dp4a_i32": _dp4a(np.int8),
    "dp4a_u32": _dp4a(np.uint8),
}


Array = npt.NDArray[Any]
_GROUP, _T = np.divmod(np.arange(32), 4)


def multiply_add(name: str, values: Sequence[Array]) -> list[Array]:
    """The four c of each lane; values: its ten, as `source/kernel.py` says, [warp, lane] each.

    Products are exact in f64; their sums, which begin with C, are rounded to f32 once, at the end.
    A GPU's are less exact: "Numerical behavior of NVIDIA tensor cores", M. Fasi et al., 2021."""
    warps = values[0].shape[0]
    a, b, c = (np.empty((warps, *size)) for size in ((16, 16), (16, 8), (16, 8)))
    for half in (0, 1):
        for i, word in enumerate(values[:4]):
            column = 2 * _T + i // 2 * 8 + half
            a[:, _GROUP + i % 2 * 8, column] = _element(MMAS[name], word, half)
        for i, word in enumerate(values[4:6]):
            b[:, 2 * _T + i * 8 + half, _GROUP] = _element(MMAS[name], word, half)
    for i, value in enumerate(values[6:]):
        c[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] = value
    for k in range(16):
        c += a[:, :, k, None] * b[:, k, None, :]
    rounded = c.astype(np.float32)
    return [rounded[:, _GROUP + i // 2 * 8, 2 * _T + i % 2] for i in range(4)]


def _element(dtype: str, word: Array, half: int) -> Array:
    """The lower (0) or upper (1) 16 bits of words as numbers."""
    bits = (word >> np.uint32(16 * half)).astype(np.uint16)
    if dtype == "f16":
        return bits.view(np.float16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
