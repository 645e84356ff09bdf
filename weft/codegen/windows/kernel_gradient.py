"""conv_kernel, the gradient of a convolution in its kernel, as a matrix product over pixels.

Rows of the result are (tap, channel in), columns are channels out, and the sum runs over the pixels
of all items of the batch. It is cut into *blocks* of about `PIXELS` pixels: some rows of one item,
or some whole items where those are small. A thread copies what a block sees of x to a patch (zeros
where x has nothing), packs the block's rows of y into panels as wide as a tile, and makes

    for each panel of y: for each `tile.rows` rows: tile (+)=

with the tile of `weft.codegen.windows.conv_tiles`, rows and steps in the other's place: a panel
stays in L1 and the patch in L2. Where y is, its rows are an image's channels apart, often a power
of two, and would share few sets of the cache; they are read there if they are as dense as a panel,
or for few tiles. A block of more pixels is cut into *runs*.

Fixed parts of the blocks are summed apart, one block after another within a part, and the partial
results then added in order: the bits do not depend on threads. Rows are cut, too, where partial
results would be large or blocks are few."""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    KernelCall,
    Scratch,
    WorkerScratch,
    cut_call,
    worker_stride,
)
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.scalar.element_access import store_element
from weft.codegen.tiles.micro_kernel import (
    Tile,
    call_narrowest,
    row_tiles,
    tile_of,
)
from weft.codegen.tiles.packing import emit_pack_b
from weft.codegen.windows.conv_tiles import (
    TABLE,
    copy_patches,
    emit_patch_copy,
    emit_tiles,
    least,
    panel_vectors,
    pool,
)
from weft.codegen.windows.geometry import Patch, Sizes, Table, forward_patch
from weft.ir.cost.rates import streamed
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation

WORDS = (
    "target", "x", "y", "scratch", "scratch_bytes", "steps", "runs", "row_table", "full_runs",
    "all_runs", "images", "batch", "blocks", "cycle", "pairs", "pairs_each", "row_blocks",
    "rows_each", "rows", "patch_a", "patch_b", "patch_c", "first_a", "first_b", "first_c",
    "patch_step", "size_a", "size_b", "size_c", "patch", "channels", "channels_y", "groups",
    "inside", "outside", "chunk", "panel_width", "packs", "a_k", "block_y", "image_y", "image",
    "y_at", "partial",
)  # fmt: skip
#: Pixels of a block and of a run, about: so many rows of a panel stay near while tiles read them.
PIXELS = 256
#: The call is cut into so many units, if it has as many blocks or rows.
UNITS = 16
#: Tiles of rows of a unit: with fewer than some, packing y and copying x for each unit shows.
LEAST_TILES, MANY_TILES, LEAST_UNITS = 8, 32, 8
#: Partial results are of so many pixels, if rows can be cut as well, and all of so many bytes.
PIXELS_OF_PART, PARTIAL_BYTES = 1024, 8 << 20
#: The patches of the items of a block take no more: large windows see much.
PATCHES_BYTES = 4 << 20
#: Packed rows of y take no more, if they are more than one panel: they stay in L2.
PACKED_BYTES = 384 << 10


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The pixels of all items in blocks, all alike but the last of each `cycle`.

    images, rows: items of a block, and rows of each; blocks: of an item; pairs: of all. runs:
    (first step, last + 1, pixels before, pixels) of a whole block, then of a last one; steps:
    (offset in the patch, place in the run, pixels); a_k: elements of the patch between two pixels
    of a step.
    """

    images: int
    rows: int
    blocks: int
    pairs: int
    cycle: int
    patch: Patch
    runs: Table
    full_runs: int
    steps: Table
    a_k: int

    @property
    def longest(self) -> int:
        """Pixels of the longest run."""
        return int(self.runs[:, 3].max())


def kernel_gradient_calls(op: Operation, s: Sizes) -> list[KernelCall]:
    """The calls of a conv_kernel of floats: blocks, and the sum of their results."""
    tile = tile_of(s.dtype)
    item = tile.itemsize
    channels, channels_y = s.inside * s.groups, s.outside * s.groups
    b = _blocks_of(s, channels, item)
    rows = s.taps * s.inside
    elements = rows * channels_y
    parts, each, row_blocks, rows_each = _cuts(s, tile, b.pairs)
    row_table = np.stack([_places(s, b.patch, channels), np.arange(rows)], 1)
    panel = panel_vectors(s.outside, tile) * tile.lanes
    # whole vectors whose rows are as near to each other as in a panel, or that few tiles read
    dense = s.dtype == tile.dtype and s.outside % tile.lanes == 0
    few = rows <= LEAST_TILES * tile.rows
    packs = not (dense and (few or channels_y <= tile.columns))
    panels = max(1, PACKED_BYTES // (b.longest * tile.columns * item))
    panels = min(panels, -(-s.outside // panel))
    patch = math.prod(b.patch.extents) * channels
    ends = np.cumsum([
        worker_stride(b.images * patch * item),
        worker_stride(panels * b.longest * tile.columns * item),
    ])  # fmt: skip
    apart = parts > 1 or s.dtype != tile.dtype
    partial = Scratch(parts * elements * item)
    inner = s.small[1] * s.small[2]
    args: tuple[Arg, ...] = (
        partial if apart else Address(op.result), Address(op.operands[0]), Address(op.operands[1]),
        WorkerScratch(int(ends[1])), int(ends[1]), pool(b.steps), pool(b.runs), pool(row_table),
        b.full_runs, len(b.runs), b.images, s.batch, b.blocks, b.cycle, b.pairs, each, row_blocks,
        rows_each, rows, *b.patch.extents, *b.patch.first, b.patch.step, *s.large, patch, channels,
        channels_y, s.groups, s.inside, s.outside, panels * panel, panel, int(packs), b.a_k,
        b.rows * inner * channels_y, s.small[0] * inner * channels_y, math.prod(s.large) * channels,
        int(ends[0]), elements,
    )  # fmt: skip
    units = parts * row_blocks
    kernel = Kernel(
        f"conv-kernel-4-{s.dtype}-{tile.key}",
        f"conv_kernel_{s.dtype}",
        lambda e: _KernelGradient(e, tile, s.dtype).write(),
    )
    cost = s.multiply_adds / units / tile.multiply_adds_per_ns
    calls = [cut_call(kernel, args, units, cost)]
    if apart:
        calls.append(add_parts(op, tile, s.dtype, partial, parts, elements))
    return calls


def _cuts(s: Sizes, tile: Tile, pairs: int) -> tuple[int, int, int, int]:
    """Parts and blocks of each, blocks of rows and rows of each."""
    rows, pixels = s.taps * s.inside, s.batch * math.prod(s.small)
    tiles = -(-rows // tile.rows)
    most = PARTIAL_BYTES // (rows * s.outside * s.groups * tile.itemsize)
    enough = PIXELS_OF_PART if tiles >= LEAST_UNITS * LEAST_TILES else PIXELS
    parts = max(1, min(UNITS, pairs, most, -(-pixels // enough)))
    each = -(-pairs // parts)
    parts = -(-pairs // each)
    blocks = max(tiles // MANY_TILES, min(tiles // LEAST_TILES, -(-LEAST_UNITS // parts)))
    blocks = max(1, min(-(-UNITS // parts), blocks))
    rows_each = -(-tiles // blocks) * tile.rows
    return parts, each, -(-rows // rows_each), rows_each


def _blocks_of(s: Sizes, channels: int, item: int) -> _Blocks:
    inner = s.small[1] * s.small[2]
    blocks = -(-s.small[0] // max(1, PIXELS // inner))
    rows = -(-s.small[0] // blocks)  # equal blocks
    blocks = -(-s.small[0] // rows)
    patch = forward_patch(s, rows)
    images = 1
    if blocks == 1:
        fit = PATCHES_BYTES // max(1, math.prod(patch.extents) * channels * item)
        images = max(1, min(s.batch, PIXELS // (rows * inner), fit))
        images = -(-s.batch // -(-s.batch // images))  # equal blocks
    pairs = -(-s.batch // images) * blocks
    last_rows = s.small[0] - (blocks - 1) * rows
    last_images = s.batch - (-(-s.batch // images) - 1) * images
    full, a_k = _steps(s, patch, rows, images, channels)
    last, _ = _steps(s, patch, last_rows, last_images, channels)
    runs, more = _runs(full), _runs(last)
    more[:, :2] += len(full)
    return _Blocks(
        images, rows, blocks, pairs, blocks if images == 1 else pairs, patch,
        np.concatenate([runs, more]), len(runs), np.concatenate([full, last]), a_k,
    )  # fmt: skip


def _steps(s: Sizes, patch: Patch, rows: int, images: int, channels: int) -> tuple[Table, int]:
    """The steps of so many rows of so many items, each of `PIXELS` pixels at most, and `a_k`."""
    _, b, c = patch.extents
    each = math.prod(patch.extents) * channels
    if s.small[1] == s.small[2] == 1:  # a row is one pixel: a step is as long as they are many
        starts, length, a_k = np.zeros(1, np.int64), rows, s.strides[0] * b * c * channels
    else:
        i, j = np.arange(rows), np.arange(s.small[1])
        starts = ((i[:, None] * s.strides[0] * b + j * s.strides[1]) * c * channels).reshape(-1)
        length, a_k = s.small[2], s.strides[2] * channels
    cuts = np.arange(0, length, PIXELS)
    lengths = np.minimum(length - cuts, PIXELS)
    at = (np.arange(images)[:, None] * each + starts).reshape(-1, 1) + cuts * a_k
    lengths = np.broadcast_to(lengths, at.shape).reshape(-1)
    steps = np.stack([at.reshape(-1), np.zeros_like(lengths), lengths], 1).astype(np.int64)
    return steps, a_k


def _runs(steps: Table) -> Table:
    """The runs of steps of `PIXELS` pixels at most; each step's place in its run is filled in."""
    runs = []
    first = before = count = 0
    for k, length in enumerate(steps[:, 2]):
        if count and count + length > PIXELS:
            runs.append((first, k, before, count))
            first, before, count = k, before + count, 0
        steps[k, 1] = count
        count += int(length)
    runs.append((first, len(steps), before, count))
    return np.array(runs, np.int64)


def _places(s: Sizes, patch: Patch, channels: int) -> Table:
    """The offset in the patch of each row of the result, of the first pixel."""
    _, b, c = patch.extents
    offsets = [np.arange(k) * d for k, d in zip(s.window, s.dilation, strict=True)]
    at = (offsets[0][:, None, None] * b + offsets[1][:, None]) * c + offsets[2]
    return np.asarray((at.reshape(-1, 1) * channels + np.arange(s.inside)).reshape(-1), np.int64)


class _KernelGradient:
    def __init__(self, e: Emitter, tile: Tile, dtype: str) -> None:
        self.e, self.tile, self.dtype = e, tile, dtype
        self.word = {name: e.argument(k) for k, name in enumerate(WORDS)}
        element = tile.element.as_pointer()
        b, w = e.builder, self.word
        self.x, self.y = e.pointer_argument(1, dtype), e.pointer_argument(2, dtype)
        self.target = b.inttoptr(w["target"], element)
        start = b.add(w["scratch"], b.mul(e.worker, w["scratch_bytes"]))
        self.patch = b.inttoptr(start, element)
        self.rows_of_y = b.inttoptr(b.add(start, w["y_at"]), element)
        names = ("steps", "runs", "row_table")
        self.steps, self.runs, self.row_table = (b.inttoptr(w[n], TABLE) for n in names)

    def write(self) -> None:
        e, b, w = self.e, self.e.builder, self.word
        self.forms = emit_tiles(e, self.tile)
        self.copy = emit_patch_copy(e, self.tile, self.dtype)
        self.pack_y = emit_pack_b(e, self.tile, self.dtype)
        with e.for_range(e.lo, e.hi) as unit:
            part, row_block = b.sdiv(unit, w["row_blocks"]), b.srem(unit, w["row_blocks"])
            row = b.mul(row_block, w["rows_each"])
            rows = row, least(b, b.add(row, w["rows_each"]), w["rows"])
            target = e.at(self.target, b.mul(part, w["partial"]))
            first = b.mul(part, w["pairs_each"])
            stop = least(b, b.add(first, w["pairs_each"]), w["pairs"])
            with e.for_range(first, stop) as pair:
                self._block(pair, b.icmp_signed(">", pair, first), target, rows)

    def _block(
        self, pair: ir.Value, add: ir.Value, target: ir.Value, rows: tuple[ir.Value, ir.Value]
    ) -> None:
        e, b, w = self.e, self.e.builder, self.word
        zero, one = e.index(0), e.index(1)
        image = b.mul(b.sdiv(pair, w["blocks"]), w["images"])
        number = b.srem(pair, w["blocks"])
        copy_patches(e, w, self.copy, self.x, self.patch, (image, number))
        y = b.add(b.mul(image, w["image_y"]), b.mul(number, w["block_y"]))
        is_last = b.icmp_signed("==", b.srem(pair, w["cycle"]), b.sub(w["cycle"], one))
        first = b.select(is_last, w["full_runs"], zero)
        stop = b.select(is_last, w["all_runs"], w["full_runs"])
        with (
            e.for_range(zero, w["groups"]) as group,
            e.for_range(first, stop) as run,
            e.for_range(zero, w["outside"], w["chunk"]) as start,
        ):
            place = e.at(self.runs, b.mul(run, e.index(4)))
            step, end, before, count = (b.load(e.at(place, e.index(k))) for k in range(4))
            column = b.add(b.mul(group, w["outside"]), start)
            width = least(b, b.sub(w["outside"], start), w["chunk"])
            row_of_y = b.add(y, b.mul(before, w["channels_y"]))
            panels = self._panels(e.at(self.y, b.add(row_of_y, column)), width, count)
            a = e.at(self.patch, b.mul(group, w["inside"]))
            steps = a, e.at(self.steps, _times(e, step, 3)), b.sub(end, step)
            on_top = b.or_(add, b.icmp_signed(">", run, first))
            self._tiles(rows, steps, panels, (e.at(target, column), width), on_top)

    def _panels(
        self, y: ir.Value, width: ir.Value, count: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Some columns of a run of y, packed or where they are: the first panel, elements from one
        panel to the next, and from one row of a panel to the next."""
        e, b, w, columns = self.e, self.e.builder, self.word, self.tile.columns
        packs = b.icmp_signed("!=", w["packs"], e.index(0))
        size = _times(e, count, columns)
        with b.if_then(packs), e.for_range(e.index(0), width, w["panel_width"]) as j:
            some = least(b, b.sub(width, j), w["panel_width"])
            to = e.at(self.rows_of_y, b.mul(b.sdiv(j, w["panel_width"]), size))
            b.call(self.pack_y, [e.at(y, j), e.index(1), w["channels_y"], some, count, to])
        return (
            b.select(packs, self.rows_of_y, b.bitcast(y, self.rows_of_y.type)),
            b.select(packs, size, w["panel_width"]),
            b.select(packs, e.index(columns), w["channels_y"]),
        )

    def _tiles(
        self,
        rows: tuple[ir.Value, ir.Value],
        run: tuple[ir.Value, ir.Value, ir.Value],
        panels: tuple[ir.Value, ir.Value, ir.Value],
        columns: tuple[ir.Value, ir.Value],
        add: ir.Value,
    ) -> None:
        """All tiles of some columns of the result; run: the patch, its first step, and how many."""
        e, b, w, tile = self.e, self.e.builder, self.word, self.tile
        first, panel_size, b_k = panels
        with (
            e.for_range(e.index(0), columns[1], w["panel_width"]) as j,
            row_tiles(e, tile, b.sub(rows[1], rows[0])) as (i, few, height),
        ):
            table = e.at(self.row_table, _times(e, b.add(rows[0], i), 2))
            width = least(b, b.sub(columns[1], j), w["panel_width"])
            panel = e.at(first, b.mul(b.sdiv(j, w["panel_width"]), panel_size))
            args = [
                run[0], table, e.index(1), w["a_k"], *run[1:], panel, b_k, height, width,
                e.at(columns[0], j), w["channels_y"], add,
            ]  # fmt: skip
            call_narrowest(e, tile, self.forms, (few, width), args)


def _times(e: Emitter, value: ir.Value, number: int) -> ir.Value:
    """A value times a number."""
    return e.builder.mul(value, e.index(number))


def add_parts(
    op: Operation, tile: Tile, dtype: str, partial: Scratch, parts: int, elements: int
) -> KernelCall:
    """result[i] = partial[0][i] + partial[1][i] + ..., in order. Units: elements."""
    kernel = Kernel(
        f"conv-kernel-sum-1-{dtype}-{tile.dtype}",
        f"conv_kernel_sum_{dtype}",
        lambda e: _emit_sum(e, tile, dtype),
    )
    item = 8 if tile.dtype == "f64" else 4
    each = streamed((parts + 1) * item * elements) / max(elements, 1)
    return cut_call(kernel, (Address(op.result), partial, parts, elements), elements, each)


def _emit_sum(e: Emitter, tile: Tile, dtype: str) -> None:
    out, parts, elements = e.pointer_argument(0, dtype), e.argument(2), e.argument(3)
    partial = e.builder.inttoptr(e.argument(1), tile.element.as_pointer())
    with e.loop_function("sum", [out, partial], [parts, elements, e.lo, e.hi]) as (
        f,
        (out, partial),
        (parts, elements, lo, hi),
    ):
        b = f.builder
        block = f.index(1024)  # the sums of a block stay in L1: they are written to part 0
        with f.for_range(lo, hi, block) as start:
            stop = least(b, b.add(start, block), hi)
            with f.for_range(f.index(1), parts) as p:
                row = f.at(partial, b.mul(p, elements))
                with f.for_range(start, stop) as i:
                    held = f.at(partial, i)
                    b.store(b.fadd(b.load(held), b.load(f.at(row, i))), held)
            with f.for_range(start, stop) as i:
                store_element(f, b.load(f.at(partial, i)), f.at(out, i), dtype)
