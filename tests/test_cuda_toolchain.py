"""What is said of a CUDA toolchain that is missing, or whose parts do not fit together."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cuda_toolchain import needs_toolchain

from weft.codegen.cuda import toolchain as module
from weft.codegen.cuda.toolchain import (
    Library,
    Toolchain,
    probe,
    ptx_of_release,
    stamp,
    toolchain,
)
from weft.ir.errors import ToolchainError, WeftError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    module._toolchain.cache_clear()
    stamp.cache_clear()
    yield
    module._toolchain.cache_clear()
    stamp.cache_clear()


def made(ptx: tuple[int, int], assembles: tuple[int, int]) -> Toolchain:
    nvvm = Library("libNVVM", "/opt/libnvvm.so.4", "13.4.92")
    return Toolchain("numba-cuda 0", nvvm, Library("nvJitLink", "/j.so", "13.0.88"), ptx, assembles)


def test_ptx_that_nvjitlink_does_not_take_names_both() -> None:
    with pytest.raises(ToolchainError) as caught:
        made((9, 4), (9, 0)).check()
    assert str(caught.value).startswith(
        "libNVVM 13.4.92 (/opt/libnvvm.so.4) writes PTX 9.4, but nvJitLink 13.0.88 (/j.so) takes "
        "PTX up to 9.0\n  hint: versions that fit: pip install 'weft[cuda13]'"
    )
    made((9, 0), (9, 4)).check()


def test_ptx_that_the_driver_does_not_take_names_both() -> None:
    with pytest.raises(ToolchainError) as caught:
        made((9, 0), (9, 0)).check(driver=(12, 8))
    assert (
        "libNVVM 13.4.92 (/opt/libnvvm.so.4) writes PTX 9.0, but the driver (CUDA 12.8) takes "
        "PTX up to 8.7"
    ) in str(caught.value)
    made((9, 0), (9, 0)).check(driver=(13, 0))
    made((8, 7), (8, 7)).check(driver=(12, 8))


def test_releases_and_their_ptx() -> None:
    releases = [(12, 0), (12, 5), (12, 6), (12, 8), (12, 9), (13, 0), (13, 4), (14, 1)]
    got = [ptx_of_release(release) for release in releases]
    assert got == [(8, 0), (8, 5), (8, 5), (8, 7), (8, 8), (9, 0), (9, 4), (10, 0)]
    assert got == sorted(got)


@needs_toolchain
def test_what_is_found_here() -> None:
    found = toolchain()
    assert found == probe()
    assert found.ptx <= found.assembles
    assert re.fullmatch(r"1\d\.\d+\.\d+", found.nvvm.version)
    assert found.nvvm.path.startswith("/")
    lines = found.describe()
    assert re.match(r"compiled by numba-cuda \S+, numba \S+, llvmlite \S+$", lines[0])
    assert lines[1].endswith(f": PTX {found.ptx[0]}.{found.ptx[1]}")


@needs_toolchain
def test_the_stamp_loads_no_library() -> None:
    program = (
        "import sys; from weft.codegen.cuda.toolchain import stamp; print(stamp());"
        "print([m for m in ('numba', 'cuda.bindings', 'cuda.pathfinder') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    versions, loaded = done.stdout.splitlines()
    assert versions == stamp()
    assert re.match(r"numba-cuda \S+, numba \S+, llvmlite \S+, nvidia-nvvm ", versions)
    assert loaded == "[]"


@needs_toolchain
def test_without_packages_the_stamp_names_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name.startswith("nvidia"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert toolchain().nvvm.path in stamp()


@pytest.mark.parametrize("name", ["numba_cuda", "cuda.pathfinder", "cuda.bindings.nvjitlink"])
def test_a_missing_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def importing(wanted: str) -> Any:
        if wanted == name:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None

    monkeypatch.setattr(importlib, "import_module", importing)
    with pytest.raises(ToolchainError, match="no Python package " + name) as caught:
        toolchain()
    assert "pip install 'weft[cuda13]'" in str(caught.value)
    assert isinstance(caught.value, WeftError)


def test_no_numba_cuda_no_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ToolchainError, match="no Python package numba-cuda"):
        stamp()


@needs_toolchain
def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    real = cuda.pathfinder.load_nvidia_dynamic_lib

    def load(name: str) -> Any:
        if name == "nvJitLink":
            raise cuda.pathfinder.DynamicLibNotFoundError("libnvJitLink.so is nowhere")
        return real(name)

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", load)
    with pytest.raises(ToolchainError, match=r"CUDA toolkit: libnvJitLink.so is nowhere\n.*hint"):
        probe()


def test_the_simulator_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(ToolchainError, match="NUMBA_ENABLE_CUDASIM is set"):
        probe()


@needs_toolchain
def test_an_old_assembler_is_found_before_the_first_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvjitlink

    from weft.codegen.cuda.compile import emit_ptx
    from weft.codegen.cuda.kernel import CudaKernel, Parameter

    monkeypatch.setattr(nvjitlink, "version", lambda: (12, 4))
    kernel = CudaKernel("k", "def k(n):\n    i = n\n", (Parameter("n", "integer"),))
    with pytest.raises(ToolchainError, match=r"writes PTX \d\.\d+, but nvJitLink \S+ .* to 8\.4"):
        emit_ptx(kernel, (9, 0))
