"""`TensorArray` and `Stack`: arrays of one dtype, written and read by index, or last in, first out.

The rules are those of TensorFlow's kernels: each index is written once, read once where
`clear_after_read`, and never written after it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, string
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
)
from weft.ir.spec import AttrValue
from weft.runtime.resources.attempts import Resource
from weft.runtime.resources.components import (
    Array,
    ComponentShape,
    fits,
    reading_state,
    save_arrays,
    saved_arrays,
)


class _Slot:
    """One index: what was written, and whether it was read."""

    __slots__ = ("cleared", "read", "value")

    def __init__(self) -> None:
        self.value: Array | None = None
        self.read = False
        self.cleared = False


class TensorArray(Resource):
    """A list of arrays. `same_shape`: the first one that is written decides the shape of all."""

    kind = "TensorArray"

    def __init__(
        self,
        dtype: DType,
        size: int,
        name: str,
        *,
        dynamic_size: bool = False,
        clear_after_read: bool = True,
        shape: ComponentShape = None,
        same_shape: bool = True,
    ) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.dynamic_size = dynamic_size
        self.clear_after_read = clear_after_read
        self.shape = shape
        self.same_shape = same_shape
        self._slots: list[_Slot] | None = [_Slot() for _ in range(size)]

    def size(self) -> int:
        """The number of indices; it grows where `dynamic_size`."""
        with self._lock:
            return len(self._open())

    @property
    def is_written(self) -> bool:
        """Whether an element has been written."""
        with self._lock:
            return any(slot.value is not None or slot.read for slot in self._open())

    def write(self, index: int, value: Array) -> None:
        """Store `value`, which nobody else writes to, at an index that has none."""
        self.write_many([index], [value])

    def write_many(self, indices: Sequence[int], values: Sequence[Array]) -> None:
        """Store several; all are checked before the first is stored."""
        with self._lock:
            slots = self._open()
            shape = self.shape
            for number, (index, value) in enumerate(zip(indices, values, strict=True)):
                self._check_writable(slots, index, index in indices[:number])
                shape = self._check_shape(value, shape)
            largest = max(indices, default=-1)
            slots.extend(_Slot() for _ in range(largest + 1 - len(slots)))
            for index, value in zip(indices, values, strict=True):
                slots[index].value = value
            self.shape = shape

    def read(self, index: int) -> Array:
        """The array at an index; InvalidArgumentError if it was cleared by an earlier read. One
        that was never written is zeros, if the shape is known."""
        return self.read_many([index])[0]

    def read_many(self, indices: Sequence[int] | None = None) -> list[Array]:
        """Those at `indices` (None: all). All are checked before the first counts as read."""
        with self._lock:
            slots = self._open()
            chosen = range(len(slots)) if indices is None else indices
            out = [self._value(slots, i) for i in chosen]
            if self.clear_after_read and len(set(chosen)) < len(out):
                self._refuse(
                    f"the indices {list(chosen)} read one twice",
                    "make it with clear_after_read=False",
                )
            for i in chosen:
                slots[i].read = True
                if self.clear_after_read:
                    slots[i].value, slots[i].cleared = None, True
        return out

    def peek(self) -> list[Array]:
        """All of them, and none counts as read."""
        with self._lock:
            slots = self._open()
            return [self._value(slots, i) for i in range(len(slots))]

    def close(self) -> None:
        """Free the arrays; every later call but `close` fails."""
        with self._lock:
            self._slots = None

    def _open(self) -> list[_Slot]:
        if self._slots is None:
            raise FailedPreconditionError(f"{self.describe()} was closed")
        return self._slots

    def _refuse(self, what: str, hint: str) -> NoReturn:
        raise InvalidArgumentError(f"{self.describe()}: {what}", hint=hint)

    def _check_writable(self, slots: list[_Slot], index: int, again: bool) -> None:
        if index < 0 or (index >= len(slots) and not self.dynamic_size):
            hint = "make it with a larger size, or with dynamic_size=True"
            self._refuse(f"write to index {index}, but its size is {len(slots)}", hint)
        slot = slots[index] if index < len(slots) else _Slot()
        if slot.read:
            self._refuse(f"index {index} has been read already", "write before reading")
        if again or slot.value is not None:
            self._refuse(f"index {index} has been written already", "write each index once")

    def _check_shape(self, value: Array, shape: ComponentShape) -> ComponentShape:
        if shape is not None and not fits(value.shape, shape):
            raise ShapeError(
                f"{self.describe()}: an element of shape {format_shape(value.shape)} was written, "
                f"its elements have shape {format_shape(shape)}",
                hint="infer_shape=False allows elements of several shapes",
            )
        return value.shape if self.same_shape else shape

    def _value(self, slots: list[_Slot], index: int) -> Array:
        if not 0 <= index < len(slots):
            self._refuse(f"read from index {index}, but its size is {len(slots)}", "read less")
        slot = slots[index]
        if slot.cleared:
            hint = "make it with clear_after_read=False"
            self._refuse(f"index {index} was cleared by an earlier read", hint)
        if slot.value is not None:
            return slot.value
        shape = None if self.shape is None else [n for n in self.shape if n is not None]
        if shape is None or self.shape is None or len(shape) < len(self.shape):
            self._refuse(
                f"read from index {index}, which was never written, and the shape is not known",
                "write it first, or give element_shape= to read zeros",
            )
        return np.full(shape, b"" if self.dtype is string else 0, self.dtype.numpy)


class Stack(Resource):
    """Arrays of one dtype, last in, first out; at most `max_size` of them (None: no bound)."""

    kind = "Stack"

    def __init__(
        self, dtype: DType, max_size: int | None, name: str, shape: ComponentShape = None
    ) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.max_size = max_size
        self.shape = shape
        self._arrays: list[Array] | None = []

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op `host_stack`."""
        bound = -1 if self.max_size is None else self.max_size
        shape = f"[...{ranks[0]}]" if self.shape is None else format_shape(self.shape)
        return "host_stack", {"parts": (f"{self.dtype.short}{shape}",), "max_size": bound}

    @property
    def shapes(self) -> Sequence[ComponentShape]:
        """That of the values."""
        return (self.shape,)

    def ranks(self) -> Sequence[int | None]:
        """That of the array on top, else of what a graph pushed last."""
        with self._lock:
            return [self._arrays[-1].ndim] if self._arrays else self.last_ranks

    def push(self, array: Array) -> None:
        """Put an array, which nobody else writes to, on top. ResourceExhaustedError if it is full,
        ShapeError if the array does not fit."""
        if self.shape is not None and not fits(array.shape, self.shape):
            raise ShapeError(
                f"{self.describe()}: push got an element of shape {format_shape(array.shape)}, its "
                f"elements have shape {format_shape(self.shape)}"
            )
        with self._lock:
            arrays = self._open()
            if self.max_size is not None and len(arrays) >= self.max_size:
                raise ResourceExhaustedError(
                    f"{self.describe()} is full: it has max_size={self.max_size} elements",
                    hint="make it with a larger max_size, or -1 for no bound",
                )
            arrays.append(array)

    def pop(self, rank: int | None = None) -> Array:
        """Take the array on top. InvalidArgumentError if there is none, ShapeError if it has
        another number of axes than `rank`."""
        with self._lock:
            arrays = self._open()
            if not arrays:
                raise InvalidArgumentError(f"{self.describe()} is empty: there is nothing to pop")
            if rank not in (None, arrays[-1].ndim):
                raise ShapeError(
                    f"{self.describe()}: a value of shape {format_shape(arrays[-1].shape)} is on "
                    f"top, and the graph was built for {rank} axes",
                    hint="a graph has one number of axes for what it pops: that of what it pushes "
                    "first, or of what is on top when it is built",
                )
            return arrays.pop()

    def size(self) -> int:
        """The number of arrays."""
        with self._lock:
            return len(self._open())

    def close(self) -> None:
        """Free the arrays; every later call but `close` fails."""
        with self._lock:
            self._arrays = None

    def _open(self) -> list[Array]:
        if self._arrays is None:
            raise FailedPreconditionError(f"{self.describe()} was closed")
        return self._arrays

    def state_dict(self) -> dict[str, Any]:
        """The arrays, the lowest first."""
        with self._lock:
            saved = save_arrays(self._open())
        return {"kind": self.kind, "dtype": self.dtype.name, "values": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. InvalidArgumentError, and no change, if it does not
        fit."""
        with reading_state(self.describe()):
            if (state["kind"], state["dtype"]) != (self.kind, self.dtype.name):
                raise InvalidArgumentError(
                    f"{self.describe()} of {self.dtype.name}: the state is that of a "
                    f"{state['kind']} of {state['dtype']}",
                    hint="load it into a stack that is made alike",
                )
            arrays = saved_arrays(state["values"], self.dtype)
        if self.max_size is not None and len(arrays) > self.max_size:
            raise InvalidArgumentError(
                f"{self.describe()}: {len(arrays)} values were saved, max_size={self.max_size}"
            )
        for array in arrays:
            if self.shape is not None and not fits(array.shape, self.shape):
                raise InvalidArgumentError(
                    f"{self.describe()}: a saved value has shape {format_shape(array.shape)}, its "
                    f"values have {format_shape(self.shape)}"
                )
        with self._lock:
            self._open()
            self._arrays = arrays
