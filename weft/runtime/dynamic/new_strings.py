"""Arrays of bytes objects from where their bytes lie, by `codegen/dynamic/new_strings.py`.
Objects are made under the GIL, so many at a time that other threads go on in between."""

from __future__ import annotations

import ctypes

from weft.codegen.dynamic.new_strings import AT_ONCE
from weft.ir.process import cpython
from weft.ir.spec import Array
from weft.runtime.dynamic.calls import chunks_of, run_holding, run_kernel
from weft.runtime.native.ahead import address

#: Objects that are made before another thread may have the GIL, and those of a chunk of copies.
_MADE, _COPIED = 1 << 13, 1 << 4


def _function(name: str) -> int:
    made = ctypes.cast(getattr(cpython, name), ctypes.c_void_p).value
    assert made is not None
    return made


_NEW, _DROP = _function("PyBytes_FromStringAndSize"), _function("Py_DecRef")


def put_strings(places: Array, out: Array) -> None:
    """Write into an object array of n elements the objects of the bytes at `places`: i64[n, 2],
    the address and the size of each; an address of 0: the element stays. MemoryError."""
    if _make(places, out, AT_ONCE):
        given = (address(places), len(places), _COPIED, address(out))
        run_kernel("copy_long", (), given, chunks_of(len(places), _COPIED))


def put_blank_strings(places: Array, out: Array) -> None:
    """The same, but what the objects hold is for the caller to write before anybody sees them."""
    _make(places, out, 0)


def _make(places: Array, out: Array, at_once: int) -> bool:
    """Make the objects, and fill those of up to so many bytes. Whether there are longer ones."""
    args = (ctypes.c_int64 * 6)(address(places), address(out), _NEW, _DROP, 0, at_once)
    for lo in range(0, len(places), _MADE):
        run_holding("make_strings", args, lo, min(lo + _MADE, len(places)))
    return bool(args[4])
