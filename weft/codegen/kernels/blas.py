"""SciPy's BLAS by address: native code calls it without going through Python."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
from functools import cache
from pathlib import Path

#: BLAS's letter for each dtype that it has routines for.
LETTER = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}


@cache
def blas_address(routine: str) -> int:
    """The address of a Fortran-convention BLAS routine ("sgemm"); KeyError if SciPy has none."""
    library = _library()
    # SciPy's own wheels prefix the names of their OpenBLAS, other builds use the system's
    for symbol in (f"scipy_{routine}_", f"{routine}_"):
        function = getattr(library, symbol, None)
        if function is not None:
            return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return _capsule_address(routine)


@cache
def _library() -> ctypes.CDLL | None:
    """The extension module that is linked with SciPy's BLAS, as a shared library.

    Importing it as a module imports all of `scipy.linalg`, 60 ms and more.
    """
    package = importlib.util.find_spec("scipy")
    for folder in (package and package.submodule_search_locations) or ():
        where = [str(Path(folder) / "linalg")]
        spec = importlib.machinery.PathFinder.find_spec("scipy.linalg.cython_blas", where)
        if spec is not None and spec.origin is not None:
            return ctypes.CDLL(spec.origin)
    return None


def _capsule_address(routine: str) -> int:
    capsule = importlib.import_module("scipy.linalg.cython_blas").__pyx_capi__[routine]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return int(address)
