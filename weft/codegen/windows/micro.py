"""The inner loops of convolutions: a register tile of results, and the copy of a patch.

    tile(a, a_at, a_k, steps, count, b, b_k, rows, columns, c, c_at, add)

    c[c_at[r], j] (+)= sum over steps (at, row, length), i < length of
                           a[a_at[r] + at + i * a_k] * b[(row + i) * b_k + j]

for r < rows, j < columns: the tile of `weft.codegen.gemm.micro`, but with offsets from tables
(`weft.codegen.windows.geometry`). `a_at` and `c_at` are the two columns of one table, each scaled.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.element_access import load_element
from weft.codegen.elements import memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.micro import I1, I32, Vectors, _no_unroll, internal_function
from weft.codegen.gemm.tile import Tile

TABLE = I64.as_pointer()


def emit_tile(e: Emitter, tile: Tile, vectors: int) -> ir.Function:
    """Define the tile function for up to `vectors` vectors a row."""
    p = tile.element.as_pointer()
    kinds = [p, TABLE, I64, I64, TABLE, I64, p, I64, I64, I64, p, I64, I1]
    with internal_function(e, f"tile{vectors}", kinds, (10,)) as (function, f):
        _Tile(f, tile, vectors, list(function.args)).write()
    return function


class _Tile:
    """Arguments: a, pixels, a_scale, a_k, steps, count, b, b_k, rows, columns, c, c_scale, add."""

    def __init__(self, e: Emitter, tile: Tile, vectors: int, args: list[ir.Value]) -> None:
        self.e, self.tile, self.vectors, self.args = e, tile, vectors, args
        self.v = Vectors(e, tile)
        rest = e.builder.sub(args[9], e.index((vectors - 1) * tile.lanes))
        self.mask = self.v.mask(rest)  # of the last vector of a row

    def write(self) -> None:
        e, b = self.e, self.e.builder
        a, pixels, a_scale, _, steps, count = self.args[:6]
        last = b.sub(self.args[8], e.index(1))
        rows = []
        for i in range(self.tile.rows):
            number = e.index(i)
            inside = b.select(b.icmp_signed("<", number, last), number, last)
            at = b.load(e.at(pixels, b.mul(inside, e.index(2))))
            rows.append(e.at(a, b.mul(at, a_scale)))
        size = self.tile.rows * self.vectors
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("step", "step.body", "step.done"))
        b.branch(head)
        b.position_at_end(head)
        t = b.phi(I64)
        sums = [b.phi(self.v.kind) for _ in range(size)]
        b.cbranch(b.icmp_signed("<", t, count), body, after)
        b.position_at_end(body)
        step = e.at(steps, b.mul(t, e.index(3)))
        at, row, length = (b.load(e.at(step, e.index(k))) for k in range(3))
        following = self._run(rows, at, row, length, sums)
        t.add_incoming(e.index(0), before)
        t.add_incoming(b.add(t, e.index(1)), b.block)
        for phi, value in zip(sums, following, strict=True):
            phi.add_incoming(self.v.zero(), before)
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        self._store(sums)

    def _run(
        self,
        rows: list[ir.Value],
        at: ir.Value,
        row: ir.Value,
        length: ir.Value,
        start: list[ir.Value],
    ) -> list[ir.Value]:
        e, b, v = self.e, self.e.builder, self.v
        a_k, b_at, b_k = self.args[3], self.args[6], self.args[7]
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("k.head", "k.body", "k.after"))
        first_b = b.mul(row, b_k)
        b.branch(head)
        b.position_at_end(head)
        i, at_a, at_b = (b.phi(I64) for _ in range(3))
        sums = [b.phi(v.kind) for _ in start]
        b.cbranch(b.icmp_signed("<", i, length), body, after)
        b.position_at_end(body)
        row_b = e.at(b_at, at_b)
        b_row = [self._load(row_b, k) for k in range(self.vectors)]
        following: list[ir.Value] = []
        for r, place in enumerate(rows):
            factor = v.splat(b.load(e.at(place, at_a)))
            held = sums[r * self.vectors : (r + 1) * self.vectors]
            following += [v.multiply_add(factor, x, s) for x, s in zip(b_row, held, strict=True)]
        pairs = ((i, e.index(0), e.index(1)), (at_a, at, a_k), (at_b, first_b, b_k))
        for phi, initial, increment in pairs:
            phi.add_incoming(initial, before)
            phi.add_incoming(b.add(phi, increment), b.block)
        for phi, initial, value in zip(sums, start, following, strict=True):
            phi.add_incoming(initial, before)
            phi.add_incoming(value, b.block)
        jump = b.branch(head)
        jump.set_metadata("llvm.loop", _no_unroll(e))
        b.position_at_end(after)
        return sums

    def _load(self, row: ir.Value, k: int) -> ir.Value:
        place = self.e.at(row, self.e.index(k * self.tile.lanes))
        return self.v.masked_load(place, self.mask) if k == self.vectors - 1 else self.v.load(place)

    def _store(self, sums: list[ir.Value]) -> None:
        """Rows below `rows`, lanes of the mask; with `add`, on top of what is there."""
        e, b, v = self.e, self.e.builder, self.v
        pixels, count, c, c_scale, add = (self.args[k] for k in (1, 8, 10, 11, 12))
        done = b.append_basic_block("done")
        on = ir.VectorType(I1, v.lanes)
        flags = b.insert_element(ir.Constant(on, ir.Undefined), add, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, v.lanes), None)
        held = b.shuffle_vector(flags, ir.Constant(on, ir.Undefined), zeros)
        full = ir.Constant(on, [1] * v.lanes)
        for r in range(self.tile.rows):
            if r:
                row = b.append_basic_block(f"row{r}")
                b.cbranch(b.icmp_signed("<", e.index(r), count), row, done)
                b.position_at_end(row)
            start = e.at(c, b.mul(b.load(e.at(pixels, e.index(2 * r + 1))), c_scale))
            for k in range(self.vectors):
                place = e.at(start, e.index(k * self.tile.lanes))
                mask = self.mask if k == self.vectors - 1 else full
                old = v.masked_load(place, b.and_(mask, held))
                v.masked_store(b.fadd(sums[r * self.vectors + k], old), place, mask)
        b.branch(done)
        b.position_at_end(done)


def call_tile(
    e: Emitter, tiles: list[ir.Function], lanes: int, columns: ir.Value, args: list[ir.Value]
) -> None:
    """Call the tile function with just enough vectors for `columns`."""
    b = e.builder
    after = b.append_basic_block("tile.done")
    for count, function in enumerate(tiles[:-1], 1):
        fits, wider = (b.append_basic_block(n) for n in ("tile.fits", "tile.wider"))
        b.cbranch(b.icmp_signed("<=", columns, e.index(count * lanes)), fits, wider)
        b.position_at_end(fits)
        b.call(function, args)
        b.branch(after)
        b.position_at_end(wider)
    b.call(tiles[-1], args)
    b.branch(after)
    b.position_at_end(after)


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
