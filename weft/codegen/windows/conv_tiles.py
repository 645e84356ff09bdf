"""Convolutions by register tiles over patches, without an im2col buffer: conv and conv_input.

The inner loops are a register tile of results, and the copy of a patch:

    tile(a, a_at, a_k, steps, count, b, b_k, rows, columns, c, c_at, add)

    c[c_at[r], j] (+)= sum over steps (at, row, length), i < length of
                           a[a_at[r] + at + i * a_k] * b[(row + i) * b_k + j]

for r < rows, j < columns: the tile of `weft.codegen.tiles.micro_kernel`, but with offsets from
tables (`weft.codegen.windows.geometry`). `a_at` and `c_at` are the two columns of one table, each
scaled.

conv and conv_input: the kernel w is packed once for the call into panels as wide as a tile,
transposed for conv_input. A unit is a block of rows of one item of the batch, or of some whole
items if those are small, or some panels of it; its thread copies the patch that the block sees into
its scratch (16-bit floats become f32 there) and makes

    for each group, for each panel: for each run of 256 products: for each 8 pixels: tile (+)=

so that a run of a panel stays in L1 and the patch in L2: a tile reads the patch where its pixels'
windows are. How the sum is cut follows from the sizes alone. `weft.codegen.windows.kernel_gradient`
has conv_kernel, whose tiles are the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    Code,
    KernelCall,
    Pool,
    Scratch,
    WorkerScratch,
    cut_call,
    worker_stride,
)
from weft.codegen.llvm.emitter import HALVES, I64, KERNEL_TYPE, Emitter, memory_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.products.calls import Follow
from weft.codegen.products.gemm import BLOCK_WORDS
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.tiles.micro_kernel import (
    I1,
    Accumulators,
    Asking,
    Forms,
    Tile,
    clamped_rows,
    for_each_form,
    internal_function,
    row_tiles,
    tile_of,
)
from weft.codegen.tiles.panels import Panels, constant_of, packed_constant
from weft.codegen.windows.geometry import (
    Gather,
    Sizes,
    Table,
    Triple,
    adjoint_gather,
    forward_gather,
    forward_patch,
    joined,
)
from weft.ir.cost.rates import (
    NS_PER_PACKED_ELEMENT,
    NS_PER_PATCH_ELEMENT,
    PRODUCTS_PER_OPERATION,
)
from weft.ir.spec import ConstArray

TABLE = I64.as_pointer()


def emit_tiles(e: Emitter, tile: Tile) -> Forms:
    """Define the tile functions."""
    return for_each_form(tile, partial(_emit_tile, e, tile))


def _emit_tile(e: Emitter, tile: Tile, rows: int, vectors: int, asks: bool = False) -> ir.Function:
    p = tile.element.as_pointer()
    kinds = [p, TABLE, I64, I64, TABLE, I64, p, I64, I64, I64, p, I64, I1, *[I64] * asks]
    with internal_function(e, f"tile{rows}x{vectors}", kinds, (10,)) as (function, f):
        _Tile(f, tile, rows, vectors, list(function.args)).write()
    return function


class _Tile:
    """Arguments: a, pixels, a_scale, a_k, steps, count, b, b_k, rows, columns, c, c_scale, add, and
    `Accumulators.soon` of what asks."""

    def __init__(
        self, e: Emitter, tile: Tile, rows: int, vectors: int, args: list[ir.Value]
    ) -> None:
        self.e, self.tile, self.rows, self.args = e, tile, rows, args
        self.accumulators = Accumulators(e, tile, rows, vectors, args[9], *args[13:])

    def write(self) -> None:
        e, b = self.e, self.e.builder
        a, pixels, a_scale, _, steps, count = self.args[:6]
        rows = []
        for i in clamped_rows(e, self.rows, self.args[8]):
            at = b.load(e.at(pixels, b.mul(i, e.index(2))))
            rows.append(e.at(a, b.mul(at, a_scale)))
        size = self.rows * self.accumulators.vectors
        kind = self.accumulators.v.kind
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("step", "step.body", "step.done"))
        b.branch(head)
        b.position_at_end(head)
        t = b.phi(I64)
        sums = [b.phi(kind) for _ in range(size)]
        b.cbranch(b.icmp_signed("<", t, count), body, after)
        b.position_at_end(body)
        step = e.at(steps, b.mul(t, e.index(3)))
        at, row, length = (b.load(e.at(step, e.index(k))) for k in range(3))
        following = self._run(rows, (at, b.mul(row, self.args[7])), length, sums)
        t.add_incoming(e.index(0), before)
        t.add_incoming(b.add(t, e.index(1)), b.block)
        for phi, value in zip(sums, following, strict=True):
            phi.add_incoming(self.accumulators.v.zero(), before)
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        self._store(sums)

    def _run(
        self,
        rows: list[ir.Value],
        start: tuple[ir.Value, ir.Value],
        length: ir.Value,
        sums: list[ir.Value],
    ) -> list[ir.Value]:
        a_k, b_at, b_k = self.args[3], self.args[6], self.args[7]
        return self.accumulators.run(rows, start, (a_k, b_k), b_at, length, None, sums)

    def _store(self, sums: list[ir.Value]) -> None:
        e, b = self.e, self.e.builder
        pixels, count, c, c_scale, add = (self.args[k] for k in (1, 8, 10, 11, 12))

        def place(r: int) -> ir.Value:
            return e.at(c, b.mul(b.load(e.at(pixels, e.index(2 * r + 1))), c_scale))

        self.accumulators.store(sums, [partial(place, r) for r in range(self.rows)], count, add)


def emit_patch_copy(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define copy(source, target, channels, and for each of A, B, C: first, extent of the patch,
    size of the source): a patch as accumulators, zeros where the source has nothing.
    """
    kinds = [memory_type(dtype).as_pointer(), tile.element.as_pointer(), *[I64] * 10]
    with internal_function(e, "patch", kinds, (0, 1)) as (function, f):
        source, target, channels, *axes = function.args
        (a0, a_count, a_size), (b0, b_count, b_size), (c0, c_count, c_size) = (
            axes[3 * k : 3 * k + 3] for k in range(3)
        )
        b, zero = f.builder, f.index(0)
        none = ir.Constant(tile.element, 0)

        def clamp(v: ir.Value, high: ir.Value) -> ir.Value:
            v = b.select(b.icmp_signed(">", v, zero), v, zero)
            return b.select(b.icmp_signed("<", v, high), v, high)

        left = clamp(b.neg(c0), c_count)
        right = clamp(b.sub(c_size, c0), c_count)
        right = b.select(b.icmp_signed(">", right, left), right, left)
        left, right, whole = (b.mul(v, channels) for v in (left, right, c_count))
        with f.for_range(zero, a_count) as i, f.for_range(zero, b_count) as j:
            to = f.at(target, b.mul(b.add(b.mul(i, b_count), j), whole))
            at_a, at_b = b.add(i, a0), b.add(j, b0)
            inside = b.and_(b.icmp_unsigned("<", at_a, a_size), b.icmp_unsigned("<", at_b, b_size))
            begin = b.select(inside, left, whole)
            end = b.select(inside, right, whole)
            row = b.mul(b.add(b.mul(at_a, b_size), at_b), c_size)
            from_ = f.at(source, b.mul(b.add(row, c0), channels))
            with f.for_range(zero, begin) as k:
                b.store(none, f.at(to, k))
            with f.for_range(begin, end) as k:
                b.store(load_element(f, f.at(from_, k), dtype), f.at(to, k))
            with f.for_range(end, whole) as k:
                b.store(none, f.at(to, k))
    return function


def copy_patches(
    e: Emitter,
    w: dict[str, ir.Value],
    copy: ir.Function,
    source: ir.Value,
    patch: ir.Value,
    block: tuple[ir.Value, ir.Value],
) -> None:
    """Copy what a block sees of each of its items; block: its first item and its number in that."""
    b, (image, number) = e.builder, block
    first = b.add(w["first_a"], b.mul(number, w["patch_step"]))
    with e.for_range(e.index(0), least(b, w["images"], b.sub(w["batch"], image))) as i:
        from_ = e.at(source, b.mul(b.add(image, i), w["image"]))
        b.call(copy, [
            from_, e.at(patch, b.mul(i, w["patch"])), w["channels"], first, w["patch_a"],
            w["size_a"], w["first_b"], w["patch_b"], w["size_b"], w["first_c"], w["patch_c"],
            w["size_c"],
        ])  # fmt: skip


WORDS = (
    "out", "source", "panels", "scratch", "scratch_bytes", "pixels", "phases", "phase_count",
    "runs", "steps", "images", "batch", "blocks", "cycle", "patch_a", "patch_b", "patch_c",
    "first_a", "first_b", "first_c", "patch_step", "size_a", "size_b", "size_c", "patch",
    "channels", "channels_out", "groups", "depth", "width", "panel_width", "panel_rows",
    "block_out", "image_out", "image", "patch_bytes", "parts", "part_width", "soon", "epilogue",
)  # fmt: skip
#: A patch is not larger, if more than one row of results can be cut off: it stays in L2.
PATCH_BYTES = 1 << 18
#: A call is cut into so many units at least, if its batch and rows allow.
LEAST_UNITS = 16
#: Rows of a panel between what a tile reads and what it asks for: the run after the next.
SOON = 384
#: Pixels of a unit, at least: fewer would pay for their patch and for reading the panels.
LEAST_PIXELS = 64
#: Whole items are joined to units of so many pixels, if there are no more: each reads all panels.
JOINED_PIXELS = 144


def pool(table: Table) -> Pool:
    """A table as an argument of a call."""
    return Pool(ConstArray(table))


def panel_vectors(width: int, tile: Tile) -> int:
    """Vectors of a panel: equal shares of the vectors that `width` channels fill."""
    vectors = max(1, -(-width // tile.lanes))
    return -(-vectors // -(-vectors // tile.vectors))


def rows_of_block(batch: int, sizes: Triple, row_bytes: int, step: int) -> int:
    """Rows of results of a block, a multiple of `step`. row_bytes: of the patch, per row."""
    rows, inner = sizes[0], max(1, sizes[1] * sizes[2])
    most = max(1, PATCH_BYTES // max(1, row_bytes))
    cuts = -(-LEAST_UNITS // max(1, batch))
    rows = min(rows, most, max(-(-rows // cuts), -(-LEAST_PIXELS // inner)))
    blocks = max(1, -(-sizes[0] // max(1, rows)))
    rows = -(-sizes[0] // blocks)  # equal blocks: threads end together
    return -(-rows // step) * step


def direct_calls(
    forward: bool, s: Sizes, out: Arg, x: Address, w: Address, follow: Follow | None = None
) -> list[KernelCall]:
    """The calls of a conv (forward) or conv_input of floats: packing, and the blocks, which are
    handed to an epilogue instead of `out` if there is one.
    """
    tile = tile_of(s.dtype)
    item = 8 if tile.dtype == "f64" else 4
    depth, width = (s.inside, s.outside) if forward else (s.outside, s.inside)
    channels, channels_out = depth * s.groups, width * s.groups
    source, result = (s.large, s.small) if forward else (s.small, s.large)
    step = 1 if forward else s.strides[0]
    patch_row = forward_patch(s, 1).extents if forward else source
    bytes_a_row = patch_row[1] * patch_row[2] * channels * item * (s.strides[0] if forward else 1)
    rows = rows_of_block(s.batch, result, -(-bytes_a_row // step), step)
    g = forward_gather(s, rows) if forward else adjoint_gather(s, rows)
    images = _joined(s.batch, math.prod(result), g, channels * item)
    items = -(-s.batch // images)  # of so many images
    if images > 1:
        g = joined(g, images, s.batch - (items - 1) * images, math.prod(result))
    panel = panel_vectors(width, tile) * tile.lanes
    panels = -(-width // panel)
    packed: Scratch | Pool = Scratch(max(64, s.groups * panels * s.taps * depth * panel * item))
    if (held := constant_of(w)) is not None:
        sizes, strides = (s.groups, s.taps, depth, width), _steps_of(s, forward)
        made = Panels(w.offset // held.dtype.itemsize, sizes, strides, panel, tile.dtype)
        packed = packed_constant(w, made)
    inner = result[1] * result[2]
    patch = math.prod(g.patch.extents) * channels
    patch_bytes = worker_stride(images * patch * item)
    halves = s.dtype in HALVES
    block_out = (rows * inner if images == 1 else images * math.prod(result)) * channels_out
    block_bytes = block_out * item if halves or follow else 0
    scratch = max(64, patch_bytes + block_bytes)
    # too few blocks for many threads: cut the channels too (16-bit floats leave a block as a whole)
    parts = 1 if halves else min(panels, -(-LEAST_UNITS // max(1, items * g.blocks)))
    parts = -(-panels // -(-panels // parts))
    args: tuple[Arg, ...] = (
        out, x, packed, WorkerScratch(scratch),
        worker_stride(scratch), pool(g.pixels), pool(g.phases), len(g.phases), pool(g.runs),
        pool(g.steps), images, s.batch, g.blocks, g.blocks if images == 1 else items,
        *g.patch.extents, *g.patch.first, g.patch.step, *source, patch, channels, channels_out,
        s.groups, depth, width, panel, s.taps * depth, block_out, math.prod(result) * channels_out,
        math.prod(source) * channels, patch_bytes,
        parts, -(-panels // parts) * panel, SOON * panel, Code(follow.kernel) if follow else 0,
        *(follow.args if follow else ()),
    )  # fmt: skip
    units = items * g.blocks * parts
    work = s.multiply_adds + (
        PRODUCTS_PER_OPERATION * follow.statements * s.pixels(forward) if follow else 0
    )
    cost = work / max(1, units) / tile.multiply_adds_per_ns + images * _copied(g, channels)
    kernel = Kernel(
        f"conv-7-{s.dtype}-{tile.key}", f"conv_{s.dtype}", lambda e: _Conv(e, tile, s.dtype).write()
    )
    blocks = cut_call(kernel, args, units, cost)
    if isinstance(packed, Pool):
        return [blocks]
    return [_packing(w, s, tile, packed, (depth, width, panel), forward), blocks]


def _joined(batch: int, pixels: int, g: Gather, pixel_bytes: int) -> int:
    """How many items of the batch are a block, equal shares of them."""
    if g.blocks > 1 or 2 * pixels > JOINED_PIXELS:
        return 1
    patch = math.prod(g.patch.extents) * pixel_bytes
    most = max(1, min(JOINED_PIXELS // max(1, pixels), 2 * PATCH_BYTES // max(1, patch)))
    return -(-batch // max(1, -(-batch // most)))


def _steps_of(s: Sizes, forward: bool) -> tuple[int, int, int, int]:
    """The steps of w per group, tap, channel in and channel out of the product."""
    outside = s.outside * s.groups
    return s.outside, s.inside * outside, *((outside, 1) if forward else (1, outside))


def _copied(g: Gather, channels: int) -> float:
    """Nanoseconds to copy a patch, about."""
    a, b, c = g.patch.extents
    return a * b * c * channels * NS_PER_PATCH_ELEMENT


def _packing(
    w: Address, s: Sizes, tile: Tile, packed: Scratch, sizes: Triple, forward: bool
) -> KernelCall:
    """args: w, target, depth, width, panel width, taps, panels, then steps of w per tap, row,
    column, group.
    """
    depth, width, panel = sizes
    panels = -(-width // panel)
    group, *strides = _steps_of(s, forward)
    args: tuple[Arg, ...] = (
        w, packed, depth, width, panel, s.taps, panels, *strides, group,
    )  # fmt: skip
    kernel = Kernel(
        f"conv-pack-1-{s.dtype}-{tile.dtype}",
        f"conv_pack_{s.dtype}",
        lambda e: _emit_packing(e, tile, s.dtype),
    )
    units = s.groups * panels * s.taps
    return cut_call(kernel, args, units, depth * panel * NS_PER_PACKED_ELEMENT)


def _emit_packing(e: Emitter, tile: Tile, dtype: str) -> None:
    w, target = e.pointer_argument(0, dtype), e.argument(1)
    target = e.builder.inttoptr(target, tile.element.as_pointer())
    numbers = [*(e.argument(k) for k in range(2, 11)), e.lo, e.hi]
    with e.loop_function("pack", [w, target], numbers) as (f, (w, target), values):
        depth, width, panel, taps, panels, tap_step, row_step, column_step, group_step, lo, hi = (
            values
        )
        b = f.builder
        with f.for_range(lo, hi) as unit:
            tap, rest = b.srem(unit, taps), b.sdiv(unit, taps)
            p, group = b.srem(rest, panels), b.sdiv(rest, panels)
            to = f.at(target, b.mul(unit, b.mul(depth, panel)))
            first = b.mul(p, panel)
            at = b.add(b.mul(tap, tap_step), b.mul(group, group_step))
            source = f.at(w, b.add(at, b.mul(first, column_step)))
            left = b.sub(width, first)
            left = b.select(b.icmp_signed("<", left, panel), left, panel)
            with f.for_range(f.index(0), depth) as i:
                row, row_to = f.at(source, b.mul(i, row_step)), f.at(to, b.mul(i, panel))
                with f.for_range(f.index(0), left) as j:
                    b.store(
                        load_element(f, f.at(row, b.mul(j, column_step)), dtype), f.at(row_to, j)
                    )
                with f.for_range(left, panel) as j:
                    b.store(ir.Constant(tile.element, 0), f.at(row_to, j))


def least(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The smaller of two numbers."""
    return b.select(b.icmp_signed("<", x, y), x, y)


class _Conv:
    def __init__(self, e: Emitter, tile: Tile, dtype: str) -> None:
        self.e, self.tile, self.dtype = e, tile, dtype
        self.word = {name: e.argument(k) for k, name in enumerate(WORDS)}
        self.out, self.source = e.pointer_argument(0, dtype), e.pointer_argument(1, dtype)
        element = tile.element.as_pointer()
        b, w = e.builder, self.word
        self.panels = b.inttoptr(w["panels"], element)
        start = b.add(w["scratch"], b.mul(e.worker, w["scratch_bytes"]))
        self.patch = b.inttoptr(start, element)
        self.block = b.inttoptr(b.add(start, w["patch_bytes"]), element)
        names = ("pixels", "phases", "runs", "steps")
        self.pixels, self.phases, self.runs, self.steps = (b.inttoptr(w[n], TABLE) for n in names)

    def write(self) -> None:
        e, b, w = self.e, self.e.builder, self.word
        tile = self.tile
        self.tiles = emit_tiles(e, tile)
        self.asking = _emit_tile(e, tile, tile.rows, tile.vectors, asks=True)
        copy = emit_patch_copy(e, self.tile, self.dtype)
        halves = self.dtype in HALVES
        store = _emit_store(e, self.tile, self.dtype) if halves else None
        zero = e.index(0)
        held = e.alloca(I64)  # the block whose patch is in the scratch
        b.store(e.index(-1), held)
        with e.for_range(e.lo, e.hi) as unit:
            block, part = b.sdiv(unit, w["parts"]), b.srem(unit, w["parts"])
            image = b.mul(b.sdiv(block, w["blocks"]), w["images"])
            number = b.srem(block, w["blocks"])
            with b.if_then(b.icmp_signed("!=", b.load(held), block)):
                copy_patches(e, w, copy, self.source, self.patch, (image, number))
            b.store(block, held)
            before = b.mul(number, w["block_out"])
            out = e.at(self.out, b.add(b.mul(image, w["image_out"]), before))
            images = least(b, w["images"], b.sub(w["batch"], image))
            left = b.sub(b.mul(images, w["image_out"]), before)
            is_last = b.icmp_signed("==", b.srem(block, w["cycle"]), b.sub(w["cycle"], e.index(1)))
            plain = b.icmp_signed("==", w["epilogue"], zero)
            target = self.block if halves else b.select(plain, out, self.block)
            size = least(b, w["block_out"], left)
            rows = b.sdiv(size, w["channels_out"])
            row = b.sdiv(b.add(b.mul(image, w["image_out"]), before), w["channels_out"])
            with e.for_range(zero, w["groups"]) as group:
                self._group(group, part, target, is_last)
                with b.if_then(b.not_(plain)):
                    self._epilogue(group, part, row, rows)
            if store is not None:
                b.call(store, [self.block, out, size])

    def _group(self, group: ir.Value, part: ir.Value, out: ir.Value, is_last: ir.Value) -> None:
        e, b, w = self.e, self.e.builder, self.word
        a = e.at(self.patch, b.mul(group, w["depth"]))
        panels = b.sdiv(b.add(w["width"], b.sub(w["panel_width"], e.index(1))), w["panel_width"])
        panel_size = b.mul(w["panel_rows"], w["panel_width"])
        start = b.mul(part, w["part_width"])
        stop = least(b, b.add(start, w["part_width"]), w["width"])
        with e.for_range(start, stop, w["panel_width"]) as j:
            number = b.add(b.mul(group, panels), b.sdiv(j, w["panel_width"]))
            panel = e.at(self.panels, b.mul(number, panel_size))
            columns = least(b, b.sub(w["width"], j), w["panel_width"])
            c = e.at(out, b.add(b.mul(group, w["width"]), j))
            with e.for_range(e.index(0), w["phase_count"]) as phase:
                row = e.at(self.phases, b.mul(phase, e.index(5)))
                first, full, last, run, run_end = (b.load(e.at(row, e.index(k))) for k in range(5))
                count = b.select(is_last, last, full)
                with e.for_range(run, run_end) as r:
                    add = b.icmp_signed(">", r, run)
                    self._run(r, a, panel, columns, c, (first, count), add)

    def _epilogue(self, group: ir.Value, part: ir.Value, row: ir.Value, rows: ir.Value) -> None:
        """Hand the finished columns of a block over; see `weft.codegen.products.calls`."""
        e, b, w = self.e, self.e.builder, self.word
        first = b.mul(part, w["part_width"])
        columns = least(b, b.sub(w["width"], first), w["part_width"])
        column = b.add(b.mul(group, w["width"]), first)
        words = b.ptrtoint(e.at(e.arguments, e.index(len(WORDS))), I64)
        tile = b.ptrtoint(e.at(self.block, column), I64)
        values = (tile, w["channels_out"], row, rows, column, columns, e.index(0), words)
        where = b.bitcast(e.alloca(ir.ArrayType(I64, len(BLOCK_WORDS))), I64.as_pointer())
        for k, value in enumerate(values):
            b.store(value, e.at(where, e.index(k)))
        function = b.inttoptr(w["epilogue"], KERNEL_TYPE.as_pointer())
        b.call(function, [where, e.index(0), e.index(1), e.worker])

    def _run(
        self,
        run: ir.Value,
        a: ir.Value,
        panel: ir.Value,
        columns: ir.Value,
        c: ir.Value,
        pixels: tuple[ir.Value, ir.Value],
        add: ir.Value,
    ) -> None:
        e, b, w = self.e, self.e.builder, self.word
        place = e.at(self.runs, b.mul(run, e.index(2)))
        first, stop = b.load(place), b.load(e.at(place, e.index(1)))
        steps = e.at(self.steps, b.mul(first, e.index(3)))
        with row_tiles(e, self.tile, pixels[1]) as (t, few, height):
            at = e.at(self.pixels, b.mul(b.add(pixels[0], t), e.index(2)))
            args = [
                a, at, w["channels"], e.index(1), steps, b.sub(stop, first), panel,
                w["panel_width"], height, columns, c, w["channels_out"], add,
            ]  # fmt: skip
            asking = Asking(self.asking, w["panel_width"], w["soon"])
            asking.call_or(e, self.tile, t, (few, columns), args, self.tiles)


def _emit_store(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define store(block, out, size): accumulators rounded to 16-bit floats."""
    kinds: Sequence[ir.Type] = [tile.element.as_pointer(), memory_type(dtype).as_pointer(), I64]
    with internal_function(e, "store", kinds, (0, 1)) as (function, f):
        block, out, size = function.args
        with f.for_range(f.index(0), size) as i:
            store_element(f, f.builder.load(f.at(block, i)), f.at(out, i), dtype)
    return function
