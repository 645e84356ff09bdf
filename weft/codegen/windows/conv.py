"""Convolutions: which kernels carry one out, by its sizes and dtype; and the plain loops.

| convolution                            | kernels                                           |
|----------------------------------------|---------------------------------------------------|
| integers, complex; sums over nothing   | plain loops, below                                |
| 1x1, stride 1, no padding, f32 and f64 | a matrix product (`gemm_calls`)                   |
| as many groups as channels in and out  | tap by tap (`windows/reduce.py`; its kernel's     |
|                                        | gradient: below)                                  |
| all others                             | register tiles over patches                       |
|                                        | (`windows/conv_tiles.py`; conv_kernel:            |
|                                        | `windows/kernel_gradient.py`)                     |

Plain conv and conv_input: for each result, the taps that it sees (`windows/reduce.py`), and for
each the channels of its group. Plain conv_kernel: for each tap and channel, over all pixels; of the
depthwise floats over fixed blocks of the batch, whose sums are added in order."""

from __future__ import annotations

import math
from collections.abc import Callable

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
from weft.codegen.llvm.emitter import HALVES, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import narrower, target_vector_bits
from weft.codegen.products.calls import Follow, Prologues, gemm_calls, stored_calls
from weft.codegen.products.gemm import Product, dense_product
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.tiles.micro_kernel import ACCUMULATOR, tile_of
from weft.codegen.windows.conv_tiles import direct_calls, least, pool
from weft.codegen.windows.geometry import Sizes, Table, sizes_of
from weft.codegen.windows.kernel_gradient import UNITS, add_parts, kernel_gradient_calls
from weft.codegen.windows.reduce import (
    REACH_WORDS,
    Lanes,
    Reach,
    Taps,
    listing_function,
    lower_depthwise,
)
from weft.ir.cost.rates import NS_PER_DEPTHWISE, NS_PER_PLAIN_PRODUCT
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation


def plain_calls(op: Operation, s: Sizes) -> list[KernelCall]:
    """conv and conv_input. args: out, source, w, scratch, its stride, groups, depth, width, strides
    of w (tap, row, column), outside, words of the reach. Units: rows of results.
    """
    forward = op.name == "conv"
    result, source = (s.small, s.large) if forward else (s.large, s.small)
    depth, width = (s.inside, s.outside) if forward else (s.outside, s.inside)
    units = s.batch * result[0] * result[1]
    if not units * result[2] * s.groups * width:
        return []
    reach = Reach(result, source, s.window, s.strides, s.lo, s.dilation, forward)
    outside = s.outside * s.groups
    nbytes = 16 * max(1, reach.taps)
    args: tuple[Arg, ...] = (
        Address(op.result), Address(op.operands[0]), Address(op.operands[1]),
        WorkerScratch(nbytes), worker_stride(nbytes), s.groups, depth, width, s.inside * outside,
        *((outside, 1) if forward else (1, outside)), s.outside, *reach.words(),
    )  # fmt: skip
    kernel = Kernel(
        f"conv-plain-2-{s.dtype}", f"conv_plain_{s.dtype}", lambda e: _emit_plain(e, s.dtype)
    )
    cost = s.multiply_adds / units * NS_PER_PLAIN_PRODUCT
    return [cut_call(kernel, args, units, cost)]


def _emit_plain(e: Emitter, dtype: str) -> None:
    with listing_function(e, "rows", dtype, 7) as (f, places, values, taps):
        out, x, w, entries = places
        groups, depth, width, tap_step, row_step, column_step, outside, lo, hi = values
        b, zero = f.builder, f.index(0)
        rows = b.mul(taps.result[0], taps.result[1])
        channels, channels_out = b.mul(groups, depth), b.mul(groups, width)
        image = b.mul(b.mul(b.mul(*taps.source[:2]), taps.source[2]), channels)
        slot = f.alloca(constant(dtype, 0).type)
        with f.for_range(lo, hi) as unit, f.for_range(zero, taps.result[2]) as c:
            row = b.srem(unit, rows)
            at = b.sdiv(row, taps.result[1]), b.srem(row, taps.result[1]), c
            count = taps.list_at(at, entries, channels)
            to = f.at(out, b.mul(b.add(b.mul(unit, taps.result[2]), c), channels_out))
            item = f.at(x, b.mul(b.sdiv(unit, rows), image))
            with f.for_range(zero, groups) as group, f.for_range(zero, width) as j:
                b.store(constant(dtype, 0), slot)
                column = b.add(b.mul(group, outside), b.mul(j, column_step))
                with f.for_range(zero, count) as k:
                    entry = f.at(entries, b.mul(k, f.index(2)))
                    offset, tap = b.load(entry), b.load(f.at(entry, f.index(1)))
                    seen = b.add(offset, b.mul(group, depth))
                    weight = b.add(b.mul(tap, tap_step), column)
                    with f.for_range(zero, depth) as i:
                        place = f.at(w, b.add(weight, b.mul(i, row_step)))
                        _accumulate(f, dtype, slot, f.at(item, b.add(seen, i)), place)
                channel = b.add(b.mul(group, width), j)
                store_element(f, b.load(slot), f.at(to, channel), dtype)


def _accumulate(f: Emitter, dtype: str, slot: ir.Value, x: ir.Value, y: ir.Value) -> None:
    factors = [load_element(f, x, dtype), load_element(f, y, dtype)]
    product = emit_scalar(f, "multiply", dtype, factors, {})
    f.builder.store(emit_scalar(f, "add", dtype, [f.builder.load(slot), product], {}), slot)


def plain_kernel_calls(op: Operation, s: Sizes) -> list[KernelCall]:
    """conv_kernel. args: w, x, y, batch, groups, inside, outside, words of the reach. Units: rows
    (tap, channel in) of w.
    """
    units = s.taps * s.inside
    if not units * s.groups * s.outside:
        return []
    reach = Reach(s.small, s.large, s.window, s.strides, s.lo, s.dilation, True)
    args: tuple[Arg, ...] = (
        Address(op.result), Address(op.operands[0]), Address(op.operands[1]), s.batch, s.groups,
        s.inside, s.outside, *reach.words(),
    )  # fmt: skip
    kernel = Kernel(
        f"conv-kernel-plain-1-{s.dtype}",
        f"conv_kernel_plain_{s.dtype}",
        lambda e: _emit_plain_kernel(e, s.dtype),
    )
    return [cut_call(kernel, args, units, s.multiply_adds / units * NS_PER_PLAIN_PRODUCT)]


def _emit_plain_kernel(e: Emitter, dtype: str) -> None:
    pointers = [e.pointer_argument(k, dtype) for k in range(3)]
    numbers = [e.argument(3 + k) for k in range(4 + REACH_WORDS)]
    with e.loop_function("rows", pointers, [*numbers, e.lo, e.hi]) as (f, (w, x, y), values):
        batch, groups, inside, outside, *words, lo, hi = values
        taps, b, zero = Taps(f, words), f.builder, f.index(0)
        channels, channels_y = b.mul(groups, inside), b.mul(groups, outside)
        slot = f.alloca(constant(dtype, 0).type)
        with f.for_range(lo, hi) as unit, f.for_range(zero, channels_y) as j:
            tap, i = b.sdiv(unit, inside), b.srem(unit, inside)
            channel = b.add(b.mul(b.sdiv(j, outside), inside), i)
            b.store(constant(dtype, 0), slot)
            with f.for_range(zero, batch) as n, taps.pixels(tap) as (at, from_):
                seen = b.add(
                    b.mul(b.add(b.mul(n, taps.size(taps.source)), from_), channels), channel
                )
                given = b.add(b.mul(b.add(b.mul(n, taps.size(taps.result)), at), channels_y), j)
                _accumulate(f, dtype, slot, f.at(x, seen), f.at(y, given))
            place = f.at(w, b.add(b.mul(unit, channels_y), j))
            store_element(f, b.load(slot), place, dtype)


def depthwise_kernel_calls(op: Operation, s: Sizes) -> list[KernelCall]:
    """conv_kernel of floats, one channel in each group. args: partial, x, y, runs, batch, of a
    unit, channels, taps, stride along C, words of the reach. Units: blocks of the batch.
    """
    tile = tile_of(s.dtype)
    item = 8 if tile.dtype == "f64" else 4
    elements = s.taps * s.groups
    each = -(-s.batch // UNITS)
    units = -(-s.batch // each)
    partial = Scratch(units * elements * item)
    reach = Reach(s.small, s.large, s.window, s.strides, s.lo, s.dilation, True)
    args: tuple[Arg, ...] = (
        partial, Address(op.operands[0]), Address(op.operands[1]), pool(_runs_along_c(reach)),
        s.batch, each, s.groups, s.taps, s.strides[2], *reach.words(),
    )  # fmt: skip
    kernel = Kernel(
        f"depthwise-kernel-2-{s.dtype}-{target_vector_bits()}",
        f"depthwise_kernel_{s.dtype}",
        lambda e: _emit_depthwise(e, s.dtype, tile.dtype),
    )
    cost = s.multiply_adds / units * NS_PER_DEPTHWISE * narrower()
    blocks = cut_call(kernel, args, units, cost)
    return [blocks, add_parts(op, tile, s.dtype, partial, units, elements)]


def _runs_along_c(reach: Reach) -> Table:
    """For each tap along C: (first position that sees something, the last + 1, its source)."""
    runs = []
    for column in reach.axis(2).T:
        (seen,) = np.nonzero(column >= 0)
        runs.append([seen[0], seen[-1] + 1, column[seen[0]]] if len(seen) else [0, 0, 0])
    return np.array(runs, np.int64)


def _emit_depthwise(e: Emitter, dtype: str, accumulator: str) -> None:
    pointers = [e.pointer_argument(0, accumulator)]
    pointers += [e.pointer_argument(k, dtype) for k in (1, 2)]
    pointers.append(e.pointer_argument(3, "i64"))
    numbers = [e.argument(4 + k) for k in range(5 + REACH_WORDS)]
    with e.loop_function("blocks", pointers, [*numbers, e.lo, e.hi]) as (f, places, values):
        batch, each, channels, count, step, *words, lo, hi = values
        reach, b, zero = Taps(f, words), f.builder, f.index(0)
        row = _DepthwiseRow(f, dtype, accumulator, reach, channels, step, places)
        elements = b.mul(count, channels)
        with f.for_range(lo, hi) as unit:
            target = f.at(places[0], b.mul(unit, elements))
            with f.for_range(zero, elements) as i:
                b.store(constant(accumulator, 0), f.at(target, i))
            first = b.mul(unit, each)
            with (
                f.for_range(first, least(b, b.add(first, each), batch)) as n,
                f.for_range(zero, reach.result[0]) as i,
                f.for_range(zero, reach.result[1]) as j,
            ):
                row.write(target, n, i, j)


@dataclass(frozen=True, slots=True)
class _DepthwiseRow:
    """The products of one row of y, added to the sums of all taps. places: -, x, y, runs."""

    e: Emitter
    dtype: str
    accumulator: str
    reach: Taps
    channels: ir.Value
    step: ir.Value
    places: list[ir.Value]

    def write(self, target: ir.Value, n: ir.Value, i: ir.Value, j: ir.Value) -> None:
        e, b, reach = self.e, self.e.builder, self.reach
        _, x, y, runs = self.places
        row = b.add(b.mul(b.add(b.mul(n, reach.result[0]), i), reach.result[1]), j)
        y = e.at(y, b.mul(b.mul(row, reach.result[2]), self.channels))
        with reach.seen(0, i) as (tap_a, at_a), reach.seen(1, j) as (tap_b, at_b):
            row = b.add(b.mul(b.add(b.mul(n, reach.source[0]), at_a), reach.source[1]), at_b)
            x = e.at(x, b.mul(b.mul(row, reach.source[2]), self.channels))
            tap = b.mul(b.add(b.mul(tap_a, reach.window[1]), tap_b), reach.window[2])
            with e.for_range(e.index(0), reach.window[2]) as tap_c:
                run = e.at(runs, b.mul(tap_c, e.index(3)))
                numbers = [b.load(e.at(run, e.index(k))) for k in range(3)]
                place = e.at(target, b.mul(b.add(tap, tap_c), self.channels))
                self._tap(place, x, y, numbers)

    def _tap(self, target: ir.Value, x: ir.Value, y: ir.Value, run: list[ir.Value]) -> None:
        e, b, channels = self.e, self.e.builder, self.channels
        first, end, source = run
        start: ir.Value = e.index(0)
        lanes = tile_of(self.dtype).lanes
        for width in (1,) if self.dtype in HALVES else (4 * lanes, lanes, 1):
            given, into = Lanes(e, self.dtype, width), Lanes(e, self.accumulator, width)
            stop = b.sub(channels, b.srem(b.sub(channels, start), e.index(width)))
            slot = e.alloca(into.kind)
            with e.for_range(start, stop, e.index(width)) as j:
                place = e.at(target, j)
                b.store(into.load(place), slot)
                with e.for_range(first, end) as c:
                    at = b.add(source, b.mul(b.sub(c, first), self.step))
                    left = given.load(e.at(e.at(x, b.mul(at, channels)), j))
                    right = given.load(e.at(e.at(y, b.mul(c, channels)), j))
                    b.store(into.multiply_add(left, right, b.load(slot)), slot)
                into.store(b.load(slot), place)
            start = stop


def lower_conv(op: Operation) -> list[KernelCall]:
    """The kernel calls of conv, conv_input and conv_kernel."""
    s = sizes_of(op)
    kernel = op.name == "conv_kernel"
    counts = (s.batch, *s.large, *s.window, *s.small, s.groups, s.inside, s.outside)
    if s.dtype not in ACCUMULATOR or 0 in counts:
        return plain_kernel_calls(op, s) if kernel else plain_calls(op, s)
    if _is_product(s):
        a, b = (Address(v) for v in op.operands)
        return stored_calls(_product(op.name, s), Address(op.result), a, b)
    if s.inside == s.outside == 1 and s.groups > 1:
        return depthwise_kernel_calls(op, s) if kernel else lower_depthwise(op, s)
    if kernel:
        return kernel_gradient_calls(op, s)
    a, b = (Address(v) for v in op.operands)
    return direct_calls(op.name == "conv", s, Address(op.result), a, b)


def conv_with(
    op: Operation, a: Address, b: Address, epilogue: Callable[[int], Follow], before: Prologues
) -> list[KernelCall]:
    """A conv or conv_input, `weft.ir.ops.windows.is_dense`, whose blocks go to an epilogue.

    Convolutions have no prologues.
    """
    assert before == (None, None)
    s = sizes_of(op)
    if _is_product(s):
        p = _product(op.name, s)
        return gemm_calls(p, 0, a, b, epilogue(p.m))
    result = s.small if op.name == "conv" else s.large
    return direct_calls(op.name == "conv", s, 0, a, b, epilogue(s.batch * math.prod(result)))


def _is_product(s: Sizes) -> bool:
    return (
        s.dtype in ("f32", "f64")
        and s.groups == 1
        and s.taps == 1
        and s.strides == (1, 1, 1)
        and s.lo == (0, 0, 0)
        and s.large == s.small
    )


def _product(name: str, s: Sizes) -> Product:
    """Pixels x channels in, channels in x channels out."""
    pixels = s.batch * math.prod(s.large)
    m, n, k = {
        "conv": (pixels, s.outside, s.inside),
        "conv_input": (pixels, s.inside, s.outside),
        "conv_kernel": (s.inside, s.outside, pixels),
    }[name]
    flags = name == "conv_kernel", name == "conv_input"
    return dense_product(s.dtype, (m, n, k), (0,), (0,), flags)
