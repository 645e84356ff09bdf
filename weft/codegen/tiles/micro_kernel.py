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

A tile is as many rows and vectors as fit the target's registers: `rows` x `vectors * lanes`
numbers, all in vector registers while the loop over k runs (K. Goto and R. van de Geijn, "Anatomy
of high-performance matrix multiplication", ACM TOMS 34(3), 2008; F. Van Zee and R. van de Geijn,
"BLIS", ACM TOMS 41(3), 2015). Of 32 registers (AVX-512, NEON) 24 hold the tile, 8 rows of 3
vectors; of 16 (AVX2, SSE) 12, 6 rows of 2, as in BLIS: with 4 rows of 3 vectors no register is left
for an element of A. Where a block has few rows left, a tile of fewer rows does not compute the
others for nothing. Its instructions are whole and masked loads and stores, and multiply-adds.

Operands of 8 and 16 bits are packed with two or four neighbours of k in 32 bits
(`weft.codegen.tiles.packing`), and each lane of a sum takes all of them at once:

| packed     | instruction                                    | of                              |
|------------|------------------------------------------------|---------------------------------|
| 2 x i16    | pmaddwd and paddd; vpdpwssd where LLVM has it  | SSE2, AVX2, AVX-512 (BW); VNNI  |
| 4 x i8     | vpdpbusd                                       | AVX-512 VNNI                    |

All of them are exact modulo 2^32: two products of i16 reach 2^31 only as (-2^15)^2 + (-2^15)^2,
which is what int32 wraps it to. Those of four take one operand as unsigned. B is packed plus 128,
and the sums of a run begin with -128 times the sum of A's row: sum of a (b + 128) - 128 a = a b."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from llvmlite import ir

from weft.codegen.llvm.emitter import HALVES, I16, I64, INTEGERS, Emitter, register_type, width_bits
from weft.codegen.llvm.target import has_feature, multiplies_and_adds, per_isa, target_vector_bits
from weft.ir.cost.rates import MULTIPLIES_PER_NS, MULTIPLY_ADDS_PER_NS
from weft.ir.dataclass import dataclass

#: 128 in each byte, which each number of a B that is packed by four is larger by.
BIASES = -0x7F7F7F80
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@per_isa
def elements_of_k(dtype: str, vector_bits: int) -> int:
    """How many neighbours of k are packed into 32 bits of an operand of `dtype`: 4, 2 or 1."""
    if dtype not in INTEGERS or width_bits(dtype) > 16 or not has_feature("sse2"):
        return 1
    if vector_bits == 512 and not has_feature("avx512bw"):
        return 1
    quads = dtype == "i8" and vector_bits == 512 and has_feature("avx512_vnni")
    return 4 if quads else 2


def add_products(e: Emitter, a: ir.Value, b: ir.Value, c: ir.Value, depth: int) -> ir.Value:
    """c + the sum of the `depth` products of each lane, for vectors of 32-bit lanes."""
    builder, lanes = e.builder, c.type.count
    if depth == 4:  # the unsigned operand comes first
        kind = ir.FunctionType(c.type, [c.type] * 3)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return builder.call(_declared(e, name, kind), [c, b, a])
    halves = ir.VectorType(I16, 2 * lanes)
    kind = ir.FunctionType(c.type, [halves, halves])
    pairs = _declared(e, f"llvm.x86.{_PAIRS[lanes]}", kind)
    return builder.add(c, builder.call(pairs, [builder.bitcast(x, halves) for x in (a, b)]))


def _declared(e: Emitter, name: str, kind: ir.FunctionType) -> ir.Function:
    held = e.module.globals.get(name)
    return held if held is not None else ir.Function(e.module, kind, name)


#: What a product of each dtype of floats is computed in.
ACCUMULATOR = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32"}
#: And of integers, which wrap: the low bits are the same in a wider one.
INTEGER_ACCUMULATOR = {x: "i64" if width_bits(x) == 64 else "i32" for x in INTEGERS}


def converts(dtype: str) -> bool:
    """Whether operands of `dtype` become something wider when they are packed, as they must be."""
    return dtype in HALVES or (dtype in INTEGERS and width_bits(dtype) < 32)


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` x (`vectors` of `lanes` elements) of the accumulator dtype.

    masks: the target has masked vector loads (AVX, AVX-512). depth: neighbours of k that are one
    element of a packed operand (`weft.codegen.tiles.micro_kernel`).
    """

    dtype: str
    lanes: int
    rows: int
    vectors: int
    masks: bool
    depth: int = 1

    def steps(self, k: int) -> int:
        """Elements of k of a packed operand: those that are one count once."""
        return k if self.depth == 1 else -(-k // self.depth)

    @property
    def columns(self) -> int:
        """Columns of a full tile: the width of a packed panel of B."""
        return self.lanes * self.vectors

    @property
    def mask_registers(self) -> bool:
        """Whether a mask costs nothing: it has registers of its own (AVX-512)."""
        return self.lanes * self.itemsize == 64

    @property
    def asks_ahead(self) -> bool:
        """Whether rows of A are asked for before their tile: not with vectors of 128 bits, SSE
        multiplies more slowly than they come."""
        return self.lanes * self.itemsize > 16

    @property
    def few_rows(self) -> int:
        """Rows of the smaller tile, for the end of a block."""
        return 4

    @property
    def wide(self) -> Tile | None:
        """The tile of a product whose columns are one vector more than this one's, if there is
        another: its rows of A are read once, not for three vectors and then for one."""
        if not self.mask_registers or isinstance(self.element, ir.IntType):
            return None
        return replace(self, rows=6, vectors=4)

    @property
    def packed_rows(self) -> int:
        """Rows of a packed panel of A: a power of two, of which the tile reads its own."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def has_starts(self) -> bool:
        """Whether what the sums of a row begin with is one more step of a packed A, its last."""
        return self.depth == 4

    @property
    def element(self) -> ir.Type:
        """LLVM type of an accumulator."""
        return register_type(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an accumulator."""
        return width_bits(self.dtype) // 8

    @property
    def multiply_adds_per_ns(self) -> float:
        """The cost model's price of products on one core."""
        each = MULTIPLY_ADDS_PER_NS if multiplies_and_adds() else MULTIPLIES_PER_NS
        return self.lanes * each

    @property
    def key(self) -> str:
        """The part of a kernel's key that names this tile."""
        marks = ("m" if self.masks else "") + (f"d{self.depth}" if self.depth > 1 else "")
        return f"{self.dtype}-{self.rows}x{self.vectors}x{self.lanes}{marks}"


@per_isa
def tile_of(dtype: str) -> Tile:
    """The tile of a product of floats or integers."""
    accumulator = INTEGER_ACCUMULATOR.get(dtype) or ACCUMULATOR[dtype]
    bits = target_vector_bits()
    registers = 32 if bits == 512 or has_feature("neon") else 16
    lanes = bits // width_bits(accumulator)
    rows, vectors = (8, 3) if registers == 32 else (6, 2)
    if registers == 16 and not (dtype in ACCUMULATOR and multiplies_and_adds()):
        rows = 4  # a product is one more register before it is added
    depth = elements_of_k(dtype, bits)
    return Tile(accumulator, lanes, rows, vectors, bits > 128, depth)


def multiply_adds_per_ns(dtype: str) -> float:
    """The price of a product of any dtype; a complex one is four of its parts."""
    real = {"c64": "f32", "c128": "f64"}.get(dtype)
    return tile_of(real or dtype).multiply_adds_per_ns / (4 if real else 1)


I32 = ir.IntType(32)


class Vectors:
    """Vector instructions of one tile's type at an emitter's position."""

    def __init__(self, e: Emitter, tile: Tile, lanes: int | None = None) -> None:
        self.e = e
        self.tile = tile
        self.lanes = lanes or tile.lanes
        self.kind = ir.VectorType(tile.element, self.lanes)
        self.bytes = tile.itemsize

    def pointer(self, place: ir.Value) -> ir.Value:
        """`place`, a pointer to elements, as pointer to vectors."""
        return self.e.builder.bitcast(place, self.kind.as_pointer())

    def load(self, place: ir.Value) -> ir.Value:
        """The vector at an element pointer, which need not be aligned."""
        return self.e.builder.load(self.pointer(place), align=self.bytes)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        """Write a vector to an element pointer, which need not be aligned."""
        self.e.builder.store(value, self.pointer(place), align=self.bytes)

    def splat(self, value: ir.Value, kind: ir.VectorType | None = None) -> ir.Value:
        """All lanes the same scalar; kind: of a vector of another type than the tile's."""
        b, kind = self.e.builder, kind or self.kind
        first = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), None)
        return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def zero(self) -> ir.Constant:
        """All lanes 0."""
        return ir.Constant(self.kind, None)

    def mask(self, count: ir.Value) -> ir.Value:
        """Lane l is on if l < count (i64)."""
        b = self.e.builder
        kind = ir.VectorType(I64, self.lanes)
        counts = self.splat(count, kind)
        return b.icmp_signed("<", ir.Constant(kind, list(range(self.lanes))), counts)

    def masked_load(self, place: ir.Value, mask: ir.Value) -> ir.Value:
        """The lanes of `mask`, 0 elsewhere; lanes that are off touch no memory."""
        pointer = self.pointer(place)
        kind = ir.FunctionType(self.kind, [pointer.type, I32, mask.type, self.kind])
        load = self._intrinsic("masked.load", kind, ".p0")
        return self.e.builder.call(load, [pointer, ir.Constant(I32, self.bytes), mask, self.zero()])

    def masked_store(self, value: ir.Value, place: ir.Value, mask: ir.Value) -> None:
        """Write the lanes of `mask`."""
        pointer = self.pointer(place)
        kind = ir.FunctionType(ir.VoidType(), [self.kind, pointer.type, I32, mask.type])
        store = self._intrinsic("masked.store", kind, ".p0")
        self.e.builder.call(store, [value, pointer, ir.Constant(I32, self.bytes), mask])

    def store_first(self, value: ir.Value, place: ir.Value, count: ir.Value) -> None:
        """Write the first `count` lanes, fewer than all: halves, quarters, ... as `count` has bits.
        A masked store of AVX2 takes AMD's processors 20 steps and more; SSE has none."""
        b, size = self.e.builder, self.lanes // 2
        while size:
            fits = b.icmp_unsigned("!=", b.and_(count, self.e.index(size)), self.e.index(0))
            low, high = (
                b.shuffle_vector(
                    value,
                    ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(I32, size), list(range(start, start + size))),
                )
                for start in (0, size)
            )
            with b.if_then(fits):
                b.store(low, b.bitcast(place, low.type.as_pointer()), align=self.bytes)
            value = b.select(fits, high, low)
            place = b.select(fits, self.e.at(place, self.e.index(size)), place)
            size //= 2

    def prefetch(self) -> ir.Function:
        """llvm.prefetch(address, 1 to write, locality, 1 for data)"""
        module, byte = self.e.module, ir.IntType(8).as_pointer()
        held = module.globals.get("llvm.prefetch.p0")
        if held is not None:
            return held
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        return ir.Function(module, kind, "llvm.prefetch.p0")

    def _intrinsic(self, what: str, kind: ir.FunctionType, suffix: str = "") -> ir.Function:
        name = f"llvm.{what}.v{self.lanes}{self.tile.dtype}{suffix}"
        held = self.e.module.globals.get(name)
        return held if held is not None else ir.Function(self.e.module, kind, name)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, in one rounding where the machine has it; integers wrap. Of packed integers
        all products of a lane + c."""
        if self.tile.depth > 1:
            return add_products(self.e, a, b, c, self.tile.depth)
        if isinstance(self.tile.element, ir.IntType):
            return self.e.builder.add(self.e.builder.mul(a, b), c)
        kind = ir.FunctionType(self.kind, [self.kind] * 3)
        return self.e.builder.call(self._intrinsic("fmuladd", kind), [a, b, c])

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b"""
        whole = isinstance(self.tile.element, ir.IntType)
        return (self.e.builder.add if whole else self.e.builder.fadd)(a, b)


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


def emit_micro(e: Emitter, tile: Tile, rows: int, vectors: int, asks: bool = False) -> ir.Function:
    """Define the micro-kernel for tiles of up to `rows` rows and `vectors` vectors a row. asks: its
    last argument is `Accumulators.soon`."""
    pointer = tile.element.as_pointer()
    kinds = [pointer, I64, I64, pointer, I64, I64, I64, I64, I64, pointer, I64, I1, I64]
    kinds += [I64] * asks
    with internal_function(e, f"micro{rows}x{vectors}", kinds, (9,)) as (function, f):
        _micro(f, tile, rows, vectors, list(function.args))
    return function


def _micro(e: Emitter, tile: Tile, rows: int, vectors: int, args: list[ir.Value]) -> None:
    a, a_row, a_k, b_at, b_k, count, guarded, given, columns, c, c_row, add, ahead, *asked = args
    b = e.builder
    accumulators = Accumulators(e, tile, rows, vectors, columns, *asked)
    accumulators.fetch(_row_places(e, rows, given, c, c_row))
    starts = _row_places(e, rows, given, a, a_row)
    sums = [accumulators.v.zero()] * (rows * vectors)
    if tile.has_starts:
        first = [b.load(e.at(start, b.mul(count, a_k))) for start in starts]
        sums = [accumulators.v.splat(value) for value in first for _ in range(vectors)]
    at = e.index(0), e.index(0)
    next_rows = ahead if tile.asks_ahead and rows > tile.few_rows else None
    sums = accumulators.run(starts, at, (a_k, b_k), b_at, count, guarded, sums, next_rows)
    places = [lambda i=i: e.at(c, b.mul(e.index(i), c_row)) for i in range(rows)]
    accumulators.store(sums, places, given, add)


#: The functions of a tile: by rows (all, few), for 1, 2, ... vectors.
Forms = dict[int, list[ir.Function]]


def for_each_form(tile: Tile, emit: Callable[[int, int], ir.Function]) -> Forms:
    """`emit(rows, vectors)` for whole tiles and those of few rows, of each number of vectors."""
    widths = range(1, tile.vectors + 1)
    return {rows: [emit(rows, v) for v in widths] for rows in (tile.rows, tile.few_rows)}


@dataclass(frozen=True, slots=True)
class Asking:
    """The form for whole tiles that asks for a B to come (`Accumulators.soon`). A step that asks is
    some percent slower, so the others do not.

    function: takes what the forms take, and `soon`; width: elements of a row of B; distance: so
    many elements away lie the rows that are asked for, 0: none are.
    """

    function: ir.Function
    width: ir.Value
    distance: ir.Value

    def call_or(
        self,
        e: Emitter,
        tile: Tile,
        first: ir.Value,
        size: tuple[ir.Value, ir.Value],
        args: list[ir.Value],
        forms: Forms,
    ) -> None:
        """Call this for the first tiles, each of which asks for one line of each row, and the
        narrowest form for the others. first: the tile's first row; size: as `call_narrowest`."""
        b, (few, columns) = e.builder, size
        line = b.mul(b.sdiv(first, e.index(tile.rows)), e.index(64 // tile.itemsize))
        asks = b.and_(b.icmp_signed("!=", self.distance, e.index(0)), b.not_(few))
        asks = b.and_(asks, b.icmp_signed("<", line, self.width))
        asks = b.and_(asks, b.icmp_signed(">", columns, e.index(tile.columns - tile.lanes)))
        with b.if_else(asks) as (then, otherwise):
            with then:
                b.call(self.function, [*args, b.add(line, self.distance)])
            with otherwise:
                call_narrowest(e, tile, forms, size, args)


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

    soon: each step of k asks for the cache line so many elements after its row of B. A B that is
    read once comes from memory while the tiles before are multiplied.
    """

    def __init__(
        self,
        e: Emitter,
        tile: Tile,
        rows: int,
        vectors: int,
        columns: ir.Value,
        soon: ir.Value | None = None,
    ) -> None:
        self.e, self.tile, self.rows, self.vectors = e, tile, rows, vectors
        self.soon = soon
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
        if self.soon is not None:
            self._ask([e.at(row_b, self.soon)])
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
