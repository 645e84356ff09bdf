"""Functions of matrices that are composed from decompositions: determinants, ranks, condition
numbers, pseudo-inverses, least squares, the matrix exponential.

Dtypes, errors, and what becomes of singular matrices: as in `ops/decompositions.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.creation import eye, iota
from weft.frontend.ops.decompositions import adjoint, inv, matrices, solve, svd, svdvals
from weft.frontend.ops.dispatch import apply, apply_many
from weft.frontend.ops.elementwise import abs, isfinite, isnan, not_equal, sign, where
from weft.frontend.ops.elementwise import maximum as larger
from weft.frontend.ops.linalg import diagonal, matmul, matrix_norm
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import TensorLike, cast, expand, inexact_tensor, promote_tensors
from weft.frontend.ops.reduction import all, any, count_nonzero, max, min, prod, sum
from weft.frontend.ops.special import log
from weft.ir.dims import format_shape
from weft.ir.dtypes import float32, int64, real_of
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


class SlogdetResult(NamedTuple):
    """The result of `slogdet`; the array API's field names."""

    sign: Tensor
    logabsdet: Tensor


class LstsqResult(NamedTuple):
    """The result of `lstsq`; NumPy's order."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _diagonal_and_sign(op: str, x: TensorLike) -> tuple[Tensor, Tensor]:
    """The pivots of elimination, and 1 or -1 for an even or odd number of exchanged rows."""
    t = matrices(op, x, square=True)
    packed, pivots, _ = apply_many("lu", [t], {})
    swapped = not_equal(pivots, iota(pivots.shape, pivots.ndim - 1, dtype=int64))
    odd = count_nonzero(swapped, axis=-1) % 2
    return diagonal(packed), cast(1 - 2 * odd, t.dtype)


def det(x: TensorLike, /) -> Tensor:
    """The determinants of square matrices (..., n, n), by elimination; 0 where x is singular.

    Its gradient solves with x: infinities or NaN where x is singular. `slogdet` does not overflow.

    >>> wf.linalg.det(wf.asarray([[0.0, 2.0], [3.0, 4.0]]))
    Tensor(-6., dtype=float32)
    """
    pivots, parity = _diagonal_and_sign("det", x)
    return prod(pivots, axis=-1) * parity


def slogdet(x: TensorLike, /) -> SlogdetResult:
    """The sign of the determinant (complex: a number on the unit circle) and the logarithm of its
    absolute value; 0 and -inf where x (..., n, n) is singular.

    >>> sign, logarithm = wf.linalg.slogdet(wf.asarray([[0.0, 2.0], [0.5, 4.0]]))
    >>> sign, logarithm
    (Tensor(-1., dtype=float32), Tensor(0., dtype=float32))
    """
    pivots, parity = _diagonal_and_sign("slogdet", x)
    return SlogdetResult(prod(sign(pivots), axis=-1) * parity, sum(log(abs(pivots)), axis=-1))


def _tolerance(op: str, t: Tensor, rtol: float | TensorLike | None) -> TensorLike:
    """`rtol`, or what NumPy takes: the machine's epsilon times the larger size."""
    if rtol is not None:
        return rtol
    rows, columns = t.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(
            f"wf.linalg.{op}: the matrices of shape {format_shape(t.shape)} need known sizes",
            hint="rtol=, or the last two axes with known sizes",
            location=caller_location(),
        )
    most = rows if rows > columns else columns
    eps: Any = np.finfo(real_of(t.dtype).numpy).eps  # type: ignore[type-var]
    return float(most * eps)


def _above(op: str, t: Tensor, values: Tensor, rtol: float | TensorLike | None) -> Tensor:
    """Which singular values count: those above rtol times the largest one."""
    if values.shape[-1] == 0:
        return values > 0
    part = inexact_tensor(_tolerance(op, t, rtol), op)
    least = cast(part, values.dtype) * max(values, axis=-1)
    return values > reshape(least, (*least.shape, 1))


def matrix_rank(x: TensorLike, /, *, rtol: float | TensorLike | None = None) -> Tensor:
    """How many singular values of x (..., m, n) exceed rtol times the largest one -> int64.

    rtol: a number, or one for each matrix; max(m, n) times the dtype's epsilon if not given. NaN
    counts as none.

    >>> wf.linalg.matrix_rank(wf.asarray([[1.0, 2.0], [2.0, 4.0]]))
    Tensor(1, dtype=int64)
    """
    t = matrices("matrix_rank", x)
    return count_nonzero(_above("matrix_rank", t, svdvals(t), rtol), axis=-1)


def cond(x: TensorLike, /, p: int | float | str | None = None) -> Tensor:
    """The condition number: the norm of x times that of its inverse, in `matrix_norm`'s norm p;
    None or 2: the quotient of the largest and the smallest singular value, also of matrices that
    are not square, (..., m, n); -2: the reverse. Infinite where x is singular (-2: 0, or infinite
    for a matrix of zeros), as NumPy's; NaN where x has NaN.

    >>> wf.linalg.cond(wf.asarray([[2.0, 0.0], [0.0, 8.0]]))
    Tensor(4., dtype=float32)
    """
    t = matrices("cond", x, square=p not in (None, 2, -2))
    if p not in (None, 2, -2):
        assert p is not None
        made = matrix_norm(t, ord=p) * matrix_norm(inv(t), ord=p)
    else:
        values = svdvals(t)
        most, least = max(values, axis=-1), min(values, axis=-1)
        made = least / most if p == -2 else most / least
    singular = isnan(made) & all(isfinite(t), axis=(-2, -1))  # 0 / 0, 0 inf, an inverse with NaN
    return where(singular, float("inf"), made)


# ------------------------------------------------------------------------------ pseudo-inverses


def _pseudo_inverse(op: str, t: Tensor, rtol: float | TensorLike | None) -> tuple[Tensor, Tensor]:
    """The pseudo-inverse of t and its singular values.

    The gradient is that of G. Golub and V. Pereyra, The differentiation of pseudo-inverses, 1973,
    for matrices that keep their rank: that of the singular vectors has no value where two singular
    values are equal, that of the pseudo-inverse has.
    """
    # only who asks for a pseudo-inverse waits for it
    from weft.frontend.autodiff.custom import custom_gradient

    @custom_gradient
    def made(x: Tensor) -> Any:
        left, values, right = svd(x, full_matrices=False)
        used = _above(op, x, values, rtol)
        inverse = where(used, 1 / where(used, values, 1), cast(0, values.dtype))
        whole = where(values == values, inverse, values)  # NaN stays NaN
        scaled = cast(reshape(whole, (*whole.shape, 1)), x.dtype) * adjoint(left)
        result = matmul(adjoint(right), scaled)

        def gradient(g: Tensor, g_values: Tensor) -> Tensor:
            p, h = adjoint(result), adjoint(g)
            rows = h - matmul(x, matmul(result, h))  # (I - A P) g^H
            columns = h - matmul(matmul(h, result), x)  # g^H (I - P A)
            total = matmul(matmul(rows, result), p) + matmul(p, matmul(result, columns))
            weights = cast(reshape(g_values, (*g_values.shape, 1)), x.dtype)
            return total - matmul(matmul(p, g), p) + matmul(left, weights * right)

        return (result, values), gradient

    inverse, values = made(t)
    return inverse, values


def pinv(x: TensorLike, /, *, rtol: float | TensorLike | None = None) -> Tensor:
    """The Moore-Penrose pseudo-inverses (..., n, m) of matrices x (..., m, n), by their singular
    values; those up to rtol times the largest one count as 0.

    rtol: a number, or one for each matrix; max(m, n) times the dtype's epsilon if not given. The
    gradient is that among matrices of the same rank; a second one needs distinct singular values.

    >>> wf.linalg.pinv(wf.asarray([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])).numpy().round(4) + 0
    array([[0.5, 0. , 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """
    return _pseudo_inverse("pinv", matrices("pinv", x), rtol)[0]


def lstsq(
    x1: TensorLike, x2: TensorLike, /, *, rtol: float | TensorLike | None = None
) -> LstsqResult:
    """The x for which |x1 x - x2| is least, and of those the smallest one, by singular values.

    x1: (..., m, n); x2: (..., m, k), or (m,), a vector. As `numpy.linalg.lstsq`: the solution (...,
    n, k) or (..., n), the sums of squares of what is left, (..., k) or (...), the ranks (as
    `matrix_rank`) and the singular values. Other than NumPy's, the sums are there whatever the
    rank. rtol and the gradient as for `pinv`.

    >>> wf.linalg.lstsq(wf.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), [1.0, 4.0, 3.0])[:2]
    (Tensor([1., 2.], dtype=float32), Tensor(9., dtype=float32))
    """
    a, b = (inexact_tensor(t, "lstsq") for t in promote_tensors(x1, x2, op="lstsq"))
    a = matrices("lstsq", a)
    inverse, values = _pseudo_inverse("lstsq", a, rtol)
    solution = matmul(inverse, b)
    left = abs(matmul(a, solution) - b)
    vector = b.ndim == 1
    residuals = sum(left * left, axis=-1 if vector else -2)
    rank = count_nonzero(_above("lstsq", a, values, rtol), axis=-1)
    return LstsqResult(solution, residuals, rank, values)


# ------------------------------------------------------------------------------- exponential

#: Coefficients of the Pade approximants, and the largest 1-norm for which they are exact to
#: rounding: N. Higham, The scaling and squaring method for the matrix exponential revisited, 2005,
#: tables 2.3 and, for single precision, of Al-Mohy and Higham, 2009.
_PADE_7 = (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0)
_PADE_13 = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_LARGEST = {7: 3.925724783138660, 13: 5.371920351148152}


def expm(x: TensorLike, /) -> Tensor:
    """The matrix exponential of square matrices (..., n, n), by scaling and squaring of a Pade
    approximant (N. Higham, 2005; of degree 7 in single, 13 in double precision).

    In a batch each matrix is scaled by its own norm. How often is squared depends on values: in
    compiled code that is a loop, whose gradient keeps a matrix for each squaring.

    >>> wf.linalg.expm(wf.asarray([[0.0, 1.0], [0.0, 0.0]])).numpy().round(4)
    array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    # only who asks for an exponential waits for it
    from weft.frontend.autodiff.gradients import stop_gradient
    from weft.frontend.control.loops import while_loop

    t = matrices("expm", x, square=True)
    if t.shape[-1] == 0:
        return t
    degree, terms = (7, _PADE_7) if real_of(t.dtype) is float32 else (13, _PADE_13)
    size = stop_gradient(matrix_norm(t, ord=1)) / _LARGEST[degree]
    fine = (size > 1) & (size < float("inf"))
    power = apply("log2", where(fine, size, cast(1, size.dtype)))
    times = reshape(apply("ceil", larger(power, 0)), (*size.shape, 1, 1))
    scaled = t * cast(apply("exp2", -times), t.dtype)
    made = _pade(scaled, terms)

    def squared(k: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        return k + 1, where(k < times, matmul(held, held), held)

    _, result = while_loop(lambda k, _: any(k < times), squared, (cast(0, times.dtype), made))
    return result  # type: ignore[no-any-return]


def _pade(a: Tensor, terms: tuple[float, ...]) -> Tensor:
    """The approximant q(a)^-1 p(a) of exp(a), with p(a) = even + odd and q(a) = even - odd."""
    one: Any = a.shape[-1]
    square = matmul(a, a)
    power = expand(eye(one, dtype=a.dtype), a.shape)
    even, odd = power * terms[0], power * terms[1]
    for k in range(2, len(terms), 2):
        power = matmul(power, square) if k > 2 else square
        even, odd = even + power * terms[k], odd + power * terms[k + 1]
    odd = matmul(a, odd)
    return solve(even - odd, even + odd)
