"""Register tile of matrix multiplication: the rows and vectors that fit the target's registers, and
its instructions: whole and masked loads and stores, multiply-adds.

One tile of C is `rows` x `vectors * lanes` numbers, all in vector registers while the loop over k
runs (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
34(3), 2008; F. Van Zee and R. van de Geijn, "BLIS", ACM TOMS 41(3), 2015). Of 32 registers
(AVX-512, NEON) 24 hold the tile, 8 rows of 3 vectors; of 16 (AVX2, SSE) 12, 6 rows of 2, as in
BLIS: with 4 rows of 3 vectors no register is left for an element of A. Where a block has few rows
left, a tile of fewer rows does not compute the others for nothing.

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

from dataclasses import replace

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
    element of a packed operand (`weft.codegen.tiles.tile`).
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
