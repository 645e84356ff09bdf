"""The sizes of a convolution, and the tables that its kernels walk.

One or two spatial axes become three, (A, B, C): 1-D is (length, 1, 1), 2-D (height, 1, width).
Work is cut into blocks of rows of A; everything else a block needs is the same for all blocks, so
it is a table of offsets that follows from the sizes:

* a block copies what it sees into a *patch*, zeros where there is nothing;
* a *pixel* of the result starts at an offset of the patch, a *step* is a run of products further on
  in it: tile of results [r] += patch[pixel[r] + step.at + j * stride] * rows of B [step.row + j].

Pixels whose taps differ (transposed convolution with a stride) are apart, in *phases*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.ir.spec import int_attr, ints_attr
from weft.ir.types import TensorType

Triple = tuple[int, int, int]
Table = np.ndarray[Any, np.dtype[np.int64]]
#: Rows of B that a tile takes in one go: so many stay in L1 while all tiles of a block run.
RUN = 256


def triple(values: Sequence[int], fill: int) -> Triple:
    """One number per spatial axis as one for each of A, B, C."""
    if len(values) == 1:
        return values[0], fill, fill
    if len(values) == 2:
        return values[0], fill, values[1]
    a, b, c = values
    return a, b, c


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of x, w, y (`weft.ir.ops.windows`): large, window, small are the spatial sizes, inside
    and outside the channels of one group.
    """

    dtype: str
    batch: int
    large: Triple
    window: Triple
    small: Triple
    groups: int
    inside: int
    outside: int
    strides: Triple
    lo: Triple
    dilation: Triple

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return math.prod(self.window)

    @property
    def multiply_adds(self) -> int:
        """Products in one evaluation, padding included."""
        pixels = self.batch * math.prod(self.small)
        return pixels * self.taps * self.groups * self.inside * self.outside

    def pixels(self, forward: bool) -> int:
        """Elements of the result: y, or x."""
        if forward:
            return self.batch * math.prod(self.small) * self.groups * self.outside
        return self.batch * math.prod(self.large) * self.groups * self.inside


def sizes_of(op: Operation) -> Sizes:
    """The sizes of a conv, conv_input or conv_kernel."""
    types = [v.type for v in (*op.operands, op.result)]
    one, two, result = (t for t in types if isinstance(t, TensorType))
    x, w, y = {
        "conv": (one, two, result),
        "conv_input": (result, two, one),
        "conv_kernel": (one, result, two),
    }[op.name]
    groups = int_attr(op.attrs, "groups")
    return Sizes(
        x.dtype.short,
        x.static_shape[0],
        triple(x.static_shape[1:-1], 1),
        triple(w.static_shape[:-2], 1),
        triple(y.static_shape[1:-1], 1),
        groups,
        w.static_shape[-2],
        w.static_shape[-1] // groups,
        triple(ints_attr(op.attrs, "strides"), 1),
        triple(ints_attr(op.attrs, "lo"), 0),
        triple(ints_attr(op.attrs, "dilation"), 1),
    )


@dataclass(frozen=True, slots=True)
class Patch:
    """The patch that a block copies: extents in positions, and where block 0 begins in the source.

    step: by how much the beginning along A moves from one block to the next.
    """

    extents: Triple
    first: Triple
    step: int


@dataclass(frozen=True, slots=True)
class Gather:
    """A convolution as blocks of results gathered from patches of the source.

    pixels: (offset in the patch in positions, in the block in positions) for each result of a
    block, by phase and row-major; phases: (first pixel, pixels, pixels of the last block, first
    run, last run + 1); runs: (first step, last step + 1); steps: (offset, row of B, length).
    """

    rows: int
    blocks: int
    patch: Patch
    pixels: Table
    phases: Table
    runs: Table
    steps: Table


def forward_patch(s: Sizes, rows: int) -> Patch:
    """The patch of x that `rows` rows of y see."""
    extent = [
        (n - 1) * t + (k - 1) * d + 1
        for n, t, k, d in zip((rows, *s.small[1:]), s.strides, s.window, s.dilation, strict=True)
    ]
    a, b, c = extent
    return Patch((a, b, c), (-s.lo[0], -s.lo[1], -s.lo[2]), rows * s.strides[0])


def _adjoint_patch(s: Sizes, rows: int) -> Patch:
    """The patch of y that sees `rows` (a multiple of the stride) rows of x."""
    first, extent = [], []
    for n, t, k, d, lo in zip(
        (rows, *s.large[1:]), s.strides, s.window, s.dilation, s.lo, strict=True
    ):
        least, most = (lo - (k - 1) * d) // t, (n - 1 + lo) // t
        first.append(least)
        extent.append(most - least + 1)
    a, b, c = extent
    return Patch((a, b, c), (first[0], first[1], first[2]), rows // s.strides[0])


def _positions(extents: Triple, axes: Sequence[Sequence[int] | Table]) -> Table:
    """Row-major offsets in positions of all combinations of indices along A, B, C."""
    a, b, c = (np.asarray(v, np.int64) for v in axes)
    whole = (a[:, None, None] * extents[1] + b[None, :, None]) * extents[2] + c[None, None, :]
    return whole.reshape(-1)


def forward_gather(s: Sizes, rows: int) -> Gather:
    """y from patches of x."""
    patch = forward_patch(s, rows)
    block = (rows, *s.small[1:])
    starts = [np.arange(n, dtype=np.int64) * t for n, t in zip(block, s.strides, strict=True)]
    pixels = np.stack(
        [_positions(patch.extents, starts), _positions(block, [range(n) for n in block])], 1
    )
    blocks = -(-s.small[0] // rows)
    left = (s.small[0] - (blocks - 1) * rows) * s.small[1] * s.small[2]
    offsets = [np.arange(k, dtype=np.int64) * d for k, d in zip(s.window, s.dilation, strict=True)]
    taps = list(enumerate(_positions(patch.extents, offsets).tolist()))
    runs, steps = _runs([taps], s.inside, s.inside * s.groups)
    phases = np.array([[0, len(pixels), left, 0, len(runs[0])]], np.int64)
    return Gather(rows, blocks, patch, pixels, phases, *_flat_runs(runs, steps))


def adjoint_gather(s: Sizes, rows: int) -> Gather:
    """x from patches of y; `rows` is a multiple of the stride along A."""
    patch = _adjoint_patch(s, rows)
    block = (rows, *s.large[1:])
    blocks = -(-s.large[0] // rows)
    left = s.large[0] - (blocks - 1) * rows
    pixels: list[Table] = []
    phases, taps_of = [], []
    first = 0
    for remainder in product(*map(range, s.strides)):
        inside = [range(r, n, t) for r, n, t in zip(remainder, block, s.strides, strict=True)]
        starts = [np.arange(len(i), dtype=np.int64) for i in inside]
        found = np.stack([_positions(patch.extents, starts), _positions(block, inside)], 1)
        if not len(found):
            continue
        last = len(range(remainder[0], left, s.strides[0])) * len(inside[1]) * len(inside[2])
        taps_of.append(_adjoint_taps(s, patch, remainder))
        pixels.append(found)
        phases.append([first, len(found), last])
        first += len(found)
    runs, steps = _runs(taps_of, s.outside, s.outside * s.groups)
    ends = np.cumsum([0, *map(len, runs)])
    table = np.array([[*p, ends[i], ends[i + 1]] for i, p in enumerate(phases)], np.int64).reshape(
        -1, 5
    )
    return Gather(rows, blocks, patch, np.concatenate(pixels), table, *_flat_runs(runs, steps))


def _adjoint_taps(s: Sizes, patch: Patch, remainder: tuple[int, ...]) -> list[tuple[int, int]]:
    """(tap, offset in positions of y's patch) of the taps that meet positions of this remainder."""
    out = []
    for number, tap in enumerate(product(*map(range, s.window))):
        at = [r + lo - k * d for r, lo, k, d in zip(remainder, s.lo, tap, s.dilation, strict=True)]
        if any(v % t for v, t in zip(at, s.strides, strict=True)):
            continue
        index = [[v // t - f] for v, t, f in zip(at, s.strides, patch.first, strict=True)]
        out.append((number, int(_positions(patch.extents, index)[0])))
    return out


def _runs(
    phases: list[list[tuple[int, int]]], depth: int, channels: int
) -> tuple[list[list[tuple[int, int]]], list[tuple[int, int, int]]]:
    """(runs of each phase, steps): taps as steps of `depth` products; neighbours are joined."""
    steps: list[tuple[int, int, int]] = []
    runs: list[list[tuple[int, int]]] = []
    for taps in phases:
        joined: list[list[int]] = []
        for tap, position in taps:
            at, row = position * channels, tap * depth
            if (
                joined
                and joined[-1][0] + joined[-1][2] == at
                and joined[-1][1] + joined[-1][2] == row
            ):
                joined[-1][2] += depth
            else:
                joined.append([at, row, depth])
        runs.append([])
        most = _run_length(max([1, *(length for _, _, length in joined)]))
        start, held = len(steps), 0
        for at, row, length in joined:
            while length:
                if held == most:
                    runs[-1].append((start, len(steps)))
                    start, held = len(steps), 0
                now = min(length, most - held)
                steps.append((at, row, now))
                at, row, length, held = at + now, row + now, length - now, held + now
        runs[-1].append((start, len(steps)))
    return runs, steps


def _run_length(step: int) -> int:
    """Products of a run: as many whole steps as `RUN` has room for, or equal parts of one."""
    return RUN // step * step if step <= RUN else -(-step // -(-step // RUN))


def _flat_runs(
    runs: list[list[tuple[int, int]]], steps: list[tuple[int, int, int]]
) -> tuple[Table, Table]:
    flat = [r for phase in runs for r in phase]
    return (
        np.array(flat, np.int64).reshape(-1, 2),
        np.array(steps, np.int64).reshape(-1, 3),
    )


def joined(g: Gather, images: int, last: int, pixels: int) -> Gather:
    """Blocks of whole items, so many in each and `last` in the last one, from blocks of one item.
    Their patches lie side by side, as the `pixels` of their results do."""
    step = np.array([math.prod(g.patch.extents), pixels])
    moved, phases = [], []
    count = 0
    for first, _, own, *runs in g.phases.tolist():
        moved += [g.pixels[first : first + own] + k * step for k in range(images)]
        phases.append([count, own * images, own * last, *runs])
        count += own * images
    return replace(g, pixels=np.concatenate(moved), phases=np.array(phases, np.int64))
