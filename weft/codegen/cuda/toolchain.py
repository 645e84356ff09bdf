"""What compiles CUDA kernels on this machine, and whether its parts fit together.

numba-cuda makes PTX with libNVVM, and nvJitLink machine code of it; neither needs a GPU or a
driver. PTX carries the version of libNVVM's release: an nvJitLink or a driver of an older release
refuses it. So `toolchain` looks at the PTX of an empty kernel before the first real one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from weft.ir.errors import ToolchainError
from weft.ir.fork import ForkLock

INSTALL = "pip install 'weft[cuda13]' (driver 580 or newer), or 'weft[cuda]' (driver 570 or newer)"
# The packages whose versions machine code depends on: names on PyPI of CUDA 13 and of CUDA 12.
_FRONT = ("numba-cuda", "numba", "llvmlite")
_NVVM = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
_NVJITLINK = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
_MODULES = ("numba_cuda", "cuda.pathfinder", "cuda.bindings.nvvm", "cuda.bindings.nvjitlink")
# PTX ISA manual, "Release Notes": the PTX version of each release of CUDA 12.
_PTX_OF_12 = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 5, 7: 6, 8: 7, 9: 8}
_EMPTY = """target triple = "nvptx64-nvidia-cuda"
target datalayout = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-\
f32:32:32-f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
define void @empty() {
  ret void
}
!nvvm.annotations = !{!0}
!0 = !{void ()* @empty, !"kernel", i32 1}
!nvvmir.version = !{!1}
!1 = !{i32 2, i32 0, i32 3, i32 2}
"""

Version = tuple[int, int]
_log = logging.getLogger("weft.compile")
_lock = ForkLock()


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library: where it was found, and of which release it says it is."""

    name: str
    path: str
    version: str


@dataclass(frozen=True, slots=True)
class Toolchain:
    """front: versions of the Python packages; `ptx`: the version of the PTX that libNVVM writes;
    `assembles`: the newest that nvJitLink takes."""

    front: str
    nvvm: Library
    nvjitlink: Library
    ptx: Version
    assembles: Version

    def check(self, driver: Version | None = None) -> None:
        """ToolchainError if nvJitLink, or the driver (the CUDA release that it supports, (13, 0)),
        is older than the PTX."""
        self._meets(self.assembles, self._named(self.nvjitlink))
        if driver is not None:
            self._meets(ptx_of_release(driver), f"the driver (CUDA {driver[0]}.{driver[1]})")

    def _meets(self, newest: Version, reader: str) -> None:
        if self.ptx > newest:
            raise ToolchainError(
                f"{self._named(self.nvvm)} writes PTX {_dotted(self.ptx)}, but {reader} takes PTX "
                f"up to {_dotted(newest)}",
                hint=f"versions that fit: {INSTALL}; or bring cubins: weft compile --target",
            )

    @staticmethod
    def _named(library: Library) -> str:
        return f"{library.name} {library.version} ({library.path})"

    def describe(self) -> list[str]:
        """Lines that say what was found."""
        return [
            f"compiled by {self.front}",
            f"{self._named(self.nvvm)}: PTX {_dotted(self.ptx)}",
            f"{self._named(self.nvjitlink)}: takes PTX up to {_dotted(self.assembles)}",
        ]


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def ptx_of_release(release: Version) -> Version:
    """The newest PTX that a release of CUDA 12 or later takes."""
    major, minor = release
    if major == 12:
        return 8, _PTX_OF_12.get(minor, max(_PTX_OF_12.values()))
    return (9, minor) if major == 13 else (major - 4, 0)


def toolchain() -> Toolchain:
    """What is installed here, once it is known to fit together. ToolchainError otherwise."""
    with _lock:
        return _toolchain()


@cache
def _toolchain() -> Toolchain:
    found = probe()
    _log.info("CUDA kernels are %s", "; ".join(found.describe()))
    found.check()
    return found


def probe() -> Toolchain:
    """What is installed here. Loads libNVVM and nvJitLink; ToolchainError if a part is missing."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        raise ToolchainError(
            "NUMBA_ENABLE_CUDASIM is set: numba-cuda simulates and compiles nothing",
            hint="unset it; weft has an emulator of its own, WEFT_EMULATE_GPU=1",
        )
    _, pathfinder, nvvm, nvjitlink = (_module(name) for name in _MODULES)
    try:
        paths = [pathfinder.load_nvidia_dynamic_lib(n).abs_path for n in ("nvvm", "nvJitLink")]
        pathfinder.load_nvidia_dynamic_lib("nvrtc")  # numba-cuda asks it for the architectures
        header = _empty_ptx(nvvm)
        release = tuple(nvjitlink.version())
    except Exception as error:  # what is raised for a missing library differs between versions
        raise _missing(f"a library of the CUDA toolkit: {str(error).strip()}") from error
    version = re.search(r"^\.version (\d+)\.(\d+)", header, re.MULTILINE)
    tools = re.search(r"release [\d.]+, V([\d.]+)", header)
    if version is None:
        raise ToolchainError(f"libNVVM at {paths[0]} wrote no PTX: {header[:200]!r}")
    return Toolchain(
        ", ".join(f"{name} {_installed((name,))}" for name in _FRONT),
        Library("libNVVM", paths[0], tools[1] if tools else "of unknown version"),
        Library("nvJitLink", paths[1], _installed(_NVJITLINK) or _dotted(release)),
        (int(version[1]), int(version[2])),
        ptx_of_release(release),
    )


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(f"Python package {name} ({error})") from error


def _missing(what: str) -> ToolchainError:
    return ToolchainError(f"CUDA kernels cannot be compiled here: no {what}", hint=INSTALL)


def _empty_ptx(nvvm: Any) -> str:
    program = nvvm.create_program()
    try:
        nvvm.add_module_to_program(program, _EMPTY.encode(), len(_EMPTY), "empty")
        nvvm.compile_program(program, 1, ["-arch=compute_75"])
        text = bytearray(nvvm.get_compiled_result_size(program))
        nvvm.get_compiled_result(program, text)
    finally:
        nvvm.destroy_program(program)
    return text.decode()


def _installed(names: tuple[str, ...]) -> str:
    """The version of the first of these packages that is installed; empty if none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


@cache
def stamp() -> str:
    """The versions that machine code depends on, for the key of the cache on disk.

    Where all are packages this loads no library: a step whose cubins are all in the cache needs
    none. ToolchainError if there is no toolchain."""
    packages = [f"{name} {_installed((name,))}" for name in _FRONT]
    if not all(line.partition(" ")[2] for line in packages):
        raise _missing(f"Python package {_FRONT[0]}")
    libraries = [(names[0], _installed(names)) for names in (_NVVM, _NVJITLINK)]
    if all(version for _, version in libraries):
        return ", ".join([*packages, *(f"{name} {version}" for name, version in libraries)])
    found = toolchain()
    return ", ".join([*packages, *(f"{lib}" for lib in (found.nvvm, found.nvjitlink))])
