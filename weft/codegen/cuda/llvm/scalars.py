"""Scalars of kernel source as LLVM has them: types, constants, casts, arithmetic, comparisons.

Functions return one instruction, but for its result's name. `contract` is the only freedom that
floats have: a product and a sum may become one fma.
"""

from __future__ import annotations

import ast
import struct

from weft.codegen.cuda.reading.kinds import FLOATS, NUMPY, constant

#: The only flag of floating-point instructions.
CONTRACT = "contract"

TYPES = {"bool": "i1", "f32": "float", "f64": "double"}
TYPES |= {f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (8, 16, 32, 64)}

_BITWISE = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}
_SUMS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_ORDER = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


def bits(dtype: str) -> int:
    """Bits of a value of `dtype`."""
    return 1 if dtype == "bool" else NUMPY[dtype].itemsize * 8


def is_signed(dtype: str) -> bool:
    """Whether `dtype` is a signed integer."""
    return dtype[0] == "i"


def literal(dtype: str, value: float | int) -> str:
    """A constant of `dtype`; integers wrap."""
    number = constant(dtype, value)
    if dtype in FLOATS:  # LLVM writes both as the bits of an f64
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(number)))[0]:016X}"
    return str(int(number))


def arithmetic(operator: ast.operator, dtype: str, left: str, right: str) -> str:
    """`left operator right`, for operators that are one instruction."""
    of = f"{TYPES[dtype]} {left}, {right}"
    kind = type(operator)
    if kind in _BITWISE:
        return f"{_BITWISE[kind]} {of}"
    if kind in _SUMS:
        return f"f{_SUMS[kind]} {CONTRACT} {of}" if dtype in FLOATS else f"{_SUMS[kind]} {of}"
    if kind is ast.Div:
        return f"fdiv {CONTRACT} {of}"
    if kind is ast.LShift:
        return f"shl {of}"
    if kind is ast.RShift:
        return f"{'ashr' if is_signed(dtype) else 'lshr'} {of}"
    name = {ast.FloorDiv: "div", ast.Mod: "rem"}[kind]  # of signed ones: towards 0
    return f"{'s' if is_signed(dtype) else 'u'}{name} {of}"


def comparison(operator: ast.cmpop, dtype: str, left: str, right: str) -> str:
    """`left operator right`; with a NaN only `!=` holds."""
    name = _ORDER[type(operator)]
    of = f"{TYPES[dtype]} {left}, {right}"
    if dtype in FLOATS:
        return f"fcmp {'u' if name == 'ne' else 'o'}{name} {of}"
    sign = "" if name in ("eq", "ne") else "s" if is_signed(dtype) else "u"
    return f"icmp {sign}{name} {of}"


def cast(value: str, dtype: str, to: str) -> str | None:
    """`value` of `dtype` as `to`; None where they are the same bits of one type."""
    if to == "bool":
        if dtype == "bool":
            return None
        return comparison(ast.NotEq(), dtype, value, literal(dtype, 0))
    if TYPES[dtype] == TYPES[to]:
        return None
    if dtype in FLOATS and to in FLOATS:
        name = "fpext" if to == "f64" else "fptrunc"
    elif dtype in FLOATS:
        name = "fptosi" if is_signed(to) else "fptoui"
    elif to in FLOATS:
        name = "sitofp" if is_signed(dtype) else "uitofp"
    elif bits(to) < bits(dtype):
        name = "trunc"
    else:
        name = "sext" if is_signed(dtype) else "zext"
    return f"{name} {TYPES[dtype]} {value} to {TYPES[to]}"
