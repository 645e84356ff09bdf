"""`weft compile`: cubins of a graph, made where no GPU is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from cuda_toolchain import needs_toolchain

import weft as wf
from weft.codegen.cuda import cache
from weft.codegen.cuda.compile import compile_kernel, forget_cubins
from weft.frontend.cli.compile import targets_of
from weft.frontend.cli.main import main
from weft.ir.errors import InvalidArgumentError
from weft.ir.text.printer import print_graph
from weft.runtime.device.executable import compile_for_device


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CACHE", "0")
    monkeypatch.delenv("WEFT_CUBINS", raising=False)
    monkeypatch.chdir(tmp_path)
    forget_cubins()
    cache._shipped.cache_clear()
    yield
    forget_cubins()
    cache._shipped.cache_clear()


def scaled(x: Any) -> Any:
    return wf.exp(x) * 2 + 1


def write_graph(path: Path, function: Any, *args: Any) -> Any:
    graph = wf.compile(function).trace(*args)
    path.write_text(print_graph(graph), encoding="utf-8")
    return graph


def no_device() -> NoReturn:
    raise AssertionError("a plan needs no device")


@needs_toolchain
def test_cubins_for_two_architectures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = write_graph(tmp_path / "scaled.weft", scaled, np.ones((100, 30), np.float32))
    assert main(["compile", "--target", "sm_75, sm_90", "scaled.weft"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert last.startswith("wrote 1 kernels for sm_75, sm_90 to scaled.cubins: ")
    assert [row.split()[1] for row in rows] == ["sm_75", "sm_90"]
    assert all(row.endswith(" bytes shared") and " registers" in row for row in rows)
    manifest = json.loads((tmp_path / "scaled.cubins" / "manifest.json").read_text())
    assert manifest["graph"] == graph.name
    assert "llvmlite" in manifest["toolchain"]
    # the program itself, elsewhere, finds what it needs: the same kernels
    monkeypatch.setenv("WEFT_CUBINS", "scaled.cubins")
    monkeypatch.setattr("weft.codegen.cuda.compile.emit_ptx", no_device)
    (kernel,) = compile_for_device(graph, find=no_device).plan.kernels()
    cubin = compile_kernel(kernel, (9, 0))
    assert cubin.code == (tmp_path / "scaled.cubins" / f"{kernel.key}.sm_90.cubin").read_bytes()


@needs_toolchain
def test_variables_and_a_folder_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w = wf.Variable(np.ones(40, np.float32), name="w")

    def step(x: Any) -> Any:
        return w.assign_sub(x * 0.1)

    write_graph(tmp_path / "step.weft", step, np.ones(40, np.float32))
    assert main(["compile", "--target", "sm_80", "-o", "some/where", "step.weft"]) == 0
    assert (tmp_path / "some" / "where" / "manifest.json").exists()
    assert "to some/where:" in capsys.readouterr().out


def symbolic_graph(path: Path) -> str:
    traced = wf.compile(wf.exp).trace(np.ones((4, 8), np.float32))
    text = print_graph(traced, locations=False).replace("f32[4, 8]", "f32[n, 8]")
    text = text.replace("f32[4,8]", "f32[n,8]")
    path.write_text(text, encoding="utf-8")
    return text


@needs_toolchain
def test_sizes_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[n" in symbolic_graph(tmp_path / "g.weft")
    assert main(["compile", "--target", "sm_90", "--size", "n=5", "g.weft"]) == 0
    capsys.readouterr()
    assert main(["compile", "--target", "sm_90", "g.weft"]) == 2
    told = capsys.readouterr().err
    assert "the size of the symbolic dimension 'n' is not known" in told
    assert "--size n=N" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--target", "h100"], "--target h100: an architecture is sm_"),
        (["--target", "sm_90,"], "--target : an architecture"),
        (["--target", "sm_90", "--size", "m=5"], "no symbolic dimension 'm'"),
        (["--target", "sm_90", "--size", "n=big"], "--size n=big: the size must be an integer"),
        (["--target", "sm_70", "--size", "n=3"], "not compiled for sm_70"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    symbolic_graph(tmp_path / "g.weft")
    assert main(["compile", *options, "g.weft"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "g.cubins").exists()


def test_an_op_without_a_kernel_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_graph(tmp_path / "c.weft", wf.exp, np.ones(4, np.complex64))
    assert main(["compile", "--target", "sm_90", "c.weft"]) == 2
    assert "GPU" in capsys.readouterr().err
    assert not (tmp_path / "c.cubins").exists()


def test_targets() -> None:
    assert targets_of(["sm_75,sm_90", "sm_100", "sm_90"]) == [(7, 5), (9, 0), (10, 0)]
    with pytest.raises(InvalidArgumentError, match=r"sm_90 \(H100\)"):
        targets_of(["compute_90"])
