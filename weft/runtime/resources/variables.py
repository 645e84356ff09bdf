"""Variables: the buffers behind `variable` ops, which outlive steps, and their locks."""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from weft.ir.dims import Shape
from weft.ir.dtypes import DType
from weft.ir.errors import FailedPreconditionError, ShapeError
from weft.ir.graph import Graph
from weft.ir.interpreter.state import counted
from weft.ir.process import around_fork
from weft.ir.types import RefType, TensorType
from weft.runtime.resources.variable_lock import VariableLock

Array = np.ndarray[Any, Any]


class Resident(Protocol):
    """A variable's value on a device, newer than any on the host."""

    def fetch(self, target: Array) -> None:
        """Copy the value to an array of the host."""


class VariableState:
    """One variable's buffer. `array` is C-contiguous and keeps its address while it is there.

    open: the shape that was declared, None for sizes that each value has its own of; None where all
    are fixed. Such a variable has another buffer with each value, and no native step holds it.
    shape: that of the value.

    resident: where the value is, if a step on a device wrote it last. Whoever asks for `array` or
    `buffer()` may write there, so that the value comes back to the host for good; `read` copies it.

    `lock` is held by a step from its first read of the variable to its last write: by one that
    writes it alone, so that it is atomic with respect to other steps and to eager reads; by those
    that only read it beside each other.
    """

    __slots__ = (
        "__weakref__", "_array", "container", "declared", "dtype", "lock", "name", "open",
        "resident", "shape",
    )  # fmt: skip
    kind = "variable"

    def __init__(
        self, name: str, dtype: DType, shape: Shape, initial: Array | None = None,
        container: str | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.declared = ""  # what it was made as, where others find it by a shared name
        self.container = container  # with which it loses its value; None: never
        self.dtype = dtype
        self.open = None if all(isinstance(d, int) for d in shape) else shape
        self.shape = tuple(d if isinstance(d, int) else 0 for d in shape)
        self.lock = VariableLock()
        self._array: Array | None = None  # native code looks here, too
        self.resident: Resident | None = None
        with _forking:
            _states.add(self)
        if initial is not None:
            self.write_held(initial)

    def __reduce__(self) -> tuple[type[VariableState], tuple[Any, ...]]:
        """A copy, by `copy` or by `pickle`, holds the same value in a buffer of its own."""
        with self.lock.shared():
            array = self.read() if self.initialized else None
        return VariableState, (self.name, self.dtype, self.type.shape, array, self.container)

    def describe(self) -> str:
        """What it is, for errors."""
        return f"variable '{self.name}'"

    @property
    def type(self) -> TensorType:
        """The type of what it may hold."""
        return TensorType(self.dtype, self.shape if self.open is None else self.open)

    @property
    def initialized(self) -> bool:
        """Whether it has a value."""
        return self._array is not None or self.resident is not None

    @property
    def array(self) -> Array | None:
        """The live buffer on the host; None without a value."""
        if self.resident is not None:
            with self.lock:
                if self.resident is not None:
                    self.array = self._fetched(self.resident)
        return self._array

    @array.setter
    def array(self, value: Array | None) -> None:
        self._array, self.resident = value, None

    def move(self, resident: Resident) -> None:
        """The value is on a device from now on. The lock is held."""
        self._array, self.resident = None, resident

    def _fetched(self, resident: Resident) -> Array:
        made = np.empty(self.shape, self.dtype.numpy)
        resident.fetch(made)
        return made

    def clear(self) -> None:
        """Have no value from now on."""
        with self.lock:
            self.array = None

    def buffer(self) -> Array:
        """The live buffer itself. Raises FailedPreconditionError if uninitialised."""
        array = self.array
        if array is None:
            raise FailedPreconditionError(
                f"variable '{self.name}' is not initialised",
                hint="run wf.global_variables_initializer() in the session first",
            )
        return array

    def count_up_to(self, limit: int) -> Array:
        """Add 1 to an integer; the value before. OutOfRangeError if that is `limit` or more."""
        with self.lock:
            value = self.read()
            self.write_held(counted(value, limit, self.name))
        return value

    def read(self) -> Array:
        """A copy of the value."""
        gate = self.lock.gate
        if not gate.acquire(False):
            with self.lock.shared():
                return self._copy()
        try:  # in half of the time that a reader's part takes: nobody writes, others may read
            return self._copy()
        finally:
            gate.release()

    def _copy(self) -> Array:
        if self.resident is not None:
            return self._fetched(self.resident)
        return self.buffer().copy()

    def write(self, value: Array) -> None:
        """Store `value` (same shape and dtype) in place. Raises ShapeError if it does not fit."""
        with self.lock:
            self.write_held(value)

    def write_held(self, value: Array) -> None:
        """As `write`; the lock is held."""
        fits = value.shape == self.shape if self.open is None else self.type.allows(value.shape)
        if not fits or value.dtype != self.dtype.numpy:
            raise ShapeError(
                f"a value of dtype {value.dtype} and shape {list(value.shape)} does not fit "
                f"variable '{self.name}' ({self.type})"
            )
        if self._array is None or self.open is not None:
            self.take(np.array(value, order="C", copy=True))
        else:
            self._array[...] = value

    def take(self, array: Array) -> None:
        """Hold an array that fits, is C-contiguous, and is nobody else's. The lock is held."""
        self.array, self.shape = array, array.shape


def on_host(state: VariableState) -> bool:
    """Whether a step of the host finds the value, if there is one, without moving it."""
    return state.resident is None


def in_order(
    states: Iterable[VariableState], written: Collection[VariableState]
) -> list[tuple[VariableState, bool]]:
    """Each once, and whether it is written, in the order that all steps share: without one, two
    could wait for each other."""
    return [(state, state in written) for state in sorted(set(states), key=id)]


@contextmanager
def held(
    uses: Iterable[tuple[VariableState, bool]],
    is_there: Callable[[VariableState], bool] = on_host,
) -> Iterator[None]:
    """Hold variables (`in_order`) in the block: those with True as their writer, and others whose
    value is not there, as only a writer may move it."""
    taken: list[Callable[[], None]] = []
    try:
        for state, writes in uses:
            acquire, release = state.lock.ways(writes)
            acquire()
            if not writes and not is_there(state):
                release()
                acquire, release = state.lock.ways(True)
                acquire()
            taken.append(release)
        yield
    finally:
        for release in reversed(taken):
            release()


_states: weakref.WeakSet[VariableState] = weakref.WeakSet()
_forking = threading.RLock()  # held while `_states` changes, and by a thread that forks
_held: list[list[tuple[VariableLock, bool]]] = []


def _before_fork() -> None:
    """Wait for the steps of other threads that write: a child has no thread that would end them."""
    _forking.acquire()
    ordered = sorted(_states, key=id)  # as steps take them
    _held.append([(state.lock, state.lock.before_fork()) for state in ordered])


def _after_fork() -> None:
    for lock, taken in _held.pop():
        if taken:
            lock.gate.release()
    _forking.release()


def _after_fork_in_child() -> None:
    for lock, _ in _held[-1]:
        lock.after_fork_in_child()
    _after_fork()


around_fork(_before_fork, _after_fork, _after_fork_in_child)


def clear_containers(containers: Collection[str]) -> None:
    """Take the values of all variables in these containers away."""
    with _forking:
        found = [state for state in _states if state.container in containers]
    for state in found:
        state.clear()


_SUFFIX = re.compile(r"_copy_\d+$")
_copies = itertools.count(1)


def copy_name(name: str) -> str:
    """`name_copy_N`, with an N that no other copy has."""
    return f"{_SUFFIX.sub('', name)}_copy_{next(_copies)}"


def check_variables(graph: Graph, variables: Mapping[str, VariableState]) -> None:
    """FailedPreconditionError for a variable of the graph that is not there, ShapeError for one of
    another dtype or shape."""
    for op in graph.ops:
        if op.name != "variable":
            continue
        name, ref = str(op.attrs["name"]), op.result.type
        if name not in variables:
            raise FailedPreconditionError(
                f"there is no variable '{name}' to run the graph with", location=op.locations
            )
        held, wanted = variables[name], ref.tensor if isinstance(ref, RefType) else None
        if held.type != wanted:
            raise ShapeError(
                f"variable '{name}' holds {held.type}, the graph wants {wanted}",
                location=op.locations,
            )
