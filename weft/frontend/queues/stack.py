"""`Stack`: tensors on the host, last in, first out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from weft.frontend.queues import resources_in_graph as in_graph
from weft.frontend.queues.in_graph import made_at_once, or_effect, or_in_graph
from weft.frontend.queues.sharing import shared
from weft.frontend.queues.values import (
    count,
    dtype_list,
    eager,
    integer,
    label,
    one_shape,
    value_of,
)
from weft.frontend.tensor import Tensor
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError
from weft.runtime.resources.components import fits
from weft.runtime.resources.tensor_array import Stack as StackCore


class Stack:
    """Tensors of one dtype, last in, first out; `max_size` of them at most (-1: no bound).

    element_shape: the shape of all, None for sizes that vary. Stacks with one `shared_name` are
    one. In a `wf.Graph` (which must know the shape) the methods add ops.
    """

    __slots__ = ("_stack", "__weakref__")

    @made_at_once
    @eager
    def __init__(
        self, elem_type: Any, max_size: int = -1, element_shape: Any = None,
        name: str | None = None, *, shared_name: str | None = None,
    ) -> None:  # fmt: skip
        name = label(name, "stack")
        (dtype,) = dtype_list([elem_type])
        bound = integer(max_size, f"Stack '{name}': max_size", -1)
        shape = one_shape(element_shape, f"Stack '{name}': element_shape")
        self._stack = shared(
            shared_name,
            StackCore,
            f"{dtype.short} {shape}, at most {bound}",
            lambda: StackCore(dtype, None if bound < 0 else bound, name, shape),
        )

    @property
    def name(self) -> str:
        """The name given."""
        return self._stack.name

    @property
    def dtype(self) -> DType:
        """The dtype of the tensors."""
        return self._stack.dtype

    @or_in_graph(in_graph.push)
    @eager
    def push(self, value: Any, name: str | None = None) -> Tensor:
        """Put a value on top, and give it back. ResourceExhaustedError if the stack is full."""
        what = f"{self._stack.describe()}: push"
        array = value_of(value, self._stack.dtype, lambda: what)
        shape = self._stack.shape
        if shape is not None and not fits(array.shape, shape):
            raise ShapeError(
                f"{what} got an element of shape {format_shape(array.shape)}, its elements have "
                f"shape {format_shape(shape)}"
            )
        self._stack.push(array)
        return Tensor(array)

    @or_in_graph(in_graph.pop)
    @eager
    def pop(self, name: str | None = None) -> Tensor:
        """Take the value on top. InvalidArgumentError if there is none."""
        return Tensor(self._stack.pop())

    @or_in_graph(in_graph.stack_size)
    @eager
    def size(self, name: str | None = None) -> Tensor:
        """The number of values, an int32 tensor."""
        return count(self._stack.size())

    @or_effect(in_graph.close_stack)
    @eager
    def close(self, name: str | None = None) -> None:
        """Free the values; later calls raise FailedPreconditionError."""
        self._stack.close()

    @made_at_once
    @eager
    def state_dict(self) -> dict[str, Any]:
        """The values, the lowest first, for a checkpoint."""
        return self._stack.state_dict()

    @made_at_once
    @eager
    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Hold what the stack that gave `state` held. Returns self. InvalidArgumentError, and no
        change, if it does not fit."""
        self._stack.load_state_dict(state)
        return self
