"""Element types: how each weft dtype lies in memory and in LLVM registers.

| dtype        | memory      | register                                                  |
|--------------|-------------|-----------------------------------------------------------|
| bool         | i8, 0 or 1  | i1                                                        |
| i8 ... u64   | iN          | iN (signedness belongs to the operation, as in LLVM)      |
| f16, bf16    | i16         | float: computed in f32, rounded to nearest even on store  |
| f32, f64     | float       | the same                                                  |
| c64, c128    | {re, im}    | the same struct as one value                              |
"""

from __future__ import annotations

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
C64, C128 = ir.LiteralStructType([F32, F32]), ir.LiteralStructType([F64, F64])

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
HALVES = ("f16", "bf16")
FLOATS = (*HALVES, "f32", "f64")
COMPLEXES = ("c64", "c128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEXES)

PART = {"c64": "f32", "c128": "f64"}  # dtype of a complex number's two parts

_MEMORY: dict[str, ir.Type] = {"bool": I8, "f16": I16, "bf16": I16}
_REGISTER: dict[str, ir.Type] = {"bool": I1, "f16": F32, "bf16": F32}
_SHARED: dict[str, ir.Type] = {
    **{dtype: ir.IntType(int(dtype[1:])) for dtype in INTEGERS},
    "f32": F32,
    "f64": F64,
    "c64": C64,
    "c128": C128,
}


def memory_type(dtype: str) -> ir.Type:
    """LLVM type of one ``dtype`` element in a buffer; KeyError for dtypes without a native form."""
    return _MEMORY.get(dtype) or _SHARED[dtype]


def register_type(dtype: str) -> ir.Type:
    """LLVM type of one ``dtype`` value between instructions."""
    return _REGISTER.get(dtype) or _SHARED[dtype]


def width_bits(dtype: str) -> int:
    """Bits of one element in memory."""
    if dtype == "bool":
        return 8
    return int(dtype.lstrip("iufcb"))


def is_signed(dtype: str) -> bool:
    """Whether ``dtype`` is a signed integer."""
    return dtype in SIGNED
