"""Scalar functions of the user's on GPUs: emulated, and as PTX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device

import weft as wf
from weft.codegen.cuda.cubins.compile import module_text, ptx_of
from weft.codegen.cuda.emulator import launch
from weft.codegen.cuda.source.kernel import CudaKernel, UserFunction, user_function


@wf.elementwise
def bent(x: Any, n: Any, *, slope: float = 0.5) -> Any:
    if x > 0:
        return x % 0.7 + math.erf(x) + x**2.5
    for _ in range(n):
        x = slope * (math.exp(x) - 1)
    return x


@wf.elementwise
def is_odd(n: Any) -> Any:
    while n > 1:
        n -= 2
    return n == 1


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[CudaKernel]:
    """What an emulated GPU was given."""
    found: list[CudaKernel] = []
    read = launch.read

    def noted(kernel: CudaKernel) -> Any:
        found.append(kernel)
        return read(kernel)

    monkeypatch.setattr(launch, "read", noted)
    use_device("check", monkeypatch)
    return found


def steps(x: Any, n: Any) -> Any:
    y = bent(x, n)
    return y * 2 + 1, wf.sum(y), wf.nn.softmax(bent(y, n)), is_odd(n)


def given(dtype: str) -> Any:
    x = np.random.default_rng(3).normal(size=(5, 67)).astype(dtype)
    return x, np.arange(67) % 3


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_gpu_computes_what_the_processor_does_and_its_ptx_has_no_call(
    kernels: list[CudaKernel], dtype: str
) -> None:
    got = wf.compile(steps, device="gpu:0")(*given(dtype))
    wanted = wf.compile(steps)(*given(dtype))
    limit = 1e-5 if dtype == "f4" else 1e-12
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=limit, atol=limit)
    mine = {k.key: k for k in kernels if "user_" in k.source}
    assert mine
    for kernel in mine.values():  # its PTX has the function inline, at the dtype alone
        ptx = ptx_of(module_text(kernel, "entry", (9, 0)), (9, 0))
        assert ".visible .entry entry(" in ptx
        assert "user_" not in ptx
        if dtype == "f4":
            assert ".f64" not in ptx
        if "_fif_" in kernel.source:
            end = "f" if dtype == "f4" else ""
            for name in ("exp", "erf", "pow", "fmod"):
                assert f"__nv_{name}{end}" in ptx


def test_names_hold_the_signature() -> None:
    function = UserFunction("0123abcd", "fib", "u", "f32")
    assert user_function(function.name) == function
    assert function.signature == (("f32", "i64", "bool"), "u64")
    assert user_function("exp_f32") is None
