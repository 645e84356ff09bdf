"""LLVM as llvmlite ships it, through a handle of its own.

`llvmlite.binding` takes one lock around every call, and importing it costs 10 ms (mostly Python
modules that compiling has no use for) beside the 4 that the library itself takes to load.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

#: Control code, which has no loops worth the effort: a tenth of the time, code of the same size.
CONTROL_PASSES = ("AlwaysInliner", "SROA", "InstCombine", "SimplifyCFG", "ADCE")
#: What inlines functions that the loop vectoriser had to see as calls.
LATE_PASSES = ("AlwaysInliner",)

_STRING = POINTER(c_char_p)
# name after "LLVMPY_" -> result, arguments; as declared in llvmlite/binding/*.py
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "InitializeNativeTarget": (None, []),
    "InitializeNativeAsmPrinter": (None, []),
    **{
        f"InitializeAll{part}": (None, [])
        for part in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters")
    },
    "GetVersionInfo": (c_uint, []),
    "SetCommandLine": (None, [c_char_p, c_char_p]),
    "GetProcessTriple": (None, [_STRING]),
    "GetHostCPUName": (None, [_STRING]),
    "GetHostCPUFeatures": (c_int, [_STRING]),
    "GetTargetFromTriple": (c_void_p, [c_char_p, _STRING]),
    "CreateTargetMachine": (
        c_void_p,
        [c_void_p, *[c_char_p] * 3, c_int, *[c_char_p] * 2, c_int, c_int, c_char_p],
    ),
    "DisposeTargetMachine": (None, [c_void_p]),
    "CreateTargetMachineData": (c_void_p, [c_void_p]),
    "CopyStringRepOfTargetData": (None, [c_void_p, _STRING]),
    "DisposeTargetData": (None, [c_void_p]),
    "ContextCreate": (c_void_p, []),
    "ContextDispose": (None, [c_void_p]),
    "ParseAssembly": (c_void_p, [c_void_p, c_char_p, _STRING]),
    "VerifyModule": (c_bool, [c_void_p, _STRING]),
    "DisposeModule": (None, [c_void_p]),
    "GetNamedFunction": (c_void_p, [c_void_p, c_char_p]),
    "SetLinkage": (None, [c_void_p, c_int]),
    "GetEnumAttributeKindForName": (c_uint, [c_char_p, c_size_t]),
    "AddFunctionAttr": (None, [c_void_p, c_uint]),
    "WriteBitcodeToString": (None, [c_void_p, _STRING, POINTER(c_size_t)]),
    "DisposeString": (None, [c_void_p]),
    "CreatePipelineTuningOptions": (c_void_p, []),
    "PTOSetLoopVectorization": (None, [c_void_p, c_bool]),
    "PTOSetSLPVectorization": (None, [c_void_p, c_bool]),
    "DisposePipelineTuningOptions": (None, [c_void_p]),
    "CreatePassBuilder": (c_void_p, [c_void_p, c_void_p]),
    "DisposePassBuilder": (None, [c_void_p]),
    "buildPerModuleDefaultPipeline": (c_void_p, [c_void_p, c_int]),
    "CreateNewModulePassManager": (c_void_p, []),
    **{f"module_Add{name}Pass": (None, [c_void_p]) for name in {*CONTROL_PASSES, *LATE_PASSES}},
    "RunNewModulePassManager": (None, [c_void_p, c_void_p, c_void_p]),
    "DisposeNewModulePassManger": (None, [c_void_p]),
    "TargetMachineEmitToMemory": (c_void_p, [c_void_p, c_void_p, c_int, _STRING]),
    "GetBufferStart": (c_void_p, [c_void_p]),
    "GetBufferSize": (c_size_t, [c_void_p]),
    "DisposeMemoryBuffer": (None, [c_void_p]),
}


class LlvmError(RuntimeError):
    """LLVM refused something: what it said."""


@cache
def library() -> Any:
    """The library's functions, `LLVMPY_...`, ready to compile for this machine. Any thread may call
    them; what LLVM itself asks of threads holds."""
    file = library_file()
    # where llvmlite keeps it elsewhere, llvmlite knows
    name = file or importlib.import_module("llvmlite.binding").ffi.lib._name
    handle = ctypes.CDLL(str(name))
    for function_name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, f"LLVMPY_{function_name}")
        function.restype, function.argtypes = result, arguments
    handle.LLVMPY_InitializeNativeTarget()
    handle.LLVMPY_InitializeNativeAsmPrinter()
    return handle


def is_loaded() -> bool:
    """Whether LLVM is in the process, as far as weft or llvmlite's own modules have loaded it."""
    return library.cache_info().currsize > 0 or "llvmlite.binding" in sys.modules


def library_file() -> Path | None:
    """The file of llvmlite's library, where LLVM is."""
    found = Path(importlib.import_module("llvmlite").__file__ or "")
    file = found.parent / "binding" / "libllvmlite.so"
    return file if file.is_file() else None


def text_of(write: Callable[[Any], object]) -> str:
    """The text that a function of the library writes to the `char **` it is given."""
    text = c_char_p()
    write(ctypes.byref(text))
    return taken(text)


def taken(text: c_char_p) -> str:
    """A string of the library, which is freed."""
    out = (text.value or b"").decode(errors="replace").strip()
    library().LLVMPY_DisposeString(text)
    return out


class Machine:
    """An LLVM TargetMachine; one thread at a time may use it."""

    __slots__ = ("_dispose", "pointer")

    def __init__(self, triple: str, cpu: str, features: str) -> None:
        functions, message, target = library(), c_char_p(), c_void_p()
        target.value = functions.LLVMPY_GetTargetFromTriple(triple.encode(), ctypes.byref(message))
        if target.value is None:
            raise LlvmError(taken(message))
        names = triple.encode(), cpu.encode(), features.encode()
        self.pointer = c_void_p(
            functions.LLVMPY_CreateTargetMachine(target, *names, 2, b"pic", b"small", 0, 0, b"")
        )
        self._dispose = functions.LLVMPY_DisposeTargetMachine
        if self.pointer.value is None:
            raise LlvmError(f"there is no target machine for {triple} {cpu}")

    def data_layout(self) -> str:
        """How the machine lays out data, as LLVM modules say it."""
        functions = library()
        data = c_void_p(functions.LLVMPY_CreateTargetMachineData(self.pointer))
        try:
            return text_of(lambda out: functions.LLVMPY_CopyStringRepOfTargetData(data, out))
        finally:
            functions.LLVMPY_DisposeTargetData(data)

    def __del__(self) -> None:
        if hasattr(self, "_dispose"):
            self._dispose(self.pointer)
