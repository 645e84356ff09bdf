"""Discrete Fourier transforms: the functions of `wf.fft`, by the array API's rules and NumPy's.

Numbers: float32 and complex64, float64 and complex128; float16 and bfloat16 become float32, bools
and integers the default float. `n` (of several axes `s`) says how many points an axis has: longer
ones are cut at their end, shorter ones padded with zeros there. `norm` says which direction divides
by n: "backward" (the default) the inverse one, "forward" the other one, "ortho" both by sqrt(n).
Settings may be given by position, too, in NumPy's order, which is also the array API's.

Errors, at the caller's line: InvalidArgumentError for a wrong n, axis or norm, TypeRuleError for
complex numbers where real ones are transformed, ShapeError for an empty axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.creation import asarray
from weft.frontend.ops.dispatch import apply, on_device
from weft.frontend.ops.elementwise import conj
from weft.frontend.ops.manipulation import concat, cut
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    check_axes,
    check_axis,
    check_dtype,
    check_int,
    check_positive,
    expand,
    inexact_tensor,
    scalar_tensor,
    strong_tensor,
    traced_sizes,
    widened,
)
from weft.ir.dims import Dim, SymbolicDim, divided, format_dim, same
from weft.ir.dtypes import DEFAULT_FLOAT
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.ops.fourier import WHOLE, half

Norm = Literal["backward", "ortho", "forward"]
_SCALES = {"backward": "1", "ortho": "1/sqrt(n)", "forward": "1/n"}
_OTHER: dict[Norm, Norm] = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


# --------------------------------------------------------------------------------------- arguments
def _checked_norm(op: str, norm: Any) -> Norm:
    """`norm`; None is "backward", as in NumPy."""
    given: Any = "backward" if norm is None else norm
    if not isinstance(given, str) or given not in _SCALES:
        raise InvalidArgumentError(
            f"wf.fft.{op}: norm {norm!r} is unknown",
            hint="it is 'backward', 'ortho' or 'forward'",
            location=caller_location(),
        )
    return given  # type: ignore[return-value]


def _scale(op: str, norm: Any, inverse: bool) -> str:
    given = _checked_norm(op, norm)
    return _SCALES[_OTHER[given] if inverse else given]


def _complex(op: str, x: TensorLike) -> Tensor:
    t = widened(inexact_tensor(x, f"fft.{op}"))
    return t if t.dtype.is_complex else cast(t, WHOLE[t.dtype])


def _real(op: str, x: TensorLike) -> Tensor:
    t = widened(inexact_tensor(x, f"fft.{op}"))
    if t.dtype.is_complex:
        raise TypeRuleError(
            f"wf.fft.{op} transforms real numbers, got {t.dtype.name}",
            hint=f"wf.fft.{'fftn' if op.endswith('n') else 'fft'} transforms complex ones; wf.real "
            "takes the real parts",
            location=caller_location(),
        )
    return t


def _axis(op: str, axis: object, t: Tensor) -> int:
    return check_axis(f"fft.{op}", axis, t.ndim)


def _size(op: str, n: Any, default: Dim) -> int | SymbolicDim:
    """The number of points, which is not below 1."""
    found = default if n is None else n
    known = traced_sizes(f"fft.{op}", found, "n")
    if known is not None and len(known) == 1:
        (found,) = known
    if isinstance(found, SymbolicDim):
        return found
    if found is None:
        raise UnsupportedError(
            f"wf.fft.{op} along an axis of unknown size",
            hint="wf.ensure_shape says what size it has",
            location=caller_location(),
        )
    count = check_int(f"fft.{op}", found, "n")
    if count < 1 and n is None:
        raise ShapeError(
            f"wf.fft.{op} needs at least one point, got {count}",
            hint="n= says to how many points the axis is padded",
            location=caller_location(),
        )
    if count < 1:
        raise InvalidArgumentError(
            f"wf.fft.{op}: n must be at least 1, got {count}", location=caller_location()
        )
    return count


def _resized(op: str, t: Tensor, axis: int, size: int | SymbolicDim) -> Tensor:
    """`t` cut, or padded with zeros, at the end of an axis."""
    given = t.shape[axis]
    if given == size:
        return t
    if not isinstance(size, int):
        more = tuple(size if i == axis else d for i, d in enumerate(t.shape))
        t = concat([t, expand(scalar_tensor(0, t.dtype), more)], axis=axis)
    elif not isinstance(given, int) or given < size:
        lack = size - given if isinstance(given, int) else size
        hi = tuple(lack if i == axis else 0 for i in range(t.ndim))
        t = apply("pad", t, scalar_tensor(0, t.dtype), lo=(0,) * t.ndim, hi=hi)
    return t if t.shape[axis] == size else cut(t, axis, 0, size)


def _many(
    op: str, t: Tensor, s: Sequence[Any] | None, axes: Sequence[int] | None
) -> list[tuple[int, Any]]:
    """(axis, n or None) for each axis, in their order."""
    if axes is None:
        count = t.ndim if s is None else len(s)
        if count > t.ndim:
            raise InvalidArgumentError(
                f"wf.fft.{op}: s {tuple(s or ())} has more sizes than the tensor axes, {t.ndim}",
                location=caller_location(),
            )
        axes = range(t.ndim - count, t.ndim)
    given = axes if isinstance(axes, (tuple, list, range)) else (axes,)
    order = [_axis(op, a, t) for a in given]
    sizes: list[Any] = [None] * len(order) if s is None else list(s)
    if len(sizes) != len(order):
        raise InvalidArgumentError(
            f"wf.fft.{op}: s {tuple(sizes)} and axes {tuple(given)} differ in length",
            location=caller_location(),
        )
    plain = [None if n is None or (isinstance(n, int) and n == -1) else n for n in sizes]
    # an axis that is there twice has the size that it has now, both times
    twice = [
        t.shape[a] if n is None and order.count(a) > 1 else n
        for a, n in zip(order, plain, strict=True)
    ]
    return list(zip(order, twice, strict=True))


def _several(
    op: str, t: Tensor, s: Sequence[Any] | None, axes: Sequence[int] | None
) -> list[tuple[int, Any]]:
    """As `_many`; there must be one."""
    found = _many(op, t, s, axes)
    if not found:
        raise InvalidArgumentError(
            f"wf.fft.{op} needs at least one axis", location=caller_location()
        )
    return found


# ------------------------------------------------------------------------------------ along an axis
def _along(op: str, t: Tensor, n: Any, axis: int, norm: Any, inverse: bool) -> Tensor:
    scale = _scale(op, norm, inverse)
    t = _resized(op, t, axis, _size(op, n, t.shape[axis]))
    return apply("fft", t, axis=axis, inverse=inverse, scale=scale)


def _forward_real(op: str, t: Tensor, n: Any, axis: int, norm: Any) -> Tensor:
    scale = _scale(op, norm, False)
    t = _resized(op, t, axis, _size(op, n, t.shape[axis]))
    return apply("rfft", t, axis=axis, scale=scale)


def _inverse_real(op: str, t: Tensor, n: Any, axis: int, norm: Any) -> Tensor:
    scale, given = _scale(op, norm, True), t.shape[axis]
    size = _size(op, n, None if given is None else 2 * (given - 1))
    try:
        wanted = half(size)
    except ShapeError:
        raise ShapeError(
            f"wf.fft.{op}: of an axis of size {format_dim(given)} it is not known how many points "
            "it comes from",
            hint="give n=",
            location=caller_location(),
        ) from None
    if not same(given, wanted) or isinstance(wanted, int):
        assert wanted is not None
        t = _resized(op, t, axis, wanted)
    return apply("irfft", t, axis=axis, n=size, scale=scale)


@runs_native
def fft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The discrete Fourier transform along `axis`: X[k] = sum_j x[j] exp(-2 pi i j k / n).

    x: of any shape, complex, or real numbers, which become complex. n: how many points (default:
    the axis's size). Complex, of the shape of x but for n points along the axis.

    >>> wf.fft.fft([1.0, 2.0, 3.0, 4.0])
    Tensor([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j], dtype=complex64)
    """
    t = _complex("fft", x)
    return _along("fft", t, n, _axis("fft", axis, t), norm, False)


@runs_native
def ifft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `fft`: x[j] = 1/n sum_k X[k] exp(2 pi i j k / n).

    >>> wf.fft.ifft(wf.fft.fft([1.0, 2.0, 3.0, 4.0]))
    Tensor([1.+0.j, 2.+0.j, 3.+0.j, 4.+0.j], dtype=complex64)
    """
    t = _complex("ifft", x)
    return _along("ifft", t, n, _axis("ifft", axis, t), norm, True)


@runs_native
def rfft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """Elements 0 to n // 2 of the transform of real numbers; the others are their conjugates.

    Real x -> complex, n // 2 + 1 elements along the axis. TypeRuleError for complex x.

    >>> wf.fft.rfft([1.0, 2.0, 3.0, 4.0])
    Tensor([10.+0.j, -2.+2.j, -2.+0.j], dtype=complex64)
    """
    t = _real("rfft", x)
    return _forward_real("rfft", t, n, _axis("rfft", axis, t), norm)


@runs_native
def irfft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: n real numbers of the n // 2 + 1 elements of their transform.

    n: 2 (m - 1) for an axis of size m by default; an odd n has to be given. Imaginary parts of
    element 0, and of element n / 2 of an even n, do not count.

    >>> wf.fft.irfft(wf.fft.rfft([1.0, 2.0, 3.0]), n=3)
    Tensor([1., 2., 3.], dtype=float32)
    """
    t = _complex("irfft", x)
    return _inverse_real("irfft", t, n, _axis("irfft", axis, t), norm)


@runs_native
def hfft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The transform, n real numbers, of the first n // 2 + 1 elements of a Hermitian signal: one
    with x[n-j] = conj(x[j]).

    n: 2 (m - 1) for an axis of size m by default.

    >>> wf.fft.hfft([1.0, 2.0, 3.0])  # as fft([1.0, 2.0, 3.0, 2.0])
    Tensor([ 8., -2.,  0., -2.], dtype=float32)
    """
    t = _complex("hfft", x)
    other = _OTHER[_checked_norm("hfft", norm)]
    return _inverse_real("hfft", conj(t), n, _axis("hfft", axis, t), other)


@runs_native
def ihfft(x: TensorLike, /, n: Any = None, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `hfft`: real numbers -> the first n // 2 + 1 elements of a Hermitian signal.

    >>> wf.fft.ihfft([8.0, -2.0, 0.0, -2.0])
    Tensor([1.-0.j, 2.-0.j, 3.-0.j], dtype=complex64)
    """
    t = _real("ihfft", x)
    other = _OTHER[_checked_norm("ihfft", norm)]
    return conj(_forward_real("ihfft", t, n, _axis("ihfft", axis, t), other))


# --------------------------------------------------------------------------------- several axes
def _transforms(
    op: str, t: Tensor, s: Sequence[Any] | None, axes: Sequence[int] | None, norm: Any,
    inverse: bool,
) -> Tensor:  # fmt: skip
    for axis, n in reversed(_many(op, t, s, axes)):
        t = _along(op, t, n, axis, norm, inverse)
    _checked_norm(op, norm)
    return t


@runs_native
def fftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Tensor:
    """`fft` along several axes: `axes`, or the last len(s) ones, or all.

    s: how many points each of them has; -1 is the axis's own size.

    >>> wf.fft.fftn([[1.0, 2.0], [3.0, 4.0]])
    Tensor([[10.+0.j, -2.+0.j],
            [-4.+0.j,  0.+0.j]], dtype=complex64)
    """
    return _transforms("fftn", _complex("fftn", x), s, axes, norm, False)


@runs_native
def ifftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Tensor:
    """The inverse of `fftn`.

    >>> wf.fft.ifftn(wf.fft.fftn([[1.0, 2.0], [3.0, 4.0]]))
    Tensor([[1.+0.j, 2.+0.j],
            [3.+0.j, 4.+0.j]], dtype=complex64)
    """
    return _transforms("ifftn", _complex("ifftn", x), s, axes, norm, True)


@runs_native
def rfftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Tensor:
    """`rfft` along the last of several axes, then `fft` along the others.

    >>> wf.fft.rfftn([[1.0, 2.0, 3.0, 4.0]]).shape
    (1, 3)
    """
    t = _real("rfftn", x)
    *others, (last, n) = _several("rfftn", t, s, axes)
    t = _forward_real("rfftn", t, n, last, norm)
    for axis, size in reversed(others):
        t = _along("rfftn", t, size, axis, norm, False)
    return t


@runs_native
def irfftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Tensor:
    """The inverse of `rfftn`; an odd size of the last axis has to be given in `s`.

    >>> x = wf.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> wf.fft.irfftn(wf.fft.rfftn(x), s=x.shape).numpy().round(3)
    array([[1., 2., 3.],
           [4., 5., 6.]], dtype=float32)
    """
    t = _complex("irfftn", x)
    *others, (last, n) = _several("irfftn", t, s, axes)
    if s is None or s[-1] in (None, -1):
        given = t.shape[last]
        n = 2 * (given - 1) if isinstance(given, int) else None
    for axis, size in others:
        t = _along("irfftn", t, size, axis, norm, True)
    return _inverse_real("irfftn", t, n, last, norm)


def fft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> Tensor:
    """`fftn` along two axes (NumPy's).

    >>> wf.fft.fft2(wf.ones((3, 2, 2)))[0]
    Tensor([[4.+0.j, 0.+0.j],
            [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return fftn(x, s=s, axes=axes, norm=norm)


def ifft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> Tensor:
    """The inverse of `fft2`.

    >>> wf.fft.ifft2([[4.0, 0.0], [0.0, 0.0]])
    Tensor([[1.+0.j, 1.+0.j],
            [1.+0.j, 1.+0.j]], dtype=complex64)
    """
    return ifftn(x, s=s, axes=axes, norm=norm)


def rfft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> Tensor:
    """`rfftn` along two axes (NumPy's).

    >>> wf.fft.rfft2(wf.ones((3, 4, 4))).shape
    (3, 4, 3)
    """
    return rfftn(x, s=s, axes=axes, norm=norm)


def irfft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: Norm = "backward",
) -> Tensor:
    """The inverse of `rfft2`.

    >>> wf.fft.irfft2(wf.fft.rfft2(wf.ones((3, 4, 4)))).shape
    (3, 4, 4)
    """
    return irfftn(x, s=s, axes=axes, norm=norm)


# ----------------------------------------------------------------------------------- frequencies
def _frequencies(op: str, n: Any, d: Any, dtype: object, count: int, first: int) -> Tensor:
    """(first, ..., first + count - 1) / (n d), those before 0 at the end, each rounded once."""
    wanted = check_dtype(dtype, DEFAULT_FLOAT)
    if not wanted.is_floating:
        raise TypeRuleError(
            f"wf.fft.{op}: dtype must be real floating, got {wanted.name}",
            location=caller_location(),
        )
    try:
        spacing = float(d)
    except (TypeError, ValueError):
        spacing = 0.0
    if spacing == 0.0:
        raise InvalidArgumentError(
            f"wf.fft.{op}: d must be a number other than 0, got {d!r}", location=caller_location()
        )
    numbers = np.roll(np.arange(first, first + count), first)
    return asarray((numbers / (n * spacing)).astype(wanted.numpy))


def fftfreq(
    n: int, /, d: float = 1.0, dtype: object = None, *, device: str | None = None
) -> Tensor:
    """The frequencies of the elements of `fft` of n points a distance d apart, in cycles per unit.

    0, 1, ..., then the negative ones, divided by n d. dtype: a float (default float32). device: as
    for `wf.zeros`.

    >>> wf.fft.fftfreq(5, d=0.5)
    Tensor([ 0. ,  0.4,  0.8, -0.8, -0.4], dtype=float32)
    """
    if device is not None:
        return on_device(device, fftfreq, n, d, dtype)
    count = check_positive("fft.fftfreq", n, "n")
    return _frequencies("fftfreq", count, d, dtype, count, -(count // 2))


def rfftfreq(
    n: int, /, d: float = 1.0, dtype: object = None, *, device: str | None = None
) -> Tensor:
    """The frequencies of the n // 2 + 1 elements of `rfft` of n points a distance d apart.

    >>> wf.fft.rfftfreq(5, d=0.5)
    Tensor([0. , 0.4, 0.8], dtype=float32)
    """
    if device is not None:
        return on_device(device, rfftfreq, n, d, dtype)
    count = check_positive("fft.rfftfreq", n, "n")
    return _frequencies("rfftfreq", count, d, dtype, count // 2 + 1, 0)


def _shifted(op: str, x: TensorLike, axes: Axes, inverse: bool) -> Tensor:
    t = strong_tensor(x)
    for axis in check_axes(f"fft.{op}", axes, t.ndim, "axes"):
        size = t.shape[axis]
        if size is None:
            raise UnsupportedError(
                f"wf.fft.{op} along an axis of unknown size", location=caller_location()
            )
        middle = divided(size, 2)
        at = middle if inverse else size - middle
        t = concat([cut(t, axis, at, size), cut(t, axis, 0, at)], axis=axis)
    return t


@runs_native
def fftshift(x: TensorLike, /, axes: Axes = None) -> Tensor:
    """Frequency 0 in the middle: element j along each of `axes` (default: all) moves on by half the
    axis, size // 2. Any dtype.

    >>> wf.fft.fftshift([0, 1, 2, -2, -1])
    Tensor([-2, -1,  0,  1,  2], dtype=int64)
    """
    return _shifted("fftshift", x, axes, False)


@runs_native
def ifftshift(x: TensorLike, /, axes: Axes = None) -> Tensor:
    """The inverse of `fftshift`, which it differs from along axes of odd size.

    >>> wf.fft.ifftshift([-2, -1, 0, 1, 2])
    Tensor([ 0,  1,  2, -2, -1], dtype=int64)
    """
    return _shifted("ifftshift", x, axes, True)
