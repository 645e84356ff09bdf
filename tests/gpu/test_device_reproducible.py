"""The pipeline "gpu_reproducible": the bits of an op's results depend on its operands alone, on
nothing that comes before or after it. (The emulator rounds every product and sum by itself; that
machine code does, too, is read off the PTX.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_toolchain import needs_toolchain

import weft as wf
from weft.codegen.cuda.cubins.compile import emit_ptx


@needs_toolchain
def test_no_product_and_sum_become_one_fma() -> None:
    def step(x: wf.Tensor, y: wf.Tensor) -> Any:
        return x * y + 1.0, wf.sum(x * y - x, axis=1), wf.sum(x, axis=0)

    def count(passes: str) -> tuple[int, int]:
        made = wf.compile(device="gpu:0", passes=passes)(step)
        x = np.ones((64, 64), np.float32)
        executable: Any = made._specialized((x, x), {}).executable()
        kernels = executable.plan.kernels()
        text = "".join(emit_ptx(kernel, (9, 0)) for kernel in kernels)
        return text.count("fma.rn.f32"), text.count("mul.rn.f32")

    fused, products = count("gpu")
    assert fused > 0
    fused, products = count("gpu_reproducible")
    assert fused == 0
    assert products > 0


def test_sessions_on_a_gpu_are_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    x = np.random.default_rng(0).normal(size=(37, 130)).astype(np.float32)
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session(reproducible=True) as session:
        fed = wf.placeholder(wf.float32, [None, 130])
        middle = wf.tanh(fed * 1.25 + 0.5)
        last = wf.sum(wf.nn.softmax(middle * 3.0 + fed), axis=0)
        for rows in (37, 30, 20):
            whole, (between,) = (
                session.run(last, {fed: x[:rows]}),
                session.run([middle], {fed: x[:rows]}),
            )
            cut = session.run(last, {fed: x[:rows], middle: between})
            assert whole.tobytes() == cut.tobytes()
