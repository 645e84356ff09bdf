"""Operands of products that are computed while they are multiplied: against the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything, same_in_cuts

import weft as wf
from weft.codegen.products import gemm
from weft.ir.analysis.index_maps import over_rows
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion import prologues
from weft.passes.fusion.epilogues import fuse_matmul
from weft.passes.fusion.fuse import fuse
from weft.passes.fusion.product_operands import stride_products
from weft.passes.fusion.prologues import fuse_prologues, prologue_reasons
from weft.runtime.native.executable import Executable, compile_graph

Array = np.ndarray[Any, Any]


def of(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def relu(x: Any) -> Any:
    return wf.maximum(x, 0.0)


def places(rows: int, columns: int) -> Any:
    row = wf.reshape(wf.arange(columns), (1, columns))
    return wf.astype(wf.broadcast_to(row, (rows, columns)), wf.float32)


X, W, B, M = of(70, 33), of(33, 100), of(100), of(70, 33)
STACK, OTHER = of(4, 20, 33), of(4, 33, 15)
#: name -> (function, operands, kernels beside those that pack and add up)
FORMS: dict[str, tuple[Any, list[Array], int]] = {
    "activation": (lambda x, w: relu(x) @ w, [X, W], 1),
    "scale and shift": (lambda x, s, t, w: (x * s + t) @ w, [X, of(33), of(33), W], 1),
    "mask": (lambda x, m, w: wf.where(m > 0, x, 0.0) @ w, [X, M, W], 1),
    "numbers of its rows": (lambda x, r, w: (x / r) @ w, [X, np.abs(of(70, 1)) + 1, W], 1),
    "its position": (lambda x, w: (x * places(70, 33)) @ w, [X, W], 1),
    "a cast": (lambda x, w: wf.astype(x, wf.float32) @ w, [X.astype(np.float16), W], 1),
    "of a transposed left side": (
        lambda x, y: wf.matmul(relu(x), y, transpose_a=True), [of(50, 70), of(50, 30)], 1,
    ),
    "of the right side": (lambda x, w: x @ wf.tanh(w), [X, W], 1),
    "of both sides": (lambda x, w: relu(x) @ wf.tanh(w), [X, W], 1),
    "between prologue and epilogue": (
        lambda x, w, b: wf.tanh(relu(x) @ w + b), [X, W, B], 1,
    ),
    "with a bias gradient": (
        lambda x, w, h: (lambda d: (d, wf.sum(d, 0)))(wf.where(h > 0, relu(x) @ w, 0.0)),
        [X, W, of(70, 100)], 1,
    ),
    "a stack by one matrix": (lambda x, w: relu(x) @ w, [STACK, W], 1),
    "a stack by a stack": (lambda x, y: relu(x) @ y, [STACK, OTHER], 1),
    "a stack by a computed stack": (lambda x, y: x @ relu(y), [STACK, OTHER], 1),
    "over a transposed stack": (
        lambda x, y: wf.matmul(relu(x), y, transpose_a=True), [of(4, 33, 20), OTHER], 1,
    ),
    "a square": (lambda x, w: relu(x) @ w, [of(60, 60), of(60, 61)], 1),
    "f64": (lambda x, w: wf.exp(x) @ w, [v.astype(np.float64) for v in (X, W)], 1),
    "one matrix by a stack": (lambda x, y: relu(x) @ y, [of(20, 33), OTHER], 2),
    "of a transposed right side": (
        lambda x, w: wf.matmul(x, relu(w), transpose_b=True), [X, of(100, 33)], 2,
    ),
    "of the right side for many rows": (lambda x, w: x @ relu(w), [of(97, 33), W], 2),
    "for many columns": (lambda x, w: relu(x) @ w, [X, of(33, 1025)], 2),
    # rows of the stack, read where they are, are not those of one matrix: W would be made for each
    "beside a stack read backwards": (lambda x, w: x[:, ::-1] @ relu(w), [STACK, W], 2),
    "needed elsewhere": (lambda x, w: (lambda a: (a, a @ w))(relu(x)), [X, W], 2),
    "of two products": (lambda x, w, v: (lambda a: (a @ w, a @ v))(relu(x)), [X, W, W], 3),
    "twice": (
        lambda x: (lambda a: wf.matmul(a, a, transpose_a=True))(relu(x)), [X], 2,
    ),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["large blocks", "small blocks"], autouse=True)
def blocks(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether blocks are so small that products of these sizes have several."""
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        patch.setattr(prologues, "PROLOGUE_BYTES", 0)
        if request.param:
            for name, value in {"RUN": 16, "BLOCK_ROWS": 16}.items():
                patch.setattr(gemm, name, value)
        yield request.param


def kernels(step: Executable) -> list[str]:
    names = [c.call.kernel.name for c in step.report.calls]
    return [name for name in names if not name.startswith(("pack", "combine"))]


@pytest.mark.share(3)
@pytest.mark.parametrize("name", FORMS)
def test_against_the_interpreter_and_in_cuts(name: str, blocks: bool) -> None:
    function, operands, count = FORMS[name]
    graph = wf.compile(function)._specialized(tuple(operands), {}).traced.graph
    step = compile_graph(graph, passes=(fuse, fuse_matmul, stride_products, fuse_prologues))
    assert len(kernels(step)) == count, kernels(step)
    whole = step.run(operands)
    for got, wanted in zip(whole, interpret(graph, operands), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    same_in_cuts(step, operands, whole, cut=blocks)


def test_reasons() -> None:
    """Of what is stored, the rule that says so."""
    wanted = {
        "activation": "computed by the product",
        "of the right side for many rows": "97 rows would compute it more than once",
        "for many columns": "1025 columns would compute it more than once",
        "of a transposed right side": "packs it transposed",
        "one matrix by a stack": "several of the product's matrices",
    }
    for name, why in wanted.items():
        function, operands, _ = FORMS[name]
        graph = wf.compile(function)._specialized(tuple(operands), {}).traced.graph
        ((_, found),) = prologue_reasons(fuse_matmul(fuse(graph)))
        assert why in found


def test_what_stays_in_the_caches_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "PROLOGUE_BYTES", 4 * 70 * 33 + 1)
    function, operands, _ = FORMS["activation"]
    graph = wf.compile(function)._specialized(tuple(operands), {}).traced.graph
    ((_, found),) = prologue_reasons(fuse_matmul(fuse(graph)))
    assert "stays in the caches" in found


def test_an_operand_is_not_overwritten_while_it_is_read() -> None:
    """h is as large as the product and dies there; its rows are read again for other rows of C."""
    x, v = of(200, 200), of(200, 200) / 10

    @wf.compile
    def f(x: Any, v: Any) -> Any:
        h = wf.cumulative_sum(x, axis=0)
        return wf.matmul(relu(h), v, transpose_a=True) @ v

    wanted = np.maximum(np.cumsum(x, 0), 0).T @ v @ v
    np.testing.assert_allclose(f(x, v).numpy(), wanted, rtol=1e-3, atol=1e-2)
    step = f._specialized((x, v), {}).on_cpu("a test")
    assert "prologue" in str([c.call for c in step.report.calls])


def test_weights_that_are_written_later_are_stored_first() -> None:
    start, x = of(33, 40), of(20, 33)
    w = wf.Variable(start)

    @wf.compile
    def step(x: Any) -> Any:
        scaled = wf.tanh(w)
        w.assign(w * 2.0)
        return x @ scaled

    np.testing.assert_allclose(step(x).numpy(), x @ np.tanh(start), rtol=1e-4, atol=1e-4)


def test_strides_of_another_space_are_not_over_its_rows() -> None:
    """A row kernel computes vectors, too: the rows' own numbers."""
    assert over_rows((1,), (20, 5)) is None
    assert over_rows((5, 1), (20, 5)) == (5, 1)
