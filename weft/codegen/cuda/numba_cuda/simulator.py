"""Launches of kernels on Numba's CUDA simulator: Python runs the printed text, with a thread of
this process for each thread of a block. It needs Numba alone; blocks follow each other.

It is for reading and for a second opinion: hundreds to thousands of times slower than the emulator
of weft's own (`codegen/cuda/emulator`), which knows nothing of Numba."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from weft.codegen.cuda.numba_cuda.language import simulating
from weft.codegen.cuda.numba_cuda.text import numba_text
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.ir.process import ForkLock

Array = np.ndarray[Any, Any]
#: The simulator runs one launch at a time.
_lock = ForkLock()


def simulate(kernel: CudaKernel, blocks: int, threads: int, args: Sequence[Array | int]) -> None:
    """Run the kernel on a grid. args: an array whose elements lie in a row for each pointer, as
    memory has them, and a number for each integer.

    Raises what the kernel raises as Python: IndexError for an access out of bounds, and
    threading.BrokenBarrierError if a lane of a warp does not come to a shuffle."""
    # who simulates nothing does not wait for Numba
    from numba.cuda.simulator.kernel import BlockManager
    from numba.cuda.simulator.kernelapi import FakeCUDAModule

    simulator: Any = FakeCUDAModule
    manager: Any = BlockManager
    run = _loaded(kernel)

    def quiet(*given: Any) -> None:  # NumPy's warnings are settings of a thread
        with np.errstate(all="ignore"):
            run(*given)

    given = [a if isinstance(a, np.ndarray) else np.int64(a) for a in args]
    grid, shape = (blocks, 1, 1), (threads, 1, 1)
    with _lock:
        run.__globals__["cuda"] = simulator(grid, shape, 0)
        for block in range(blocks):
            manager(quiet, grid, shape, False).run((block, 0, 0), *given)


@lru_cache(maxsize=256)
def _loaded(kernel: CudaKernel) -> Callable[..., None]:
    """The function of the kernel's text, as Python has it."""
    text = numba_text(kernel)
    where = f"<weft kernel {kernel.key}, simulated>"
    linecache.cache[where] = (len(text), None, text.splitlines(True), where)
    scope: dict[str, Any] = {"__name__": "weft_kernel"}
    with simulating():
        exec(compile(text, where, "exec"), scope)
    made: Any = scope[kernel.name]
    function: Callable[..., None] = made.py_func
    return function
