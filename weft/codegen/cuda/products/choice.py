"""Which tile a product is done in, and into how many parts k is cut: by the sizes alone.

An estimate of what a GPU of 132 multiprocessors takes (an H100), in cycles, is compared for each
tile and some numbers of parts. No device is asked, so the order of sums is the same on all of them,
but within what one instruction of tensor cores adds.

A multiprocessor has 4 schedulers, each of which starts an instruction of a warp a cycle. What a
step of k takes of them was counted in machine code for sm_90 (docs/performance.md). A warp for
itself is taken to start one every second cycle: small blocks, of few warps, are slow alone.

Tensor cores are taken to do 1024 multiply-adds of 16-bit floats a cycle and multiprocessor: all
that an A100 does, half of what an H100 does by instructions of another sort (wgmma); by those that
are used here it is said to do some 60 % of that. Nothing of this has been measured.
"""

from __future__ import annotations

from weft.codegen.cuda.products.tiles import TENSOR_TILES, TILES, TILES_OF_64, Tile
from weft.codegen.cuda.scalars.memory import HALVES, nbytes
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
#: For 16 steps of k, on tensor cores; multiply-adds of those in a cycle.
INSTRUCTIONS_OF_16 = {128: 228, 64: 187}
TENSOR_STEPS, TENSOR_RATE = 16, 1024
_TILES = {16: TENSOR_TILES, 32: TILES, 64: TILES_OF_64}
_INSTRUCTIONS = {16: INSTRUCTIONS_OF_16, 32: INSTRUCTIONS, 64: INSTRUCTIONS_OF_64}


def choose(
    sizes: tuple[int, int, int],
    count: int,
    *,
    bits: int,
    whole: bool = False,
    largest: int = TILES[0].size,
) -> tuple[Tile, int]:
    """For `count` products of m rows, n columns and k: the tile, and how many parts of k are best.

    sizes: (m, n, k). bits: see `bits_of`. whole: k is not cut. largest: size of a tile."""
    m, n, k = sizes
    number, parts = _chosen(m, n, k, count, bits, whole, largest)
    return _TILES[bits][fixed(number)], parts


def bits_of(dtype: str) -> int:
    """Which tiles elements of `dtype` have: 16 (floats, on tensor cores), 32 or 64."""
    return 16 if dtype in HALVES else 64 if nbytes(dtype) == 8 else 32


def tiles_in(m: int, n: int, tile: Tile) -> int:
    """Tiles of a matrix."""
    return -(-m // tile.size) * -(-n // tile.size)


@of_sizes
def _chosen(
    m: int, n: int, k: int, count: int, bits: int, whole: bool, largest: int
) -> tuple[int, ...]:
    most = 1 if whole else max(k // LEAST_RUN, 1)
    best = min(
        (cycles((m, n, k), count, tile, parts, bits), parts, number)
        for number, tile in enumerate(_TILES[bits])
        if tile.size <= largest
        for parts in PARTS
        if parts <= most
    )
    return best[2], best[1]


def cycles(sizes: tuple[int, int, int], count: int, tile: Tile, parts: int, bits: int) -> int:
    """The estimate for `count` products of `sizes` (m, n, k)."""
    m, n, k = sizes
    blocks = tiles_in(m, n, tile) * count * parts
    each = -(-blocks // MULTIPROCESSORS)
    rounds = -(-each // tile.resident)
    instructions = _INSTRUCTIONS[bits][tile.size]
    busy = each * tile.threads // 32 * instructions // SCHEDULERS
    alone = rounds * APART * instructions
    steps, multiplied = 1, 0
    if tile.tensor:
        steps = TENSOR_STEPS
        multiplied = each * steps * tile.size * tile.size // TENSOR_RATE
    run = -(-k // parts)
    taken = -(-run // steps) * max(busy, alone, multiplied) + rounds * BLOCK_CYCLES
    if parts > 1:
        moved = 2 * parts * m * n * count * (8 if bits == 64 else 4)
        taken += LAUNCH_CYCLES + moved // BYTES_PER_CYCLE
    return taken
