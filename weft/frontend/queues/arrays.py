"""`TensorArray`: a list of tensors, on the host or as a value of a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from weft.frontend import pytree
from weft.frontend.arrays import contiguous
from weft.frontend.queues.rows import Rows, new_rows
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
from weft.frontend.tracing.trace import current_trace
from weft.ir.dims import Shape, format_shape
from weft.ir.dtypes import DType, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.resources.components import (
    Array,
    stack_arrays,
)
from weft.runtime.resources.tensor_array import TensorArray as TensorArrayCore

P = ParamSpec("P")
R = TypeVar("R")


def _host_or_rows(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation on the host: `Rows` has one of that name for arrays that are values."""
    on_host = eager(function)
    name = function.__name__

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        array: Any = args[0]
        if array._held is None:
            return on_host(*args, **kwargs)
        made = getattr(array._held, name)(*args[1:], **kwargs)
        return _holding(made) if isinstance(made, Rows) else made  # type: ignore[return-value]

    return operation


class TensorArray:
    """A list of tensors, written and read by index (TensorFlow 1's TensorArray).

    Each index is written once, and, with `clear_after_read` (the default), read once. dynamic_size:
    writing beyond the end makes it longer. infer_shape: the first element decides the shape of all.

    Made in a function that is traced, or in a graph, it is a value: one tensor whose rows are the
    elements, which loops carry and gradients pass through. `ta = ta.write(i, x)` gives the array
    with x in it and leaves `ta` as it was; elements have one shape, indices that are written twice
    are found where they are known, and an array that a loop carries needs `element_shape` or an
    element. Made outside, it lives on the host, and `write` gives the array itself; handed to a
    function or loop it becomes such a value.
    """

    __slots__ = ("_array", "_held", "__weakref__")

    _array: TensorArrayCore
    _held: Rows | None

    def __init__(
        self, dtype: Any, size: Any = None, dynamic_size: bool | None = None,
        clear_after_read: bool | None = None, tensor_array_name: str | None = None,
        infer_shape: bool = True, element_shape: Any = None, name: str | None = None,
    ) -> None:  # fmt: skip
        name = label(tensor_array_name if name is None else name, "tensor_array")
        owner = f"TensorArray '{name}'"
        try:
            (element,) = dtype_list([dtype])
            self._held = None
            if current_trace() is not None:
                self._held = new_rows(
                    element, size, name, element_shape,
                    dynamic=bool(dynamic_size), same_shape=infer_shape,
                )  # fmt: skip
                return
            self._array = TensorArrayCore(
                element,
                integer(0 if size is None else size, f"{owner}: size"),
                name,
                dynamic_size=bool(dynamic_size),
                clear_after_read=clear_after_read is None or bool(clear_after_read),
                shape=one_shape(element_shape, f"{owner}: element_shape"),
                same_shape=infer_shape,
            )
        except WeftError as error:
            raise error.at(caller_location()) from None

    @property
    def name(self) -> str:
        """The name given."""
        return self._array.name if self._held is None else self._held.name

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self._array.dtype if self._held is None else self._held.dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether writing makes it longer."""
        return self._held is None and self._array.dynamic_size

    @property
    def element_shape(self) -> Shape | None:
        """The shape of all elements, as far as it is known."""
        return self._array.shape if self._held is None else self._held.element_shape

    def size(self, name: str | None = None) -> Tensor:
        """The number of indices, an int32 tensor."""
        if self._held is not None:
            return self._held.length()
        return self._host_size()

    @eager
    def _host_size(self) -> Tensor:
        return count(self._array.size())

    @_host_or_rows
    def write(self, index: Any, value: Any, name: str | None = None) -> Self:
        """Store a value at an index that has none. InvalidArgumentError if it has, was read, or is
        out of range; ShapeError or TypeRuleError if the value does not fit."""
        self._array.write(integer(index, self._what("write: index")), self._value(value, "write"))
        return self

    @_host_or_rows
    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at an index; never written: zeros, if the shape is known."""
        return Tensor(contiguous(self._array.read(integer(index, self._what("read: index")))))

    @_host_or_rows
    def stack(self, name: str | None = None) -> Tensor:
        """All elements, stacked along a new first axis. They count as read."""
        return self._stacked(self._array.read_many(), "stack")

    @_host_or_rows
    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices` (i64[n]), stacked. They count as read."""
        return self._stacked(self._array.read_many(self._indices(indices, "gather")), "gather")

    @_host_or_rows
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

    @_host_or_rows
    def unstack(self, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at 0, 1, ...; as many as the size, where that is fixed."""
        rows = self._rows(value, "unstack")
        self._check_size(len(rows), "unstack")
        self._array.write_many(range(len(rows)), rows)
        return self

    @_host_or_rows
    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at `indices` (i64[n])."""
        rows = self._rows(value, "scatter")
        places = self._indices(indices, "scatter")
        if len(places) != len(rows):
            raise ShapeError(f"{self._what('scatter')}: {len(places)} indices for {len(rows)} rows")
        self._array.write_many(places, rows)
        return self

    @_host_or_rows
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

    @_host_or_rows
    def identity(self) -> Self:
        """The array itself."""
        return self

    @_host_or_rows
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


def _holding(rows: Rows) -> TensorArray:
    made = object.__new__(TensorArray)
    made._held = rows
    return made


def _flatten(array: TensorArray) -> tuple[list[Any], tuple[DType, Any]]:
    """Its elements as one tensor, which do not count as read. InvalidArgumentError where their
    shape is not known."""
    rows = array._held
    if rows is None:
        held = array._array
        stacked = stack_arrays(held.peek(), held.dtype, held.shape)
        rows = Rows(held.dtype, len(stacked), held.name, Tensor(stacked))
    if rows.data is None:
        raise InvalidArgumentError(
            f"TensorArray '{rows.name}' is to be a value, but the shape of its elements is not "
            "known yet",
            hint="give element_shape= when it is made",
            location=caller_location(),
        )
    return [rows.data], (rows.dtype, rows.size)


def _unflatten(kind: Any, leaves: list[Any]) -> TensorArray:
    dtype, size = kind
    return _holding(Rows(dtype, size, "tensor_array", *leaves))


pytree.register_pytree(TensorArray, _flatten, _unflatten)
