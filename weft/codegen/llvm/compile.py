"""LLVM IR text to object code, on any number of threads at once.

llvmlite takes one lock around every call of LLVM, so two threads compile no faster than one. LLVM
itself asks for less: threads must not share a context, what lives in it, or a target machine. The
functions here keep to that, and call llvmlite's library through a handle of their own, without the
lock (measured in docs/performance.md). ctypes releases the GIL meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from weft.codegen.llvm.target import binding, create_machine

#: Bumped whenever the passes below change.
PIPELINE_VERSION = 1
# Loops: LLVM's default pipeline at O2 without the SLP vectoriser. llvmlite offers the loop
# vectoriser in no other form.
_SPEED_LEVEL = 2
# Control code, which has no loops worth the effort: a tenth of the time, code of the same size.
_CONTROL_PASSES = (
    *("AlwaysInliner", "SROA", "InstCombine", "SimplifyCFG"),
    *("NewGVN", "InstCombine", "SimplifyCFG", "ADCE"),
)

_STRING = POINTER(c_char_p)
# name after "LLVMPY_" -> result, arguments; as declared in llvmlite/binding/*.py
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ContextCreate": (c_void_p, []),
    "ContextDispose": (None, [c_void_p]),
    "ParseAssembly": (c_void_p, [c_void_p, c_char_p, _STRING]),
    "VerifyModule": (c_bool, [c_void_p, _STRING]),
    "DisposeModule": (None, [c_void_p]),
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
    **{f"module_Add{name}Pass": (None, [c_void_p]) for name in _CONTROL_PASSES},
    "RunNewModulePassManager": (None, [c_void_p, c_void_p, c_void_p]),
    "DisposeNewModulePassManger": (None, [c_void_p]),
    "TargetMachineEmitToMemory": (c_void_p, [c_void_p, c_void_p, c_int, _STRING]),
    "GetBufferStart": (c_void_p, [c_void_p]),
    "GetBufferSize": (c_size_t, [c_void_p]),
    "DisposeMemoryBuffer": (None, [c_void_p]),
}


class LlvmError(RuntimeError):
    """LLVM refused the module: what it said."""


@dataclass(frozen=True)
class ObjectCode:
    """Relocatable machine code of one module, and its optimised LLVM IR as bitcode."""

    code: bytes
    bitcode: bytes


@cache
def _library() -> Any:
    handle = ctypes.CDLL(binding().ffi.lib._name)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, f"LLVMPY_{name}")
        function.restype, function.argtypes = result, arguments
    return handle


# Target machines that no thread is using; list.pop and append are atomic.
_idle_machines: list[Any] = []


def compile_text(text: str, loops: bool = True) -> ObjectCode:
    """Optimise the module `text` and compile it for this machine. Raises LlvmError.

    `loops`: whether it holds loops over arrays, to be vectorised.
    """
    library = _library()
    try:
        machine = _idle_machines.pop()
    except IndexError:
        machine = create_machine()
    try:
        with _module(library, text) as module:
            pointer = ctypes.cast(machine._ptr, c_void_p)
            _optimise(library, module, pointer, loops)
            return ObjectCode(_emit(library, module, pointer), _bitcode(library, module))
    finally:
        _idle_machines.append(machine)


@contextmanager
def _module(library: Any, text: str) -> Iterator[c_void_p]:
    context = c_void_p(library.LLVMPY_ContextCreate())
    module, message = c_void_p(), c_char_p()
    try:
        encoded = text.encode()
        module.value = library.LLVMPY_ParseAssembly(context, encoded, ctypes.byref(message))
        if message.value is not None:
            raise LlvmError(_taken(library, message))
        if library.LLVMPY_VerifyModule(module, ctypes.byref(message)):
            raise LlvmError(_taken(library, message))
        yield module
    finally:
        if module.value is not None:
            library.LLVMPY_DisposeModule(module)
        library.LLVMPY_ContextDispose(context)


def _optimise(library: Any, module: c_void_p, machine: c_void_p, loops: bool) -> None:
    # A pass builder keeps callbacks of its last run: one run each.
    options = c_void_p(library.LLVMPY_CreatePipelineTuningOptions())
    library.LLVMPY_PTOSetLoopVectorization(options, True)
    library.LLVMPY_PTOSetSLPVectorization(options, False)
    builder = c_void_p(library.LLVMPY_CreatePassBuilder(machine, options))
    if loops:
        manager = c_void_p(library.LLVMPY_buildPerModuleDefaultPipeline(builder, _SPEED_LEVEL))
    else:
        manager = c_void_p(library.LLVMPY_CreateNewModulePassManager())
        for name in _CONTROL_PASSES:
            getattr(library, f"LLVMPY_module_Add{name}Pass")(manager)
    try:
        library.LLVMPY_RunNewModulePassManager(manager, module, builder)
    finally:
        library.LLVMPY_DisposeNewModulePassManger(manager)
        library.LLVMPY_DisposePassBuilder(builder)
        library.LLVMPY_DisposePipelineTuningOptions(options)


def _emit(library: Any, module: c_void_p, machine: c_void_p) -> bytes:
    message = c_char_p()
    buffer = c_void_p(
        library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, ctypes.byref(message))
    )
    if buffer.value is None:
        raise LlvmError(_taken(library, message))
    try:
        size = library.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


def _bitcode(library: Any, module: c_void_p) -> bytes:
    text, size = c_char_p(), c_size_t()
    library.LLVMPY_WriteBitcodeToString(module, ctypes.byref(text), ctypes.byref(size))
    try:
        return ctypes.string_at(text, size.value)
    finally:
        library.LLVMPY_DisposeString(text)


def _taken(library: Any, message: c_char_p) -> str:
    text = (message.value or b"").decode(errors="replace").strip()
    library.LLVMPY_DisposeString(message)
    return text


def llvm_text(bitcode: bytes) -> str:
    """The module as LLVM IR."""
    llvm = binding()
    return str(llvm.parse_bitcode(bitcode, llvm.create_context()))


def assembly_text(bitcode: bytes) -> str:
    """The module as assembly: code generation is deterministic, so this is the code that runs."""
    llvm = binding()
    module = llvm.parse_bitcode(bitcode, llvm.create_context())
    text: str = create_machine().emit_assembly(module)
    return text
