"""Nests that read across their last two loops: tiles of such an operand turn in shared memory.

A tile is 32 x 32. What is contiguous in the last loop but one is read along it, 32 threads side by
side, and taken from shared memory along the last loop, in which everything else is contiguous. A
row of a tile has one element more than it needs, so that neither way meets one memory bank twice.
"""

from __future__ import annotations

from weft.codegen.cuda.kernel import THREADS, Launch
from weft.codegen.cuda.language import memory_dtype
from weft.codegen.cuda.nests.body import Body, Buffers, index_of
from weft.codegen.cuda.scalars.memory import loaded, nbytes
from weft.codegen.cuda.writer import Source, product
from weft.codegen.nests.cut import crosses
from weft.codegen.nests.nest import Nest

TILE = 32
#: Bytes of shared memory for tiles; what does not fit is read as it lies.
MOST_BYTES = 40960


def tiled_loads(nest: Nest) -> list[int]:
    """The loads that go through tiles: of a nest without reductions, those contiguous in the last
    loop but one."""
    if any(nest.reduced) or len(nest.extents) < 2 or min(nest.extents[-2:]) < 4:
        return []
    out, total = [], 0
    for k, access in enumerate(nest.loads):
        nbytes_ = TILE * (TILE + 1) * nbytes(access.dtype)
        if isinstance(access.leaf, int) and crosses(access) and total + nbytes_ <= MOST_BYTES:
            out.append(k)
            total += nbytes_
    return out


def transposed_launch(nest: Nest, buffers: Buffers) -> Launch:
    """The launch of a nest that has `tiled_loads`: a block for each tile."""
    s = Source(f"{nest.name}_transposed", index_of(nest))
    body = Body(s, nest, buffers)
    *outer, rows, columns = nest.extents
    tiled = {
        k: s.let(
            f"cuda.shared.array({TILE * (TILE + 1)}, {memory_dtype(nest.loads[k].dtype)})", "tile"
        )
        for k in tiled_loads(nest)
    }
    i_count, j_count = s.number("rows", rows), s.number("columns", columns)
    i_tiles, j_tiles = (s.number(f"tiles{k}", -(-n // TILE)) for k, n in enumerate((rows, columns)))
    extents = ["", *(s.number(f"n{k}", n) for k, n in enumerate(outer[1:], 1))][: len(outer)]
    *outside, i_tile, j_tile = s.split(
        s.let(s.block_index, "block"), [*(extents or []), i_tiles, j_tiles], "t"
    )
    x = s.let(s.mod(s.thread, s.const(TILE)), "x")
    y = s.let(s.div(s.thread, s.const(TILE)), "y")
    i0, j0 = (s.let(s.mul(t, s.const(TILE)), "first") for t in (i_tile, j_tile))
    steps = range(0, TILE, THREADS // TILE)
    i = s.let(s.add(i0, x), "i")
    for step in steps:
        j = s.let(s.add(j0, s.add(y, s.const(step))), "j")
        with s.block(f"if {i} < {i_count} and {j} < {j_count}"):
            body.begin()
            for k, tile in tiled.items():
                access = nest.loads[k]
                place = body.place(access.offset, access.strides, [*outside, i, j])
                spot = s.add(s.mul(s.add(y, s.const(step)), s.const(TILE + 1)), x)
                s.line(f"{tile}[{spot}] = {body.loads[k]}[{place}]")
    s.line("cuda.syncthreads()")
    j = s.let(s.add(j0, x), "j")
    for step in steps:
        i = s.let(s.add(i0, s.add(y, s.const(step))), "i")
        with s.block(f"if {i} < {i_count} and {j} < {j_count}"):
            body.begin()
            spot = s.let(s.add(s.mul(x, s.const(TILE + 1)), s.add(y, s.const(step))), "spot")
            turned = {
                k: [s.let(loaded(nest.loads[k].dtype, f"{tile}[{spot}]"), "turned")]
                for k, tile in tiled.items()
            }
            at = [*outside, i, j]
            body.write(at, body.values(at, 1, turned))
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return s.launch(product(outer) * tiles)
