"""Products that read and write through permutations: against the interpreter, in any cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything, same_in_cuts
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion.epilogues import fuse_matmul
from weft.passes.fusion.fuse import fuse
from weft.passes.fusion.product_operands import stride_products
from weft.runtime.native.executable import Executable, compile_graph

Array = np.ndarray[Any, Any]


def of(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def heads(x: Any) -> Any:
    return wf.permute_dims(x, (0, 2, 1, 3))


def kernels(step: Executable) -> list[str]:
    return [name for c in step.report.calls if not (name := c.call.kernel.name).startswith("pack")]


def compiled(function: Any, operands: list[Array]) -> tuple[Any, Executable]:
    graph = wf.compile(function)._specialized(tuple(operands), {}).traced.graph
    return graph, compile_graph(graph, passes=(fuse, fuse_matmul, stride_products))


def check(function: Any, operands: list[Array], count: int) -> None:
    """`count` kernels; the interpreter's numbers; the same bits in any cut."""
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        graph, step = compiled(function, operands)
        assert len(kernels(step)) == count, kernels(step)
        whole = step.run(operands)
        for got, wanted in zip(whole, interpret(graph, operands), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        same_in_cuts(step, operands, whole)


Q, K, V, S = of(3, 20, 2, 17), of(3, 23, 2, 17), of(3, 23, 2, 24), of(3, 2, 20, 23)
#: name -> (function, operands, kernels)
FORMS: dict[str, tuple[Any, list[Array], int]] = {
    "scores": (lambda q, k: wf.matmul(heads(q), heads(k), transpose_b=True), [Q, K], 1),
    "mixed": (lambda s, v: heads(s @ heads(v)), [S, V], 1),
    "mixed and split": (lambda s, v: wf.reshape(heads(s @ heads(v)), (3, 20, 48)), [S, V], 1),
    "gradient of the keys": (
        lambda q, s: wf.permute_dims(wf.matmul(heads(q), s, transpose_a=True), (0, 3, 1, 2)),
        [Q, S], 1,
    ),
    "then a nest": (lambda s, v, r: wf.tanh(s @ heads(v) + r), [S, V, of(3, 2, 20, 24)], 1),
    "by one matrix": (
        lambda x, w: wf.permute_dims(x, (1, 0, 2)) @ w, [of(20, 3, 17), of(17, 50)], 1,
    ),
    "by one matrix, permuted": (
        lambda x, w: wf.permute_dims(x @ w, (1, 0, 2)), [of(20, 3, 17), of(17, 50)], 1,
    ),
    "rows of a slice": (lambda x, w: x[2:199, 3:36] @ w, [of(200, 40), of(33, 50)], 1),
    "every other column": (lambda x, w: x[:, ::2] @ w, [of(200, 66), of(33, 50)], 2),
    "reversed axes": (
        lambda s, v: wf.permute_dims(s @ v, (2, 1, 0)), [of(5, 20, 23), of(5, 23, 24)], 2,
    ),
    "both ways": (lambda s, v: (lambda m: (m, heads(m)))(s @ heads(v)), [S, V], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_against_the_interpreter_and_in_cuts(name: str) -> None:
    check(*FORMS[name])


@settings(max_examples=40)
@given(
    st.permutations(range(4)), st.permutations(range(4)), st.permutations(range(4)),
    st.tuples(*[st.sampled_from([1, 2, 3, 16, 19, 33])] * 3),
    st.tuples(st.booleans(), st.booleans()),
)  # fmt: skip
def test_any_permutations(
    left: list[int],
    right: list[int],
    after: list[int],
    sizes: tuple[int, int, int],
    flags: tuple[bool, bool],
) -> None:
    """Whatever is read through and written through, or copied because it must be."""
    m, n, k = sizes
    a = of(2, 3, *((k, m) if flags[0] else (m, k)))
    b = of(2, 3, *((n, k) if flags[1] else (k, n)))
    stored = [np.ascontiguousarray(x.transpose(p)) for x, p in ((a, left), (b, right))]

    def product(x: Any, y: Any) -> Any:
        x = wf.permute_dims(x, tuple(int(v) for v in np.argsort(left)))
        y = wf.permute_dims(y, tuple(int(v) for v in np.argsort(right)))
        made = wf.matmul(x, y, transpose_a=flags[0], transpose_b=flags[1])
        return wf.permute_dims(made, tuple(after))

    graph, step = compiled(product, stored)
    (got,), (wanted,) = step.run(stored), interpret(graph, stored)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_variable_that_is_written_in_between_is_copied() -> None:
    start, x = of(20, 3, 17), of(3, 17, 30)
    w = wf.Variable(start)

    @wf.compile
    def step(x: Any) -> Any:
        old = wf.permute_dims(w, (1, 0, 2))
        w.assign(w * 2.0)
        return old @ x

    np.testing.assert_allclose(step(x).numpy(), start.transpose(1, 0, 2) @ x, rtol=1e-4, atol=1e-4)
