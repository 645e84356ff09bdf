"""`TensorArray` and `Stack`: lists of tensors on the host."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Self

import numpy as np

from weft.frontend.arrays import contiguous
from weft.frontend.queues.values import (
    count,
    dtype_list,
    eager,
    integer,
    label,
    one_shape,
    rows_of,
    value_of,
)
from weft.frontend.tensor import Tensor
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.runtime.resources.components import (
    Array,
    ComponentShape,
    fits,
    stack_arrays,
)
from weft.runtime.resources.tensor_array import Stack as StackCore
from weft.runtime.resources.tensor_array import TensorArray as TensorArrayCore


class TensorArray:
    """A list of tensors, written and read by index (TensorFlow 1's TensorArray).

    Each index is written once, and, with `clear_after_read` (the default), read once. dynamic_size:
    writing beyond the end makes it longer. infer_shape: the first element decides the shape of all.
    Methods that write give the array itself, so `ta = ta.write(i, x)` works as in a graph.
    """

    __slots__ = ("_array", "__weakref__")

    @eager
    def __init__(
        self, dtype: Any, size: Any = None, dynamic_size: bool | None = None,
        clear_after_read: bool | None = None, tensor_array_name: str | None = None,
        infer_shape: bool = True, element_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        name = label(tensor_array_name if name is None else name, "tensor_array")
        owner = f"TensorArray '{name}'"
        (element,) = dtype_list([dtype])
        self._array = TensorArrayCore(
            element,
            integer(0 if size is None else size, f"{owner}: size"),
            name,
            dynamic_size=bool(dynamic_size),
            clear_after_read=clear_after_read is None or bool(clear_after_read),
            shape=one_shape(element_shape, f"{owner}: element_shape"),
            same_shape=infer_shape,
        )

    @property
    def name(self) -> str:
        """The name given."""
        return self._array.name

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self._array.dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether writing makes it longer."""
        return self._array.dynamic_size

    @property
    def element_shape(self) -> ComponentShape:
        """The shape of all elements, as far as it is known."""
        return self._array.shape

    @eager
    def size(self, name: str | None = None) -> Tensor:
        """The number of indices, an int32 tensor."""
        return count(self._array.size())

    @eager
    def write(self, index: Any, value: Any, name: str | None = None) -> Self:
        """Store a value at an index that has none. InvalidArgumentError if it has, was read, or is
        out of range; ShapeError or TypeRuleError if the value does not fit."""
        self._array.write(integer(index, self._what("write: index")), self._value(value, "write"))
        return self

    @eager
    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at an index; never written: zeros, if the shape is known."""
        return Tensor(contiguous(self._array.read(integer(index, self._what("read: index")))))

    @eager
    def stack(self, name: str | None = None) -> Tensor:
        """All elements, stacked along a new first axis. They count as read."""
        return self._stacked(self._array.read_many(), "stack")

    @eager
    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices` (i64[n]), stacked. They count as read."""
        return self._stacked(self._array.read_many(self._indices(indices, "gather")), "gather")

    @eager
    def concat(self, name: str | None = None) -> Tensor:
        """All elements, joined along their first axes, which may differ. They count as read."""
        arrays = self._array.read_many()
        if not arrays:
            shape = self._array.shape or (0,)
            return Tensor(np.empty((0, *(n or 0 for n in shape[1:])), self.dtype.numpy))
        shapes = [a.shape for a in arrays]
        if not all(shapes) or len({s[1:] for s in shapes}) > 1:
            raise ShapeError(
                f"{self._what('concat')}: elements of the shapes "
                f"{', '.join(map(format_shape, dict.fromkeys(shapes)))} do not join",
                hint="all but their first axes must be the same",
            )
        return Tensor(np.concatenate(arrays))

    @eager
    def unstack(self, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at 0, 1, ...; as many as the size, where that is fixed."""
        rows = self._rows(value, "unstack")
        self._check_size(len(rows), "unstack")
        self._array.write_many(range(len(rows)), rows)
        return self

    @eager
    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at `indices` (i64[n])."""
        rows = self._rows(value, "scatter")
        places = self._indices(indices, "scatter")
        if len(places) != len(rows):
            raise ShapeError(f"{self._what('scatter')}: {len(places)} indices for {len(rows)} rows")
        self._array.write_many(places, rows)
        return self

    @eager
    def split(self, value: Any, lengths: Any, name: str | None = None) -> Self:
        """Write parts of `value`, cut along its first axis into `lengths`, at 0, 1, ..."""
        data = self._value(value, "split")
        sizes = self._indices(lengths, "split")
        if not data.ndim or min(sizes, default=0) < 0 or sum(sizes) != len(data):
            raise ShapeError(
                f"{self._what('split')}: a value of shape {format_shape(data.shape)} is not cut "
                f"into the lengths {sizes}"
            )
        self._check_size(len(sizes), "split")
        ends = np.cumsum([0, *sizes]).tolist()
        parts = [data[a:b].copy() for a, b in pairwise(ends)]
        self._array.write_many(range(len(sizes)), parts)
        return self

    @eager
    def identity(self) -> Self:
        """The array itself."""
        return self

    @eager
    def close(self, name: str | None = None) -> None:
        """Free the elements; later calls raise FailedPreconditionError."""
        self._array.close()

    def _what(self, operation: str) -> str:
        return f"{self._array.describe()}: {operation}"

    def _value(self, value: Any, operation: str) -> Array:
        return value_of(value, self._array.dtype, lambda: self._what(operation))

    def _rows(self, value: Any, operation: str) -> list[Array]:
        stack, rows = rows_of(value, self._array.dtype, lambda: self._what(operation))
        if stack.dtype != self._array.dtype.numpy or not stack.ndim:
            raise ShapeError(f"{self._what(operation)}: a value without axes has no rows")
        return rows()

    def _indices(self, indices: Any, operation: str) -> list[int]:
        given = np.asarray(indices) if isinstance(indices, Tensor) else indices
        array = value_of(given, int64, lambda: self._what(f"{operation}: indices or lengths"))
        if array.ndim != 1:
            raise ShapeError(
                f"{self._what(operation)}: indices of shape {format_shape(array.shape)}",
                hint="give a list of integers",
            )
        out: list[int] = array.tolist()
        return out

    def _check_size(self, rows: int, operation: str) -> None:
        size = self._array.size()
        if rows != size and not (self._array.dynamic_size and rows > size):
            raise InvalidArgumentError(
                f"{self._what(operation)}: {rows} elements for an array of size {size}",
                hint="make it with that size, or with dynamic_size=True",
            )

    def _stacked(self, arrays: list[Array], operation: str) -> Tensor:
        shapes = dict.fromkeys(a.shape for a in arrays)
        if len(shapes) > 1:
            raise ShapeError(
                f"{self._what(operation)}: elements of the shapes "
                f"{', '.join(map(format_shape, shapes))} do not stack"
            )
        return Tensor(stack_arrays(arrays, self._array.dtype, self._array.shape))


class Stack:
    """Tensors of one dtype, last in, first out; `max_size` of them at most (-1: no bound).

    element_shape: the shape of all, None for sizes that vary.
    """

    __slots__ = ("_shape", "_stack", "__weakref__")

    @eager
    def __init__(
        self, elem_type: Any, max_size: int = -1, element_shape: Any = None, name: str | None = None
    ) -> None:
        name = label(name, "stack")
        (dtype,) = dtype_list([elem_type])
        bound = integer(max_size, f"Stack '{name}': max_size", -1)
        self._stack = StackCore(dtype, None if bound < 0 else bound, name)
        self._shape = one_shape(element_shape, f"Stack '{name}': element_shape")

    @property
    def name(self) -> str:
        """The name given."""
        return self._stack.name

    @property
    def dtype(self) -> DType:
        """The dtype of the tensors."""
        return self._stack.dtype

    @eager
    def push(self, value: Any, name: str | None = None) -> Tensor:
        """Put a value on top, and give it back. ResourceExhaustedError if the stack is full."""
        what = f"{self._stack.describe()}: push"
        array = value_of(value, self._stack.dtype, lambda: what)
        if self._shape is not None and not fits(array.shape, self._shape):
            raise ShapeError(
                f"{what} got an element of shape {format_shape(array.shape)}, its elements have "
                f"shape {format_shape(self._shape)}"
            )
        self._stack.push(array)
        return Tensor(array)

    @eager
    def pop(self, name: str | None = None) -> Tensor:
        """Take the value on top. InvalidArgumentError if there is none."""
        return Tensor(self._stack.pop())

    @eager
    def size(self, name: str | None = None) -> Tensor:
        """The number of values, an int32 tensor."""
        return count(self._stack.size())

    @eager
    def close(self, name: str | None = None) -> None:
        """Free the values; later calls raise FailedPreconditionError."""
        self._stack.close()
