"""A kernel for a GPU as a module that numba-cuda compiles.

The kernel language is a part of numba-cuda's: the text is the kernel's own, below an import of the
names that numba-cuda has not, or has with other types (`language.py`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.codegen.cuda.source.kernel import (
    ATOMICS,
    BITS,
    CASTS,
    DIVISIONS,
    FUNCTIONS,
    LOADS,
    MMAS,
    SHUFFLES,
    STORES,
    VOTES,
    CudaKernel,
    user_function,
)
from weft.ir.errors import UnsupportedError

#: Where the names are imported from.
LANGUAGE = "weft.codegen.cuda.numba_cuda.language"
#: What decorates functions that kernels call.
DEVICE = "device"
#: What is below `cuda` in the kernel language, and a name of weft's own here.
_OWN = (*SHUFFLES, *VOTES, "syncthreads_or", *MMAS)
_ATOMIC = re.compile(rf"\bcuda\.atomic\.({'|'.join(ATOMICS)})\b")
_BELOW_CUDA = re.compile(rf"\bcuda\.({'|'.join(_OWN)})\b")
_HEAD = re.compile(r"^def (\w+)", re.MULTILINE)
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")

#: All names that a kernel's text may import.
NAMES = frozenset([
    "boolean", DEVICE, *CASTS, *BITS, *DIVISIONS, *FUNCTIONS, *LOADS.values(), *STORES.values(),
    *_OWN, *(f"atomic_{name}" for name in ATOMICS),
])  # fmt: skip


def check_printable(kernel: CudaKernel) -> None:
    """UnsupportedError for a kernel that calls functions which Numba compiles for the CPU."""
    if any(user_function(name) for name in _WORD.findall(kernel.source)):
        raise UnsupportedError(
            f"the kernel '{kernel.name}' of a GPU calls a function of yours that Numba compiled "
            "(wf.elementwise, wf.reducer): it has no source for numba-cuda",
            hint='WEFT_ENGINE=llvm (engine="llvm") compiles it; a function without loops and '
            "branches of its own is traced, and is printed",
        )


def check_compilable(kernel: CudaKernel) -> None:
    """UnsupportedError for a kernel that numba-cuda cannot make: as `check_printable`, and one of a
    reproducible step, as libNVVM may fuse any product with a sum."""
    check_printable(kernel)
    if not kernel.contract:
        raise UnsupportedError(
            f"the kernel '{kernel.name}' is of a reproducible step: numba-cuda has no way to "
            "forbid that a product and a sum become one fma",
            hint='WEFT_ENGINE=llvm (engine="llvm") compiles it',
        )


def numba_text(kernel: CudaKernel, header: Sequence[str] = ()) -> str:
    """The module: header, imports, device functions, the kernel. Errors as `check_printable`."""
    check_printable(kernel)
    body = _ATOMIC.sub(r"atomic_\1", kernel.source)
    body = _BELOW_CUDA.sub(r"\1", body).strip("\n")
    functions = [name for name in _HEAD.findall(body) if name != kernel.name]

    def decorated(found: re.Match[str]) -> str:
        return f"@{DEVICE if found[1] in functions else 'cuda.jit'}\n{found[0]}"

    body = _HEAD.sub(decorated, body)
    used = sorted(NAMES & set(_WORD.findall(body)))
    lines = [f"# {line}".rstrip() for line in header]
    lines += ["from numba import cuda", "", *_imported(used), "", "", body, ""]
    return "\n".join(lines)


def _imported(names: Sequence[str]) -> list[str]:
    one = f"from {LANGUAGE} import {', '.join(names)}"
    if len(one) <= 100:
        return [one] if names else []
    return [f"from {LANGUAGE} import (", *(f"    {name}," for name in names), ")"]
