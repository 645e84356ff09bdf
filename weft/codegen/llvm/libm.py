"""Calls of the C library's mathematical functions from generated code.

Used for functions that have no vectorised form of ours.  glibc documents its error bounds (in ULP)
in "Known Maximum Errors in Math Functions" of its manual.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache

from weft.ir.mathematics import mathematics

# f32 and f64 versions exist of each, f32's with the suffix "f".
REAL_FUNCTIONS = (
    *("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2", "hypot", "pow"),
    *("sin", "cos", "exp", "expm1", "log", "lgamma_r", "fma"),
)
# double complex versions only: c64 is computed in c128 and rounded.
COMPLEX_FUNCTIONS = (
    *("csqrt", "cexp", "clog", "cpow", "csin", "ccos", "ctan", "casin", "cacos", "catan"),
    *("csinh", "ccosh", "ctanh", "casinh", "cacosh", "catanh"),
)


@cache
def register_libm() -> None:
    """Tell LLVM's JIT the addresses of the functions above; RuntimeError if one is missing.

    The JIT would look through the process's own symbols, among which libm need not be.
    """
    library = mathematics()
    binding = importlib.import_module("llvmlite.binding")
    reals = [name for base in REAL_FUNCTIONS for name in (base, _single(base))]
    for name in (*reals, *COMPLEX_FUNCTIONS):
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise RuntimeError(f"the C library has no {name}, which weft's code needs") from error
        binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)


def _single(name: str) -> str:
    return "lgammaf_r" if name == "lgamma_r" else name + "f"
