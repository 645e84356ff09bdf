"""Elementwise operations on integers and bool, as LLVM; all are free of branches except ``power``.

Arithmetic wraps.  As in NumPy, ``x // 0 == x % 0 == 0``, shifts by at least the width (or by a
negative amount) shift everything out, and ``MIN // -1 == MIN``.  An integer to a negative integer
power, which NumPy refuses, is the exact result truncated to an integer. ``power`` is an internal
function of the kernel's LLVM module; loops around it do not vectorise."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.emitter import I1, I64, INTEGERS, Emitter, is_signed, register_type
from weft.codegen.vector.float_builder import FloatBuilder


def integer_power(builder: ir.IRBuilder, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """base ** exponent (i64; exponent unsigned) by squaring, wrapping."""
    function = builder.module.globals.get("weft.integer_power")
    if function is None:
        function = _function(builder.module, "weft.integer_power", I64, [I64, I64])
        _define_integer_power(function)
    return builder.call(function, [base, exponent])


def _function(
    module: ir.Module, name: str, result: ir.Type, operands: list[ir.Type]
) -> ir.Function:
    function = ir.Function(module, ir.FunctionType(result, operands), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    return function


def _define_integer_power(function: ir.Function) -> None:
    entry = function.append_basic_block("entry")
    head, body = function.append_basic_block("head"), function.append_basic_block("body")
    done = function.append_basic_block("done")
    b = ir.IRBuilder(entry)
    b.branch(head)
    b.position_at_end(head)
    zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
    result, base, exponent = (b.phi(I64) for _ in range(3))
    for phi, start in zip((result, base, exponent), (one, *function.args), strict=True):
        phi.add_incoming(start, entry)
    b.cbranch(b.icmp_unsigned("!=", exponent, zero), body, done)
    b.position_at_end(body)
    odd = b.icmp_unsigned("!=", b.and_(exponent, one), zero)
    result.add_incoming(b.select(odd, b.mul(result, base), result), body)
    base.add_incoming(b.mul(base, base), body)
    exponent.add_incoming(b.lshr(exponent, one), body)
    b.branch(head)
    b.position_at_end(done)
    b.ret(result)


IntOp = Callable[[Emitter, str, list[ir.Value]], ir.Value]

COMPARISONS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


def _compare(operator: str) -> IntOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        if is_signed(dtype):
            return e.builder.icmp_signed(operator, *args)
        return e.builder.icmp_unsigned(operator, *args)

    return emit


def _plain(method: str) -> IntOp:
    """An operation that is one method of llvmlite's builder."""

    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return getattr(e.builder, method)(*args)

    return emit


def _identity(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return args[0]


def _always(truth: bool) -> IntOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        return ir.Constant(I1, truth)

    return emit


def _number(dtype: str, value: int) -> ir.Constant:
    return ir.Constant(register_type(dtype), value)


def _abs(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    if not is_signed(dtype):
        return args[0]
    negative = e.builder.icmp_signed("<", args[0], _number(dtype, 0))
    return e.builder.select(negative, e.builder.neg(args[0]), args[0])


def _sign(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    zero, one = _number(dtype, 0), _number(dtype, 1)
    nonzero = e.builder.select(e.builder.icmp_unsigned("!=", args[0], zero), one, zero)
    if not is_signed(dtype):
        return nonzero
    negative = e.builder.icmp_signed("<", args[0], zero)
    return e.builder.select(negative, _number(dtype, -1), nonzero)


def _square(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    return e.builder.mul(args[0], args[0])


def _extremum(operator: str) -> IntOp:
    def emit(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
        first = _compare(operator)(e, dtype, args)
        return e.builder.select(first, args[0], args[1])

    return emit


def _safe_divisor(e: Emitter, dtype: str, args: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """(divisor that cannot trap, divisor == 0).

    Traps: x / 0 and MIN / -1.  Dividing by 1 instead gives the right answer for MIN / -1.
    """
    dividend, divisor = args
    is_zero = e.builder.icmp_unsigned("==", divisor, _number(dtype, 0))
    unsafe = is_zero
    if is_signed(dtype):
        lowest = _number(dtype, -(1 << (register_type(dtype).width - 1)))
        overflows = e.builder.and_(
            e.builder.icmp_signed("==", dividend, lowest),
            e.builder.icmp_signed("==", divisor, _number(dtype, -1)),
        )
        unsafe = e.builder.or_(is_zero, overflows)
    return e.builder.select(unsafe, _number(dtype, 1), divisor), is_zero


def _floor_quotient(e: Emitter, dtype: str, args: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """(x // y, y), y 1 where it is 0, of integers of up to 32 bits, which no machine divides in
    vectors: floor((x + h) * (1 / y)) with h = 1/2 of y's sign, in floats twice as wide.

    (x + h) / y is at least 1 / |2 y| away from a whole number; the two roundings, each less than a
    unit of 2**-53 relative (2**-24 up to 16 bits), move it by less. So nothing has to be corrected,
    and of a divisor that a loop does not change the reciprocal is taken once.
    """
    dividend, divisor = args
    width = register_type(dtype).width
    m = FloatBuilder(e.builder, "f64" if width > 16 else "f32")
    is_zero = e.builder.icmp_unsigned("==", divisor, _number(dtype, 0))
    divisor = e.builder.select(is_zero, _number(dtype, 1), divisor)
    convert = e.builder.sitofp if is_signed(dtype) else e.builder.uitofp
    x, y = convert(dividend, m.kind), convert(divisor, m.kind)
    half = m.copysign(0.5, y) if is_signed(dtype) else m.const(0.5)
    whole = m.call("floor", m.mul(m.add(x, half), m.div(1.0, y)))
    # The low bits of the sum are the number: MIN // -1 wraps, as a conversion would not.
    return e.builder.trunc(m.bits(m.add(whole, m.magic)), register_type(dtype)), divisor


def _by_float(dtype: str, divisor: ir.Value) -> bool:
    """Whether to divide in floats: LLVM itself replaces division by a constant."""
    return register_type(dtype).width <= 32 and not isinstance(divisor, ir.Constant)


def _rounds_down(e: Emitter, dtype: str, remainder: ir.Value, divisor: ir.Value) -> ir.Value:
    """Whether truncated division must be corrected: remainder is nonzero, with the other sign."""
    zero = _number(dtype, 0)
    nonzero = e.builder.icmp_signed("!=", remainder, zero)
    signs_differ = e.builder.icmp_signed("<", e.builder.xor(remainder, divisor), zero)
    return e.builder.and_(nonzero, signs_differ)


def _floor_divide(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    if _by_float(dtype, args[1]):
        is_zero = e.builder.icmp_unsigned("==", args[1], _number(dtype, 0))
        quotient, _ = _floor_quotient(e, dtype, args)
        return e.builder.select(is_zero, _number(dtype, 0), quotient)
    divisor, is_zero = _safe_divisor(e, dtype, args)
    if is_signed(dtype):
        truncated = e.builder.sdiv(args[0], divisor)
        remainder = e.builder.sub(args[0], e.builder.mul(truncated, divisor))
        down = _rounds_down(e, dtype, remainder, divisor)
        quotient = e.builder.sub(truncated, e.builder.zext(down, truncated.type))
    else:
        quotient = e.builder.udiv(args[0], divisor)
    return e.builder.select(is_zero, _number(dtype, 0), quotient)


def _remainder(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    # A zero divisor becomes 1, so its remainder is 0 as wanted.
    if _by_float(dtype, args[1]):
        quotient, divisor = _floor_quotient(e, dtype, args)
        return e.builder.sub(args[0], e.builder.mul(quotient, divisor))
    divisor, _ = _safe_divisor(e, dtype, args)
    if not is_signed(dtype):
        return e.builder.urem(args[0], divisor)
    remainder = e.builder.srem(args[0], divisor)
    down = _rounds_down(e, dtype, remainder, divisor)
    return e.builder.select(down, e.builder.add(remainder, divisor), remainder)


def _shift_in_range(e: Emitter, dtype: str, amount: ir.Value) -> tuple[ir.Value, ir.Value]:
    width = register_type(dtype).width
    in_range = e.builder.icmp_unsigned("<", amount, _number(dtype, width))
    return in_range, e.builder.select(in_range, amount, _number(dtype, 0))


def _shift_left(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    in_range, amount = _shift_in_range(e, dtype, args[1])
    return e.builder.select(in_range, e.builder.shl(args[0], amount), _number(dtype, 0))


def _shift_right(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    in_range, amount = _shift_in_range(e, dtype, args[1])
    if is_signed(dtype):
        last = _number(dtype, register_type(dtype).width - 1)
        return e.builder.ashr(args[0], e.builder.select(in_range, amount, last))
    return e.builder.select(in_range, e.builder.lshr(args[0], amount), _number(dtype, 0))


def _power(e: Emitter, dtype: str, args: list[ir.Value]) -> ir.Value:
    """base ** exponent by squaring in 64 bits, which wraps to the same low bits."""
    base, exponent = (_widen(e, dtype, value) for value in args)
    wide = integer_power(e.builder, base, exponent)
    result = wide if wide.type == args[0].type else e.builder.trunc(wide, args[0].type)
    if not is_signed(dtype):
        return result
    zero, one = _number(dtype, 0), _number(dtype, 1)
    # A negative exponent: 1 / base**n truncated, so 0 unless base is 1 or -1 (or 0, where NumPy
    # raises).
    is_unit = e.builder.icmp_unsigned("<=", e.builder.add(args[0], one), _number(dtype, 2))
    is_unit = e.builder.and_(is_unit, e.builder.icmp_signed("!=", args[0], zero))
    odd = e.builder.trunc(args[1], I1)
    unit_power = e.builder.select(odd, args[0], one)
    inverse = e.builder.select(is_unit, unit_power, zero)
    return e.builder.select(e.builder.icmp_signed("<", args[1], zero), inverse, result)


def _widen(e: Emitter, dtype: str, value: ir.Value) -> ir.Value:
    if value.type == I64:
        return value
    return e.builder.sext(value, I64) if is_signed(dtype) else e.builder.zext(value, I64)


INT_OPS: dict[str, IntOp] = {
    **{op: _compare(operator) for op, operator in COMPARISONS.items()},
    "abs": _abs,
    "sign": _sign,
    "negative": _plain("neg"),
    "square": _square,
    "add": _plain("add"),
    "subtract": _plain("sub"),
    "multiply": _plain("mul"),
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "maximum": _extremum(">="),
    "minimum": _extremum("<="),
    "bitwise_and": _plain("and_"),
    "bitwise_or": _plain("or_"),
    "bitwise_xor": _plain("xor"),
    "bitwise_invert": _plain("not_"),
    "bitwise_left_shift": _shift_left,
    "bitwise_right_shift": _shift_right,
    **dict.fromkeys(("ceil", "floor", "round", "trunc", "conj", "real"), _identity),
    "imag": lambda e, dtype, args: _number(dtype, 0),
    "isnan": _always(False),
    "isinf": _always(False),
    "isfinite": _always(True),
}

# As NumPy: on bool, + is or, * is and; there is no subtract and no negative.
BOOL_OPS: dict[str, IntOp] = {
    **{op: _compare(operator) for op, operator in COMPARISONS.items()},
    **dict.fromkeys(("add", "maximum", "logical_or", "bitwise_or"), _plain("or_")),
    **dict.fromkeys(("multiply", "minimum", "logical_and", "bitwise_and"), _plain("and_")),
    **dict.fromkeys(("logical_xor", "bitwise_xor"), _plain("xor")),
    **dict.fromkeys(("logical_not", "bitwise_invert"), _plain("not_")),
    "abs": _identity,
}

INT_TABLE: dict[str, dict[str, IntOp]] = {**dict.fromkeys(INTEGERS, INT_OPS), "bool": BOOL_OPS}
