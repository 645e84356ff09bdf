"""Rare functions with loops and branches, as internal functions of the kernel's LLVM module.

Loops around them do not vectorise.  f32 computes them in f64 and rounds.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.elements import F64, I64
from weft.codegen.scalar.float_builder import FloatBuilder


def integer_power(builder: ir.IRBuilder, base: ir.Value, exponent: ir.Value) -> ir.Value:
    """base ** exponent (i64; exponent unsigned) by squaring, wrapping."""
    function = builder.module.globals.get("weft.integer_power")
    if function is None:
        function = _function(builder.module, "weft.integer_power", I64, [I64, I64])
        _define_integer_power(function)
    return builder.call(function, [base, exponent])


def digamma(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Logarithmic derivative of gamma, f64.

    A rational approximation on [1, 2], the recurrence digamma(x + 1) = digamma(x) + 1/x around it,
    the asymptotic series from 10 on (Abramowitz & Stegun 6.3.5, 6.3.18), reflection for x < 0
    (6.3.7).
    """
    function = builder.module.globals.get("weft.digamma")
    if function is None:
        function = _function(builder.module, "weft.digamma", F64, [F64])
        _define_digamma(function)
    return builder.call(function, [x])


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


# Boost.Math, digamma.hpp (J. Maddock): digamma(x) = (x - root) (Y + R(x - 1)) on [1, 2]; the root
# as a sum.
_ROOT = (
    1569415565.0 / 1073741824.0,
    381566830.0 / 1073741824.0 / 1073741824.0,
    0.9016312093258695918615325266959189453125e-19,
)
_Y = 0.99558162689208984
_NUMERATOR = (
    *(0.25479851061131551, -0.32555031186804491, -0.65031853770896507, -0.28919126444774784),
    *(-0.045251321448739056, -0.0020713321167745952),
)
_DENOMINATOR = (
    *(1.0, 2.0767117023730469, 1.4606242909763515, 0.43593529692665969),
    *(0.054151797245674225, 0.0021284987017821144, -0.55789841213675513e-6),
)
_SERIES = (
    *(1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12),
    -3617.0 / 8160,
)


def _define_digamma(function: ir.Function) -> None:
    m = FloatBuilder(ir.IRBuilder(function.append_basic_block("entry")), "f64")
    b, (x,) = m.builder, function.args
    moved, total = b.alloca(F64), b.alloca(F64)
    b.store(x, moved)
    b.store(m.const(0.0), total)
    with b.if_then(m.compare("==", x, 0.0)):
        b.ret(m.neg(m.copysign(math.inf, x)))
    with b.if_then(m.compare("<", x, 0.0)):
        _reflect(m, x, moved, total)
    x = b.load(moved)
    with b.if_then(m.compare(">=", x, 10.0)):
        inverse = m.div(1.0, x)
        z = m.mul(inverse, inverse)
        series = m.mul(z, m.horner(z, _SERIES))
        value = m.sub(m.sub(_call(m, "log", x), m.mul(inverse, 0.5)), series)
        b.ret(m.add(b.load(total), value))
    _step_while(m, ">", 2.0, moved, total)
    _step_while(m, "<", 1.0, moved, total)
    x = b.load(moved)
    g = x
    for part in _ROOT:
        g = m.sub(g, part)
    t = m.sub(x, 1.0)
    ratio = m.div(m.horner(t, _NUMERATOR), m.horner(t, _DENOMINATOR))
    b.ret(m.add(b.load(total), m.fma(g, _Y, m.mul(g, ratio))))


def _reflect(m: FloatBuilder, x: ir.Value, moved: ir.Value, total: ir.Value) -> None:
    """digamma(x) = digamma(1 - x) - pi / tan(pi x); NaN at the poles and at -inf."""
    b = m.builder
    with b.if_then(m.compare("==", x, m.call("floor", x))):
        b.ret(m.const(math.nan))
    fraction = m.sub(x, m.call("floor", m.add(x, 0.5)))
    tangent = _call(m, "tan", m.mul(fraction, math.pi))
    # tan(pi / 2) must be inf, or digamma(-n - 1/2) loses its last bits.
    middle = m.compare("==", m.abs(fraction), 0.5)
    b.store(m.select(middle, 0.0, m.div(-math.pi, tangent)), total)
    b.store(m.sub(1.0, x), moved)


def _step_while(
    m: FloatBuilder, operator: str, limit: float, moved: ir.Value, total: ir.Value
) -> None:
    """Move x by 1 while it is beyond the limit, adding up the terms of the recurrence."""
    b = m.builder
    head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    x = b.load(moved)
    b.cbranch(m.compare(operator, x, limit), body, after)
    b.position_at_end(body)
    if operator == ">":
        x = m.sub(x, 1.0)
        b.store(m.add(b.load(total), m.div(1.0, x)), total)
        b.store(x, moved)
    else:
        b.store(m.sub(b.load(total), m.div(1.0, x)), total)
        b.store(m.add(x, 1.0), moved)
    b.branch(head)
    b.position_at_end(after)


def _call(m: FloatBuilder, name: str, x: ir.Value) -> ir.Value:
    """The C library's f64 function."""
    function = m.builder.module.globals.get(name)
    if function is None:
        function = ir.Function(m.builder.module, ir.FunctionType(F64, [F64]), name)
        function.attributes.add("nounwind")
        function.attributes.add("readnone")
    return m.builder.call(function, [x])
