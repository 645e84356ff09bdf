"""Elements whose shapes differ, as a value: what a `TensorArray` made with infer_shape=False or
dynamic_size=True is in graphs.

`flat` has the elements one after the other, in the order in which they were written; row i of
`table` says where element i begins in it and what shape it has. Both are tensors whose sizes depend
on values, so loops carry them, and gradients pass through (though not through a loop that writes: a
loop variable whose size changes has none). A write copies what was written before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.extend.debug import python_effect
from weft.frontend.ops.creation import arange, zeros
from weft.frontend.ops.dispatch import apply, apply_dynamic, fresh_sizes, sizes_from
from weft.frontend.ops.elementwise import add, equal, greater_equal, less, maximum, multiply, where
from weft.frontend.ops.indexing import as_indices
from weft.frontend.ops.manipulation import concat, flatten, reshape, stack
from weft.frontend.ops.promotion import cast, check_size, expand
from weft.frontend.ops.reduction import all as all_of
from weft.frontend.ops.reduction import cumulative_sum
from weft.frontend.ops.reduction import sum as sum_of
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, product, same
from weft.ir.dtypes import DType, int32, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError


def known_integers(x: Any) -> list[int]:
    """The integers in `x` that are known while the graph is built; none of others."""
    data = as_tensor(x)._data
    return [] if data is None else [int(i) for i in data.ravel()]


def element_tensor(value: Any, dtype: DType, what: str) -> Tensor:
    """`value` as a tensor of the elements' dtype. TypeRuleError for a tensor of another one."""
    t = as_tensor(value)
    if t.weak or (t._data is not None and not isinstance(value, (Tensor, np.ndarray))):
        return cast(t, dtype)
    if t.dtype is not dtype:
        raise TypeRuleError(
            f"{what}: its elements are {dtype.name}, got {t.describe()}",
            hint=f"convert it with wf.astype(x, wf.{dtype.name})",
        )
    return t


@dataclass(frozen=True, eq=False)
class Ragged:
    """`size` elements (None: as many as have been written up to) of one dtype and one number of
    axes. flat, table: None before the first write where that number is not known. declared: the
    sizes that all have, None for others; None as a whole where not even the number of axes is
    known. same_shape: then all have the sizes of the first that is written. least: how many there
    are at first where `size` is None."""

    dtype: DType
    size: Dim
    name: str
    declared: Shape | None = None
    same_shape: bool = False
    least: Dim = 0
    flat: Any = None
    table: Any = None
    written: frozenset[int] = frozenset()

    @property
    def element_shape(self) -> Shape | None:
        """The shape of an element, as far as all have the same."""
        return self.declared

    def started(self, rank: int) -> Ragged:
        """With room for elements of so many axes. Those that are not written are zeros where their
        shape is known."""
        if self.flat is not None:
            return self
        declared = (None,) * rank if self.declared is None else self.declared
        room = product(declared)
        known = None not in declared and isinstance(room, int)
        row = [0, *declared] if known else [-1] * (rank + 1)
        count = self.least if self.size is None else self.size
        table = expand(as_tensor(np.array([row], np.int64)), (count, rank + 1))
        flat = zeros((room if known else 0,), dtype=self.dtype)
        return replace(self, declared=declared)._holding(flat, table)

    def write(self, index: Any, value: Any, name: str | None = None) -> Ragged:
        """With `value` at `index`."""
        element = element_tensor(value, self.dtype, self._what("write"))
        start, element = self._fitting(element, "write")
        place, known = start._place("write", index)
        if known in start.written:
            start._fail("write", f"index {known} has been written already")
        row = stack([start._end(), *_sizes(element)])
        table = start._reaching(place)
        column = reshape(place, (1, 1))
        table = apply("scatter_nd_update", table, column, reshape(row, (1, -1)))
        made = start._holding(concat([as_tensor(start.flat), flatten(element)]), table)
        more = start.written if known is None else start.written | {known}
        return replace(made, written=more)

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at `index`."""
        place, _ = self._place("read", index)
        row = apply("gather_nd", self._table("read"), reshape(place, (1,)))
        return self._elements(reshape(row, (1, -1)), "read")[0]

    def stack(self, name: str | None = None) -> Tensor:
        """All elements, which must have one shape, [size, ...]."""
        return self._elements(self._table("stack"), "stack")

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """The elements at `indices`, which must have one shape, stacked."""
        places = self._not_negative(as_indices("TensorArray.gather", indices))
        return self._elements(apply("take", self._table("gather"), places, axis=0), "gather")

    def concat(self, name: str | None = None) -> Tensor:
        """All elements, joined along their first axes, which may differ."""
        table = self._table("concat")
        if table.shape[1] == 1:
            self._fail("concat", "its elements have no axes to join")
        if None in (self.declared or ())[:1]:
            written = all_of(greater_equal(table[:, 1], 0))
            table = self._checked(table, written, "concat: an element (-1) was never written")
        first = _first(table)
        rest = self._dims(first, "concat", skip=1) if table.shape[1] != 2 else ()
        if rest:
            alike = all_of(equal(table[:, 2:], first[None, 2:]))
            table = self._checked(
                table, alike, "concat: sizes of its elements but the first differ"
            )
        starts, lengths = table[:, 0], table[:, 1]
        (number,) = apply_dynamic("repeat_index", [lengths], what="concat")
        before = apply("take", cumulative_sum(lengths) - lengths, number, axis=0)
        each = _value(product(rest))
        place = multiply(arange(number.shape[0]) - before, each)
        first = add(apply("take", starts, number, axis=0), place)
        return reshape(self._taken(first, product(rest)), (number.shape[0], *rest))

    def unstack(self, value: Any, name: str | None = None) -> Ragged:
        """With the rows of `value` as its elements."""
        rows = element_tensor(value, self.dtype, self._what("unstack"))
        return self._cut(rows, None, "unstack")

    def split(self, value: Any, lengths: Any, name: str | None = None) -> Ragged:
        """With parts of `value`, cut along its first axis, as its elements."""
        whole = element_tensor(value, self.dtype, self._what("split"))
        sizes = cast(as_indices("TensorArray.split", lengths), int64)
        if sizes.ndim != 1:
            self._fail("split", f"the lengths have the shape {format_shape(sizes.shape)}")
        return self._cut(whole, sizes, "split")

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> Ragged:
        """With the rows of `value` at `indices`."""
        places = as_indices("TensorArray.scatter", indices)
        rows = element_tensor(value, self.dtype, self._what("scatter"))
        if places.ndim != 1 or not rows.ndim or not same(places.shape[0], rows.shape[0]):
            self._fail(
                "scatter",
                f"{format_shape(places.shape)} indices for rows {format_shape(rows.shape)}",
            )
        start, rows = self._fitting(rows, "scatter", along=1)
        given = known_integers(indices)
        known = frozenset(given)
        if any(i < 0 for i in known):
            start._fail("scatter", f"index {min(known)} is out of range")
        if known & start.written or len(known) < len(given):
            start._fail("scatter", "it writes an index twice")
        places = cast(start._not_negative(places), int64)
        table = start._reaching(apply("max", places, axes=(0,), keepdims=False))
        column = reshape(places, (places.shape[0], 1))
        table = apply("scatter_nd_update", table, column, start._rows_of(rows, None))
        made = start._holding(concat([as_tensor(start.flat), flatten(rows)]), table)
        return replace(made, written=start.written | known)

    def identity(self) -> Ragged:
        """The same."""
        return self

    def close(self, name: str | None = None) -> None:
        """Nothing: it is a value, which ends with its last use."""

    def length(self) -> Tensor:
        """The number of elements as an int32 tensor."""
        size = self.size
        if size is None:
            size = self.least if self.table is None else as_tensor(self.table).shape[0]
        return cast(_value(size), int32)

    # --------------------------------------------------------------------------------------- pieces
    def _what(self, operation: str) -> str:
        return f"TensorArray '{self.name}': {operation}"

    def _fail(self, operation: str, what: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{self._what(operation)}: {what}",
            hint="each element is written once, before it is read",
        )

    def _table(self, operation: str) -> Tensor:
        if self.table is None:
            self._fail(operation, "nothing has been written, and element_shape= was not given")
        return as_tensor(self.table)

    def _holding(self, flat: Tensor, table: Tensor) -> Ragged:
        """With these tensors, the sizes of which that change have names of their own."""
        if self.size is None:
            table = _opened(table, "elements")
        return replace(self, flat=_opened(flat, "flat"), table=table)

    def _end(self) -> Tensor:
        return _value(as_tensor(self.flat).shape[0])

    def _place(self, operation: str, index: Any) -> tuple[Tensor, int | None]:
        """One index, and its value if that is known."""
        place = as_indices(f"TensorArray.{operation}", index)
        if place.ndim:
            self._fail(operation, f"the index has shape {format_shape(place.shape)}, not []")
        given = as_tensor(index)._data
        known = None if given is None else int(given)
        if known is not None and (known < 0 or (isinstance(self.size, int) and known >= self.size)):
            self._fail(operation, f"index {known} is out of range")
        return cast(self._not_negative(place), int64), known

    def _not_negative(self, places: Tensor) -> Tensor:
        """A negative index is out of range, it does not count from the end."""
        wide = cast(places, int64)
        return where(less(wide, 0), np.iinfo(np.int64).max, wide)

    def _reaching(self, place: Tensor) -> Tensor:
        """The table, made longer so that it has a row at `place` where the array is dynamic."""
        table = as_tensor(self.table)
        if self.size is not None:
            return table
        wanted = where(less(place, 2**40), add(place, 1), 0)  # beyond: out of range
        more = maximum(wanted - _value(table.shape[0]), 0)
        (count,) = _integers(more, "write: the number of elements")
        declared = self.declared or ()
        known = None not in declared
        row = np.array([0, *declared] if known else [-1] * (len(declared) + 1), np.int64)
        return concat([table, expand(as_tensor(row[None]), (count, len(row)))])

    def _fitting(self, t: Tensor, operation: str, along: int = 0) -> tuple[Ragged, Tensor]:
        """The array with room for elements like `t`, whose first `along` axes count elements; and
        `t` with the sizes that are declared."""
        shape = t.shape[along:]
        start = self
        if self.declared is None and self.same_shape:
            start = replace(self, declared=tuple(d if isinstance(d, int) else None for d in shape))
        start = start.started(len(shape))
        wanted = start.declared
        assert wanted is not None
        if len(shape) != len(wanted) or not all(map(same, shape, wanted)):
            raise ShapeError(
                f"{self._what(operation)}: an element of shape {format_shape(shape)}, its elements "
                f"have shape {format_shape(wanted)}",
                hint="element_shape= says the sizes that all elements have, None for others",
            )
        pairs = zip(shape, wanted, strict=True)
        checked = (*t.shape[:along], *(n if w is None else w for n, w in pairs))
        if checked != t.shape:
            t = apply("ensure_shape", t, shape=checked)
        return start, t

    def _rows_of(self, t: Tensor, lengths: Tensor | None) -> Tensor:
        """The rows of the table for elements that lie one after the other in `t`, which comes to
        the end: its rows, or parts of these lengths."""
        element, each = _sizes(t)[1:], product(t.shape[1:])
        if lengths is None:
            count, before, own = t.shape[0], arange(t.shape[0]), element
        else:
            count, before = lengths.shape[0], cumulative_sum(lengths) - lengths
            own = [lengths, *element]
        columns = [add(multiply(before, _value(each)), self._end()), *own]
        return stack([expand(reshape(c, (-1,)) if c.ndim else reshape(c, (1,)), (count,))
                      for c in columns], axis=1)  # fmt: skip

    def _cut(self, t: Tensor, lengths: Tensor | None, operation: str) -> Ragged:
        if not t.ndim:
            self._fail(operation, "a value without axes has no rows")
        if self.written:
            self._fail(operation, f"the indices {sorted(self.written)} have been written already")
        count = t.shape[0] if lengths is None else lengths.shape[0]
        if self.size is not None and not same(self.size, count):
            self._fail(operation, f"there are {count} elements for {self.size} indices")
        if lengths is None:
            start, t = self._fitting(t, operation, along=1)
        else:
            start, _ = self._fitting(t, operation)
            whole = equal(sum_of(lengths), _value(t.shape[0]))
            fine = all_of(concat([greater_equal(lengths, 0), reshape(whole, (1,))]))
            lengths = start._checked(lengths, fine, f"{operation}: the lengths do not add up")
        table = start._rows_of(t, lengths)
        if start.size is not None and table.shape[0] != start.size:
            table = expand(table, (start.size, table.shape[1]))
        made = start._holding(concat([as_tensor(start.flat), flatten(t)]), table)
        return replace(made, written=frozenset(range(count if isinstance(count, int) else 0)))

    def _dims(self, row: Tensor, operation: str, skip: int = 0) -> Shape:
        """The sizes of an element by its row of the table, but for the first `skip`."""
        declared = self.declared or ()
        if None not in declared[skip:]:
            return declared[skip:]
        found = _integers(
            row[1 + skip :], f"{operation}: a size of an element (-1: it was never written)"
        )
        pairs = zip(found, declared[skip:], strict=True)
        return tuple(n if d is None else d for n, d in pairs)

    def _elements(self, rows: Tensor, operation: str) -> Tensor:
        """Elements of one shape, by their rows of the table, stacked."""
        dims = self.declared
        assert dims is not None
        if None in dims:
            dims = self._dims(_first(rows), operation)
        if None in (self.declared or ()) and rows.shape[0] != 1:
            alike = all_of(equal(rows[:, 1:], _first(rows)[None, 1:]))
            rows = self._checked(
                rows, alike, f"{operation}: its elements have different shapes (-1: never written)"
            )
        return reshape(self._taken(rows[:, 0], product(dims)), (rows.shape[0], *dims))

    def _taken(self, starts: Tensor, count: Dim) -> Tensor:
        """So many numbers from each of the places on, [places, count]."""
        offsets = reshape(arange(count), (1, -1))
        index = add(reshape(starts, (-1, 1)), offsets)
        return apply("take", as_tensor(self.flat), index, axis=0)

    def _checked(self, t: Tensor, fine: Tensor, what: str) -> Tensor:
        """`t`, after a check that is done when a step runs."""
        done = python_effect("assert", [fine, t], message=f"{self._what(what)} ", summarize=12)
        if done.trace is None or done.value is None:
            return t
        (value,) = done.trace.emit("identity", [done.trace.lift(t)], control=[done.value])
        return done.trace.tensor(value)


def _first(rows: Tensor) -> Tensor:
    """The first row of the table if all say the same; sizes of 0 where there are none."""
    count = rows.shape[0]
    if isinstance(count, int) and count:
        return rows[0]
    end = where(equal(_value(count), 0), 0, -1)
    more = expand(reshape(cast(end, int64), (1, 1)), (1, rows.shape[1]))
    return apply("max", concat([rows, more]), axes=(0,), keepdims=False)


def _value(size: Dim) -> Tensor:
    """A size as an int64 tensor."""
    return cast(SymbolicDim.as_operand(size) if isinstance(size, SymbolicDim) else size, int64)


def _sizes(t: Tensor) -> list[Tensor]:
    return [_value(d) for d in t.shape]


def _integers(t: Tensor, what: str) -> list[Dim]:
    """The integers in a tensor as sizes."""
    if t._data is None:
        return sizes_from("tf1.TensorArray", t, what)
    given: Sequence[int] = t._data.ravel().tolist()
    return [check_size("tf1.TensorArray", n, what) for n in given]


def _opened(t: Tensor, name: str) -> Tensor:
    """`t` with a name of its own for its first size, which may be another in the next iteration."""
    trace = current_trace()
    if trace is None:
        return t
    names = fresh_sizes(trace, name, 1)
    return apply("ensure_shape", t, shape=(None, *t.shape[1:]), sizes=names)
