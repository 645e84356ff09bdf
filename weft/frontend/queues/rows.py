"""What a `TensorArray` is inside functions and graphs: one tensor, its elements the rows.

So it is a value like any other: a carry of loops, differentiable to any order, updated in place
where the memory planner sees that nobody needs the old one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from weft.frontend.ops.arithmetic import less, where
from weft.frontend.ops.creation import zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.index import as_indices
from weft.frontend.ops.promotion import cast
from weft.frontend.ops.shape import reshape
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, same
from weft.ir.dtypes import DType, int32
from weft.ir.errors import (
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location

P = ParamSpec("P")
R = TypeVar("R")


def _located(function: Callable[P, R]) -> Callable[P, R]:
    """Errors get the user's line."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return operation


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

    @_located
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

    @_located
    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at `index`; zeros where none was written."""
        place, _ = self._place("read", index)
        return apply("gather_nd", self._written("read"), reshape(place, [1]))

    @_located
    def stack(self, name: str | None = None) -> Tensor:
        """All elements, [size, ...]."""
        return self._written("stack")

    @_located
    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices`, stacked."""
        places = self._not_negative(as_indices("TensorArray.gather", indices))
        return apply("take", self._written("gather"), places, axis=0)

    @_located
    def concat(self, name: str | None = None) -> Tensor:
        """All elements, joined along their first axes."""
        data = self._written("concat")
        if data.ndim < 2:
            self._fail("concat", "its elements have no axes to join")
        return reshape(data, [-1, *data.shape[2:]])

    @_located
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

    @_located
    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Rows:
        """With the rows of `value` at `indices`."""
        places, rows = as_indices("TensorArray.scatter", indices), self._strong(value, "scatter")
        if places.ndim != 1 or not rows.ndim or not same(places.shape[0], rows.shape[0]):
            self._fail(
                "scatter",
                f"{format_shape(places.shape)} indices for rows {format_shape(rows.shape)}",
            )
        data = self._room(rows.shape[1:], "scatter")
        given = _known(indices)
        known = frozenset(given)
        for index in known:
            self._check_index("scatter", index)
        if known & self.written or len(known) < len(given):
            self._fail("scatter", "it writes an index twice")
        column = reshape(self._not_negative(places), [places.shape[0], 1])
        made = apply("scatter_nd_update", data, column, rows)
        return replace(self, data=made, written=self.written | known)

    @_located
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
        known = _known(index)
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
        t = as_tensor(value)
        if t.weak or (t._data is not None and not isinstance(value, (Tensor, np.ndarray))):
            return cast(t, self.dtype)
        if t.dtype is not self.dtype:
            raise TypeRuleError(
                f"{self._what(operation)}: its elements are {self.dtype.name}, got {t.describe()}",
                hint=f"convert it with wf.astype(x, wf.{self.dtype.name})",
            )
        return t

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


def _known(indices: Any) -> list[int]:
    """The values of indices that are known while the graph is built; none of others."""
    data = as_tensor(indices)._data
    return [] if data is None else [int(i) for i in data.ravel()]


def new_rows(
    dtype: DType, size: Any, name: str, element_shape: Any, *, dynamic: bool, same_shape: bool
) -> Rows:
    """An array for the trace that is current. UnsupportedError for what only the host has."""
    for given, what in ((dynamic, "dynamic_size=True"), (not same_shape, "infer_shape=False")):
        if given:
            raise UnsupportedError(
                f"TensorArray '{name}': {what} is for arrays outside of functions and graphs",
                hint="make it as large as it may get, with elements of one shape",
                location=caller_location(),
            )
    if not isinstance(size, SymbolicDim):
        size = _known_size(size, name)
    declared = None if element_shape is None else tuple(element_shape)
    made = Rows(dtype, size, name, declared=declared)
    if declared is None or None in declared:
        return made
    return replace(made, data=zeros((size, *declared), dtype=dtype))


def _known_size(size: Any, name: str) -> int:
    t = as_tensor(0 if size is None else size)
    if t._data is None or t.ndim or not t.dtype.is_integer or int(t._data) < 0:
        raise InvalidArgumentError(
            f"TensorArray '{name}': size must be an integer >= 0 that is known while the graph is "
            f"built, got {t.describe()}",
            hint="take a size of a tensor's shape, such as x.shape[0]",
            location=caller_location(),
        )
    return int(t._data)
