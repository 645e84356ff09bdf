"""Accumulators: gradients of several workers are added up until enough are there, and their mean is
taken (the paper's synchronous scheme, section 4.4; TensorFlow 1's ConditionalAccumulator).

A gradient carries the step that its worker computed it for; one from before the accumulator's
global step is stale and dropped. Each take resets the sum and moves the global step on by one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, as_dtype, int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.spec import AttrValue
from weft.runtime.resources.attempts import Attempt, CancelToken, Done, Resource
from weft.runtime.resources.components import (
    Array,
    Components,
    ComponentShape,
    check_saved,
    fits,
    reading_state,
    saved_integer,
)

_log = logging.getLogger("weft.resources")


class Accumulator(Resource, ABC):
    """Base class of dense and sparse accumulators. `mean`: divide by the number of gradients."""

    kind = "ConditionalAccumulator"
    graph_op = "accumulator"  # the op that stands for it in graphs

    def __init__(self, dtype: DType, shape: ComponentShape, name: str, mean: bool = True) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.shape = shape
        self.mean = mean
        # 16-bit sums are kept in 32: many small gradients would be lost
        self._sum_type = np.dtype(np.float32) if dtype.bits == 16 else dtype.numpy
        self._count = 0
        self._step = 0
        self._taking: deque[Attempt] = deque()
        self._lines = (self._taking,)

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `accumulator` or `sparse_accumulator`."""
        parts = Components(self.describe(), (self.dtype,), (self.shape,)).parts(ranks)
        return self.graph_op, {"parts": parts, "reduction": "MEAN" if self.mean else "SUM"}

    @property
    def shapes(self) -> Sequence[ComponentShape]:
        """That of the gradients, or of the array whose rows they are."""
        return (self.shape,)

    def ranks(self) -> Sequence[int | None]:
        """Those of the gradients that are there, else of what a graph applied last."""
        with self._lock:
            axes = self._axes()
        return self.last_ranks if axes is None else (axes,)

    def start_take(
        self, required: int, done: Done, cancel: CancelToken | None = None, axes: int | None = None
    ) -> Attempt:
        """Wait until `required` gradients are there; `done` with what `_total` makes of all. axes:
        how many they must have, as a graph says it; else a ShapeError, and they stay."""

        def take(attempt: Attempt) -> bool:
            there = self._axes()
            if axes is not None and self._count >= required and there != axes:
                self._fail(attempt, self._other_axes(there, axes))
                return False
            return self._take(attempt)

        return self._start(Attempt("take_grad", take, done, required), self._taking, cancel)

    def _other_axes(self, there: int | None, axes: int) -> ShapeError:
        return ShapeError(
            f"{self.describe()}: take_grad found gradients of {there} axes; the graph was built "
            f"for {axes}",
            hint="they stay; a graph has one number of axes for what it takes: that of what it "
            "applies first, or of what is there when it is built",
        )

    @abstractmethod
    def _axes(self) -> int | None:
        """How many axes the gradients have, or the array whose rows they are; None where there are
        none."""

    def num_accumulated(self) -> int:
        """How many gradients are in the sum."""
        with self._lock:
            return self._count

    @property
    def global_step(self) -> int:
        """Gradients of earlier steps are dropped."""
        return self._step

    def set_global_step(self, step: int) -> None:
        """Drop gradients of steps before `step` from now on."""

        def store() -> None:
            if step < self._step:
                _log.warning(
                    "%s: the global step goes back from %d to %d",
                    self.describe(), self._step, step,
                )  # fmt: skip
            self._step = step

        self._change(store)

    def _apply(self, local_step: int, *gradient: Array) -> None:
        def add() -> None:
            if local_step >= self._step:
                self._add(*gradient)
                self._count += 1

        self._change(add)

    def _take(self, attempt: Attempt) -> bool:
        if self._count < attempt.left:
            return False
        self._finish(attempt, self._total())
        self._reset()
        self._count = 0
        self._step += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """The sum, how many gradients are in it, and the global step."""
        with self._lock:
            own = {"kind": self.kind, "dtype": self.dtype.name}
            return {**own, "count": self._count, "step": self._step, **self._saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; who waits is served. InvalidArgumentError, and no
        change, if it does not fit."""
        with reading_state(self.describe()):
            if (state["kind"], state["dtype"]) != (self.kind, self.dtype.name):
                raise InvalidArgumentError(
                    f"{self.describe()} of {self.dtype.name}: the state is that of a "
                    f"{state['kind']} of {state['dtype']}",
                    hint="load it into an accumulator that is made alike",
                )
            count, step = saved_integer(state["count"], 0), saved_integer(state["step"])
            load = self._loader(state)

        def replace() -> None:
            load()
            self._count, self._step = count, step

        self._change(replace)

    @abstractmethod
    def _saved(self) -> dict[str, Any]:
        """The sum, for a checkpoint."""

    @abstractmethod
    def _loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check what `_saved` gave; what takes it over, under the lock."""

    @abstractmethod
    def _add(self, *gradient: Array) -> None:
        """Add one gradient to the sum."""

    @abstractmethod
    def _total(self) -> Any:
        """The sum or mean of the gradients that were added."""

    @abstractmethod
    def _reset(self) -> None:
        """Forget the sum."""

    def _state(self) -> str:
        return f"{self._count} gradients are there, of step {self._step} and later"

    def _misfit(self, what: str) -> ShapeError:
        declared = "any shape" if self.shape is None else format_shape(self.shape)
        return ShapeError(
            f"{self.describe()}: got {what}, the accumulator takes {self.dtype.short} {declared}",
            hint="all gradients of one accumulator have one shape",
        )


class DenseAccumulator(Accumulator):
    """An accumulator of gradients that are arrays of one shape."""

    def __init__(self, dtype: DType, shape: ComponentShape, name: str, mean: bool = True) -> None:
        super().__init__(dtype, shape, name, mean)
        self._sum: Array | None = None

    def apply_grad(self, gradient: Array, local_step: int = 0) -> None:
        """Add a gradient, unless it is stale. ShapeError if it does not fit."""
        if self.shape is not None and not fits(gradient.shape, self.shape):
            raise self._misfit(f"a gradient of shape {format_shape(gradient.shape)}")
        self._apply(local_step, gradient)

    def _axes(self) -> int | None:
        return None if self._sum is None else self._sum.ndim

    def _add(self, *gradient: Array) -> None:
        (given,) = gradient
        if self._sum is None:
            self._sum = given.astype(self._sum_type, copy=True)
        elif self._sum.shape != given.shape:
            raise self._misfit(
                f"a gradient of shape {format_shape(given.shape)} after one of "
                f"{format_shape(self._sum.shape)}"
            )
        else:
            self._sum += given

    def _total(self) -> Array:
        assert self._sum is not None
        total = np.asarray(self._sum / self._count) if self.mean else self._sum
        return total.astype(self.dtype.numpy, copy=False)

    def _reset(self) -> None:
        self._sum = None

    def _saved(self) -> dict[str, Any]:
        return {"sum": None if self._sum is None else self._sum.copy()}

    def _loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        total = state["sum"]
        if (total is None) != (state["count"] == 0):
            raise ValueError("there is no sum, or a sum of nothing")
        if total is not None:
            check_saved(total, as_dtype(self._sum_type))
        if total is not None and self.shape is not None and not fits(total.shape, self.shape):
            raise self._misfit(f"a sum of shape {format_shape(total.shape)}")

        def load() -> None:
            self._sum = None if total is None else total.copy()

        return load


class SparseAccumulator(Accumulator):
    """An accumulator of gradients that are some rows of an array: `indices` i64[n] and `values` [n,
    ...].

    The mean of a row is over those gradients that have it, as in TensorFlow.
    """

    kind = "SparseConditionalAccumulator"
    graph_op = "sparse_accumulator"

    def __init__(self, dtype: DType, shape: ComponentShape, name: str, mean: bool = True) -> None:
        super().__init__(dtype, shape, name, mean)
        self._row_shape: tuple[int, ...] | None = None
        self._indices: Array  # ascending
        self._slots: Array  # where the row and the count of each are in what follows
        self._sums: Array
        self._counts: Array
        self._clear()

    def apply_grad(self, indices: Array, values: Array, local_step: int = 0) -> None:
        """Add a gradient, unless it is stale; duplicate indices add up. ShapeError if the rows do
        not fit or an index is out of bounds."""
        given = f"indices of shape {format_shape(indices.shape)} and values of shape "
        given += format_shape(values.shape)
        if indices.ndim != 1 or not values.ndim or len(indices) != len(values):
            raise self._misfit(given)
        if self.shape is not None and not fits(values.shape[1:], self.shape[1:]):
            raise self._misfit(given)
        self._check_indices(indices)
        self._apply(local_step, indices, values)

    def _check_indices(self, indices: Array) -> None:
        wrong = indices < 0
        if self.shape is not None and self.shape[0] is not None:
            wrong |= indices >= self.shape[0]
        if wrong.any():
            array = "an array" if self.shape is None else format_shape(self.shape)
            raise ShapeError(
                f"{self.describe()}: the index {indices[wrong][0]} is no row of {array}",
                hint="indices count from 0; apply_indexed_slices_grad takes negative ones, too",
            )

    def _axes(self) -> int | None:
        return None if self._row_shape is None else len(self._row_shape) + 1

    def _add(self, *gradient: Array) -> None:
        indices, values = gradient
        shape = values.shape[1:]
        if self._row_shape not in (None, shape):
            raise self._misfit(
                f"rows of shape {format_shape(shape)} after rows of {format_shape(self._row_shape)}"
            )
        if self._row_shape is None:
            self._row_shape = shape
            self._clear()
        unique, sums = _by_index(indices, values, self._sum_type)
        at = np.searchsorted(self._indices, unique)
        known = np.zeros(len(unique), np.bool_)
        inside = at < len(self._indices)
        known[inside] = self._indices[at[inside]] == unique[inside]
        if known.any():
            slots = self._slots[at[known]]
            self._sums[slots] += sums[known]
            self._counts[slots] += 1
            at, unique, sums = at[~known], unique[~known], sums[~known]
        self._append(at, unique, sums)

    def _append(self, at: Array, indices: Array, rows: Array) -> None:
        """Rows of new indices, whose places among the indices so far are `at`."""
        used = len(self._indices)
        wanted = used + len(indices)
        if not used:
            self._sums, self._counts = rows, np.ones(wanted, np.int64)
        else:
            if wanted > len(self._sums):
                self._sums = _longer(self._sums, max(wanted, 2 * used))
                self._counts = _longer(self._counts, len(self._sums))
            self._sums[used:wanted], self._counts[used:wanted] = rows, 1
        self._indices = np.insert(self._indices, at, indices)
        self._slots = np.insert(self._slots, at, np.arange(used, wanted))

    def _total(self) -> tuple[Array, Array]:
        """(indices, ascending; rows)."""
        in_order = np.array_equal(self._slots, np.arange(len(self._sums)))
        rows = self._sums if in_order else np.take(self._sums, self._slots, axis=0)
        if self.mean:
            counts = self._counts[self._slots].astype(rows.real.dtype)
            rows /= counts.reshape(-1, *[1] * (rows.ndim - 1))
        return self._indices, rows.astype(self.dtype.numpy, copy=False)

    def _reset(self) -> None:
        self._row_shape = None
        self._clear()

    def _clear(self) -> None:
        self._indices = np.empty(0, np.int64)
        self._slots = np.empty(0, np.int64)
        self._sums = np.empty((0, *(self._row_shape or ())), self._sum_type)
        self._counts = np.empty(0, np.int64)

    def _saved(self) -> dict[str, Any]:
        return {
            "indices": self._indices.copy(),
            "counts": self._counts[self._slots],
            "rows": self._sums[self._slots] if len(self._slots) else None,
            "row_shape": None if self._row_shape is None else list(self._row_shape),
        }

    def _loader(self, state: Mapping[str, Any]) -> Callable[[], None]:
        indices, counts, rows = state["indices"], state["counts"], state["rows"]
        given = state["row_shape"]
        shape = None if given is None else tuple(saved_integer(n, 0) for n in given)
        if rows is None:
            rows = np.empty((0, *(shape or ())), self._sum_type)
        check_saved(indices, int64)
        check_saved(counts, int64)
        check_saved(rows, as_dtype(self._sum_type))
        number = len(rows) if rows.ndim else -1
        whole = indices.shape == counts.shape == (number,) and (counts > 0).all()
        if not whole or (np.diff(indices) <= 0).any():
            raise ValueError("indices, counts and rows do not fit together")
        known = shape is None or self.shape is None or fits(shape, self.shape[1:])
        if not known or (number and rows.shape[1:] != shape):
            raise self._misfit(f"rows of shape {given}")
        self._check_indices(indices)

        def load() -> None:
            self._row_shape = shape
            self._clear()
            if number:
                self._indices, self._slots = indices.copy(), np.arange(number)
                self._sums, self._counts = rows.copy(), counts.copy()

        return load


def _by_index(indices: Array, values: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The indices, ascending, each once; the sums of the rows of each, in their order."""
    order = np.argsort(indices, kind="stable")
    ordered, rows = indices[order], np.take(values, order, axis=0)
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    if first.all():
        return ordered, rows.astype(dtype, copy=False)
    unique = ordered[first]
    sums = np.zeros((len(unique), *values.shape[1:]), dtype)
    np.add.at(sums, np.cumsum(first) - 1, rows)
    return unique, sums


def _longer(array: Array, size: int) -> Array:
    out = np.empty((size, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out
