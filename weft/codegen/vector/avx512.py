"""AVX-512 instructions on f32 that LLVM's loop vectoriser has no scalar form of.

Each is a function with vector forms, as in `slow_path.py`, so that loops that call it are
vectorised. All forms are `weak` definitions, which LLVM does not inline, until the vectoriser is
through; `llvm/compile.py` then makes them internal and inlines them. What they compute has the same
bits in every form."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from weft.codegen.llvm.compile import LATE_FUNCTIONS, LATE_PREFIX, LATE_WIDTHS
from weft.codegen.llvm.elements import F32, I32
from weft.codegen.llvm.target import has_feature
from weft.codegen.vector.float_builder import FloatBuilder, splat_constant

TABLE_SIZE = 16
_I8, _I16 = ir.IntType(8), ir.IntType(16)
# vgetmantps: mantissas in [0.75, 1.5), NaN of what is below 0 (Intel SDM, table "GetMant() Special
# Float Values Behavior"). No rounding mode of its own.
_FROM_075, _CURRENT = 0b1011, 4

Code = Callable[[ir.IRBuilder, int, Sequence[ir.Value]], ir.Value]


def available() -> bool:
    """Whether this machine has the instructions."""
    return has_feature("avx512f") and has_feature("avx512vl")


def lookup(m: FloatBuilder, table: Sequence[float], index: ir.Value) -> ir.Value:
    """table[index % 16] for 16 f32 numbers and an i32."""
    module = m.builder.module
    digest = hashlib.sha256(struct.pack("<16f", *table)).hexdigest()[:16]
    name = f"weft.table.{digest}"
    held = module.globals.get(name)
    if held is None:
        held = ir.GlobalVariable(module, ir.ArrayType(F32, TABLE_SIZE), name)
        held.linkage, held.global_constant, held.align = "internal", True, 64
        held.initializer = ir.Constant(held.value_type, [ir.Constant(F32, v) for v in table])
    return _call(m, "lookup", [held.bitcast(F32.as_pointer()), index])


def scale(m: FloatBuilder, x: ir.Value, exponent: ir.Value) -> ir.Value:
    """x * 2**floor(exponent), both f32, with one rounding if the result is denormal."""
    return _call(m, "scale", [x, exponent])


def exponent(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """floor(log2(|x|)) as f32, denormals included; -inf of 0, inf of inf, NaN of NaN."""
    return _call(m, "exponent", [x])


def mantissa(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """x * 2**k in [0.75, 1.5) for a positive finite x, denormals included; NaN for x < 0 and NaN,
    1 or -1 for zeros and inf."""
    return _call(m, "mantissa", [x])


def _call(m: FloatBuilder, name: str, arguments: list[ir.Value]) -> ir.Value:
    assert m.dtype == "f32"
    assert name in LATE_FUNCTIONS
    if isinstance(m.kind, ir.VectorType):
        return _in_vectors(m, name, arguments)
    symbol = LATE_PREFIX + name
    function = m.builder.module.globals.get(symbol)
    if function is None:
        function = _define(m.builder.module, symbol, [a.type for a in arguments], _CODE[name])
    return m.builder.call(function, arguments)


def _in_vectors(m: FloatBuilder, name: str, arguments: Sequence[ir.Value]) -> ir.Value:
    """At once, one vector register after another: code in vectors needs no vectoriser."""
    b, count = m.builder, m.kind.count
    width = min(count, TABLE_SIZE)
    parts = [
        _CODE[name](b, width, [_lanes_of(b, a, first, width) for a in arguments])
        for first in range(0, count, width)
    ]
    while len(parts) > 1:
        both = ir.Constant(ir.VectorType(I32, 2 * width), list(range(2 * width)))
        parts = [b.shuffle_vector(*parts[k : k + 2], both) for k in range(0, len(parts), 2)]
        width *= 2
    return parts[0]


def _lanes_of(b: ir.IRBuilder, value: ir.Value, first: int, width: int) -> ir.Value:
    """``width`` lanes from ``first`` on; a pointer is the same for all, and so is a constant."""
    if isinstance(value.type, ir.PointerType):
        return value
    if not isinstance(value.type, ir.VectorType):
        return splat_constant(ir.VectorType(value.type, width), value.constant)
    if value.type.count == width:
        return value
    mask = ir.Constant(ir.VectorType(I32, width), list(range(first, first + width)))
    return b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def _define(module: ir.Module, symbol: str, kinds: Sequence[ir.Type], code: Code) -> ir.Function:
    """The function and its vector forms; a pointer is the same for all lanes."""
    signs = "".join("u" if isinstance(kind, ir.PointerType) else "v" for kind in kinds)
    for width in LATE_WIDTHS:
        wide = [
            k if s == "u" else ir.VectorType(k, width) for k, s in zip(kinds, signs, strict=True)
        ]
        b, arguments = _begin(module, f"{symbol}.{width}", wide, ir.VectorType(F32, width))
        b.ret(code(b, width, arguments))
    names = ",".join(f"_ZGV_LLVM_N{w}{signs}_{symbol}({symbol}.{w})" for w in LATE_WIDTHS)
    b, arguments = _begin(module, symbol, kinds, F32)
    set.add(b.function.attributes, f'"vector-function-abi-variant"="{names}"')
    b.ret(code(b, 1, arguments))
    return b.function


def _begin(
    module: ir.Module, symbol: str, kinds: Sequence[ir.Type], result: ir.Type
) -> tuple[ir.IRBuilder, Sequence[ir.Value]]:
    function = ir.Function(module, ir.FunctionType(result, kinds), symbol)
    function.linkage = "weak"
    for attribute in ("nounwind", "readnone"):
        function.attributes.add(attribute)
    return ir.IRBuilder(function.append_basic_block("entry")), function.args


def _lookup(b: ir.IRBuilder, width: int, arguments: Sequence[ir.Value]) -> ir.Value:
    table, index = arguments
    if width == 1:
        return b.load(b.gep(table, [b.and_(index, ir.Constant(I32, TABLE_SIZE - 1))]))
    whole, places = ir.VectorType(F32, TABLE_SIZE), ir.VectorType(I32, TABLE_SIZE)
    values = b.load(b.bitcast(table, whole.as_pointer()), align=64)
    kind = ir.FunctionType(whole, [whole, places])
    permute = _intrinsic(b, "llvm.x86.avx512.permvar.sf.512", kind)
    lanes = [ir.Constant(I32, k % width) for k in range(TABLE_SIZE)]
    mask = ir.Constant(places, lanes)
    undefined = ir.Constant(index.type, ir.Undefined)
    index = index if width == TABLE_SIZE else b.shuffle_vector(index, undefined, mask)
    found = b.call(permute, [values, index])
    first = ir.Constant(ir.VectorType(I32, width), lanes[:width])
    undefined = ir.Constant(whole, ir.Undefined)
    return found if width == TABLE_SIZE else b.shuffle_vector(found, undefined, first)


def _instruction(name: str, *constants: int) -> Code:
    """LLVM's mask.`name`.ps of the arguments and immediates, with no lane masked off."""

    def code(b: ir.IRBuilder, width: int, arguments: Sequence[ir.Value]) -> ir.Value:
        lanes = max(width, LATE_WIDTHS[0])
        if width == 1:
            arguments = [_widened(b, a, lanes) for a in arguments]
        vector = ir.VectorType(F32, lanes)
        mask = _I16 if lanes == TABLE_SIZE else _I8
        own = [ir.Constant(I32, c) for c in constants]
        rounding = [ir.Constant(I32, _CURRENT)] if lanes == TABLE_SIZE else []
        kept = [ir.Constant(vector, ir.Undefined), ir.Constant(mask, -1)]
        given = [*arguments, *own, *kept, *rounding]
        kind = ir.FunctionType(vector, [a.type for a in given])
        function = _intrinsic(b, f"llvm.x86.avx512.mask.{name}.ps.{32 * lanes}", kind)
        result = b.call(function, given)
        return b.extract_element(result, ir.Constant(I32, 0)) if width == 1 else result

    return code


def _widened(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    vector = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    return b.insert_element(vector, value, ir.Constant(I32, 0))


def _intrinsic(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    found = b.module.globals.get(name)
    return ir.Function(b.module, kind, name) if found is None else found


_CODE: dict[str, Code] = {
    "lookup": _lookup,
    "scale": _instruction("scalef"),
    "exponent": _instruction("getexp"),
    "mantissa": _instruction("getmant", _FROM_075),
}
