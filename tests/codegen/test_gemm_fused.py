"""Nests applied to the blocks of a product: against the interpreter, in any cut, and in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything, same_in_cuts

import weft as wf
from weft.codegen.products import gemm
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion.epilogues import fuse_matmul
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]


def of(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def whole(x: Array, dtype: Any) -> Array:
    """Integers of the same order, which wrap where there is no sign."""
    return (x * 100).astype(np.int64).astype(dtype)


def masked_sum(c: Any, h: Any, axes: Any) -> Any:
    """The gradient of a ReLU's operand, and its sum: what a bias gets."""
    d = wf.where(h > 0, c, 0.0)
    return d, wf.sum(d, axes)


X, W, B, R = of(70, 33), of(33, 100), of(100), of(70, 100)
STACK, ROWS = of(4, 20, 33), of(4, 20, 1)
#: name -> (function, operands, joined)
FORMS: dict[str, tuple[Any, list[Array], bool]] = {
    "bias and activation": (lambda x, w, b: wf.tanh(x @ w + b), [X, W, B], True),
    "residual": (lambda x, w, r: r + x @ w, [X, W, R], True),
    "scale by a number": (lambda x, w: 0.5 * (x @ w), [X, W], True),
    "the product twice": (lambda x, w: (lambda c: c * wf.sigmoid(c))(x @ w), [X, W], True),
    "two results": (
        lambda x, w, b: (lambda c: (c, wf.where(c > 0, c, 0.0)))(x @ w + b),
        [X, W, B],
        True,
    ),
    "mask of another": (
        lambda g, w, h: wf.where(h > 0, wf.matmul(g, w, transpose_b=True), 0.0),
        [of(40, 10), of(100, 10), of(40, 100)],
        True,
    ),
    "transposed residual": (lambda x, w, r: x @ w + wf.permute_dims(r, (1, 0)), [X, W, of(100, 70)],
                            True),
    "a slice": (lambda x, w, r: x @ w + r[3:73, 1:101], [X, W, of(80, 110)], True),
    "a stack by one matrix": (lambda x, w, b: wf.tanh(x @ w) + b, [STACK, W, B], True),
    "a stack by a stack": (lambda x, y, s: wf.tanh(x @ y) * s, [STACK, of(4, 33, 15), ROWS], True),
    "one row for each matrix": (lambda x, y, s: wf.tanh(x @ y) * s,
                                [STACK, of(4, 33, 15), of(4, 1, 15)], False),
    "position": (
        lambda x, w: wf.where(wf.reshape(wf.arange(100), (1, 100)) < 50, x @ w, -1.0), [X, W], True,
    ),
    "bias gradient": (lambda g, w, h: masked_sum(g @ w, h, 0), [of(70, 33), W, R], True),
    "bias gradient by a packed right side": (
        lambda g, w, h: masked_sum(wf.matmul(g, w, transpose_b=True), h, 0),
        [of(200, 10), of(100, 10), of(200, 100)], True,
    ),
    "bias gradient alone": (lambda g, w, h: masked_sum(g @ w, h, 0)[1], [of(70, 33), W, R], True),
    "sums of two": (
        lambda g, w: (lambda t: (t, wf.sum(t, 0), wf.sum(t * t, 0)))(wf.tanh(g @ w)), [X, W], True,
    ),
    "bias gradient of a stack": (
        lambda g, w, h: masked_sum(g @ w, h, (0, 1)), [STACK, W, of(4, 20, 100)], True,
    ),
    "of a stack by a stack": (
        lambda g, w, h: masked_sum(g @ w, h, (0, 1)), [STACK, of(4, 33, 15), of(4, 20, 15)], True,
    ),
    "bias gradient in f64": (
        lambda g, w, h: masked_sum(g @ w, h, 0), [v.astype(np.float64) for v in (X, W, R)], True,
    ),
    "sum of the rows of each matrix": (
        lambda g, w, h: masked_sum(g @ w, h, 1), [STACK, of(4, 33, 15), of(4, 20, 15)], False,
    ),
    "sum of everything": (lambda g, w, h: masked_sum(g @ w, h, (0, 1)), [X, W, R], False),
    "f64": (lambda x, w, b: wf.exp(-wf.abs(x @ w + b)),
            [v.astype(np.float64) for v in (X, W, B)], True),
    "i32": (lambda x, w, b: wf.maximum(x @ w + b, 0),
            [whole(v, np.int32) for v in (X, W, B)], True),
    "u32": (lambda x, w, b: (x @ w) ^ b, [whole(v, np.uint32) for v in (X, W, B)], True),
    "i64 of a stack": (
        lambda x, y, s: wf.abs(x @ y) * s,
        [whole(v, np.int64) for v in (STACK, of(4, 33, 15), ROWS)], True,
    ),
    "i32 to f32 to i8": (
        lambda x, w, b: wf.astype(wf.clip(wf.round((x @ w) * b), -128, 127), wf.int8),
        [whole(X, np.int32), whole(W, np.int32), B], True,
    ),
    "sums of i32": (
        lambda x, w: (lambda c: (c, wf.sum(c, 0, dtype=wf.int32)))(wf.maximum(x @ w, 0)),
        [whole(X, np.int32), whole(W, np.int32)], False,
    ),
    "i16": (lambda x, w, b: wf.maximum(x @ w, b), [whole(v, np.int16) for v in (X, W, B)], False),
    "f16": (lambda x, w, b: wf.tanh(x @ w + b), [v.astype(np.float16) for v in (X, W, B)], False),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["large blocks", "small blocks"], autouse=True)
def blocks(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether blocks are so small that products of these sizes have several."""
    limit = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        if request.param:
            for name, value in {
                "RUN": 16, "BLOCK_ROWS": 16, "BLOCK_COLUMNS": 48,
            }.items():  # fmt: skip
                patch.setattr(gemm, name, value)
        POOL.set_limit(16)
        yield request.param
    POOL.set_limit(limit)


def nests(step: Executable) -> int:
    """How many kernels there are beside products and what adds up partial sums."""
    return sum(not name.startswith(("gemm", "pack", "combine")) for name in kernels(step))


def kernels(step: Executable) -> list[str]:
    return [c.call.kernel.name for c in step.report.calls]


@pytest.mark.share(18)
@pytest.mark.parametrize("name", FORMS)
def test_against_the_interpreter_and_in_cuts(name: str, blocks: bool) -> None:
    function, operands, joined = FORMS[name]
    graph = wf.compile(function)._specialized(tuple(operands), {}).traced.graph
    step = compile_graph(graph, passes=(fuse, fuse_matmul))
    apart = compile_graph(graph, passes=(fuse,))
    assert nests(step) == nests(apart) - joined
    whole = step.run(operands)
    close = 2e-2 if operands[0].dtype == np.float16 else 2e-5
    for got, wanted in zip(whole, interpret(graph, operands), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=close, atol=close)
    same_in_cuts(step, operands, whole, cut=blocks)


def test_an_update_in_place_never_stores_the_gradient() -> None:
    """Gradient, accumulator and weights of one layer in one kernel, over the variables' memory."""
    start, x, g = of(60, 100), of(70, 60), of(70, 100)
    w, a = wf.Variable(start), wf.Variable(np.full((60, 100), 0.1, np.float32))

    @wf.compile
    def step(x: Any, g: Any) -> None:
        d = wf.matmul(x, g, transpose_a=True)
        total = a + d * d
        a.assign(total)
        w.assign(w - 0.1 * d / wf.sqrt(total))

    step(x, g)
    made = step._specialized((x, g), {}).on_cpu("a test")
    assert kernels(made) == ["gemm_f32"]
    assert made.report.memory.arena_bytes == 0
    assert not made.report.memory.copies
    d = x.T @ g
    total = np.float32(0.1) + d * d
    np.testing.assert_allclose(a.numpy(), total, rtol=1e-4)
    np.testing.assert_allclose(w.numpy(), start - 0.1 * d / np.sqrt(total), rtol=1e-3, atol=1e-4)


def test_weights_that_are_read_by_the_product_are_not_overwritten() -> None:
    start, x = of(40, 40), of(40, 40)
    w = wf.Variable(start)

    @wf.compile
    def step(x: Any) -> None:
        w.assign(w - 0.1 * (w @ x))

    step(x)
    np.testing.assert_allclose(w.numpy(), start - 0.1 * (start @ x), rtol=1e-4, atol=1e-4)


def test_a_product_in_a_loop() -> None:
    x, w = of(24, 24) * 0.1, of(24, 24) * 0.1
    f = wf.compile(lambda x, w: wf.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, wf.tanh(s @ w + x)), (0, x)
    )[1])  # fmt: skip
    wanted = x
    for _ in range(3):
        wanted = np.tanh(wanted @ w + x)
    np.testing.assert_allclose(f(x, w).numpy(), wanted, rtol=1e-5, atol=1e-6)
