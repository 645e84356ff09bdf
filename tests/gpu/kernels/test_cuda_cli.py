"""`weft compile`: cubins of a graph, made where no GPU is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from cuda_device import use_driver
from cuda_toolchain import needs_toolchain
from fake_driver import FakeCompiler, FakeCubin, FakeDriver

import weft as wf
from weft.codegen.cuda.cubins import cache
from weft.codegen.cuda.cubins.compile import compile_kernel, forget_cubins, known_cubin
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.frontend.tools.compile import targets_of
from weft.frontend.tools.main import main
from weft.ir.errors import InvalidArgumentError
from weft.ir.text.printer import print_graph
from weft.runtime.device.execution.executable import compile_for_device


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
    monkeypatch.setattr("weft.codegen.cuda.cubins.compile.emit_ptx", no_device)
    (kernel,) = compile_for_device(graph, find=no_device).plan.kernels()
    cubin = compile_kernel(kernel, (9, 0))
    assert cubin.code == (tmp_path / "scaled.cubins" / f"{kernel.key}.sm_90.cubin").read_bytes()


class Shipped(FakeCompiler):
    """The compiler of a machine that has only what WEFT_CUBINS names."""

    def __call__(
        self, kernel: CudaKernel, cc: tuple[int, int], driver: tuple[int, int]
    ) -> FakeCubin:
        if known_cubin(kernel, cc) is None:
            raise AssertionError(f"no machine code of {kernel.name}")
        return super().__call__(kernel, cc, driver)


def layer(x: Any, w: Any) -> Any:
    return wf.sum(wf.exp(wf.matmul(x, w) * 2 + 1), axis=0)


def layer_in_a_session(x: Any, w: Any) -> Any:
    with wf.Graph().as_default() as graph:
        fed = [wf.placeholder(wf.float32, [None, a.shape[1]]) for a in (x, w)]
        with wf.device("/gpu:0"):
            y = layer(*fed)
        with wf.Session(graph=graph, reproducible=True) as session:
            return session.run(y, dict(zip(fed, (x, w), strict=True)))


def layer_called(x: Any, w: Any) -> Any:
    return np.asarray(wf.compile(device="gpu:0", passes="gpu_reproducible")(layer)(x, w))


@needs_toolchain
@pytest.mark.parametrize("program", [layer_in_a_session, layer_called])
def test_kernels_of_another_pipeline(
    program: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 20), (20, 30)))
    monkeypatch.setenv("WEFT_DUMP", "dumps")
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    expected = program(x, w)
    monkeypatch.delenv("WEFT_DUMP")
    (folder,) = tmp_path.glob("dumps/*")  # a session's step begins with the whole graph
    (traced,) = [*folder.glob("*-step.weft")] or [*folder.glob("00-traced.weft")]
    for name, options in (("exact", ["--passes", "gpu_reproducible"]), ("plain", [])):
        assert main(["compile", "--target", "sm_90", "-o", name, *options, str(traced)]) == 0
    for folder in ("exact", "plain"):
        forget_cubins()
        api = FakeDriver(Shipped())
        use_driver(api, monkeypatch)
        monkeypatch.setenv("WEFT_CUBINS", folder)
        if folder == "plain":  # other kernels
            with pytest.raises(AssertionError, match="no machine code of"):
                program(x, w)
        else:
            assert program(x, w).tobytes() == expected.tobytes()
            manifest = json.loads((tmp_path / folder / "manifest.json").read_text())
            assert {row["key"] for row in manifest["cubins"]} == set(api.compiler.kernels)


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
        (
            ["--target", "h100"],
            "--target h100: a target is cpu, x86-64-v2",
        ),
        (["--target", "sm_90,"], "--target : a target is cpu"),
        (["--target", "sm_90", "--size", "m=5"], "no symbolic dimension 'm'"),
        (["--target", "sm_90", "--size", "n=big"], "--size n=big: the size must be an integer"),
        (["--target", "sm_70", "--size", "n=3"], "not compiled for sm_70"),
        (["--target", "sm_90", "--passes", "fast"], "there is no pass 'fast'"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    symbolic_graph(tmp_path / "g.weft")
    assert main(["compile", *options, "g.weft"]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "g.cubins").exists()


def saved_graph(path: Path, *, named: bool) -> wf.Graph:
    """A training step, and what it is trained for, on /gpu:0."""
    with wf.Graph().as_default() as graph, wf.device("/gpu:0"):
        x = wf.placeholder(wf.float32, ["n", 6], name="x")
        w = wf.Variable(np.ones((6, 4), np.float32), name="w")
        y = wf.exp(wf.matmul(x, w))
        if named:
            wf.name_tensor(y, "y")
            loss = wf.mean(wf.square(y - 1))
            wf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    graph.save(path)
    return graph


@needs_toolchain
@pytest.mark.parametrize("fetches", [["y"], ["train"], ["y", "train"]])
def test_a_step_of_a_saved_graph(
    fetches: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = saved_graph(tmp_path / "g.weft", named=True)
    options = ["--target", "sm_90", "--size", "n=5", "--fetch", ",".join(fetches)]
    assert main(["compile", *options, "g.weft"]) == 0
    assert "--fetch" not in capsys.readouterr().out
    with wf.Session(graph=graph) as session:
        graph.variables[0].state.write(np.ones((6, 4), np.float32))
        api = FakeDriver(Shipped())
        use_driver(api, monkeypatch)
        monkeypatch.setenv("WEFT_CUBINS", "g.cubins")
        session.run(fetches, {"x": np.ones((5, 6), np.float32)})
    assert api.compiler.compiled  # and all of it was there


@needs_toolchain
def test_all_that_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_graph(tmp_path / "g.weft", named=True)
    assert main(["compile", "--target", "sm_90", "--size", "n=5", "g.weft"]) == 0
    told = capsys.readouterr().out
    assert "of a step that gives all of: x, y, train, w/initial_value; --fetch" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "the graph 'graph' has no kernels: nothing is computed for its results (f32[5,6])"),
        (["--fetch", "x"], "has no kernels"),
        (["--fetch", "z"], "--fetch z: nothing in the graph 'graph' has this name"),
        (["--target", "sm_53"], "not compiled for sm_53"),
        pytest.param(["--target", "sm_999"], "does not know sm_999", marks=needs_toolchain),
    ],
)
def test_a_graph_that_computes_nothing(
    options: list[str], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with wf.Graph().as_default() as graph:
        wf.exp(wf.placeholder(wf.float32, ["n", 6], name="x"))
    graph.save(tmp_path / "g.weft")
    target = [] if "--target" in options else ["--target", "sm_90"]
    assert main(["compile", *target, "--size", "n=5", *options, "g.weft"]) == 2
    error = capfd.readouterr().err
    assert told in error
    assert error.startswith("weft: error: ")  # LLVM has said nothing
    assert ("--fetch name" in error) == ("has no kernels" in told)
    assert not (tmp_path / "g.cubins").exists()


@needs_toolchain
def test_an_unknown_architecture_is_refused_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    symbolic_graph(tmp_path / "g.weft")
    assert main(["compile", "--target", "sm_90,sm_999", "--size", "n=5", "g.weft"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
    with pytest.raises(wf.errors.ToolchainError, match="does not know sm_999"):
        compile_kernel(compile_for_device(wf.compile(scaled).trace(np.ones(3, np.float32)),
                       find=no_device).plan.kernels()[0], (99, 9))  # fmt: skip
    assert capfd.readouterr().err == ""


def test_a_step_in_parts_has_several_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [3], name="x")
        with wf.device("/cpu:0"):
            y = wf.exp(x)
        with wf.device("/gpu:0"):
            wf.name_tensor(y * 2, "z")
    graph.save(tmp_path / "g.weft")
    assert main(["compile", "--target", "sm_90", "--fetch", "z", "g.weft"]) == 2
    error = capsys.readouterr().err
    assert "the step has a part for each device: op 'exp' is on /cpu:0" in error
    assert "WEFT_DUMP" in error


@needs_toolchain
@pytest.mark.parametrize("command", ["compile", "opt", "view", "run"])
def test_what_cannot_be_written(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_graph(tmp_path / "g.weft", scaled, np.ones(3, np.float32))
    (tmp_path / "file").touch()
    out = {"compile": ["--target", "sm_90", "-o", "file"], "run": ["--seed", "0", "--save", "file"]}
    assert main([command, *out.get(command, ["-o", "file/g"]), "g.weft"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("weft: error: ")
    assert "cannot be written" in error
    assert len(error.splitlines()) == 1


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
