"""The memory of results, in `weft.codegen.native_language`: blocks, kept for reuse.

A block is aligned to a cache line, a large one to a huge page plus a cache line; the words before
it are its size class and, while it is free, the next free block of the class. Classes are a quarter
of a power of two apart. The functions are NumPy's allocator interface (NEP 49) and run with the GIL
held: arrays own their block, and give it back when they die.
"""

from __future__ import annotations

from weft.codegen.native_language import call, call32, load, store
from weft.runtime.native import layout as at


def capacity_of(number: int) -> int:
    return ((4 + (number & 3)) << (number >> 2)) << 4


def class_of(size: int) -> int:
    number = 0
    while capacity_of(number) < size:
        number += 1
    return number


def pool_trim(pool: int) -> int:
    """Give all free blocks back to the system."""
    number = 0
    while number < at.POOL_CLASSES:
        block = load(pool + at.P_HEADS + 8 * number)
        store(pool + at.P_HEADS + 8 * number, 0)
        while block != 0:
            following = load(block + at.BLOCK_NEXT)
            call(load(pool + at.P_FREE), block - at.BLOCK_HEADER)
            block = following
        number += 1
    store(pool + at.P_KEPT, 0)
    return 0


def take_block(pool: int, number: int) -> int:
    capacity = capacity_of(number)
    block = load(pool + at.P_HEADS + 8 * number)
    if block != 0:
        store(pool + at.P_HEADS + 8 * number, load(block + at.BLOCK_NEXT))
        store(pool + at.P_KEPT, load(pool + at.P_KEPT) - capacity)
        return block
    alignment = 64
    if capacity >= at.HUGE:
        alignment = at.HUGE_PAGE
    size = (capacity + at.BLOCK_HEADER + alignment - 1) & (0 - alignment)
    raw = call(load(pool + at.P_ALIGNED_ALLOC), alignment, size)
    if raw == 0:
        pool_trim(pool)
        raw = call(load(pool + at.P_ALIGNED_ALLOC), alignment, size)
        if raw == 0:
            return 0
    if capacity >= at.HUGE:
        if load(pool + at.P_MADVISE) != 0:
            call32(load(pool + at.P_MADVISE), raw, size, at.MADV_HUGEPAGE)
    block = raw + at.BLOCK_HEADER
    store(block + at.BLOCK_CLASS, number)
    return block


def pool_malloc(pool: int, size: int) -> int:
    """NumPy's malloc."""
    return take_block(pool, class_of(size))


def pool_calloc(pool: int, count: int, size: int) -> int:
    """NumPy's calloc."""
    block = pool_malloc(pool, count * size)
    if block != 0:
        call(load(pool + at.P_MEMSET), block, 0, count * size)
    return block


def pool_free(pool: int, block: int, size: int) -> int:
    """NumPy's free: the block is kept for the next result of its class, within the limit."""
    if block == 0:
        return 0
    number = load(block + at.BLOCK_CLASS)
    capacity = capacity_of(number)
    limit = load(pool + at.P_LIMIT)
    if capacity > limit:
        call(load(pool + at.P_FREE), block - at.BLOCK_HEADER)
        return 0
    if load(pool + at.P_KEPT) + capacity > limit:
        pool_trim(pool)
    store(block + at.BLOCK_NEXT, load(pool + at.P_HEADS + 8 * number))
    store(pool + at.P_HEADS + 8 * number, block)
    store(pool + at.P_KEPT, load(pool + at.P_KEPT) + capacity)
    return 0


def pool_realloc(pool: int, block: int, size: int) -> int:
    """NumPy's realloc, for `ndarray.resize`."""
    if block == 0:
        return pool_malloc(pool, size)
    held = capacity_of(load(block + at.BLOCK_CLASS))
    if size <= held:
        return block
    made = pool_malloc(pool, size)
    if made != 0:
        call(load(pool + at.P_MEMCPY), made, block, held)
        pool_free(pool, block, held)
    return made
