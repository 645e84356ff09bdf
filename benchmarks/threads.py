"""The thread pool: what a cut call costs, what a second thread gives, and what is left of it when
the machine's processors are busy with something else.

    python benchmarks/threads.py [--json benchmarks/threads.json]

`empty call`: a step of 100 cut calls that do nothing, per call, for several numbers of chunks.
`compute-bound`, `sort`, ...: one call of a compiled function with 1 thread and with all.
`busy`: the same while as many spinning processes as there are processors run beside it; a pool that
handles this badly is slower there than one thread is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine
from rich.console import Console
from rich.table import Table

import weft as wf
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.steps.walker import CALL_WORDS, HEADER, WALKER
from weft.runtime.native.pool import POOL

CALLS = 100
#: Turns of each contestant, and the seconds of one.
ROUNDS, TURN = 25, 0.03
SPIN = "while True: pass"


def _nothing(e: Emitter) -> None:
    del e


def empty_call(chunks: int, threads: int) -> float:
    """Seconds of one cut call whose kernel does nothing: the least of many steps of CALLS calls."""
    kernel = Kernel("bench-nothing", "nothing", _nothing)
    addresses = compile_kernels([kernel, WALKER])
    pool, _ = POOL.enter(None, 0)
    row = [addresses[kernel.key], 0, chunks, 1] + [0] * (CALL_WORDS - 4)
    calls, words = np.array(row * CALLS, np.int64), np.zeros(4, np.int64)
    status, failed = ctypes.c_int64(0), ctypes.c_int64(-1)
    given = {
        **dict.fromkeys(HEADER, 0),
        "words": words.ctypes.data,
        "calls": calls.ctypes.data,
        "call_count": CALLS,
        "status": ctypes.addressof(status),
        "failed": ctypes.addressof(failed),
        "pool": pool,
        "threads": threads,
    }
    header = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses[WALKER.key])
    return min(_seconds(lambda: run(ctypes.addressof(header)), 2000)) / CALLS


def _seconds(run: Callable[[], object], rounds: int) -> list[float]:
    out = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        out.append(time.perf_counter() - started)
    return out


def _seconds_during(run: Callable[[], object], most: float) -> list[float]:
    """The times of the calls that fit into so many seconds; one turn holds several time slices."""
    out: list[float] = []
    until = time.perf_counter() + most
    while not out or time.perf_counter() < until:
        out += _seconds(run, 1)
    return out


def _workloads() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(1 << 20).astype(np.float32)
    square = rng.standard_normal((1024, 1024)).astype(np.float32)
    small = rng.standard_normal(1 << 15).astype(np.float32)

    def chain(x: Any) -> Any:
        return wf.tanh(wf.exp(-x * x) * wf.sin(x))

    def many(x: Any) -> Any:
        for _ in range(20):
            x = wf.cumulative_sum(wf.reshape(x, (128, -1)), axis=1) * 0.5
        return x

    return {
        "compute-bound, 2^20": (chain, (wide,)),
        "compute-bound, 2^15": (chain, (small,)),
        "20 short scans of 2^15": (many, (small,)),
        "sort of 1024 rows": (lambda x: wf.sort(x, axis=1), (square,)),
        "cumulative sum of rows": (lambda x: wf.cumulative_sum(x, axis=1), (square,)),
        "cumulative sum of one row": (lambda x: wf.cumulative_sum(x, axis=0), (wide,)),
        "sort of one row of 2^23": (wf.sort, (np.tile(wide, 8),)),
    }


def _compare(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Per workload: seconds with one thread and with all, in turn."""
    found = {}
    for name, (function, arguments) in _workloads().items():
        contestants = {
            "one": partial(wf.compile(threads=1)(function), *arguments),
            "all": partial(wf.compile(function), *arguments),
        }
        times: dict[str, list[float]] = {"one": [], "all": []}
        for _ in range(rounds):
            for label, run in contestants.items():
                times[label] += _seconds_during(run, TURN)
        found[name] = {
            k: {"minimum": min(v), "median": float(np.median(v)), "mean": float(np.mean(v))}
            for k, v in times.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures there")
    path = parser.parse_args().json
    threads = wf.get_num_threads()
    empty = {n: {t: empty_call(n, t) for t in (1, threads)} for n in (2, 16, 64)}
    quiet = _compare(ROUNDS)
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)
        busy = _compare(ROUNDS)
    finally:
        for process in spinners:
            process.kill()
            process.wait()
    _print(threads, empty, quiet, busy)
    if path:
        rows = {"threads": threads, "empty_call_seconds": empty, "quiet": quiet, "busy": busy}
        title = "Threads"
        text = json.dumps({"title": title, "machine": machine(), **rows}, indent=1)
        Path(path).write_text(text + "\n")


def _print(threads: int, empty: Any, quiet: Any, busy: Any) -> None:
    console = Console(width=140)
    table = Table(title=f"an empty cut call, 1 and {threads} threads (ns)")
    for column in ("chunks", "1 thread", f"{threads} threads"):
        table.add_column(column, justify="right")
    for chunks, times in empty.items():
        table.add_row(str(chunks), *(f"{t * 1e9:.0f}" for t in times.values()))
    console.print(table)
    table = Table(title=f"1 thread / {threads} threads: us, and how many times faster")
    for column in ("workload", "quiet: min", "median", "busy: min", "median", "mean"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name in quiet:
        cells = [(quiet, "minimum"), (quiet, "median"), (busy, "minimum"), (busy, "median"),
                 (busy, "mean")]  # fmt: skip
        table.add_row(name, *(_cell(where[name], what) for where, what in cells))
    console.print(table)


def _cell(times: dict[str, dict[str, float]], what: str) -> str:
    one, many = times["one"][what], times["all"][what]
    return f"{one * 1e6:.0f} / {many * 1e6:.0f} = {one / many:.2f}x"


if __name__ == "__main__":
    main()
