"""Kernel to LLVM module and to PTX, by LLVM's NVPTX target and NVIDIA's libdevice.

libdevice is the LLVM of mathematical functions, of which a module takes what it calls. The file is
read once in a process, and its functions are kept as text: linking the whole file to each kernel
would take longer than compiling most kernels does.

PTX carries the version of its language. LLVM writes the first one that has the architecture, so
whatever knows the architecture reads it; tensor cores of sm_75 need a newer one, of CUDA 10.2."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from weft.codegen.cuda.cubins.cache import Cc, architecture
from weft.codegen.cuda.cubins.llvm_functions import Module, function_text, type_of
from weft.codegen.cuda.cubins.llvm_instructions import CONTRACT, NEEDS_PTX_65, takes_shuffles
from weft.codegen.cuda.cubins.toolchain import UnknownTarget
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.typecheck import read
from weft.codegen.llvm.compile import compile_assembly, llvm_text
from weft.codegen.llvm.target import Machine, library
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
