"""CUDA toolchain of this machine: LLVM, libdevice and nvJitLink, and whether their releases fit.

LLVM, which llvmlite brings, makes PTX with the mathematical functions of NVIDIA's libdevice, and
nvJitLink machine code of it; neither needs a GPU or a driver. PTX has no part in what fits what: it
is of the oldest version that has the architecture. Machine code fits drivers of the same major
release of CUDA, and later ones (CUDA Compatibility, "Minor Version Compatibility")."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import ToolchainError
from weft.ir.process import ForkLock

INSTALL = "pip install 'weft[cuda13]' (driver 580 or newer), or 'weft[cuda]' (driver 570 or newer)"
# The packages whose versions machine code depends on: names on PyPI of CUDA 13 and of CUDA 12.
_LLVM = "llvmlite"
_LIBDEVICE = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
_NVJITLINK = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
_MODULES = ("cuda.pathfinder", "cuda.bindings.nvjitlink")
#: Where libdevice is, too, on machines with CUDA or PyTorch: cuda.pathfinder does not look there.
_SYSTEM = Path("/usr/local/cuda/nvvm/libdevice/libdevice.10.bc")
_TRITON = "backends/nvidia/lib/libdevice.10.bc"

Version = tuple[int, int]


class UnknownTarget(ToolchainError):
    """An architecture that the installed toolchain does not know."""


_log = logging.getLogger("weft.compile")
_lock = ForkLock()


@dataclass(frozen=True, slots=True)
class Library:
    """A library: where it was found, and of which release it is (of a file that belongs to no
    package: a digest of it)."""

    name: str
    path: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.path})"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The versions of the compilers that make cubins. llvm: the version of llvmlite; `release`:
    that of CUDA which nvJitLink is of, (13, 0)."""

    llvm: str
    libdevice: Library
    nvjitlink: Library
    release: Version

    def check(self, driver: Version | None = None) -> None:
        """ToolchainError if the driver (the CUDA release that it supports, (13, 0)) loads nothing
        that nvJitLink makes."""
        if driver is not None and driver[0] < self.release[0]:
            raise ToolchainError(
                f"{self.nvjitlink} makes machine code of CUDA {self.release[0]}, but the driver "
                f"supports CUDA {driver[0]}.{driver[1]}",
                hint=f"what fits: {INSTALL}; or bring cubins: weft compile --target",
            )

    def describe(self) -> list[str]:
        """Lines that say what was found."""
        return [f"compiled by llvmlite {self.llvm}", str(self.libdevice), str(self.nvjitlink)]


def toolchain() -> Toolchain:
    """What is installed here. ToolchainError if a part is missing."""
    with _lock:
        return _toolchain()


@cache
def _toolchain() -> Toolchain:
    found = probe()
    _log.info("CUDA kernels are %s", "; ".join(found.describe()))
    return found


def probe() -> Toolchain:
    """What is installed here. Loads nvJitLink; ToolchainError if a part is missing."""
    pathfinder, nvjitlink = (_module(name) for name in _MODULES)
    try:
        path = pathfinder.load_nvidia_dynamic_lib("nvJitLink").abs_path
        major, minor = nvjitlink.version()
    except Exception as error:  # what is raised for a missing library differs between versions
        raise _missing(f"a library of the CUDA toolkit: {str(error).strip()}") from error
    release = _installed(_NVJITLINK) or f"{major}.{minor}"
    return Toolchain(
        _installed((_LLVM,)),
        _libdevice(pathfinder),
        Library("nvJitLink", path, release),
        (int(major), int(minor)),
    )


def _libdevice(pathfinder: Any) -> Library:
    try:
        path = Path(pathfinder.find_bitcode_lib("device"))
        version = _installed(_LIBDEVICE)
    except Exception as error:  # likewise
        others = [other for other in _elsewhere() if other.is_file()]
        if not others:
            raise _missing(f"libdevice: {str(error).strip()}") from error
        path, version = others[0], ""
    return Library("libdevice", str(path), version or _digest(path))


def _elsewhere() -> Iterator[Path]:
    yield _SYSTEM
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / _TRITON


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(f"Python package {name} ({error})") from error


def _missing(what: str) -> ToolchainError:
    return ToolchainError(f"CUDA kernels cannot be compiled here: no {what}", hint=INSTALL)


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
    packages = [(names[0], _installed(names)) for names in ((_LLVM,), _LIBDEVICE, _NVJITLINK)]
    if all(version for _, version in packages):
        return ", ".join(f"{name} {version}" for name, version in packages)
    found = toolchain()
    return f"{_LLVM} {found.llvm}, {found.libdevice}, {found.nvjitlink}"
