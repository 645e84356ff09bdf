"""`IndexedSlices`: rows of a table that is zero elsewhere, as the gradient of looked-up rows is.

What is here is as large as the rows, never as the table, but for `to_dense`, which says so.
"""

from __future__ import annotations

import builtins
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import divide, equal, multiply, negative, where
from weft.frontend.ops.manipulation import concat, reshape
from weft.frontend.ops.promotion import cast
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import DType, as_dtype, int64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.locations import caller_location


class IndexedSlices:
    """A tensor of `dense_shape` whose rows at `indices` are the sums of `values`, and 0 elsewhere.

    values: [n, ...]. indices: integers [n], in any order; equal ones add up, negative ones count
    from the end. dense_shape: ints, the first of them the number of rows. As TensorFlow's, it is a
    container of tensors; it never becomes a dense tensor but by `to_dense()`: functions of tensors
    raise TypeRuleError. It can be scaled by a number or scalar, negated, and added to another.

    >>> rows = wf.IndexedSlices([[1.0, 1.0], [2.0, 2.0]], indices=[3, 0], dense_shape=(4, 2))
    >>> (10 * rows).to_dense()
    Tensor([[20., 20.],
            [ 0.,  0.],
            [ 0.,  0.],
            [10., 10.]], dtype=float32)
    """

    __slots__ = ("dense_shape", "indices", "values")
    __array_ufunc__ = None  # NumPy's operators leave it to ours

    def __init__(self, values: Any, indices: Any, dense_shape: Sequence[int]) -> None:
        self.values = as_tensor(values)
        self.indices = as_tensor(indices)
        self.dense_shape = tuple(dense_shape)
        if not self.indices.dtype.is_integer:
            raise TypeRuleError(
                f"IndexedSlices: indices must be integers, got {self.indices.describe()}",
                location=caller_location(),
            )
        v, i = self.values.shape, self.indices.shape
        fits = len(i) == 1 and len(v) == len(self.dense_shape) > 0 and same(v[0], i[0])
        if not fits or not all(map(same, v[1:], self.dense_shape[1:])):
            raise ShapeError(
                f"IndexedSlices: values of shape {format_shape(v)} at indices of shape "
                f"{format_shape(i)} are no rows of a table of shape "
                f"{format_shape(self.dense_shape)}",
                hint="values are [n, ...], indices [n], dense_shape [rows, ...]",
                location=caller_location(),
            )

    @property
    def dtype(self) -> DType:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """`dense_shape`."""
        return self.dense_shape

    def __repr__(self) -> str:
        return (
            f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, "
            f"dense_shape={self.dense_shape})"
        )

    # --------------------------------------------------------------------------- what it stands for
    def to_dense(self) -> Tensor:
        """The tensor of `dense_shape`, all of it."""
        base = zeros(self.dense_shape, dtype=self.dtype)
        return apply("index_add", base, self.indices, self.values, axis=0)

    def coalesced(self) -> tuple[IndexedSlices, Tensor]:
        """The same with the sum of equal indices where they occur first, and 0 at the others; and
        a bool[n] that says which are first."""
        first = apply("first_occurrence", self.indices, size=self.dense_shape[0])
        shape = self.values.shape
        total = apply("index_add", zeros(shape, dtype=self.dtype), first, self.values, axis=0)
        is_first = equal(first, iota(shape[:1], 0, dtype=int64))
        return IndexedSlices(total, self.indices, self.dense_shape), is_first

    def with_values(self, values: Tensor) -> IndexedSlices:
        """Other values at the same places."""
        return IndexedSlices(values, self.indices, self.dense_shape)

    # ---------------------------------------------------------------------------------- arithmetic
    def __neg__(self) -> IndexedSlices:
        return self.with_values(negative(self.values))

    def __mul__(self, other: Any) -> IndexedSlices:
        return self.with_values(multiply(self.values, self._scalar("*", other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> IndexedSlices:
        return self.with_values(divide(self.values, self._scalar("/", other)))

    def __add__(self, other: Any) -> IndexedSlices:
        if not isinstance(other, IndexedSlices):
            self._refuse("+")
        return added([self, other])

    def __sub__(self, other: Any) -> IndexedSlices:
        if not isinstance(other, IndexedSlices):
            self._refuse("-")
        return added([self, -other])

    def _scalar(self, operator: str, other: Any) -> Any:
        if isinstance(other, IndexedSlices) or as_tensor(other).ndim:
            self._refuse(operator)
        return other

    def _refuse(self, what: str) -> NoReturn:
        raise TypeRuleError(
            f"'{what}' would make a dense tensor {as_dtype(self.dtype).short}"  # fetched: NumPy's
            f"{format_shape(self.dense_shape)} of IndexedSlices",
            hint="say so with .to_dense(), or use them as they are: optimizer.apply_gradients, "
            "variable.scatter_sub(slices.indices, slices.values)",
            location=caller_location(),
        )

    def __radd__(self, other: object) -> NoReturn:
        self._refuse("+")

    def __rsub__(self, other: object) -> NoReturn:
        self._refuse("-")

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> NoReturn:
        self._refuse("conversion to a tensor")


def added(parts: Sequence[IndexedSlices]) -> IndexedSlices:
    """The sum of slices of one table: all their rows, one after the other."""
    first = parts[0]
    for other in parts[1:]:
        if other.dense_shape != first.dense_shape or other.dtype is not first.dtype:
            raise ShapeError(
                f"IndexedSlices of {first.dtype.short}{format_shape(first.dense_shape)} and of "
                f"{other.dtype.short}{format_shape(other.dense_shape)} do not add",
                location=caller_location(),
            )
    if len(parts) == 1:
        return first
    kinds = {p.indices.dtype for p in parts}
    indices = [p.indices if len(kinds) == 1 else cast(p.indices, int64) for p in parts]
    return IndexedSlices(
        concat([p.values for p in parts], axis=0), concat(indices, axis=0), first.dense_shape
    )


def masked(slices: IndexedSlices, keep: Tensor) -> IndexedSlices:
    """0 where `keep` (bool[n]) is false."""
    column = reshape(keep, [keep.shape[0], *[1] * (slices.values.ndim - 1)])
    return slices.with_values(where(column, slices.values, 0))


def _flatten(slices: IndexedSlices) -> tuple[Sequence[Any], Hashable]:
    return (slices.values, slices.indices), slices.dense_shape


def _unflatten(dense_shape: Any, leaves: list[Any]) -> IndexedSlices:
    made = object.__new__(IndexedSlices)  # leaves may be anything, such as what Session.run gives
    made.values, made.indices = leaves
    made.dense_shape = dense_shape
    return made


pytree.register_pytree(IndexedSlices, _flatten, _unflatten)
