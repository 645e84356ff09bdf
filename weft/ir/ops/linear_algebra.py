"""Decompositions of matrices, and solvers of linear systems with what they make.

All work on the last two axes; those before are a batch. Dtypes are LAPACK's: float32, float64,
complex64, complex128. Nothing is raised for values: a matrix without the decomposition (not
positive definite, not finite, no convergence) gives NaN, for it alone; a singular one gives
infinities and NaN where it is solved with. Everything else of `wf.linalg` is composed from these.

Sources: E. Anderson et al., LAPACK Users' Guide, 3rd edition, 1999; G. Golub and C. Van Loan,
Matrix Computations, 4th edition, 2013."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.ir.dims import Dim, Shape, same
from weft.ir.dtypes import as_dtype, complex64, complex128, float32, float64, int64, real_of
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    OpSpec,
    check_same_dtype,
    check_shape,
    fits,
    require_dtype,
    tensors,
)
from weft.ir.types import TensorType, Type

#: What LAPACK has routines for.
LAPACK = DTypeClass(
    "float32, float64, complex64 or complex128",
    frozenset((float32, float64, complex64, complex128)),
)
_COMPLEX = {float32: complex64, float64: complex128}


# ------------------------------------------------------------------------------------- type rules


def _matrices(op: str, t: TensorType, square: bool) -> tuple[Shape, Dim, Dim]:
    """(batch, rows, columns) of an operand. TypeRuleError, ShapeError."""
    require_dtype(op, t, LAPACK)
    if t.rank < 2:
        raise ShapeError(f"op '{op}' takes matrices, of rank 2 or more, got {t}")
    *batch, rows, columns = t.shape
    if square and not same(rows, columns):
        raise ShapeError(
            f"op '{op}' takes square matrices, got {t}: {rows} rows, {columns} columns"
        )
    return tuple(batch), rows, columns


def lesser(op: str, rows: Dim, columns: Dim) -> Dim:
    """The smaller of two sizes. ShapeError if that is not known before they have values."""
    if isinstance(rows, int) and isinstance(columns, int):
        return min(rows, columns)
    if rows is not None and rows == columns:
        return rows
    raise ShapeError(
        f"op '{op}': whether there are more rows ({rows}) or columns ({columns}) is not known",
        hint="give the last two axes known sizes; those before them may be open",
    )


def _cholesky_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("cholesky", types)
    _matrices("cholesky", a, True)
    return [a]


def _lu_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("lu", types)
    batch, rows, columns = _matrices("lu", a, False)
    count = lesser("lu", rows, columns)
    return [a, TensorType(int64, (*batch, count)), TensorType(int64, (*batch, rows))]


def _check_right(op: str, a: TensorType, b: TensorType, batch: Shape, rows: Dim) -> None:
    check_same_dtype(op, (a, b))
    if b.rank < 2 or not fits(batch, b.shape[:-2]) or not same(rows, b.shape[-2]):
        raise ShapeError(
            f"op '{op}': {b} is no right side for matrices {a}",
            hint="it has the same batch axes and as many rows; the frontend broadcasts",
        )


def _lu_solve_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    a, packed, pivots, b = tensors("lu_solve", types)
    batch, rows, _ = _matrices("lu_solve", a, True)
    check_same_dtype("lu_solve", (a, packed))
    check_shape("lu_solve", "the packed factors", packed.shape, a.shape)
    check_shape("lu_solve", "the pivots", pivots.shape, (*batch, rows))
    if pivots.dtype is not int64:
        raise TypeRuleError(f"op 'lu_solve': pivots are int64, got {pivots}")
    _check_right("lu_solve", a, b, batch, rows)
    return [b]


def _triangular_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    a, b = tensors("triangular_solve", types)
    batch, rows, _ = _matrices("triangular_solve", a, True)
    _check_right("triangular_solve", a, b, batch, rows)
    return [b]


def _qr_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("qr", types)
    batch, rows, columns = _matrices("qr", a, False)
    inner = rows if attrs["full"] else lesser("qr", rows, columns)
    shapes = (*batch, rows, inner), (*batch, inner, columns)
    return [TensorType(a.dtype, shape) for shape in shapes]


def _eigh_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("eigh", types)
    batch, rows, _ = _matrices("eigh", a, True)
    values = TensorType(real_of(a.dtype), (*batch, rows))
    return [values, a] if attrs["vectors"] else [values]


def _svd_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("svd", types)
    batch, rows, columns = _matrices("svd", a, False)
    inner = lesser("svd", rows, columns)
    values = TensorType(real_of(a.dtype), (*batch, inner))
    if not attrs["vectors"]:
        return [values]
    full = bool(attrs["full"])
    left = TensorType(a.dtype, (*batch, rows, rows if full else inner))
    right = TensorType(a.dtype, (*batch, columns if full else inner, columns))
    return [left, values, right]


def _eig_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (a,) = tensors("eig", types)
    batch, rows, _ = _matrices("eig", a, True)
    dtype = _COMPLEX.get(a.dtype, a.dtype)
    values = TensorType(dtype, (*batch, rows))
    return [values, TensorType(dtype, a.shape)] if attrs["vectors"] else [values]


# --------------------------------------------------------------------------------- NumPy meanings


def _each(
    function: Callable[[Array], Any],
    a: Array,
    like: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
    read: Callable[[Array], Array] = np.asarray,
) -> list[Array]:
    """The results of NumPy's `function` on a batch of matrices, of those dtypes and shapes. Those
    of a matrix for which it raises, or in which what it reads is not finite, are NaN."""
    fine = np.isfinite(read(a)).all((-2, -1), keepdims=True)
    given = np.where(fine, a, np.eye(*a.shape[-2:], dtype=a.dtype))
    lead = a.shape[:-2]
    try:
        made = function(given)
    except np.linalg.LinAlgError:
        if not lead:
            return [np.full(shape, np.nan, dtype) for dtype, shape in like]
        cut = [(d, s[len(lead) :]) for d, s in like]
        out = [np.empty(s, d) for d, s in like]
        for index in np.ndindex(lead):
            for whole, one in zip(out, _each(function, a[index], cut, read), strict=True):
                whole[index] = one
        return out
    parts = made if isinstance(made, tuple) else (made,)
    results = []
    for part, (dtype, shape) in zip(parts, like, strict=True):
        keep = fine.reshape((*lead, *[1] * (len(shape) - len(lead))))
        results.append(np.where(keep, part, np.nan).astype(dtype, copy=False))
    return results


def _likes(types: Sequence[Type]) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
    return [(t.dtype.numpy, t.static_shape) for t in types if isinstance(t, TensorType)]


def _type_of(a: Array) -> TensorType:
    return TensorType(as_dtype(a.dtype), a.shape)


def _cholesky(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (a,) = arrays
    return _each(np.linalg.cholesky, a, [(a.dtype, a.shape)], np.tril)[0]


def _many_small(x: Array) -> bool:
    """Whether one step of elimination on all matrices at once takes NumPy less time than a call of
    LAPACK for each."""
    return bool(x.shape[-2] <= 32 and x.size > 8 * x.shape[-1] * x.shape[-2] ** 2)


def _lu(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (a,) = arrays
    likes = _likes(_lu_type([_type_of(a)], attrs, ()))
    packed, pivots, permutation = [np.empty(shape, dtype) for dtype, shape in likes]
    permutation[...] = np.arange(a.shape[-2])
    if not a.size:
        return packed, pivots, permutation
    if _many_small(a):
        return _eliminate(a.copy(), pivots, permutation)
    from scipy.linalg.lapack import get_lapack_funcs  # 60 ms, for who factors at once

    (getrf,) = get_lapack_funcs(("getrf",), dtype=a.dtype)
    for index in np.ndindex(a.shape[:-2]):
        packed[index], pivots[index], _ = getrf(a[index])
        for k, other in enumerate(pivots[index]):
            order = permutation[index]
            order[[k, other]] = order[[other, k]]
    return packed, pivots, permutation


def _swap(rows: Array, k: int, others: Array) -> None:
    """Swap row k of each matrix (..., m, n) with its row `others` (...)."""
    at = others[..., None, None]
    moved = np.take_along_axis(rows, at, -2)
    np.put_along_axis(rows, at, rows[..., k : k + 1, :].copy(), -2)
    rows[..., k : k + 1, :] = moved


def _eliminate(x: Array, pivots: Array, permutation: Array) -> Sequence[Array]:
    """Gaussian elimination of all matrices at once, in place."""
    for k in range(pivots.shape[-1]):
        column = x[..., k:, k]
        size = np.abs(column.real) + np.abs(column.imag)  # as LAPACK's izamax
        pivots[..., k] = k + np.where(np.isnan(size), np.inf, size).argmax(-1)
        _swap(x, k, pivots[..., k])
        _swap(permutation[..., None], k, pivots[..., k])
        pivot = x[..., k, k][..., None]
        below = x[..., k + 1 :, k]
        x[..., k + 1 :, k] = np.where(pivot == 0, below, below / np.where(pivot == 0, 1, pivot))
        x[..., k + 1 :, k + 1 :] -= x[..., k + 1 :, k, None] * x[..., k, None, k + 1 :]
    return x, pivots, permutation


def _solve_triangular(a: Array, b: Array, lower: bool, adjoint: bool, unit: bool) -> Array:
    """The x with a x = b, or a^H x = b: as BLAS's trsm, which divides by zeros on the diagonal."""
    if _many_small(a):
        return _substitute(a, b.copy(), lower, adjoint, unit)
    from scipy.linalg.blas import get_blas_funcs

    (trsm,) = get_blas_funcs(("trsm",), dtype=a.dtype)
    out = np.empty_like(b)
    for index in np.ndindex(b.shape[:-2]):
        out[index] = trsm(1.0, a[index], b[index], lower=lower, trans_a=2 * adjoint, diag=unit)
    return out


def _substitute(a: Array, x: Array, lower: bool, adjoint: bool, unit: bool) -> Array:
    """Substitution in all matrices at once, in place."""
    if adjoint:
        a, lower = np.conj(a.swapaxes(-1, -2)), not lower
    n = a.shape[-1]
    for k in range(n) if lower else range(n - 1, -1, -1):
        if not unit:
            x[..., k, :] /= a[..., k, k, None]
        rest = slice(k + 1, n) if lower else slice(0, k)
        x[..., rest, :] -= a[..., rest, k, None] * x[..., k, None, :]
    return x


def _lu_solve(arrays: Sequence[Array], attrs: Attrs) -> Array:
    _, packed, pivots, b = arrays
    adjoint, x = bool(attrs["adjoint"]), b.copy()
    if not b.size:
        return x
    order = range(pivots.shape[-1])
    if not adjoint:
        for k in order:
            _swap(x, k, pivots[..., k])
    for lower in (adjoint, not adjoint)[::-1]:
        x = _solve_triangular(packed, x, lower, adjoint, lower)
    if adjoint:
        for k in reversed(order):
            _swap(x, k, pivots[..., k])
    return x


def _triangular_solve(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b = arrays
    lower, adjoint, unit = (bool(attrs[k]) for k in ("lower", "adjoint", "unit_diagonal"))
    return _solve_triangular(a, b, lower, adjoint, unit) if b.size else b.copy()


def _qr(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    made = np.linalg.qr(arrays[0], "complete" if attrs["full"] else "reduced")
    return [made.Q, made.R]


def _eigh(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (a,) = arrays
    function: Any = np.linalg.eigh if attrs["vectors"] else np.linalg.eigvalsh
    return _each(function, a, _likes(_eigh_type([_type_of(a)], attrs, ())), np.tril)


def _svd(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (a,) = arrays
    function: Any = partial(np.linalg.svd, full_matrices=bool(attrs["full"]))
    function = function if attrs["vectors"] else np.linalg.svdvals
    return _each(function, a, _likes(_svd_type([_type_of(a)], attrs, ())))


def _eig(arrays: Sequence[Array], attrs: Attrs) -> Sequence[Array]:
    (a,) = arrays
    function: Any = np.linalg.eig if attrs["vectors"] else np.linalg.eigvals
    return _each(function, a, _likes(_eig_type([_type_of(a)], attrs, ())))


_FLAG = AttrSpec("bool", False)
_VECTORS = AttrSpec("bool", True)

TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "cholesky",
        1,
        _cholesky_type,
        _cholesky,
        "The lower triangular L with L L^H = a, of which only the lower triangle is read; NaN "
        "where a is not positive definite.",
    ),
    OpSpec(
        "lu",
        1,
        _lu_type,
        _lu,
        "Gaussian elimination with partial pivoting, a[permutation] = L U: U and, below its "
        "diagonal, L without its unit diagonal; pivots, the row that row i was swapped with in "
        "step i; the permutation of rows.",
    ),
    OpSpec(
        "lu_solve",
        4,
        _lu_solve_type,
        _lu_solve,
        "x with a x = b, or a^H x = b if `adjoint`, from (a, packed, pivots, b), where packed and "
        "pivots are those of lu(a): a itself is not read, its gradient stands for that of both.",
        {"adjoint": _FLAG},
    ),
    OpSpec(
        "triangular_solve",
        2,
        _triangular_type,
        _triangular_solve,
        "x with a x = b, or a^H x = b if `adjoint`, for a triangular a, of which the other "
        "triangle is not read, nor the diagonal where that is all ones.",
        {"lower": _FLAG, "adjoint": _FLAG, "unit_diagonal": _FLAG},
    ),
    OpSpec(
        "qr",
        1,
        _qr_type,
        _qr,
        "Q with orthonormal columns and an upper triangular R with Q R = a, by Householder "
        "reflections; full: Q is square.",
        {"full": _FLAG},
    ),
    OpSpec(
        "eigh",
        1,
        _eigh_type,
        _eigh,
        "The eigenvalues of Hermitian matrices in ascending order, and eigenvectors as columns; of "
        "a only the lower triangle is read.",
        {"vectors": _VECTORS},
    ),
    OpSpec(
        "svd",
        1,
        _svd_type,
        _svd,
        "U, the singular values in descending order, and V^H with U diag(S) V^H = a; full: U and V "
        "are square; without `vectors` the values alone.",
        {"full": _FLAG, "vectors": _VECTORS},
    ),
    OpSpec(
        "eig",
        1,
        _eig_type,
        _eig,
        "The eigenvalues of square matrices, in no order, and eigenvectors of length 1 as columns, "
        "both complex.",
        {"vectors": _VECTORS},
    ),
)

#: The names of these ops.
LINEAR_ALGEBRA = frozenset(spec.name for spec in TABLE)
