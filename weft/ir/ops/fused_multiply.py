"""x * y + z with one rounding, in NumPy, which has no such function."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.ir.mathematics import mathematics

Array = np.ndarray[Any, Any]


def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of equal dtypes, f32 or f64, rounded once (IEEE 754, fusedMultiplyAdd)."""
    if x.dtype == np.float32:
        return _single(x, y, z)
    out: Array = np.asarray(np.frompyfunc(_double(), 3, 1)(x, y, z), np.float64)
    return out


def _single(x: Array, y: Array, z: Array) -> Array:
    """In f64 the product is exact. The sum is rounded to odd there, so that rounding it to f32 is
    the only rounding (S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums:
    proved algorithms using rounding to odd", 2008)."""
    product, addend = x.astype(np.float64) * y, z.astype(np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)  # D. Knuth's exact error of the sum
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    return (bits + np.where(even, np.where(away, 1, -1), 0)).view(np.float64).astype(np.float32)


@functools.cache
def _double() -> Callable[[float, float, float], float]:
    """C's fma; Python has it since 3.13, where it raises for what IEEE 754 calls invalid."""
    function = mathematics().fma
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double] * 3
    assert math.isnan(function(math.inf, 0.0, 1.0))
    return function
