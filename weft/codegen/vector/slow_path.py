"""Slow paths in vector loops: a test per vector, and scalar code for the lanes with rare arguments.

A branch in a loop body would keep LLVM's loop vectoriser away.  A call does not if the called
function names its vector forms (attribute "vector-function-abi-variant", LLVM Language Reference,
"Vector Function ABI"): such a form tests all lanes at once and, if none is rare, hands back what
the inline code computed. The remainder of a division, which is exact, is made of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from weft.codegen.llvm.elements import I32
from weft.codegen.vector.float_builder import FloatBuilder

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
    _keep(module, variants)
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


def _keep(module: ir.Module, functions: list[ir.Function]) -> None:
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
