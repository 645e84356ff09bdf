"""astype and bitcast between any two dtypes, as the text of kernel source.

Floats become integers towards 0, narrow ones by way of a wider integer, which wraps; what is out of
its range becomes the end of it, NaN 0. 16-bit floats are rounded by the cast, so that it shows
between fused operations too.
"""

from __future__ import annotations

from weft.codegen.cuda.scalars.memory import FLOATS, HALVES, INTEGERS, bits


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
