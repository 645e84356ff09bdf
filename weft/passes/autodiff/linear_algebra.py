"""Gradients of decompositions and of linear solves.

Sources: M. Giles, An extended collection of matrix derivative results, 2008 (Cholesky, eigenvalues,
singular values); M. Seeger et al., Auto-differentiating linear algebra, 1710.08717 (LU); S. Walter
and L. Lehmann, Algorithmic differentiation of linear algebra functions, 2010, and D. Roberts and L.
Roberts, QR and LQ decomposition matrix backpropagation, 2009.10071 (QR); Z.-Q. Wan and S.-X. Zhang,
1909.02659 (complex SVD); C. Boeddeker et al., 1701.00392 (eigenvectors).

Of Hermitian operands, of which only a triangle is read, the gradient is Hermitian: that with
respect to changes that keep the matrix so, as in JAX, PyTorch and TensorFlow.

Eigenvectors of equal eigenvalues, and singular vectors of equal singular values, are any basis: a
loss must not depend on which, and then its gradient has no part along changes that turn one into
another. So what divides by the gap of two values is 0 where the gap is of the size of their own
rounding errors. A loss that sees the values alone has no such term at all, whatever the gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import Dim
from weft.ir.dtypes import DType, int64
from weft.ir.errors import GradientError
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr

#: Gaps below so many roundings of the largest value count as none.
_ROUNDINGS = 32


# ---------------------------------------------------------------------------------------- helpers


def _product(a: Expr, b: Expr) -> Expr:
    return a.op("matmul", b)


def _adjoint(a: Expr) -> Expr:
    """The conjugate transpose."""
    last = a.rank - 1
    return a.conj().permute([*range(last - 1), last, last - 1])


def _places(a: Expr) -> tuple[Expr, Expr]:
    """The row and the column of each element."""
    return a.iota(a.shape, a.rank - 2, int64), a.iota(a.shape, a.rank - 1, int64)


def _strictly_lower(a: Expr) -> Expr:
    row, column = _places(a)
    return (row > column).where(a, 0)


def _strictly_upper(a: Expr) -> Expr:
    row, column = _places(a)
    return (column > row).where(a, 0)


def _upper(a: Expr) -> Expr:
    row, column = _places(a)
    return (row > column).where(a.full(0), a)


def _on_diagonal(values: Expr, dtype: DType) -> Expr:
    """Matrices with these diagonals."""
    shape = (*values.shape, values.shape[-1])
    wide = _columns(values, shape).astype(dtype)
    row, column = _places(wide)
    return row.equals(column).where(wide, 0)


def _columns(values: Expr, shape: Sequence[Dim]) -> Expr:
    """`values[..., j]` in column j."""
    return values.reshape((*values.shape[:-1], 1, values.shape[-1])).broadcast_to(tuple(shape))


def _scaled(vectors: Expr, values: Expr) -> Expr:
    """vectors diag(values)"""
    return vectors * _columns(values, vectors.shape).astype(vectors.dtype)


def _rows(values: Expr, shape: Sequence[Dim]) -> Expr:
    """`values[..., i]` in row i."""
    return values.reshape((*values.shape, 1)).broadcast_to(tuple(shape))


def _hermitian_part(a: Expr) -> Expr:
    return (a + _adjoint(a)) * 0.5


def _solve(a: Expr, b: Expr, *, lower: bool, adjoint: bool, unit: bool = False) -> Expr:
    return a.op("triangular_solve", b, lower=lower, adjoint=adjoint, unit_diagonal=unit)


def _solve_right(b: Expr, a: Expr, *, lower: bool, adjoint: bool, unit: bool = False) -> Expr:
    """x with x a = b, or x a^H = b."""
    return _adjoint(_solve(a, _adjoint(b), lower=lower, adjoint=not adjoint, unit=unit))


def _smallest_gap(values: Expr) -> Expr:
    """For each vector of `values`, shape (..., 1): differences below it are rounding errors."""
    sizes, axes = values.op("abs"), (values.rank - 1,)
    if values.shape[-1] == 0:  # which has no largest
        return sizes.sum(axes, keepdims=True)
    most = sizes.op("max", axes=axes, keepdims=True)
    eps: Any = np.finfo(most.dtype.numpy).eps  # type: ignore[type-var]
    return most * float(_ROUNDINGS * eps)


def _inverse(x: Expr, tolerance: Expr) -> Expr:
    """1 / x, and 0 where |x| is within the tolerance."""
    used = x.op("abs") > tolerance
    return used.where(used.where(x, 1).op("reciprocal"), 0)


def _inverse_gaps(values: Expr) -> Expr:
    """1 / (values[j] - values[i]) in row i and column j; 0 for equal ones."""
    shape = (*values.shape, values.shape[-1])
    gaps = _columns(values, shape) - _rows(values, shape)
    least = _smallest_gap(values)
    return _inverse(gaps, least.reshape((*least.shape, 1)).broadcast_to(shape))


# ------------------------------------------------------------------------------------------ rules


def _cholesky(s: Site) -> Sequence[Expr | None]:
    """L^-H phi(L^H g) L^-1, phi the lower triangle with half of the diagonal."""
    inner = _product(_adjoint(s.y), s.g)
    row, column = _places(inner)
    half = (row > column).where(inner, row.equals(column).where(inner * 0.5, 0))
    left = _solve(s.y, half, lower=True, adjoint=True)
    return [_hermitian_part(_solve_right(left, s.y, lower=True, adjoint=False))]


def _lu(s: Site) -> Sequence[Expr | None]:
    """P^T L^-H (tril(L^H g, -1) + triu(g U^H)) U^-H, L and U padded to square matrices."""
    g, packed, permutation = s.cotangents[0], s.results[0], s.results[2]
    if g is None:
        return [None]
    rows, columns = packed.shape[-2:]
    tall, wide = _square(packed, rows), _square(packed, columns)
    row, column = _places(tall)
    lower = row.equals(column).where(tall.full(1), _strictly_lower(tall))
    inner = _strictly_lower(_product(_adjoint(lower), g))
    inner = inner + _upper(_product(g, _adjoint(_upper(wide))))
    inner = _solve(lower, inner, lower=True, adjoint=True, unit=True)
    inner = _solve_right(inner, wide, lower=False, adjoint=True)
    back = permutation.op("argsort", axis=permutation.rank - 1, descending=False)
    index = _rows(back, inner.shape)
    return [inner.op("take_along_axis", index, axis=inner.rank - 2)]


def _square(packed: Expr, size: Dim) -> Expr:
    """The packed factors, of which one has `size` rows and columns: the other one's part is cut
    off, and an identity takes the place of what is missing."""
    rows, columns = packed.shape[-2:]
    if rows == columns:
        return packed
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    assert isinstance(size, int)
    least, axis = min(rows, columns), packed.rank - (1 if size == rows else 2)
    core = packed.slice_axis(axis, 0, least)
    if size == least:
        return core
    more = tuple(size - least if k == axis else 0 for k in range(packed.rank))
    padded = core.op("pad", core.scalar(0), lo=(0,) * packed.rank, hi=more)
    row, column = _places(padded)
    beyond = row.equals(column).op("logical_and", row > (least - 1))
    return beyond.where(padded.full(1), padded)


def _lu_solve(s: Site) -> Sequence[Expr | None]:
    """With a x = b: of b, a^-H g; of a, -(a^-H g) x^H. The factors' part is in that of a."""
    a, packed, pivots, _ = s.operands
    adjoint = bool(s.attrs["adjoint"])
    right = a.op("lu_solve", packed, pivots, s.g, adjoint=not adjoint)
    return [_of_matrix(s, right, adjoint), None, None, right]


def _of_matrix(s: Site, right: Expr, adjoint: bool) -> Expr:
    one, two = (s.y, right) if adjoint else (right, s.y)
    return -_product(one, _adjoint(two))


def _triangular_solve(s: Site) -> Sequence[Expr | None]:
    """As of `lu_solve`, in the triangle that is read."""
    lower, adjoint, unit = (bool(s.attrs[k]) for k in ("lower", "adjoint", "unit_diagonal"))
    right = _solve(s.x, s.g, lower=lower, adjoint=not adjoint, unit=unit)
    given = _of_matrix(s, right, adjoint)
    row, column = _places(given)
    if unit:
        return [_strictly_lower(given) if lower else _strictly_upper(given), right]
    outside = column > row if lower else row > column
    return [outside.where(given.full(0), given), right]


def _qr(s: Site) -> Sequence[Expr | None]:
    """(gQ + Q S(gR R^H - Q^H gQ)) R^-H, S(M) = triu(M, 1) + triu(M, 1)^H + Re diag(M).

    Of more columns than rows, a = [a1 a2], R = [R1 R2] and R2 = Q^H a2: the same with R1, and what
    R2 adds.
    """
    q, r = s.results
    rows, columns = s.x.shape[-2:]
    if rows != columns and not (isinstance(rows, int) and isinstance(columns, int)):
        raise GradientError(
            f"the gradient of 'qr' of a matrix with {rows} rows and {columns} columns is not built",
            hint="give the last two axes known sizes",
            location=s.op.locations,
        )
    tall = rows != columns and rows > columns  # type: ignore[operator]
    if s.attrs["full"] and tall:
        raise GradientError(
            "the gradient of 'qr' of a matrix with more rows than columns is not defined where Q "
            'is square (mode="complete"): the columns beyond those of the matrix are any basis',
            hint='mode="reduced" has a gradient',
            location=s.op.locations,
        )
    g_q, g_r = s.cotangents
    g_q = q.full(0) if g_q is None else g_q
    g_r = r.full(0) if g_r is None else g_r
    if rows == columns or tall:
        return [_of_qr(q, r, g_q, _upper(g_r))]
    axis = s.x.rank - 1
    rest, g_rest = (t.slice_axis(axis, rows, columns) for t in (s.x, g_r))
    r, g_r = (t.slice_axis(axis, 0, rows) for t in (r, g_r))
    g_q = g_q + _product(rest, _adjoint(g_rest))
    return [_of_qr(q, r, g_q, _upper(g_r)).op("concat", _product(q, g_rest), axis=axis)]


def _of_qr(q: Expr, r: Expr, g_q: Expr, g_r: Expr) -> Expr:
    inner = _product(g_r, _adjoint(r)) - _product(_adjoint(q), g_q)
    above = _strictly_upper(inner)
    row, column = _places(inner)
    middle = inner.op("real").astype(inner.dtype)
    both = above + _adjoint(above) + row.equals(column).where(middle, 0)
    return _solve_right(g_q + _product(q, both), r, lower=False, adjoint=True)


def _eigh(s: Site) -> Sequence[Expr | None]:
    """V (diag(gw) + F * (V^H gV)) V^H, F_ij = 1 / (w_j - w_i)."""
    if s.attrs["vectors"]:
        (values, vectors), (g_values, g_vectors) = s.results, s.cotangents
    else:
        made = s.x.builder.emit("eigh", [s.x.value], {"vectors": True}, locations=s.x.locations)
        values, vectors = map(s.x.wrap, made)
        g_values, g_vectors = s.g, None
    if g_vectors is None:
        assert g_values is not None
        return [_hermitian_part(_product(_scaled(vectors, g_values), _adjoint(vectors)))]
    inner = _product(_adjoint(vectors), g_vectors)
    inner = inner * _inverse_gaps(values).astype(s.x.dtype)
    if g_values is not None:
        inner = inner + _on_diagonal(g_values, s.x.dtype)
    return [_hermitian_part(_product(_product(vectors, inner), _adjoint(vectors)))]


def _svd(s: Site) -> Sequence[Expr | None]:
    """U M V^H with M = diag(gS) + (skew(U^H gU) S + S skew(V^H gV)) / E, E_ij = s_j^2 - s_i^2,
    and the parts of gU and gV that are orthogonal to U and V."""
    if not s.attrs["vectors"]:
        attrs = {"full": False, "vectors": True}
        made = s.x.builder.emit("svd", [s.x.value], attrs, locations=s.x.locations)
        left, _, right = map(s.x.wrap, made)
        return [_product(_scaled(left, s.g), right)]
    (left, _, right), (g_left, g_values, g_right) = s.results, s.cotangents
    if g_left is None and g_right is None:
        assert g_values is not None
        count = g_values.shape[-1]  # a full U and V have more vectors
        left = left.slice_axis(left.rank - 1, 0, count)
        right = right.slice_axis(right.rank - 2, 0, count)
        return [_product(_scaled(left, g_values), right)]
    rows, columns = s.x.shape[-2:]
    if s.attrs["full"] and rows != columns:
        raise GradientError(
            "the gradient of 'svd' of a matrix that is not square is not defined where U and V "
            "are (full_matrices=True): their last vectors are any basis",
            hint="full_matrices=False has a gradient",
            location=s.op.locations,
        )
    return [_of_svd(s, g_left, g_values, g_right)]


def _of_svd(s: Site, g_left: Expr | None, g_values: Expr | None, g_right: Expr | None) -> Expr:
    left, values, right = s.results
    dtype, rows, columns = s.x.dtype, *s.x.shape[-2:]
    shape = (*values.shape, values.shape[-1])
    inner = left.full(0, shape) if g_values is None else _on_diagonal(g_values, dtype)
    sums = _columns(values, shape) + _rows(values, shape)
    least = _smallest_gap(values)
    wide = least.reshape((*least.shape, 1)).broadcast_to(shape)
    apart = (_inverse_gaps(values) * _inverse(sums, wide)).astype(dtype)
    over = _inverse(values, least.broadcast_to(values.shape)).astype(dtype)
    if g_left is not None:
        turned = _skew(_product(_adjoint(left), g_left))
        inner = inner + turned * apart * _columns(values, shape).astype(dtype)
        if dtype.is_complex:  # U and V turn by one phase; that part is taken from U
            row, column = _places(turned)
            phase = turned * _columns(over, shape) * 0.5
            inner = inner + row.equals(column).where(phase, 0)
    if g_right is not None:
        turned = _skew(_product(right, _adjoint(g_right)))
        inner = inner + turned * apart * _rows(values, shape).astype(dtype)
    made = _product(_product(left, inner), right)
    if g_left is not None and rows != shape[-1]:
        part = g_left * _columns(over, g_left.shape)
        part = part - _product(left, _product(_adjoint(left), part))
        made = made + _product(part, right)
    if g_right is not None and columns != shape[-1]:
        part = g_right * _rows(over, g_right.shape)
        part = part - _product(_product(part, _adjoint(right)), right)
        made = made + _product(left, part)
    return made


def _skew(a: Expr) -> Expr:
    return a - _adjoint(a)


def _eig(s: Site) -> Sequence[Expr | None]:
    """V^-H (diag(gw) + F * (V^H gV - V^H V Re diag(V^H gV))) V^H, F_ij = 1 / conj(w_j - w_i)."""
    if s.attrs["vectors"]:
        (values, vectors), (g_values, g_vectors) = s.results, s.cotangents
    else:
        made = s.x.builder.emit("eig", [s.x.value], {"vectors": True}, locations=s.x.locations)
        values, vectors = map(s.x.wrap, made)
        g_values, g_vectors = s.g, None
    inner = None if g_values is None else _on_diagonal(g_values, vectors.dtype)
    if g_vectors is not None:
        turned = _of_directions(values, vectors, g_vectors)
        inner = turned if inner is None else inner + turned
    assert inner is not None
    packed, pivots, _ = map(
        s.x.wrap, s.x.builder.emit("lu", [vectors.value], {}, locations=s.x.locations)
    )
    right = _product(inner, _adjoint(vectors))
    made_of = vectors.op("lu_solve", packed, pivots, right, adjoint=True)
    return [made_of if s.x.dtype.is_complex else made_of.op("real")]


def _of_directions(values: Expr, vectors: Expr, g: Expr) -> Expr:
    turned = _product(_adjoint(vectors), g)
    row, column = _places(turned)
    along = row.equals(column).where(turned.op("real").astype(turned.dtype), 0)
    turned = turned - _product(_product(_adjoint(vectors), vectors), along)
    return turned * _inverse_gaps(values).conj()


GRADIENTS: Mapping[str, Rule] = {
    "cholesky": _cholesky,
    "lu": _lu,
    "lu_solve": _lu_solve,
    "triangular_solve": _triangular_solve,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "eig": _eig,
}
