"""What stages hand on: items, called once for their element. So what is skipped is never made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.pytree import Structure, flatten, unflatten
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import Locations
from weft.runtime.files.example import bytes_array

Array = np.ndarray[Any, Any]
Item = Callable[[], Any]


class Items(ABC):
    """An open stage: an iterator of items. It may be asked by one thread at a time."""

    @abstractmethod
    def __next__(self) -> Item: ...

    def skip(self, n: int) -> int:
        """Pass over n items, or as many as there are; how many. Here by pulling them, which does
        not call them."""
        for done in range(n):
            try:
                next(self)
            except StopIteration:
                return done
        return n


class Value:
    """An element that is there."""

    __slots__ = ("element",)

    def __init__(self, element: Any) -> None:
        self.element = element

    def __call__(self) -> Any:
        return self.element


class Table:
    """Arrays with one first axis; the rows are elements."""

    __slots__ = ("leaves", "structure")

    def __init__(self, leaves: Sequence[Array], structure: Structure) -> None:
        self.leaves = leaves
        self.structure = structure

    def take(self, rows: int | slice | Array) -> Any:
        """The element of these rows: views, but for an array of row numbers."""
        picked = [a[rows, ...] if isinstance(rows, int) else a[rows] for a in self.leaves]
        return unflatten(self.structure, picked)


class Row:
    """A row of a table."""

    __slots__ = ("index", "table")

    def __init__(self, table: Table, index: int) -> None:
        self.table = table
        self.index = index

    def __call__(self) -> Any:
        return self.table.take(self.index)


class Function:
    """A function given to `map`, and where."""

    __slots__ = ("call", "location", "name")

    def __init__(self, call: Callable[..., Any], location: Locations) -> None:
        self.call = call
        self.location = location
        self.name = getattr(call, "__qualname__", type(call).__name__)

    def __call__(self, element: Any) -> Any:
        try:
            return self.call(*element) if type(element) is tuple else self.call(element)
        except BaseException as error:
            place = f", {self.location[0].describe()}" if self.location else ""
            error.add_note(f"in map({self.name}) of a wf.data.Dataset{place}")
            if isinstance(error, StopIteration):  # it would end the loop, and nobody would know
                raise RuntimeError(f"map({self.name}) raised StopIteration") from error
            raise


class Mapped:
    """A function of another item."""

    __slots__ = ("function", "item")

    def __init__(self, function: Function, item: Item) -> None:
        self.function = function
        self.item = item

    def __call__(self) -> Any:
        return self.function(self.item())


class Batch:
    """Several items, each leaf stacked along a new first axis. Rows of one table that follow each
    other are a view of it; others are gathered at once."""

    __slots__ = ("items", "location")

    def __init__(self, items: list[Item], location: Locations) -> None:
        self.items = items
        self.location = location

    def __call__(self) -> Any:
        items = self.items
        first = items[0]
        if isinstance(first, Row):
            table = first.table
            rows = [i.index for i in items if isinstance(i, Row) and i.table is table]
            if len(rows) == len(items):
                return _rows(table, rows)
        return self._stacked([item() for item in items])

    def _stacked(self, elements: list[Any]) -> Any:
        leaves, structure = flatten(elements[0])
        columns = [leaves]
        for i, element in enumerate(elements[1:], 1):
            leaves, other = flatten(element)
            if other != structure:
                raise InvalidArgumentError(
                    f"batch: element {i} of a batch has another structure than the first: "
                    f"{element!r:.80}, {elements[0]!r:.80}",
                    hint="map(fn) may bring them into one form",
                ).at(self.location)
            columns.append(leaves)
        try:
            return unflatten(structure, [_stack(c) for c in zip(*columns, strict=True)])
        except WeftError as error:
            raise error.at(self.location) from None


def _rows(table: Table, rows: list[int]) -> Any:
    low, count = rows[0], len(rows)
    if rows == list(range(low, low + count)):
        return table.take(slice(low, low + count))
    return table.take(np.array(rows))


def _stack(leaves: Sequence[Any]) -> Array:
    if isinstance(leaves[0], (bytes, str)):
        return bytes_array([v.encode() if isinstance(v, str) else v for v in leaves])
    arrays = [np.asarray(leaf) for leaf in leaves]
    kinds = dict.fromkeys((a.dtype, a.shape) for a in arrays)
    if len(kinds) > 1:
        shown = ", ".join(f"{d}{list(s)}" for d, s in list(kinds)[:4])
        raise InvalidArgumentError(
            f"batch: the arrays of a batch must have one dtype and shape, these are {shown}",
            hint="map(fn) may convert, pad or cut them; a wf.PaddingFIFOQueue pads",
        )
    return np.stack(arrays)
