"""PTX of kernels by numba-cuda, from their printed text; no GPU and no driver is needed.

numba-cuda types and lowers the text, NVIDIA's libNVVM makes PTX: nothing of it is weft's own code
generator but the text."""

from __future__ import annotations

import importlib.metadata
import linecache
import re
from typing import Any

from weft.codegen.cuda.numba_cuda.text import check_compilable, numba_text
from weft.codegen.cuda.source.kernel import MMAS, CudaKernel
from weft.ir.errors import ToolchainError, UnsupportedError
from weft.ir.process import ForkLock

INSTALL = "pip install 'weft[numba-cuda]' (CUDA 13), or 'numba-cuda[cu12]' beside 'weft[cuda]'"
_PACKAGE = "numba-cuda"
#: The first architecture with the instruction for 16 x 8 x 16 (PTX ISA, "mma").
TENSOR_CORES = (8, 0)
_ENTRY = re.compile(r"^\.visible \.entry ([\w$]+)\(", re.MULTILINE)
#: Numba's registries are no place for two threads at once.
_lock = ForkLock()


def numba_cuda_version() -> str:
    """The version of numba-cuda. ToolchainError where it is not installed."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(
            "kernels of GPUs cannot be compiled by Numba here: no Python package numba-cuda",
            hint=f'{INSTALL}; WEFT_ENGINE=llvm (engine="llvm") does without',
        ) from None


def numba_ptx(kernel: CudaKernel, symbol: str, cc: tuple[int, int]) -> str:
    """The PTX of a kernel, which is named `symbol` there.

    ToolchainError where a part of numba-cuda or of the CUDA toolkit that it needs is missing,
    UnsupportedError for products of tensor cores before sm_80, and as `check_compilable`; whatever
    else numba-cuda raises is its verdict on the text, and passes through."""
    numba_cuda_version()
    check_compilable(kernel)
    if cc < TENSOR_CORES and any(name in kernel.source for name in MMAS):
        raise UnsupportedError(
            f"products of tensor cores are compiled by numba-cuda from sm_80 on: '{kernel.name}' "
            f"has some, and is for sm_{cc[0]}{cc[1]}",
            hint='WEFT_ENGINE=llvm (engine="llvm") compiles it',
        )
    with _lock:
        return _compiled(kernel, symbol, cc)


def _compiled(kernel: CudaKernel, symbol: str, cc: tuple[int, int]) -> str:
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba import cuda
    from numba.cuda.cudadrv.error import CudaSupportError, NvvmSupportError

    from weft.codegen.cuda.numba_cuda.names import pointer_to, type_of

    numba: Any = cuda
    text = numba_text(kernel)
    where = f"<weft kernel {kernel.key}>"
    linecache.cache[where] = (len(text), None, text.splitlines(True), where)  # Numba reads it
    scope: dict[str, Any] = {"__name__": "weft_kernel"}
    exec(compile(text, where, "exec"), scope)
    given = [
        pointer_to(p.dtype) if p.kind == "pointer" else type_of(p.dtype) for p in kernel.parameters
    ]
    bounds = (kernel.threads, kernel.blocks) if kernel.blocks else kernel.threads
    try:
        ptx, _ = numba.compile(
            scope[kernel.name].py_func, numba.types.void(*given),
            device=False, abi="numba", cc=cc, launch_bounds=bounds,
        )  # fmt: skip
    except (DynamicLibNotFoundError, CudaSupportError, NvvmSupportError) as error:
        raise ToolchainError(
            f"numba-cuda lacks a library of the CUDA toolkit: {str(error).splitlines()[0]}",
            hint=INSTALL,
        ) from error
    (entry,) = _ENTRY.findall(ptx)
    named: str = ptx.replace(entry, symbol)
    return named
