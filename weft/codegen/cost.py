"""Cost model of threads: whether a kernel call is cut over them, and into chunks of what size.

The answer depends on the call's sizes and on the width of the target's vectors, never on the thread
count: what a thread takes at a time is the same for any number of them, and so are the bits. The
prices of arithmetic and of streamed bytes are in `weft.ir.cost`.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.codegen.llvm.target import target_vector_bits
from weft.ir import cost
from weft.ir.cost import NS_PER_BYTE_CACHED, streamed
from weft.ir.sizes import hint, is_wide, now, of_sizes

__all__ = [
    "NS_PER_BYTE", "NS_PER_BYTE_CACHED", "arithmetic", "is_long", "narrower", "split", "streamed",
]  # fmt: skip

#: Below this much work a call stays on the calling thread. With a worker awake on a processor that
#: shares a cache, a cut costs 0.1 us and pays from 3 us on; where cache lines travel further it
#: costs 2 us and what half of the operands takes to come over, and pays from about 10 us on.
WORTH_CUTTING_NS = 12_000.0
#: A chunk is not smaller than this: taking one moves a cache line between processors.
CHUNK_NS = 4_000.0
#: From chunks that take so long on sleeping threads are woken before the first: the microseconds
#: that the caller needs for that are few then, and it would do the first alone.
LONG_CHUNK_NS = 25_000.0
#: Chunks of a call that is cut, at least: two threads that take three end unevenly.
LEAST_CHUNKS = 4
#: Chunks of one call: enough that 32 threads end within a few percent of each other.
MOST_CHUNKS = 128
#: A byte of elements that are moved one by one: through indices, windows, strides.
NS_PER_BYTE = 0.05
#: How many times as long vector arithmetic takes as `prices` say, which are for AVX-512, by the
#: bits of a vector. `benchmarks/prices.py` for each set on a Zen 4, whose vectors of 512 bits take
#: two steps: AVX2 1.2 to 2.1 (exp), SSE, without multiply-add, 2.4 to 6.
NARROWER = {512: 1.0, 256: 1.5, 128: 4.0}


def narrower() -> float:
    """The factor on prices of vector arithmetic for the target."""
    return NARROWER[target_vector_bits()]


def arithmetic(ops: Iterable[tuple[str, str]]) -> float:
    """`prices.arithmetic` on the target: nanoseconds of (op, operand dtype) pairs, one element."""
    return cost.arithmetic(ops) * narrower()


def split(units: int, nanoseconds_per_unit: float, multiple: int = 0) -> int:
    """The chunk of a call of so many units: how many a thread takes at a time; 0: do not cut.
    multiple: units that stay together (0: any may be parted)."""
    chunk = _any_chunk(units, nanoseconds_per_unit)
    if not (chunk and multiple):
        return chunk
    chunk = -(-chunk // multiple) * multiple
    return chunk if chunk < units else 0


def _any_chunk(units: int, nanoseconds_per_unit: float) -> int:
    total = units * nanoseconds_per_unit
    if not (is_wide(units) or is_wide(total)) and (units < 2 or total < WORTH_CUTTING_NS):
        return 0
    return _chunk(units, total)[0]


def is_long(chunk: int, nanoseconds_per_unit: float) -> bool:
    """Whether sleeping threads are to be woken before the first chunk of a call."""
    return bool(hint(chunk) and now(chunk * nanoseconds_per_unit) >= LONG_CHUNK_NS)


@of_sizes
def _chunk(units: int, total: float) -> tuple[int]:
    if units < 2 or total < WORTH_CUTTING_NS:
        return (0,)
    chunks = max(LEAST_CHUNKS, min(MOST_CHUNKS, int(total // CHUNK_NS)))
    chunk = -(-units // min(chunks, units))
    return (chunk if chunk < units else 0,)
