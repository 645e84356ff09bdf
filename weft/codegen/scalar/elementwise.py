"""Elementwise operations as LLVM: `emit_scalar` over ints, floats, complex numbers, and casts.

Every (op, dtype) pair that `supported` accepts compiles; the meaning is NumPy 2's. `astype` and
`bitcast` are between any two dtypes. Out-of-range float -> integer, which C and NumPy leave
undefined, is some value: it never traps, and it is the same in vector and scalar code.  Narrow
targets go through a wider integer and wrap, as NumPy's do on x86."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from weft.codegen.llvm.emitter import (
    COMPLEXES,
    DTYPES,
    F32,
    F64,
    FLOATS,
    HALVES,
    I16,
    I32,
    I64,
    PART,
    Emitter,
    is_signed,
    memory_type,
    register_type,
    width_bits,
)
from weft.codegen.llvm.scalar_texts import is_user_function
from weft.codegen.scalar.element_access import (
    f64_to_f32_odd,
    from_memory,
    make_complex,
    to_memory,
)
from weft.codegen.scalar.floats import COMPLEX_OPS, FLOAT_OPS, next_bits, parts, select
from weft.codegen.scalar.integers import COMPARISONS, INT_TABLE
from weft.codegen.scalar.user_functions import emit_user_function
from weft.codegen.vector.float_builder import FloatBuilder


def astype(e: Emitter, source: str, target: str, value: ir.Value) -> ir.Value:
    """Convert a register value from dtype ``source`` to dtype ``target``."""
    if source == target:
        return value
    if target == "bool":
        return _to_bool(e, source, value)
    if source in COMPLEXES:
        real, imaginary = parts(e, value)
        if target not in COMPLEXES:
            return astype(e, PART[source], target, real)
        return make_complex(
            e, *(astype(e, PART[source], PART[target], part) for part in (real, imaginary))
        )
    if target in COMPLEXES:
        real = astype(e, source, PART[target], value)
        return make_complex(e, real, ir.Constant(real.type, 0.0))
    if target in HALVES:
        return _to_half(e, source, target, value)
    if source in FLOATS:
        return (
            _float_to_float(e, value, register_type(target))
            if target in FLOATS
            else (_float_to_integer(e, target, value))
        )
    return _integer_to_any(e, source, target, value)


def _to_bool(e: Emitter, source: str, value: ir.Value) -> ir.Value:
    if source in COMPLEXES:
        return e.builder.or_(*(_to_bool(e, PART[source], part) for part in parts(e, value)))
    if source in FLOATS:
        return e.builder.fcmp_unordered("!=", value, ir.Constant(value.type, 0.0))
    return e.builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))


def _to_half(e: Emitter, source: str, target: str, value: ir.Value) -> ir.Value:
    """Round to 16 bits now (the register stays f32): a cast must show, even between fused ops."""
    if source == "f64" and target == "f16":
        # NumPy rounds once. ml_dtypes' bfloat16 rounds through f32, so there we do too.
        value = f64_to_f32_odd(e.builder, value)
    elif source not in ("f32", *HALVES):
        value = astype(e, source, "f32", value)
    return from_memory(e, to_memory(e, value, target), target)


def _float_to_float(e: Emitter, value: ir.Value, kind: ir.Type) -> ir.Value:
    if value.type == kind:
        return value
    return e.builder.fpext(value, kind) if kind == F64 else e.builder.fptrunc(value, kind)


def _float_to_integer(e: Emitter, target: str, value: ir.Value) -> ir.Value:
    # LLVM's plain fptosi makes poison of what is out of range; .sat is defined.
    if target == "u64":
        return _saturating(e, "llvm.fptoui.sat", value, I64)
    wide = I64 if target in ("i64", "u32") else I32
    if wide == I32 and value.type == F32:
        integer = _to_i32(e.builder, value)
    else:
        integer = _saturating(e, "llvm.fptosi.sat", value, wide)
    kind = register_type(target)
    return integer if kind == wide else e.builder.trunc(integer, kind)


def _to_i32(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """llvm.fptosi.sat, which LLVM does not vectorise: the nearest in range, 0 of NaN."""
    low, high = (ir.Constant(F32, x) for x in (-(2.0**31), 2.0**31))
    above = b.select(b.fcmp_ordered(">", value, low), value, low)
    inside = b.fcmp_ordered("<", above, high)
    held = b.fptosi(b.select(inside, above, low), I32)
    held = b.select(inside, held, ir.Constant(I32, 2**31 - 1))
    return b.select(b.fcmp_unordered("uno", value, value), ir.Constant(I32, 0), held)


def _saturating(e: Emitter, name: str, value: ir.Value, kind: ir.Type) -> ir.Value:
    signature = ir.FunctionType(kind, [value.type])
    function = e.module.declare_intrinsic(name, [kind, value.type], signature)
    return e.builder.call(function, [value])


def _integer_to_any(e: Emitter, source: str, target: str, value: ir.Value) -> ir.Value:
    kind = register_type(target)
    if kind in (F32, F64):
        convert = e.builder.sitofp if is_signed(source) else e.builder.uitofp
        return convert(value, kind)
    if kind.width < value.type.width:
        return e.builder.trunc(value, kind)
    if kind.width == value.type.width:
        return value
    return e.builder.sext(value, kind) if is_signed(source) else e.builder.zext(value, kind)


def can_bitcast(source: str, target: str) -> bool:
    """Whether two dtypes have the same width."""
    return width_bits(source) == width_bits(target)


def bitcast(e: Emitter, source: str, target: str, value: ir.Value) -> ir.Value:
    """Reinterpret the memory form of a value; complex numbers count as (real, imaginary) bytes."""
    if source == target:
        return value
    bits = _to_bits(e, source, value)
    if target in COMPLEXES:
        part = register_type(PART[target])
        half = ir.IntType(width_bits(target) // 2)
        upper = e.builder.lshr(bits, ir.Constant(bits.type, half.width))
        low, high = (e.builder.trunc(word, half) for word in (bits, upper))
        return make_complex(e, e.builder.bitcast(low, part), e.builder.bitcast(high, part))
    return from_memory(e, e.builder.bitcast(bits, memory_type(target)), target)


def _to_bits(e: Emitter, source: str, value: ir.Value) -> ir.Value:
    whole = ir.IntType(width_bits(source))
    if source not in COMPLEXES:
        return e.builder.bitcast(to_memory(e, value, source), whole)
    half = ir.IntType(whole.width // 2)
    low, high = (e.builder.zext(e.builder.bitcast(p, half), whole) for p in parts(e, value))
    return e.builder.or_(low, e.builder.shl(high, ir.Constant(whole, half.width)))


__all__ = [
    "Unsupported",
    "emit_scalar",
    "result_dtype",
    "supported",
]

PREDICATES = (
    *COMPARISONS,
    *("isnan", "isinf", "isfinite", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)


class Unsupported(NotImplementedError):
    """weft has no native code for this operation at this dtype (and it has no meaning in NumPy)."""

    def __init__(self, op: str, dtype: str) -> None:
        super().__init__(f"no native code for {op} on {dtype}")
        self.op = op
        self.dtype = dtype


def supported(op: str, dtype: str, attrs: Mapping[str, Any] | None = None) -> bool:
    """Whether `emit_scalar` takes ``op`` at operand ``dtype``; casts need ``attrs["dtype"]``."""
    if dtype not in DTYPES:
        return False
    if op in ("astype", "bitcast"):
        target = (attrs or {}).get("dtype")
        if target not in DTYPES:
            return False
        return op == "astype" or can_bitcast(dtype, target)
    if op == "where":
        return True
    if dtype in COMPLEXES:
        return op in COMPLEX_OPS
    return op in (FLOAT_OPS if dtype in FLOATS else INT_TABLE[dtype])


def result_dtype(op: str, dtype: str, attrs: Mapping[str, Any] | None = None) -> str:
    """dtype of the result of a supported ``op``."""
    if op in ("astype", "bitcast"):
        return str((attrs or {})["dtype"])
    if op in PREDICATES:
        return "bool"
    if op in ("abs", "real", "imag"):
        return PART.get(dtype, dtype)
    return dtype


def emit_scalar(
    e: Emitter, op: str, dtype: str, args: list[ir.Value], attrs: Mapping[str, Any]
) -> ir.Value:
    """LLVM of one elementwise operation; takes and gives register values.

    ``dtype`` is that of the operands (for ``where``, whose first operand is bool, of the other
    two; for a user's function, of its floats); ``attrs["dtype"]`` is the target of astype and
    bitcast.  Raises Unsupported.
    """
    if is_user_function(op):
        return emit_user_function(e, op, dtype, args)
    if not supported(op, dtype, attrs):
        raise Unsupported(op, dtype)
    if op == "astype":
        return astype(e, dtype, attrs["dtype"], args[0])
    if op == "bitcast":
        return bitcast(e, dtype, attrs["dtype"], args[0])
    if op == "where":
        return select(e, *args) if dtype in COMPLEXES else e.builder.select(*args)
    if dtype in COMPLEXES:
        return COMPLEX_OPS[op](e, dtype, args)
    if dtype in HALVES:
        return _half_op(e, op, dtype, args)
    if dtype in FLOATS:
        return FLOAT_OPS[op](e, dtype, args)
    return INT_TABLE[dtype][op](e, dtype, args)


def _half_op(e: Emitter, op: str, dtype: str, args: list[ir.Value]) -> ir.Value:
    if op != "nextafter":
        return FLOAT_OPS[op](e, "f32", args)
    # Neighbours are those of the 16-bit format.
    bits = [to_memory(e, value, dtype) for value in args]
    rounded = [from_memory(e, value, dtype) for value in bits]
    stepped = next_bits(FloatBuilder(e.builder, "f32"), bits[0], bits[1], rounded)
    assert stepped.type == I16
    return from_memory(e, stepped, dtype)
