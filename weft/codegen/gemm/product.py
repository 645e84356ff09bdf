"""Matrix multiplication of weft's own: blocks of C as units, packed panels, one micro-kernel.

C, or each matrix of a batch of them, is cut into blocks of `block_rows` x `block_columns`: the
units of the call, which threads take in any order. A block is made by one thread:

    for each run of `block_k` of k:
        pack the run's rows of B and columns of A, if that pays, into the worker's scratch
        for each panel of B, for each panel of A: micro-kernel -> one tile of C (+= after the first)

The sums over k are cut by `block_k` alone, a function of k, and never over threads: the bits depend
on the sizes only. Consecutive units share a panel of B, which is packed once for all of them; if
all matrices share one B, a call before the product packs it (`pack_kernel`), over threads too.
Blocking after Goto and van de Geijn and BLIS, see `weft.codegen.gemm.tile`. A thread's block of A
and its scratch stay in its L2 cache, a panel of B in L1 or L2.

After its last run a block may be handed to an epilogue (`weft.codegen.gemm.epilogue`), which reads
it while it is in the cache.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.emitter import I64, KERNEL_TYPE, Emitter
from weft.codegen.gemm.micro import emit_micro
from weft.codegen.gemm.pack import emit_pack
from weft.codegen.gemm.tile import Tile, tile_of
from weft.codegen.jit import Kernel

#: Words of a gemm call, in order; `weft.codegen.gemm.call` fills them.
WORDS = (
    "c", "a", "b", "a_offsets", "b_offsets", "scratch", "scratch_bytes", "m", "n", "k",
    "a_row", "a_k", "b_k", "b_column", "block_rows", "block_columns", "block_k", "pack_a",
    "pack_b", "b_bytes", "a_bytes", "b_packed", "epilogue",
)  # fmt: skip
#: Words of the call that packs B for all blocks of C before the product.
PACK_WORDS = ("target", "b", "n", "k", "b_k", "b_column", "block_columns", "block_k")
#: `pack_b` of a product whose B lies packed at `b_packed`.
PACKED_BEFORE = 3
#: Words of the frame that an epilogue gets: where its block is, and where its own words are.
FRAME = ("tile", "tile_row", "row", "rows", "column", "columns", "matrix", "words")


def gemm_kernel(dtype: str) -> Kernel:
    """The kernel of products of `dtype`: any sizes, transposed or not, with or without epilogue."""
    tile = tile_of(dtype)
    key = f"gemm-3-{dtype}-{tile.key}"
    # its vectors are written out: half the time to compile, the same speed
    return Kernel(key, f"gemm_{dtype}", lambda e: _Gemm(e, tile, dtype).write(), loops=False)


def pack_kernel(dtype: str) -> Kernel:
    """The kernel that packs the one B of a product for all its blocks; a unit is one panel of one
    run of k, laid out as `_Gemm._run` reads it."""
    tile = tile_of(dtype)
    key = f"gemm-pack-1-{dtype}-{tile.key}"
    return Kernel(key, f"pack_{dtype}", lambda e: _emit_pack_all(e, tile, dtype), loops=False)


def _emit_pack_all(e: Emitter, tile: Tile, dtype: str) -> None:
    b = e.builder
    w = {name: e.argument(k) for k, name in enumerate(PACK_WORDS)}
    source, lanes = e.pointer_argument(1, dtype), e.index(tile.columns)
    target = b.inttoptr(w["target"], tile.element.as_pointer())
    pack = emit_pack(e, tile, dtype, tile.lanes, tile.vectors, "pack")

    def up(size: ir.Value) -> ir.Value:
        return b.mul(b.sdiv(b.add(size, b.sub(lanes, e.index(1))), lanes), lanes)

    def least(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    panels = b.sdiv(up(w["n"]), lanes)
    with e.for_range(e.lo, e.hi) as unit:
        p = b.mul(b.sdiv(unit, panels), w["block_k"])
        column = b.mul(b.srem(unit, panels), lanes)
        block = b.mul(b.sdiv(column, w["block_columns"]), w["block_columns"])
        wide = up(least(b.sub(w["n"], block), w["block_columns"]))
        k = least(b.sub(w["k"], p), w["block_k"])
        place = b.add(b.mul(block, w["k"]), b.mul(p, wide))
        place = b.add(place, b.mul(b.sub(column, block), k))
        start = b.add(b.mul(p, w["b_k"]), b.mul(column, w["b_column"]))
        items = least(b.sub(w["n"], column), lanes)
        b.call(pack, [e.at(source, start), w["b_column"], w["b_k"], items, k, e.at(target, place)])


class _Gemm:
    def __init__(self, e: Emitter, tile: Tile, dtype: str) -> None:
        self.e, self.tile, self.dtype = e, tile, dtype
        self.word = {name: e.argument(k) for k, name in enumerate(WORDS)}
        self.a, self.b = e.pointer_argument(1, dtype), e.pointer_argument(2, dtype)
        self.element = tile.element.as_pointer()
        scratch = e.builder.mul(e.worker, self.word["scratch_bytes"])
        start = e.builder.add(self.word["scratch"], scratch)
        self.b_pack = e.builder.inttoptr(start, self.element)
        start = e.builder.add(start, self.word["b_bytes"])
        self.a_pack = e.builder.inttoptr(start, self.element)
        start = e.builder.add(start, self.word["a_bytes"])
        self.tile_at = e.builder.inttoptr(start, self.element)

    def write(self) -> None:
        e, b, tile, w = self.e, self.e.builder, self.tile, self.word
        self.micro = [emit_micro(e, tile, v) for v in range(1, tile.vectors + 1)]
        self.packing_a = emit_pack(e, tile, self.dtype, tile.rows, 1, "pack_a")
        self.packing_b = emit_pack(e, tile, self.dtype, tile.lanes, tile.vectors, "pack_b")
        self.packed = e.alloca(I64)  # the block of B that is in b_pack, by its address
        b.store(e.index(0), self.packed)
        down = self._blocks(w["m"], w["block_rows"])
        across = self._blocks(w["n"], w["block_columns"])
        matrices = b.mul(down, across)
        offsets = [b.inttoptr(w[f"{x}_offsets"], I64.as_pointer()) for x in "ab"]
        with e.for_range(e.lo, e.hi) as unit:
            matrix, inside = b.sdiv(unit, matrices), b.srem(unit, matrices)
            a, bb = (
                e.at(p, b.load(e.at(o, matrix)))
                for p, o in zip((self.a, self.b), offsets, strict=True)
            )
            row = b.mul(b.srem(inside, down), w["block_rows"])
            column = b.mul(b.sdiv(inside, down), w["block_columns"])
            self._unit(matrix, row, column, a, bb)

    def _blocks(self, size: ir.Value, block: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.sdiv(b.add(size, b.sub(block, self.e.index(1))), block)

    def _least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.select(b.icmp_signed("<", x, y), x, y)

    def _unit(
        self, matrix: ir.Value, row: ir.Value, column: ir.Value, a: ir.Value, bb: ir.Value
    ) -> None:
        e, b, w = self.e, self.e.builder, self.word
        rows = self._least(b.sub(w["m"], row), w["block_rows"])
        columns = self._least(b.sub(w["n"], column), w["block_columns"])
        a = e.at(a, b.mul(row, w["a_row"]))
        bb = e.at(bb, b.mul(column, w["b_column"]))
        plain = b.icmp_signed("==", w["epilogue"], e.index(0))
        size = b.mul(w["m"], w["n"])
        place = b.add(b.mul(matrix, size), b.add(b.mul(row, w["n"]), column))
        c = e.at(b.inttoptr(w["c"], self.element), place)
        c = b.select(plain, c, self.tile_at)
        c_row = b.select(plain, w["n"], w["block_columns"])
        fresh = b.icmp_signed("!=", b.load(self.packed), b.ptrtoint(bb, I64))
        b.store(b.ptrtoint(bb, I64), self.packed)
        longer = b.select(b.icmp_signed(">", w["k"], e.index(0)), w["k"], e.index(1))
        with e.for_range(e.index(0), longer, w["block_k"]) as p:
            k = self._least(b.sub(w["k"], p), w["block_k"])
            self._run(p, k, rows, columns, column, a, bb, c, c_row, fresh)
        with b.if_then(b.not_(plain)):
            self._epilogue((c, c_row, row, rows, column, columns, matrix))

    def _run(
        self,
        p: ir.Value,
        k: ir.Value,
        rows: ir.Value,
        columns: ir.Value,
        column: ir.Value,
        a: ir.Value,
        bb: ir.Value,
        c: ir.Value,
        c_row: ir.Value,
        fresh: ir.Value,
    ) -> None:
        """One run of k: packing, then all tiles of the block."""
        e, b, w, tile = self.e, self.e.builder, self.word, self.tile
        zero, one = e.index(0), e.index(1)
        lanes = e.index(tile.columns)
        a_at = e.at(a, b.mul(p, w["a_k"]))
        b_at = e.at(bb, b.mul(p, w["b_k"]))
        # all runs of B side by side if they are packed once
        before = b.icmp_signed("==", w["pack_b"], e.index(PACKED_BEFORE))
        once = b.or_(b.icmp_signed("==", w["pack_b"], one), before)
        wide = b.mul(self._blocks(columns, lanes), lanes)
        shared = e.at(b.inttoptr(w["b_packed"], self.element), b.mul(column, w["k"]))
        b_pack = b.select(before, shared, self.b_pack)
        b_pack = e.at(b_pack, b.select(once, b.mul(p, wide), zero))
        here = b.and_(b.icmp_signed("!=", w["pack_b"], zero), b.not_(before))
        with b.if_then(here):
            anew = b.or_(fresh, b.not_(once))
            with b.if_then(anew):
                b.call(self.packing_b, [b_at, w["b_column"], w["b_k"], columns, k, b_pack])
        pack_a = b.icmp_signed("!=", w["pack_a"], zero)
        with b.if_then(pack_a):
            b.call(self.packing_a, [a_at, w["a_row"], w["a_k"], rows, k, self.a_pack])
        pack_b = b.icmp_signed("!=", w["pack_b"], zero)
        b_start = b.select(pack_b, b_pack, self._direct(b_at))
        b_panel = b.select(pack_b, k, one)
        b_k = b.select(pack_b, lanes, w["b_k"])
        a_start = b.select(pack_a, self.a_pack, self._direct(a_at))
        a_panel = b.select(pack_a, k, w["a_row"])
        a_row = b.select(pack_a, one, w["a_row"])
        a_k = b.select(pack_a, e.index(tile.rows), w["a_k"])
        add = b.icmp_signed(">", p, zero)
        with e.for_range(zero, columns, lanes) as j:
            b_tile = e.at(b_start, b.mul(j, b_panel))
            width = self._least(b.sub(columns, j), lanes)
            with e.for_range(zero, rows, e.index(tile.rows)) as i:
                a_tile = e.at(a_start, b.mul(i, a_panel))
                height = self._least(b.sub(rows, i), e.index(tile.rows))
                c_tile = e.at(c, b.add(b.mul(i, c_row), j))
                self._tile(
                    width,
                    [a_tile, a_row, a_k, b_tile, b_k, k, height, width, c_tile, c_row, add],
                )

    def _direct(self, place: ir.Value) -> ir.Value:
        """The operand where it is, as accumulators (16-bit floats are always packed)."""
        return self.e.builder.bitcast(place, self.element)

    def _tile(self, width: ir.Value, args: list[ir.Value]) -> None:
        """The micro-kernel with just enough vectors."""
        e, b = self.e, self.e.builder
        after = b.append_basic_block("tile.done")
        for count, micro in enumerate(self.micro[:-1], 1):
            fits, wider = (b.append_basic_block(n) for n in ("tile.fits", "tile.wider"))
            b.cbranch(b.icmp_signed("<=", width, e.index(count * self.tile.lanes)), fits, wider)
            b.position_at_end(fits)
            b.call(micro, args)
            b.branch(after)
            b.position_at_end(wider)
        b.call(self.micro[-1], args)
        b.branch(after)
        b.position_at_end(after)

    def _epilogue(self, values: tuple[ir.Value, ...]) -> None:
        """Hand the finished block over: its frame is FRAME, its words come after gemm's."""
        e, b = self.e, self.e.builder
        frame = e.alloca(ir.ArrayType(I64, len(FRAME)))
        first = b.bitcast(frame, I64.as_pointer())
        words = b.ptrtoint(e.at(e.arguments, e.index(len(WORDS))), I64)
        for k, value in enumerate((*values, words)):
            held = b.ptrtoint(value, I64) if isinstance(value.type, ir.PointerType) else value
            b.store(held, e.at(first, e.index(k)))
        function = b.inttoptr(self.word["epilogue"], KERNEL_TYPE.as_pointer())
        b.call(function, [first, e.index(0), e.index(1), e.worker])
