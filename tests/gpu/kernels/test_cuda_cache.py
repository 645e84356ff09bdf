"""Cubins on disk: found by content, checked when read; and folders of cubins made elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weft.codegen.cuda.cubins import cache
from weft.codegen.cuda.cubins import compile as compiling
from weft.codegen.cuda.cubins.cache import (
    Cubin,
    KernelReport,
    load_cubin,
    read_cubins,
    store_cubin,
    write_cubins,
)
from weft.codegen.cuda.cubins.compile import (
    compile_for_gpu,
    compile_kernel,
    forget_cubins,
    known_cubin,
)
from weft.codegen.cuda.source.kernel import CudaKernel, Parameter
from weft.frontend.tools.main import main
from weft.ir.errors import DataLossError, InvalidArgumentError, ToolchainError

KERNEL = CudaKernel(
    "scale", "def scale(p):\n    p[0] = f32(p[0] * f32(2))\n", (Parameter("p", "pointer", "f32"),)
)
CUBIN = Cubin(b"\x7fELF and so on" * 100, "weft_cuda_scale", KernelReport(20, 1024, 8, 16))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no toolchain: these tests compile nothing."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.delenv("WEFT_CUBINS", raising=False)
    monkeypatch.setattr(cache, "stamp", lambda: "toolchain 1")
    monkeypatch.setattr(cache, "cuda_sources", lambda: "sources 1")
    monkeypatch.setattr(compiling, "emit_ptx", compiles_nothing)
    forget_cubins()
    cache._shipped.cache_clear()
    yield tmp_path / "cache"
    forget_cubins()
    cache._shipped.cache_clear()


def compiles_nothing(kernel: CudaKernel, cc: tuple[int, int]) -> str:
    raise ToolchainError("nothing compiles here")


def test_a_cubin_comes_back_whole(folder: Path) -> None:
    assert load_cubin(KERNEL, (9, 0)) is None
    store_cubin(KERNEL, (9, 0), CUBIN)
    assert load_cubin(KERNEL, (9, 0)) == CUBIN
    assert compile_kernel(KERNEL, (9, 0)) == CUBIN
    (path,) = folder.glob("*.cubin")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["cc", "source", "threads", "toolchain", "sources"])
def test_anything_else_is_another_file(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store_cubin(KERNEL, (9, 0), CUBIN)
    kernel, cc = KERNEL, (9, 0)
    if change == "cc":
        cc = (8, 0)
    elif change == "source":
        kernel = replace(KERNEL, source=KERNEL.source + "    # another\n")
    elif change == "threads":
        kernel = replace(KERNEL, threads=128)
    else:
        name = {"toolchain": "stamp", "sources": "cuda_sources"}[change]
        monkeypatch.setattr(cache, name, lambda: "another")
    assert load_cubin(kernel, cc) is None
    with pytest.raises(ToolchainError):
        compile_kernel(kernel, cc)


def test_a_damaged_file_is_no_cubin(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store_cubin(KERNEL, (9, 0), CUBIN)
    (path,) = folder.glob("*.cubin")
    whole = path.read_bytes()
    for k in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 1]) + whole[k + 1 :])
        assert load_cubin(KERNEL, (9, 0)) is None
    path.write_bytes(whole[:-1])
    assert load_cubin(KERNEL, (9, 0)) is None
    assert "damaged" in caplog.text
    path.write_bytes(whole)
    assert load_cubin(KERNEL, (9, 0)) == CUBIN


def test_no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    store_cubin(KERNEL, (9, 0), CUBIN)
    assert not folder.exists()
    assert load_cubin(KERNEL, (9, 0)) is None
    monkeypatch.setenv("WEFT_CACHE", "kernels")
    store_cubin(KERNEL, (9, 0), CUBIN)
    assert load_cubin(KERNEL, (9, 0)) == CUBIN


def test_sources_that_changed_since_turn_it_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_cubin(KERNEL, (9, 0), CUBIN)
    monkeypatch.setattr(cache, "cuda_sources", lambda: None)
    assert load_cubin(KERNEL, (9, 0)) is None


def test_the_command_line_lists_cubins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_cubin(KERNEL, (9, 0), CUBIN)
    assert main(["cache", "list"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("cubin   scale sm_90")
    assert ": 0 kernels, 1 cubin, 0 plans, " in last
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed_cubins"] == 1
    assert list(folder.iterdir()) == []


# -------------------------------------------------------------------------------- made elsewhere


def test_shipped_cubins_are_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(CUBIN, code=b"\x7fELF of another machine")
    files = write_cubins(tmp_path / "made", [(KERNEL, (9, 0), other)], {"graph": "g"})
    assert [f.name for f in files] == [f"{KERNEL.key}.sm_90.cubin", "manifest.json"]
    assert files[0].read_bytes() == other.code
    store_cubin(KERNEL, (9, 0), CUBIN)
    second = tmp_path / "empty"
    write_cubins(second, [], {})
    monkeypatch.setenv("WEFT_CUBINS", f"{second}:{tmp_path / 'made'}")
    monkeypatch.setattr(cache, "stamp", lambda: pytest.fail("no toolchain is asked for"))
    assert compile_kernel(KERNEL, (9, 0)) == other


def test_without_a_toolchain_a_gpu_runs_what_is_shipped_for_one_before_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()  # a cache, which is asked for by the toolchain's versions
    write_cubins(tmp_path / "made", [(KERNEL, (12, 0), CUBIN)], {})
    monkeypatch.setenv("WEFT_CUBINS", str(tmp_path / "made"))

    def missing() -> str:
        raise ToolchainError("no toolchain")

    monkeypatch.setattr(cache, "stamp", missing)
    assert compile_for_gpu(KERNEL, (12, 1)) == CUBIN
    assert known_cubin(KERNEL, (9, 0)) is None


def test_what_is_not_shipped_is_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cubins(tmp_path / "made", [(KERNEL, (9, 0), CUBIN)], {})
    monkeypatch.setenv("WEFT_CUBINS", str(tmp_path / "made"))
    assert load_cubin(KERNEL, (8, 0)) is None
    assert load_cubin(replace(KERNEL, threads=32), (9, 0)) is None


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    made = [(KERNEL, (9, 0), CUBIN), (KERNEL, (7, 5), CUBIN)]
    manifest = json.loads(write_cubins(tmp_path, made, {"graph": "g"})[-1].read_text())
    assert (manifest["format"], manifest["graph"]) == ("weft-cubins-1", "g")
    row = manifest["cubins"][0]
    assert (row["name"], row["target"], row["symbol"]) == ("scale", "sm_90", "weft_cuda_scale")
    assert row["report"] == {"registers": 20, "shared": 1024, "stack": 8, "spills": 16}
    assert read_cubins(tmp_path) == {(KERNEL.key, t): CUBIN for t in ("sm_90", "sm_75")}


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"holds no manifest.json\n.*weft compile"):
        read_cubins(tmp_path)
    files = write_cubins(tmp_path, [(KERNEL, (9, 0), CUBIN)], {})
    files[0].write_bytes(CUBIN.code[:-1])
    with pytest.raises(DataLossError, match="checksum is wrong"):
        read_cubins(tmp_path)
    files[0].unlink()
    with pytest.raises(DataLossError, match="cannot be read"):
        read_cubins(tmp_path)
    files[1].write_text("{")
    with pytest.raises(DataLossError, match=r"manifest.json is damaged"):
        read_cubins(tmp_path)
    files[1].write_text('{"format": "weft-cubins-9", "cubins": []}')
    with pytest.raises(InvalidArgumentError, match="weft-cubins-9"):
        read_cubins(tmp_path)


def test_a_manifest_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    files = write_cubins(tmp_path / "made", [(KERNEL, (9, 0), CUBIN)], {})
    (tmp_path / "outside").write_bytes(CUBIN.code)
    files[1].write_text(files[1].read_text().replace(files[0].name, "../outside"))
    with pytest.raises(DataLossError, match=r"made/outside cannot be read"):
        read_cubins(tmp_path / "made")
