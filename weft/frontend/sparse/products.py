"""Products of sparse matrices with dense tensors and with each other, and `CSRMatrix`, entries by
rows.

A product is a sum of rows of the dense operand: out[i] += values[k] * dense[j] for entry k at
(i, j). It is composed of a gather, a multiplication and a scatter, so gradients, `vmap` and all
engines have it; on the CPU the pass `fuse_sparse_products` makes one kernel of the three. That of
two sparse matrices goes over the pairs of an entry of each that meet, as Gustavson's algorithm does
(F. Gustavson, "Two fast algorithms for sparse matrices", 1978), and adds the products by place; the
op `sparse_pairs` finds pairs and places, with `nse=` ops with known sizes do."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace, suspend_trace
from weft.frontend.eager.by_value import quick_pairs_added
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import (
    apply_dynamic,
    apply_many,
    exact_sizes,
    nonzero_columns,
)
from weft.frontend.ops.elementwise import (
    add,
    conj,
    greater,
    less,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.indexing import NOWHERE, getitem, take
from weft.frontend.ops.manipulation import (
    concat,
    expand_dims,
    matrix_transpose,
    moveaxis,
    reshape,
    stack,
)
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    filled,
    is_concrete,
    promote_tensors,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import argsort, cumulative_sum, searchsorted
from weft.frontend.ops.reduction import sum as summed
from weft.frontend.ops.strings import SparseTensorValue
from weft.frontend.sparse.sparse_tensor import (
    SparseTensor,
    as_sparse,
    as_text,
    check_count,
    check_range,
    coalesce,
    column,
    flat_places,
    is_there,
    made,
    nowhere,
    numbered,
    places,
    scattered,
    transpose,
)
from weft.ir.cost.thresholds import FEW_SIZES
from weft.ir.dims import Dim, format_shape, product, same
from weft.ir.dtypes import DType, bool_, int64
from weft.ir.errors import (
    InvalidArgumentError,
    ShapeError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import caller_location
from weft.ir.spec import fits


class CSRMatrix:
    """A sparse matrix by rows (compressed sparse row): row i has the columns `indices[k]` and
    `values[k]` for k from indptr[i] up to indptr[i + 1].

    indptr: integers [rows + 1], from 0 to n, not falling. indices: integers [n]. values: [n].
    dense_shape: (rows, columns), ints. Equal indices add up. SciPy's layout: of a
    `scipy.sparse.csr_matrix` m it is CSRMatrix(m.indptr, m.indices, m.data, m.shape).
    InvalidArgumentError for what is known and is no such matrix. Functions of `wf.sparse` take it
    where they take a SparseTensor, which `to_coo()` gives.

    >>> a = wf.sparse.CSRMatrix([0, 1, 1, 3], [1, 0, 1], [5.0, 7.0, 8.0], (3, 2))
    >>> a.to_dense()
    Tensor([[0., 5.],
            [0., 0.],
            [7., 8.]], dtype=float32)
    >>> a @ wf.asarray([1.0, 10.0])
    Tensor([50.,  0., 87.], dtype=float32)
    """

    __slots__ = ("dense_shape", "indices", "indptr", "values")
    __array_ufunc__ = None
    indptr: Tensor
    indices: Tensor
    values: Tensor
    dense_shape: tuple[Any, ...]

    def __init__(self, indptr: Any, indices: Any, values: Any, dense_shape: Sequence[int]) -> None:
        self.indptr = _integers(indptr, "indptr")
        self.indices = _integers(indices, "indices")
        self.values = strong_tensor(values)
        self.dense_shape = tuple(dense_shape)
        rows = self.dense_shape[0] if len(self.dense_shape) == 2 else None
        shapes = (self.indptr.shape, self.indices.shape, self.values.shape)
        if (
            rows is None
            or not fits(shapes[0], (rows + 1,))
            or len(shapes[1]) != 1
            or not fits(shapes[1], shapes[2])
        ):
            given = ", ".join(map(format_shape, shapes))
            raise ShapeError(
                f"wf.sparse.CSRMatrix: indptr, indices and values of shapes {given} are no matrix "
                f"of shape {format_shape(self.dense_shape)}",
                hint="indptr is [rows + 1], indices and values are [n]",
                location=caller_location(),
            )
        self._check()

    def _check(self) -> None:
        if is_concrete(self.indices):
            check_range(np.asarray(self.indices.numpy())[:, None], self.dense_shape[1:])
        if not is_concrete(self.indptr) or not isinstance(self.values.shape[0], int):
            return
        ends = np.asarray(self.indptr.numpy())
        if ends[0] != 0 or ends[-1] != self.values.shape[0] or (np.diff(ends) < 0).any():
            raise InvalidArgumentError(
                f"wf.sparse.CSRMatrix: indptr must rise from 0 to {self.values.shape[0]}, the "
                f"number of values; it goes from {ends[0]} to {ends[-1]}",
                location=caller_location(),
            )

    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """`dense_shape`."""
        return self.dense_shape

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nse(self) -> Dim:
        """The number of entries that are stored."""
        return self.values.shape[0]

    def __repr__(self) -> str:
        return (
            f"CSRMatrix(indptr={self.indptr!r}, indices={self.indices!r}, values={self.values!r}, "
            f"dense_shape={self.dense_shape})"
        )

    def to_coo(self) -> SparseTensor:
        """The same entries as a SparseTensor, in the same order.

        >>> wf.sparse.CSRMatrix([0, 1, 2], [1, 0], [5.0, 7.0], (2, 2)).to_coo().indices
        Tensor([[0, 1],
                [1, 0]], dtype=int64)
        """
        indices = stack([_rows(self), self.indices], axis=1)
        return made(indices, self.values, self.dense_shape)

    def to_dense(self) -> Tensor:
        """The tensor of `dense_shape`, all of it."""
        return self.to_coo().to_dense()

    def with_values(self, values: TensorLike) -> CSRMatrix:
        """Other values [n] at the same places: what gradients are taken with respect to."""
        given = strong_tensor(values)
        if not fits(given.shape, self.values.shape):
            raise ShapeError(
                f"CSRMatrix.with_values: values of shape {format_shape(given.shape)} for "
                f"{self.nse} entries",
                location=caller_location(),
            )
        return _made_csr(self.dense_shape, [self.indptr, self.indices, given])

    def __matmul__(self, other: Any) -> Any:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeRuleError(
            f"a CSRMatrix {self.dtype.short}{format_shape(self.dense_shape)} is no tensor",
            hint="make it one with .to_dense(), or use the functions of wf.sparse",
            location=caller_location(),
        )


def _integers(given: Any, what: str) -> Tensor:
    t = strong_tensor(given)
    if t.size == 0 and is_concrete(t) and t.ndim == 1:
        return zeros((0,), dtype=int64)
    if not t.dtype.is_integer:
        raise TypeRuleError(
            f"wf.sparse.CSRMatrix: {what} must be integers, got {t.describe()}",
            location=caller_location(),
        )
    return cast(t, int64)


def _made_csr(dense_shape: Any, leaves: list[Any]) -> CSRMatrix:
    out = object.__new__(CSRMatrix)
    out.indptr, out.indices, out.values = leaves
    out.dense_shape = dense_shape
    return out


def _flatten(x: CSRMatrix) -> tuple[Sequence[Any], Hashable]:
    return (x.indptr, x.indices, x.values), x.dense_shape


pytree.register_pytree(CSRMatrix, _flatten, _made_csr)


def _rows(x: CSRMatrix) -> Tensor:
    """The row of each entry: how many rows have ended before it."""
    n, rows = x.nse, x.dense_shape[0]
    ends = getitem(x.indptr, slice(1, None))
    one = filled(1, int64, (rows,))
    ended = scattered((n + 1,), [ends], one, None)  # type: ignore[operator]
    return cumulative_sum(getitem(ended, slice(None, -1)))


def to_csr(x: Any) -> CSRMatrix:
    """A SparseTensor with two axes as a CSRMatrix, its entries in row-major order, equal ones
    summed. UnsupportedError in a compiled function, where padding would remain.

    >>> wf.sparse.to_csr(wf.sparse.from_dense([[0, 7], [8, 9]])).indptr
    Tensor([0, 1, 3], dtype=int64)
    """
    if isinstance(x, CSRMatrix):
        return x
    sparse = as_sparse("to_csr", x)
    if sparse.ndim != 2:
        raise ShapeError(
            f"wf.sparse.to_csr: a CSRMatrix has 2 axes, got {as_text(sparse)}",
            location=caller_location(),
        )
    whole = coalesce(sparse)
    if whole.padded:
        raise UnsupportedError(
            "wf.sparse.to_csr in a compiled function: how many entries there are depends on values",
            hint="make it outside, and pass it to the function",
            location=caller_location(),
        )
    rows = sparse.dense_shape[0]
    counts = scattered((rows,), [column(whole, 0)], filled(1, int64, (whole.nse,)), None)
    indptr = concat([zeros((1,), dtype=int64), cumulative_sum(counts)], axis=0)
    return _made_csr(sparse.dense_shape, [indptr, column(whole, 1), whole.values])


# ----------------------------------------------------------------------------------------- products
def matmul(
    a: Any, b: Any, *, adjoint_a: bool = False, adjoint_b: bool = False, nse: int | None = None
) -> Any:
    """a @ b, of which one is sparse (a SparseTensor or CSRMatrix) and the other a tensor -> a
    tensor; or of two sparse matrices -> a SparseTensor.

    Shapes as for `wf.matmul`: [..., m, k] and [..., k, n], or a vector [k] of the tensor. A sparse
    matrix is multiplied with each matrix of a batch; a batch of sparse matrices [..., m, k] needs a
    tensor with the same axes in front. adjoint_a, adjoint_b: of the transposed, conjugated operand.
    Gradients flow to values and to the tensor.

    Of two sparse matrices [m, k] and [k, n] the result has one entry for each place to which
    products of entries add, in row-major order, also where they add to 0. If the indices are known,
    as outside of compiled functions, or are constants there, these are all. Else their number
    depends on values, which costs a compiled function its native call, and is a TracerError in
    `wf.vmap`, without `nse`: room for so many products of two entries. Then the result has so many
    entries, the last of them padding; with more products than room the values are NaN (of integers,
    the rest is not there).

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> wf.sparse.matmul(a, [[1.0, 2.0], [3.0, 4.0]])
    Tensor([[15., 20.],
            [ 0.,  0.],
            [ 7., 14.]], dtype=float32)
    >>> wf.sparse.matmul([1.0, 1.0, 1.0], a)
    Tensor([7., 5.], dtype=float32)
    >>> wf.grad(lambda v: wf.sum(wf.sparse.matmul(a.with_values(v), [1.0, 10.0])))(a.values)
    Tensor([10.,  1.], dtype=float32)
    >>> wf.sparse.matmul(a, a, adjoint_b=True)
    SparseTensor(indices=Tensor([[0, 0],
            [2, 2]], dtype=int64), values=Tensor([25., 49.], dtype=float32), dense_shape=(3, 3))
    """
    kinds = (SparseTensor, SparseTensorValue, CSRMatrix)
    left, right = (isinstance(x, kinds) for x in (a, b))
    if left and right:
        return _sparse_product(_matrix(a, adjoint_a), _matrix(b, adjoint_b), nse)
    if nse is not None:
        raise InvalidArgumentError(
            "wf.sparse.matmul: nse is for two sparse operands; here the result is a tensor",
            location=caller_location(),
        )
    if left or not right:
        return _product(as_sparse("matmul", a), strong_tensor(b), adjoint_a, adjoint_b)
    # a @ b is (b^T a^T)^T
    t = strong_tensor(a)
    if t.ndim > 1:
        t = conj(t) if adjoint_a else matrix_transpose(t)
    elif adjoint_a:
        t = conj(t)
    sparse = as_sparse("matmul", b)
    if adjoint_b:
        sparse = sparse.with_values(conj(sparse.values))
    else:
        sparse = _transposed("matmul", sparse)
    out = _product(sparse, t, False, False)
    return out if t.ndim == 1 else matrix_transpose(out)


def _matrix(x: Any, adjoint: bool) -> SparseTensor:
    """An operand of a product of two sparse matrices."""
    sparse = as_sparse("matmul", x)
    if sparse.ndim != 2:
        raise ShapeError(
            f"wf.sparse.matmul of two sparse operands: matrices have 2 axes, got {as_text(sparse)}",
            hint="multiply the matrices of a batch one by one, or make one operand dense",
            location=caller_location(),
        )
    if not adjoint:
        return sparse
    return _transposed("matmul", sparse.with_values(conj(sparse.values)))


def _sparse_product(a: SparseTensor, b: SparseTensor, nse: int | None) -> SparseTensor:
    """a @ b of two sparse matrices."""
    (rows, inner), (given, columns) = a.dense_shape, b.dense_shape
    if not same(inner, given):
        raise ShapeError(
            f"wf.sparse.matmul: sparse operands of shapes {format_shape(a.dense_shape)} and "
            f"{format_shape(b.dense_shape)} (after transposing)",
            hint="[m, k] goes with [k, n]",
            location=caller_location(),
        )
    x, y = promote_tensors(a.values, b.values, op="sparse.matmul")
    shape = (rows, columns)
    if nse is not None:
        return _product_in_room(a, b, x, y, check_count("sparse.matmul", nse, "nse"))
    known = is_concrete(a.indices) and is_concrete(b.indices)
    if not known and not exact_sizes(needed=True):
        raise TracerError(
            "wf.sparse.matmul of two sparse operands: how many entries the result has depends on "
            "values, and would differ by example in vmap",
            hint="say how many products of two entries there may be: nse=1000; the rest is padding",
            location=caller_location(),
        )
    with suspend_trace() if known else nullcontext():
        (at, of_a), (given, of_b) = _there(a), _there(b)
        found = apply_dynamic("sparse_pairs", [at, given], what="sparse.matmul", count=2)
        indices, left, right, place = found
        left = left if of_a is None else take(of_a, left)
        right = right if of_b is None else take(of_b, right)
    total = quick_pairs_added(x, y, left, right, place, indices)
    if total is None:
        total = _pairs_added(widened(x), widened(y), left, right, place, indices)
    return made(indices, cast(total, x.dtype), shape)


def _there(x: SparseTensor) -> tuple[Tensor, Tensor | None]:
    """The indices of the entries without padding, and their numbers (None: all)."""
    there = is_there(x)
    if there is None:
        return x.indices, None
    (chosen,) = nonzero_columns(there, "sparse")
    return take(x.indices, chosen, axis=0), chosen


@runs_native
def _pairs_added(
    x: TensorLike, y: TensorLike, left: TensorLike, right: TensorLike, place: TensorLike,
    indices: TensorLike,
) -> Tensor:  # fmt: skip
    """The sums of x[left[k]] * y[right[k]] by place[k], one for each row of `indices`."""
    first, second, out = as_tensor(x), as_tensor(y), (as_tensor(indices).shape[0],)
    if 0 in (first.shape[0], second.shape[0]):
        return zeros(out, dtype=first.dtype)
    products = multiply(take(first, left), take(second, right))
    return scattered(out, [as_tensor(place)], products, None)


def _product_in_room(
    a: SparseTensor, b: SparseTensor, x: Tensor, y: Tensor, nse: int
) -> SparseTensor:
    """a @ b with values x and y, and room for `nse` pairs of entries that meet."""
    shape = (a.dense_shape[0], b.dense_shape[1])
    if 0 in (a.nse, b.nse, nse):
        ends = nowhere(zeros((nse,), dtype=bool_), zeros((nse, 2), dtype=int64), shape)
        return made(ends, zeros((nse,), dtype=x.dtype), shape, padded=True)
    each = _meetings(a, b)
    total = summed(each)
    sizes = (*a.dense_shape, shape[1])
    if _are_few(sizes, nse):
        alternative = [] if current_trace() is None else _pairs_by_ops(a, b, each, nse)
        operands = [_looked_at(a), _looked_at(b), *alternative]
        attrs: dict[str, Any] = {"shape": sizes, "room": nse}
        indices, left, right, place = apply_many("sparse_pairs_padded", operands, attrs)
    else:
        indices, left, right, place = _pairs_by_ops(a, b, each, nse)
    products = multiply(take(widened(x), left), take(widened(y), right))
    there = less(iota((nse,), 0, dtype=int64), total)
    products = where(there, products, filled(0, products.dtype, ()))
    if products.dtype.is_inexact:
        products = where(greater(total, nse), filled(np.nan, products.dtype, ()), products)
    sums = scattered((nse,), [place], products, None)
    return made(indices, cast(sums, x.dtype), shape, padded=True)


def _are_few(sizes: Sequence[Any], room: int) -> bool:
    """Whether a word for each row and column is no more than results take, or little."""
    known = [n for n in sizes if isinstance(n, int)]
    return len(known) == len(sizes) and sum(known) <= max(room, FEW_SIZES)


def _meetings(a: SparseTensor, b: SparseTensor) -> Tensor:
    """For each entry of a how many of b it meets; padding meets none."""
    there, (row, _) = places(b)
    counts = scattered((b.dense_shape[0],), [row], filled(1, int64, row.shape), there)
    return take(concat([counts, zeros((1,), dtype=int64)], axis=0), column(a, 1))


def _looked_at(x: SparseTensor) -> Tensor:
    """The indices; where they are not known yet, looked at before a kernel leaves out what is out
    of range."""
    if x.padded or is_concrete(x.indices):
        return x.indices
    numbers = [iota((n,), 0, dtype=int64) for n in x.dense_shape]
    return stack([take(n, column(x, i)) for i, n in enumerate(numbers)], axis=1)


def _pairs_by_ops(a: SparseTensor, b: SparseTensor, each: Tensor, nse: int) -> list[Tensor]:
    """Of the first `nse` pairs of entries that meet, in the order of those of a: the indices to
    which they add, in row-major order, their entries of a and of b, and the number of the index.
    All pairs are sorted by index. each: as `_meetings` gives it."""
    row, shape = column(b, 0), (a.dense_shape[0], b.dense_shape[1])  # of padding behind all others
    order = argsort(row)
    ends = cumulative_sum(each)
    number = iota((nse,), 0, dtype=int64)
    there = less(number, summed(each))
    left = where(there, searchsorted(ends, number, side="right"), 0)
    within = subtract(number, subtract(take(ends, left), take(each, left)))
    first = searchsorted(take(row, order), take(column(a, 1), left))
    right = take(order, where(there, add(first, within), 0))
    columns = [take(column(a, 0), left), take(column(b, 1), right)]
    keys = where(there, flat_places("matmul", columns, shape, nse), NOWHERE)
    sort = argsort(keys)
    keys = take(keys, sort)
    found = numbered(keys, shape)
    place = scattered((nse,), [sort], found.place, None, how="scatter_nd_update")
    return [found.indices, left, right, place]


def _transposed(op: str, x: SparseTensor) -> SparseTensor:
    """With the last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError(
            f"wf.sparse.{op} needs a sparse operand with at least 2 axes, got {as_text(x)}",
            hint="wf.sparse.expand_dims(x, 0) is a matrix of one row",
            location=caller_location(),
        )
    return transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def _product(x: SparseTensor, dense: Tensor, adjoint_x: bool, adjoint_dense: bool) -> Tensor:
    """op(x) @ op(dense)."""
    if adjoint_x or x.ndim < 2:
        x = _transposed("matmul", x)
        x = x.with_values(conj(x.values))
    if adjoint_dense:
        dense = conj(matrix_transpose(dense) if dense.ndim > 1 else dense)
    batch, (rows, inner) = x.dense_shape[:-2], x.dense_shape[-2:]
    front = dense.shape[: -2 if dense.ndim > 1 else 0]
    given = dense.shape[-2 if dense.ndim > 1 else -1] if dense.ndim else None
    if not dense.ndim or not same(given, inner) or (batch and not fits(front, batch)):
        raise ShapeError(
            f"wf.sparse.matmul: a sparse operand of shape {format_shape(x.dense_shape)} does not "
            f"go with a tensor of shape {format_shape(dense.shape)} (after transposing)",
            hint="[m, k] goes with [..., k, n] and [k]; [..., m, k] with [..., k, n]",
            location=caller_location(),
        )
    values, t = promote_tensors(x.values, dense, op="sparse.matmul")
    dtype = t.dtype
    values, t = widened(values), widened(t)
    there, columns = places(x)
    if batch:  # one matrix of blocks along the diagonal
        block = flat_places("matmul", columns[:-2], batch, x.nse)
        row = add(multiply(block, rows), columns[-2])
        place = add(multiply(block, inner), columns[-1])
        count = product(batch)
        flat = reshape(t, (product((count, inner)), dense.shape[-1]))
        out = _rows_added(row, place, values, there, flat, product((count, rows)))
        return cast(reshape(out, (*batch, rows, dense.shape[-1])), dtype)
    row, place = columns
    if dense.ndim == 1:
        return cast(_rows_added(row, place, values, there, t, rows), dtype)
    first = moveaxis(t, -2, 0)
    flat = reshape(first, (inner, product(first.shape[1:])))
    out = _rows_added(row, place, values, there, flat, rows)
    return cast(moveaxis(reshape(out, (rows, *first.shape[1:])), 0, -2), dtype)


@runs_native
def _rows_added(
    row: TensorLike,
    place: TensorLike,
    values: TensorLike,
    there: TensorLike | None,
    dense: TensorLike,
    rows: Dim,
) -> Tensor:
    """out[row[k]] is the sum of values[k] * dense[place[k]], of `rows` rows; dense: a matrix, or a
    vector."""
    t, weights = as_tensor(dense), as_tensor(values)
    tail = t.shape[1:]
    if t.shape[0] == 0:
        return zeros((rows, *tail), dtype=t.dtype)
    taken = multiply(take(t, place, axis=0), expand_dims(weights, 1) if tail else weights)
    keep = None if there is None else as_tensor(there)
    return scattered((rows, *tail), [as_tensor(row)], taken, keep)
