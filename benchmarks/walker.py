"""Why a step is a table: what a kernel call costs when native code walks a table of calls, and when
the step is compiled as one straight-line function - and what compiling that function costs.

    python benchmarks/walker.py
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from weft.codegen.llvm.emitter import KERNEL_TYPE, Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.steps.walker import HEADER, WALKER

CALLS = 200


def _emit_increment(e: Emitter) -> None:
    cell = e.pointer_argument(0, "i64")
    e.builder.store(e.builder.add(e.builder.load(cell), e.index(1)), cell)


def _emit_straight(e: Emitter) -> None:
    kernel = e.builder.inttoptr(e.argument(0), KERNEL_TYPE.as_pointer())
    for k in range(CALLS):
        rest = [e.index(0), e.index(1), e.index(0)]
        e.builder.call(kernel, [e.at(e.arguments, e.index(1 + k)), *rest])


def _seconds_per_call(address: int, argument: int) -> float:
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    best = float("inf")
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(1000):
            run(argument)
        best = min(best, (time.perf_counter() - started) / 1000)
    return best / CALLS


def main() -> None:
    increment = Kernel("bench-increment", "increment", _emit_increment)
    addresses = compile_kernels([increment, WALKER])
    started = time.perf_counter()
    straight = compile_kernels([Kernel("bench-straight", "straight", _emit_straight)])
    compiling = time.perf_counter() - started

    cells = np.zeros(CALLS, np.int64)
    words = cells.ctypes.data + 8 * np.arange(CALLS, dtype=np.int64)
    rows = [(addresses[increment.key], k, 1, 0) for k in range(CALLS)]
    calls, unused = np.array(rows, np.int64), np.zeros(3, np.int64)
    status, failed = ctypes.c_int64(0), ctypes.c_int64(-1)
    given = {
        **dict.fromkeys(HEADER, 0),
        "words": words.ctypes.data,
        "calls": calls.ctypes.data,
        "call_count": CALLS,
        "patches": unused.ctypes.data,
        "slots": unused.ctypes.data,
        "status": ctypes.addressof(status),
        "failed": ctypes.addressof(failed),
        "threads": 1,
    }
    header = np.array([given[name] for name in HEADER], np.int64)
    arguments = np.concatenate([[addresses[increment.key]], words]).astype(np.int64)
    table = Table(title=f"{CALLS} kernels that increment a number")
    for column in ("form of the step", "ns a kernel, minimum", "ms to compile the step"):
        table.add_column(column)
    walked = _seconds_per_call(addresses[WALKER.key], header.ctypes.data)
    direct = _seconds_per_call(straight["bench-straight"], arguments.ctypes.data)
    table.add_row("table, walked", f"{walked * 1e9:.2f}", "0")
    table.add_row("straight-line function", f"{direct * 1e9:.2f}", f"{compiling * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
