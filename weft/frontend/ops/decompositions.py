"""Decompositions of matrices, and solving with them: the last two axes, all others a batch.

Dtypes: float32, float64, complex64, complex128; bools and integers become the default float.
Errors, at the caller's line: InvalidArgumentError for operands of rank 0 or 1 and wrong modes,
ShapeError for matrices that are not square where they must be, TypeRuleError for float16 and
bfloat16, which LAPACK has not.

Nothing is raised for values, eagerly as in compiled code: a matrix that has no such decomposition,
or an element that is not finite, gives NaN, and a singular system infinities or NaN; of a batch
only for the matrix at fault. `wf.assert_finite` raises for them. Signs (complex: phases) of
eigenvectors and singular vectors are anybody's choice: compiled code may make another than eager
calls, which are NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.creation import eye, iota, tril, triu
from weft.frontend.ops.dispatch import apply, apply_many
from weft.frontend.ops.elementwise import conj, equal
from weft.frontend.ops.manipulation import matrix_transpose, moveaxis, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    expand,
    inexact_tensor,
    promote_tensors,
)
from weft.ir.dims import Shape, broadcast_shapes, format_shape, product, same
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.ir.ops.linear_algebra import LAPACK, lesser


class QRResult(NamedTuple):
    """The result of `qr`; the array API's field names."""

    Q: Tensor
    R: Tensor


class EighResult(NamedTuple):
    """The result of `eigh`; the array API's field names."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EigResult(NamedTuple):
    """The result of `eig`; NumPy's field names."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """The result of `svd`; the array API's field names."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class LUResult(NamedTuple):
    """The result of `lu`: P L U is the matrix."""

    P: Tensor
    L: Tensor
    U: Tensor


def matrices(op: str, x: TensorLike, *, square: bool = False) -> Tensor:
    """`x` as matrices of a dtype that LAPACK has. Errors as this module says."""
    t = inexact_tensor(x, op)
    if t.dtype not in LAPACK:
        raise TypeRuleError(
            f"wf.linalg.{op} takes {LAPACK.words}, got {t._type}",
            hint="convert with wf.astype(x, wf.float32)",
            location=caller_location(),
        )
    if t.ndim < 2:
        raise InvalidArgumentError(
            f"wf.linalg.{op} needs a matrix or a stack of them, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    if square and not same(t.shape[-1], t.shape[-2]):
        raise ShapeError(
            f"wf.linalg.{op} needs square matrices, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    return t


def _sized(op: str, t: Tensor) -> Tensor:
    """`t`, of which it must be known whether it has more rows or columns."""
    try:
        lesser(op, t.shape[-2], t.shape[-1])
    except WeftError as error:
        error.what = error.what.replace(f"op '{op}'", f"wf.linalg.{op}")
        raise type(error)(error.what, hint=error.hint, location=caller_location()) from None
    return t


def adjoint(t: Tensor) -> Tensor:
    """The conjugate transpose."""
    return matrix_transpose(conj(t) if t.dtype.is_complex else t)


def cholesky(x: TensorLike, /, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L L^H = x, for Hermitian positive definite x; upper: U with
    U^H U = x.

    x: (..., n, n); only the triangle of that side is read. The result has its dtype and shape. NaN
    where x is not positive definite. The gradient is Hermitian: that of changes that keep x so.

    >>> wf.linalg.cholesky(wf.asarray([[4.0, 2.0], [2.0, 5.0]]))
    Tensor([[2., 0.],
            [1., 2.]], dtype=float32)
    """
    t = matrices("cholesky", x, square=True)
    return adjoint(apply("cholesky", adjoint(t))) if upper else apply("cholesky", t)


def qr(x: TensorLike, /, *, mode: str = "reduced") -> QRResult:
    """Q with orthonormal columns and an upper triangular R with Q R = x.

    x: (..., m, n). mode "reduced": Q is (..., m, k) and R is (..., k, n), k = min(m, n);
    "complete": (..., m, m) and (..., m, n), which has a gradient for m <= n only. The gradient
    needs linearly independent columns (for m < n: the first m).

    >>> q, r = wf.linalg.qr(wf.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> abs(r).numpy().round(4)
    array([[5. , 2.2],
           [0. , 0.4]], dtype=float32)
    """
    t = matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise InvalidArgumentError(
            f"wf.linalg.qr: mode {mode!r} is not there",
            hint="mode is 'reduced' or 'complete'",
            location=caller_location(),
        )
    full = mode == "complete"
    return QRResult(*apply_many("qr", [t if full else _sized("qr", t)], {"full": full}))


def eigh(x: TensorLike, /) -> EighResult:
    """The eigenvalues of Hermitian matrices in ascending order, and eigenvectors as columns.

    x: (..., n, n), of which the lower triangle is read; the values are real, (..., n). The gradient
    is Hermitian. It takes eigenvectors of equal values for any basis: where values are equal within
    rounding, it has no part that turns one into another.

    >>> wf.linalg.eigh(wf.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    Tensor([1., 2.], dtype=float32)
    """
    t = matrices("eigh", x, square=True)
    return EighResult(*apply_many("eigh", [t], {"vectors": True}))


def eigvalsh(x: TensorLike, /) -> Tensor:
    """The eigenvalues of Hermitian matrices in ascending order, as `eigh`; quicker without the
    vectors.

    >>> wf.linalg.eigvalsh(wf.asarray([[0.0, 2.0], [2.0, 0.0]])).numpy().round(4)
    array([-2.,  2.], dtype=float32)
    """
    return apply("eigh", matrices("eigvalsh", x, square=True), vectors=False)


def svd(x: TensorLike, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition U diag(S) Vh = x, S in descending order.

    x: (..., m, n). full_matrices: U is (..., m, m) and Vh is (..., n, n); else (..., m, k) and
    (..., k, n), k = min(m, n). S is real, (..., k). The gradients of U and Vh need
    full_matrices=False, unless m = n; as of `eigh`, vectors of equal values are any basis.

    >>> wf.linalg.svd(wf.asarray([[0.0, 3.0], [4.0, 0.0]])).S.numpy().round(4)
    array([4., 3.], dtype=float32)
    """
    t = _sized("svd", matrices("svd", x))
    attrs = {"full": bool(full_matrices), "vectors": True}
    return SVDResult(*apply_many("svd", [t], attrs))


def svdvals(x: TensorLike, /) -> Tensor:
    """The singular values in descending order, as `svd`; quicker without the vectors.

    >>> wf.linalg.svdvals(wf.asarray([[0.0, 3.0], [4.0, 0.0], [0.0, 0.0]])).numpy().round(4)
    array([4., 3.], dtype=float32)
    """
    t = _sized("svd", matrices("svdvals", x))
    return apply("svd", t, full=False, vectors=False)


def eig(x: TensorLike, /) -> EigResult:
    """The eigenvalues of square matrices, in no order, and eigenvectors of length 1 as columns.

    x: (..., n, n). Both are complex, also where all eigenvalues are real. Gradients need distinct
    eigenvalues; those of the vectors take each vector's phase for anything.

    >>> wf.linalg.eig(wf.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues
    Tensor([2.+0.j, 3.+0.j], dtype=complex64)
    """
    t = matrices("eig", x, square=True)
    return EigResult(*apply_many("eig", [t], {"vectors": True}))


def eigvals(x: TensorLike, /) -> Tensor:
    """The eigenvalues of square matrices, as `eig`; quicker without the vectors.

    >>> wf.linalg.eigvals(wf.asarray([[0.0, -1.0], [1.0, 0.0]])).numpy().round(4)
    array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    return apply("eig", matrices("eigvals", x, square=True), vectors=False)


def lu(x: TensorLike, /) -> LUResult:
    """Gaussian elimination with partial pivoting: P L U = x, as `scipy.linalg.lu`.

    x: (..., m, n), k = min(m, n): P (..., m, m) exchanges rows, L (..., m, k) is lower triangular
    with ones on its diagonal, U (..., k, n) is upper triangular.

    >>> p, l, u = wf.linalg.lu(wf.asarray([[1.0, 2.0], [4.0, 4.0]]))
    >>> l, u
    (Tensor([[1.  , 0.  ],
            [0.25, 1.  ]], dtype=float32), Tensor([[4., 4.],
            [0., 1.]], dtype=float32))
    """
    t = _sized("lu", matrices("lu", x))
    packed, _, permutation = apply_many("lu", [t], {})
    *batch, rows, columns = t.shape
    count = lesser("lu", rows, columns)
    lead = (0,) * len(batch)

    def part(height: Any, width: Any) -> Tensor:
        stops, steps = (*batch, height, width), (1,) * t.ndim
        return apply("slice", packed, starts=(*lead, 0, 0), stops=stops, steps=steps)

    lower = tril(part(rows, count), k=-1)
    one: Any = rows, count
    lower = lower + expand(eye(*one, dtype=t.dtype), lower.shape)
    shape = (*batch, rows, rows)
    place = expand(reshape(permutation, (*batch, 1, rows)), shape)
    moved = equal(iota(shape, t.ndim - 2, dtype=int64), place)
    return LUResult(cast(moved, t.dtype), lower, triu(part(count, columns)))


# ------------------------------------------------------------------------------------- solving


def _right_side(op: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Matrices and right sides, with one batch; whether the right side was a vector (rank 1)."""
    vector = b.ndim == 1
    right = reshape(b, (*b.shape, 1)) if vector else b
    if not right.ndim or not same(right.shape[-2], a.shape[-1]):
        raise ShapeError(
            f"wf.linalg.{op}: {b._type} is no right side for {a._type}",
            hint="it has as many rows as the matrix; a vector is of rank 1",
            location=caller_location(),
        )
    try:
        batch = broadcast_shapes(a.shape[:-2], right.shape[:-2])
    except WeftError as error:
        raise ShapeError(
            f"wf.linalg.{op}: the batch axes of {a._type} and {b._type} do not broadcast",
            hint=error.hint,
            location=caller_location(),
        ) from None
    held: list[tuple[Tensor, Shape]] = [(a, a.shape[-2:]), (right, right.shape[-2:])]
    whole, sides = (expand(t, (*batch, *last)) for t, last in held)
    return whole, sides, vector


def _promoted(op: str, x1: TensorLike, x2: TensorLike) -> Sequence[Tensor]:
    return [inexact_tensor(t, op) for t in promote_tensors(x1, x2, op=op)]


def _given(made: Tensor, vector: bool) -> Tensor:
    return reshape(made, made.shape[:-1]) if vector else made


def solve(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x with x1 x = x2, by Gaussian elimination with partial pivoting.

    x1: (..., n, n); x2: (..., n, k), or (n,), a vector, which gives vectors. Batch axes broadcast;
    dtypes promote. Infinities or NaN where x1 is singular. The gradient uses the same factors.

    >>> wf.linalg.solve(wf.asarray([[2.0, 0.0], [0.0, 4.0]]), wf.asarray([1.0, 2.0]))
    Tensor([0.5, 0.5], dtype=float32)
    """
    a, b = _promoted("solve", x1, x2)
    a = matrices("solve", a, square=True)
    packed, pivots, _ = apply_many("lu", [a], {})
    if a.ndim == 2 and b.ndim > 2:  # one matrix: all right sides side by side
        sides = moveaxis(b, -2, 0)
        flat = reshape(sides, (sides.shape[0], product(sides.shape[1:])))
        _right_side("solve", a, flat)
        made = apply("lu_solve", a, packed, pivots, flat, adjoint=False)
        return moveaxis(reshape(made, sides.shape), 0, -2)
    a, b, vector = _right_side("solve", a, b)
    packed = expand(packed, a.shape)
    pivots = expand(pivots, a.shape[:-1])
    return _given(apply("lu_solve", a, packed, pivots, b, adjoint=False), vector)


def inv(x: TensorLike, /) -> Tensor:
    """The inverses of square matrices (..., n, n). Infinities or NaN where x is singular.

    `solve(x, y)` is quicker, and more exact, than `inv(x) @ y`.

    >>> wf.linalg.inv(wf.asarray([[2.0, 0.0], [0.0, 4.0]]))
    Tensor([[0.5 , 0.  ],
            [0.  , 0.25]], dtype=float32)
    """
    t = matrices("inv", x, square=True)
    one: Any = t.shape[-1]
    return solve(t, expand(eye(one, dtype=t.dtype), t.shape))


def solve_triangular(
    x1: TensorLike,
    x2: TensorLike,
    /,
    *,
    lower: bool = False,
    adjoint: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """x with x1 x = x2 for upper triangular x1 (lower: lower triangular); adjoint: x1^H x = x2.

    Shapes as for `solve`. The other triangle of x1 is not read; unit_diagonal: nor its diagonal,
    which counts as ones. Infinities or NaN where the diagonal has a zero.

    >>> a = wf.asarray([[1.0, 0.0], [2.0, 4.0]])
    >>> wf.linalg.solve_triangular(a, wf.asarray([1.0, 6.0]), lower=True)
    Tensor([1., 1.], dtype=float32)
    """
    a, b = _promoted("solve_triangular", x1, x2)
    a, b, vector = _right_side("solve_triangular", matrices("solve_triangular", a, square=True), b)
    attrs = {"lower": bool(lower), "adjoint": bool(adjoint), "unit_diagonal": bool(unit_diagonal)}
    return _given(apply("triangular_solve", a, b, **attrs), vector)
