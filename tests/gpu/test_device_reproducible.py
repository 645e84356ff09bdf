"""The pipeline "gpu_reproducible": the bits of an op's results depend on its operands alone, on
nothing that comes before or after it. (The emulator rounds every product and sum by itself; that
machine code does, too, is read off the PTX.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_toolchain import needs_toolchain
from layers_in_parts import EVERY

import weft as wf
from weft.codegen.cuda.cubins.compile import emit_ptx
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.passes.pipelines import GPU_REPRODUCIBLE
from weft.passes.simplify.effects import strip_gradient_ops
from weft.runtime.device.backends import registry
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device

Array = np.ndarray[Any, Any]
_QUICK = ("softmax", "norm", "picked", "strided", "transposed sum", "matrix times vector", "mish")


def _planned(graph: Graph) -> DeviceExecutable:
    return compile_for_device(graph, find=lambda: registry.gpu(0), passes=GPU_REPRODUCIBLE)


def _one(op: Operation) -> Graph:
    """A graph of one op."""
    given = list(dict.fromkeys(op.operands))
    builder = Builder([v.type for v in given])
    made = builder.clone(op, dict(zip(given, builder.args, strict=True)))
    return builder.graph(op.name, [f"a{k}" for k in range(len(given))], list(made))


def _one_by_one(graph: Graph, inputs: Sequence[Array]) -> list[Any]:
    """The results where every op is a step of its own."""
    held: dict[Value, Any] = dict(zip(graph.args, inputs, strict=True))
    known: dict[str, DeviceExecutable] = {}
    for op in graph.ops:
        single = _one(op)
        text = str(single)
        if text not in known:
            known[text] = _planned(single)
        given = [np.ascontiguousarray(held[v]) for v in dict.fromkeys(op.operands)]
        held.update(zip(op.results, known[text].run(given), strict=True))
    return [held[v] for v in graph.results]


@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(EVERY)]
)
def test_each_layer_has_the_bits_of_its_ops_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 70)).astype(np.float32)
    w = (rng.normal(size=(70, 70)) / 8).astype(np.float32)
    layer = EVERY[name]
    function = wf.value_and_grad(lambda x, w: wf.sum(layer(x, w) * x), argnums=(0, 1))
    graph = strip_gradient_ops(wf.compile(function).trace(x, w))
    whole = _planned(graph).run([x, w])
    for k, (a, b) in enumerate(zip(_one_by_one(graph, [x, w]), whole, strict=True)):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes(), f"result {k}"


@needs_toolchain
def test_no_product_and_sum_become_one_fma() -> None:
    def step(x: wf.Tensor, y: wf.Tensor) -> Any:
        return x * y + 1.0, wf.sum(x * y - x, axis=1), wf.sum(x, axis=0)

    def count(passes: str) -> tuple[int, int]:
        made = wf.compile(device="gpu:0", passes=passes)(step)
        x = np.ones((64, 64), np.float32)
        kernels = made._specialized((x, x), {}).executable().plan.kernels()
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
