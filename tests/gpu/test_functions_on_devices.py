"""Compiled functions in which `wf.device` says which part runs on an (emulated) GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

F32 = np.float32


@pytest.fixture(autouse=True)
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


def test_a_part_on_the_gpu_and_the_rest_on_the_cpu() -> None:
    queue, v = wf.tf1.FIFOQueue(9, [wf.float32], [(3,)]), wf.Variable(np.ones(3, F32))

    @wf.compile
    def f(x: wf.Tensor) -> Any:
        with wf.device("gpu:0"):
            y = wf.exp(x) * 2.0
        queue.enqueue(y)
        v.assign_add(y)
        return y + 1.0, queue.dequeue(), x

    x = np.array([0, 1, 2], F32)
    for k in range(1, 3):
        y = np.exp(x) * 2
        more, taken, same = f(x)
        np.testing.assert_allclose(more.numpy(), y + 1, rtol=1e-6)
        np.testing.assert_allclose(taken.numpy(), y, rtol=1e-6)
        np.testing.assert_array_equal(same.numpy(), x)
        np.testing.assert_allclose(v.numpy(), 1 + k * y, rtol=1e-6)
    text = f.explain(x)
    assert "runs in parts on /cpu:0 and /gpu:0" in text
    assert "part of /gpu:0" in text
    assert "parts on /cpu:0 and /gpu:0" in f.summary(x)


def test_two_gpus_of_one_function() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        halves = []
        for k, half in enumerate((x[:2], x[2:])):
            with wf.device(f"gpu:{k}"):
                halves.append(wf.sum(half * half))
        return halves[0] + halves[1]

    assert float(f(np.array([1, 2, 3, 4], F32))) == 30.0
    assert "/gpu:1" in f.explain(np.ones(4, F32))


def test_a_whole_function_on_the_gpu_and_gradients_with_their_ops() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            return wf.grad(lambda t: wf.sum(wf.sin(t)))(x)

    x = np.array([0, 1, 2], F32)
    np.testing.assert_allclose(f(x).numpy(), np.cos(x), rtol=1e-6)


def test_open_sizes_and_loops() -> None:
    @wf.compile(input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            y = wf.fori_loop(0, 3, lambda i, t: t * 2.0, x)
        return wf.sum(y)

    for n in (3, 5):
        assert float(f(np.ones(n, F32))) == 8.0 * n


def test_the_cpu_alone_stays_native() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("/cpu:0"):
            return wf.exp(x)

    assert f.asm(np.ones(3, F32))


def test_a_device_that_is_not_there() -> None:
    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:7"):
            y = wf.exp(x)
        return y + 1.0

    with pytest.raises(wf.errors.WeftError, match=r"op 'exp' is to run on /gpu:7") as caught:
        f(np.ones(3, F32))
    assert caught.value.locations[0].file == __file__
    with pytest.raises(wf.errors.UnsupportedError, match=r"donate=, and op 'exp'.*/gpu:0"):
        wf.compile(lambda x: _on_gpu(x), donate="x")(wf.asarray(np.ones(3, F32), copy=True))


def _on_gpu(x: wf.Tensor) -> wf.Tensor:
    with wf.device("gpu:0"):
        y = wf.exp(x)
    return y + 1.0
