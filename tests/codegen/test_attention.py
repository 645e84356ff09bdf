"""Attention: the pass, its kernels for each instruction set, and the function of `wf.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cut_calls import cut_everything, same_in_cuts
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.target import host_isas, using
from weft.ir.dtypes import as_dtype
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
KINDS = [None, "bool", "pad", "add"]


def mask_of(kind: str | None, sizes: tuple[int, ...], dtype: Any, rng: Any) -> Array | None:
    """(batch, heads, rows, columns): a mask that broadcasts to that."""
    batch, heads, rows, columns = sizes
    shape = {"bool": (batch, 1, rows, columns), "pad": (batch, 1, 1, columns)}.get(kind or "")
    if shape is not None:
        return np.asarray(rng.random(shape) < 0.7)
    return rng.standard_normal((heads, rows, columns)).astype(dtype) if kind else None


def formula(q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float) -> Array:
    """In NumPy, in float64."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v


def both_ops(arrays: list[Array], attrs: dict[str, Any]) -> Graph:
    """attention and its gradient; the last array is the cotangent."""
    b = Builder([TensorType(as_dtype(str(x.dtype)), x.shape) for x in arrays])
    made = b.emit("attention", b.args[:-1], attrs)
    grads = b.emit("attention_grad", [*b.args[:-1], *made, b.args[-1]], attrs)
    return b.graph("both", [f"a{k}" for k in range(len(arrays))], [*made, *grads])


@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), *[st.integers(1, 130)] * 2),
    widths=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    kind=st.sampled_from(KINDS),
    isa=st.sampled_from(host_isas() or ("native",)),
)
@examples(60)
def test_kernels_are_what_the_ops_mean(
    sizes: tuple[int, ...], widths: tuple[int, int], flags: tuple[bool, ...], kind: str, isa: str
) -> None:
    rng = np.random.default_rng(sum(sizes))
    (batch, heads, rows, columns), (depth, width) = sizes, widths
    causal, inner, double = flags
    dtype = np.float64 if double else np.float32
    shapes = [(rows, depth), (columns, depth), (columns, width), (rows, width)]
    full = [(batch, n, heads, w) if inner else (batch, heads, n, w) for n, w in shapes]
    *operands, g = (rng.standard_normal(s).astype(dtype) for s in full)
    mask = mask_of(kind, sizes, dtype, rng)
    arrays = [*operands, *([] if mask is None else [mask]), g]
    graph = both_ops(arrays, {"scale": depth**-0.5, "causal": causal, "heads_inner": inner})
    with using(isa):
        step = compile_graph(graph, passes=())
    close = 1e-10 if double else 3e-4
    for got, wanted in zip(step.run(arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=close, atol=close)


@pytest.mark.parametrize("heads", [2, 5])
def test_any_cut_gives_the_same_bits(heads: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((heads, 300, 24)).astype(np.float32) for _ in range(4)]
    limit = POOL.limit
    with pytest.MonkeyPatch.context() as patch:
        cut_everything(patch)
        POOL.set_limit(16)
        step = compile_graph(both_ops(arrays, {"causal": True}), passes=())
        same_in_cuts(step, arrays, step.run(arrays))
    POOL.set_limit(limit)


def test_no_matrix_of_scores_is_stored() -> None:
    """Four times the rows and columns take four times the memory."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(wf.nn.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2)

    f = wf.compile(wf.grad(loss, argnums=(0, 1, 2)))
    sizes = []
    for rows in (512, 2048):
        x = np.zeros((4, rows, 32), np.float32)
        plan = f._specialized((x, x, x), {}).on_cpu("a test").plan
        sizes.append(plan.arena_bytes + plan.table.worker_bytes)
        assert " attention(" in f.ir(x, x, x)
    assert sizes[1] <= 4.5 * sizes[0] < 4 * 2048 * 2048


@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), *[st.integers(1, 40)] * 2),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
)
@examples(60)
def test_the_function_against_the_formula(
    sizes: tuple[int, ...], widths: tuple[int, int], causal: bool, kind: str | None, dtype: Any
) -> None:
    """Eager, compiled, and its gradients against those of the unfused graph."""
    rng = np.random.default_rng(sum(widths) + sum(sizes))
    (batch, heads, rows, columns), (depth, width) = sizes, widths
    shapes = [(rows, depth), (columns, depth), (columns, width)]
    q, k, v = (rng.standard_normal((batch, heads, *s)).astype(dtype) for s in shapes)
    mask = mask_of(kind, sizes, dtype, rng)

    def f(q: Any, k: Any, v: Any) -> Any:
        return wf.nn.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    wanted = formula(q, k, v, mask, causal, depth**-0.5)
    close = {2: 2e-2, 4: 1e-4, 8: 1e-10}[dtype().itemsize]
    for got in (f(q, k, v), wf.compile(f)(q, k, v)):
        assert np.asarray(got).dtype == dtype
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=close, atol=close)
    if dtype == np.float64:
        if mask is not None and mask.dtype == bool:
            mask[..., 0] = True  # else NaN, which the causal kernel keeps to what a row sees
        loss = lambda *a: wf.sum(f(*a) ** 3)  # noqa: E731
        fused, apart = (
            wf.compile(wf.grad(loss, argnums=(0, 1, 2)), passes=p)
            for p in ("standard", "reproducible")
        )
        for a, b in zip(fused(q, k, v), apart(q, k, v), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-8, atol=1e-8)


def grads_of(f: Any, *args: Array) -> str:
    return str(wf.compile(wf.grad(lambda *a: wf.sum(f(*a) ** 2), argnums=(0, 1, 2))).ir(*args))


Q = np.random.default_rng(1).standard_normal((2, 2, 40, 8)).astype(np.float32)


@pytest.mark.parametrize("name", ["divided", "negated", "turned", "no guard", "constant mask"])
def test_forms_of_the_formula_that_are_found(name: str) -> None:
    mask = np.tri(40, dtype=bool)

    def f(q: Any, k: Any, v: Any) -> Any:
        if name == "turned":
            scores = wf.matmul(q, wf.permute_dims(k * 1.5, (0, 1, 3, 2)))
        else:
            scores = wf.matmul(q, k, transpose_b=True)
        if name == "divided":
            scores = scores / 4.0
        if name == "negated":
            scores = -0.25 * scores
        if name == "constant mask":
            scores = wf.where(mask, scores, -np.inf)
        if name == "no guard":
            e = wf.exp(scores - wf.max(scores, axis=-1, keepdims=True))
            return wf.matmul(e / wf.sum(e, axis=-1, keepdims=True), v)
        return wf.matmul(wf.nn.softmax(scores), v)

    compiled = wf.compile(f)
    text = compiled.ir(Q, Q + 1, Q + 2)
    assert " attention(" in text
    assert ("causal=true" in text) == (name == "constant mask")
    apart = wf.compile(f, passes="reproducible")(Q, Q + 1, Q + 2)
    np.testing.assert_allclose(compiled(Q, Q + 1, Q + 2), apart, rtol=1e-4, atol=1e-5)
    if name != "no guard":  # its gradient is that of the formula, not of softmax
        assert "attention_grad(" in grads_of(f, Q, Q, Q)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["dropout", "returned", "bias", "two masks", "outer scale"])
def test_forms_that_stay_as_they_are(name: str) -> None:
    bias = np.linspace(0, 1, 40, dtype=np.float32)

    def f(q: Any, k: Any, v: Any) -> Any:
        scores = wf.matmul(q, k, transpose_b=True)
        if name == "bias":
            return wf.matmul(wf.nn.softmax(scores + wf.sum(v) * bias), v)
        if name == "two masks":
            scores = wf.where(bias > 0.5, scores + bias, -1.0)
        if name == "outer scale":
            scores = (scores + bias) * 2.0
        weights = wf.nn.softmax(scores)
        if name == "dropout":
            weights = weights * (bias > 0.2)
        out = wf.matmul(weights, v)
        return out + wf.sum(weights[..., :8], axis=-1, keepdims=True) if name == "returned" else out

    why = {
        "returned": "'slice' reads a matrix of scores or weights, too",
        "bias": "its scores' cotangent is read by something else",
        "two masks": "it has several masks",
        "outer scale": "its scores are multiplied by something else than one number",
    }
    grad = wf.compile(wf.grad(lambda *a: wf.sum(f(*a) ** 2), argnums=(0, 1, 2)))
    text = grad.ir(Q, Q, Q)
    lines = [x for x in grad.explain(Q, Q, Q).splitlines() if x.startswith("  softmax ")]
    assert [x.rpartition("): ")[2] for x in lines] == [w for n, w in why.items() if n == name]
    assert "attention(" not in text
    assert "attention_grad(" not in text
    wanted = wf.compile(f, passes="reproducible")(Q, Q, Q)
    np.testing.assert_allclose(wf.compile(f)(Q, Q, Q), wanted, rtol=1e-4, atol=1e-5)


def test_special_values() -> None:
    """Rows that see nothing are NaN; NaN and inf stay in the rows that see them."""
    q = np.array(Q)
    q[0, 0, 3, 0], q[1, 1, 5, 2] = np.nan, np.inf
    mask = np.ones((40, 40), bool)
    mask[7] = False
    for f in (
        lambda q: wf.nn.scaled_dot_product_attention(q, Q, Q, mask),
        lambda q: wf.nn.scaled_dot_product_attention(q, Q, Q, is_causal=True),
    ):
        with np.errstate(invalid="ignore"):
            got, wanted = wf.compile(f)(q), wf.compile(f, passes="reproducible")(q)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_of_any_order() -> None:
    x = Q[0, 0].astype(np.float64)

    def loss(q: Any) -> Any:
        return wf.sum(wf.nn.scaled_dot_product_attention(q, x, x + 1, is_causal=True) ** 2)

    twice = lambda q: wf.sum(wf.grad(loss)(q) ** 2)  # noqa: E731
    fused, apart = (wf.compile(wf.grad(twice), passes=p) for p in ("standard", "reproducible"))
    np.testing.assert_allclose(fused(x), apart(x), rtol=1e-8, atol=1e-9)


def test_in_loops_and_sessions_with_open_sizes() -> None:
    f = lambda x: wf.nn.scaled_dot_product_attention(x, x, x, is_causal=True)  # noqa: E731
    scanned = wf.compile(lambda x: wf.scan(lambda c, _: (f(c), None), init=x, length=3)[0])
    wanted = f(f(f(Q)))
    np.testing.assert_allclose(scanned(Q), np.asarray(wanted), rtol=1e-4, atol=1e-5)
    given = [np.random.default_rng(n).standard_normal((3, n, 8)) for n in (20, 33, 64, 130)]
    wanted = [np.asarray(f(x.astype(np.float32))) for x in given]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, None, 8])
        y = f(x)
        for one, right in zip(given, wanted, strict=True):
            got = session.run(y, {x: one.astype(np.float32)})
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def test_errors_name_the_function_and_the_line() -> None:
    attention = wf.nn.scaled_dot_product_attention
    with pytest.raises(TypeRuleError, match=r"dtypes float32, float64, float32\n.*test_attent"):
        attention(Q, Q.astype(np.float64), Q)
    with pytest.raises(ShapeError, match="rows and columns"):
        attention(Q[0, 0, 0], Q, Q)
    with pytest.raises(TypeRuleError, match="attn_mask is of dtype int64"):
        attention(Q, Q, Q, np.ones((40, 40), np.int64))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_gradients_in_some_operands(wanted: tuple[int, ...]) -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(wf.nn.scaled_dot_product_attention(q, k, v) ** 2)

    fused, apart = (
        wf.compile(wf.grad(loss, argnums=wanted), passes=p) for p in ("standard", "reproducible")
    )
    assert "attention_grad(" in fused.ir(Q, Q, Q)
    for a, b in zip(fused(Q, Q, Q), apart(Q, Q, Q), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-4)
