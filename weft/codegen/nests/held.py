"""What a fold holds while it runs over elements in registers: one number, or three integers.

The bits of floats order as the floats do: of those that are not negative as they are, of negative
ones from behind. So of all elements' bits the greatest and the least as unsigned numbers and the
greatest as signed ones say what the greatest and the least element are, with -0 below 0, and
whether one is NaN. These are three instructions of one cycle, in any order. `llvm.maximum`, which
means the same, becomes a chain of six for AVX2 and AVX-512.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from weft.codegen.elements import F64, HALVES, I32, I64, register_type
from weft.codegen.emitter import Emitter
from weft.codegen.llvm.target import has_feature
from weft.codegen.nests.folds import fold, identity
from weft.codegen.scalar.float_builder import intrinsic, splat_constant

#: Of the bits of all elements: these three.
_EXTREMA = ("umax", "umin", "smax")
#: By integer type: the bits of infinity, and of a NaN.
_INFINITY = {I32: 0x7F80_0000, I64: 0x7FF0_0000_0000_0000}
_NAN = {I32: 0x7FC0_0000, I64: 0x7FF8_0000_0000_0000}


def is_in_bits(reduction: str | None, dtype: str) -> bool:
    """Whether the fold holds integers: extrema of floats where vectors of such integers have these
    instructions."""
    if reduction not in ("max", "min"):
        return False
    if dtype == "f64":
        return has_feature("avx512f") and has_feature("avx512vl")
    return dtype in ("f32", *HALVES) and has_feature("sse4_1")


@cache
def counting(bits: int, first: int, lanes: int) -> ir.Constant:
    """The vector first, first + 1, ... of integers; one object, whose long text is made once."""
    kind = ir.VectorType(ir.IntType(bits), lanes)
    return ir.Constant(kind, list(range(first, first + lanes)))


class Held:
    """The state of a fold, in stack slots of which LLVM makes registers; with `lanes`, that of a
    fold in each lane."""

    def __init__(self, e: Emitter, reduction: str, dtype: str, lanes: int = 1) -> None:
        self.e, self.reduction, self.dtype, self.lanes = e, reduction, dtype, lanes
        one = register_type(dtype)
        self.kind = one if lanes == 1 else ir.VectorType(one, lanes)
        self.in_bits = is_in_bits(reduction, dtype)
        kinds = [self._bits_kind()] * len(_EXTREMA) if self.in_bits else [self.kind]
        self.slots = [e.alloca(kind) for kind in kinds]

    def begin(self) -> None:
        """Nothing is folded yet."""
        start = identity(self.reduction, self.dtype)
        if self.lanes > 1:
            start = splat_constant(self.kind, start.constant)
        self._store(self._parts(start))

    def add(self, value: ir.Value) -> None:
        """One more element, or one in each lane; or in twice, four times, ... as many lanes."""
        parts = self._load()
        if isinstance(value.type, ir.VectorType) and value.type.count > self.lanes:
            starts = range(0, value.type.count, self.lanes)
            values = [self._some(value, first, self.lanes) for first in starts]
        else:
            values = [value]
        for one in values:
            parts = self._joined(parts, self._parts(one))
        self._store(parts)

    def join(self, other: Held) -> None:
        """All that `other` has folded in twice, four times, ... as many lanes."""
        self._store(self._joined(self._load(), other.narrowed(self.lanes)))

    def take(self, other: Held) -> None:
        """As `join` where nothing is folded yet."""
        self._store(other.narrowed(self.lanes))

    def value(self) -> ir.Value:
        """What all elements so far, of all lanes, give."""
        parts, b = self.narrowed(1), self.e.builder
        if self.lanes > 1:
            parts = [b.extract_element(p, ir.Constant(I32, 0)) for p in parts]
        return self._extremum(parts) if self.in_bits else parts[0]

    def narrowed(self, lanes: int) -> list[ir.Value]:
        """The state in so many lanes: lower and upper halves together, until no more are left."""
        parts, count = self._load(), self.lanes
        while count > lanes:
            count //= 2
            low, high = ([self._some(p, k * count, count) for p in parts] for k in (0, 1))
            parts = self._joined(low, high)
        return parts

    def _some(self, part: ir.Value, first: int, lanes: int) -> ir.Value:
        """`lanes` lanes from number `first` on, as a vector."""
        nothing = ir.Constant(part.type, ir.Undefined)
        return self.e.builder.shuffle_vector(part, nothing, counting(32, first, lanes))

    def _load(self) -> list[ir.Value]:
        return [self.e.builder.load(slot) for slot in self.slots]

    def _store(self, parts: list[ir.Value]) -> None:
        for part, slot in zip(parts, self.slots, strict=True):
            self.e.builder.store(part, slot)

    def _bits_kind(self) -> ir.Type:
        one = I64 if register_type(self.dtype) == F64 else I32
        return one if self.lanes == 1 else ir.VectorType(one, self.lanes)

    def _parts(self, value: ir.Value) -> list[ir.Value]:
        """The state of one element alone."""
        if not self.in_bits:
            return [value]
        return [self.e.builder.bitcast(value, self._bits_kind())] * len(_EXTREMA)

    def _joined(self, a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        if not self.in_bits:
            return [fold(self.e, self.reduction, self.dtype, a[0], b[0])]
        kind = a[0].type
        binary = ir.FunctionType(kind, [kind, kind])
        functions = [intrinsic(self.e.module, name, [kind], binary) for name in _EXTREMA]
        return [self.e.builder.call(f, [x, y]) for f, x, y in zip(functions, a, b, strict=True)]

    def _extremum(self, parts: list[ir.Value]) -> ir.Value:
        """The greatest or the least element, by the extrema of the bits."""
        (most, least, signed), b = parts, self.e.builder
        kind = most.type
        zero, infinity = ir.Constant(kind, 0), ir.Constant(kind, _INFINITY[kind])
        below = ir.Constant(kind, _INFINITY[kind] - (1 << (kind.width - 1)))  # -inf
        if self.reduction == "max":  # no element without a sign: the least bits of all
            found = b.select(b.icmp_signed("<", signed, zero), least, signed)
        else:
            found = b.select(b.icmp_signed("<", most, zero), most, least)
        nan = b.or_(b.icmp_signed(">", signed, infinity), b.icmp_unsigned(">", most, below))
        found = b.select(nan, ir.Constant(kind, _NAN[kind]), found)
        return b.bitcast(found, register_type(self.dtype))
