"""What is said of a CUDA toolchain that is missing, or does not fit the driver."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cuda_toolchain import needs_toolchain

from weft.codegen.cuda.cubins import toolchain as module
from weft.codegen.cuda.cubins.toolchain import Library, Toolchain, probe, stamp, toolchain
from weft.ir.errors import ToolchainError, WeftError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    module._toolchain.cache_clear()
    stamp.cache_clear()
    yield
    module._toolchain.cache_clear()
    stamp.cache_clear()


def made(release: tuple[int, int]) -> Toolchain:
    libdevice = Library("libdevice", "/l.bc", "13.0.88")
    return Toolchain("0.50.0", libdevice, Library("nvJitLink", "/j.so", "13.0.88"), release)


def test_machine_code_that_the_driver_does_not_load_names_both() -> None:
    with pytest.raises(ToolchainError) as caught:
        made((13, 0)).check(driver=(12, 8))
    assert str(caught.value).startswith(
        "nvJitLink 13.0.88 (/j.so) makes machine code of CUDA 13, but the driver supports CUDA "
        "12.8\n  hint: what fits: pip install 'weft[cuda13]'"
    )


def test_drivers_load_machine_code_of_their_major_release_and_older_ones() -> None:
    for driver in ((13, 0), (13, 2), (14, 0)):
        made((13, 1)).check(driver)
    made((12, 8)).check(driver=(12, 4))
    made((12, 8)).check()


@needs_toolchain
def test_what_is_found_here() -> None:
    found = toolchain()
    assert found == probe()
    assert re.fullmatch(r"1\d\.\d+\.\d+", found.nvjitlink.version)
    assert f"{found.release[0]}.{found.release[1]}." in found.nvjitlink.version
    assert Path(found.libdevice.path).read_bytes().startswith(b"BC\xc0\xde")
    first, *others = found.describe()
    assert re.match(r"compiled by llvmlite \S+$", first)
    assert others == [str(found.libdevice), str(found.nvjitlink)]


@needs_toolchain
def test_the_stamp_loads_no_library() -> None:
    program = (
        "import sys; from weft.codegen.cuda.cubins.toolchain import stamp; print(stamp());"
        "names = 'llvmlite.binding', 'cuda.bindings', 'cuda.pathfinder';"
        "print([m for m in names if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    versions, loaded = done.stdout.splitlines()
    assert versions == stamp()
    assert re.match(r"llvmlite \S+, nvidia-nvvm \S+, nvidia-nvjitlink ", versions)
    assert loaded == "[]"


@needs_toolchain
def test_without_packages_the_stamp_names_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name.startswith("nvidia"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    path = Path(toolchain().libdevice.path)
    assert f"libdevice {sha256(path.read_bytes()).hexdigest()[:12]} ({path})" in stamp()
    assert str(toolchain().nvjitlink) in stamp()


@needs_toolchain
def test_libdevice_of_the_system_or_of_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cuda.pathfinder

    def nowhere(name: str) -> str:
        raise cuda.pathfinder.BitcodeLibNotFoundError("libdevice.10.bc is nowhere")

    monkeypatch.setattr(cuda.pathfinder, "find_bitcode_lib", nowhere)
    monkeypatch.setattr(module, "_SYSTEM", tmp_path / "libdevice.10.bc")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").touch()
    with pytest.raises(ToolchainError, match=r"no libdevice: libdevice.10.bc is nowhere\n.*hint"):
        probe()
    for where in (tmp_path / "triton" / module._TRITON, tmp_path / "libdevice.10.bc"):
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(b"BC")
        assert probe().libdevice == Library("libdevice", str(where), sha256(b"BC").hexdigest()[:12])


@pytest.mark.parametrize("name", ["cuda.pathfinder", "cuda.bindings.nvjitlink"])
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
