"""conv_kernel: the gradient of a convolution in its kernel, a product over all pixels.

Rows of the result are (tap, channel in), columns channels out, and the sum runs over the pixels of
all items: the tile of `weft.codegen.windows.micro` again, with rows and steps in the other's place.
Fixed blocks of the batch are summed apart, one after another within a block, and the partial
results then added in order: the bits do not depend on threads. Kernels that are large have no
partial results; their rows are cut instead.
"""

from __future__ import annotations

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
from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import HALVES
from weft.codegen.emitter import Emitter
from weft.codegen.gemm.micro import call_narrowest, row_tiles
from weft.codegen.gemm.tile import Tile, tile_of
from weft.codegen.jit import Kernel
from weft.codegen.windows.conv import least, panel_vectors, pool
from weft.codegen.windows.geometry import Sizes, Table, forward_patch
from weft.codegen.windows.micro import TABLE, emit_patch_copy, emit_tiles
from weft.ir.cost import streamed
from weft.ir.graph import Operation

WORDS = (
    "target", "x", "y", "scratch", "scratch_bytes", "row_table", "steps", "count", "count_last",
    "blocks", "pairs", "pairs_each", "row_blocks", "rows_each", "rows", "patch_a", "patch_b",
    "patch_c", "first_a", "first_b", "first_c", "patch_step", "size_a", "size_b", "size_c",
    "channels", "channels_y", "groups", "inside", "outside", "panel_width", "a_k", "block_y",
    "image_y", "image", "patch_bytes", "partial",
)  # fmt: skip
#: Pixels of a block: so many rows of y stay in L1 beside x.
PIXELS = 256
#: The call is cut into so many units, if it has as many blocks or rows.
UNITS = 16
#: Kernels from so many bytes on have no partial results: writing them would cost more.
LARGE = 1 << 20


def kernel_gradient_calls(op: Operation, s: Sizes) -> list[KernelCall]:
    """The calls of a conv_kernel of floats: blocks, and the sum of their results."""
    tile = tile_of(s.dtype)
    item = 8 if tile.dtype == "f64" else 4
    halves = s.dtype in HALVES
    inner = s.small[1] * s.small[2]
    rows = min(s.small[0], max(1, PIXELS // inner))
    blocks = -(-s.small[0] // rows)
    pairs = s.batch * blocks
    taps_rows = s.taps * s.inside
    elements = taps_rows * s.outside * s.groups
    large = elements * item >= LARGE
    parts = 1 if large else min(UNITS, pairs)
    each = -(-pairs // parts)
    parts = -(-pairs // each)
    row_blocks = min(UNITS, -(-taps_rows // tile.rows)) if large else 1
    tiles = -(-taps_rows // tile.rows)
    rows_each = -(-tiles // row_blocks) * tile.rows
    row_blocks = -(-taps_rows // rows_each)
    patch = forward_patch(s, rows)
    channels, channels_y = s.inside * s.groups, s.outside * s.groups
    row_table, steps, a_k, per_row = _tables(s, rows, channels)
    count_last = (s.small[0] - (blocks - 1) * rows) * per_row if per_row else 1
    if not per_row:  # one step for all rows: the last block's is apart
        steps = np.concatenate([steps, [[0, 0, s.small[0] - (blocks - 1) * rows]]])
    patch_bytes = -(-int(np.prod(patch.extents)) * channels * item // 64) * 64
    block_y = rows * inner * channels_y
    scratch = max(64, patch_bytes + (block_y * item if halves else 0))
    apart = parts > 1 or halves
    partial = Scratch(parts * elements * item)
    args: tuple[Arg, ...] = (
        partial if apart else Address(op.result), Address(op.operands[0]), Address(op.operands[1]),
        WorkerScratch(scratch), worker_stride(scratch), pool(row_table), pool(steps),
        rows * per_row, count_last if per_row else 0, blocks, pairs, each, row_blocks, rows_each,
        taps_rows, *patch.extents, *patch.first, patch.step, *s.large, channels, channels_y,
        s.groups, s.inside, s.outside, panel_vectors(s.outside, tile) * tile.lanes, a_k, block_y,
        s.small[0] * inner * channels_y, int(np.prod(s.large)) * channels, patch_bytes, elements,
    )  # fmt: skip
    units = parts * row_blocks
    kernel = Kernel(
        f"conv-kernel-3-{s.dtype}-{tile.key}",
        f"conv_kernel_{s.dtype}",
        lambda e: _ConvKernel(e, tile, s.dtype).write(),
    )
    cost = s.multiply_adds / units / tile.multiply_adds_per_ns
    calls = [cut_call(kernel, args, units, cost)]
    if apart:
        calls.append(add_parts(op, tile, s.dtype, partial, parts, elements))
    return calls


def _tables(s: Sizes, rows: int, channels: int) -> tuple[Table, Table, int, int]:
    """(offset in the patch and number of each row, steps, stride within a step, steps per row of
    the block; 0: one step for all of it).
    """
    _, b, c = forward_patch(s, rows).extents
    offsets = [np.arange(k) * d for k, d in zip(s.window, s.dilation, strict=True)]
    at = (offsets[0][:, None, None] * b + offsets[1][:, None]) * c + offsets[2]
    starts = (at.reshape(-1, 1) * channels + np.arange(s.inside)).reshape(-1)
    table = np.stack([starts, np.arange(len(starts))], 1).astype(np.int64)
    if s.small[1] == s.small[2] == 1:
        return table, np.array([[0, 0, rows]], np.int64), s.strides[0] * b * c * channels, 0
    i, j = np.arange(rows), np.arange(s.small[1])
    first = (i[:, None] * s.strides[0] * b + j * s.strides[1]) * c * channels
    number = (i[:, None] * s.small[1] + j) * s.small[2]
    steps = np.stack([first.reshape(-1), number.reshape(-1)], 1)
    lengths = np.full((len(steps), 1), s.small[2])
    steps = np.concatenate([steps, lengths], 1).astype(np.int64)
    return table, steps, s.strides[2] * channels, s.small[1]


class _ConvKernel:
    def __init__(self, e: Emitter, tile: Tile, dtype: str) -> None:
        self.e, self.tile, self.dtype = e, tile, dtype
        self.word = {name: e.argument(k) for k, name in enumerate(WORDS)}
        element = tile.element.as_pointer()
        b, w = e.builder, self.word
        self.x, self.y = e.pointer_argument(1, dtype), e.pointer_argument(2, dtype)
        self.target = b.inttoptr(w["target"], element)
        start = b.add(w["scratch"], b.mul(e.worker, w["scratch_bytes"]))
        self.patch = b.inttoptr(start, element)
        self.given = b.inttoptr(b.add(start, w["patch_bytes"]), element)
        self.row_table = b.inttoptr(w["row_table"], TABLE)
        self.steps = b.inttoptr(w["steps"], TABLE)

    def write(self) -> None:
        e, b, w = self.e, self.e.builder, self.word
        self.tiles = emit_tiles(e, self.tile, packed=False)
        self.copy = emit_patch_copy(e, self.tile, self.dtype)
        with e.for_range(e.lo, e.hi) as unit:
            part, row_block = b.sdiv(unit, w["row_blocks"]), b.srem(unit, w["row_blocks"])
            row = b.mul(row_block, w["rows_each"])
            row_end = least(b, b.add(row, w["rows_each"]), w["rows"])
            target = e.at(self.target, b.mul(part, w["partial"]))
            first = b.mul(part, w["pairs_each"])
            stop = least(b, b.add(first, w["pairs_each"]), w["pairs"])
            with e.for_range(first, stop) as pair:
                self._pair(pair, b.icmp_signed(">", pair, first), target, row, row_end)

    def _pair(
        self, pair: ir.Value, add: ir.Value, target: ir.Value, row: ir.Value, row_end: ir.Value
    ) -> None:
        e, b, w = self.e, self.e.builder, self.word
        zero = e.index(0)
        image, number = b.sdiv(pair, w["blocks"]), b.srem(pair, w["blocks"])
        first = b.add(w["first_a"], b.mul(number, w["patch_step"]))
        b.call(self.copy, [
            e.at(self.x, b.mul(image, w["image"])), self.patch, w["channels"], first, w["patch_a"],
            w["size_a"], w["first_b"], w["patch_b"], w["size_b"], w["first_c"], w["patch_c"],
            w["size_c"],
        ])  # fmt: skip
        before = b.mul(number, w["block_y"])
        y = e.at(self.y, b.add(b.mul(image, w["image_y"]), before))
        if self.dtype in HALVES:
            size = least(b, w["block_y"], b.sub(w["image_y"], before))
            with e.for_range(zero, size) as i:
                b.store(load_element(e, e.at(y, i), self.dtype), e.at(self.given, i))
            y = self.given
        is_last = b.icmp_signed("==", number, b.sub(w["blocks"], e.index(1)))
        one_step = b.icmp_signed("==", w["count"], zero)
        apart = b.select(b.and_(is_last, one_step), e.index(3), zero)
        steps = e.at(self.steps, apart)
        count = b.select(is_last, w["count_last"], w["count"])
        count = b.select(one_step, e.index(1), count)
        with (
            e.for_range(zero, w["groups"]) as group,
            e.for_range(zero, w["outside"], w["panel_width"]) as j,
        ):
            column = b.add(b.mul(group, w["outside"]), j)
            columns = least(b, b.sub(w["outside"], j), w["panel_width"])
            a = e.at(self.patch, b.mul(group, w["inside"]))
            self._tiles((row, row_end), a, (steps, count), (y, target, column, columns), add)

    def _tiles(
        self,
        rows: tuple[ir.Value, ir.Value],
        a: ir.Value,
        steps: tuple[ir.Value, ir.Value],
        columns: tuple[ir.Value, ir.Value, ir.Value, ir.Value],
        add: ir.Value,
    ) -> None:
        e, b, w = self.e, self.e.builder, self.word
        y, target, column, width = columns
        with row_tiles(e, self.tile, b.sub(rows[1], rows[0])) as (i, few, height):
            row = e.at(self.row_table, b.mul(b.add(rows[0], i), e.index(2)))
            args = [
                a, row, e.index(1), w["a_k"], *steps, e.at(y, column), w["channels_y"], height,
                width, e.at(target, column), w["channels_y"], add,
            ]  # fmt: skip
            call_narrowest(e, self.tile, self.tiles, (few, width), args)


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
