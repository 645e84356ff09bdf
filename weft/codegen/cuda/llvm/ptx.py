"""LLVM modules to PTX, by LLVM's NVPTX target.

PTX carries the version of its language. LLVM writes the first one that has the architecture, so
whatever knows the architecture reads it; tensor cores of sm_75 need a newer one, of CUDA 10.2.
"""

from __future__ import annotations

import re
from functools import cache

from weft.codegen.cuda.cache import Cc, architecture
from weft.codegen.cuda.llvm.module import TRIPLE
from weft.codegen.cuda.llvm.tensor_cores import NEEDS_PTX_65
from weft.codegen.cuda.toolchain import UnknownTarget
from weft.codegen.llvm.compile import compile_assembly
from weft.codegen.llvm.library import Machine, library
from weft.ir.process import ForkLock

_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
#: Of PTX with sm_75 (PTX ISA manual, "Release Notes"). LLVM takes an older one for what it does not
#: know.
_OLDEST = (6, 3)


_lock = ForkLock()


def _ready() -> None:
    """Makes the target known; LLVM's list of targets is no place for two threads at once."""
    with _lock:
        _known()


@cache
def _known() -> None:
    functions = library()
    for part in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
        getattr(functions, f"LLVMPY_InitializeAll{part}")()


def ptx_of(module: str, cc: Cc) -> str:
    """The module's PTX for an architecture.

    Raises LlvmError for what is no module, UnknownTarget for an architecture that LLVM does not
    know."""
    _ready()
    newer = cc == (7, 5) and NEEDS_PTX_65 in module
    machine = Machine(TRIPLE, architecture(cc), "+ptx65" if newer else "")
    # without it LLVM takes addresses of 64-bit integers to be multiples of 4 alone
    layout = f'target datalayout = "{machine.data_layout()}"\n'
    text = compile_assembly(layout + module, machine)
    version = _VERSION.search(text)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise UnknownTarget(f"LLVM {llvm_version()} does not know {architecture(cc)}")
    return text


def llvm_version() -> str:
    """The version of LLVM, "22.1.0"."""
    number = library().LLVMPY_GetVersionInfo()
    return ".".join(str(part) for part in number.to_bytes(4, "big").lstrip(b"\0"))
