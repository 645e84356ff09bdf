"""The inner loops of convolutions: a register tile of results, and the copy of a patch.

    tile(a, a_at, a_k, steps, count, b, b_k, rows, columns, c, c_at, add)

    c[c_at[r], j] (+)= sum over steps (at, row, length), i < length of
                           a[a_at[r] + at + i * a_k] * b[(row + i) * b_k + j]

for r < rows, j < columns: the tile of `weft.codegen.gemm.micro`, but with offsets from tables
(`weft.codegen.windows.geometry`). `a_at` and `c_at` are the two columns of one table, each scaled.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from weft.codegen.element_access import load_element
from weft.codegen.elements import memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.micro import (
    I1,
    Accumulators,
    Forms,
    clamped_rows,
    for_each_form,
    internal_function,
)
from weft.codegen.gemm.tile import Tile

TABLE = I64.as_pointer()


def emit_tiles(e: Emitter, tile: Tile, packed: bool) -> Forms:
    """Define the tile functions. packed: rows of b are panels, filled up to whole vectors."""
    p = tile.element.as_pointer()
    kinds = [p, TABLE, I64, I64, TABLE, I64, p, I64, I64, I64, p, I64, I1]

    def emit(rows: int, vectors: int) -> ir.Function:
        with internal_function(e, f"tile{rows}x{vectors}", kinds, (10,)) as (function, f):
            _Tile(f, tile, rows, vectors, packed, list(function.args)).write()
        return function

    return for_each_form(tile, emit)


class _Tile:
    """Arguments: a, pixels, a_scale, a_k, steps, count, b, b_k, rows, columns, c, c_scale, add."""

    def __init__(
        self, e: Emitter, tile: Tile, rows: int, vectors: int, packed: bool, args: list[ir.Value]
    ) -> None:
        self.e, self.tile, self.rows, self.packed, self.args = e, tile, rows, packed, args
        self.accumulators = Accumulators(e, tile, rows, vectors, args[9])

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
        e, b, run = self.e, self.e.builder, self.accumulators.run
        a_k, b_at, b_k = self.args[3], self.args[6], self.args[7]
        guarded = None
        if not self.packed:  # past a row comes the next one, if that is as long as a vector
            long = b.icmp_signed(">=", b_k, e.index(self.tile.lanes))
            guarded = b.select(long, e.index(1), length)
        return run(rows, start, (a_k, b_k), b_at, length, guarded, sums)

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
