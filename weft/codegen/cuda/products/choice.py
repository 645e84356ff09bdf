"""Which tile a product is done in, and into how many parts k is cut: by the sizes alone.

An estimate of what a GPU of 132 multiprocessors takes (an H100), in cycles, is compared for each
tile and some numbers of parts. No device is asked, so the order of sums is the same on all of them.

A multiprocessor has 4 schedulers, each of which starts an instruction of a warp a cycle. What a
step of k takes of them was counted in machine code for sm_90 (docs/performance.md). A warp for
itself is taken to start one every second cycle: small blocks, of few warps, are slow alone.
"""

from __future__ import annotations

from weft.codegen.cuda.products.tiles import TILES, TILES_OF_64, Tile
from weft.ir.sizes import fixed, of_sizes

MULTIPROCESSORS, SCHEDULERS = 132, 4
#: Cycles between the instructions of a warp.
APART = 2
#: What a block takes beside its steps of k: the first elements from memory, its sums to memory.
BLOCK_CYCLES = 1500
#: A launch more, which adds up parts; bytes of them that are written or read in a cycle.
LAUNCH_CYCLES, BYTES_PER_CYCLE = 3000, 2000
#: A part of k has at least so many numbers.
LEAST_RUN = 128
#: Numbers of parts that are compared.
PARTS = tuple(sorted(n << k for n in (1, 3) for k in range(9)))
#: Instructions of a warp for a step of k, by the size of the tile; of elements of 64 bits: those
#: of f64 are started every second cycle.
INSTRUCTIONS = {128: 83, 64: 47, 32: 29}
INSTRUCTIONS_OF_64 = {64: 46, 32: 50}


def choose(
    sizes: tuple[int, int, int], count: int, *, wide: bool, whole: bool = False
) -> tuple[Tile, int]:
    """For `count` products of m rows, n columns and k: the tile, and how many parts of k are best.

    sizes: (m, n, k). wide: elements of 64 bits. whole: k is not cut."""
    m, n, k = sizes
    number, parts = _chosen(m, n, k, count, wide, whole)
    return _tiles(wide)[fixed(number)], parts


def tiles_in(m: int, n: int, tile: Tile) -> int:
    """Tiles of a matrix."""
    return -(-m // tile.size) * -(-n // tile.size)


def _tiles(wide: bool) -> tuple[Tile, ...]:
    return TILES_OF_64 if wide else TILES


@of_sizes
def _chosen(m: int, n: int, k: int, count: int, wide: bool, whole: bool) -> tuple[int, ...]:
    most = 1 if whole else max(k // LEAST_RUN, 1)
    best = min(
        (cycles((m, n, k), count, tile, parts, wide), parts, number)
        for number, tile in enumerate(_tiles(wide))
        for parts in PARTS
        if parts <= most
    )
    return best[2], best[1]


def cycles(sizes: tuple[int, int, int], count: int, tile: Tile, parts: int, wide: bool) -> int:
    """The estimate for `count` products of `sizes` (m, n, k)."""
    m, n, k = sizes
    blocks = tiles_in(m, n, tile) * count * parts
    each = -(-blocks // MULTIPROCESSORS)
    rounds = -(-each // tile.resident)
    instructions = (INSTRUCTIONS_OF_64 if wide else INSTRUCTIONS)[tile.size]
    busy = each * tile.threads // 32 * instructions // SCHEDULERS
    alone = rounds * APART * instructions
    taken = -(-k // parts) * max(busy, alone) + rounds * BLOCK_CYCLES
    if parts > 1:
        moved = 2 * parts * m * n * count * (8 if wide else 4)
        taken += LAUNCH_CYCLES + moved // BYTES_PER_CYCLE
    return taken
