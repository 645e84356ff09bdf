"""Discrete Fourier transforms along one axis: of complex numbers (`fft`), and of real ones to and
from the half of their spectrum that says all of it (`rfft`, `irfft`).

With w = exp(-2 pi i / n), the transform of x is X[k] = sum_j x[j] w**(j k), the inverse one has the
conjugate of w; `scale` says by what the sums are multiplied. The transform of n real numbers is
Hermitian, X[n-k] = conj(X[k]), so `rfft` gives its elements 0 to n // 2 and `irfft` takes those;
the imaginary parts of element 0, and of element n / 2 of an even n, do not count.

mirrored: each element between these two stands for itself and its mirror image. So `irfft` adds
both of them if it is true (the inverse transform), and `rfft` doubles the element. `rfft` and
`irfft` of the same `mirrored` are adjoint to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.ir.dims import Dim, divided, format_dim, same
from weft.ir.dtypes import DType, complex64, complex128, float32, float64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    COMPLEX,
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    OpSpec,
    checked_axis,
    dim_attr,
    int_attr,
    one_tensor,
    quietly,
)
from weft.ir.types import TensorType, Type

#: The dtype of a complex number, and of its parts.
PARTS: dict[DType, DType] = {complex64: float32, complex128: float64}
#: The dtype of complex numbers with such parts.
WHOLE: dict[DType, DType] = {part: whole for whole, part in PARTS.items()}
#: What the sums are multiplied by.
SCALES = ("1", "1/sqrt(n)", "1/n")

_REAL = DTypeClass("float32 or float64", frozenset(WHOLE))
_SCALE = {"scale": AttrSpec("str", "1")}


def half(n: Dim) -> Dim:
    """How many elements of the transform of n real numbers there are: n // 2 + 1."""
    return None if n is None else divided(n, 2) + 1


def scale_of(scale: object, n: int) -> float:
    """The number that a `scale` is at the length n."""
    return {"1": 1.0, "1/sqrt(n)": 1.0 / math.sqrt(n), "1/n": 1.0 / n}[str(scale)]


def _checked(op: str, attrs: Attrs, given: TensorType) -> int:
    if attrs["scale"] not in SCALES:
        raise TypeRuleError(
            f"op '{op}': scale {attrs['scale']!r} is unknown",
            hint=f"it is one of {', '.join(map(repr, SCALES))}",
        )
    return checked_axis(op, attrs, given.rank)


def _along(given: TensorType, axis: int, size: Dim, dtype: DType) -> list[Type]:
    return [TensorType(dtype, (*given.shape[:axis], size, *given.shape[axis + 1 :]))]


def _require_points(op: str, n: Dim, given: TensorType) -> None:
    if isinstance(n, int) and n < 1:
        raise ShapeError(
            f"op '{op}' needs at least one point, got {n} for a {given}",
            hint="give the number of points that the axis is to be padded to",
        )


def _fft_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = one_tensor("fft", types, COMPLEX)
    axis = _checked("fft", attrs, given)
    _require_points("fft", given.shape[axis], given)
    return [given]


def _rfft_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = one_tensor("rfft", types, _REAL)
    axis = _checked("rfft", attrs, given)
    n = given.shape[axis]
    _require_points("rfft", n, given)
    return _along(given, axis, half(n), WHOLE[given.dtype])


def _irfft_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = one_tensor("irfft", types, COMPLEX)
    axis = _checked("irfft", attrs, given)
    n = dim_attr(attrs, "n")
    _require_points("irfft", n, given)
    if not same(given.shape[axis], half(n)):
        raise ShapeError(
            f"op 'irfft': {format_dim(n)} points along axis {axis} come from n // 2 + 1 = "
            f"{format_dim(half(n))} elements, got a {given}"
        )
    return _along(given, axis, n, PARTS[given.dtype])


def _scaled(y: Array, attrs: Attrs, n: int) -> Array:
    factor = scale_of(attrs["scale"], n)
    return y if factor == 1.0 else _times(y, np.asarray(factor))


def _times(y: Array, factors: Array) -> Array:
    """The product with real numbers, part by part: NumPy makes them complex, and then an infinite
    part makes the other one NaN."""
    if y.dtype.kind != "c":
        return np.asarray(y * factors.astype(y.dtype))
    out = np.empty(np.broadcast_shapes(y.shape, factors.shape), y.dtype)
    out.real, out.imag = (part * factors.astype(part.dtype) for part in (y.real, y.imag))
    return out


def _fft(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,), axis = arrays, int_attr(attrs, "axis")
    if not x.size:
        return x.copy()
    if attrs["inverse"]:
        y = quietly(np.fft.ifft, x, axis=axis, norm="forward")
    else:
        y = quietly(np.fft.fft, x, axis=axis)
    return _scaled(y, attrs, x.shape[axis]).astype(x.dtype, order="C", copy=False)


def _weights(n: int, axis: int, rank: int, between: float) -> Array:
    """1 for the elements that are their own mirror images, `between` for the others."""
    weights = np.full(n // 2 + 1, between)
    weights[0] = 1.0
    if n % 2 == 0:
        weights[-1] = 1.0
    return weights.reshape([-1 if i == axis else 1 for i in range(rank)])


def _rfft(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,), axis = arrays, int_attr(attrs, "axis")
    n, dtype = x.shape[axis], np.result_type(x.dtype, np.complex64)
    if not x.size:
        return np.zeros((*x.shape[:axis], n // 2 + 1, *x.shape[axis + 1 :]), dtype)
    y = quietly(np.fft.rfft, x, axis=axis)
    if attrs["mirrored"]:
        y = _times(y, _weights(n, axis, x.ndim, 2.0))
    return _scaled(y, attrs, n).astype(dtype, order="C", copy=False)


def _irfft(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,), axis, n = arrays, int_attr(attrs, "axis"), int_attr(attrs, "n")
    dtype = x.real.dtype
    if not x.size:
        return np.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), dtype)
    if not attrs["mirrored"]:
        x = _times(x, _weights(n, axis, x.ndim, 0.5))
    y = quietly(np.fft.irfft, x, n, axis=axis, norm="forward")
    return _scaled(y, attrs, n).astype(dtype, order="C", copy=False)


TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "fft",
        1,
        _fft_type,
        _fft,
        "The discrete Fourier transform along `axis`, times `scale`; `inverse`: with exp(+...).",
        {"axis": AttrSpec("int"), "inverse": AttrSpec("bool", False), **_SCALE},
    ),
    OpSpec(
        "rfft",
        1,
        _rfft_type,
        _rfft,
        "Elements 0 to n // 2 of the transform of real numbers; `mirrored`: those between doubled.",
        {"axis": AttrSpec("int"), "mirrored": AttrSpec("bool", False), **_SCALE},
    ),
    OpSpec(
        "irfft",
        1,
        _irfft_type,
        _irfft,
        "The n real numbers of a half spectrum; not `mirrored`: its elements count once.",
        {
            "axis": AttrSpec("int"),
            "n": AttrSpec("dim"),
            "mirrored": AttrSpec("bool", True),
            **_SCALE,
        },
    ),
)

#: The names of these ops.
FOURIER = frozenset(spec.name for spec in TABLE)
