"""Target machine of LLVM: the processor and instruction set that kernels are compiled for.

The host's processor, as LLVM names it, or a level of x86-64 that the host has (`WEFT_TARGET`).

LLVM is called through a handle of its own (`library`): `llvmlite.binding` takes one lock around
every call, and importing it costs 10 ms (mostly Python modules that compiling has no use for)
beside the 4 that the library itself takes to load."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache, update_wrapper
from itertools import takewhile
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from weft.ir.cost.rates import NARROWER
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError

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
    """An error of LLVM, in its words."""


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


#: The environment variable that chooses the instruction set, and its value for the host's own.
VARIABLE, NATIVE = "WEFT_TARGET", "native"
#: The levels of x86-64 (its ABI supplement, "Micro-Architecture Levels"), smallest first; the flags
#: that each adds, as Linux names them.
LEVELS = {
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "ssse3", "sse4_1", "sse4_2"),
    "x86-64-v3": ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
_BASE_FLAGS = ("cmov", "cx8", "fpu", "fxsr", "mmx", "sse", "sse2")
_CPUINFO = Path("/proc/cpuinfo")
P = ParamSpec("P")
R = TypeVar("R")
# Its lines that say what machine code a processor runs, and runs best.
_CPU_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags")


@dataclass(frozen=True)
class Target:
    """LLVM's names of a processor; `llvm` is the version of LLVM, of llvmlite and of Numba."""

    triple: str
    cpu: str
    features: str
    data_layout: str
    versions: str

    def describe(self) -> str:
        """One line that differs whenever machine code may."""
        return f"{self.triple} {self.cpu} {self.features} {self.versions}"


@cache
def binding() -> Any:
    """`llvmlite.binding`, ready to compile for this machine: for what compiling does not need
    (`library.py`)."""
    llvm = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


_chosen: ContextVar[str | None] = ContextVar("weft_isa", default=None)


def isa() -> str:
    """The instruction set that kernels are compiled for: "native", or a level of x86-64. It is what
    `using` says, else `WEFT_TARGET`."""
    return _chosen.get() or default_isa()


@contextmanager
def using(name: str) -> Iterator[None]:
    """Kernels that are asked for within are compiled for this instruction set (`checked_isa`)."""
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


@cache
def default_isa() -> str:
    """The value of `WEFT_TARGET`, read once; "native" if there is none. InvalidArgumentError as
    `checked_isa`."""
    return checked_isa(os.environ.get(VARIABLE) or NATIVE, VARIABLE)


def checked_isa(asked: str, what: str) -> str:
    """`asked`. InvalidArgumentError, about `what`, if that is no instruction set or one that this
    machine does not have."""
    if asked == NATIVE:
        return NATIVE
    if asked not in LEVELS:
        raise InvalidArgumentError(
            f"{what}={asked!r} is no instruction set",
            hint=f"it is {NATIVE!r} (the default) or one of {', '.join(LEVELS)}",
        )
    held = host_isas()
    if asked not in held:
        raise InvalidArgumentError(
            f"{what}={asked!r}: this machine ({platform.machine()}) does not have it",
            hint=f"it runs code for {', '.join((NATIVE, *held))}",
        )
    return asked


class per_isa(Generic[P, R]):
    """`functools.cache` for what depends on the instruction set, too."""

    def __init__(self, function: Callable[P, R]) -> None:
        update_wrapper(self, function)
        self._held: dict[Any, R] = {}
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (isa(), *args, *kwargs.items())
        try:
            return self._held[key]
        except KeyError:
            return self._held.setdefault(key, self.__wrapped__(*args, **kwargs))

    def cache_clear(self) -> None:
        """Forget all that is held."""
        self._held.clear()


@cache
def host_isas() -> tuple[str, ...]:
    """The levels of x86-64 whose code this machine runs, smallest first."""
    held = []
    for level in LEVELS:
        if not all(map(_host_has, LEVELS[level])):
            break
        held.append(level)
    return tuple(held)


@cache
def _flags_of(level: str) -> frozenset[str]:
    """All flags of a level, those of the smaller ones with it."""
    names = list(LEVELS)
    below = names[: names.index(level) + 1]
    return frozenset(_BASE_FLAGS).union(*(LEVELS[name] for name in below))


def isa_line() -> str:
    """The instruction set in use, for people: "x86-64-v3", "native (x86-64-v4, znver5)"."""
    if isa() != NATIVE:
        return isa()
    held = host_isas()
    return f"{NATIVE} ({held[-1] if held else platform.machine()}, {host().cpu})"


@per_isa
def host() -> Target:
    """What kernels are compiled for. Loads LLVM, so it waits for the first kernel."""
    functions = library()
    triple = text_of(functions.LLVMPY_GetProcessTriple)
    cpu, features = isa(), list[str]()
    if cpu == NATIVE:
        cpu = text_of(functions.LLVMPY_GetHostCPUName)
        features = text_of(functions.LLVMPY_GetHostCPUFeatures).split(",")
        # AMD's gathers are slower than loads one by one: half the speed of searchsorted on Zen 4
        features += ["+prefer-no-gather"] * cpu.startswith("znver")
    # for Intel's processors and x86-64-v4 LLVM's loop vectoriser would take half of a register
    features += ["-prefer-256-bit"] * has_feature("avx512f")
    sorted_features = ",".join(sorted(features, key=lambda f: f[1:]))
    number = functions.LLVMPY_GetVersionInfo()
    version = ".".join(str(part) for part in number.to_bytes(4, "big").lstrip(b"\0"))
    # not importlib.metadata, which reads files for some milliseconds
    llvmlite = importlib.import_module("llvmlite").__version__
    layout = Machine(triple, cpu, sorted_features).data_layout()
    versions = f"llvm-{version} llvmlite-{llvmlite}"
    return Target(triple, cpu, sorted_features, layout, versions)


def new_machine() -> Machine:
    """A new target machine for what kernels are compiled for."""
    target = host()
    return Machine(target.triple, target.cpu, target.features)


def create_machine() -> Any:
    """As `new_machine`, an object of llvmlite's."""
    target = host()
    return (
        binding()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
        )
    )


def has_feature(name: str) -> bool:
    """Whether kernels may use the instructions that LLVM and Linux call `name` ("avx512f", say)."""
    level = isa()
    return _host_has(name) if level == NATIVE else name in _flags_of(level)


def _host_has(name: str) -> bool:
    processor = _linux_processor()
    if processor is None:
        return f"+{_LLVM_NAMES.get(name, name)}" in _host_features()
    return name in processor["flags"].split()


# Where LLVM's name differs from Linux's.
_LLVM_NAMES = {
    "abm": "lzcnt", "avx512_vnni": "avx512vnni", "bmi1": "bmi", "lahf_lm": "sahf",
    "sse4_1": "sse4.1", "sse4_2": "sse4.2",
}  # fmt: skip


@cache
def _host_features() -> frozenset[str]:
    return frozenset(text_of(library().LLVMPY_GetHostCPUFeatures).split(","))


@per_isa
def target_vector_bits() -> int:
    """Width of the widest vector registers of this machine: 512, 256 or 128."""
    if all(map(has_feature, ("avx512f", "avx512vl", "avx512dq"))):
        return 512
    return 256 if has_feature("avx2") and has_feature("fma") else 128


def narrower() -> float:
    """The factor on prices of vector arithmetic (`weft.ir.cost.rates`) for the target."""
    return NARROWER[target_vector_bits()]


@per_isa
def multiplies_and_adds() -> bool:
    """Whether x * y + z, rounded once, is an instruction; elsewhere it is a function's work."""
    return has_feature("fma") or platform.machine().lower() in ("aarch64", "arm64")


@per_isa
def machine_line() -> str:
    """One line that differs whenever machine code may, as `Target.describe()`; on Linux x86-64
    without loading LLVM, which a process whose kernels all come from disk has no use for."""
    file, processor = library_file(), _linux_processor()
    if file is None or processor is None:
        return f"{isa()} {host().describe()}"
    digest = hashlib.sha256("\n".join(processor[name] for name in _CPU_FIELDS).encode()).hexdigest()
    llvmlite = importlib.import_module("llvmlite").__version__
    status = file.stat()  # the library itself: not every build of one llvmlite has the same LLVM
    return (
        f"{isa()} {processor.get('model name', 'x86-64')} {digest[:32]} llvmlite-{llvmlite} "
        f"llvm-library {status.st_size} {status.st_mtime_ns}"
    )


@cache
def _linux_processor() -> dict[str, str] | None:
    """The first processor of /proc/cpuinfo, by field; None if this is not Linux on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        with _CPUINFO.open(encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return None
    held = {name.strip(): value.strip() for name, _, value in lines}
    return held if all(name in held for name in _CPU_FIELDS) else None
