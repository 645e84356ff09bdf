"""FloatBuilder: exact-order f32/f64 arithmetic for polynomials, free of fast-math flags; and slow
paths: a test per vector, and scalar code for the lanes with rare arguments.

Compensated sums are destroyed by reassociation, so nothing here carries a flag.  ``fma`` is LLVM's
``fmuladd``: fused where the target has it; formulas that rely on the fusion use ``exact_fma``.

A slow path is a call, not a branch, which in a loop body would keep LLVM's loop vectoriser away. A
call does not if the called function names its vector forms (attribute
"vector-function-abi-variant", LLVM Language Reference, "Vector Function ABI"): such a form tests
all lanes at once and, if none is rare, hands back what the inline code computed. The remainder of a
division, which is exact, is made of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64, I32, I64
from weft.codegen.llvm.target import has_feature, per_isa, target_vector_bits

MANTISSA_BITS = {"f32": 23, "f64": 52}
BIAS = {"f32": 127, "f64": 1023}


def _has_scalef() -> bool:
    """Whether llvm.ldexp is one vector instruction (AVX-512's vscalef) and not a library call."""
    return has_feature("avx512f") and has_feature("avx512vl")


@per_isa
def lanes_of(dtype: str) -> int:
    """Numbers of a whole vector; dtype: f32 or f64."""
    return target_vector_bits() // (32 if dtype == "f32" else 64)


def of_lanes(kind: ir.Type, like: ir.Value) -> ir.Type:
    """``kind``, or vectors of it with as many lanes as the value ``like`` has."""
    return ir.VectorType(kind, like.type.count) if isinstance(like.type, ir.VectorType) else kind


class _Splat(ir.Constant):  # type: ignore[misc]
    """A vector constant with the same number in every lane, which its text says once."""

    def get_reference(self) -> str:
        return f"splat ({self.constant[0]})"


def splat_constant(kind: ir.Type, value: float) -> ir.Constant:
    """The constant ``value``, in every lane if ``kind`` is a vector (written once in the text)."""
    if isinstance(kind, ir.VectorType):
        return _Splat(kind, ir.Constant(kind.element, value))
    return ir.Constant(kind, value)


def intrinsic(
    module: ir.Module, name: str, kinds: Sequence[ir.Type], signature: ir.FunctionType
) -> ir.Function:
    """LLVM's intrinsic of this name overloaded on these types, vectors among them."""
    suffixes = [
        f"v{k.count}{k.element.intrinsic_name}"
        if isinstance(k, ir.VectorType)
        else k.intrinsic_name
        for k in kinds
    ]
    full = ".".join([f"llvm.{name}", *suffixes])
    return module.globals.get(full) or ir.Function(module, signature, full)


class FloatBuilder:
    """Arithmetic on register values of one dtype, "f32" or "f64": on single numbers, or on vectors
    with the lanes of ``like``.
    """

    def __init__(self, builder: ir.IRBuilder, dtype: str, like: ir.Value | None = None) -> None:
        self.builder = builder
        self.dtype = dtype
        self.kind, self.bits_kind = (F32, I32) if dtype == "f32" else (F64, I64)
        self.exponent_kind = I32
        if like is not None:
            self.kind, self.bits_kind = of_lanes(self.kind, like), of_lanes(self.bits_kind, like)
            self.exponent_kind = of_lanes(I32, like)
        self.mantissa_bits = MANTISSA_BITS[dtype]
        self.bias = BIAS[dtype]
        # Adding 1.5 * 2**mantissa_bits rounds to an integer, held in the sum's low bits.
        self.magic = 1.5 * 2.0**self.mantissa_bits

    def const(self, value: float) -> ir.Constant:
        """A float constant, rounded to the dtype."""
        return splat_constant(self.kind, value)

    def int_const(self, value: int) -> ir.Constant:
        """A constant of the integer type as wide as the float type."""
        return splat_constant(self.bits_kind, value)

    def _value(self, operand: ir.Value | float) -> ir.Value:
        return operand if isinstance(operand, ir.Value) else self.const(operand)

    def add(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """a + b"""
        return self.builder.fadd(self._value(a), self._value(b))

    def sub(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """a - b"""
        return self.builder.fsub(self._value(a), self._value(b))

    def mul(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """a * b"""
        return self.builder.fmul(self._value(a), self._value(b))

    def div(self, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """a / b"""
        return self.builder.fdiv(self._value(a), self._value(b))

    def neg(self, a: ir.Value) -> ir.Value:
        """-a"""
        return self.builder.fneg(a)

    def fma(self, a: ir.Value | float, b: ir.Value | float, c: ir.Value | float) -> ir.Value:
        """a * b + c, fused if the target fuses"""
        return self.call("fmuladd", a, b, c)

    def exact_fma(self, a: ir.Value | float, b: ir.Value | float, c: ir.Value | float) -> ir.Value:
        """a * b + c with one rounding on every target; slow where the target has no such thing"""
        return self.call("fma", a, b, c)

    def two_product(self, a: ir.Value, b: ir.Value | float) -> tuple[ir.Value, ir.Value]:
        """(product, error): a * b exactly"""
        product = self.mul(a, b)
        return product, self.exact_fma(a, b, self.neg(product))

    def two_sum(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """(sum, error): a + b exactly (D. Knuth, "The Art of Computer Programming", 4.2.2)"""
        total = self.add(a, b)
        part = self.sub(total, a)
        return total, self.add(self.sub(a, self.sub(total, part)), self.sub(b, part))

    def fast_two_sum(self, a: ir.Value | float, b: ir.Value | float) -> tuple[ir.Value, ir.Value]:
        """(sum, error): a + b exactly for |a| >= |b| (T. Dekker, 1971)"""
        total = self.add(a, b)
        return total, self.sub(b, self.sub(total, a))

    def call(self, name: str, *args: ir.Value | float) -> ir.Value:
        """LLVM's intrinsic of this name at this dtype."""
        values = [self._value(a) for a in args]
        signature = ir.FunctionType(self.kind, [self.kind] * len(values))
        function = intrinsic(self.builder.module, name, [self.kind], signature)
        return self.builder.call(function, values)

    def horner(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The polynomial with these coefficients, constant term first."""
        result: ir.Value = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def abs(self, a: ir.Value) -> ir.Value:
        """|a|"""
        return self.call("fabs", a)

    def copysign(self, magnitude: ir.Value | float, sign: ir.Value) -> ir.Value:
        """``magnitude`` with the sign of ``sign``"""
        return self.call("copysign", magnitude, sign)

    def compare(self, operator: str, a: ir.Value, b: ir.Value | float) -> ir.Value:
        """Ordered comparison: false if either is NaN."""
        return self.builder.fcmp_ordered(operator, a, self._value(b))

    def is_nan(self, a: ir.Value) -> ir.Value:
        """a is NaN"""
        return self.builder.fcmp_unordered("uno", a, a)

    def select(self, condition: ir.Value, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
        """condition ? a : b"""
        return self.builder.select(condition, self._value(a), self._value(b))

    def at_most(self, a: ir.Value, bound: float) -> ir.Value:
        """min(a, bound); NaN stays NaN"""
        return self.select(self.compare(">", a, bound), bound, a)

    def at_least(self, a: ir.Value, bound: float) -> ir.Value:
        """max(a, bound); NaN stays NaN"""
        return self.select(self.compare("<", a, bound), bound, a)

    def bits(self, a: ir.Value) -> ir.Value:
        """The float's bits as an integer."""
        return self.builder.bitcast(a, self.bits_kind)

    def from_bits(self, a: ir.Value) -> ir.Value:
        """The float with these bits."""
        return self.builder.bitcast(a, self.kind)

    def clear_low_bits(self, a: ir.Value, count: int) -> ir.Value:
        """``a`` with its lowest ``count`` mantissa bits zero."""
        return self.from_bits(self.builder.and_(self.bits(a), self.int_const(-(1 << count))))

    def nearest_integer(self, a: ir.Value, scale: float) -> tuple[ir.Value, ir.Value]:
        """round(a * scale) as (float, integer); |a * scale| < 2**(mantissa_bits - 2).

        Unlike a float-to-int conversion it is defined (as some integer) for NaN.
        """
        shifted = self.fma(a, scale, self.magic)
        integer = self.builder.sub(self.bits(shifted), self.bits(self.const(self.magic)))
        return self.sub(shifted, self.magic), integer

    def power_of_two(self, exponent: ir.Value) -> ir.Value:
        """2**exponent for an integer whose result is a normal number."""
        biased = self.builder.add(exponent, self.int_const(self.bias))
        return self.from_bits(self.builder.shl(biased, self.int_const(self.mantissa_bits)))

    def scale_by_power_of_two(self, a: ir.Value, exponent: ir.Value) -> ir.Value:
        """a * 2**exponent, |exponent| < 2 * bias, with one rounding if the result is denormal."""
        if _has_scalef():
            kinds = [self.kind, self.exponent_kind]
            if self.dtype == "f64":
                exponent = self.builder.trunc(exponent, self.exponent_kind)
            signature = ir.FunctionType(self.kind, kinds)
            ldexp = intrinsic(self.builder.module, "ldexp", kinds, signature)
            return self.builder.call(ldexp, [a, exponent])
        first = self.builder.ashr(exponent, self.int_const(1))
        second = self.builder.sub(exponent, first)
        return self.mul(self.mul(a, self.power_of_two(first)), self.power_of_two(second))

    def either(self, *conditions: ir.Value) -> ir.Value:
        """Logical or."""
        result, *others = conditions
        for condition in others:
            result = self.builder.or_(result, condition)
        return result


# The widths that the vectoriser may choose, from 128 to 1024 bits.
WIDTHS = {"f32": (4, 8, 16), "f64": (2, 4, 8, 16)}

ScalarCode = Callable[..., ir.Value]  # of a FloatBuilder and the arguments


def unless_beyond(
    m: FloatBuilder,
    limit: float,
    x: ir.Value,
    usual: ir.Value,
    name: str,
    code: ScalarCode,
    arguments: Sequence[ir.Value] = (),
) -> ir.Value:
    """``usual`` where |x| < limit; elsewhere, NaN included, ``code`` (scalar) of the arguments, or
    of x if there are none.

    ``name`` identifies limit and code in the module.
    """
    symbol = f"weft.{name}.{m.dtype}"
    function = m.builder.module.globals.get(symbol)
    if function is None:
        function = _define_scalar(m, symbol, 2 + len(arguments), limit, code)
    return m.builder.call(function, [x, usual, *arguments])


def _define_scalar(
    m: FloatBuilder, symbol: str, count: int, limit: float, code: ScalarCode
) -> ir.Function:
    module = m.builder.module
    function = ir.Function(module, ir.FunctionType(m.kind, [m.kind] * count), symbol)
    _internal(function)
    variants = [_define_vector(m, symbol, count, width, limit, code) for width in WIDTHS[m.dtype]]
    kinds = "v" * count
    names = ",".join(f"_ZGV_LLVM_N{w}{kinds}_{symbol}({symbol}.{w})" for w in WIDTHS[m.dtype])
    # llvmlite's own add() knows enumerated attributes only.
    set.add(function.attributes, f'"vector-function-abi-variant"="{names}"')
    keep_functions(module, variants)
    inner = FloatBuilder(ir.IRBuilder(function.append_basic_block("entry")), m.dtype)
    b, (x, usual, *arguments) = inner.builder, function.args
    with b.if_then(inner.compare("<", inner.abs(x), limit), likely=True):
        b.ret(usual)
    b.ret(code(inner, *(arguments or [x])))
    return function


def _internal(function: ir.Function) -> None:
    function.linkage = "internal"
    function.attributes.add("optsize")  # or the loop over the lanes is unrolled: compile time
    # Inlined, the branch would be in the loop before the vectoriser sees it.
    for attribute in ("noinline", "nounwind", "readnone"):
        function.attributes.add(attribute)


def _define_vector(
    m: FloatBuilder, symbol: str, count: int, width: int, limit: float, code: ScalarCode
) -> ir.Function:
    vector = ir.VectorType(m.kind, width)
    function = ir.Function(
        m.builder.module, ir.FunctionType(vector, [vector] * count), f"{symbol}.{width}"
    )
    _internal(function)
    b = ir.IRBuilder(function.append_basic_block("entry"))
    x, usual, *arguments = function.args
    high, low = (ir.Constant(vector, [ir.Constant(m.kind, v)] * width) for v in (limit, -limit))
    rare = b.or_(b.fcmp_unordered(">=", x, high), b.fcmp_unordered("<=", x, low))
    lanes = b.bitcast(rare, ir.IntType(width))
    with b.if_then(b.icmp_unsigned("==", lanes, ir.Constant(lanes.type, 0)), likely=True):
        b.ret(usual)
    head, body = b.append_basic_block("lanes"), b.append_basic_block("lane")
    fix, following = b.append_basic_block("fix"), b.append_basic_block("next")
    done = b.append_basic_block("done")
    start = b.block
    b.branch(head)
    b.position_at_end(head)
    lane, result = b.phi(I32), b.phi(vector)
    lane.add_incoming(ir.Constant(I32, 0), start)
    result.add_incoming(usual, start)
    b.cbranch(b.icmp_unsigned("<", lane, ir.Constant(I32, width)), body, done)
    b.position_at_end(body)
    b.cbranch(b.extract_element(rare, lane), fix, following)
    b.position_at_end(fix)
    inner = FloatBuilder(b, m.dtype)
    own = [b.extract_element(v, lane) for v in arguments or [x]]
    fixed = b.insert_element(result, code(inner, *own), lane)
    fixed_block = b.block
    b.branch(following)
    b.position_at_end(following)
    merged = b.phi(vector)
    merged.add_incoming(result, body)
    merged.add_incoming(fixed, fixed_block)
    result.add_incoming(merged, following)
    lane.add_incoming(b.add(lane, ir.Constant(I32, 1)), following)
    b.branch(head)
    b.position_at_end(done)
    b.ret(result)
    return function


def keep_functions(module: ir.Module, functions: list[ir.Function]) -> None:
    """Add to llvm.compiler.used: nothing calls the vector forms before the vectoriser does."""
    pointer = ir.IntType(8).as_pointer()
    used = module.globals.get("llvm.compiler.used")
    entries = [] if used is None else list(used.initializer.constant)
    entries += [f.bitcast(pointer) for f in functions]
    kind = ir.ArrayType(pointer, len(entries))
    if used is not None:
        del module.globals["llvm.compiler.used"]
    used = ir.GlobalVariable(module, kind, "llvm.compiler.used") if used is None else used
    used.linkage, used.section = "appending", "llvm.metadata"
    used.value_type = kind
    used.type = kind.as_pointer()
    used.initializer = ir.Constant(kind, entries)
    module.globals["llvm.compiler.used"] = used


def truncated_remainder(m: FloatBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """fmod of C: a - b trunc(a / b), exact but for the sign of 0. NaN if a is infinite or b is 0.

    With q = trunc(a / b), at most one too large in magnitude, a - q b is a multiple of the last
    place of b and smaller than b: exact in one multiply-add. Quotients that q cannot hold exactly,
    infinite and NaN ones are left to the C library, element by element.
    """
    ratio = m.div(a, b)
    q = m.call("trunc", ratio)
    rest = m.exact_fma(m.neg(q), b, a)
    # q was rounded up, away from 0: the rest has not the sign of a.
    over = m.compare("<", m.mul(m.copysign(1.0, a), rest), 0.0)
    rest = m.select(over, m.add(rest, m.copysign(m.abs(b), a)), rest)
    rest = m.select(m.compare("==", m.abs(b), math.inf), a, rest)
    limit = 2.0 ** (m.mantissa_bits - 1)
    return unless_beyond(m, limit, ratio, rest, "fmod", _fmod, (a, b))


def _fmod(m: FloatBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return m.builder.frem(a, b)
