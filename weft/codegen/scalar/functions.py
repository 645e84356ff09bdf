"""Functions with loops and branches, as internal functions of the kernel's LLVM module.

Loops around them do not vectorise.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.elements import I64


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
