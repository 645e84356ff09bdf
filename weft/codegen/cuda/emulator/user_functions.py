"""Scalar functions of the user's in the emulator: their code for this processor, on NumPy values.

The code is the text that a GPU gets, with weft's functions of floats in place of libdevice's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.codegen.cuda.source.kernel import NUMPY, UserFunction
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.llvm.jit import Kernel, compile_kernels
from weft.codegen.llvm.scalar_texts import SEPARATOR
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.user_functions import emit_user_function

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


@cache
def native_function(function: UserFunction) -> Callable[..., Any]:
    """The function of NumPy scalars, or of arrays with an element for each thread."""
    kinds, result = function.signature
    kernel = Kernel(f"emulated {function.name}", function.name, _Emit(function))
    call = _KERNEL(compile_kernels([kernel])[kernel.key])

    def run(*values: Any) -> Any:
        arrays = np.broadcast_arrays(*values)
        held = [np.ascontiguousarray(a, NUMPY[kind]) for a, kind in zip(arrays, kinds, strict=True)]
        out = np.empty(arrays[0].shape, NUMPY[result])
        given = [*(a.ctypes.data for a in held), out.ctypes.data]
        call((ctypes.c_int64 * len(given))(*given), 0, out.size, 0)
        return out if any(np.ndim(v) for v in values) else out[()]

    return run


class _Emit:
    """`emit` of the kernel: a loop over elements."""

    def __init__(self, function: UserFunction) -> None:
        self.function = function

    def __call__(self, e: Emitter) -> None:
        (kinds, result), f = self.function.signature, self.function
        pointers = [e.pointer_argument(k, kind) for k, kind in enumerate((*kinds, result))]
        statement = f"{SEPARATOR}{f.code}:{f.letters}"
        with e.for_range(e.lo, e.hi) as i:
            args = [
                load_element(e, e.at(p, i), kind) for p, kind in zip(pointers, kinds, strict=False)
            ]
            value = emit_user_function(e, statement, f.dtype, args)
            store_element(e, value, e.at(pointers[-1], i), result)
