"""The rows of a variable that a gradient touches, in place of the variable: what the formulas of
optimizers are computed on with `lazy=True`."""

from __future__ import annotations

from typing import Any

from weft.frontend.autodiff.indexed_slices import IndexedSlices
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.creation import zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import add, subtract
from weft.frontend.ops.indexing import take
from weft.frontend.state.variable import Variable
from weft.ir.dims import Shape
from weft.ir.dtypes import DType


class RowsOf(Operators):
    """The rows of `table` at `indices` (integers [n]) as a variable of shape [n, ...].

    Reading looks them up, assigning writes them back, other rows stay as they are. Rows of equal
    indices must be assigned equal values."""

    def __init__(self, table: Variable, indices: Tensor) -> None:
        self.table, self.indices = table, indices

    @property
    def name(self) -> str:
        """That of the variable."""
        return self.table.name

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.table.dtype

    @property
    def shape(self) -> Shape:
        """One row for each index."""
        return (*self.indices.shape, *self.table.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.table.ndim

    def read(self) -> Tensor:
        """The rows."""
        return take(self.table, self.indices, axis=0)

    def assign(self, value: Any) -> Tensor:
        """Replace the rows."""
        return self.table.scatter_update(self.indices, value)

    def assign_add(self, delta: Any) -> Tensor:
        """Add to each row."""
        return self.assign(add(self.read(), delta))

    def assign_sub(self, delta: Any) -> Tensor:
        """Subtract from each row."""
        return self.assign(subtract(self.read(), delta))


def summed(slices: IndexedSlices) -> Tensor:
    """[n, ...]: for each index the sum of the rows of all equal indices."""
    first = apply("first_occurrence", slices.indices, size=slices.dense_shape[0])
    start = zeros(slices.values.shape, dtype=slices.dtype)
    return take(apply("index_add", start, first, slices.values, axis=0), first, axis=0)


def table_of(var: Variable | RowsOf) -> Variable:
    """The variable that is changed."""
    return var.table if isinstance(var, RowsOf) else var
