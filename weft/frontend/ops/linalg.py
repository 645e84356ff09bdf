"""Products of vectors, matrices and tensors by the rules of the array API and NumPy, with powers
and norms of matrices; `einsum`.

Dtypes promote; sums of products keep the promoted dtype (integers wrap), or are of the
`preferred_element_type`, as in JAX (`product_operands`). Errors, at the caller's line: ShapeError
for sizes that do not fit, InvalidArgumentError for wrong axes, TypeRuleError for dtypes.

`einsum` parses Einstein's summation convention and contracts two operands at a time, in the order
that `numpy.einsum_path` gives for more than two. A contraction becomes one batched matmul, or a
fused multiply and sum where one side has no axis of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.creation import eye, iota, zeros, zeros_like
from weft.frontend.ops.decompositions import inv, svdvals
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import add, conj, multiply, where
from weft.frontend.ops.manipulation import cut, known_size, moveaxis, pad, permute_dims, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    binary,
    broadcast_tensors,
    cast,
    check_axis,
    check_dtype,
    check_int,
    expand,
    inexact_tensor,
    promote_tensors,
    strong_tensor,
)
from weft.frontend.ops.reduction import sum, vector_norm
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, SymbolicDim, broadcast_dim, format_shape, positive, product, same
from weft.ir.dims import least as smaller
from weft.ir.dtypes import bool_
from weft.ir.errors import BoundsError, InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


def product_operands(op: str, preferred: object, *xs: TensorLike) -> list[Tensor]:
    """`xs` in the dtype in which their products add up: what they promote to, or `preferred`.

    TypeRuleError, at the user's line, if that does not hold what they promote to: numbers of at
    least as many bits of the same kind, a float of so many for integers, a wider signed integer for
    unsigned ones.
    """
    tensors = promote_tensors(*xs, op=op)
    if preferred is None:
        return tensors
    given, wanted = tensors[0].dtype, check_dtype(preferred)
    same_kind = given.kind == wanted.kind and given.kind != "bool"
    float_for_integer = given.is_integer and wanted.is_floating
    sign_added = (given.kind, wanted.kind) == ("uint", "int") and wanted.bits > given.bits
    fits = same_kind or float_for_integer or sign_added
    other_float = given.is_floating and given.bits == wanted.bits and given is not wanted
    if not fits or wanted.bits < given.bits or other_float:
        raise TypeRuleError(
            f"wf.{op}: preferred_element_type {wanted.name} does not hold products of {given.name}",
            hint="it is a type of the same kind with as many bits or more, or a float for "
            "integers; wf.astype converts the result to any other",
            location=caller_location(),
        )
    return [cast(t, wanted) for t in tensors]


def matmul(
    x1: TensorLike,
    x2: TensorLike,
    /,
    transpose_a: bool = False,
    transpose_b: bool = False,
    *,
    preferred_element_type: object = None,
) -> Tensor:
    """The matrix product of the last two axes; leading axes broadcast.

    A vector x1 counts as one row, a vector x2 as one column, and that axis vanishes again.
    transpose_a and transpose_b exchange the last two axes of an operand first, at no cost (TF1's
    arguments).

    preferred_element_type: the dtype in which products add up, and of the result, as in JAX: both
    operands are converted to it first. int8 operands of shapes (m, k) and (k, n) with int32 give
    int32 of shape (m, n) that does not wrap; compiled for a CPU they are multiplied as they are, as
    are uint8 and int16. 16-bit floats with float32 give sums that are not rounded to 16 bits.
    TypeRuleError if it does not hold what the operands promote to: fewer bits, another kind (but
    for a float for integers, and a wider int for uint).

    >>> wf.matmul([[1, 2], [3, 4]], [[1, 10]], transpose_b=True)
    Tensor([[21],
            [43]], dtype=int64)
    >>> x = wf.full(2, 100, dtype=wf.int8)
    >>> wf.matmul(x, x), wf.matmul(x, x, preferred_element_type=wf.int32)
    (Tensor(32, dtype=int8), Tensor(20000, dtype=int32))
    """
    a, b = product_operands("matmul", preferred_element_type, x1, x2)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"wf.matmul needs at least vectors, got shapes {format_shape(a.shape)} and "
            f"{format_shape(b.shape)}",
            hint="wf.multiply multiplies by a scalar",
            location=caller_location(),
        )
    if (a.ndim == 1 and transpose_a) or (b.ndim == 1 and transpose_b):
        raise InvalidArgumentError(
            "wf.matmul: a vector cannot be transposed", location=caller_location()
        )
    k1 = a.shape[-2 if transpose_a else -1]
    k2 = b.shape[-1 if transpose_b or b.ndim == 1 else -2]
    if not same(k1, k2):
        raise ShapeError(
            f"wf.matmul: shapes {format_shape(a.shape)} and {format_shape(b.shape)} do not fit: "
            f"{k1} columns, {k2} rows",
            hint=_transposing(a, b, k1, k2, transpose_a, transpose_b),
            location=caller_location(),
        )
    left = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
    right = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
    out = apply("matmul", left, right, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b))
    kept = list(out.shape)
    if b.ndim == 1:
        del kept[-1]
    if a.ndim == 1:
        del kept[-1 if b.ndim == 1 else -2]
    return reshape(out, tuple(kept))


def _transposing(
    a: Tensor, b: Tensor, k1: Dim, k2: Dim, transpose_a: bool, transpose_b: bool
) -> str | None:
    """How operands that do not fit would; None if exchanging axes does not help."""
    found = []
    if a.ndim > 1 and same(a.shape[-1 if transpose_a else -2], k2):
        found.append(f"transpose_a={not transpose_a}")
    if b.ndim > 1 and same(b.shape[-2 if transpose_b else -1], k1):
        found.append(f"transpose_b={not transpose_b}")
    if not found:
        return None
    return f"with {' or '.join(found)} they fit; wf.matrix_transpose exchanges the last two axes"


def dot(x1: TensorLike, x2: TensorLike, /, *, preferred_element_type: object = None) -> Tensor:
    """NumPy's dot: a product with a scalar, else over the last axis of x1 and the last but one
    of x2. preferred_element_type: as for `matmul`.

    >>> wf.dot([[1, 2], [3, 4]], [1, 10])
    Tensor([21, 43], dtype=int64)
    >>> wf.dot(wf.ones((2, 3)), wf.ones((4, 3, 5))).shape
    (2, 4, 5)
    >>> wf.matmul(wf.ones((2, 3)), wf.ones((4, 3, 5))).shape
    (4, 2, 5)
    """
    a, b = product_operands("dot", preferred_element_type, x1, x2)
    if not a.ndim or not b.ndim:
        return binary("multiply", a, b)
    return tensordot(a, b, axes=((a.ndim - 1,), (max(b.ndim - 2, 0),)))


def tensordot(
    x1: TensorLike,
    x2: TensorLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
    preferred_element_type: object = None,
) -> Tensor:
    """The sum of products over pairs of axes.

    axes: a number n (the last n of x1 with the first n of x2), or two sequences of axes. The result
    has the other axes of x1, then those of x2. preferred_element_type: as for `matmul`.

    >>> wf.tensordot(wf.ones((2, 3, 4)), wf.ones((3, 4, 5))).shape
    (2, 5)
    >>> wf.tensordot(wf.ones((2, 3, 4)), wf.ones((4, 2)), axes=((0, 2), (1, 0))).shape
    (3,)
    """
    a, b = product_operands("tensordot", preferred_element_type, x1, x2)
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise InvalidArgumentError(
                f"wf.tensordot: axes must be a number or two sequences of axes, got {axes!r}",
                location=caller_location(),
            )
        first, second = (v if isinstance(v, (tuple, list)) else (v,) for v in axes)
        left = [check_axis("tensordot", v, a.ndim, "axes[0]") for v in first]
        right = [check_axis("tensordot", v, b.ndim, "axes[1]") for v in second]
    else:
        n = check_int("tensordot", axes, "axes")
        if not 0 <= n <= min(a.ndim, b.ndim):
            raise InvalidArgumentError(
                f"wf.tensordot: axes={n} for tensors of rank {a.ndim} and {b.ndim}",
                location=caller_location(),
            )
        left, right = list(range(a.ndim - n, a.ndim)), list(range(n))
    sizes = [a.shape[i] for i in left], [b.shape[i] for i in right]
    fits = len(left) == len(right) and all(map(same, *sizes))
    if not fits or len(set(left)) != len(left) or len(set(right)) != len(right):
        raise ShapeError(
            f"wf.tensordot: axes {left} of shape {format_shape(a.shape)} and {right} of shape "
            f"{format_shape(b.shape)} do not pair",
            location=caller_location(),
        )
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    inner = product(sizes[0])
    rows = product(a.shape[i] for i in free_a)
    columns = product(b.shape[i] for i in free_b)
    m = reshape(permute_dims(a, [*free_a, *left]), (rows, inner))
    n_ = reshape(permute_dims(b, [*right, *free_b]), (inner, columns))
    shape = [a.shape[i] for i in free_a] + [b.shape[i] for i in free_b]
    return reshape(apply("matmul", m, n_), tuple(shape))


def vecdot(
    x1: TensorLike, x2: TensorLike, /, *, axis: int = -1, preferred_element_type: object = None
) -> Tensor:
    """sum(conj(x1) * x2) over `axis`; the other axes broadcast. preferred_element_type: as for
    `matmul`.

    >>> wf.vecdot([[1, 2], [3, 4]], [1, 10])
    Tensor([21, 43], dtype=int64)
    >>> wf.vecdot([1j, 1], [1j, 1])
    Tensor(2.+0.j, dtype=complex64)
    """
    a, b = product_operands("vecdot", preferred_element_type, x1, x2)
    rank = min(a.ndim, b.ndim)
    axis = check_int("vecdot", axis, "axis")
    if not rank:
        raise ShapeError(
            f"wf.vecdot needs at least vectors, got shapes {format_shape(a.shape)} and "
            f"{format_shape(b.shape)}",
            location=caller_location(),
        )
    if axis >= 0 or -axis > rank:
        raise BoundsError(
            f"wf.vecdot: axis {axis} must be negative, -1 to {-rank}, as in the array API",
            hint="axes count from the end, because the others broadcast; wf.moveaxis brings axis "
            "0 to the end",
            location=caller_location(),
        )
    if not same(a.shape[axis], b.shape[axis]):
        raise ShapeError(
            f"wf.vecdot: axis {axis} of shapes {format_shape(a.shape)} and "
            f"{format_shape(b.shape)} differ",
            location=caller_location(),
        )
    left, right = broadcast_tensors(conj(a), b, op="vecdot")
    terms = apply("multiply", left, right)
    return apply("sum", terms, axes=(terms.ndim + axis,), keepdims=False)


def inner(x1: TensorLike, x2: TensorLike, /, *, preferred_element_type: object = None) -> Tensor:
    """The sum of products over the last axes of x1 and x2 (NumPy's inner; no conjugate).
    preferred_element_type: as for `matmul`.

    >>> wf.inner([[1, 2], [3, 4]], [[1, 0], [0, 1], [1, 1]])
    Tensor([[1, 2, 3],
            [3, 4, 7]], dtype=int64)
    >>> wf.inner([1j, 1], [1j, 1])
    Tensor(0.+0.j, dtype=complex64)
    """
    a, b = product_operands("inner", preferred_element_type, x1, x2)
    if not a.ndim or not b.ndim:
        return binary("multiply", a, b)
    return tensordot(a, b, axes=((-1,), (-1,)))


def outer(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """x1[i] * x2[j] as a matrix, for vectors.

    >>> wf.outer([1, 2], [10, 20, 30])
    Tensor([[10, 20, 30],
            [20, 40, 60]], dtype=int64)
    """
    a, b = promote_tensors(x1, x2, op="outer")
    if a.ndim != 1 or b.ndim != 1:
        raise InvalidArgumentError(
            f"wf.outer takes vectors, got shapes {format_shape(a.shape)} and "
            f"{format_shape(b.shape)}",
            location=caller_location(),
        )
    return binary("multiply", reshape(a, (*a.shape, 1)), reshape(b, (1, *b.shape)))


def cross(x1: TensorLike, x2: TensorLike, /, *, axis: int = -1) -> Tensor:
    """The cross product of three-element vectors along `axis`; the other axes broadcast.

    >>> wf.cross([1, 0, 0], [[0, 1, 0], [0, 0, 1]])
    Tensor([[ 0,  0,  1],
            [ 0, -1,  0]], dtype=int64)
    """
    given = promote_tensors(x1, x2, op="cross")
    a, b = broadcast_tensors(*given, op="cross")
    along = check_axis("cross", axis, a.ndim)
    for t in given:
        at = along - a.ndim + t.ndim
        if at < 0 or t.shape[at] != 3:  # an axis of size 1 does not broadcast here
            raise ShapeError(
                f"wf.cross: axis {axis} of shape {format_shape(t.shape)} must have size 3",
                location=caller_location(),
            )
    a0, a1, a2 = (cut(a, along, i, i + 1) for i in range(3))
    b0, b1, b2 = (cut(b, along, i, i + 1) for i in range(3))
    parts = [_minor(a1, b2, a2, b1), _minor(a2, b0, a0, b2), _minor(a0, b1, a1, b0)]
    return apply("concat", *parts, axis=along)


def _minor(a: Tensor, d: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return apply("subtract", apply("multiply", a, d), apply("multiply", b, c))


def _matrix(op: str, x: TensorLike) -> Tensor:
    t = strong_tensor(x)
    if t.ndim < 2:
        raise InvalidArgumentError(
            f"wf.{op} needs a matrix or a stack of them, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    return t


def diagonal(x: TensorLike, /, *, offset: int = 0) -> Tensor:
    """The diagonals of the matrices x, its last two axes, as vectors; `offset` > 0: above the main
    one.

    >>> wf.diagonal([[1, 2, 3], [4, 5, 6]])
    Tensor([1, 5], dtype=int64)
    >>> wf.diagonal([[1, 2, 3], [4, 5, 6]], offset=1)
    Tensor([2, 6], dtype=int64)
    >>> wf.diagonal(wf.zeros((2, 3, 4))).shape  # of the last two axes; NumPy: of the first two
    (2, 3)
    """
    t = _matrix("diagonal", x)
    k = check_int("diagonal", offset, "offset")
    lead = t.shape[:-2]
    rows, columns = (known_size("diagonal", t, axis) for axis in (t.ndim - 2, t.ndim - 1))
    length = positive(smaller(rows + min(k, 0), columns - max(k, 0)))
    flat = reshape(t, (*lead, product((rows, columns))))
    start = -k * columns if k < 0 else k
    if isinstance(columns, SymbolicDim) or isinstance(length, SymbolicDim):
        places = add(multiply(iota((length,)), add(columns, 1)), start)
        return apply("take", flat, places, axis=t.ndim - 2)
    if length == 0:
        return cut(flat, t.ndim - 2, 0, 0)
    stop = start + (length - 1) * (columns + 1) + 1
    return cut(flat, t.ndim - 2, start, stop, columns + 1)


def trace(x: TensorLike, /, *, offset: int = 0, dtype: object = None) -> Tensor:
    """The sum of each diagonal of the matrices x; dtypes as for `sum`.

    >>> wf.trace([[1, 2], [3, 4]])
    Tensor(5, dtype=int64)
    >>> wf.trace(wf.ones((5, 2, 2)))
    Tensor([2., 2., 2., 2., 2.], dtype=float32)
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def diag(x: TensorLike, /, k: int = 0) -> Tensor:
    """A vector as the k-th diagonal of a square matrix; the k-th diagonal of a matrix (NumPy's
    diag).

    >>> wf.diag([1, 2], 1)
    Tensor([[0, 1, 0],
            [0, 0, 2],
            [0, 0, 0]], dtype=int64)
    >>> wf.diag([[1, 2], [3, 4]])
    Tensor([1, 4], dtype=int64)
    """
    t = strong_tensor(x)
    if t.ndim == 2:
        return diagonal(t, offset=k)
    if t.ndim != 1:
        raise InvalidArgumentError(
            f"wf.diag takes a vector or a matrix, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    size = t.shape[0]
    matrix = where(eye(size, dtype=bool_), reshape(t, (size, 1)), zeros_like(t, dtype=t.dtype))
    above, below = max(k, 0), max(-k, 0)
    return pad(matrix, ((below, above), (above, below)), constant_values=zeros((), dtype=t.dtype))


def matrix_power(x: TensorLike, n: int, /) -> Tensor:
    """The square matrices x multiplied n times, by repeated squaring; for n < 0 their inverses,
    which takes float32, float64, complex64 or complex128 (integers become the default float).

    >>> wf.linalg.matrix_power([[1, 1], [1, 0]], 10)
    Tensor([[89, 55],
            [55, 34]], dtype=int64)
    >>> wf.linalg.matrix_power(wf.asarray([[2.0, 0.0], [0.0, 4.0]]), -1)
    Tensor([[0.5 , 0.  ],
            [0.  , 0.25]], dtype=float32)
    """
    t = _matrix("matrix_power", x)
    power = check_int("matrix_power", n, "n")
    if not same(t.shape[-1], t.shape[-2]):
        raise InvalidArgumentError(
            f"wf.linalg.matrix_power needs square matrices, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    if power < 0:
        t, power = inv(t), -power
    out: Tensor | None = None
    while power:
        if power & 1:
            out = t if out is None else apply("matmul", out, t)
        power >>= 1
        t = apply("matmul", t, t) if power else t
    if out is not None:
        return out
    one: Any = t.shape[-1]  # a symbol is a size, too
    return expand(eye(one, dtype=t.dtype), t.shape)


def matrix_norm(
    x: TensorLike, /, *, keepdims: bool = False, ord: int | float | str = "fro"
) -> Tensor:
    """The norm of the matrices x: "fro", 1 / -1 (column sums of |x|), inf / -inf (row sums), 2 / -2
    (the largest and the smallest singular value), "nuc" (the sum of the singular values).

    Those of singular values take float32, float64, complex64 or complex128, and matrices with
    elements.

    >>> wf.linalg.matrix_norm([[3, 0], [0, 4]])
    Tensor(5., dtype=float32)
    >>> [float(wf.linalg.matrix_norm([[1, -2], [3, 4]], ord=o)) for o in (1, np.inf)]
    [6.0, 7.0]
    >>> [float(wf.linalg.matrix_norm([[3, 0], [0, 4]], ord=o)) for o in ("nuc", 2)]
    [7.0, 4.0]
    """
    t = inexact_tensor(_matrix("matrix_norm", x), "matrix_norm")
    if ord == "fro":
        return vector_norm(t, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        values = svdvals(t)
        if keepdims:
            values = reshape(values, (*values.shape[:-1], 1, values.shape[-1]))
        best = 1 if isinstance(ord, str) else math.copysign(math.inf, ord)
        axis = (-2, -1) if keepdims else -1
        return vector_norm(values, axis=axis, keepdims=keepdims, ord=best)
    if ord not in (1, -1, float("inf"), float("-inf")):
        raise InvalidArgumentError(
            f"wf.linalg.matrix_norm: ord {ord!r} is not there",
            hint="ord is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf",
            location=caller_location(),
        )
    axis = -2 if ord in (1, -1) else -1
    sums = vector_norm(t, axis=axis, keepdims=True, ord=1)
    best = float("inf") if ord in (1, float("inf")) else float("-inf")
    return vector_norm(sums, axis=(-2, -1), keepdims=keepdims, ord=best)


#: Stand for the axes of an ellipsis, the last axis first, so that they broadcast from the right.
_ELLIPSIS_LABELS = "0123456789"


@dataclass(frozen=True, slots=True)
class Term:
    """A tensor with one label for each axis; all labels differ."""

    tensor: Tensor
    labels: str


def _einsum_error(subscripts: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"wf.einsum({subscripts!r}): {why}", location=caller_location())


def einsum(
    subscripts: str, /, *operands: TensorLike, preferred_element_type: object = None
) -> Tensor:
    """Sums of products named by labels: `einsum("ij,jk->ik", a, b)` is a matrix product.

    As NumPy's: one letter for each axis, `...` for any number of axes that broadcast, repeated
    letters in one operand take its diagonal, letters that are not in the output are summed over;
    without `->` the output has the letters that occur once, in alphabetical order. Dtypes promote
    and stay; preferred_element_type: another one, in which all products and sums are, as for
    `matmul`. Errors, at the caller's line: TypeRuleError for subscripts that are not a string
    (NumPy's form with lists of axes) and for dtypes, InvalidArgumentError for malformed ones,
    ShapeError for sizes that do not fit.

    >>> a, b = [[1, 2], [3, 4]], [[1, 0], [1, 1]]
    >>> wf.einsum("ij,jk->ik", a, b)
    Tensor([[3, 2],
            [7, 4]], dtype=int64)
    >>> wf.einsum("ii", a)
    Tensor(5, dtype=int64)
    >>> wf.einsum("...i,...i->...", a, b)
    Tensor([1, 7], dtype=int64)
    """
    if not isinstance(subscripts, str):
        raise TypeRuleError(
            f"wf.einsum: the subscripts must be a string, got {type(subscripts).__name__}",
            hint="write wf.einsum('ij->ji', x); NumPy's form einsum(x, [0, 1], ...) is not there",
            location=caller_location(),
        )
    tensors = product_operands("einsum", preferred_element_type, *operands)
    inputs, output = _parse_subscripts(subscripts, tensors)
    sizes = _label_sizes(subscripts, inputs, tensors)
    terms = [_distinct(Term(t, labels)) for t, labels in zip(tensors, inputs, strict=True)]
    for step in _contraction_path(terms, output, sizes):
        picked = [terms[i] for i in step]
        terms = [t for i, t in enumerate(terms) if i not in step]
        joined, *waiting = picked
        while waiting:
            other = waiting.pop(0)
            wanted = set(output).union(*(t.labels for t in (*terms, *waiting)))
            joined = _sum_out(joined, wanted | set(other.labels))
            other = _sum_out(other, wanted | set(joined.labels))
            joined = _contract(joined, other, wanted, sizes)
        terms.append(joined)
    (last,) = terms
    last = _sum_out(last, set(output))
    placed = permute_dims(last.tensor, [last.labels.index(c) for c in output])
    return expand(placed, tuple(sizes[c] for c in output))


def _parse_subscripts(subscripts: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, ellipses spelled out."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(tensors):
        raise _einsum_error(subscripts, f"{len(inputs)} terms for {len(tensors)} operands")
    longest = 0
    spelled = []
    for labels, t in zip(inputs, tensors, strict=True):
        letters = labels.replace("...", "", 1)
        if not all(c.isascii() and c.isalpha() for c in letters):
            raise _einsum_error(subscripts, f"{labels!r} may hold letters and one '...' only")
        extra = t.ndim - len(letters)
        if extra < 0 or (extra and "..." not in labels) or extra > len(_ELLIPSIS_LABELS):
            raise _einsum_error(
                subscripts, f"{labels!r} does not fit the shape {format_shape(t.shape)}"
            )
        longest = max(longest, extra)
        spelled.append(labels.replace("...", _ELLIPSIS_LABELS[:extra][::-1]))
    dots = _ELLIPSIS_LABELS[:longest][::-1]
    if arrow:
        letters = right.replace("...", "", 1)
        output = right.replace("...", dots)
    else:
        joined = "".join(spelled)
        letters = "".join(sorted(c for c in set(joined) if c.isalpha() and joined.count(c) == 1))
        output = dots + letters
    unknown = set(letters) - set("".join(spelled))
    if unknown or len(set(letters)) != len(letters) or not all(c.isalpha() for c in letters):
        raise _einsum_error(
            subscripts, f"the output {right!r} must hold distinct letters of the inputs"
        )
    return spelled, output


def _label_sizes(
    subscripts: str, inputs: Sequence[str], tensors: Sequence[Tensor]
) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for labels, t in zip(inputs, tensors, strict=True):
        for c, d in zip(labels, t.shape, strict=True):
            try:
                sizes[c] = broadcast_dim(sizes.get(c, 1), d)
            except ShapeError:
                shapes = ", ".join(format_shape(t.shape) for t in tensors)
                raise ShapeError(
                    f"wf.einsum({subscripts!r}): the sizes of '{c}' differ in shapes {shapes}",
                    location=caller_location(),
                ) from None
    return sizes


def _distinct(term: Term) -> Term:
    """The term with the diagonal taken for each label that it repeats."""
    t, labels = term.tensor, term.labels
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            i = labels.index(c)
            j = labels.index(c, i + 1)
            if t.shape[i] != t.shape[j]:
                raise ShapeError(
                    f"wf.einsum: the repeated label '{c}' has sizes {t.shape[i]} and {t.shape[j]}",
                    location=caller_location(),
                )
            t = diagonal(moveaxis(t, (i, j), (-2, -1)))
            labels = labels[:i] + labels[i + 1 : j] + labels[j + 1 :] + c
    return Term(t, labels)


def _contraction_path(
    terms: Sequence[Term], output: str, sizes: dict[str, Dim]
) -> list[tuple[int, ...]]:
    """Which terms to contract next, by position; results go to the end."""
    if len(terms) <= 2 or len(sizes) > len(ascii_letters):  # NumPy knows no further labels
        return [tuple(range(len(terms)))]
    # only the sizes count: an array of one element stands for each operand
    letters = dict(zip(sizes, ascii_letters, strict=False))
    texts = ["".join(letters[c] for c in t.labels) for t in terms]
    text = ",".join(texts) + "->" + "".join(letters[c] for c in output)
    shapes = [tuple(d if isinstance(d, int) else 64 for d in t.tensor.shape) for t in terms]
    path, _ = np.einsum_path(text, *(np.broadcast_to(0.0, s) for s in shapes), optimize="greedy")
    return [tuple(step) for step in path[1:]]


def _sum_out(term: Term, keep: set[str]) -> Term:
    axes = tuple(i for i, c in enumerate(term.labels) if c not in keep)
    if not axes:
        return term
    summed = apply("sum", term.tensor, axes=axes, keepdims=False)
    return Term(summed, "".join(c for c in term.labels if c in keep))


def _contract(a: Term, b: Term, wanted: set[str], sizes: dict[str, Dim]) -> Term:
    """The product of two terms, summed over the labels that nobody else wants."""
    shared = [c for c in a.labels if c in b.labels]
    inner = [c for c in shared if c not in wanted]
    batch = [c for c in shared if c in wanted]
    left = [c for c in a.labels if c not in b.labels]
    right = [c for c in b.labels if c not in a.labels]
    if not inner or not left or not right:
        return _multiply_sum(a, b, [*batch, *left, *right], inner)
    m = _as_matrices(a, batch, left, inner, sizes)
    n = _as_matrices(b, batch, inner, right, sizes)
    out = apply("matmul", m[0], n[0], transpose_a=m[1], transpose_b=n[1])
    labels = [*batch, *left, *right]
    return Term(reshape(out, tuple(sizes[c] for c in labels)), "".join(labels))


def _multiply_sum(a: Term, b: Term, kept: list[str], inner: list[str]) -> Term:
    labels = [*kept, *inner]
    parts = []
    for term in (a, b):
        present = [c for c in labels if c in term.labels]
        ordered = permute_dims(term.tensor, [term.labels.index(c) for c in present])
        at = iter(ordered.shape)
        parts.append(reshape(ordered, tuple(next(at) if c in present else 1 for c in labels)))
    out = apply("multiply", *broadcast_tensors(*parts, op="einsum"))
    if inner:
        axes = tuple(range(len(kept), len(labels)))
        out = apply("sum", out, axes=axes, keepdims=False)
    return Term(out, "".join(kept))


def _as_matrices(
    term: Term, batch: list[str], rows: list[str], columns: list[str], sizes: dict[str, Dim]
) -> tuple[Tensor, bool]:
    """The term as [batch, rows, columns], or transposed (True) where that moves fewer axes."""
    t = expand(term.tensor, tuple(sizes[c] for c in term.labels))
    transposed = list(term.labels) == [*batch, *columns, *rows] and bool(rows)
    order = [*batch, *columns, *rows] if transposed else [*batch, *rows, *columns]
    ordered = permute_dims(t, [term.labels.index(c) for c in order])
    one, two = (columns, rows) if transposed else (rows, columns)
    lead = tuple(sizes[c] for c in batch)
    shape = (*lead, product(sizes[c] for c in one), product(sizes[c] for c in two))
    return reshape(ordered, shape), transposed
