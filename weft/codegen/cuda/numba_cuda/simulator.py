"""Launches of kernels as Python runs their text: Numba's simulator of CUDA, with a scheduler of
weft's own. It needs Numba alone; blocks follow each other.

Each thread of a block is a thread of this process, and one runs at a time: until it waits for
others (`syncthreads`, a shuffle, a vote) or ends. Numba's own scheduler lets all run at once and
asks each again and again whether it waits, which is slower; and here threads that wait for others
in vain are found, for then none can run.

It is for reading and for a second opinion: hundreds to thousands of times slower than the emulator
of weft's own (`codegen/cuda/emulator`), which knows nothing of Numba."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from weft.codegen.cuda.numba_cuda.language import simulating
from weft.codegen.cuda.numba_cuda.text import numba_text
from weft.codegen.cuda.source.kernel import WARP, CudaKernel
from weft.ir.process import ForkLock

Array = np.ndarray[Any, Any]
#: The simulator runs one launch at a time.
_lock = ForkLock()


def simulate(kernel: CudaKernel, blocks: int, threads: int, args: Sequence[Array | int]) -> None:
    """Run the kernel on a grid. args: an array whose elements lie in a row for each pointer, as
    memory has them, and a number for each integer.

    Raises what the kernel raises as Python, with the thread and the block: IndexError for an access
    out of bounds, and RuntimeError if threads wait for others that do not come."""
    # who simulates nothing does not wait for Numba
    from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAModule

    simulator: Any = FakeCUDAModule
    run = _loaded(kernel)
    given = [a if isinstance(a, np.ndarray) else np.int64(a) for a in args]

    def body() -> None:
        with np.errstate(all="ignore"):  # NumPy's warnings are settings of a thread
            run(*given)

    with _lock:
        run.__globals__["cuda"] = simulator((blocks, 1, 1), (threads, 1, 1), 0)
        for block in range(blocks):
            _run_block([Thread(k, threads, block, body, Dim3) for k in range(threads)])


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


class Thread(threading.Thread):
    """A thread of a block, which runs when it is given its turn. Numba's `cuda.threadIdx`,
    `blockIdx` and `syncthreads` are those of Python's current thread."""

    def __init__(
        self, index: int, threads: int, block: int, body: Callable[[], None], dim3: Any
    ) -> None:
        super().__init__(daemon=True)
        self.thread_id = index
        self.threadIdx = dim3(index, 0, 0)
        self.blockIdx = dim3(block, 0, 0)
        self.error: Exception | None = None
        self.ended = False
        #: For whom it waits (equal for those who wait for each other), how many of them there are
        #: (0: all that have not ended), what it brings them, and what they all brought, in order.
        self.waits: Hashable = None
        self.count = 0
        self.brought: Any = None
        self.taken: list[tuple[int, Any]] = []
        self._threads = threads
        self._body = body
        self._stopped = False
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()

    def run(self) -> None:
        self._turn.acquire()
        try:
            if not self._stopped:
                self._body()
        except _Stopped:
            pass
        except Exception as error:
            self.error = error
        self.ended = True
        self._back.release()

    def go(self) -> None:
        """Let it run until it waits or has ended."""
        self._turn.release()
        self._back.acquire()

    def stop(self) -> None:
        """Let it end here."""
        self._stopped = True
        if not self.ended:
            self.go()

    def meet(self, key: Hashable, count: int, value: Any) -> list[tuple[int, Any]]:
        """Wait for the others with this key; the thread and the value of each, in their order."""
        self.waits, self.count, self.brought = key, count, value
        self._back.release()
        self._turn.acquire()
        if self._stopped:
            raise _Stopped
        return self.taken

    def exchange(self, mask: int, value: Any) -> list[tuple[int, Any]]:
        """The lane and the value of each lane of the mask in this thread's warp."""
        warp = self.thread_id // WARP
        there = min(WARP, self._threads - warp * WARP)
        count = (mask & ((1 << there) - 1)).bit_count()
        return [(k % WARP, v) for k, v in self.meet((warp, mask), count, value)]

    def syncthreads(self) -> None:
        self.meet("block", 0, None)

    def syncthreads_or(self, value: Any) -> bool:
        return any(said for _, said in self.meet("block", 0, bool(value)))


class _Stopped(BaseException):
    """Ends a thread whose block has failed."""


def _run_block(threads: list[Thread]) -> None:
    """Run the threads to their ends, each in its turn."""
    for thread in threads:
        thread.start()
    try:
        ready = living = threads
        while living:
            for thread in ready:
                thread.go()
                if thread.error is not None:
                    raise _named(thread.error, thread) from thread.error
            living = [t for t in living if not t.ended]
            ready = _met(living)
    finally:
        for thread in threads:
            thread.stop()


def _met(living: list[Thread]) -> list[Thread]:
    """The threads, of those that wait, whose others have all come; each has what they brought."""
    waiting: dict[Hashable, list[Thread]] = {}
    for thread in living:
        waiting.setdefault(thread.waits, []).append(thread)
    ready: list[Thread] = []
    for together in waiting.values():
        if len(together) == (together[0].count or len(living)):
            taken = [(t.thread_id, t.brought) for t in together]
            for thread in together:
                thread.taken = taken
            ready += together
    if living and not ready:
        error = RuntimeError("it waits for threads that have ended, or wait elsewhere")
        raise _named(error, living[0])
    return ready


def _named(error: Exception, thread: Thread) -> Exception:
    """The error, with its thread and block in its text."""
    text = f"tid=[{thread.threadIdx.x}] ctaid=[{thread.blockIdx.x}]: {error}"
    try:
        return type(error)(text)
    except TypeError:  # its type wants more than a text
        return RuntimeError(text)
