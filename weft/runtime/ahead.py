"""Compiling what every step needs before the first step is asked for."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

import weft.codegen.llvm.engine  # noqa: F401 - or the first step would wait for its modules
from weft.codegen.jit import compile_kernels, start_compiling
from weft.codegen.pool.emit import PARALLEL
from weft.codegen.pool.worker import CONTROL, WORKER
from weft.codegen.steps.walker import ARRAY_DATA_OFFSET, WALKER
from weft.ir.errors import InternalError


@cache
def compile_ahead() -> None:
    """Begin to compile, or to load from disk, the code that does not depend on the step: what every
    step waits for first, the pool's last (steps use one thread until it is there)."""
    start_compiling([WALKER, WORKER, CONTROL, PARALLEL])


@cache
def native_walker() -> tuple[int, Any]:
    """The walker's address, and it as a ctypes function (which releases the GIL), after a check of
    NumPy's layout."""
    probe = np.zeros(1)
    seen = ctypes.c_int64.from_address(id(probe) + ARRAY_DATA_OFFSET).value
    if seen != probe.ctypes.data:
        raise InternalError(
            "this NumPy keeps an array's data pointer where weft does not look for it"
        )
    address = compile_kernels([WALKER])[WALKER.key]
    return address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
