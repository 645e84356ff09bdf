"""Compiler of kernels: LLVM makes PTX of kernel source, by its NVPTX target and NVIDIA's libdevice,
nvJitLink a cubin. No GPU, no driver. Of a kernel whose engine is "numba", numba-cuda makes the PTX.

Both are loaded when the first kernel is compiled, not for cubins that a cache has.

libdevice is the LLVM of mathematical functions, of which a module takes what it calls. The file is
read once in a process, and its functions are kept as text: linking the whole file to each kernel
would take longer than compiling most kernels does.

PTX carries the version of its language. LLVM writes the first one that has the architecture, so
whatever knows the architecture reads it; tensor cores of sm_75 need a newer one, of CUDA 10.2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from weft.codegen.cuda.cubins.cache import (
    Cc,
    Cubin,
    architecture,
    load_cubin,
    read_report,
    store_cubin,
    targets,
)
from weft.codegen.cuda.cubins.llvm_functions import Module, function_text, type_of
from weft.codegen.cuda.cubins.llvm_instructions import CONTRACT, NEEDS_PTX_65, takes_shuffles
from weft.codegen.cuda.cubins.toolchain import Toolchain, UnknownTarget, Version, toolchain
from weft.codegen.cuda.numba_cuda.compile import numba_ptx
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.typecheck import EmulationError, read
from weft.codegen.llvm.compile import compile_assembly, llvm_text
from weft.codegen.llvm.jit import CodegenError
from weft.codegen.llvm.target import LlvmError, Machine, library
from weft.ir.errors import ToolchainError, UnsupportedError, WeftError
from weft.ir.process import ForkLock

_HEAD = re.compile(r"^(?:define|declare) .*?@([\w.$]+)\(", re.MULTILINE)
_GLOBAL = re.compile(r"^(@[\w.$]+) = (.*)$", re.MULTILINE)
_QUESTION = re.compile(r'c"(\w+)\\00"')
_PARTS = re.compile(r"^(?=define |declare )", re.MULTILINE)
_NAME = re.compile(r"@([\w.$]+)")
_STRUCT = re.compile(r"^%[\w.]+ = type .*$", re.MULTILINE)
# Attribute groups and debug locations of calls; `!llvm.loop` refers to metadata, too.
_LOOSE = re.compile(r" #\d+|, !(?:srcloc|llvm\.loop) !\d+")
_LINKAGE = re.compile(r"^define (?:(?:internal|linkonce_odr|weak|hidden|dso_local) )*")
_ATTRIBUTES = "alwaysinline nounwind"
# What libdevice asks of who compiles it: flush small numbers to 0, round square roots correctly,
# the architecture.
_REFLECT = re.compile(r"call i32 @__nvvm_reflect\(ptr (@[\w.]+)\)")
# As nvcc compiles it: products and sums may become one fma.
_SUMS = re.compile(r"= (fadd|fsub|fmul) (?=float|double)")
_ANSWERS = {"__CUDA_FTZ": "0", "__CUDA_PREC_SQRT": "1"}


class Libdevice:
    """The definitions of a module's text; `structs`: its types."""

    def __init__(self, text: str) -> None:
        self.structs = "\n".join(_STRUCT.findall(text))
        self._texts: dict[str, str] = {}
        self._questions: dict[str, str] = {}
        self._definitions: dict[str, tuple[str, tuple[str, ...]]] = {}
        head, *parts = _PARTS.split(text)
        for name, value in _GLOBAL.findall(head):
            asked = _QUESTION.search(value)
            if asked is not None:
                self._questions[name] = asked[1]
            else:
                self._definitions[name[1:]] = f"{name} = {value}", ()
        for part in parts:
            named = _HEAD.match(part)
            assert named is not None
            self._texts[named[1]] = part

    def taken(self, names: Iterable[str], cc: tuple[int, int]) -> dict[str, str]:
        """These functions and all that they refer to, by name, for an architecture. KeyError for
        a function that is not there."""
        open_ = list(names)
        found: dict[str, str] = {}
        while open_:
            name = open_.pop()
            if name not in found:
                found[name], more = self._definition(name)
                open_ += more
        known = _ANSWERS | {"__CUDA_ARCH": str(100 * cc[0] + 10 * cc[1])}
        answers = {name: known[question] for name, question in self._questions.items()}
        for name, text in found.items():
            found[name] = _REFLECT.sub(lambda asked: f"add i32 {answers[asked[1]]}, 0", text)
        return found

    def _definition(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The text of a function or a variable, and the names that it refers to."""
        known = self._definitions.get(name)
        if known is None:
            text = _definition(self._texts[name])
            names = (n for n in _NAME.findall(_REFLECT.sub("", text)) if n != name)
            known = self._definitions[name] = text, tuple(dict.fromkeys(names))
        return known


@cache
def read_libdevice(path: Path) -> Libdevice:
    """The functions of a libdevice file."""
    return Libdevice(llvm_text(path.read_bytes()))


def _definition(part: str) -> str:
    """The text of the function that `part` begins with."""
    if not part.startswith("define"):
        return _LOOSE.sub("", part[: part.index("\n")])
    body = _LOOSE.sub("", part[: part.index("\n}\n") + 3])
    body = _SUMS.sub(rf"= \1 {CONTRACT} ", body)
    first, _, rest = _LINKAGE.sub("define internal ", body).partition("{\n")
    return f"{first}{_ATTRIBUTES} {{\n{rest}"


TRIPLE = "nvptx64-nvidia-cuda"
#: What the names of functions of libdevice begin with.
LIBDEVICE = "__nv_"


def module_text(
    kernel: CudaKernel, symbol: str, cc: tuple[int, int], maths: Path | None = None
) -> str:
    """The module of a kernel, which is named `symbol` there; maths: the libdevice file whose
    functions are put in (None: they are declared). EmulationError where the source breaks a rule of
    the language."""
    program, module = read(kernel), Module(cc)
    functions = []
    for function in program.functions:
        if function.is_kernel:
            bounds = f' "nvvm.maxntid"="{kernel.threads}"'
            # what shuffles bring takes registers, too
            if kernel.blocks and not takes_shuffles(kernel.source, cc):
                bounds += f' "nvvm.minctasm"="{kernel.blocks}"'
            head, end = f"define ptx_kernel void @{symbol}", f" convergent nounwind{bounds}"
        else:
            head = f"define internal {type_of(function.result)} @f{function.number}"
            end = " alwaysinline nounwind"
        functions.append(function_text(module, function, head, end))
    called = [name for name in module.declarations if name.startswith(LIBDEVICE)]
    parts = [f'target triple = "{TRIPLE}"']
    if maths is not None and called:
        known = read_libdevice(maths)
        parts.append(known.structs)
        module.declarations |= known.taken(called, cc)
    parts += [*module.arrays, *functions, *module.declarations.values()]
    text = "\n".join(parts) + "\n"
    return text if kernel.contract else text.replace(f" {CONTRACT} ", " ")


_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
#: Of PTX with sm_75 (PTX ISA manual, "Release Notes"). LLVM takes an older one for what it does not
#: know.
_OLDEST = (6, 3)


_targets_lock = ForkLock()


def _ready() -> None:
    """Makes the target known; LLVM's list of targets is no place for two threads at once."""
    with _targets_lock:
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


#: The oldest architecture: what CUDA 13 compiles for begins with it.
OLDEST: Cc = (7, 5)
#: Cubins that this process keeps; the least recently compiled go first.
MOST_KEPT = 1024
_kept: dict[tuple[str, Cc], Cubin] = {}
_unknown_targets: dict[Cc, str] = {}  # and what was said of each
_lock = ForkLock()


def compile_kernel(kernel: CudaKernel, cc: Cc, driver: Version | None = None) -> Cubin:
    """The kernel's machine code for compute capability `cc`, (9, 0) for example.

    From this process, a folder of WEFT_CUBINS, the cache on disk, or compiled. Raises
    UnsupportedError for an architecture before sm_75, ToolchainError if there is no toolchain or
    its parts do not fit each other or the driver that shall load it (`driver`: its release of CUDA,
    (13, 0)), CodegenError, with the source, for a kernel that does not compile."""
    check_oldest(cc)
    with _lock:  # two threads may want one kernel
        cubin = _found(kernel, cc)
        if cubin is None:
            toolchain().check(driver)
            check_known(cc)
            cubin = assemble(kernel, emit_ptx(kernel, cc), cc)
            store_cubin(kernel, cc, cubin)
            _keep(kernel, cc, cubin)
        return cubin


def check_oldest(cc: Cc) -> None:
    """UnsupportedError for an architecture before sm_75."""
    if cc < OLDEST:
        raise UnsupportedError(
            f"CUDA kernels are not compiled for {architecture(cc)}",
            hint=f"the oldest architecture is {architecture(OLDEST)}",
        )


def check_known(cc: Cc) -> None:
    """UnknownTarget for an architecture that nvJitLink does not know, ToolchainError where it is
    not installed. It is asked before LLVM, which writes to stderr of what it does not know."""
    nvjitlink, handle = _linker(cc)
    nvjitlink.destroy(handle)


def compile_for_gpu(kernel: CudaKernel, cc: Cc, driver: Version | None = None) -> Cubin:
    """What a GPU of compute capability `cc` is to run: as `compile_kernel`, for the first of
    `targets(cc)` of which there is machine code, or else that the toolchain knows."""
    cubin = known_cubin(kernel, cc)
    if cubin is not None:
        return cubin
    for target in targets(cc):
        if target not in _unknown_targets:
            try:
                return compile_kernel(kernel, target, driver)
            except UnknownTarget as unknown:
                _unknown_targets[target] = unknown.what
    raise UnknownTarget(_unknown_targets[cc])


def known_cubin(kernel: CudaKernel, cc: Cc) -> Cubin | None:
    """As `compile_for_gpu`, but None for what would have to be compiled."""
    for target in targets(cc):
        with suppress(ToolchainError), _lock:  # without one, no cache is asked, but a folder is
            cubin = _found(kernel, target)
            if cubin is not None:
                return cubin
    return None


def _found(kernel: CudaKernel, cc: Cc) -> Cubin | None:
    cubin = _kept.get((kernel.key, cc))
    if cubin is None:
        cubin = load_cubin(kernel, cc)
        if cubin is not None:
            _keep(kernel, cc, cubin)
    return cubin


def _keep(kernel: CudaKernel, cc: Cc, cubin: Cubin) -> None:
    if len(_kept) >= MOST_KEPT:
        del _kept[next(iter(_kept))]
    _kept[kernel.key, cc] = cubin


def describe_kernels(kernels: Sequence[CudaKernel], cc: Cc) -> list[str]:
    """What each kernel takes, one line each, of those that are compiled for `cc` already."""
    width = max((len(kernel.name) for kernel in kernels), default=0)
    lines = []
    for kernel in kernels:
        cubin = known_cubin(kernel, cc)
        told = "not compiled yet" if cubin is None else cubin.report.describe()
        lines.append(f"{kernel.name:<{width}}  {told}")
    return lines


def forget_cubins() -> None:
    """Forget what this process compiled or loaded (for tests)."""
    _kept.clear()


def symbol_of(kernel: CudaKernel) -> str:
    """The kernel's name in its cubin."""
    return "weft_" + kernel.key.replace("-", "_")


def emit_ptx(kernel: CudaKernel, cc: Cc) -> str:
    """The kernel's PTX for `cc`: the same text in every process. Errors as `compile_kernel`."""
    if kernel.engine == "numba":
        return _by_numba(kernel, cc)
    maths = toolchain().libdevice.path
    try:
        return ptx_of(module_text(kernel, symbol_of(kernel), cc, Path(maths)), cc)
    except EmulationError as error:
        raise _failed(kernel, cc, "the reader of kernel source", str(error)) from error
    except LlvmError as error:
        raise _failed(kernel, cc, "LLVM", str(error)) from error


def _by_numba(kernel: CudaKernel, cc: Cc) -> str:
    try:
        return numba_ptx(kernel, symbol_of(kernel), cc)
    except WeftError:
        raise
    except Exception as error:  # Numba's own, of many classes
        raise _failed(kernel, cc, "numba-cuda", str(error)) from error


def assemble(kernel: CudaKernel, ptx: str, cc: Cc) -> Cubin:
    """The cubin of the kernel's PTX, by nvJitLink. Errors as `compile_kernel`."""
    nvjitlink, handle = _linker(cc)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), kernel.name)
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = _log(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    except nvjitlink.nvJitLinkError as error:
        log = _log(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        raise _failed(kernel, cc, "nvJitLink", f"{error}\n{log}") from error
    finally:
        nvjitlink.destroy(handle)
    symbol = symbol_of(kernel)
    return Cubin(bytes(code), symbol, read_report(bytes(code), symbol, log))


def _linker(cc: Cc) -> tuple[Any, Any]:
    """nvJitLink, and a handle of it. Errors as `check_known`."""
    found = toolchain()
    from cuda.bindings import nvjitlink

    # -v: the log says what is spilled; with nvJitLink's own -verbose, 12.8 writes to stdout
    options = [f"-arch={architecture(cc)}", "-Xptxas=-v"]
    try:
        return nvjitlink, nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise _unknown(found, cc) from error


def _log(size: Any, read: Any, handle: int) -> str:
    text = bytearray(size(handle))
    if text:
        read(handle, text)
    return text.decode(errors="replace").strip("\0")


def _unknown(found: Toolchain, cc: Cc) -> UnknownTarget:
    return UnknownTarget(
        f"nvJitLink {found.nvjitlink.version} ({found.nvjitlink.path}) does not know "
        f"{architecture(cc)}"
    )


def _failed(kernel: CudaKernel, cc: Cc, tool: str, log: str) -> CodegenError:
    lines = enumerate(kernel.source.splitlines(), 1)
    source = "\n".join(f"{number:4} {line}" for number, line in lines)
    return CodegenError(
        f"kernel '{kernel.name}' does not compile for {architecture(cc)}; {tool} says\n"
        f"{log.strip()}\nof the source\n{source}"
    )
