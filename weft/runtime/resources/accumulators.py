"""Accumulators: gradients of several workers are added up until enough are there, and their mean is
taken (the paper's synchronous scheme, section 4.4; TensorFlow 1's ConditionalAccumulator).

A gradient carries the step that its worker computed it for; one from before the accumulator's
global step is stale and dropped. Each take resets the sum and moves the global step on by one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError
from weft.runtime.resources.attempts import Attempt, Done, Resource
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.components import Array, ComponentShape, fits

_log = logging.getLogger("weft.resources")


class Accumulator(Resource, ABC):
    """What dense and sparse accumulators share. `mean`: divide by the number of gradients."""

    kind = "ConditionalAccumulator"

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

    def start_take(self, required: int, done: Done, cancel: CancelToken | None = None) -> Attempt:
        """Wait until `required` gradients are there; `done` with what `_total` makes of all."""
        return self._start(Attempt("take_grad", self._take, done, required), self._taking, cancel)

    def take_grad(
        self, required: int, timeout: float | None = None, cancel: CancelToken | None = None
    ) -> Any:
        """`start_take`, waited for."""
        return self.wait(lambda done: self.start_take(required, done, cancel), timeout)

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
            f"{self.describe()}: apply_grad got {what}, the accumulator takes "
            f"{self.dtype.short} {declared}",
            hint="all gradients of one accumulator have one shape",
        )


class DenseAccumulator(Accumulator):
    """Of gradients that are arrays of one shape."""

    def __init__(self, dtype: DType, shape: ComponentShape, name: str, mean: bool = True) -> None:
        super().__init__(dtype, shape, name, mean)
        self._sum: Array | None = None

    def apply_grad(self, gradient: Array, local_step: int = 0) -> None:
        """Add a gradient, unless it is stale. ShapeError if it does not fit."""
        if self.shape is not None and not fits(gradient.shape, self.shape):
            raise self._misfit(f"a gradient of shape {format_shape(gradient.shape)}")
        self._apply(local_step, gradient)

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
        total = self._sum / self._count if self.mean else self._sum
        return total.astype(self.dtype.numpy, copy=False)

    def _reset(self) -> None:
        self._sum = None


class SparseAccumulator(Accumulator):
    """Of gradients that are some rows of an array: `indices` i64[n] and `values` [n, ...].

    The mean of a row is over those gradients that have it, as in TensorFlow.
    """

    kind = "SparseConditionalAccumulator"

    def __init__(self, dtype: DType, shape: ComponentShape, name: str, mean: bool = True) -> None:
        super().__init__(dtype, shape, name, mean)
        self._rows: dict[int, Array] = {}
        self._counts: dict[int, int] = {}
        self._row_shape: tuple[int, ...] | None = None

    def apply_grad(self, indices: Array, values: Array, local_step: int = 0) -> None:
        """Add a gradient, unless it is stale; duplicate indices add up. ShapeError if the rows do
        not fit or an index is out of bounds."""
        given = f"indices of shape {format_shape(indices.shape)} and values of shape "
        given += format_shape(values.shape)
        if indices.ndim != 1 or not values.ndim or len(indices) != len(values):
            raise self._misfit(given)
        if self.shape is not None:
            if not fits(values.shape[1:], self.shape[1:]):
                raise self._misfit(given)
            size = self.shape[0]
            wrong = indices < 0 if size is None else (indices < 0) | (indices >= size)
        else:
            wrong = indices < 0
        if wrong.any():
            raise self._misfit(f"the index {indices[wrong][0]}")
        self._apply(local_step, indices, values)

    def _add(self, *gradient: Array) -> None:
        indices, values = gradient
        shape = values.shape[1:]
        if self._row_shape not in (None, shape):
            raise self._misfit(
                f"rows of shape {format_shape(shape)} after rows of {format_shape(self._row_shape)}"
            )
        self._row_shape = shape
        unique, place = np.unique(indices, return_inverse=True)
        sums = np.zeros((len(unique), *shape), self._sum_type)
        np.add.at(sums, place, values)
        for index, row in zip(unique.tolist(), sums, strict=True):
            if index in self._rows:
                self._rows[index] += row
                self._counts[index] += 1
            else:
                self._rows[index] = np.array(row)
                self._counts[index] = 1

    def _total(self) -> tuple[Array, Array]:
        """(indices, ascending; rows)."""
        indices = np.array(sorted(self._rows), np.int64)
        assert self._row_shape is not None
        rows = np.empty((len(indices), *self._row_shape), self._sum_type)
        for i, index in enumerate(indices.tolist()):
            rows[i] = self._rows[index] / (self._counts[index] if self.mean else 1)
        return indices, rows.astype(self.dtype.numpy, copy=False)

    def _reset(self) -> None:
        self._rows.clear()
        self._counts.clear()
        self._row_shape = None
