"""LLVM IR text to object code, on any number of threads at once.

llvmlite takes one lock around every call of LLVM, so two threads compile no faster than one. LLVM
itself asks for less: threads must not share a context, what lives in it, or a target machine. The
functions here keep to that, and call llvmlite's library without the lock (`library.py`; measured in
docs/decisions/0003-llvmlite-alone.md). ctypes releases the GIL meanwhile.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from typing import Any

from weft.codegen.llvm.target import (
    CONTROL_PASSES,
    LATE_PASSES,
    LlvmError,
    Machine,
    binding,
    create_machine,
    isa,
    library,
    new_machine,
    taken,
)
from weft.ir.dataclass import dataclass
from weft.ir.process import ForkLock

#: Bumped whenever the passes below change.
PIPELINE_VERSION = 5
# Loops: LLVM's default pipeline at O2 without the SLP vectoriser. llvmlite offers the loop
# vectoriser in no other form.
_SPEED_LEVEL = 2
# What code is compiled to: LLVMCodeGenFileType.
_ASSEMBLY, _OBJECT = 0, 1


@dataclass(frozen=True)
class ObjectCode:
    """Relocatable machine code of one module, and its optimised LLVM IR as bitcode."""

    code: bytes
    bitcode: bytes


#: Functions of `vector/avx512.py`, scalar and in vectors so wide: inlined after the loop
#: vectoriser.
LATE_PREFIX, LATE_WIDTHS = "weft.lane.", (4, 8, 16)
LATE_FUNCTIONS = ("lookup", "scale", "exponent", "mantissa")
_INTERNAL_LINKAGE = 8

# LLVM's scheduler, where it counts registers, does interleaved chains one after the other, and they
# wait for their results; a few spills cost less (docs/decisions/0012-interleaved-loops.md). The
# option is the whole process's, Numba's too: it is off only while kernels are being compiled.
_scheduling = ForkLock()
_compiling = 0


@contextmanager
def _own_scheduling() -> Iterator[None]:
    global _compiling
    with _scheduling:
        _compiling += 1
        if _compiling == 1:
            library().LLVMPY_SetCommandLine(b"weft", b"-misched-regpressure=false")
    try:
        yield
    finally:
        with _scheduling:
            _compiling -= 1
            if _compiling == 0:
                library().LLVMPY_SetCommandLine(b"weft", b"-misched-regpressure=true")


# Target machines that no thread is using, by instruction set; list.pop and append are atomic.
_idle_machines: defaultdict[str, list[Machine]] = defaultdict(list)


def compile_text(text: str, loops: bool = True) -> ObjectCode:
    """Optimise the module `text` and compile it for the instruction set in use. Raises LlvmError.

    `loops`: whether it holds loops over arrays, to be vectorised.
    """
    functions = library()
    idle = _idle_machines[isa()]
    try:
        machine = idle.pop()
    except IndexError:
        machine = new_machine()
    try:
        with _module(functions, text) as module, _own_scheduling():
            late = LATE_PREFIX in text
            if late and not loops:
                _make_inlinable(functions, module)
            _optimise(functions, module, machine.pointer, None if loops else CONTROL_PASSES)
            if late and loops:
                _make_inlinable(functions, module)
                _optimise(functions, module, machine.pointer, LATE_PASSES)
            code = _emit(functions, module, machine.pointer)
            return ObjectCode(code, _bitcode(functions, module))
    finally:
        idle.append(machine)


def compile_assembly(text: str, machine: Machine) -> str:
    """Optimise the module `text` for a machine, which may be another than this one, and compile it
    to assembly. Raises LlvmError."""
    functions = library()
    with _module(functions, text) as module:
        _optimise(functions, module, machine.pointer, None)
        return _emit(functions, module, machine.pointer, _ASSEMBLY).decode()


def release_memory() -> None:
    """Give back what compiling needed and nobody uses now, after a number of modules.

    A target machine that has compiled holds a megabyte. What LLVM has freed lies in the arenas of
    threads that have ended; the GNU C library gives it back to the system when asked, in a
    millisecond or less (docs/decisions/0030-process-memory.md).
    """
    _idle_machines.clear()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    """The C library's function, None if it has none."""
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes, function.restype = [c_size_t], c_int
    return function


@contextmanager
def _module(functions: Any, text: str) -> Iterator[c_void_p]:
    context = c_void_p(functions.LLVMPY_ContextCreate())
    module, message = c_void_p(), c_char_p()
    try:
        encoded = text.encode()
        module.value = functions.LLVMPY_ParseAssembly(context, encoded, ctypes.byref(message))
        if message.value is not None:
            raise LlvmError(taken(message))
        if functions.LLVMPY_VerifyModule(module, ctypes.byref(message)):
            raise LlvmError(taken(message))
        yield module
    finally:
        if module.value is not None:
            functions.LLVMPY_DisposeModule(module)
        functions.LLVMPY_ContextDispose(context)


def _make_inlinable(functions: Any, module: c_void_p) -> None:
    """The functions of `vector/avx512.py`, weak so far, become internal and always inlined."""
    always = functions.LLVMPY_GetEnumAttributeKindForName(b"alwaysinline", len("alwaysinline"))
    for name in LATE_FUNCTIONS:
        for form in ("", *(f".{width}" for width in LATE_WIDTHS)):
            function = functions.LLVMPY_GetNamedFunction(
                module, f"{LATE_PREFIX}{name}{form}".encode()
            )
            if function:
                functions.LLVMPY_SetLinkage(c_void_p(function), _INTERNAL_LINKAGE)
                functions.LLVMPY_AddFunctionAttr(c_void_p(function), always)


def _optimise(
    functions: Any, module: c_void_p, machine: c_void_p, passes: Sequence[str] | None
) -> None:
    """Run these passes; None: LLVM's own list."""
    # A pass builder keeps callbacks of its last run: one run each.
    options = c_void_p(functions.LLVMPY_CreatePipelineTuningOptions())
    functions.LLVMPY_PTOSetLoopVectorization(options, True)
    functions.LLVMPY_PTOSetSLPVectorization(options, False)
    builder = c_void_p(functions.LLVMPY_CreatePassBuilder(machine, options))
    if passes is None:
        manager = c_void_p(functions.LLVMPY_buildPerModuleDefaultPipeline(builder, _SPEED_LEVEL))
    else:
        manager = c_void_p(functions.LLVMPY_CreateNewModulePassManager())
        for name in passes:
            getattr(functions, f"LLVMPY_module_Add{name}Pass")(manager)
    try:
        functions.LLVMPY_RunNewModulePassManager(manager, module, builder)
    finally:
        functions.LLVMPY_DisposeNewModulePassManger(manager)
        functions.LLVMPY_DisposePassBuilder(builder)
        functions.LLVMPY_DisposePipelineTuningOptions(options)


def _emit(functions: Any, module: c_void_p, machine: c_void_p, form: int = _OBJECT) -> bytes:
    message = c_char_p()
    buffer = c_void_p(
        functions.LLVMPY_TargetMachineEmitToMemory(machine, module, form, ctypes.byref(message))
    )
    if buffer.value is None:
        raise LlvmError(taken(message))
    try:
        size = functions.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(functions.LLVMPY_GetBufferStart(buffer), size)
    finally:
        functions.LLVMPY_DisposeMemoryBuffer(buffer)


def _bitcode(functions: Any, module: c_void_p) -> bytes:
    text, size = c_char_p(), c_size_t()
    functions.LLVMPY_WriteBitcodeToString(module, ctypes.byref(text), ctypes.byref(size))
    try:
        return ctypes.string_at(text, size.value)
    finally:
        functions.LLVMPY_DisposeString(text)


def llvm_text(bitcode: bytes) -> str:
    """The module as LLVM IR."""
    llvm = binding()
    return str(llvm.parse_bitcode(bitcode, llvm.create_context()))


def assembly_text(bitcode: bytes) -> str:
    """The module as assembly: code generation is deterministic, so this is the code that runs."""
    llvm = binding()
    module = llvm.parse_bitcode(bitcode, llvm.create_context())
    with _own_scheduling():
        text: str = create_machine().emit_assembly(module)
    return text
