"""What the body of a plain Numba kernel (`weft.codegen.jit.NumbaKernel`) needs.

``args`` is a C pointer to int64: addresses, extents, strides.  Example, ``out = 2 x``
over (x, out, n)::

    def kernel(args):
        x = as_array_f32(args[0], args[2])
        out = as_array_f32(args[1], args[2])
        for i in range(x.size):
            out[i] = 2 * x[i]

Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from weft.codegen.half import f32_to_half, half_to_f32, has_f16_instructions

# Numba is annotated in part only.
_types: Any = types
_numba: Any = numba
_intrinsic: Any = intrinsic

_ELEMENT_TYPES: dict[str, Any] = {
    "bool": _types.boolean,
    **{f"i{width}": getattr(_types, f"int{width}") for width in (8, 16, 32, 64)},
    **{f"u{width}": getattr(_types, f"uint{width}") for width in (8, 16, 32, 64)},
    "f16": _types.uint16,  # its bits: see f16_to_f32
    "bf16": _types.uint16,
    "f32": _types.float32,
    "f64": _types.float64,
    "c64": _types.complex64,
    "c128": _types.complex128,
}


def _address_as(dtype: str) -> Any:
    """Intrinsic: int64 address -> C pointer to elements of ``dtype``."""
    result = _types.CPointer(_ELEMENT_TYPES[dtype])

    def address_as(_typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(result))

        return result(_types.int64), codegen

    return _intrinsic(address_as)


def _as_array(address_as: Any) -> Any:
    """(address, shape) -> C-ordered array over the memory there; shape: int or tuple of ints."""

    def as_array(address: Any, shape: Any) -> Any:
        return _numba.carray(address_as(address), shape)

    return _numba.njit(as_array)


def _conversion(source: Any, target: Any, convert: Callable[..., ir.Value], dtype: str) -> Any:
    """Intrinsic of one half-precision conversion."""

    def convert_half(_typing_context: Any, value: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
            return convert(builder, args[0], dtype, has_f16_instructions(context))

        return target(source), codegen

    return _intrinsic(convert_half)


address_as_bool = _address_as("bool")
address_as_i8 = _address_as("i8")
address_as_i16 = _address_as("i16")
address_as_i32 = _address_as("i32")
address_as_i64 = _address_as("i64")
address_as_u8 = _address_as("u8")
address_as_u16 = _address_as("u16")
address_as_u32 = _address_as("u32")
address_as_u64 = _address_as("u64")
address_as_f16 = _address_as("f16")
address_as_bf16 = _address_as("bf16")
address_as_f32 = _address_as("f32")
address_as_f64 = _address_as("f64")
address_as_c64 = _address_as("c64")
address_as_c128 = _address_as("c128")

as_array_bool = _as_array(address_as_bool)
as_array_i8 = _as_array(address_as_i8)
as_array_i16 = _as_array(address_as_i16)
as_array_i32 = _as_array(address_as_i32)
as_array_i64 = _as_array(address_as_i64)
as_array_u8 = _as_array(address_as_u8)
as_array_u16 = _as_array(address_as_u16)
as_array_u32 = _as_array(address_as_u32)
as_array_u64 = _as_array(address_as_u64)
as_array_f16 = _as_array(address_as_f16)
as_array_bf16 = _as_array(address_as_bf16)
as_array_f32 = _as_array(address_as_f32)
as_array_f64 = _as_array(address_as_f64)
as_array_c64 = _as_array(address_as_c64)
as_array_c128 = _as_array(address_as_c128)

f16_to_f32 = _conversion(_types.uint16, _types.float32, half_to_f32, "f16")
bf16_to_f32 = _conversion(_types.uint16, _types.float32, half_to_f32, "bf16")
f32_to_f16 = _conversion(_types.float32, _types.uint16, f32_to_half, "f16")
f32_to_bf16 = _conversion(_types.float32, _types.uint16, f32_to_half, "bf16")
