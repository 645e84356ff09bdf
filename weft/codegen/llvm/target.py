"""The machine that kernels are compiled for: the host's processor, as LLVM names it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any


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
    """`llvmlite.binding`, ready to compile for this machine.

    Loading LLVM takes some 30 ms, so it waits for the first kernel.
    """
    llvm = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def host() -> Target:
    """This machine."""
    llvm = binding()
    triple = llvm.get_process_triple()
    version = ".".join(map(str, llvm.llvm_version_info))
    # not importlib.metadata, which reads files for some milliseconds
    llvmlite = importlib.import_module("llvmlite").__version__
    machine = _create_machine(triple)
    return Target(
        triple,
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        str(machine.target_data),
        f"llvm-{version} llvmlite-{llvmlite}",
    )


def create_machine() -> Any:
    """A new LLVM TargetMachine for this machine; one thread at a time may use it."""
    return _create_machine(host().triple)


def _create_machine(triple: str) -> Any:
    llvm = binding()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        reloc="pic",
        codemodel="small",
    )
