"""`wf.compile(math=)` and `wf.Session(math=)`: which products of f32 libraries may do in tf32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.compile.gpu import gpu_number
from weft.ir.dtypes import MATH_MODES, checked_math
from weft.runtime.device.execution.executable import DeviceExecutable

X, W = np.ones((20, 30), np.float32), np.full((30, 40), 1 + 2.0**-20, np.float32)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")


def product(x: Any, w: Any) -> Any:
    return wf.matmul(x, w)


def test_ieee_is_the_default_and_the_mode_is_in_the_plan() -> None:
    assert gpu_number("gpu:0") == 0
    for mode in (None, *MATH_MODES):
        options: dict[str, Any] = {} if mode is None else {"math": mode}
        function = wf.compile(device="gpu:0", **options)(product)
        text = function.explain(X, W)
        assert f"products of f32: {mode or 'ieee'}" in text
        (made,) = function._specializations.entries.values()
        executable = made.executable()
        assert isinstance(executable, DeviceExecutable)
        assert executable.plan.math == (mode or "ieee")


def test_own_kernels_do_not_round() -> None:
    function = wf.compile(device="gpu:0", math="tf32")(product)
    np.testing.assert_allclose(np.asarray(function(X, W)), X @ W, rtol=1e-6)
    assert not np.allclose(np.asarray(function(X, W)), 30, rtol=1e-7, atol=0)


def test_the_cpu_says_that_it_has_no_mode() -> None:
    asked = wf.compile(math="tf32")(product).explain(X, W)
    assert asked.endswith("math='tf32' is for GPUs: the CPU has no such mode")
    plain = wf.compile(product).explain(X, W)
    assert "is for GPUs" not in plain


def test_methods_and_copies_keep_the_mode() -> None:
    class Model:
        @wf.compile(device="gpu:0", math="tf32")
        def apply(self, x: Any) -> Any:
            return x @ x

    model = Model()
    assert "products of f32: tf32" in model.apply.explain(X[:, :20])


def test_sessions() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None, 30])
        with wf.device("/gpu:0"):
            y = wf.matmul(x, wf.constant(W))
    for rows in (2, 3, 4, 5):
        with wf.Session(graph=graph, math="tf32") as session:
            np.testing.assert_allclose(session.run(y, {x: X[:rows]}), X[:rows] @ W, rtol=1e-6)
            assert "products of f32: tf32" in session.explain(y, {x: X[:rows]})
    with wf.Session(graph=graph) as session:
        assert "products of f32: ieee" in session.explain(y, {x: X})


def test_other_names_are_refused() -> None:
    with pytest.raises(
        wf.errors.InvalidArgumentError, match="there is no math mode 'tf31'; did"
    ) as e:
        wf.compile(math="tf31")
    assert "the modes are: ieee, tf32" in str(e.value)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"wf\.Session\(math=\)"):
        wf.Session(math="fast")
    assert checked_math("ieee", "x") == "ieee"
    with pytest.raises(wf.errors.UnsupportedError, match="math='tf32'\\) is for one process"):
        wf.Session("tcp://127.0.0.1:1", math="tf32")
