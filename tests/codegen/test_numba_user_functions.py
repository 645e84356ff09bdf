"""Functions of the user's in printed kernels: their text, what stands before it, what is named
instead, and how Numba types them."""

from __future__ import annotations

import math
import operator
import os
import subprocess
import sys
from math import exp
from math import log1p as log_of_more
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.numba.scalar_typing import all_floats
from weft.frontend.tools.main import main
from weft.ir.ops.scalar_function import REPLACED

X = np.linspace(-2, 2, 9, dtype=np.float32)
RATE, SMALL, FAR = 0.25, np.float32(0.5), math.inf
TABLE = (0.1, 2)


def slope(x: float, factor: float = 0.1) -> float:
    return x * factor * RATE


@wf.elementwise
def bent(x: Any, *, low: float = -1.0) -> Any:
    """Two sides,

    in two paragraphs."""
    if x > 0:
        return slope(x)  # a straight line
    return exp(x) + low if x > -FAR else log_of_more(SMALL)


def printed(f: Any, *args: Any) -> str:
    """The source of the only kernel, from its imports on."""
    (kernel,) = wf.compile(f).kernels(*args)
    text: str = kernel.source()
    return text[text.index("\n\n") + 2 :]


def near(f: Any, *args: Any) -> None:
    """Both engines give the same, in the same dtype."""
    one, other = wf.compile(f)(*args), wf.compile(f, engine="numba")(*args)
    assert one.dtype is other.dtype
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_file_has_all_that_the_function_needs() -> None:
    text = printed(lambda x: bent(x) * 2, X)
    assert text.startswith(
        '''\
from math import exp
from math import log1p as log_of_more
import numpy as np
from numpy import float32

from weft.codegen.numba.scalar_typing import all_floats


RATE = 0.25
FAR = float("inf")
SMALL = np.float32(0.5)


@all_floats(float32)
def slope(x, factor=0.1):
    return x * factor * RATE


@all_floats(float32)
def user_bent(x, low):
    """Two sides,

    in two paragraphs."""
    if x > 0:
        return slope(x)  # a straight line
    return exp(x) + low if x > -FAR else log_of_more(SMALL)


def kernel('''
    )
    assert " = user_bent(x0, x1)" in text
    near(lambda x: bent(x) * 2, X)
    near(lambda x: bent(x) * 2, X.astype("f8"))


def test_names_that_mean_two_things() -> None:
    def make(rate: float) -> Any:
        @wf.elementwise
        def bent(x: Any) -> Any:
            return x * rate if x > 0 else exp(x)

        return bent

    two, three = make(2.0), make(3.0)

    def f(x: Any) -> Any:
        return wf.exp(x) + bent(x) + two(x) * three(x)  # weft's exp, and math's

    text = printed(f, X)
    assert "user_bent_2 = _make_user_bent_2()" in text
    assert "    rate = 3.0\n" in text
    assert text.count("    from math import exp\n") == 3
    near(f, X)


def test_lambdas_and_one_line() -> None:
    f, g = wf.elementwise(lambda x: x if x > 0 else 2 * x), wf.elementwise(lambda x: x // 2)

    def h(x: Any) -> Any: return x if x > 1 else -x  # fmt: skip

    made = lambda x: f(x) + wf.elementwise(h)(x) + g(x)  # noqa: E731
    text = printed(made, X)
    assert "def user_function(x):\n    return x if x > 0 else 2 * x\n" in text
    assert "def user_h(x):\n    return x if x > 1 else -x\n" in text
    near(made, X)


@pytest.mark.slow
def test_what_has_no_text_is_named_and_the_file_says_why() -> None:
    scope: dict[str, Any] = {"math": math}
    exec("def hidden(x):\n    return x if x > 0 else math.exp(x)", scope)
    hidden = wf.elementwise(scope["hidden"])
    text = printed(lambda x: hidden(x) + 1, X)
    assert "hidden is not printed: its source is not to be had (<string>:1)." in text
    assert 'user_hidden = named_function("' in text
    near(lambda x: hidden(x) + 1, X)

    @wf.elementwise
    def added(x: Any) -> Any:
        return operator.add(x, 1.5) if x > 0 else x

    text = " ".join(printed(lambda x: added(x) * 2, X).replace("\n#", "").split())
    assert "added is not printed: it uses the module 'operator'." in text
    near(lambda x: added(x) * 2, X)


def test_tuples_of_numbers() -> None:
    @wf.elementwise
    def looks_up(x: Any) -> Any:
        return TABLE[0] * x if x > 0 else TABLE[1]

    assert "\nTABLE = (0.1, 2)\n" in printed(lambda x: looks_up(x) * 2, X)
    near(lambda x: looks_up(x) * 2, X)


def test_source_that_was_edited_since_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "edited_ops.py"
    file.write_text("def later(x):\n    return x if x > 0 else x * 2\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    later = wf.elementwise(scope["later"])
    file.write_text("def later(x):\n    return x if x > 0 else x * 3\n")
    text = " ".join(printed(lambda x: later(x) + 1, X).replace("\n#", "").split())
    assert f"the source at {file}:1 is not, or no longer, that of the function" in text


def test_all_floats_are_of_one_dtype() -> None:
    @all_floats(np.float32)
    def mixed(x, n):  # type: ignore[no-untyped-def]
        total = 0
        for k in range(n):
            total += x * k
        made = total / 3 + max(x, 0.5) + x**2 + math.pi + np.tanh(n) + np.float64(x) + n / 7
        return made if x < 1e9 else n

    x, n = np.float32(0.7), 4
    a = np.float32
    wanted = x * 6 / a(3) + x + x * x + a(math.pi) + np.tanh(a(4)) + x + a(4) / a(7)
    assert mixed(x, n) == pytest.approx(wanted, rel=1e-6)
    assert {str(s.return_type) for s in mixed.nopython_signatures} == {"float32"}
    (llvm,) = mixed.inspect_llvm().values()
    body = llvm[llvm.index("define") :].split("\n}\n")[0]
    assert "double" not in body


class TestFiles:
    """`weft kernel`, and kernels of the user's for ops of weft's."""

    @pytest.fixture(autouse=True)
    def own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))

    def dumped(self, f: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        with monkeypatch.context() as patch:
            patch.setenv("WEFT_DUMP", str(tmp_path / "dump"))
            wf.compile(f)(X)
        (path,) = tmp_path.glob("dump/*/kernels/*.py")
        return path

    @pytest.mark.slow
    def test_an_edited_function(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = self.dumped(lambda x: bent(x) * 2, tmp_path, monkeypatch)
        assert main(["kernel", "check", str(path), "--seconds", "0.01"]) == 0
        assert "on random (2) arguments: the same" in capsys.readouterr().out
        path.write_text(path.read_text().replace("return slope(x)", "return slope(x, 0.2)"))
        assert main(["kernel", "check", str(path), "--seconds", "0.01"]) == 1
        assert main(["kernel", "use", str(path), "--unchecked"]) == 0
        got = np.asarray(wf.compile(lambda x: bent(x) * 2)(X))
        np.testing.assert_allclose(got[X > 0], X[X > 0] * 0.1, rtol=1e-6)
        assert main(["kernel", "drop", "--all"]) == 0

    def test_a_kernel_of_the_users_for_an_op(self) -> None:
        def clamped(x: Any) -> Any:
            if x > 1:
                return 1
            return x if x > -1 else -1

        try:
            wf.register_kernel("tanh", dtypes=[wf.float32])(clamped)
            text = printed(lambda x: wf.tanh(x) + 1, X)
            near(lambda x: wf.tanh(x) + 1, X)
        finally:
            REPLACED.clear()
        assert "v0 = user_clamped(x0)" in text

    @pytest.mark.slow
    def test_in_another_process(self, tmp_path: Path) -> None:
        """The module that defines the function has to be imported."""
        (tmp_path / "my_ops.py").write_text(
            "import math\nimport weft as wf\n\n@wf.elementwise\ndef bent(x):\n"
            "    return x if x > 0 else math.exp(x) - 1\n"
        )

        def run(*command: str, **more: str) -> str:
            made = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, env={**os.environ, **more},
                capture_output=True, text=True,
            )  # fmt: skip
            return made.stdout + made.stderr

        make = "import sys; sys.path.insert(0, ''); import my_ops, numpy as np, weft as wf; "
        make += "wf.compile(lambda x: my_ops.bent(x) * 2)(np.ones(5, 'f4'))"
        run("-c", make, WEFT_DUMP="dump")
        (path,) = tmp_path.glob("dump/*/kernels/*.py")
        assert "all_floats" in path.read_text()
        check = ("-m", "weft", "kernel", "check", str(path), "--seconds", "0.01")
        assert "weft kernel check --import my_ops" in run(*check)
        said = run(*check, "--import", "my_ops")
        assert "on the step's arguments: the same" in said
        assert "on random (2) arguments: the same" in said
