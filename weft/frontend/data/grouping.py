"""Stages that make other groups of elements: padded batches, batches of one range of lengths,
windows, and the rows of batches again."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.pytree import Structure, unflatten
from weft.frontend.data.items import (
    Array,
    Batch,
    Function,
    Gap,
    Item,
    Items,
    Row,
    Run,
    Table,
    Value,
    in_columns,
    in_rows,
    passed_over,
)
from weft.frontend.data.stages import Stage
from weft.ir.dataclass import dataclass
from weft.ir.dims import format_shape
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import Locations
from weft.runtime.files.decoding import bytes_array


# ------------------------------------------------------------------------------------- padding
@dataclass(frozen=True)
class Padding:
    """How the arrays of a batch are filled up. shapes, values: trees as elements are, or one for
    all; None, in a shape too: what the batch needs, and 0 (strings: no bytes)."""

    stage: str
    shapes: Any
    values: Any
    location: Locations

    def error(self, what: str, hint: str | None = None) -> InvalidArgumentError:
        """An error of the stage, at its line."""
        return InvalidArgumentError(f"{self.stage}: {what}", hint=hint, location=self.location)

    def batch(self, elements: Sequence[Any], first: int | None = None) -> Any:
        """The elements as one. first: the size of first axes whose size is open otherwise."""
        structure, columns = in_columns(elements, self.stage, self.location)
        shapes = self._spread(structure, self.shapes, "padded_shapes", _is_shape)
        values = self._spread(structure, self.values, "padding_values", _is_value)
        leaves = [
            self._padded([_plain(a) for a in column], shape, value, first)
            for column, shape, value in zip(columns, shapes, values, strict=True)
        ]
        return unflatten(structure, leaves)

    def _spread(
        self, structure: Structure, given: Any, what: str, is_one: Callable[[Any], bool]
    ) -> list[Any]:
        """What is given for each leaf of an element."""
        if structure is None:  # a leaf
            if not is_one(given):
                raise self.error(f"{what}={given!r:.60} has another structure than the elements")
            return [given]
        children = structure.children
        if what == "padding_values" and is_one(given):
            parts: list[Any] = [given] * len(children)
        elif given is None:
            parts = [None] * len(children)
        elif isinstance(given, dict) and isinstance(structure.meta, tuple):
            if set(given) != set(structure.meta):
                raise self.error(
                    f"{what} has the keys {sorted(map(str, given))}, the elements have "
                    f"{sorted(map(str, structure.meta))}"
                )
            parts = [given[k] for k in structure.meta]
        elif isinstance(given, (list, tuple)) and not isinstance(structure.meta, tuple):
            parts = list(given)
        else:
            parts = []
        if len(parts) != len(children):
            raise self.error(f"{what}={given!r:.60} has another structure than the elements")
        pairs = zip(children, parts, strict=True)
        return [leaf for c, g in pairs for leaf in self._spread(c, g, what, is_one)]

    def _padded(self, arrays: list[Array], shape: Any, value: Any, first: int | None) -> Array:
        kinds = dict.fromkeys((a.dtype, a.ndim) for a in arrays)
        if len(kinds) > 1:
            shown = ", ".join(f"{d} with {n} axes" for d, n in list(kinds)[:4])
            raise self.error(
                f"the arrays of a batch must have one dtype and number of axes, these are {shown}",
                "map(fn) may convert them",
            )
        ((dtype, _),) = kinds
        out = np.full(
            (len(arrays), *self._target(arrays, shape, first)), self._filler(dtype, value), dtype
        )
        for i, a in enumerate(arrays):
            place: tuple[int | slice, ...] = (i, *(slice(n) for n in a.shape))
            out[place] = a[()]
        return out

    def _target(self, arrays: list[Array], shape: Any, first: int | None) -> list[int]:
        """The shape to which they are filled up."""
        dtype, rank = arrays[0].dtype, arrays[0].ndim
        if shape is None:
            wanted = [first if i == 0 else None for i in range(rank)]
        else:
            wanted = [first if d is None or d < 0 else int(d) for d in shape]
        if len(wanted) != rank:
            raise self.error(
                f"padded_shapes has {list(shape)} for arrays with {rank} axes, such as "
                f"{dtype}{list(arrays[0].shape)}"
            )
        sizes = [max(a.shape[i] for a in arrays) for i in range(rank)]
        target = [n if d is None else d for d, n in zip(wanted, sizes, strict=True)]
        for a in arrays:
            if any(n > d for n, d in zip(a.shape, target, strict=True)):
                raise self.error(
                    f"{dtype}{list(a.shape)} is larger than {format_shape(tuple(target))}, to "
                    "which it should be filled up",
                    "filter(fn) leaves out longer ones, map(fn) may cut them",
                )
        return target

    def _filler(self, dtype: np.dtype[Any], value: Any) -> Any:
        if value is None:
            return b"" if dtype.kind == "O" else np.zeros((), dtype)[()]
        if dtype.kind == "O":
            made: Any = value.encode() if isinstance(value, str) else value
            fits = isinstance(made, bytes)
        elif np.iscomplexobj(value) and dtype.kind != "c":
            made, fits = value, False
        else:
            try:
                with np.errstate(all="ignore"):
                    made = np.asarray(value).astype(dtype)
                    # an integer must be the same; floats round
                    fits = made.shape == () and (dtype.kind not in "iub" or bool(made == value))
            except (TypeError, ValueError):
                fits = False
        if not fits:
            raise self.error(f"padding_values has {value!r:.60} for arrays of {dtype}")
        return made


def _is_shape(given: Any) -> bool:
    return given is None or (
        isinstance(given, (list, tuple))
        and all(d is None or isinstance(d, (int, np.integer)) for d in given)
    )


def _is_value(given: Any) -> bool:
    return given is None or not isinstance(given, (list, tuple, dict))


def _plain(leaf: Any) -> Array:
    if isinstance(leaf, (bytes, str)):
        return bytes_array([leaf.encode() if isinstance(leaf, str) else leaf]).reshape(())
    return np.asarray(leaf)


class Padded:
    """Several items as one, filled up."""

    __slots__ = ("first", "items", "padding")

    def __init__(self, items: list[Item], padding: Padding, first: int | None = None) -> None:
        self.items, self.padding, self.first = items, padding, first

    def __call__(self) -> Any:
        return self.padding.batch([item() for item in self.items], self.first)


# ------------------------------------------------------------------------------------- buckets
@dataclass(frozen=True)
class Buckets(Stage):
    """Batches of elements whose lengths lie between the same two boundaries."""

    length: Function
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    padding: Padding | None
    to_boundary: bool
    drop_remainder: bool

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        return _Bucketed(self, self.up.open(run, epoch))


class _Bucketed(Items):
    def __init__(self, stage: Buckets, up: Items) -> None:
        self._stage, self._up = stage, up
        self._held: dict[int, list[Item]] = {}
        self._ended = False

    def __next__(self) -> Item:
        while not self._ended:
            try:
                element = next(self._up)()
            except StopIteration:
                self._ended = True
                if self._stage.drop_remainder:
                    self._held.clear()
                break
            bucket = bisect_right(self._stage.boundaries, self._length(element))
            held = self._held.setdefault(bucket, [])
            held.append(Value(element))
            if len(held) == self._stage.sizes[bucket]:
                return self._batch(bucket)
        if not self._held:
            raise StopIteration
        return self._batch(min(self._held))

    def _length(self, element: Any) -> int:
        length = np.asarray(given := self._stage.length(element))
        if length.shape or length.dtype.kind not in "iu":
            raise self._stage.length.refused(
                f"gave {given!r:.60}, no length", "it gives an integer"
            )
        return int(length)

    def _batch(self, bucket: int) -> Item:
        items, stage = self._held.pop(bucket), self._stage
        if stage.padding is None:
            return Batch(items, stage.length.location)
        first = None
        if stage.to_boundary:
            if bucket == len(stage.boundaries):
                raise stage.padding.error(
                    f"pad_to_bucket_boundary=True, and an element of at least "
                    f"{stage.boundaries[-1]}, the last boundary",
                    "filter(fn) leaves out longer ones, or another boundary makes room",
                )
            first = stage.boundaries[bucket] - 1
        return Padded(items, stage.padding, first)


# ------------------------------------------------------------------------------ windows and rows
class _Once:
    """An item that several windows have: its element is made once."""

    __slots__ = ("element", "item")

    def __init__(self, item: Item) -> None:
        self.item: Item | None = item
        self.element: Any = None

    def __call__(self) -> Any:
        if self.item is not None:
            self.element = self.item()
            self.item = None
        return self.element


@dataclass(frozen=True)
class Window(Stage):
    """Datasets of `size` elements each, `stride` apart; each begins `shift` after the one before.
    make: a dataset of some elements."""

    size: int
    shift: int
    stride: int
    drop_remainder: bool
    make: Callable[[list[Any]], Any]
    location: Locations

    def cardinality(self) -> int | None:
        n = self.up.cardinality()
        if n is None:
            return None
        last = (self.size - 1) * self.stride if self.drop_remainder else 0
        return max(0, -(-(n - last) // self.shift))

    def open(self, run: Run, epoch: int) -> Items:
        return _Windows(self, self.up.open(run, epoch))


class _Windows(Items):
    def __init__(self, stage: Window, up: Items) -> None:
        self._stage, self._up = stage, up
        self._held: deque[_Once] = deque()
        self._before = Gap(up, 0)  # elements that lie between two windows
        self._ended = False

    def __next__(self) -> Item:
        stage, held = self._stage, self._held
        span = (stage.size - 1) * stage.stride + 1
        self._before.close()
        while not self._ended and len(held) < span:
            try:
                held.append(_Once(next(self._up)))
            except StopIteration:
                self._ended = True
        if not held or (stage.drop_remainder and len(held) < span):
            held.clear()
            raise StopIteration
        items: list[Item] = [held[i] for i in range(0, min(span, len(held)), stage.stride)]
        self._before.left = 0 if self._ended else max(stage.shift - len(held), 0)
        for _ in range(min(stage.shift, len(held))):
            held.popleft()
        return lambda: self._window(items)

    def _window(self, items: list[Item]) -> Any:
        structure, columns = in_columns([i() for i in items], "window", self._stage.location)
        return unflatten(structure, [self._stage.make(list(c)) for c in columns])


@dataclass(frozen=True)
class Unbatch(Stage):
    """The rows of each element."""

    location: Locations

    def cardinality(self) -> int | None:
        return 0 if self.up.cardinality() == 0 else None

    def open(self, run: Run, epoch: int) -> Items:
        return _Unbatched(self, self.up.open(run, epoch))


class _Unbatched(Items):
    def __init__(self, stage: Unbatch, up: Items) -> None:
        self._stage, self._up = stage, up
        self._table: Table | None = None
        self._at = self._count = 0

    def _more(self) -> None:
        """Look for the next row. StopIteration at the end."""
        while self._at == self._count:
            element = next(self._up)()
            self._table, self._count = in_rows(element, "unbatch", self._stage.location)
            self._at = 0

    def __next__(self) -> Item:
        self._more()
        assert self._table is not None
        row = Row(self._table, self._at)
        self._at += 1
        return row

    def skip(self, n: int) -> int:
        def some(left: int) -> int:
            self._more()
            done = min(left, self._count - self._at)
            self._at += done
            return done

        return passed_over(n, some)
