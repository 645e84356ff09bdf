"""Peak rates of this machine, measured: bytes per second by cache level, multiply-adds.

As in STREAM (McCalpin 1995) a copy counts the bytes that it reads and those that it writes; lines
that the processor reads before it writes them are not counted. Each figure is the best of several
rounds, with one thread and with all that weft uses."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.kernels.peaks import (
    STREAMS,
    UNROLL,
    fma_count,
    fma_kernel,
    stream_kernel,
    vector_bytes,
)
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.ir.dataclass import dataclass
from weft.runtime.native.machine import Caches, caches, cpu_name, free_memory
from weft.runtime.native.pool import POOL
from weft.runtime.trace.replay import Repeat

#: Measured figures are good for so long: neighbours come and go.
GOOD_FOR_SECONDS = 600.0
MEMORY = "memory"
_LARGEST = 1 << 30  # bytes of the three arrays in memory
_ROUND_SECONDS = 1e-3  # short: a busy machine interrupts few of many short rounds
_BLOCK = 1 << 18  # bytes that a thread takes at a time of arrays in memory
_FILE = "peaks-4.json"

_Pair = tuple[float, float]


@dataclass(frozen=True)
class Peaks:
    """Peak rates of this machine. threads: how many "all" are. bandwidth: level -> stream kernel ->
    bytes per second with (one, all threads). flops: dtype -> operations per second likewise, a
    multiply-add being two. caches: bytes by level, of one core. vector_bits: of the widest vectors.
    when: seconds since the epoch.
    """

    cpu: str
    threads: int
    caches: dict[str, int]
    caches_assumed: bool
    bandwidth: dict[str, dict[str, _Pair]]
    flops: dict[str, _Pair]
    vector_bits: int
    when: float

    def level(self, nbytes: int, threads: int = 1) -> str:
        """The level whose bandwidth limits a kernel that touches `nbytes` again and again.

        The private levels of all threads count together. Data up to half as large again as a level
        are counted to it: much of them stays there.
        """
        private = [name for name in self.bandwidth if name != MEMORY]
        for name in private:
            shared = name == "L3"
            if nbytes <= 1.5 * self.caches[name] * (1 if shared else threads):
                return name
        return MEMORY

    def bytes_per_second(self, level: str, threads: int = 1) -> float:
        """The fastest stream kernel at a level, with one or with all threads."""
        which = 0 if threads == 1 else 1
        return max(pair[which] for pair in self.bandwidth[level].values())

    def flops_per_second(self, dtype: str, threads: int = 1) -> float:
        """Multiply-adds of the widest vectors; 64-bit types by f64, all others by f32."""
        return self.flops["f64" if dtype == "f64" else "f32"][0 if threads == 1 else 1]


_held: Peaks | None = None


def machine_peaks(*, quick: bool = False, folder: Path | None = None) -> Peaks:
    """The peaks, measured now unless that was done within `GOOD_FOR_SECONDS`.

    folder: where they are kept for other processes (None: nowhere). quick: fewer rounds, a figure
    may be some percent low, and smaller arrays in memory, of which a cache may hold a part; not
    kept for other processes.
    """
    global _held
    if _held is None or not _fits(_held):
        _held = _read(folder)
    if _held is None:
        _held = measure_peaks(quick=quick)
        if not quick:
            _write(folder, _held)
    return _held


def measure_peaks(*, quick: bool = False) -> Peaks:
    """Measure: one or two seconds."""
    threads, rounds = POOL.limit, 5 if quick else 20
    bandwidth = {}
    for level, (each, units) in _sizes(caches(), threads, quick).items():
        names = [n for n in STREAMS if level == MEMORY or n != "copy_streaming"]
        arrays = [_aligned(each * units) for _ in range(3)]
        few = max(5, rounds // 3) if level == MEMORY else rounds  # one pass takes milliseconds
        bandwidth[level] = {n: _stream_rates(n, arrays, each, units, threads, few) for n in names}
    flops = {dtype: _fma_rates(dtype, threads, rounds) for dtype in ("f32", "f64")}
    found = caches()
    return Peaks(
        cpu_name(), threads, dict(found.levels), found.assumed, bandwidth, flops,
        8 * vector_bytes(), time.time(),
    )  # fmt: skip


def _sizes(found: Caches, threads: int, quick: bool) -> dict[str, tuple[int, int]]:
    """Per level: bytes of one array of one unit, and how many units there are for all threads."""
    step = UNROLL * vector_bytes()
    out = {}
    below = 0
    for name, size in sorted(found.levels.items()):
        together = size // 2 // (threads if name == "L3" else 1)
        if together > below:
            out[name] = (max(step, together // 3 // step * step), threads)
        below = 2 * size
    # every array alone is four times what the caches hold: the sum reads only one
    array = max(2 * found.last if quick else 4 * found.last, 32 << 20)
    array = min(
        array, (_LARGEST // 4 if quick else _LARGEST) // 3, max(free_memory() // 9, 16 << 20)
    )
    out[MEMORY] = (_BLOCK, array // _BLOCK)
    return out


def _stream_rates(
    name: str, arrays: list[Any], each: int, units: int, threads: int, rounds: int
) -> _Pair:
    """Bytes per second with one and with all threads. In a cache every thread has arrays of its
    own, and goes over them again and again."""
    kernel = stream_kernel(name)
    bases = [int(a.ctypes.data) for a in arrays]
    in_cache = units == threads
    repeats = max(1, int(2e5) // each) if in_cache else 1
    words = np.array([*bases, each // 4, each, repeats], np.int64)
    touched = STREAMS[name] * each * repeats

    def rate(used: int) -> float:
        many = units if used > 1 or not in_cache else 1
        return touched * many / _best(kernel, words, many, used, rounds)

    return _both(rate, threads)


def _fma_rates(dtype: str, threads: int, rounds: int) -> _Pair:
    kernel = fma_kernel(dtype)
    iterations = 2000
    sink = _aligned(64 * max(threads, 1))
    factors = np.array([0.999, 0.001], np.float32 if dtype == "f32" else np.float64)
    words = np.array([sink.ctypes.data, factors.ctypes.data, iterations], np.int64)
    lanes = vector_bytes() // factors.itemsize
    each = 2.0 * lanes * fma_count() * iterations

    def rate(used: int) -> float:
        return each * 8 * used / _best(kernel, words, 8 * used, used, rounds)

    return _both(rate, threads)


def _both(rate: Callable[[int], float], threads: int) -> _Pair:
    """With one and with all threads; all do not do less than one, whatever a busy machine shows."""
    alone = rate(1)
    return alone, max(alone, rate(threads)) if threads > 1 else alone


def _best(kernel: Kernel, words: Any, units: int, threads: int, rounds: int) -> float:
    """Seconds of one call, the least of several rounds."""
    address = compile_kernels([kernel])[kernel.key]
    pool, most = POOL.enter(threads, 0) if threads > 1 else (0, 1)
    repeat = Repeat(words, [(address, 0, units, int(threads > 1))], pool, most)
    once = min(repeat.seconds(1) for _ in range(2))
    count = max(1, int(_ROUND_SECONDS / once))
    return min(repeat.seconds(count) for _ in range(rounds))


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    held = np.zeros(nbytes + 64, np.uint8)
    start = -held.ctypes.data % 64
    part = held[start : start + nbytes]
    part.fill(0)  # the pages are there before the clock runs
    return part


# ---------------------------------------------------------------------------------------- on disk


def _fits(peaks: Peaks) -> bool:
    fresh = 0 <= time.time() - peaks.when < GOOD_FOR_SECONDS
    same = peaks.cpu == cpu_name() and peaks.vector_bits == 8 * vector_bytes()
    return fresh and same and peaks.threads == POOL.limit


def _read(folder: Path | None) -> Peaks | None:
    if folder is None:
        return None
    try:
        held = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if held.pop("host") != platform.node():
            return None
        for rates in (held["flops"], *held["bandwidth"].values()):
            for name, pair in rates.items():
                rates[name] = (float(pair[0]), float(pair[1]))
        peaks = Peaks(**held)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None  # not there, or of another version: measured anew
    return peaks if _fits(peaks) else None


def _write(folder: Path | None, peaks: Peaks) -> None:
    if folder is None:
        return
    text = json.dumps({"host": platform.node(), **asdict(peaks)})
    other = folder / f"{_FILE}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        other.write_text(text, encoding="utf-8")
        other.replace(folder / _FILE)
    except OSError:
        return  # a cache that cannot be written is no cache
