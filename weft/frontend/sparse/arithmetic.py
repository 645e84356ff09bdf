"""Elementwise arithmetic of SparseTensors with each other, with tensors and with numbers, by their
entries: only `add` and `subtract` of a tensor make something as large as the dense one.

A sum, maximum or minimum of two has an entry where either has one; a product where both have; a
quotient and a power have the entries of the first operand. So each is, at each place, what the op
gives for the dense tensors, but where that is 0 * x or 0 / x, which count as 0 (as in TensorFlow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.by_value import Array, merged_indices, spread_values
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import abs as absolute
from weft.frontend.ops.elementwise import add as added
from weft.frontend.ops.elementwise import divide as divided
from weft.frontend.ops.elementwise import (
    equal,
    greater_equal,
    logical_and,
    negative,
    where,
)
from weft.frontend.ops.elementwise import maximum as larger
from weft.frontend.ops.elementwise import minimum as smaller
from weft.frontend.ops.elementwise import multiply as multiplied
from weft.frontend.ops.elementwise import subtract as subtracted
from weft.frontend.ops.indexing import NOWHERE, getitem, take
from weft.frontend.ops.manipulation import concat, expand_dims, flatten, reshape, stack
from weft.frontend.ops.promotion import (
    expand,
    filled,
    is_concrete,
    promote_tensors,
    strong_tensor,
)
from weft.frontend.ops.reduction import searchsorted
from weft.frontend.ops.special import pow as raised
from weft.frontend.ops.strings import SparseTensorValue
from weft.frontend.sparse.sparse_tensor import (
    SparseTensor,
    as_sparse,
    as_text,
    is_in_order,
    is_there,
    kept,
    made,
    nowhere,
    one_each,
    order_keys,
    places,
    scattered,
    summed_by_index,
    together,
    unflat,
)
from weft.ir.dims import Shape, broadcast_shapes, format_shape, product
from weft.ir.dtypes import int64
from weft.ir.errors import ShapeError, TypeRuleError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import fits


# ------------------------------------------------------------------------- entries of either of two
def add(a: Any, b: Any, threshold: Any = 0) -> Any:
    """a + b: a SparseTensor of two of them, a tensor if one is a tensor of the same shape.

    The sum of two has one entry for each index, in row-major order (`coalesce`). threshold: leave
    out entries of that whose absolute value is smaller. ShapeError for other shapes.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (3,))
    >>> b = wf.sparse.SparseTensor([[2], [1]], [10.0, 20.0], (3,))
    >>> (a + b).indices[:, 0], (a + b).values
    (Tensor([0, 1, 2], dtype=int64), Tensor([ 1., 20., 12.], dtype=float32))
    >>> a + wf.ones(3)
    Tensor([2., 1., 3.], dtype=float32)
    """
    if not _is_sparse(a):
        a, b = b, a
    if not _is_sparse(b):
        return _added_to_dense(*_with_dense("add", a, b))
    total = _of_either("add", added, a, b)
    if type(threshold) in (int, float) and threshold == 0:
        return total
    keep = greater_equal(absolute(total.values), threshold)
    return kept(total, keep, total.indices, total.dense_shape)


def subtract(a: Any, b: Any) -> Any:
    """a - b, of operands and with results as of `add`.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (3,))
    >>> wf.sparse.subtract(a, a).values, wf.ones(3) - a
    (Tensor([0., 0.], dtype=float32), Tensor([ 0.,  1., -1.], dtype=float32))
    """
    if not _is_sparse(b):
        x, t = _with_dense("subtract", a, b)
        return _added_to_dense(x, negative(t))
    if not _is_sparse(a):
        y, t = _with_dense("subtract", b, a)
        return _added_to_dense(-y, t)
    return _of_either("subtract", subtracted, a, b)


def _with_dense(op: str, sparse: Any, dense: Any) -> tuple[SparseTensor, Tensor]:
    """A SparseTensor and a tensor of one shape, in the dtype of both together."""
    x, t = as_sparse(op, sparse), strong_tensor(dense)
    if not t.ndim:
        raise ShapeError(
            f"wf.sparse.{op}: a number and a SparseTensor {as_text(x)} would make a dense tensor",
            hint="say so: x.to_dense() + number; or add to x.values",
            location=caller_location(),
        )
    _same_shape(op, x.dense_shape, t.shape)
    values, base = promote_tensors(x.values, t, op=f"sparse.{op}")
    return x.with_values(values), base


def _added_to_dense(x: SparseTensor, base: Tensor) -> Tensor:
    there, columns = places(x)
    if there is not None:
        return added(base, scattered(base.shape, columns, where(there, x.values, 0), there))
    return apply("scatter_nd_add", base, stack(columns, axis=1), x.values)


def maximum(x: Any, y: Any) -> SparseTensor:
    """The greater of `x` and `y`, two SparseTensors of one shape, at each place; NaN if either is.

    One entry for each index of either, in row-major order, also where it is 0: a place without an
    entry counts as 0. Equal indices are added up before. ShapeError for other shapes; TypeRuleError
    for a tensor or a number, with which the result would be dense.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, -2.0], (3,))
    >>> b = wf.sparse.SparseTensor([[0], [1]], [10.0, 20.0], (3,))
    >>> wf.sparse.maximum(a, b).values
    Tensor([10., 20.,  0.], dtype=float32)
    """
    return _of_either("maximum", larger, x, y)


def minimum(x: Any, y: Any) -> SparseTensor:
    """The lesser of `x` and `y`; see `maximum`.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, -2.0], (3,))
    >>> b = wf.sparse.SparseTensor([[0], [1]], [10.0, 20.0], (3,))
    >>> wf.sparse.minimum(a, b).values
    Tensor([ 1.,  0., -2.], dtype=float32)
    """
    return _of_either("minimum", smaller, x, y)


def _of_either(op: str, f: Callable[[Any, Any], Tensor], a: Any, b: Any) -> SparseTensor:
    """f of both, which gives 0 for zeros, where either has an entry."""
    x, y = as_sparse(op, a), as_sparse(op, b)
    _same_shape(op, x.dense_shape, y.dense_shape)
    left, right = promote_tensors(x.values, y.values, op=f"sparse.{op}")
    merged = _merged(x, y)
    if merged is not None:
        sides = (left, merged.left), (right, merged.right)
        values = f(*(_spread(v, place, len(merged.indices)) for v, place in sides))
        return made(Tensor(merged.indices), values, x.dense_shape)
    both = together([x.with_values(left), y.with_values(right)])
    none_of_x, none_of_y = zeros((y.nse,), dtype=left.dtype), zeros((x.nse,), dtype=left.dtype)
    vectors = [concat([left, none_of_x], axis=0), concat([none_of_y, right], axis=0)]
    found = summed_by_index(op, both, vectors)
    return made(found.indices, f(*found.sums), x.dense_shape, found.padded)


class _Merged(NamedTuple):
    """The indices of either of two, and for each entry of both which of them it has."""

    indices: Array
    left: Array
    right: Array


def _merged(x: SparseTensor, y: SparseTensor) -> _Merged | None:
    """Of two whose indices are known, in order and without repetitions; None of others."""
    if x.padded or y.padded or not (is_concrete(x.indices) and is_concrete(y.indices)):
        return None
    found = merged_indices(x.indices, y.indices)
    if found is not None:
        return _Merged(*found)
    if not (is_in_order(x) and is_in_order(y)):
        return None
    both = np.concatenate([x.indices.numpy(), y.indices.numpy()])
    rows, places = np.unique(both, axis=0, return_inverse=True)
    left, right = np.split(places.reshape(-1), [len(x.indices.numpy())])
    return _Merged(rows, left, right)


def _spread(values: Tensor, place: Array, count: int) -> Tensor:
    """A vector with the values at these places, and 0 elsewhere."""
    made_at_once = spread_values(values, place, count)
    if made_at_once is not None:
        return made_at_once
    return scattered((count,), [as_tensor(place)], values, None)


# ----------------------------------------------------------------- entries of both, or of the first
def multiply(x: Any, y: Any) -> SparseTensor:
    """x * y, of which one is a SparseTensor, the other one, too, a tensor or a number.

    Of two SparseTensors: one entry for each index that both have, in row-major order. With a tensor
    or a number: at the entries of the SparseTensor, in its order. Shapes broadcast, as in SciPy's
    `multiply`: a SparseTensor with an axis of size 1 repeats its entries; sizes that a graph leaves
    open count as equal. Infinities and NaNs that meet no entry do not count (as in TensorFlow).
    ShapeError for shapes that do not broadcast.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> wf.sparse.multiply(a, [[1.0], [2.0], [3.0]]).values
    Tensor([ 5., 21.], dtype=float32)
    >>> wf.sparse.multiply(a, wf.sparse.SparseTensor([[0, 1], [1, 1]], [2.0, 3.0], (3, 2))).values
    Tensor([10.], dtype=float32)
    """
    if _is_sparse(x) and _is_sparse(y):
        first, second = _broadcast("multiply", as_sparse("multiply", x), as_sparse("multiply", y))
        merged = _merged(first, second)
        if merged is not None:
            return _product_of(first, second, merged)
        found = _looked_up("multiply", first, second)
        out = found.x.with_values(multiplied(found.x.values, found.other))
        return kept(out, found.there, out.indices, out.dense_shape)
    sparse, other = _at_entries("multiply", *(x, y) if _is_sparse(x) else (y, x))
    return sparse.with_values(multiplied(sparse.values, other))


def _product_of(x: SparseTensor, y: SparseTensor, merged: _Merged) -> SparseTensor:
    of_y = np.full(len(merged.indices), -1)
    of_y[merged.right] = np.arange(len(merged.right))
    right = of_y[merged.left]
    left = np.flatnonzero(right >= 0)
    values = multiplied(take(x.values, Tensor(left)), take(y.values, Tensor(right[left])))
    return made(Tensor(merged.indices[merged.left[left]]), values, x.dense_shape)


def divide(x: Any, y: Any) -> SparseTensor:
    """x / y at the entries of `x`; y: a SparseTensor, a tensor or a number, shapes as of
    `multiply`.

    Two SparseTensors: one entry for each index of `x`, in row-major order; where `y` has none it is
    divided by 0. Places where only `y` has an entry are 0, and so are those where none has one, at
    which SciPy, whose quotient of two is dense, has NaN; PyTorch and JAX have no such quotient.
    TypeRuleError for a tensor or a number divided by a SparseTensor.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> (a / 2).values
    Tensor([2.5, 3.5], dtype=float32)
    >>> (a / wf.sparse.SparseTensor([[0, 1], [1, 1]], [2.0, 3.0], (3, 2))).values
    Tensor([2.5, inf], dtype=float32)
    """
    if not _is_sparse(y):
        sparse, other = _at_entries("divide", x, y)
        return sparse.with_values(divided(sparse.values, other))
    if not _is_sparse(x):
        raise TypeRuleError(
            "wf.sparse.divide: a tensor or a number divided by a SparseTensor would be infinite at "
            "each place without an entry",
            hint="x / y.to_dense(); at the entries of y alone: y.with_values(number / y.values)",
            location=caller_location(),
        )
    first, second = _broadcast("divide", as_sparse("divide", x), as_sparse("divide", y))
    merged = _merged(first, second)
    if merged is not None:
        other = _spread(second.values, merged.right, len(merged.indices))
        return first.with_values(divided(first.values, take(other, Tensor(merged.left))))
    found = _looked_up("divide", first, second)
    quotient = divided(found.x.values, found.other)
    there = is_there(found.x)
    if there is not None:
        quotient = where(there, quotient, filled(0, quotient.dtype, quotient.shape))
    return found.x.with_values(quotient)


def pow(x: Any, n: Any) -> SparseTensor:
    """x ** n of a SparseTensor, n a number or a scalar tensor greater than 0, at the entries of
    `x`: one for each index, in row-major order.

    UnsupportedError for n <= 0, with which the result would be dense (1 or infinite where there is
    no entry). A scalar that is known only when it runs is not looked at. ShapeError for other
    tensors.

    >>> (wf.sparse.SparseTensor([[0], [2]], [3.0, -2.0], (4,)) ** 2).values
    Tensor([9., 4.], dtype=float32)
    """
    sparse, t = as_sparse("pow", x), as_tensor(n)
    if t.ndim:
        raise ShapeError(
            f"wf.sparse.pow: the exponent must be a number, got {t.describe()}",
            hint="of another exponent for each entry: x.with_values(x.values ** n)",
            location=caller_location(),
        )
    if is_concrete(t) and not t.dtype.is_complex and t.numpy() <= 0:
        raise UnsupportedError(
            f"wf.sparse.pow: to the power of {t.numpy()} places without an entry would not be 0",
            hint="x.to_dense() ** n; at the entries alone: x.with_values(x.values ** n)",
            location=caller_location(),
        )
    found = one_each("pow", sparse)
    return found.with_values(raised(found.values, n))


def _at_entries(op: str, x: Any, y: Any) -> tuple[SparseTensor, Any]:
    """A SparseTensor, of the shape to which both broadcast, and what belongs to its entries of a
    tensor."""
    sparse = as_sparse(op, x)
    if type(y) in (int, float, complex, bool):
        return sparse, y
    t = as_tensor(y)
    if not t.ndim:
        return sparse, t
    sparse = _broadcast_to(sparse, _common_shape(op, sparse.dense_shape, t.shape))
    shape = sparse.dense_shape
    there, columns = places(sparse)
    own = columns[len(shape) - t.ndim :]
    taken = [c for c, n in zip(own, t.shape, strict=True) if n != 1]
    rest = strong_tensor(reshape(t, tuple(n for n in t.shape if n != 1)))
    if not taken:
        return sparse, rest
    if there is not None and any(n == 0 for n in rest.shape):  # all entries are padding
        return sparse, 1
    found = apply("gather_nd", rest, stack(taken, axis=1))
    return sparse, found if there is None else where(there, found, 1)


class _LookedUp(NamedTuple):
    """x: with one entry for each index. other: what the other has there, 0 where it has none.
    there: whether it has."""

    x: SparseTensor
    other: Tensor
    there: Tensor


def _looked_up(op: str, x: SparseTensor, y: SparseTensor) -> _LookedUp:
    """The entries of two of one shape, at the indices of `x`, by a search among those of `y`."""
    first, second = (one_each(op, z) for z in (x, y))
    keys, known = order_keys(op, first), order_keys(op, second)
    at = searchsorted(known, keys)
    more = filled(NOWHERE, int64, (1,)), zeros((1,), dtype=second.dtype)
    known, values = (
        concat([t, end], axis=0) for t, end in zip((known, second.values), more, strict=True)
    )
    found, real = equal(take(known, at), keys), is_there(first)
    if real is not None:
        found = logical_and(found, real)
    other = where(found, take(values, at), filled(0, second.dtype, at.shape))
    return _LookedUp(first, other, found)


# ------------------------------------------------------------------------------------ common shapes
def _broadcast(op: str, x: SparseTensor, y: SparseTensor) -> tuple[SparseTensor, SparseTensor]:
    """Both in the shape to which they broadcast."""
    shape = _common_shape(op, x.dense_shape, y.dense_shape)
    return _broadcast_to(x, shape), _broadcast_to(y, shape)


def _common_shape(op: str, sparse: Shape, other: Shape) -> Shape:
    try:
        return broadcast_shapes(sparse, other)
    except ShapeError:
        raise ShapeError(
            f"wf.sparse.{op}: an operand of shape {format_shape(other)} does not broadcast with "
            f"{format_shape(sparse)}, the shape of the SparseTensor",
            hint="sizes must be equal or 1, compared from the last axis",
            location=caller_location(),
        ) from None


def _broadcast_to(x: SparseTensor, shape: Shape) -> SparseTensor:
    """`x` with its entries repeated along axes of size 1 and new ones in front."""
    front = len(shape) - x.ndim
    own = (1,) * front + x.dense_shape
    axes = [a for a, (n, size) in enumerate(zip(own, shape, strict=True)) if n == 1 and size != 1]
    if not front and not axes:
        return x
    sizes = tuple(shape[a] for a in axes)
    times = product(sizes)
    copies = (x.nse, times)
    numbers = unflat(iota((times,), 0, dtype=int64), sizes) if axes else None
    there, columns = places(x)
    spread: list[Tensor] = []
    for a in range(len(shape)):
        if numbers is not None and a in axes:
            line = expand_dims(getitem(numbers, (slice(None), axes.index(a))), 0)
        elif a < front:
            line = zeros((1, 1), dtype=int64)
        else:
            line = expand_dims(columns[a - front], 1)
        spread.append(flatten(expand(line, copies)))
    values = flatten(expand(expand_dims(x.values, 1), copies))
    if there is not None:
        there = flatten(expand(expand_dims(there, 1), copies))
    return made(nowhere(there, stack(spread, axis=1), shape), values, shape, x.padded)


def _is_sparse(x: Any) -> bool:
    return isinstance(x, (SparseTensor, SparseTensorValue)) or hasattr(type(x), "to_coo")


def _same_shape(op: str, a: Sequence[Any], b: Sequence[Any]) -> None:
    if not fits(tuple(a), tuple(b)):
        raise ShapeError(
            f"wf.sparse.{op}: the shapes {format_shape(tuple(a))} and {format_shape(tuple(b))} "
            "differ",
            location=caller_location(),
        )
