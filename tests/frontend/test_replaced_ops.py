"""`wf.register_kernel` of elementwise ops that weft has, by both engines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device

import weft as wf
from weft.ir.ops.scalar_function import REPLACED

X = np.linspace(-3, 3, 1001, dtype=np.float32)


@pytest.fixture(autouse=True, params=["llvm", pytest.param("numba", marks=pytest.mark.slow)])
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", request.param)


@pytest.fixture(autouse=True)
def _own_code_after() -> Iterator[None]:
    yield
    REPLACED.clear()


def clamped(x: Any) -> Any:
    """A tanh that can be told from weft's."""
    if x > 1:
        return 1
    return x if x > -1 else -1


def test_it_fuses_where_the_op_would_and_keeps_the_gradient() -> None:
    wf.register_kernel("tanh", dtypes=[wf.float32])(clamped)
    f = wf.compile(lambda x: wf.tanh(x) * 2 + 1)
    np.testing.assert_allclose(f(X), np.clip(X, -1, 1) * 2 + 1, rtol=1e-6)
    assert "one call runs 1 native kernels" in f.explain(X)
    assert "clamped@" in f.explain(X)
    # the op's own: another dtype, the gradient, eager calls
    np.testing.assert_allclose(f(X.astype("f8")), np.tanh(X.astype("f8")) * 2 + 1, rtol=1e-12)
    np.testing.assert_allclose(wf.tanh(X), np.tanh(X), rtol=1e-6)
    slope = wf.compile(wf.grad(lambda x: wf.sum(wf.sin(wf.tanh(x)))))(X)
    made = np.clip(X, -1, 1)
    np.testing.assert_allclose(slope, np.cos(made) * (1 - made * made), rtol=1e-4, atol=1e-6)


def test_in_rows_small_loops_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    wf.register_kernel("tanh", dtypes=[wf.float32])(clamped)
    x = X[:1000].reshape(10, 100)
    made = np.exp(np.clip(x, -1, 1))
    f = wf.compile(lambda x: wf.nn.softmax(wf.tanh(x)))
    np.testing.assert_allclose(f(x), made / made.sum(1, keepdims=True), rtol=1e-5)
    loop = wf.compile(lambda x: wf.fori_loop(0, 3, lambda i, v: wf.tanh(v) * 2, x))
    assert loop(np.float32(0.7)).numpy() == 2
    monkeypatch.setenv("WEFT_ENGINE", "llvm")  # kernels of GPUs have no other engine
    use_device("check", monkeypatch)
    g = wf.compile(lambda x: wf.nn.softmax(wf.tanh(x)), device="gpu:0")
    np.testing.assert_allclose(g(x).numpy(), made / made.sum(1, keepdims=True), rtol=1e-5)


def test_two_operands_and_replacing() -> None:
    @wf.register_kernel("maximum", dtypes=[wf.float64, (wf.float32, wf.float32)])
    def larger(a: Any, b: Any) -> Any:
        return 100.0 if a > b else b

    f = wf.compile(lambda x: wf.maximum(x, 0.5))
    np.testing.assert_array_equal(f(X), np.where(X > 0.5, np.float32(100), np.float32(0.5)))
    with pytest.raises(wf.errors.AlreadyExistsError, match="replace=True"):
        wf.register_kernel("maximum", dtypes=wf.float64)(larger)
    wf.register_kernel("maximum", dtypes=wf.float64, replace=True)(lambda a, b: math.hypot(a, b))
    got = wf.compile(lambda x: wf.maximum(x, 0.5))(X.astype("f8"))
    np.testing.assert_allclose(got, np.hypot(X.astype("f8"), 0.5))


def test_bad_kernels() -> None:
    for op, options, error, match in (
        ("matmul", {"dtypes": wf.float32}, wf.errors.UnsupportedError, "takes no kernel"),
        ("tanh", {}, wf.errors.InvalidArgumentError, "say which dtypes"),
        ("tanh", {"dtypes": wf.float16}, wf.errors.InvalidArgumentError, "say which dtypes"),
        ("tanh", {"dtypes": wf.float32, "device": "tpu"}, wf.errors.UnsupportedError, "tpu"),
        ("tahn", {"dtypes": wf.float32}, wf.errors.NotFoundError, "no registered op 'tahn'"),
    ):
        with pytest.raises(error, match=match) as caught:
            wf.register_kernel(op, **options)
        assert "test_replaced_ops.py" in str(caught.value)
    wf.register_kernel("tanh", dtypes=wf.float32)(lambda x: x > 0)
    with pytest.raises(wf.errors.TypeRuleError, match="returns a bool, the op float32") as bad:
        wf.compile(lambda x: wf.tanh(x))(X)
    assert "test_replaced_ops.py" in str(bad.value)
