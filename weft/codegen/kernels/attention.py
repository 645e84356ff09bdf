"""attention and attention_grad: products with a softmax between them, block by block.

A unit of `attention` is some rows of one head: keys are packed transposed, values as they are; then
for each block of rows the scores against all columns that it sees, in the worker's scratch,

    scores = query key^T;  e = exp(scores - largest of the row);  out = (e value) / (sum of e)

A unit of `attention_grad` is one head: for each block of rows and of columns the weights are
computed again from the rows' sums, and with D = sum(g * out) of each row

    d_scores = weights * (g value^T - D) * scale
    d_query += d_scores key;  d_key += d_scores^T query;  d_value += weights^T g

(T. Dao, "FlashAttention-2", 2023). Memory is linear in rows and columns. What a unit is, and in
which order it adds up, follows from the sizes alone. Blocks that a causal mask hides are left out.

`Blocks` are products of blocks, `Rows` loops over rows of scores: what both kernels are made of."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    KernelCall,
    WorkerScratch,
    cut_call,
    table_of,
    worker_stride,
)
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.products.gemm import RUN, up
from weft.codegen.tiles.micro_kernel import (
    I1,
    I32,
    Tile,
    Vectors,
    call_narrowest,
    emit_micro,
    for_each_form,
    internal_function,
    row_tiles,
    tile_of,
)
from weft.codegen.tiles.packing import emit_pack_b
from weft.codegen.vector import exp_log
from weft.codegen.vector.float_builder import FloatBuilder, splat_constant
from weft.ir.cost.rates import SCORE_NS
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.ops.products import heads_first
from weft.ir.sizes import of_sizes
from weft.ir.types import TensorType

I8 = ir.IntType(8)


class Words:
    """A kernel's arguments by name, at its entry."""

    def __init__(self, e: Emitter, names: Sequence[str], tile: Tile) -> None:
        self.e, self.tile = e, tile
        self._held = {name: e.argument(k) for k, name in enumerate(names)}
        self._kind = tile.element.as_pointer()

    def __getitem__(self, name: str) -> ir.Value:
        return self._held[name]

    def base(self, name: str) -> ir.Value:
        """An operand or a result, as pointer to its elements."""
        return self.e.builder.inttoptr(self[name], self._kind)

    def pointer(self, name: str, head: ir.Value, table: str) -> ir.Value:
        """Where the part of this head begins."""
        return self.e.at(self.base(name), self.place(head, table))

    def place(self, head: ir.Value, table: str) -> ir.Value:
        """The entry of a table of offsets."""
        b = self.e.builder
        return b.load(self.e.at(b.inttoptr(self[table], I64.as_pointer()), head))

    def scratch(self, *sizes: str) -> list[ir.Value]:
        """The worker's scratch, cut into parts of so many bytes and what is left."""
        b = self.e.builder
        start = b.add(self["scratch"], b.mul(self.e.worker, self["scratch_bytes"]))
        parts = []
        for name in sizes:
            parts.append(b.inttoptr(start, self._kind))
            start = b.add(start, self[name])
        return [*parts, b.inttoptr(start, self._kind)]

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller one."""
        b = self.e.builder
        return b.select(b.icmp_signed("<", x, y), x, y)

    def up(self, x: ir.Value, step: int) -> ir.Value:
        """The next multiple of `step`, a power of two."""
        b = self.e.builder
        return b.and_(b.add(x, self.e.index(step - 1)), self.e.index(-step))

    def seen(self, stop: ir.Value) -> ir.Value:
        """How many columns the rows before `stop` see."""
        b = self.e.builder
        causal = b.icmp_signed("!=", self["causal"], self.e.index(0))
        return b.select(causal, self.least(stop, self["columns"]), self["columns"])

    def number(self, name: str) -> ir.Value:
        """A word that holds the bits of an f64, as an element."""
        b = self.e.builder
        value = b.bitcast(self[name], ir.DoubleType())
        return value if self.tile.dtype == "f64" else b.fptrunc(value, ir.FloatType())


class Blocks:
    """Products of blocks whose right operand is packed."""

    def __init__(self, e: Emitter, tile: Tile) -> None:
        self.e = e
        self._pack = emit_pack_b(e, tile, tile.dtype)
        forms = for_each_form(tile, lambda rows, v: emit_micro(e, tile, rows, v))
        pointer = tile.element.as_pointer()
        kinds = [pointer, I64, I64, pointer, I64, I64, I64, I64, pointer, I64, I1]
        with internal_function(e, "multiply", kinds, (8,)) as (self._multiply, f):
            a, a_row, a_k, panels, depth, rows, columns, k, c, c_row, add = self._multiply.args
            b, wide = f.builder, f.index(tile.columns)
            with f.for_range(f.index(0), columns, wide) as j, row_tiles(f, tile, rows) as at:
                i, few, height = at
                rest = b.sub(columns, j)
                width = b.select(b.icmp_signed("<", rest, wide), rest, wide)
                args = [
                    f.at(a, b.mul(i, a_row)), a_row, a_k, f.at(panels, b.mul(j, depth)), wide, k,
                    f.index(0), height, width, f.at(c, b.add(b.mul(i, c_row), j)), c_row, add,
                    f.index(0),
                ]  # fmt: skip
                call_narrowest(f, tile, forms, (few, width), args)

    def pack(
        self,
        source: ir.Value,
        column: ir.Value,
        row: ir.Value,
        columns: ir.Value,
        rows: ir.Value,
        target: ir.Value,
    ) -> None:
        """Copy a matrix, whose elements are steps `column` and `row` apart, as panels."""
        self.e.builder.call(self._pack, [source, column, row, columns, rows, target])

    def multiply(
        self,
        a: tuple[ir.Value, ir.Value, ir.Value],
        panels: tuple[ir.Value, ir.Value],
        sizes: tuple[ir.Value, ir.Value, ir.Value],
        c: tuple[ir.Value, ir.Value],
        add: ir.Value | None = None,
    ) -> None:
        """C = A B, or C += A B. a: its place, steps over rows and k. panels: of B, and the rows
        that each has. sizes: rows, columns, k. c: its place, step over rows."""
        flag = ir.Constant(I1, 0) if add is None else add
        self.e.builder.call(self._multiply, [*a, *panels, *sizes, *c, flag])


class Rows:
    """Loops over rows, two vectors at a time; what is past the end of a row of scores is 0."""

    def __init__(self, w: Words, mask: str) -> None:
        self.w, self.e, self.mask = w, w.e, mask
        self.lanes = 2 * w.tile.lanes
        self.v = Vectors(w.e, w.tile, self.lanes)
        self.scale_by, self.fill = w.number("scale"), w.number("fill")

    # ------------------------------------------------------------------------------ scores
    def weights(
        self, row: ir.Value, head: ir.Value, number: ir.Value, columns: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Scores become exponentials of what they are above the largest: (largest, their sum)."""
        e, b, v = self.e, self.e.builder, self.v
        most, total = e.alloca(v.kind), e.alloca(v.kind)
        lowest = splat_constant(v.kind, float("-inf"))
        b.store(lowest, most)
        b.store(v.zero(), total)
        valid = self._valid(number, e.index(0), columns)
        for j, inside in self._vectors(valid, columns):
            value = self._score(v.load(e.at(row, j)), head, number, j, inside)
            value = value if inside is None else b.select(inside, value, lowest)
            v.store(value, e.at(row, j))
            held = b.load(most)
            b.store(b.select(b.fcmp_ordered(">", value, held), value, held), most)
        largest = self._reduced(b.load(most), self._larger)
        m = FloatBuilder(b, self.w.tile.dtype)
        largest = m.select(m.compare("<", m.abs(largest), float("inf")), largest, 0.0)
        less = v.splat(largest)
        for j, inside in self._vectors(valid, columns):
            value = self._exp(b.fsub(v.load(e.at(row, j)), less))
            value = value if inside is None else b.select(inside, value, v.zero())
            v.store(value, e.at(row, j))
            b.store(v.add(b.load(total), value), total)
        return largest, self._reduced(b.load(total), b.fadd)

    def gradient(
        self,
        rows: Sequence[ir.Value],
        place: tuple[ir.Value, ir.Value, ir.Value],
        columns: ir.Value,
        sums: ir.Value,
        delta: ir.Value,
    ) -> None:
        """Of scores and g value^T: the weights, and the cotangent of query key^T. place: head, row,
        first column."""
        e, b, v = self.e, self.e.builder, self.v
        head, number, first = place
        less, mean, factor = v.splat(sums), v.splat(delta), v.splat(self.scale_by)
        for j, inside in self._vectors(self._valid(number, first, columns), columns):
            at = [e.at(row, j) for row in rows]
            on: list[ir.Value] = []
            score = self._score(v.load(at[0]), head, number, b.add(first, j), inside, on)
            weight = self._exp(b.fsub(score, less))
            found = b.fmul(b.fmul(weight, b.fsub(v.load(at[1]), mean)), factor)
            for mask in on:
                found = b.select(mask, found, v.zero())
            if inside is not None:
                weight, found = (b.select(inside, x, v.zero()) for x in (weight, found))
            v.store(weight, at[0])
            v.store(found, at[1])

    def _valid(self, number: ir.Value, first: ir.Value, columns: ir.Value) -> ir.Value:
        """How many of `columns` from `first` on the row sees."""
        e, b, w = self.e, self.e.builder, self.w
        seen = b.sub(b.add(number, e.index(1)), first)
        seen = b.select(b.icmp_signed(">", seen, e.index(0)), seen, e.index(0))
        causal = b.icmp_signed("!=", w["causal"], e.index(0))
        return b.select(causal, w.least(seen, columns), columns)

    def _vectors(
        self, valid: ir.Value, columns: ir.Value
    ) -> Iterator[tuple[ir.Value, ir.Value | None]]:
        """Two loops: over whole vectors of valid columns, and over the others, with the lanes that
        are valid."""
        e, b = self.e, self.e.builder
        whole = b.and_(valid, e.index(-self.lanes))
        step = e.index(self.lanes)
        with e.for_range(e.index(0), whole, step) as j:
            yield j, None
        with e.for_range(whole, self.w.up(columns, self.lanes), step) as j:
            yield j, self.v.mask(b.sub(valid, j))

    def _score(
        self,
        value: ir.Value,
        head: ir.Value,
        number: ir.Value,
        column: ir.Value,
        inside: ir.Value | None,
        on: list[ir.Value] | None = None,
    ) -> ir.Value:
        """A product of query and key, scaled and masked; `on` gets where a bool mask is on."""
        e, b, v, w = self.e, self.e.builder, self.v, self.w
        value = b.fmul(value, v.splat(self.scale_by))
        if self.mask == "none":
            return value
        place = b.add(b.add(w.place(head, "mask_at"), b.mul(number, w["mask_row"])), column)
        if self.mask == "add":
            at = e.at(w.base("mask"), place)
            return b.fadd(value, v.load(at) if inside is None else v.masked_load(at, inside))
        at = e.at(b.inttoptr(w["mask"], I8.as_pointer()), place)
        flags = b.icmp_unsigned("!=", self._bytes(at, inside), ir.Constant(self._byte_kind, None))
        if on is not None:
            on.append(flags)
        return b.select(flags, value, v.splat(self.fill))

    @property
    def _byte_kind(self) -> ir.VectorType:
        return ir.VectorType(I8, self.lanes)

    def _bytes(self, at: ir.Value, inside: ir.Value | None) -> ir.Value:
        b, kind = self.e.builder, self._byte_kind
        pointer = b.bitcast(at, kind.as_pointer())
        if inside is None:
            return b.load(pointer, align=1)
        name = f"llvm.masked.load.v{self.lanes}i8.p0"
        load = self.e.module.globals.get(name) or ir.Function(
            self.e.module, ir.FunctionType(kind, [pointer.type, I32, inside.type, kind]), name
        )
        return b.call(load, [pointer, ir.Constant(I32, 1), inside, ir.Constant(kind, None)])

    def _exp(self, value: ir.Value) -> ir.Value:
        return exp_log.exp(FloatBuilder(self.e.builder, self.w.tile.dtype, value), value)

    def logarithm(self, total: ir.Value, largest: ir.Value) -> ir.Value:
        """log(total) + largest"""
        b = self.e.builder
        return b.fadd(exp_log.log(FloatBuilder(b, self.w.tile.dtype), total), largest)

    # ------------------------------------------------------------------------------ other rows
    def scale(self, row: ir.Value, count: ir.Value, factor: ir.Value) -> None:
        """row *= factor"""
        b, v = self.e.builder, self.v
        wide = v.splat(factor)
        self._each(
            count,
            lambda j: v.store(b.fmul(v.load(self.e.at(row, j)), wide), self.e.at(row, j)),
            lambda j: b.store(b.fmul(b.load(self.e.at(row, j)), factor), self.e.at(row, j)),
        )

    def clear(self, row: ir.Value, count: ir.Value) -> None:
        """row = 0"""
        b, v, zero = self.e.builder, self.v, ir.Constant(self.w.tile.element, 0.0)
        self._each(
            count,
            lambda j: v.store(v.zero(), self.e.at(row, j)),
            lambda j: b.store(zero, self.e.at(row, j)),
        )

    def dot(self, x: ir.Value, y: ir.Value, count: ir.Value) -> ir.Value:
        """sum(x * y)"""
        e, b, v = self.e, self.e.builder, self.v
        wide, rest = e.alloca(v.kind), e.alloca(self.w.tile.element)
        b.store(v.zero(), wide)
        b.store(ir.Constant(self.w.tile.element, 0.0), rest)

        def vectors(j: ir.Value) -> None:
            product = v.multiply_add(v.load(e.at(x, j)), v.load(e.at(y, j)), b.load(wide))
            b.store(product, wide)

        def elements(j: ir.Value) -> None:
            product = b.fmul(b.load(e.at(x, j)), b.load(e.at(y, j)))
            b.store(b.fadd(b.load(rest), product), rest)

        self._each(count, vectors, elements)
        return b.fadd(self._reduced(b.load(wide), b.fadd), b.load(rest))

    def _each(
        self,
        count: ir.Value,
        vectors: Callable[[ir.Value], None],
        elements: Callable[[ir.Value], None],
    ) -> None:
        e, b = self.e, self.e.builder
        whole = b.and_(count, e.index(-self.lanes))
        with e.for_range(e.index(0), whole, e.index(self.lanes)) as j:
            vectors(j)
        with e.for_range(whole, count) as j:
            elements(j)

    def _larger(self, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.select(b.fcmp_ordered(">", x, y), x, y)

    def _reduced(
        self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        """All lanes in one, by halves."""
        b, lanes = self.e.builder, self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                ir.Constant(ir.VectorType(I32, lanes), list(range(k, k + lanes)))
                for k in (0, lanes)
            ]
            value = combine(*(b.shuffle_vector(value, value, half) for half in halves))
        return b.extract_element(value, ir.Constant(I32, 0))


#: Bytes of a block of scores, about; its rows, at most; its columns, in the gradient.
SCORES_BYTES, MOST_ROWS, COLUMNS = 3 << 17, 96, 384
#: The rows of blocks are multiples of this, whole tiles on every target.
ROW_STEP = 24
#: A call has so many units, if it has as many rows for them.
LEAST_UNITS = 16

FORWARD = (
    "out", "sums", "query", "key", "value", "mask", "query_at", "key_at", "value_at", "out_at",
    "mask_at", "scratch", "scratch_bytes", "pieces", "piece_rows", "rows", "columns", "depth",
    "width", "query_row", "key_row", "value_row", "out_row", "mask_row", "block_rows", "score_row",
    "keys_bytes", "values_bytes", "scale", "fill", "causal",
)  # fmt: skip
BACKWARD = (
    "d_query", "d_key", "d_value", "query", "key", "value", "mask", "out", "sums", "g", "query_at",
    "key_at", "value_at", "out_at", "mask_at", "scratch", "scratch_bytes", "rows", "columns",
    "depth", "width", "query_row", "key_row", "value_row", "out_row", "mask_row", "block_rows",
    "block_columns", "score_row", "keys_bytes", "values_bytes", "scores_bytes", "queries_bytes",
    "gs_bytes", "scale", "fill", "causal",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of an attention. heads: of all items of the batch; rows and columns of scores; depth of
    keys, width of values. at: where each head of query, key, value, out and mask begins; steps:
    from row to row.
    """

    dtype: str
    heads: int
    rows: int
    columns: int
    depth: int
    width: int
    at: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _sizes(op: Operation, mask: Value | None) -> _Sizes:
    query, key, value = map(_tensor, op.operands[:3])
    first = [[int(n) for n in heads_first(t, op.attrs)] for t in (query, key, value)]  # type: ignore[call-overload]
    *batch, rows, depth = first[0]
    columns, width = first[1][-2], first[2][-1]
    count = math.prod(batch)
    inner = batch[-1] if op.attrs["heads_inner"] else 0
    places, steps = [], []
    for n, last in ((rows, depth), (columns, depth), (columns, width), (rows, width)):
        steps.append(inner * last if inner else last)
        heads = range(count)
        places.append(
            tuple(h // inner * inner * n * last + h % inner * last for h in heads)
            if inner
            else tuple(h * n * last for h in heads)
        )
    at, row = _mask_at(mask, (*batch, rows, columns))
    return _Sizes(
        query.dtype.short, count, rows, columns, depth, width, (*places, at), (*steps, row)
    )


def _mask_at(mask: Value | None, scores: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Where each head's mask begins, and the step from row to row; 0 along what it repeats."""
    if mask is None:
        return (0,), 0
    own = _tensor(mask).static_shape
    own = (1,) * (len(scores) - len(own)) + own
    steps, step = [], 1
    for n in reversed(own):
        steps.append(step if n != 1 else 0)
        step *= n
    *batch_steps, row, _ = reversed(steps)
    places = [0]
    for n, s in zip(scores[:-2], batch_steps, strict=True):
        places = [p + i * s for p in places for i in range(n)]
    return tuple(places), row


def _mask_of(op: Operation, extra: int) -> Value | None:
    return op.operands[3] if len(op.operands) > 3 + extra else None


def _kind(mask: Value | None) -> str:
    return "none" if mask is None else "bool" if _tensor(mask).dtype.short == "bool" else "add"


def _bits(value: object) -> int:
    assert isinstance(value, float)
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


@of_sizes
def _forward_blocks(heads: int, rows: int, columns: int, item: int) -> tuple[int, int]:
    """(rows of a block, pieces of a head)."""
    fit = SCORES_BYTES // (max(columns, 1) * item) // ROW_STEP * ROW_STEP
    block = max(ROW_STEP, min(MOST_ROWS, fit))
    wanted = -(-LEAST_UNITS // max(heads, 1))
    return block, max(1, min(wanted, rows // (2 * block)))


def attention_calls(op: Operation) -> list[KernelCall]:
    """The call of an `attention`."""
    mask = _mask_of(op, 0)
    s, tile = _sizes(op, mask), tile_of(_tensor(op.operands[0]).dtype.short)
    item, width = tile.itemsize, 2 * tile.lanes
    block, pieces = _forward_blocks(s.heads, s.rows, s.columns, item)
    piece = up(-(-s.rows // pieces), block)
    score_row = up(s.columns, width) + width
    keys = up(up(s.columns, tile.columns) * s.depth * item, 64)
    values = up(up(s.width, tile.columns) * s.columns * item, 64)
    scratch = worker_stride(keys + values + (block * score_row + 2 * block) * item)
    query, key, value = op.operands[:3]
    at = map(table_of, s.at)
    args: tuple[Arg, ...] = (
        Address(op.results[0]), Address(op.results[1]), Address(query), Address(key),
        Address(value), Address(mask) if mask else 0, *at, WorkerScratch(scratch), scratch, pieces,
        piece, s.rows, s.columns, s.depth, s.width, *s.steps, block, score_row, keys, values,
        _bits(op.attrs["scale"]), _bits(op.attrs["fill"]), int(bool(op.attrs["causal"])),
    )  # fmt: skip
    kernel = _kernel("attention", s.dtype, tile, _kind(mask))
    units = s.heads * pieces
    return [cut_call(kernel, args, units, _nanoseconds(s, tile, op, 1) / pieces)]


def attention_grad_calls(op: Operation) -> list[KernelCall]:
    """The call of an `attention_grad`."""
    mask = _mask_of(op, 3)
    s, tile = _sizes(op, mask), tile_of(_tensor(op.operands[0]).dtype.short)
    item, width = tile.itemsize, 2 * tile.lanes
    score_row = COLUMNS + width
    keys = up(up(s.columns, tile.columns) * s.depth * item, 64)
    values = up(up(s.columns, tile.columns) * s.width * item, 64)
    turned = up(up(s.depth, tile.columns) * s.columns * item, 64)
    scores = up(MOST_ROWS * score_row * item, 64)
    queries, gs = (up(up(n, tile.columns) * MOST_ROWS * item, 64) for n in (s.depth, s.width))
    scratch = worker_stride(keys + values + turned + 2 * scores + queries + gs + MOST_ROWS * item)
    out, sums, g = op.operands[-3:]
    at = map(table_of, s.at)
    args: tuple[Arg, ...] = (
        *map(Address, op.results), *map(Address, op.operands[:3]), Address(mask) if mask else 0,
        Address(out), Address(sums), Address(g), *at, WorkerScratch(scratch), scratch, s.rows,
        s.columns, s.depth, s.width, *s.steps, MOST_ROWS, COLUMNS, score_row, keys, values, scores,
        queries, gs, _bits(op.attrs["scale"]), _bits(op.attrs["fill"]),
        int(bool(op.attrs["causal"])),
    )  # fmt: skip
    kernel = _kernel("attention_grad", s.dtype, tile, _kind(mask))
    return [cut_call(kernel, args, s.heads, _nanoseconds(s, tile, op, 2.5))]


def _nanoseconds(s: _Sizes, tile: Tile, op: Operation, products: float) -> float:
    """Of one head."""
    each = products * (s.depth + s.width) / tile.multiply_adds_per_ns + SCORE_NS / tile.lanes
    return s.rows * s.columns * each / (2 if op.attrs["causal"] else 1)


def _kernel(name: str, dtype: str, tile: Tile, mask: str) -> Kernel:
    words, emit = (FORWARD, _Forward) if name == "attention" else (BACKWARD, _Backward)
    return Kernel(
        f"{name}-1-{dtype}-{tile.key}-{mask}",
        f"{name}_{dtype}",
        lambda e: emit(Words(e, words, tile), mask).write(),
        loops=False,
    )


class _Forward:
    def __init__(self, w: Words, mask: str) -> None:
        self.w, self.e, self.tile = w, w.e, w.tile
        self.keys, self.values, self.scores = w.scratch("keys_bytes", "values_bytes")
        rows = w["block_rows"]
        self.totals = w.e.at(self.scores, w.e.builder.mul(rows, w["score_row"]))
        self.blocks, self.rows = Blocks(w.e, w.tile), Rows(w, mask)

    def write(self) -> None:
        e, b, w = self.e, self.e.builder, self.w
        with e.for_range(e.lo, e.hi) as unit:
            head, piece = b.sdiv(unit, w["pieces"]), b.srem(unit, w["pieces"])
            first = b.mul(piece, w["piece_rows"])
            stop = w.least(b.add(first, w["piece_rows"]), w["rows"])
            query, key, value, out = (
                w.pointer(n, head, f"{n}_at") for n in ("query", "key", "value", "out")
            )
            seen = w.seen(stop)
            self.blocks.pack(key, w["key_row"], e.index(1), seen, w["depth"], self.keys)
            self.blocks.pack(value, e.index(1), w["value_row"], w["width"], seen, self.values)
            with e.for_range(first, stop, w["block_rows"]) as r:
                rows = w.least(b.sub(stop, r), w["block_rows"])
                self._block(head, r, rows, seen, (query, out))

    def _block(
        self,
        head: ir.Value,
        r: ir.Value,
        rows: ir.Value,
        packed: ir.Value,
        at: tuple[ir.Value, ir.Value],
    ) -> None:
        e, b, w = self.e, self.e.builder, self.w
        columns, row = w.seen(b.add(r, rows)), w["score_row"]
        one = e.index(1)
        query = e.at(at[0], b.mul(r, w["query_row"]))
        out = e.at(at[1], b.mul(r, w["out_row"]))
        a = query, w["query_row"], one
        whole = w.up(columns, self.tile.lanes)
        self.blocks.multiply(
            a, (self.keys, w["depth"]), (rows, whole, w["depth"]), (self.scores, row)
        )
        with e.for_range(e.index(0), rows) as i:
            n = b.add(r, i)
            scores = e.at(self.scores, b.mul(i, row))
            most, total = self.rows.weights(scores, head, n, columns)
            b.store(total, e.at(self.totals, i))
            sums = b.add(b.mul(head, w["rows"]), n)
            b.store(self.rows.logarithm(total, most), e.at(w.base("sums"), sums))
        with e.for_range(e.index(0), columns, e.index(RUN)) as p:
            k = w.least(b.sub(columns, p), e.index(RUN))
            values = e.at(self.values, b.mul(p, e.index(self.tile.columns)))
            self.blocks.multiply(
                (e.at(self.scores, p), row, one), (values, packed), (rows, w["width"], k),
                (out, w["out_row"]), b.icmp_signed(">", p, e.index(0)),
            )  # fmt: skip
        with e.for_range(e.index(0), rows) as i:
            inverse = b.fdiv(ir.Constant(self.tile.element, 1.0), b.load(e.at(self.totals, i)))
            self.rows.scale(e.at(out, b.mul(i, w["out_row"])), w["width"], inverse)


class _Backward:
    def __init__(self, w: Words, mask: str) -> None:
        self.w, self.e, self.tile = w, w.e, w.tile
        sizes = ("keys_bytes", "values_bytes", "scores_bytes", "scores_bytes", "queries_bytes")
        parts = w.scratch(*sizes, "gs_bytes")
        self.keys, self.values, self.weights, self.scores, self.queries, self.gs = parts[:-1]
        self.deltas = parts[-1]
        self.turned = w.e.at(self.deltas, w["block_rows"])  # keys as they are
        self.blocks, self.rows = Blocks(w.e, w.tile), Rows(w, mask)

    def write(self) -> None:
        e, b, w = self.e, self.e.builder, self.w
        one = e.index(1)
        with e.for_range(e.lo, e.hi) as head:
            at = {
                name: w.pointer(name, head, f"{of}_at")
                for name, of in (
                    ("query", "query"), ("key", "key"), ("value", "value"), ("out", "out"),
                    ("g", "out"), ("d_query", "query"), ("d_key", "key"), ("d_value", "value"),
                )
            }  # fmt: skip
            for name, step, width in (("key", "key", "depth"), ("value", "value", "width")):
                with e.for_range(e.index(0), w["columns"]) as c:
                    self.rows.clear(e.at(at[f"d_{name}"], b.mul(c, w[f"{step}_row"])), w[width])
            columns = w.seen(w["rows"])
            self.blocks.pack(at["key"], w["key_row"], one, columns, w["depth"], self.keys)
            self.blocks.pack(at["value"], w["value_row"], one, columns, w["width"], self.values)
            self.blocks.pack(at["key"], one, w["key_row"], w["depth"], columns, self.turned)
            with e.for_range(e.index(0), w["rows"], w["block_rows"]) as r:
                rows = w.least(b.sub(w["rows"], r), w["block_rows"])
                self._rows(head, r, rows, columns, at)

    def _rows(
        self,
        head: ir.Value,
        r: ir.Value,
        rows: ir.Value,
        packed: ir.Value,
        at: dict[str, ir.Value],
    ) -> None:
        """One block of rows: what is made once for it, then its blocks of columns."""
        e, b, w = self.e, self.e.builder, self.w
        one = e.index(1)
        steps = {"query": "query", "g": "out", "out": "out", "d_query": "query"}
        here = {n: e.at(at[n], b.mul(r, w[f"{of}_row"])) for n, of in steps.items()}
        self.blocks.pack(here["query"], one, w["query_row"], w["depth"], rows, self.queries)
        self.blocks.pack(here["g"], one, w["out_row"], w["width"], rows, self.gs)
        with e.for_range(e.index(0), rows) as i:
            row = b.mul(i, w["out_row"])
            found = self.rows.dot(e.at(here["g"], row), e.at(here["out"], row), w["width"])
            b.store(found, e.at(self.deltas, i))
        with e.for_range(e.index(0), w.seen(b.add(r, rows)), w["block_columns"]) as c:
            columns = w.least(b.sub(w.seen(b.add(r, rows)), c), w["block_columns"])
            self._block((head, r, c), (rows, columns, packed), here, at)

    def _block(
        self,
        place: tuple[ir.Value, ir.Value, ir.Value],
        sizes: tuple[ir.Value, ir.Value, ir.Value],
        here: dict[str, ir.Value],
        at: dict[str, ir.Value],
    ) -> None:
        e, b, w = self.e, self.e.builder, self.w
        (head, r, c), (rows, columns, packed) = place, sizes
        one, row = e.index(1), w["score_row"]
        whole = w.up(columns, self.tile.lanes)
        multiply = self.blocks.multiply
        for left, right, step, depth, to in (
            ("query", self.keys, "query_row", "depth", self.weights),
            ("g", self.values, "out_row", "width", self.scores),
        ):
            panels = e.at(right, b.mul(c, w[depth])), w[depth]
            multiply((here[left], w[step], one), panels, (rows, whole, w[depth]), (to, row))
        with e.for_range(e.index(0), rows) as i:
            n = b.add(r, i)
            sums = b.load(e.at(w.base("sums"), b.add(b.mul(head, w["rows"]), n)))
            delta = b.load(e.at(self.deltas, i))
            places = [e.at(x, b.mul(i, row)) for x in (self.weights, self.scores)]
            self.rows.gradient(places, (head, n, c), columns, sums, delta)
        more = b.icmp_signed(">", c, e.index(0))
        turned = e.at(self.turned, b.mul(c, e.index(self.tile.columns)))
        multiply(
            (self.scores, row, one), (turned, packed), (rows, w["depth"], columns),
            (here["d_query"], w["query_row"]), more,
        )  # fmt: skip
        always = ir.Constant(ir.IntType(1), 1)
        for left, right, name, width in (
            (self.scores, self.queries, "key", "depth"), (self.weights, self.gs, "value", "width"),
        ):  # fmt: skip
            to = e.at(at[f"d_{name}"], b.mul(c, w[f"{name}_row"]))
            sizes = columns, w[width], rows
            multiply((left, one, row), (right, rows), sizes, (to, w[f"{name}_row"]), always)
