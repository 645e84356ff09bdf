"""The machine that kernels are compiled for: the host's processor, as LLVM names it."""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from weft.codegen.llvm.library import Machine, library, library_file, text_of

_CPUINFO = Path("/proc/cpuinfo")
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


@cache
def host() -> Target:
    """This machine. Loads LLVM, so it waits for the first kernel."""
    functions = library()
    triple = text_of(functions.LLVMPY_GetProcessTriple)
    cpu = text_of(functions.LLVMPY_GetHostCPUName)
    features = text_of(functions.LLVMPY_GetHostCPUFeatures).split(",")
    sorted_features = ",".join(sorted(features, key=lambda f: f[1:]))
    number = functions.LLVMPY_GetVersionInfo()
    version = ".".join(str(part) for part in number.to_bytes(4, "big").lstrip(b"\0"))
    # not importlib.metadata, which reads files for some milliseconds
    llvmlite = importlib.import_module("llvmlite").__version__
    layout = Machine(triple, cpu, sorted_features).data_layout()
    versions = f"llvm-{version} llvmlite-{llvmlite}"
    return Target(triple, cpu, sorted_features, layout, versions)


def new_machine() -> Machine:
    """A new target machine for this machine."""
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
    """Whether this machine's processor has the instructions that LLVM and Linux call `name`
    ("avx512f", say)."""
    processor = _linux_processor()
    if processor is None:
        return f"+{name}" in host().features.split(",")
    return name in processor["flags"].split()


@cache
def multiplies_and_adds() -> bool:
    """Whether x * y + z, rounded once, is an instruction; elsewhere it is a function's work."""
    return has_feature("fma") or platform.machine().lower() in ("aarch64", "arm64")


@cache
def machine_line() -> str:
    """One line that differs whenever machine code may, as `Target.describe()`; on Linux x86-64
    without loading LLVM, which a process whose kernels all come from disk has no use for."""
    file, processor = library_file(), _linux_processor()
    if file is None or processor is None:
        return host().describe()
    digest = hashlib.sha256("\n".join(processor[name] for name in _CPU_FIELDS).encode()).hexdigest()
    llvmlite = importlib.import_module("llvmlite").__version__
    status = file.stat()  # the library itself: not every build of one llvmlite has the same LLVM
    return (
        f"{processor.get('model name', 'x86-64')} {digest[:32]} llvmlite-{llvmlite} "
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
