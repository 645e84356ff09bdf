"""SciPy's BLAS by address: native code calls it without going through Python."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache

#: BLAS's letter for each dtype that it has routines for.
LETTER = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}


@cache
def blas_address(routine: str) -> int:
    """The address of a Fortran-convention BLAS routine ("sgemm"); KeyError if SciPy has none."""
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[routine]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return int(address)
