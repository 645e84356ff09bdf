"""AVX-512 instructions on f32 that LLVM's loop vectoriser has no scalar form of, and exp, log and
erf at f32 by lookup in tables of 16 numbers, each of which is one AVX-512 register.

Each is a function with vector forms, as in `float_builder.py`, so that loops that call it are
vectorised. All forms are `weak` definitions, which LLVM does not inline, until the vectoriser is
through; `llvm/compile.py` then makes them internal and inlines them. What they compute has the same
bits in every form.

A permutation of a register looks 16 numbers up at once (`lookup`), which leaves half as many
multiply-adds as the polynomials of `exp_log.py` and `special.py` need (P.-T. P. Tang, "Table-driven
implementation of the exponential function in IEEE floating-point arithmetic", 1989). Entries lie
where what they stand for is next to an f32 number (S. Gal, "Computing elementary functions: a new
approach for achieving high accuracy and good performance", 1986), or have a second table of what is
left. Coefficients are near-minimax, by Lawson's iteration, and rounded."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from weft.codegen.llvm.compile import LATE_FUNCTIONS, LATE_PREFIX, LATE_WIDTHS
from weft.codegen.llvm.emitter import F32, I32
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


LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
_LN_2_HIGH, _LN_2_LOW = 0.693145751953125, 1.428606765330187e-06

# 2**(j / 16)
_POWERS = (
    *(1.0, 1.0442737, 1.0905077, 1.1387886, 1.1892071, 1.2418578, 1.2968396, 1.3542556),
    *(1.4142135, 1.4768262, 1.5422108, 1.6104903, 1.6817929, 1.7562522, 1.8340081, 1.9152066),
)
_POWERS_LOW = (
    *(0.0, 4.83347e-08, -1.307754e-08, 5.3862223e-08, 3.7976353e-08, 4.496838e-08),
    *(-4.0189995e-08, -1.0123349e-08, 2.4203235e-08, -4.500899e-08, 8.070905e-09, 9.836217e-09),
    *(-2.4755327e-08, -9.23577e-09, -1.1239278e-08, 9.845328e-09),
)
# (e**r - 1) / r on |r| <= ln2 / 32, relative error 2**-27.7 of e**r
_EXP = (1.0, 0.50000978, 0.16666862)
_LOWEST, _HIGHEST = -104.0, 89.7  # exp of less is 0, of more inf

# By the first four bits of a mantissa in [1, 1.5) or [0.75, 1): its reciprocal c, and -log(c).
_RECIPROCALS = (
    *(1.0, 0.9221392, 0.86498255, 0.82066107, 0.78044915, 0.7440316, 0.7110863, 0.6810205),
    *(1.3061446, 1.2551628, 1.2075895, 1.1636262, 1.1230763, 1.0843915, 1.0482237, 1.0),
)
_LOGARITHMS = (
    *(0.0, 0.08105906, 0.14504595, 0.19764508, 0.24788569, 0.29567176, 0.34096152, 0.38416287),
    *(-0.26707974, -0.22726531, -0.18862623, -0.15154116, -0.116071634, -0.08101898),
    *(-0.04709705, 0.0),
)
# (log(1 + r) - r) / r**2 on [-1/32, 1/16], relative error 2**-27 of log(1 + r)
_LOG = (-0.49999997, 0.33334196, -0.2501676, 0.19085176)

# erf(c + u) on [j / 4, (j + 1) / 4]: c, and the coefficients of u**0, u**1, ... In the first
# quarter u itself is apart, so that what the polynomial adds to it is small.
_CENTRES = (
    *(0.0, 0.37500358, 0.6250325, 0.8749647, 1.1250116, 1.375063, 1.6249483, 1.8750187),
    *(2.124972, 1.989612, 2.5886314, 3.146695, 3.4570715, 3.4087539, 3.2190027, 4.700338),
)
_ERF = (
    (
        *(0.0, 0.40412042, 0.6232657, 0.78405654, 0.8883919, 0.9481808, 0.97843957, 0.9919907),
        *(0.9973456, 0.99510306, 0.99974865, 0.9999914, 0.999999, 0.99999857, 0.9999947, 1.0),
    ),
    (
        *(0.12837914, 0.98035026, 0.76346856, 0.5247775, 0.31826568, 0.17033029, 0.08048578),
        *(0.03354347, 0.012342283, 0.021519082, 0.0013875172, 5.766799e-05, 8.439802e-06),
        *(1.014287e-05, 3.4880155e-05, 1.0426413e-06),
    ),
    (
        *(6.9983585e-06, -0.3676296, -0.47718832, -0.45916066, -0.3580542, -0.23421718),
        *(-0.13078676, -0.062895074, -0.02622682, -0.04256204, -0.0035918292, -0.00015527659),
        *(-7.2941716e-06, -3.457336e-05, -0.00010397851, 5.7323114e-06),
    ),
    (
        *(-0.37633228, -0.23489186, -0.05566067, 0.09290181, 0.162452, 0.15793113, 0.11485264),
        *(0.06743924, 0.033040836, 0.04814471, 0.0057414696, 0.00052392023, 0.0001612817),
        *(7.4840194e-05, 0.00017367298, 1.2007767e-05),
    ),
    (
        *(0.0020243584, 0.16549982, 0.1755587, 0.11218242, 0.028305586, -0.030029643),
        *(-0.049404852, -0.042168994, -0.026401633, -0.03145898, -0.0062384163, 0.00010336926),
        *(0.00020716853, -0.0001172006, -0.00015916718, 1.1416409e-05),
    ),
    (
        *(0.105946936, 0.046349883, -0.026567698, -0.06659801, -0.061080977, -0.030681299),
        *(-0.0023304436, 0.011313123, 0.012439225, 0.009466475, 0.004244525, 0.0014841027),
        *(0.00046803505, 0.0001666338, 6.251777e-05, 4.264606e-06),
    ),
)
_ERF_ONE = 3.95  # beyond, erf rounds to 1
_FOUR_BITS = 4


def exp(m: FloatBuilder, x: ir.Value, negative: bool = False) -> ir.Value:
    """e**x = 2**k 2**(j / 16) e**r, |r| <= ln2 / 32. negative: x is not above 0."""
    x = m.at_least(x if negative else m.at_most(x, _HIGHEST), _LOWEST)
    magic = m.magic / TABLE_SIZE  # added, it rounds to a multiple of 1/16
    shifted = m.fma(x, LOG2_E, magic)
    n = m.sub(shifted, magic)
    r = m.fma(n, -_LN_2_LOW, m.fma(n, -_LN_2_HIGH, x))
    index = m.bits(shifted)
    power = lookup(m, _POWERS, index)
    rest = m.fma(r, power, lookup(m, _POWERS_LOW, index))
    return scale(m, m.fma(m.horner(r, _EXP), rest, power), n)


def log(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(x) = k ln2 - log(c) + log(1 + r), 1 + r = c times the mantissa."""
    digits, k = mantissa(m, x), exponent(m, x)
    k = m.select(m.compare("<", digits, 1.0), m.add(k, 1.0), k)
    places = m.mantissa_bits - _FOUR_BITS
    index = m.builder.lshr(m.bits(digits), m.int_const(places))
    r = m.fma(digits, lookup(m, _RECIPROCALS, index), -1.0)
    rest = m.fma(m.mul(r, r), m.horner(r, _LOG), r)
    # k is -inf at 0 and inf at inf, the mantissa NaN below 0: no case is left to select
    return m.fma(k, LN_2, m.add(rest, lookup(m, _LOGARITHMS, index)))


def erf(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """erf(c + u) by a polynomial in u, of degree 5."""
    t = m.at_most(m.abs(x), _ERF_ONE)
    # rounded, t + 4 has the number of the quarter in its first bits
    quarters = m.add(t, 4.0)
    index = m.builder.lshr(m.bits(quarters), m.int_const(m.mantissa_bits - _FOUR_BITS))
    u = m.sub(t, lookup(m, _CENTRES, index))
    first, *others = (lookup(m, row, index) for row in _ERF)
    result = others.pop()
    for coefficient in reversed(others):
        result = m.fma(result, u, coefficient)
    first = m.select(m.compare("<", quarters, 4.25), u, first)
    return m.copysign(m.fma(result, u, first), x)
