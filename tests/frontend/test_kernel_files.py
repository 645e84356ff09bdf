"""Kernels as files: what is printed, dumped, checked beside the generated code, and put in its
place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.main import main
from weft.ir.errors import UnsupportedError

Array = np.ndarray[Any, Any]
MARK = "# weft kernel "
X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


def replaced() -> list[Path]:
    return sorted(Path(os.environ["WEFT_CACHE_DIR"]).glob("replaced/*.py"))


def check(path: Path, *more: str) -> int:
    return main(["kernel", "check", str(path), "--seconds", "0.01", *more])


def softmax(x: Any) -> Any:
    return wf.nn.softmax(x * 2)


def steps(n: Any, x: Any) -> Any:
    return wf.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v * 3), (0, x))[1]


def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *args: Any, f: Any = softmax) -> Path:
    """The folder of the kernels of a dump of a function, which has run."""
    with monkeypatch.context() as patch:
        patch.setenv("WEFT_DUMP", str(tmp_path / "dump"))
        wf.compile(f)(*args)
    return tmp_path / "dump" / f.__name__ / "kernels"


def edited(folder: Path, old: str, new: str) -> Path:
    """The row kernel's file, with something else in it."""
    (path,) = folder.glob("rows-*.py")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


class TestSource:
    def test_header_says_where_it_comes_from(self) -> None:
        (kernel,) = wf.compile(softmax).kernels(X)
        text = kernel.source()
        assert text.startswith(f"{MARK}{kernel.key}\n")
        lines = text.splitlines()
        assert any(line.startswith("# ops: ") and "multiply, max, " in line for line in lines)
        assert any(line.startswith("# from ") and "test_kernel_files.py" in line for line in lines)
        assert "# operands: in0 f32[6,8]" in lines
        assert "#   n0 = 6" in lines

    def test_it_is_python(self) -> None:
        """Without Numba, on NumPy's arrays."""
        (kernel,) = wf.compile(lambda x, y: wf.exp(x) + y).kernels(X, X[0])
        scope: dict[str, Any] = {}
        exec(kernel.source(), scope)
        out = np.zeros_like(X)
        scope["kernel"](out, X, X[0], *X.shape, 0, len(X))
        np.testing.assert_allclose(out, np.exp(X) + X[0], rtol=1e-5)

    def test_session(self) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.float32, [None], "x")
            (kernel,) = session.kernels(wf.exp(x), {x: [1.0, 2.0]})
            assert "exp(x0)" in kernel.source()

    def test_dataflow_steps_have_none(self) -> None:
        with wf.Graph().as_default(), wf.Session(control_flow="dataflow") as session:
            x = wf.placeholder(wf.float32, [2], "x")
            with pytest.raises(UnsupportedError, match="runs on 'dataflow'"):
                session.kernels(wf.exp(x), {x: [1.0, 2.0]})

    def test_a_loop_in_registers(self) -> None:
        (kernel,) = wf.compile(steps).kernels(np.array(4), np.float32(1))
        text = kernel.source()
        assert kernel.key.startswith("loop-")
        assert "# ops: while, less, add, multiply" in text
        assert "    while s0 < v1:\n" in text

    def test_engines_name_the_same_keys(self) -> None:
        keys = [
            [k.key for k in wf.compile(softmax, engine=engine).kernels(X)]
            for engine in ("llvm", "numba")
        ]
        assert keys[0] == keys[1]


class TestCheck:
    def test_dump(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = dumped(tmp_path, monkeypatch, X)
        names = sorted(p.name for p in folder.iterdir())
        assert [n for n in names if not n.startswith("rows-")] == [
            "inputs.npz", "kernels.json", "memory.json", "step.weft"
        ]  # fmt: skip
        (row,) = json.loads((folder / "kernels.json").read_text()).values()
        assert (folder / row["file"]).read_text().startswith(MARK)
        with np.load(folder / "inputs.npz") as held:
            np.testing.assert_array_equal(held["x0"], X)

    @pytest.mark.slow
    def test_agrees(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (path,) = dumped(tmp_path, monkeypatch, X).glob("rows-*.py")
        assert check(path) == 0
        said = capsys.readouterr().out
        for what in ("the step's", "random (0)", "random (1)", "random (2)"):
            assert f"on {what} arguments: the same, within the tolerance" in said
        assert "the generated kernel's time (min)" in said

    def test_differs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = dumped(tmp_path, monkeypatch, X)
        path = edited(folder, "= exp(", "= float32(2) * exp(")
        assert check(path) == 0  # it cancels out
        path = edited(folder, "x0 * x1" if "x0 * x1" in path.read_text() else "v0 * v1",
                      "v0 * v1 * v1")  # fmt: skip
        capsys.readouterr()
        assert check(path) == 1
        assert "on the step's arguments: result 0 at [0, 0] is" in capsys.readouterr().out
        assert main(["kernel", "use", str(path)]) == 1
        assert "not put in place: the results differ" in capsys.readouterr().out
        assert not replaced()

    def test_what_is_wrong_with_a_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fails(path: Path, message: str) -> None:
            assert check(path) == 2
            assert message in capsys.readouterr().err

        folder = dumped(tmp_path, monkeypatch, X)
        fails(folder / "none.py", "there is no file")
        other = tmp_path / "kernel.py"
        other.write_text("def kernel(): pass\n")
        fails(other, "does not begin with '# weft kernel KEY'")
        (path,) = folder.glob("rows-*.py")
        other.write_text(path.read_text())
        fails(other, "does not lie in a dump")
        assert check(other, "--dump", str(folder)) == 0
        fails(edited(folder, "= exp(", "= exq("), "Numba cannot compile the kernel")
        fails(edited(folder, "def kernel(out0, ", "def kernel(out, "), "takes (out, in0")
        fails(edited(folder, "def kernel(", "def colonel("), "has no function 'kernel'")


class TestLoops:
    """Loops that are one kernel, and kernels of stacks."""

    ARGS = np.array(5), np.float32(2)

    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (path,) = dumped(tmp_path, monkeypatch, *self.ARGS, f=steps).glob("loop-*.py")
        return path

    @pytest.mark.slow
    def test_check_and_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = self.file(tmp_path, monkeypatch)
        text = path.read_text()
        path.write_text(text.replace("s1 * v0", "s1 * (v0 + v0)"))
        assert path.read_text() != text
        assert check(path) == 1
        assert "on the step's arguments: result 1 at [0] is" in capsys.readouterr().out
        path.write_text(text.replace("s1 * v0", "v0 * s1"))
        assert path.read_text() != text
        assert main(["kernel", "use", str(path)]) == 0
        assert "on the step's arguments: the same" in capsys.readouterr().out
        f = wf.compile(steps)
        assert float(f(*self.ARGS)) == 486
        assert f"{replaced()[0].stem}.py, by `weft kernel use`" in f.explain(*self.ARGS)
        assert f.kernels(*self.ARGS)[0].replaced_by is not None

    def test_what_is_used_is_what_the_file_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = self.file(tmp_path, monkeypatch)
        path.write_text(path.read_text().replace("out1[0] = s1", "out1[0] = 7"))
        assert main(["kernel", "use", str(path), "--unchecked"]) == 0
        assert float(wf.compile(steps)(*self.ARGS)) == 7

    def test_a_file_whose_loop_does_not_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("weft.runtime.native.kernel_check.LONGEST", 0.1)
        path = self.file(tmp_path, monkeypatch)
        path.write_text(path.read_text().replace("s0 = v3", "s0 = s0 * 0"))
        assert check(path) == 2
        assert "the kernel was stopped after 0.1 s" in capsys.readouterr().err

    @pytest.mark.slow
    def test_random_arguments_on_which_a_loop_does_not_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def halved(x: Any) -> Any:
            return wf.while_loop(lambda v: wf.abs(v - 1) > 0.5, lambda v: v * 0.75, x)

        monkeypatch.setattr("weft.runtime.native.kernel_check.LONGEST", 0.1)
        folder = dumped(tmp_path, monkeypatch, np.float32(9), f=halved)
        (path,) = folder.glob("loop-*.py")
        assert check(path) == 0
        assert "random arguments 0: the loop has not ended in 0.1 s" in capsys.readouterr().out

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [1, 100], ids=["in registers", "arrays"])
    def test_stacks(
        self, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        def kept(x: Any) -> Any:
            going, step = lambda v: wf.sum(v) < 300, lambda v: v + v * v * 0.5
            return wf.grad(lambda x: wf.sum(wf.while_loop(going, step, x)))(x)

        x = np.linspace(1, 2, size).astype(np.float32)
        folder = dumped(tmp_path, monkeypatch, x, f=kept)
        paths = sorted(folder.glob("loop-*.py" if size == 1 else "numba-arena-p*.py"))
        assert len(paths) == 2
        for path in paths:
            assert check(path) == 0, path
        said = capsys.readouterr().out
        assert said.count("random (2) arguments: the same") == 2
        assert said.count("the step's arguments: the same") == (2 if size == 1 else 0)
        for path in paths:
            text = path.read_text()
            wrong = text.replace("data[i]\n", "data[i] ^ 1\n").replace("= value[i]", "= 1")
            wrong = wrong.replace("top0[0] = s0", "top0[0] = s0 + 1").replace("= top0[0]", "= s0")
            path.write_text(wrong)
            assert wrong != text
            assert check(path) == 1, path


class TestUse:
    def test_in_place_and_out_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = edited(dumped(tmp_path, monkeypatch, X), "= exp(", "= float32(7) * exp(")
        assert main(["kernel", "use", str(path)]) == 0
        out = capsys.readouterr().out
        key = replaced()[0].stem
        assert f"weft kernel drop {key}" in out

        f = wf.compile(softmax)
        np.testing.assert_allclose(np.asarray(f(X)).sum(-1), 1, rtol=1e-5)
        text = f.explain(X)
        assert "replaced kernels" in text
        assert f"{key}.py, by `weft kernel use`" in text
        assert f.kernels(X)[0].replaced_by is not None
        # other sizes have the same kernel
        more = wf.compile(softmax)
        np.testing.assert_allclose(np.asarray(more(X[:3])).sum(-1), 1, rtol=1e-5)
        assert "replaced kernels" in more.explain(X[:3])

        assert main(["kernel", "list"]) == 0
        assert key in capsys.readouterr().out
        assert main(["kernel", "drop", key]) == 0
        assert "the generated kernel is used again" in capsys.readouterr().out
        g = wf.compile(softmax)
        g(X)
        assert "replaced kernels" not in g.explain(X)
        assert main(["kernel", "drop", key]) == 2
        assert "nothing replaces the kernel" in capsys.readouterr().err
        assert main(["kernel", "drop"]) == 2

    def test_what_it_does_is_what_the_file_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = dumped(tmp_path, monkeypatch, X)
        (path,) = folder.glob("rows-*.py")
        lines = path.read_text().splitlines()
        last = max(k for k, line in enumerate(lines) if "out0[" in line)
        start = lines[last].split("=")[0]
        lines[last] = f"{start}= float32(5)"
        path.write_text("\n".join(lines) + "\n")
        assert main(["kernel", "use", str(path), "--unchecked"]) == 0
        assert (np.asarray(wf.compile(softmax)(X)) == 5).all()
        with wf.Graph().as_default(), wf.Session() as session:
            assert (session.run(softmax(wf.constant(X))) == 5).all()
        assert main(["kernel", "drop", "--all"]) == 0
        assert (np.asarray(wf.compile(softmax)(X)) != 5).all()

    def test_a_file_that_others_may_write_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (path,) = dumped(tmp_path, monkeypatch, X).glob("rows-*.py")
        assert main(["kernel", "use", str(path), "--unchecked"]) == 0
        (copy,) = replaced()
        copy.chmod(0o666)
        capsys.readouterr()
        assert main(["kernel", "list"]) == 0
        assert "no kernel is replaced" in capsys.readouterr().out

    @pytest.mark.slow
    def test_programs_whose_operands_have_other_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What follows a product is one kernel wherever it stands."""
        with monkeypatch.context() as patch:
            patch.setenv("WEFT_DUMP", str(tmp_path / "dump"))
            wf.compile(lambda x: wf.exp(x))(X)
        (path,) = (tmp_path / "dump").glob("*/kernels/nest-*.py")
        assert main(["kernel", "use", str(path), "--unchecked"]) == 0
        got = wf.compile(lambda x, y: wf.exp(x @ y))(X, X.T)
        np.testing.assert_allclose(got, np.exp(X @ X.T), rtol=1e-5)

    @pytest.mark.parametrize("text", [b"hello", b"\xff"])
    def test_a_file_that_is_no_kernel_stops_nobody(
        self, text: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = Path(os.environ["WEFT_CACHE_DIR"])
        for made in (folder, folder / "replaced"):
            made.mkdir(mode=0o700)
        file = folder / "replaced" / "notes.py"
        file.write_bytes(text)
        file.chmod(0o600)
        np.testing.assert_allclose(wf.compile(softmax)(X).numpy().sum(axis=1), 1, rtol=1e-5)
        assert f"{file} is no kernel" in caplog.text
