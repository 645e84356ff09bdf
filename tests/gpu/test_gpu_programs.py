"""Whole training programs on an emulated GPU that looks for races, against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_programs import PROGRAMS

import weft as wf
from weft.frontend.core import pytree

Array = np.ndarray[Any, Any]


_QUICK = ("lstm", "conv", "linear, momentum", "embedding, Adagrad", "dropout", "halves")


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS]
)
def test_a_program_computes_what_it_does_on_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "check")
    make, args = PROGRAMS[name]
    on_gpu, on_cpu = wf.compile(device="gpu:0")(make()), wf.compile(make())
    for _ in range(3):
        made, expected = pytree.tree_leaves(on_gpu(*args)), pytree.tree_leaves(on_cpu(*args))
        for value, other in zip(made, expected, strict=True):
            got, wanted = np.asarray(value), np.asarray(other)
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(
                got.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=1e-6
            )


def test_a_loop_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        def loss(x: wf.Tensor) -> wf.Tensor:
            y = wf.while_loop(
                lambda y: wf.sum(y) < 1e6, lambda y: wf.tanh(y) + y * 1.1, x, gradient_memory=1000
            )
            return wf.sum(y * y)

        return wf.grad(loss)(x)

    with pytest.raises(wf.errors.ResourceExhaustedError, match="gradient_memory=1,000"):
        step(np.ones((4, 4), np.float32))
    assert np.isfinite(step(np.full((4, 4), 9e4, np.float32))).all()
