"""Dtypes in kernel source: elements in memory, in registers, as constants, and casts between them.

| dtype      | memory     | register                                        |
|------------|------------|-------------------------------------------------|
| bool       | u8, 0 or 1 | boolean                                         |
| i8 ... u64 | the same   | the same                                        |
| f16, bf16  | u16        | f32, rounded when it is stored (and by a cast)  |
| f32, f64   | the same   | the same                                        |

Casts (`astype`, `bitcast`) are between any two dtypes. Floats become integers towards 0, narrow
ones by way of a wider integer, which wraps; what is out of its range becomes the end of it, NaN 0.
16-bit floats are rounded by the cast, so that it shows between fused operations too."""

from __future__ import annotations

import math

import numpy as np

HALVES = ("f16", "bf16")
BYTES = ("i8", "u8")
FLOATS = (*HALVES, "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
#: What kernels compute with.
DTYPES = ("bool", *INTEGERS, *FLOATS)
#: Rows of odd length of fewer elements are read one by one: neighbours share sectors.
LEAST_ODD = 256


def register_dtype(dtype: str) -> str:
    """The dtype of a value between operations."""
    return "f32" if dtype in HALVES else dtype


def bits(dtype: str) -> int:
    """Bits of an element in memory."""
    return 8 if dtype == "bool" else int(dtype.lstrip("biuf"))


def nbytes(dtype: str) -> int:
    """Bytes of an element in memory."""
    return bits(dtype) // 8


def loaded(dtype: str, text: str) -> str:
    """The register value of an element in memory, such as `p[i]`."""
    if dtype == "bool":
        return f"{text} != u8(0)"
    return f"{dtype}_to_f32({text})" if dtype in HALVES else text


def load(dtype: str, pointer: str, index: str) -> str:
    """The register value of element `index`."""
    return loaded(dtype, f"{pointer}[{index}]")


def stored(dtype: str, value: str) -> str:
    """A register value as it lies in memory."""
    if dtype == "bool":
        return f"u8(1) if {value} else u8(0)"
    return f"f32_to_{dtype}({value})" if dtype in HALVES else value


def literal(dtype: str, value: object) -> str:
    """A constant, as a register value; float constants are rounded to the dtype."""
    if dtype == "bool":
        return f"boolean({bool(value)})"
    if dtype in INTEGERS:
        return f"{dtype}({int(value)})"  # type: ignore[call-overload]
    number = float(value)  # type: ignore[arg-type]
    if dtype == "f64":
        return f"f64({number!r})" if math.isfinite(number) else _special("f64", number)
    single = np.float32(number)
    return f"f32({float(single)!r})" if np.isfinite(single) else _special("f32", float(single))


def _special(dtype: str, number: float) -> str:
    """NaN or an infinity by its bits: there is no literal."""
    if dtype == "f64":
        return f"f64_bits(u64({int(np.float64(number).view(np.uint64))}))"
    return f"f32_bits(u32({int(np.float32(number).view(np.uint32))}))"


def lowest(dtype: str) -> int:
    """The least number of an integer dtype."""
    return -(1 << (bits(dtype) - 1)) if dtype in SIGNED else 0


def highest(dtype: str) -> int:
    """The greatest number of an integer dtype."""
    return (1 << (bits(dtype) - (dtype in SIGNED))) - 1


def astype(source: str, target: str, a: str) -> str:
    """The register value `a` as a number of dtype `target`."""
    if source == target:
        return a
    if target == "bool":
        zero = "f32" if source in HALVES else source
        return f"{a} != {zero}(0)"
    if target in HALVES:
        return _to_half(source, target, a)
    if source == "bool":
        return f"{target}(1) if {a} else {target}(0)"
    if source in FLOATS and target in INTEGERS:
        return _float_to_integer("f64" if source == "f64" else "f32", target, a)
    return a if (source, target) in (("f16", "f32"), ("bf16", "f32")) else f"{target}({a})"


def _to_half(source: str, target: str, a: str) -> str:
    if source == "f64" and target == "f16":
        # NumPy rounds once; ml_dtypes' bfloat16 rounds through f32, so there we do too
        a = f"wf_odd_f32({a})"
    elif source == "bool":
        return f"f32(1) if {a} else f32(0)"
    elif source not in ("f32", *HALVES):
        a = f"f32({a})"
    return f"{target}_to_f32(f32_to_{target}({a}))"


def _float_to_integer(source: str, target: str, a: str) -> str:
    function = {"i64": "long", "u32": "long", "u64": "ulong"}.get(target, "int")
    whole = f"wf_{function}_{source}({a})"
    return whole if target in ("i32", "i64", "u64") else f"{target}({whole})"


def can_bitcast(source: str, target: str) -> bool:
    """Whether two dtypes have the same width."""
    return bits(source) == bits(target)


def bitcast(source: str, target: str, a: str) -> str:
    """The bits of a register value, as they are in memory, read as `target`."""
    if source == target:
        return a
    unsigned = f"u{bits(source)}"
    if source == "bool":
        a = f"(u8(1) if {a} else u8(0))"
    elif source in HALVES:
        a = f"f32_to_{source}({a})"
    elif source in FLOATS:
        a = f"bits_{source}({a})"
    elif source != unsigned and target != unsigned and target not in INTEGERS:
        a = f"{unsigned}({a})"
    if target == "bool":
        return f"{a} != u8(0)"
    if target in HALVES:
        return f"{target}_to_f32({a})"
    if target in FLOATS:
        return f"{target}_bits({a})"
    return f"{target}({a})"
