"""Elementwise ops, conversions and bitcasts against their references, on awkward values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from compiled_checks import ELEMENTWISE, Case, allowed_dtypes, bound_ulps, check, operands

from weft.ir import dtypes
from weft.ir.dtypes import DType

Array = np.ndarray[Any, Any]

#: Of two zeros either may be the larger (and NumPy's float16 nextafter(0, -0) is 0, float32's -0).
UNSIGNED_ZERO = {"maximum", "minimum", "max", "min", "cumulative_max", "cumulative_min"}
#: Complex functions: relative to the modulus, in eps of the parts.
COMPLEX_ULPS = 16.0
EXACT_COMPLEX = {
    *("negative", "conj", "real", "imag", "equal", "not_equal", "isnan", "isinf", "isfinite"),
    *("add", "subtract", "round"),
}


def ops_at(dtype: DType) -> list[str]:
    """The elementwise ops with one operand dtype whose type rule takes `dtype`."""
    return [
        n
        for n in ELEMENTWISE
        if n not in ("astype", "bitcast", "where") and dtype in allowed_dtypes(n)
    ]


def domain(op: str, arrays: list[Array]) -> list[Array]:
    """The operands, without those where no relative bound holds (near the zeros of a function)."""
    if op not in ("digamma", "lgamma"):
        return arrays
    zeros = (1.0, 2.0) if op == "lgamma" else (1.4616321,)
    out = []
    with np.errstate(invalid="ignore"):
        for x in arrays:
            x = np.where(x < 0, -x, x)
            far = np.all([np.abs(x - z) > 0.1 for z in zeros], axis=0) & (x > 1e-300)
            out.append(np.where(far | ~(x > 0), x, 3).astype(arrays[0].dtype))
    return out


def check_elementwise(op: str, dtype: DType, got: Array, wanted: Array) -> None:
    if op in UNSIGNED_ZERO or (op == "nextafter" and dtype is dtypes.float16):
        got, wanted = got + np.zeros((), got.dtype), wanted + np.zeros((), got.dtype)
    if op == "sigmoid":  # SciPy's is 0 where the result is denormal
        tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_normal)
        got, wanted = (np.where(np.abs(x) < tiny, 0, x).astype(x.dtype) for x in (got, wanted))
    ulps = 0.0
    if dtype.is_complex:
        ulps = 0.0 if op in EXACT_COMPLEX else COMPLEX_ULPS
    elif dtype.is_floating and got.dtype.kind != "b":
        ulps = bound_ulps(op, dtype.name)
    check(op, got, wanted, ulps)


def casts(source: DType, targets: Sequence[DType]) -> Case:
    """To each of them, within its range: elsewhere it is undefined."""
    case = Case()
    for target in targets:
        x = operands(source, 1, 101)[0]
        if source.is_floating and target.is_integer:
            with np.errstate(invalid="ignore"):
                x = np.where(np.abs(x) < 100, x, 1).astype(x.dtype)
            x = np.abs(x) if target.kind == "uint" else x
        case.op("astype", case.input(x), dtype=target, label=f"{source} to {target}")
    return case


def bitcasts(source: DType, targets: Sequence[DType]) -> Case:
    """To those of them that are as wide."""
    case = Case()
    for target in targets:
        if target.bits == source.bits:
            case.op("bitcast", case.input(operands(source, 1, 101)[0]), dtype=target)
    return case


def check_bitcasts(source: DType, case: Case, rows: list[tuple[str, Array, Array]]) -> None:
    for label, got, wanted in rows:
        if source.is_floating and got.dtype.kind != "f":
            finite = ~np.isnan(case.inputs[0].astype(np.float64))
            got, wanted = got[finite], wanted[finite]  # a NaN may change its bits on the way
        check(label, got, wanted)
