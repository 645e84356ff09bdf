"""`TensorArray`, a list of tensors, and `Stack`, tensors last in, first out.

A `TensorArray` is on the host outside graphs. Inside functions and graphs it is one tensor, its
elements the rows: so it is a value like any other, a carry of loops, differentiable to any order,
updated in place where the memory planner sees that nobody needs the old one. Where the shapes of
elements differ, or their number grows, it is a `Ragged`, also a value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor, contiguous
from weft.frontend.core.trace import current_trace
from weft.frontend.ops.creation import zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import less, where
from weft.frontend.ops.indexing import as_indices
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import cast, traced_sizes
from weft.frontend.queues.host_ops import host_effect, host_op
from weft.frontend.queues.ragged_array import Ragged, element_tensor, known_integers
from weft.frontend.state.resources import (
    dtype_list,
    eager,
    eager_or_graph,
    element_shapes,
    integer,
    label,
    made_at_once,
    one_shape,
    operand,
    shared,
    value_of,
)
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType, int32, int64
from weft.ir.errors import (
    InvalidArgumentError,
    ShapeError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.components import Array, rows, stack_arrays
from weft.runtime.resources.tensor_array import Stack as StackCore
from weft.runtime.resources.tensor_array import TensorArray as TensorArrayCore


@dataclass(frozen=True, eq=False)
class Rows:
    """`size` elements of one dtype and shape, the rows of `data`; None before the first write
    where the shape is not known. written: the indices known to have been written. declared: the
    element_shape given, None for what it leaves open."""

    dtype: DType
    size: Dim
    name: str
    data: Any = None
    written: frozenset[int] = frozenset()
    declared: Shape | None = None

    @property
    def element_shape(self) -> Shape | None:
        """The shape of an element, as far as it is known."""
        return self.declared if self.data is None else self._tensor().shape[1:]

    def write(self, index: Any, value: Any, name: str | None = None) -> Rows:
        """With `value` at `index`."""
        element = self._element(value, "write")
        place, known = self._place("write", index)
        if known in self.written:
            self._fail("write", f"index {known} has been written already")
        data = self._room(element.shape, "write")
        made = apply("scatter_nd_update", data, reshape(place, [1]), element)
        more = self.written if known is None else self.written | {known}
        return replace(self, data=made, written=more)

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at `index`; zeros where none was written."""
        place, _ = self._place("read", index)
        return apply("gather_nd", self._written("read"), reshape(place, [1]))

    def stack(self, name: str | None = None) -> Tensor:
        """All elements, [size, ...]."""
        return self._written("stack")

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices`, stacked."""
        places = self._not_negative(as_indices("TensorArray.gather", indices))
        return apply("take", self._written("gather"), places, axis=0)

    def concat(self, name: str | None = None) -> Tensor:
        """All elements, joined along their first axes."""
        data = self._written("concat")
        if data.ndim < 2:
            self._fail("concat", "its elements have no axes to join")
        return reshape(data, [-1, *data.shape[2:]])

    def unstack(self, value: Any, name: str | None = None) -> Rows:
        """With the rows of `value` as its elements."""
        rows = self._strong(value, "unstack")
        if not rows.ndim or not same(rows.shape[0], self.size):
            self._fail(
                "unstack", f"a value of shape {format_shape(rows.shape)} has no {self.size} rows"
            )
        if self.written:
            self._fail("unstack", f"the indices {sorted(self.written)} have been written already")
        self._check_shape(rows.shape[1:], "unstack")
        count = self.size if isinstance(self.size, int) else 0
        return replace(self, data=rows, written=frozenset(range(count)))

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Rows:
        """With the rows of `value` at `indices`."""
        places, rows = as_indices("TensorArray.scatter", indices), self._strong(value, "scatter")
        if places.ndim != 1 or not rows.ndim or not same(places.shape[0], rows.shape[0]):
            self._fail(
                "scatter",
                f"{format_shape(places.shape)} indices for rows {format_shape(rows.shape)}",
            )
        data = self._room(rows.shape[1:], "scatter")
        given = known_integers(indices)
        known = frozenset(given)
        for index in known:
            self._check_index("scatter", index)
        if known & self.written or len(known) < len(given):
            self._fail("scatter", "it writes an index twice")
        column = reshape(self._not_negative(places), [places.shape[0], 1])
        made = apply("scatter_nd_update", data, column, rows)
        return replace(self, data=made, written=self.written | known)

    def split(self, value: Any, lengths: Any, name: str | None = None) -> Rows:
        """With parts of `value`, cut along its first axis, as its elements; equal parts only."""
        whole, sizes = self._strong(value, "split"), as_tensor(lengths)
        parts = [] if sizes._data is None else sizes._data.ravel().tolist()
        if sizes._data is None or len(set(parts)) > 1:
            raise UnsupportedError(
                f"{self._what('split')}: in functions and graphs all elements have one shape, so "
                "the lengths must be equal and known",
                hint="pad the parts to one length",
            )
        if not whole.ndim or not same(whole.shape[0], sum(parts)):
            self._fail("split", f"a value of shape {format_shape(whole.shape)} into {parts}")
        return self.unstack(reshape(whole, [len(parts), *parts[:1], *whole.shape[1:]]))

    def identity(self) -> Rows:
        """The same."""
        return self

    def close(self, name: str | None = None) -> None:
        """Nothing: it is a value, which ends with its last use."""

    def length(self) -> Tensor:
        """`size` as an int32 tensor."""
        size = (
            SymbolicDim.as_operand(self.size) if isinstance(self.size, SymbolicDim) else self.size
        )
        return cast(as_tensor(size), int32)

    # --------------------------------------------------------------------------------------- pieces
    def _tensor(self) -> Tensor:
        return as_tensor(self.data)

    def _what(self, operation: str) -> str:
        return f"TensorArray '{self.name}': {operation}"

    def _fail(self, operation: str, what: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{self._what(operation)}: {what}",
            hint=f"it has {self.size} elements, each of which is written once",
        )

    def _place(self, operation: str, index: Any) -> tuple[Tensor, int | None]:
        """One index, and its value if that is known. InvalidArgumentError where it is out of
        range."""
        place = as_indices(f"TensorArray.{operation}", index)
        if place.ndim:
            self._fail(operation, f"the index has shape {format_shape(place.shape)}, not []")
        known = known_integers(index)
        if not known:
            return self._not_negative(place), None
        self._check_index(operation, known[0])
        return place, known[0]

    def _not_negative(self, places: Tensor) -> Tensor:
        """Indices that only a run knows: a negative one is out of range, it does not count from the
        end."""
        if places.dtype.itemsize < 4:  # such integers may not reach the size
            places = cast(places, int32)
        return where(less(places, 0), cast(self.length(), places.dtype), places)

    def _check_index(self, operation: str, index: int) -> None:
        if index < 0 or (isinstance(self.size, int) and index >= self.size):
            self._fail(operation, f"index {index} is out of range")

    def _strong(self, value: Any, operation: str) -> Tensor:
        return element_tensor(value, self.dtype, self._what(operation))

    def _element(self, value: Any, operation: str) -> Tensor:
        element = self._strong(value, operation)
        self._check_shape(element.shape, operation)
        return element

    def _check_shape(self, shape: Shape, operation: str) -> None:
        wanted = self.element_shape
        if wanted is not None and not (len(wanted) == len(shape) and all(map(same, wanted, shape))):
            raise ShapeError(
                f"{self._what(operation)}: an element of shape {format_shape(shape)}, its elements "
                f"have shape {format_shape(wanted)}",
                hint="in functions and graphs all elements have one shape",
            )

    def _room(self, shape: Shape, operation: str) -> Tensor:
        self._check_shape(shape, operation)
        if self.data is not None:
            return self._tensor()
        return zeros((self.size, *shape), dtype=self.dtype)

    def _written(self, operation: str) -> Tensor:
        if self.data is None:
            self._fail(operation, "nothing has been written, and element_shape= was not given")
        return self._tensor()


def new_value(
    dtype: DType, size: Any, name: str, element_shape: Any, *, dynamic: bool, same_shape: bool
) -> Rows | Ragged:
    """An array for the trace that is current."""
    count = _size(size, name)
    declared = one_shape(element_shape, f"TensorArray '{name}': element_shape")
    if dynamic or not same_shape:
        made = Ragged(dtype, None if dynamic else count, name, declared, same_shape, count)
        return made if declared is None else made.started(len(declared))
    whole = Rows(dtype, count, name, declared=declared)
    if declared is None or None in declared:
        return whole
    return replace(whole, data=zeros((count, *declared), dtype=dtype))


def _size(size: Any, name: str) -> Dim:
    if isinstance(size, SymbolicDim):
        return size
    known = traced_sizes("tf1.TensorArray", size, "size")
    if known is not None and len(known) == 1 and not size.ndim:
        return known[0]
    t = as_tensor(0 if size is None else size)
    if t._data is None or t.ndim or not t.dtype.is_integer or int(t._data) < 0:
        raise InvalidArgumentError(
            f"TensorArray '{name}': size must be an integer >= 0, got {t.describe()}",
            hint="take a size of a tensor's shape, such as x.shape[0]",
            location=caller_location(),
        )
    return int(t._data)


P = ParamSpec("P")
R = TypeVar("R")


def _host_or_value(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation on the host: `Rows` and `Ragged` have one of that name, for arrays that
    are values. Errors get the user's line."""
    on_host = eager(function)
    name = function.__name__

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        array: Any = args[0]
        if array._held is None:
            return on_host(*args, **kwargs)
        try:
            made = getattr(array._held, name)(*args[1:], **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from None
        return _holding(made) if isinstance(made, Rows | Ragged) else made  # type: ignore[return-value]

    return operation


class TensorArray:
    """A list of tensors, written and read by index (TensorFlow 1's TensorArray).

    Each index is written once, and, with `clear_after_read` (the default), read once. dynamic_size:
    writing beyond the end makes it longer. infer_shape: the first element decides the shape of all.

    Made in a function that is traced, or in a graph, it is a value: one tensor whose rows are the
    elements, which loops carry and gradients pass through. `ta = ta.write(i, x)` gives the array
    with x in it and leaves `ta` as it was; indices that are written twice are found where they are
    known. Elements have one shape, and their number is fixed: with infer_shape=False or
    dynamic_size=True, neither, but then a write copies all that was
    written before, and loops that write have no gradient. Made outside, it lives on the host, and
    `write` gives the array itself; handed to a function or loop it becomes such a value.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     ta = wf.tf1.TensorArray(wf.int64, 3, infer_shape=False)
    ...     body = lambda i, ta: (i + 1, ta.write(i, wf.arange(i)))
    ...     ta = wf.while_loop(lambda i, ta: i < 3, body, (0, ta))[1]
    ...     print(session.run(ta.concat()))
    [0 0 1]
    """

    __slots__ = ("_array", "_held", "__weakref__")

    _array: TensorArrayCore
    _held: Rows | Ragged | None

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
                self._held = new_value(
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
        if self._held is None:
            return self._array.dynamic_size
        return isinstance(self._held, Ragged) and self._held.size is None

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
        return Tensor(np.asarray(self._array.size(), np.int32))

    @_host_or_value
    def write(self, index: Any, value: Any, name: str | None = None) -> Self:
        """Store a value at an index that has none. InvalidArgumentError if it has, was read, or is
        out of range; ShapeError or TypeRuleError if the value does not fit."""
        self._array.write(integer(index, self._what("write: index")), self._value(value, "write"))
        return self

    @_host_or_value
    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at an index; never written: zeros, if the shape is known."""
        return Tensor(contiguous(self._array.read(integer(index, self._what("read: index")))))

    @_host_or_value
    def stack(self, name: str | None = None) -> Tensor:
        """All elements, stacked along a new first axis. They count as read."""
        return self._stacked(self._array.read_many(), "stack")

    @_host_or_value
    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices` (i64[n]), stacked. They count as read."""
        return self._stacked(self._array.read_many(self._indices(indices, "gather")), "gather")

    @_host_or_value
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

    @_host_or_value
    def unstack(self, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at 0, 1, ...; as many as the size, where that is fixed."""
        rows = self._rows(value, "unstack")
        self._check_size(len(rows), "unstack")
        self._array.write_many(range(len(rows)), rows)
        return self

    @_host_or_value
    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Self:
        """Write the rows of `value` at `indices` (i64[n])."""
        rows = self._rows(value, "scatter")
        places = self._indices(indices, "scatter")
        if len(places) != len(rows):
            raise ShapeError(f"{self._what('scatter')}: {len(places)} indices for {len(rows)} rows")
        self._array.write_many(places, rows)
        return self

    @_host_or_value
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

    @_host_or_value
    def identity(self) -> Self:
        """The array itself."""
        return self

    @_host_or_value
    def close(self, name: str | None = None) -> None:
        """Free the elements; later calls raise FailedPreconditionError."""
        self._array.close()

    def _what(self, operation: str) -> str:
        return f"{self._array.describe()}: {operation}"

    def _value(self, value: Any, operation: str) -> Array:
        return value_of(value, self._array.dtype, lambda: self._what(operation))

    def _rows(self, value: Any, operation: str) -> list[Array]:
        given = operand(value, self._array.dtype, lambda: self._what(operation), by_rows=True)
        stack = given.numpy()
        if not stack.ndim:
            raise ShapeError(f"{self._what(operation)}: a value without axes has no rows")
        return rows(stack)

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


def _holding(held: Rows | Ragged) -> TensorArray:
    made = object.__new__(TensorArray)
    made._held = held
    return made


@dataclass(frozen=True)
class _Unwritten(pytree.Incomplete):
    """What tells of an array without elements whose shape is not known: how it was made."""

    dtype: DType
    size: Dim
    declared: Shape | None
    ragged: bool
    same_shape: bool
    least: Dim
    name: str

    def array(self) -> TensorArray:
        """The array."""
        if self.ragged:
            return _holding(self._ragged(self.declared))
        return _holding(Rows(self.dtype, self.size, self.name, declared=self.declared))

    def completed(self, like: pytree.Node, leaves: Sequence[Any]) -> TensorArray:
        """The array with room for elements like those of another one. InvalidArgumentError where
        that does not tell their shape."""
        if self.ragged and isinstance(like.meta, _Ragged):
            return _holding(self._ragged(like.meta.declared).started(len(like.meta.declared)))
        shape = leaves[0].shape[1:] if len(leaves) == 1 and leaves[0].rank else (None,)
        if None in shape:
            raise InvalidArgumentError(
                f"TensorArray '{self.name}' is carried by a loop, but the shape of its elements is "
                "not known before it runs",
                hint="give element_shape= when it is made; in a graph infer_shape=False if they "
                "differ",
                location=caller_location(),
            )
        room = zeros((self.size, *shape), dtype=self.dtype)
        return _holding(Rows(self.dtype, self.size, self.name, room))

    def _ragged(self, declared: Shape | None) -> Ragged:
        return Ragged(self.dtype, self.size, self.name, declared, self.same_shape, self.least)


@dataclass(frozen=True)
class _Ragged:
    """What tells of an array of elements whose shapes differ, besides its two tensors."""

    dtype: DType
    size: Dim
    declared: Shape


def _flatten(array: TensorArray) -> tuple[list[Any], Any]:
    """Its elements as one tensor, or two, which do not count as read; none where nothing was
    written and their shape is not known."""
    held = array._held
    if held is None:
        held = _as_value(array._array)
    if isinstance(held, Ragged):
        if held.flat is None or held.declared is None:
            kept = (held.declared, True, held.same_shape, held.least, held.name)
            return [], _Unwritten(held.dtype, held.size, *kept)
        return [held.flat, held.table], _Ragged(held.dtype, held.size, held.declared)
    if held.data is None:
        return [], _Unwritten(held.dtype, held.size, held.declared, False, True, 0, held.name)
    return [held.data], (held.dtype, held.size)


def _as_value(core: TensorArrayCore) -> Rows | Ragged:
    """The elements of an array of the host."""
    if not core.is_written and (core.shape is None or None in core.shape):
        if core.same_shape:
            return Rows(core.dtype, core.size(), core.name, declared=core.shape)
        made = Ragged(core.dtype, core.size(), core.name, core.shape)
        return made if core.shape is None else made.started(len(core.shape))
    arrays = core.peek()
    if core.same_shape or len({a.shape for a in arrays}) == 1:
        stacked = stack_arrays(arrays, core.dtype, core.shape)
        return Rows(core.dtype, len(stacked), core.name, Tensor(stacked))
    made = Ragged(core.dtype, len(arrays), core.name, core.shape)
    for i, a in enumerate(arrays):
        made = made.write(i, a)
    return made


def _unflatten(kind: Any, leaves: list[Any]) -> TensorArray:
    if isinstance(kind, _Unwritten):
        return kind.array()
    if isinstance(kind, _Ragged):
        name = "tensor_array"
        return _holding(Ragged(kind.dtype, kind.size, name, kind.declared, True, 0, *leaves))
    dtype, size = kind
    return _holding(Rows(dtype, size, "tensor_array", *leaves))


pytree.register_pytree(TensorArray, _flatten, _unflatten)


class Stack:
    """Tensors of one dtype, last in, first out; `max_size` of them at most (-1: no bound).

    element_shape: the shape of all, None for sizes that vary. Stacks with one `shared_name` are
    one. In a `wf.Graph` the methods add ops; without element_shape values have as many axes there
    as what is pushed first, or is on top when the graph is built.
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

    @eager_or_graph
    def push(self, value: Any, name: str | None = None) -> Tensor:
        """Put a value on top, and give it back. ResourceExhaustedError if the stack is full."""
        stack = self._stack
        given = operand(value, stack.dtype, lambda: f"{stack.describe()}: push")
        element_shapes(stack, [given.ndim])
        return host_op("host_stack_push", [given], (stack,))[0]

    @eager_or_graph
    def pop(self, name: str | None = None) -> Tensor:
        """Take the value on top. InvalidArgumentError if there is none."""
        shapes = element_shapes(self._stack)
        return host_op("host_stack_pop", (), (self._stack,), shapes=shapes)[0]

    @eager_or_graph
    def size(self, name: str | None = None) -> Tensor:
        """The number of values, an int32 tensor."""
        return host_op("host_stack_size", (), (self._stack,))[0]

    @eager_or_graph
    def close(self, name: str | None = None) -> Any:
        """Free the values; later calls raise FailedPreconditionError."""
        return host_effect("host_stack_close", (), (self._stack,), name=name)

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
