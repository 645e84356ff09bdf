"""The types of expressions in kernel source, and the signatures of the vocabulary's names."""

from __future__ import annotations

import math

import numpy as np

from weft.codegen.cuda.language import (
    CASTS,
    LANES,
    LOADS,
    MATHS,
    STORES,
    THREE,
    TWO,
)
from weft.ir.dataclass import dataclass

#: A dtype ("f32", "bool", ...); "int", "float": a bare literal; "none": of a statement's call.
Scalar = str


@dataclass(frozen=True, slots=True)
class Pointer:
    """Elements of `dtype` in memory of one space; `size`: how many, where the source says it."""

    dtype: str
    space: str = "global"
    size: int = 0


Kind = Scalar | Pointer | tuple[Scalar, ...]

NUMPY = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
FLOATS = frozenset({"f32", "f64"})
INTEGERS = frozenset(CASTS) - FLOATS
#: Integers whose arithmetic is carried out in 64 bits, if it is not cast to them at once.
NARROW = INTEGERS - {"i64", "u64"}

#: Names that a GPU has as instructions of the warp or the block, by what they take after the mask.
VOTES = {"ballot_sync": "u32", "any_sync": "bool", "all_sync": "bool"}
BARRIERS = {"syncthreads": "none", "syncwarp": "none", "syncthreads_or": "bool"}
#: What products of tensor cores take, and give.
MMA = (*("u32",) * 6, *("f32",) * 4), ("f32",) * 4
ATOMIC_DTYPES = frozenset({"i32", "u32", "i64", "u64"})
SPECIAL = frozenset({"threadIdx.x", "blockIdx.x", "blockDim.x", "gridDim.x", "laneid"})
SHARED_LIMIT = 48 * 1024
THREAD_LIMIT = 1024

#: Name -> (dtypes of its arguments, dtype of its result).
FUNCTIONS: dict[str, tuple[tuple[Scalar, ...], Scalar]] = {
    "f16_to_f32": (("u16",), "f32"),
    "bf16_to_f32": (("u16",), "f32"),
    "f32_to_f16": (("f32",), "u16"),
    "f32_to_bf16": (("f32",), "u16"),
    "bits_f32": (("f32",), "u32"),
    "f32_bits": (("u32",), "f32"),
    "bits_f64": (("f64",), "u64"),
    "f64_bits": (("u64",), "f64"),
    "mul_high_u32": (("u32", "u32"), "u32"),
    "mul_high_u64": (("u64", "u64"), "u64"),
}
FUNCTIONS |= {
    f"{name}_{dtype}": ((dtype,) * (3 if name in THREE else 2 if name in TWO else 1), dtype)
    for name in MATHS
    for dtype in ("f32", "f64")
}

#: Names of 128-bit accesses -> dtype.
WIDE_LOADS = {name: dtype for dtype, name in LOADS.items()}
WIDE_STORES = {name: dtype for dtype, name in STORES.items()}


def wide(dtype: Scalar) -> Scalar:
    """The dtype in which arithmetic on `dtype` is carried out."""
    if dtype not in NARROW:
        return dtype
    return "u64" if dtype[0] == "u" else "i64"


def lanes(dtype: Scalar) -> int:
    """Elements of `dtype` in 128 bits."""
    return LANES[dtype]


def constant(dtype: Scalar, value: float | int) -> np.generic:
    """`value` as a constant of `dtype`; integers wrap."""
    if dtype in FLOATS or dtype == "bool":
        with np.errstate(over="ignore"):
            number: np.generic = NUMPY[dtype].type(value)
        return number
    assert isinstance(value, int)
    bits = NUMPY[dtype].itemsize * 8
    value &= (1 << bits) - 1
    if dtype[0] == "i" and value >> (bits - 1):
        value -= 1 << bits
    wrapped: np.generic = NUMPY[dtype].type(value)
    return wrapped


def poison(dtype: Scalar) -> np.generic:
    """What memory holds that nothing was written to."""
    return constant(dtype, math.nan if dtype in FLOATS else 0x7B7B7B7B7B7B7B7B)
