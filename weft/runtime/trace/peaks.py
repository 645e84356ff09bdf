"""Peak rates of this machine, measured by kernels made for that: bytes per second by cache level,
multiply-adds.

They are written out in vectors as wide as the machine has, so that what is measured is the
machine's limit and not LLVM's choice of width.

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
from llvmlite import ir

from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.llvm.target import has_feature
from weft.ir.dataclass import dataclass
from weft.runtime.native.machine import Caches, caches, cpu_name, free_memory
from weft.runtime.native.pool import POOL
from weft.runtime.trace.replay import Repeat

#: Vectors that a loop of a stream kernel handles per iteration.
UNROLL = 4
#: Stream kernels: name -> arrays of the three that they touch (out, a, b), all f32.
STREAMS = {"copy": 2, "memcpy": 2, "triad": 3, "sum": 1, "copy_streaming": 2}
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def vector_bytes() -> int:
    """The width of the widest vector registers for floating point."""
    if has_feature("avx512f"):
        return 64
    return 32 if has_feature("avx") else 16


def fma_count() -> int:
    """Accumulators of an FMA kernel: more than two units with a latency of five need, and no more
    than fit into the registers beside the factors."""
    registers = 32 if vector_bytes() == 64 or has_feature("neon") else 16
    return 12 if registers == 16 else 16


def stream_kernel(name: str) -> Kernel:
    """One of `STREAMS`. Arguments: out, a, b, elements, bytes between units, repeats.

    copy: out = a; memcpy: the same by the C library; triad: out = a + 3 b; sum: out[0] = sum(a);
    copy_streaming: copy with stores that go around the caches. Every unit handles its own
    `elements` (a multiple of `UNROLL` vectors, aligned to 64 bytes) `repeats` times.
    """
    width = vector_bytes()
    return Kernel(f"peak-stream-1-{name}-{width}", f"stream_{name}", _stream(name, width // 4))


def fma_kernel(dtype: str) -> Kernel:
    """Arguments: address of 64 bytes per worker and of the factors (two elements), iterations.

    Each unit does `iterations * fma_count()` multiply-adds of vectors of `dtype` (f32, f64).
    """
    width, count = vector_bytes(), fma_count()
    size = 4 if dtype == "f32" else 8
    emit = _fma(_F32 if dtype == "f32" else _F64, width // size, count)
    return Kernel(f"peak-fma-2-{dtype}-{width}-{count}", f"fma_{dtype}", emit)


def _stream(name: str, lanes: int) -> Callable[[Emitter], None]:
    vector = ir.VectorType(_F32, lanes)

    def emit(e: Emitter) -> None:
        bases = [e.argument(k) for k in range(3)]
        elements, stride, repeats = (e.argument(k) for k in range(3, 6))
        step = e.index(lanes * UNROLL)
        with e.for_range(e.lo, e.hi) as unit, e.for_range(e.index(0), repeats):
            b = e.builder
            moved = b.mul(unit, stride)
            pointers = [b.inttoptr(b.add(p, moved), _F32.as_pointer()) for p in bases]
            if name == "memcpy":
                _memcpy(e, pointers[0], pointers[1], elements)
            else:
                with e.loop_function("pass", pointers, [elements]) as (inner, (out, x, y), (n,)):
                    _pass(inner, name, vector, (out, x, y), n, step)

    return emit


def _memcpy(e: Emitter, out: ir.Value, given: ir.Value, elements: ir.Value) -> None:
    byte = ir.IntType(8).as_pointer()
    copy = e.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
    ends = [e.builder.bitcast(p, byte) for p in (out, given)]
    size = e.builder.mul(elements, e.index(4))
    e.builder.call(copy, [*ends, size, ir.Constant(ir.IntType(1), 0)])


def _pass(
    e: Emitter,
    name: str,
    vector: ir.Type,
    arrays: tuple[ir.Value, ...],
    n: ir.Value,
    step: ir.Value,
) -> None:
    out, x, y = arrays
    b, lanes = e.builder, vector.count

    def place(base: ir.Value, i: ir.Value, k: int) -> ir.Value:
        at = e.at(base, b.add(i, e.index(k * lanes)))
        return b.bitcast(at, vector.as_pointer())

    zero = ir.Constant(vector, [0.0] * lanes)
    three = ir.Constant(vector, [3.0] * lanes)
    sums = [e.alloca(vector) for _ in range(UNROLL)] if name == "sum" else []
    for total in sums:
        b.store(zero, total)
    with e.for_range(e.index(0), n, step) as i:
        for k in range(UNROLL):
            held = b.load(place(x, i, k))
            if name == "sum":
                b.store(b.fadd(b.load(sums[k]), held), sums[k])
                continue
            if name == "triad":
                held = b.fadd(held, b.fmul(three, b.load(place(y, i, k))), flags=("contract",))
            stored = b.store(held, place(out, i, k))
            if name == "copy_streaming":
                one = e.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
                stored.set_metadata("nontemporal", one)
    for total in sums[1:]:
        b.store(b.fadd(b.load(sums[0]), b.load(total)), sums[0])
    if sums:
        b.store(b.load(sums[0]), place(out, e.index(0), 0))


def _fma(element: ir.Type, lanes: int, count: int) -> Callable[[Emitter], None]:
    vector = ir.VectorType(element, lanes)
    suffix = f"v{lanes}f{32 if element is _F32 else 64}"

    def emit(e: Emitter) -> None:
        sink, factors, iterations = (e.argument(k) for k in range(3))
        b = e.builder
        sink = b.add(sink, b.mul(e.worker, e.index(64)))
        pointers = [
            b.inttoptr(sink, vector.as_pointer()), b.inttoptr(factors, element.as_pointer())
        ]  # fmt: skip
        fma = ir.Function(e.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.{suffix}")
        total = b.mul(b.sub(e.hi, e.lo), iterations)
        with e.loop_function("fma", pointers, [total]) as (inner, (out, given), (n,)):
            _multiply_adds(inner, fma, count, out, given, n)

    return emit


def _multiply_adds(
    e: Emitter, fma: ir.Function, count: int, out: ir.Value, given: ir.Value, n: ir.Value
) -> None:
    b = e.builder
    vector = fma.function_type.return_type
    scale, offset = (_splat(e, b.load(e.at(given, e.index(k))), vector) for k in range(2))
    sums = [e.alloca(vector) for _ in range(count)]
    for k, total in enumerate(sums):
        b.store(ir.Constant(vector, [1.0 + k / 64] * vector.count), total)
    with e.for_range(e.index(0), n):
        for total in sums:
            b.store(b.call(fma, [b.load(total), scale, offset]), total)
    held = b.load(sums[0])
    for total in sums[1:]:
        held = b.fadd(held, b.load(total))
    b.store(held, out)


def _splat(e: Emitter, value: ir.Value, vector: ir.Type) -> ir.Value:
    b = e.builder
    undefined = ir.Constant(vector, ir.Undefined)
    held = b.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return b.shuffle_vector(held, undefined, mask)


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
