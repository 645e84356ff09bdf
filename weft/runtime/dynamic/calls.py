"""Calls of single kernels on arrays from Python: without the GIL, in chunks over threads.

A chunk has a fixed number of elements, so what is computed does not depend on the threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from weft.codegen.dynamic.kernels import Constants, scalar_kernel
from weft.codegen.llvm.jit import compile_kernels
from weft.ir.dtypes import DType, as_dtype
from weft.ir.spec import Array
from weft.runtime.dynamic.door import LIMIT
from weft.runtime.native.ahead import address, check_layout
from weft.runtime.native.pool import POOL

#: Elements of a chunk: some microseconds of work.
CHUNK = 1 << 14
_BEHAVED = 0x101  # C-contiguous and aligned
#: What ctypes calls so runs without the GIL.
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
#: With the GIL; raises the exception that the kernel has set.
_HOLDING = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@cache
def _code(entry: str, constants: Constants) -> tuple[int, Any]:
    """The address of a kernel, and what calls it."""
    check_layout()
    kernel = scalar_kernel(entry, constants)
    code = compile_kernels([kernel])[kernel.key]
    return code, _KERNEL(code)


def run_kernel(entry: str, constants: Constants, args: Sequence[int], units: int = 1) -> None:
    """Do all units of a kernel (`codegen.dynamic`) with these arguments."""
    code, call = _code(entry, constants)
    words = (ctypes.c_int64 * len(args))(*args)
    if units > 1:
        pool, threads = POOL.enter(LIMIT.most, 0)
        if pool and threads > 1:
            given = (pool, threads, code, ctypes.addressof(words), units, 1, 0)
            shared = (ctypes.c_int64 * len(given))(*given)
            _parallel(POOL.parallel)(ctypes.addressof(shared), 0, 0, 0)
            return
    call(ctypes.addressof(words), 0, units, 0)


def run_holding(entry: str, words: ctypes.Array[ctypes.c_int64], lo: int, hi: int) -> None:
    """Do the units lo to hi of a kernel that calls CPython, and so holds the GIL. Raises what it
    raises."""
    _holding(_code(entry, ())[0])(ctypes.addressof(words), lo, hi, 0)


@cache
def _holding(code: int) -> Any:
    return _HOLDING(code)


@cache
def _parallel(code: int) -> Any:
    return _KERNEL(code)


def per_chunk(entry: str, constants: Constants, x: Array, *more: int, chunk: int = CHUNK) -> Array:
    """The word that a kernel gives for each chunk of x; more: its further arguments."""
    words = np.empty(chunks_of(x.size, chunk), np.int64)
    run_kernel(entry, constants, (address(x), x.size, chunk, address(words), *more), len(words))
    return words


def behaved(*arrays: Array) -> bool:
    """Whether kernels can read them as they are."""
    return all(a.flags.num & _BEHAVED == _BEHAVED and a.dtype.isnative for a in arrays)


def dtype_of(array: Array) -> DType | None:
    """The dtype of numbers or bools; None of others."""
    return None if array.dtype.hasobject else as_dtype(array.dtype)


def chunks_of(size: int, chunk: int = CHUNK) -> int:
    """How many chunks there are."""
    return -(-size // chunk)


def starts_of(counts: Array) -> Array:
    """Where each chunk's results begin, and where the last ones end: i64[len(counts) + 1]."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
