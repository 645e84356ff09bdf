"""The micro-kernel of matrix multiplication: one register tile of C over a run of k.

    micro(a, a_row, a_k, b, b_k, k, guarded, rows, columns, c, c_row, add, ahead)

    c[i, j] = sum over p of a[i, p] * b[p, j]  (+ c[i, j] if add)   for i < rows, j < columns

`a_row`, `a_k`, `b_k`, `c_row` are strides in elements; the elements of a row of B and of C are
neighbours. Nothing in it depends on how A and B got there: packed panels and operands where they
are go through the same code. Rows past `rows` compute the last row again and are not stored;
columns past `columns` are lanes of their own, so nothing that they hold can reach a result. In the
last `guarded` steps of k nothing of B past `columns` is read (see `Accumulators`). While a row of A
is read, the lines `ahead` elements after it are asked for, if that is not 0.

Of narrow integers an element of both operands is several neighbours of k (`Tile.depth`), and k
counts such elements; what the sums of a row begin with may follow its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.tiles.tile import I32, Tile, Vectors

I1 = ir.IntType(1)


@contextmanager
def internal_function(
    e: Emitter, name: str, kinds: Sequence[ir.Type], noalias: Sequence[int] = ()
) -> Iterator[tuple[ir.Function, Emitter]]:
    """An internal function of the kernel that the caller calls as often as it likes."""
    unique = e.module.get_unique_name(f"{e.symbol}.{name}")
    function, inner = e.define_function(unique, ir.FunctionType(ir.VoidType(), kinds))
    for k in noalias:
        function.args[k].add_attribute("noalias")
    yield function, inner
    inner.builder.ret_void()


def emit_micro(e: Emitter, tile: Tile, rows: int, vectors: int) -> ir.Function:
    """Define the micro-kernel for tiles of up to `rows` rows and `vectors` vectors a row."""
    pointer = tile.element.as_pointer()
    kinds = [pointer, I64, I64, pointer, I64, I64, I64, I64, I64, pointer, I64, I1, I64]
    with internal_function(e, f"micro{rows}x{vectors}", kinds, (9,)) as (function, f):
        _micro(f, tile, rows, vectors, list(function.args))
    return function


def _micro(e: Emitter, tile: Tile, rows: int, vectors: int, args: list[ir.Value]) -> None:
    a, a_row, a_k, b_at, b_k, count, guarded, given, columns, c, c_row, add, ahead = args
    b = e.builder
    accumulators = Accumulators(e, tile, rows, vectors, columns)
    accumulators.fetch(_row_places(e, rows, given, c, c_row))
    starts = _row_places(e, rows, given, a, a_row)
    sums = [accumulators.v.zero()] * (rows * vectors)
    if tile.has_starts:
        first = [b.load(e.at(start, b.mul(count, a_k))) for start in starts]
        sums = [accumulators.v.splat(value) for value in first for _ in range(vectors)]
    at = e.index(0), e.index(0)
    soon = ahead if tile.asks_ahead and rows > tile.few_rows else None
    sums = accumulators.run(starts, at, (a_k, b_k), b_at, count, guarded, sums, soon)
    places = [lambda i=i: e.at(c, b.mul(e.index(i), c_row)) for i in range(rows)]
    accumulators.store(sums, places, given, add)


#: The functions of a tile: by rows (all, few), for 1, 2, ... vectors.
Forms = dict[int, list[ir.Function]]


def for_each_form(tile: Tile, emit: Callable[[int, int], ir.Function]) -> Forms:
    """`emit(rows, vectors)` for whole tiles and those of few rows, of each number of vectors."""
    widths = range(1, tile.vectors + 1)
    return {rows: [emit(rows, v) for v in widths] for rows in (tile.rows, tile.few_rows)}


@contextmanager
def row_tiles(
    e: Emitter, tile: Tile, rows: ir.Value, packed: ir.Value | None = None
) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """A loop over the tiles of `rows` rows: yields a tile's first row, whether it is one of few
    rows, and its rows. packed: the rows lie in panels that hold as many as a whole tile."""
    b, few_rows = e.builder, e.index(tile.few_rows)
    head, body, after = (b.append_basic_block(n) for n in ("rows.head", "rows", "rows.after"))
    before = b.block
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(e.index(0), before)
    rest = b.sub(rows, i)
    b.cbranch(b.icmp_signed(">", rest, e.index(0)), body, after)
    b.position_at_end(body)
    few = b.icmp_signed("<=", rest, few_rows)
    if tile.rows % tile.few_rows:  # 8 rows are twice 4, not 6 and 2
        twice = b.icmp_unsigned("<=", b.sub(rest, e.index(tile.rows + 1)), e.index(1))
        few = b.or_(few, twice if packed is None else b.and_(twice, b.not_(packed)))
    most = b.select(few, few_rows, e.index(tile.rows))
    height = b.select(b.icmp_signed("<", rest, most), rest, most)
    yield i, few, height
    i.add_incoming(b.add(i, height), b.block)
    b.branch(head)
    b.position_at_end(after)


def call_narrowest(
    e: Emitter, tile: Tile, forms: Forms, size: tuple[ir.Value, ir.Value], args: list[ir.Value]
) -> None:
    """Call the form for few rows or all, with just enough vectors; size: whether there are few
    rows, and how many columns."""
    b, (few, columns) = e.builder, size
    after = b.append_basic_block("tile.done")
    with b.if_else(few) as branches:
        for branch, rows in zip(branches, (tile.few_rows, tile.rows), strict=True):
            with branch:
                for count, function in enumerate(forms[rows], 1):
                    if count < tile.vectors:
                        fits = b.icmp_signed("<=", columns, e.index(count * tile.lanes))
                        now, wider = (b.append_basic_block(n) for n in ("tile.fits", "tile.wider"))
                        b.cbranch(fits, now, wider)
                        b.position_at_end(now)
                    b.call(function, args)
                    if count < tile.vectors:
                        b.branch(after)
                        b.position_at_end(wider)
    b.branch(after)
    b.position_at_end(after)


def clamped_rows(e: Emitter, rows: int, given: ir.Value) -> list[ir.Value]:
    """0, 1, ... below `rows`; rows that are not there are the last one again."""
    b = e.builder
    last = b.sub(given, e.index(1))
    numbers = [e.index(i) for i in range(rows)]
    return [b.select(b.icmp_signed("<", i, last), i, last) for i in numbers]


def _row_places(
    e: Emitter, rows: int, given: ir.Value, first: ir.Value, row: ir.Value
) -> list[ir.Value]:
    """Where rows 0, 1, ... begin, the last of `given` again from there on. Additions one after the
    other: products by numbers that are selected first take one port longer than all of this."""
    b, places = e.builder, [first]
    for i in range(1, rows):
        there = b.icmp_signed("<", e.index(i), given)
        places.append(e.at(places[-1], b.select(there, row, e.index(0))))
    return places


class Accumulators:
    """A register tile of sums at an emitter's position: its loops over k, and its way to memory.

    The last vector of a row may be partly past the last of `columns`. Where the elements after a
    row of B are B's own (its next row), the loop reads the whole vector, and what the lanes past
    the columns hold is never stored; where they may lie outside of B, a mask keeps to the row. A
    mask in the loop costs AVX2 as much as the products, so only the last steps have one there, in a
    loop of their own; where masks have registers, all steps have it, or of the largest tile none: a
    masked load is one more step on the ports that multiply.
    """

    def __init__(self, e: Emitter, tile: Tile, rows: int, vectors: int, columns: ir.Value) -> None:
        self.e, self.tile, self.rows, self.vectors = e, tile, rows, vectors
        self.v = Vectors(e, tile)
        self.full = e.builder.icmp_signed("==", columns, e.index(vectors * tile.lanes))
        self._rest = e.builder.sub(columns, e.index((vectors - 1) * tile.lanes))
        self._mask = self.v.mask(self._rest) if tile.mask_registers else None

    def run(
        self,
        a_rows: Sequence[ir.Value],
        start: tuple[ir.Value, ir.Value],
        strides: tuple[ir.Value, ir.Value],
        b_at: ir.Value,
        count: ir.Value,
        guarded: ir.Value | None,
        sums: Sequence[ir.Value],
        ahead: ir.Value | None = None,
    ) -> list[ir.Value]:
        """The sums after `count` steps of k from the offsets `start` of A's rows and of B's. The
        last `guarded` must not read past the columns; None: all may. ahead: see above."""
        b, zero = self.e.builder, self.e.index(0)
        at = start[0], self.e.at(b_at, start[1])
        loop = self._loop if ahead is None else partial(self._stretches, ahead)
        if guarded is None:
            return loop(a_rows, at, strides, count, sums, False)[0]
        if self._mask is not None and self.rows * self.vectors < self.tile.rows * self.tile.vectors:
            return loop(a_rows, at, strides, count, sums, True)[0]
        if self._mask is not None:
            ends = []
            with b.if_else(self.full) as branches:
                for branch, masked in zip(branches, (False, True), strict=True):
                    with branch:
                        made = loop(a_rows, at, strides, count, sums, masked)[0]
                        ends.append((made, b.block))
            return _joined(b, ends)
        plain = b.sub(count, guarded)
        plain = b.select(b.icmp_signed(">", plain, zero), plain, zero)
        plain = b.select(self.full, count, plain)
        sums, at = loop(a_rows, at, strides, plain, sums, False)
        return self._loop(a_rows, at, strides, b.sub(count, plain), sums, True)[0]

    def _loop(
        self,
        a_rows: Sequence[ir.Value],
        start: tuple[ir.Value, ir.Value],
        strides: tuple[ir.Value, ir.Value],
        count: ir.Value,
        sums: Sequence[ir.Value],
        masked: bool,
    ) -> tuple[list[ir.Value], tuple[ir.Value, ir.Value]]:
        """One loop: the sums after it, and where it is then, the offset of A's rows and the row of
        B. It counts down: with 8 rows of A the general registers are few."""
        e, b, v = self.e, self.e.builder, self.v
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("k.head", "k.body", "k.after"))
        b.branch(head)
        b.position_at_end(head)
        left, at_a, row_b = (b.phi(x.type) for x in (count, *start))
        held = [b.phi(v.kind) for _ in sums]
        b.cbranch(b.icmp_signed(">", left, e.index(0)), body, after)
        b.position_at_end(body)
        places = [e.at(row_b, e.index(k * self.tile.lanes)) for k in range(self.vectors)]
        b_row = [v.load(place) for place in (places[:-1] if masked else places)]
        if masked:
            mask = self._mask if self._mask is not None else v.mask(self._rest)
            b_row.append(v.masked_load(places[-1], mask))
        following: list[ir.Value] = []
        for i, row in enumerate(a_rows):
            factor = v.splat(b.load(e.at(row, at_a)))
            own = held[i * self.vectors : (i + 1) * self.vectors]
            following += [v.multiply_add(factor, x, s) for x, s in zip(b_row, own, strict=True)]
        steps = [b.sub(left, e.index(1)), b.add(at_a, strides[0]), e.at(row_b, strides[1])]
        for phi, first, step in zip((left, at_a, row_b), (count, *start), steps, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(step, b.block)
        for phi, first, value in zip(held, sums, following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, b.block)
        jump = b.branch(head)
        jump.set_metadata("llvm.loop", _no_unroll(e))
        b.position_at_end(after)
        return held, (at_a, row_b)

    def _stretches(
        self,
        ahead: ir.Value,
        a_rows: Sequence[ir.Value],
        start: tuple[ir.Value, ir.Value],
        strides: tuple[ir.Value, ir.Value],
        count: ir.Value,
        sums: Sequence[ir.Value],
        masked: bool,
    ) -> tuple[list[ir.Value], tuple[ir.Value, ir.Value]]:
        """`_loop` for as many steps of k at a time as a cache line of a row of A has; before them
        the lines that are `ahead` of these are asked for. All steps at once if that is 0."""
        e, b = self.e, self.e.builder
        line, zero = e.index(64 // self.tile.itemsize), e.index(0)
        wanted = b.icmp_signed("!=", ahead, zero)
        stretch = b.select(wanted, line, count)
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("line.head", "line", "line.after"))
        b.branch(head)
        b.position_at_end(head)
        left, at_a, row_b = (b.phi(x.type) for x in (count, *start))
        held = [b.phi(self.v.kind) for _ in sums]
        b.cbranch(b.icmp_signed(">", left, zero), body, after)
        b.position_at_end(body)
        with b.if_then(wanted):
            self._ask([e.at(row, b.add(at_a, ahead)) for row in a_rows])
        steps = b.select(b.icmp_signed("<", left, stretch), left, stretch)
        made, at = self._loop(a_rows, (at_a, row_b), strides, steps, held, masked)
        phis = (left, at_a, row_b, *held)
        following = (b.sub(left, steps), *at, *made)
        for phi, first, value in zip(phis, (count, *start, *sums), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        return held, (at_a, row_b)

    def fetch(self, rows: Sequence[ir.Value]) -> None:
        """Ask for the tile's cache lines of C, which `store` needs after the loop."""
        line, end = 64 // self.tile.itemsize, self.vectors * self.tile.lanes
        self._ask([self.e.at(row, self.e.index(k)) for row in rows for k in range(0, end, line)])

    def _ask(self, places: Sequence[ir.Value]) -> None:
        b, prefetch = self.e.builder, self.v.prefetch()
        hints = [ir.Constant(I32, x) for x in (0, 2, 1)]  # to read, into L2, data
        for place in places:
            b.call(prefetch, [b.bitcast(place, ir.IntType(8).as_pointer()), *hints])

    def store(
        self,
        sums: Sequence[ir.Value],
        places: Sequence[Callable[[], ir.Value]],
        given: ir.Value,
        add: ir.Value,
    ) -> None:
        """Write the rows below `given`, row i at `places[i]()`; `add`: on top of what is there."""
        b = self.e.builder
        word = ir.IntType(8 * self.tile.itemsize)
        words = ir.VectorType(word, self.v.lanes)
        kept = self.v.splat(b.sext(add, word), words)
        if self._mask is not None:
            self._rows(sums, places, given, kept, self._mask)
            return
        with b.if_else(self.full) as (then, otherwise):
            with then:
                self._rows(sums, places, given, kept, None)
            with otherwise:
                self._rows(sums, places, given, kept, self.v.mask(self._rest), self._rest)

    def _rows(
        self,
        sums: Sequence[ir.Value],
        places: Sequence[Callable[[], ir.Value]],
        given: ir.Value,
        kept: ir.Value,
        mask: ir.Value | None,
        rest: ir.Value | None = None,
    ) -> None:
        e, b, v = self.e, self.e.builder, self.v
        done = b.append_basic_block("done")
        for i, place in enumerate(places):
            if i:
                row = b.append_basic_block(f"row{i}")
                b.cbranch(b.icmp_signed("<", e.index(i), given), row, done)
                b.position_at_end(row)
            start = place()
            for k in range(self.vectors):
                to = e.at(start, e.index(k * self.tile.lanes))
                part = mask if k == self.vectors - 1 else None
                old = v.load(to) if part is None else v.masked_load(to, part)
                old = b.bitcast(b.and_(b.bitcast(old, kept.type), kept), v.kind)
                total = v.add(sums[i * self.vectors + k], old)
                if part is None:
                    v.store(total, to)
                elif rest is not None:
                    v.store_first(total, to, rest)
                else:
                    v.masked_store(total, to, part)
        b.branch(done)
        b.position_at_end(done)


def _joined(b: ir.IRBuilder, ends: Sequence[tuple[Sequence[ir.Value], ir.Block]]) -> list[ir.Value]:
    """The values of the branch that was taken; ends: each branch's values and last block."""
    joined = []
    for values in zip(*(values for values, _ in ends), strict=True):
        phi = b.phi(values[0].type)
        for value, (_, block) in zip(values, ends, strict=True):
            phi.add_incoming(value, block)
        joined.append(phi)
    return joined


def _no_unroll(e: Emitter) -> ir.MDValue:
    """A loop id that says: the body is long enough. Unrolled, its pointers would not fit."""
    module = e.module
    off = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = module.add_metadata([ir.MetaDataString(module, f"{e.symbol}.k"), off])
    loop.operands = (loop, off)  # a loop id names itself first
    return loop
