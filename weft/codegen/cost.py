"""Cost model of threads: whether a kernel call is cut over them, and into chunks of what size.

The answer depends on the call's sizes alone, never on the machine or its thread count: what a
thread takes at a time is the same everywhere, and so are the bits.
"""

from __future__ import annotations

#: Below this much work a call stays on the calling thread (benchmarks/threads.py measures where a
#: second thread begins to win).
WORTH_CUTTING_NS = 16_000.0
#: A chunk is not smaller than this: taking one costs an atomic add and a call, about 0.1 us.
CHUNK_NS = 4_000.0
#: Chunks of one call: enough that 32 threads end within a few percent of each other.
MOST_CHUNKS = 128
#: A byte of elements that are moved one by one: through indices, windows, strides.
NS_PER_BYTE = 0.1
#: A byte that is streamed: 50 GB/s of one core from memory, more from a cache.
NS_PER_BYTE_STREAMED = 0.02


def split(units: int, nanoseconds_per_unit: float) -> int:
    """The chunk of a call of so many units: how many a thread takes at a time; 0: do not cut."""
    total = units * nanoseconds_per_unit
    if units < 2 or total < WORTH_CUTTING_NS:
        return 0
    chunks = max(1, min(MOST_CHUNKS, units, int(total // CHUNK_NS)))
    chunk = -(-units // chunks)
    return chunk if chunk < units else 0
