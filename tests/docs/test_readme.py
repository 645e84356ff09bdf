"""README.md: its length, and what it says of sizes. `test_pages.py` runs its code."""

from __future__ import annotations

from typing import Any

import numpy as np
from paths import ROOT

import weft as wf
from weft.codegen.llvm.jit import compile_count

README = ROOT / "README.md"


def test_length() -> None:
    assert len(README.read_text().split()) <= 900


def test_another_batch_size_compiles_nothing_but_for_0_and_1() -> None:
    def loss(w: Any, x: Any) -> Any:
        return wf.sum(wf.nn.softmax(wf.nn.relu(x @ w)) ** 2)

    slope = wf.compile(wf.grad(loss))
    w = np.ones((8, 4), np.float32)

    def call(batch: int) -> int:
        """How many kernels a call compiles."""
        before = compile_count()
        slope(w, np.ones((batch, 8), np.float32))
        return compile_count() - before

    call(4)
    assert [call(batch) for batch in (2, 7, 129)] == [0, 0, 0]
    call(1)
    call(0)
    assert [call(batch) for batch in (1, 0, 5)] == [0, 0, 0]
