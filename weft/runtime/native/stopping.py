"""What native loops are given so that they can be stopped (`weft.codegen.loops.interrupt`), and the
exception that stopped one."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, NoReturn

from weft.codegen.faults import FaultWords
from weft.codegen.loops.interrupt import API
from weft.ir.errors import CancelledError


def new_fault_words() -> FaultWords:
    """Of a frame: its loops hear of signals, and of the hook that `watch` sets."""
    return FaultWords(api=_api())


class Watch:
    """While it is entered, loops of a step call `hook` now and then, on the thread that runs them;
    what it raises ends the step."""

    def __init__(self, words: FaultWords, hook: Any) -> None:
        self._words, self._hook = words, hook  # the words do not hold a reference

    def __enter__(self) -> None:
        self._words.hook = id(self._hook)

    def __exit__(self, *_: object) -> None:
        self._words.hook = 0


def raise_stopped(kept: int) -> NoReturn:
    """Raise the exception that stopped a step, whose address and reference its fault words hold."""
    if not kept:
        raise CancelledError("the step was stopped")
    error: BaseException = ctypes.cast(kept, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(error))
    raise error


@cache
def _api() -> int:
    """The address of the table; 0 where Python is no CPython."""
    if sys.implementation.name != "cpython":
        return 0
    words = (ctypes.c_int64 * len(API))(*map(_address, API))
    # steps may run after this module is gone
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
    return ctypes.addressof(words)


def _address(name: str) -> int:
    """Of a function of CPython or libc; 0 for one that libc does not have."""
    library = ctypes.pythonapi if name.startswith("Py") else ctypes.CDLL(None)
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0
