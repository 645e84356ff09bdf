"""Plain loop nests as launches: elementwise nests here, folds by `folds.py`.

Which kernel a nest becomes follows from its loops and extents alone. Nests without reductions are
one grid-stride loop over all elements, vector by vector; those that read across their last two
loops are transposed by tiles in shared memory. A tile is 32 x 32. What is contiguous in the last
loop but one is read along it, 32 threads side by side, and taken from shared memory along the last
loop, in which everything else is contiguous. A row of a tile has one element more than it needs, so
that neither way meets one memory bank twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.call import Address
from weft.codegen.cuda.nests.body import Body, Buffers, index_of, lanes_of
from weft.codegen.cuda.nests.folds import fold_launches
from weft.codegen.cuda.source.dtypes import DTYPES, loaded, nbytes
from weft.codegen.cuda.source.kernel import THREADS, Launch
from weft.codegen.cuda.source.language import memory_dtype
from weft.codegen.cuda.source.writer import Source, product
from weft.codegen.nests.cut import crosses
from weft.codegen.nests.nest import Nest
from weft.ir.errors import UnsupportedError

#: A grid has at most so many blocks; their threads go on in strides of the grid.
MOST_BLOCKS = 65536


def elementwise_launch(nest: Nest, buffers: Buffers) -> Launch:
    """The launch of a nest whose loops are all parallel."""
    if not nest.extents:
        nest = _one_loop(nest)
    lanes = lanes_of(nest)
    s = Source(f"{nest.name}_each", index_of(nest))
    body = Body(s, nest, buffers, lanes)
    items = product(nest.extents) // lanes
    count = s.number("items", items)
    first = s.let(s.add(s.mul(s.block_index, s.const(THREADS)), s.thread), "first")
    *outer, last = nest.extents
    inner = [s.number(f"n{k + 1}", n) for k, n in enumerate((*outer[1:], last // lanes)) if outer]
    step = s.let(s.mul(s.block_count, s.const(THREADS)), "step")
    with s.loop(first, count, step) as i:
        body.begin()
        at = s.split(i, ["", *inner] if outer else [""])
        if lanes > 1:
            at[-1] = s.let(s.mul(at[-1], s.const(lanes)), "j")
        body.write(at, body.values(at, lanes))
    if lanes > 1 and not outer:
        _tail(s, body, s.mul(count, s.const(lanes)), first, last % lanes)
    return s.launch(max(1, min(-(-items // THREADS), MOST_BLOCKS)))


def _tail(s: Source, body: Body, start: str, thread: str, rest: int) -> None:
    """The elements that make no whole vector, one each for the first threads."""
    with s.block(f"if {thread} < {s.number('rest', rest)}"):
        body.begin()
        at = [s.let(s.add(start, thread), "j")]
        body.write(at, body.values(at, 1))


def _one_loop(nest: Nest) -> Nest:
    """A single element as a loop of one iteration."""
    return replace(
        nest,
        extents=(1,),
        reduced=(False,),
        loads=tuple(replace(a, strides=(0,)) for a in nest.loads),
        stores=tuple(replace(w, strides=(0,)) for w in nest.stores),
    )


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


def plain_launches(
    nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[Launch]:
    """The launches of a nest on these buffers, in order; none if there is nothing to write.

    Buffers begin at multiples of 16 bytes. Launches with the same `Scratch` see the same memory.
    Raises UnsupportedError for an op, or a dtype, that has no GPU code.
    """
    _check_dtypes(nest)
    buffers = Buffers(outputs, operands)
    written = [n for n, reduced in zip(nest.extents, nest.reduced, strict=True) if not reduced]
    if product(written) == 0 or _picks_of_nothing(nest):
        return []
    if any(nest.reduced):
        return fold_launches(nest, buffers)
    if tiled_loads(nest):
        return [transposed_launch(nest, buffers)]
    return [elementwise_launch(nest, buffers)]


def _check_dtypes(nest: Nest) -> None:
    held = [access.dtype for access in nest.loads] + [store.dtype for store in nest.stores]
    other = next((dtype for dtype in held if dtype not in DTYPES), None)
    if other is not None:
        raise UnsupportedError(
            f"kernel '{nest.name}' on {other} has no GPU code",
            hint="complex numbers run on the CPU only",
        )


def _picks_of_nothing(nest: Nest) -> bool:
    """Whether indices pick from an axis of no elements: the check before tells of all of them."""
    return any(size == 0 for access in nest.loads for _, _, size in access.picks)
