"""Row kernels: softmax, layer norm, cross entropy and random graphs of their kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case
from hypothesis import given
from hypothesis import strategies as st
from nest_runs import run, whole
from random_graph_checks import check_exactly, check_roughly
from row_graphs import row_cases
from row_kernel_checks import FLOATS, HALVES, WHOLE, check_cuts, nests

import weft as wf
from weft.codegen.nests.calls import nest_calls
from weft.ir import dtypes
from weft.ir.analysis.index_maps import row_space_of
from weft.ir.analysis.verify import verify
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.fusion.fuse import fuse
from weft.passes.simplify.effects import strip_gradient_ops

Array = np.ndarray[Any, Any]


class TestRandomGraphs:
    @given(row_cases(WHOLE))
    @examples(60)
    def test_whole_numbers_exactly(self, case: Case) -> None:
        check_exactly(case, (fuse,))
        check_exactly(case, PIPELINE)

    @given(row_cases(FLOATS))
    @examples(60)
    def test_floats(self, case: Case) -> None:
        check_roughly(case, (fuse,))

    @given(row_cases((dtypes.float16,)))
    @examples(30)
    def test_halves(self, case: Case) -> None:
        check_roughly(case, (fuse,))

    @given(row_cases(WHOLE, sizes=(0, 1, 3)))
    @examples(40)
    def test_empty_and_single(self, case: Case) -> None:
        check_exactly(case, (fuse,))

    @given(row_cases((dtypes.int32,), steps=25))
    @examples(60)
    def test_the_fused_graph_means_the_same(self, case: Case) -> None:
        fused = fuse(case.graph)
        verify(fused)
        wanted = interpret(case.graph, case.inputs, DictState({}))
        for x, y in zip(interpret(fused, case.inputs, DictState({})), wanted, strict=True):
            assert same(np.asarray(x), np.asarray(y))


class TestCuts:
    """The bits do not depend on how the units of a call are cut, ordered or spread."""

    @given(row_cases((*WHOLE, *FLOATS, *HALVES)), st.integers(0, 2**20))
    @examples(60)
    def test_random_graphs(self, case: Case, seed: int) -> None:
        fused = fuse(case.graph)
        check_cuts(fused, case.inputs, seed)

    @pytest.mark.share(6)
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("axes", [(0, 1), (0,), (1,), ()])
    @pytest.mark.parametrize("shape", [(70001, 3), (300, 400), (5, 9000), (1, 50000), (50000, 1)])
    def test_sums(self, shape: tuple[int, int], axes: tuple[int, ...], seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        f = wf.compile(lambda x: wf.sum(x * x, axis=axes) if axes else wf.exp(x))
        fused = fuse(f.trace(x))
        check_cuts(fused, [x], seed)
        (got,) = run(fused, [x], whole)
        wide = x.astype(np.float64)
        wanted = (wide * wide).sum(axes) if axes else np.exp(wide)
        np.testing.assert_allclose(got, wanted, rtol=3e-6)

    @pytest.mark.share(6)
    @pytest.mark.parametrize("shape", [(300, 70), (64, 64), (65, 1), (7, 40, 33), (2, 3, 70, 130)])
    @pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.complex128])
    def test_transposed_reads(self, shape: tuple[int, ...], dtype: Any) -> None:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 90, shape).astype(dtype)
        y = rng.integers(0, 90, (*shape[:-2], shape[-1], shape[-2])).astype(dtype)
        axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        f = wf.compile(lambda x, y: wf.permute_dims(x, axes) + y * 2)
        fused = fuse(f.trace(x, y))
        check_cuts(fused, [x, y], 1)
        assert same(run(fused, [x, y], whole)[0], np.transpose(x, axes) + y * np.asarray(2, dtype))

    @pytest.mark.share(16)
    @pytest.mark.parametrize("dtype", ["?", "i1", "i2", "f4", "f8", "c8", "c16"])
    @pytest.mark.parametrize(
        "shape", [(300, 70), (64, 128), (17, 150), (3, 200), (1, 70), (40, 19, 23), (2, 3, 70, 31)]
    )
    def test_transposing_copies(self, shape: tuple[int, ...], dtype: str) -> None:
        rng = np.random.default_rng(len(shape))
        orders = list(itertools.permutations(range(len(shape))))
        for axes in orders if len(shape) < 4 else [o for o in orders if o[-1] < 2][::2]:
            # lines of the operand begin anywhere
            size = int(np.prod(shape))
            x = rng.integers(0, 90, size + 5).astype(dtype)[5:].reshape(shape)
            f = wf.compile(lambda x, axes=axes: wf.permute_dims(x, axes))
            fused = fuse(f.trace(x))
            assert same(run(fused, [x], whole)[0], np.transpose(x, axes)), axes
            check_cuts(fused, [x], 1)


# ---------------------------------------------------------------------------- what must be one nest


X = np.random.default_rng(0).standard_normal((12, 33)).astype(np.float32)
C = np.random.default_rng(1).standard_normal(33).astype(np.float32)


def row_sum(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar of all results of f, each with a weight of its own."""

    def scalar(x: Any, *rest: Any) -> Any:
        made = f(x, *rest)
        return wf.sum(made * (wf.exp(x) if made.ndim == 2 else wf.sum(x, axis=-1)))

    return scalar


ROW_FUNCTIONS = {
    "softmax": (lambda x: wf.nn.softmax(x), (X,)),
    "log_softmax": (lambda x: wf.nn.log_softmax(x), (X,)),
    "logsumexp": (lambda x: wf.logsumexp(x, axis=-1), (X,)),
    "layer_norm": (lambda x, g, b: wf.nn.layer_norm(x, g, b), (X, C, C)),
    "standardise": (
        lambda x: (x - wf.mean(x, axis=1, keepdims=True)) / wf.std(x, axis=1, keepdims=True),
        (X,),
    ),
    "l2_normalise": (lambda x: wf.nn.l2_normalize(x, axis=-1), (X,)),
}


@pytest.mark.parametrize("name", ROW_FUNCTIONS)
def test_one_kernel_forward(name: str) -> None:
    f, args = ROW_FUNCTIONS[name]
    (op,) = nests(f, *args)
    assert row_space_of(op.regions[0]) is not None


@pytest.mark.parametrize("name", ROW_FUNCTIONS)
def test_one_kernel_with_gradients(name: str) -> None:
    f, args = ROW_FUNCTIONS[name]
    step = wf.value_and_grad(row_sum(f), argnums=tuple(range(len(args))))
    assert len(nests(step, *args)) == 1


LABELS = np.arange(12) * 5 % 33


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.uint8)], ids=["i64", "u8"])
def test_cross_entropy_is_one_kernel(labels: Array) -> None:
    def loss(x: Any, labels: Any) -> Any:
        rows = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
        return wf.sum(rows)

    step = wf.value_and_grad(loss)
    assert len(nests(step, X, labels)) == 1
    value, gradient = wf.compile(step)(X, labels)
    e = np.exp(X.astype(np.float64) - X.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(value, -np.log(p[np.arange(12), labels]).sum(), rtol=1e-6)
    p[np.arange(12), labels] -= 1
    np.testing.assert_allclose(gradient, p, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("only_gradient", [False, True])
def test_a_label_out_of_range_names_op_and_row(only_gradient: bool) -> None:
    def loss(x: Any, labels: Any) -> Any:
        rows = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
        return wf.sum(rows)

    labels = LABELS.copy()
    labels[7] = 33
    step = wf.compile(wf.grad(loss) if only_gradient else wf.value_and_grad(loss))
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"along_axis.*element 7 of the") as e:
        step(X, labels)
    assert "test_fuse_rows.py" in str(e.value)
    labels[7] = 32
    step(X, labels)


def test_several_axes_and_channels_first() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 7)).astype(np.float32)

    def norm(x: Any) -> Any:
        centre = x - wf.mean(x, axis=(0, 2, 3), keepdims=True)
        return centre * wf.rsqrt(wf.mean(centre * centre, axis=(0, 2, 3), keepdims=True) + 1e-5)

    (op,) = nests(norm, x)
    assert row_space_of(op.regions[0]).inner == (0, 2, 3)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean((0, 2, 3), keepdims=True)) / np.sqrt(
        wide.var((0, 2, 3), keepdims=True) + 1e-5
    )
    np.testing.assert_allclose(wf.compile(norm)(x), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_a_long_row_keeps_its_precision() -> None:
    """f32 sums of a row are blocked: as exact as a sum in a nest of its own."""
    x = np.random.default_rng(0).random((8, 300_001), dtype=np.float32)
    got = wf.compile(lambda x: x / wf.sum(x, axis=1, keepdims=True))(x)
    wanted = x / x.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(got, wanted, rtol=3e-7)


def test_explain_names_passes_and_what_is_kept() -> None:
    text = wf.compile(lambda x: wf.nn.softmax(x)).explain(X)
    assert "row kernel: 3 passes over each row" in text
    assert "(exp) kept in out0's row" in text


def test_what_is_computed_again_has_the_same_bits() -> None:
    """A product that one pass contracts with a sum, and another does not, would differ."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((50, 40)).astype(np.float32) for _ in range(2))

    def below(x: Any, y: Any) -> Any:
        v = x * y
        return wf.max(v, axis=1, keepdims=True) - v

    assert len(nests(below, x, y)) == 1
    got = np.asarray(wf.compile(below)(x, y))
    assert (got.min(axis=1) == 0).all()


def test_a_single_long_row_is_cut() -> None:
    """Softmax over 1 x N: each nest is cut, and the bits do not depend on how."""
    x = np.random.default_rng(0).standard_normal((1, 300_001)).astype(np.float32)
    fused = fuse(strip_gradient_ops(wf.compile(wf.nn.softmax).trace(x)))
    large = [
        op
        for op in fused.ops
        if op.name == "fused" and any("300001" in str(v.type) for v in op.operands)
    ]
    assert len(large) == 3  # maximum, exponentials and their sum, quotients
    assert all(nest_calls(op)[0][0].units > 16 for op in large)
    check_cuts(fused, [x], 3)
    wide = np.exp(x.astype(np.float64) - x.max())
    (got,) = run(fused, [x], whole)
    np.testing.assert_allclose(got, wide / wide.sum(), rtol=1e-6)


def test_few_long_rows_stay_apart() -> None:
    x = np.random.default_rng(0).random((3, 1 << 19), dtype=np.float32)
    f = wf.compile(lambda x: x / wf.sum(x, axis=1, keepdims=True))
    assert "3 rows of 524288 elements" in f.explain(x)
    assert len(nests(f, x)) == 2
    np.testing.assert_allclose(f(x), x / x.sum(1, keepdims=True, dtype=np.float64), rtol=3e-7)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1025, 33), "columns of 1025 elements, 33 apart: a block does not stay in a cache"),
        ((257, 1024), "columns of 257 elements, 1024 apart: a block does not stay in a cache"),
        ((12, 15), "15 columns side by side are too few"),
    ],
)
def test_explain_says_why_columns_stay_apart(shape: tuple[int, int], why: str) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    f = wf.compile(lambda x: x - wf.max(x, axis=0, keepdims=True))
    assert why in f.explain(x)
    assert len(nests(f, x)) == 2
    np.testing.assert_array_equal(f(x), x - x.max(0))
