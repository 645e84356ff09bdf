"""`NativeStep`: the words of one step that the native call path reads, and the objects they point
to."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.process import cpython
from weft.runtime.native import layout as at
from weft.runtime.native.api import NativeApi, new_capsule
from weft.runtime.resources.variables import VariableState

_METH_O = 8
cpython.PyCFunction_NewEx.restype = ctypes.py_object
cpython.PyCFunction_NewEx.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_int64), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


_methods: dict[int, Any] = {}  # CPython keeps the address of a function's PyMethodDef


class NativeStep:
    """A step for the native call path. address: of its words. run: a list of input arrays -> list
    of result arrays, or None if a variable has no value yet.

    results: (NumPy dtype, shape, slot), or None for a result without a value. variables: (state,
    whether it is written, slot). The callbacks belong to `owner`, of which only a weak reference is
    kept: `new_activation()` gives the address of an activation's words, `raise_failed(row, status,
    index)`, `raise_no_memory()` and `raise_not_arrays()` raise.
    """

    def __init__(
        self,
        api: NativeApi,
        owner: Any,
        walker: int,
        inputs: int,
        results: Sequence[tuple[Any, tuple[int, ...], int] | None],
        variables: Sequence[tuple[VariableState, bool, int]],
        release: bool,
        most_idle: int,
    ) -> None:
        words = (ctypes.c_int64 * 16)()
        self._words = words
        # a `__del__` would run while the interpreter goes down, without this module's names
        weakref.finalize(self, _free_activations, words).atexit = False
        self._keep: list[Any] = []
        self.address = ctypes.addressof(words)
        rows = self._result_rows(results)
        held = self._variable_rows(variables)
        given = {
            at.X_WALKER: walker, at.X_MOST_IDLE: most_idle, at.X_RESULTS: ctypes.addressof(rows),
            at.X_RESULT_COUNT: len(results), at.X_INPUTS: inputs,
            at.X_VARIABLES: ctypes.addressof(held),
            at.X_VARIABLES_END: ctypes.addressof(held) + at.V_WORDS * len(variables),
            at.X_RELEASE: int(release),
        }  # fmt: skip
        callbacks = {
            at.X_NEW_ACTIVATION: "new_activation", at.X_FAILED: "raise_failed",
            at.X_NO_MEMORY: "raise_no_memory", at.X_NOT_ARRAYS: "raise_not_arrays",
        }  # fmt: skip
        for offset, name in callbacks.items():
            callback = _weak_method(owner, name)
            self._keep.append(callback)
            given[offset] = id(callback)
        for offset, value in given.items():
            words[offset // 8] = value
        pair = (ctypes.c_int64 * 2)(api.table, self.address)
        self._keep += [pair, rows, held]
        self.run: Callable[[list[Any]], list[Any] | None] = new_builtin(
            api.functions["run_list"], ctypes.addressof(pair), b"weft.step"
        )

    def idle_activations(self) -> int:
        """How many activations wait for the next call."""
        return int(self._words[at.X_IDLE // 8])

    def _result_rows(self, results: Sequence[tuple[Any, tuple[int, ...], int] | None]) -> Any:
        width = at.R_WORDS // 8
        rows = (ctypes.c_int64 * (width * len(results) + 1))()
        for i, result in enumerate(results):
            if result is None:
                continue
            dtype, shape, slot = result
            dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
            self._keep += [dims, dtype]
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            row: list[Any] = [
                id(dtype),
                len(shape),
                ctypes.addressof(dims),
                size_class(nbytes),
                slot,
            ]
            rows[width * i : width * i + len(row)] = row
        return rows

    def _variable_rows(self, variables: Sequence[tuple[VariableState, bool, int]]) -> Any:
        width = at.V_WORDS // 8
        rows = (ctypes.c_int64 * (width * len(variables) + 1))()
        for i, (state, writes, slot) in enumerate(variables):
            lock = state.lock
            acquire, release = lock.ways(writes)
            self._keep += [state, lock, acquire, release]
            row: list[Any] = [
                id(state), id(acquire), id(release), id(lock.gate) if writes else 0,
                ctypes.addressof(lock.words), id(lock.readers), slot,
            ]  # fmt: skip
            rows[width * i : width * i + len(row)] = row
        return rows


def _free_activations(step: Any) -> None:
    """Drop the references that the idle activations of a step hold."""
    activation = step[at.X_ACTIVATIONS // 8]
    while activation:
        words = (ctypes.c_int64 * 2).from_address(activation)
        activation = words[at.F_NEXT // 8]
        cpython.Py_DecRef(ctypes.c_void_p(words[at.F_OWNER // 8]))


def activation_words(
    owner: object, header: int, slots: int, status: int, failed: int, inputs: int
) -> Any:
    """The words of an activation, then the cells of its inputs. They hold a reference to `owner`,
    which keeps them: the native code drops it with the activation."""
    first = at.F_CELLS // 8 + 1
    words = (ctypes.c_int64 * (first + 2 * inputs))()
    cells = ctypes.addressof(words) + 8 * first
    given = {
        at.F_OWNER: id(owner), at.F_HEADER: header, at.F_SLOTS: slots, at.F_STATUS: status,
        at.F_FAILED: failed, at.F_CELLS: cells,
    }  # fmt: skip
    for offset, value in given.items():
        words[offset // 8] = value
    return words


def size_class(nbytes: int) -> int:
    """The class of the smallest block that holds so many bytes."""
    number = 0
    while ((4 + (number & 3)) << (number >> 2)) << 4 < nbytes:
        number += 1
    return number


def new_builtin(address: int, words: int, name: bytes) -> Any:
    """The function of Python, of one argument, whose code (METH_O) is at `address`; it is given a
    capsule of that name with the address of words."""
    if address not in _methods:
        _methods[address] = _MethodDef(b"run", address, _METH_O, b"Native code of weft's.")
    method = ctypes.addressof(_methods[address])
    return cpython.PyCFunction_NewEx(method, new_capsule(words, name), None)


def _weak_method(owner: Any, name: str) -> Callable[..., Any]:
    """`owner.name`, without keeping `owner`: whoever runs the step has it."""
    reference = weakref.ref(owner)

    def method(*arguments: Any) -> Any:
        return getattr(reference(), name)(*arguments)

    return method
