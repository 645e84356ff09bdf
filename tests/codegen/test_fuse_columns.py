"""Row kernels whose rows are columns: reductions over outer axes that are used inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case
from hypothesis import given
from hypothesis import strategies as st
from random_graph_checks import check_exactly, check_roughly
from row_graphs import row_cases
from row_kernel_checks import FLOATS, HALVES, WHOLE, check_cuts, nests

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.ir import dtypes
from weft.ir.analysis.index_maps import row_space_of
from weft.ir.analysis.verify import verify
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.fusion.fuse import fuse

Array = np.ndarray[Any, Any]
SIZES = (2, 3, 1, 5, 17)
COLUMNS = (16, 17, 64, 70, 128, 130)


class TestRandomGraphs:
    @given(row_cases(WHOLE, SIZES, columns=COLUMNS))
    @examples(60)
    def test_whole_numbers_exactly(self, case: Case) -> None:
        check_exactly(case, (fuse,))
        check_exactly(case, PIPELINE)

    @given(row_cases((*FLOATS, dtypes.float16), SIZES, columns=COLUMNS))
    @examples(60)
    def test_floats(self, case: Case) -> None:
        check_roughly(case, (fuse,))

    @given(row_cases((dtypes.int32,), SIZES, gathers=True, columns=COLUMNS))
    @examples(60)
    def test_with_tables(self, case: Case) -> None:
        check_exactly(case, (fuse,))

    @given(row_cases((dtypes.int32,), SIZES, steps=25, columns=COLUMNS))
    @examples(40)
    def test_the_fused_graph_means_the_same(self, case: Case) -> None:
        fused = fuse(case.graph)
        verify(fused)
        wanted = interpret(case.graph, case.inputs, DictState({}))
        for x, y in zip(interpret(fused, case.inputs, DictState({})), wanted, strict=True):
            assert same(np.asarray(x), np.asarray(y))

    @given(row_cases((*WHOLE, *FLOATS, *HALVES), SIZES, columns=COLUMNS), st.integers(0, 2**20))
    @examples(60)
    def test_bits_do_not_depend_on_cuts(self, case: Case, seed: int) -> None:
        check_cuts(fuse(case.graph), case.inputs, seed)


X = np.random.default_rng(0).standard_normal((12, 133)).astype(np.float32)
IMAGES = np.random.default_rng(0).standard_normal((3, 7, 5, 20)).astype(np.float32)
C = np.random.default_rng(1).standard_normal(133).astype(np.float32)


def batch_norm(x: Any, scale: Any, offset: Any) -> Any:
    """Over the first axis."""
    centre = x - wf.mean(x, axis=0, keepdims=True)
    deviation = wf.sqrt(wf.mean(centre * centre, axis=0, keepdims=True) + 1e-5)
    return centre / deviation * scale + offset


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "softmax": (lambda x: wf.nn.softmax(x, axis=0), (X,)),
    "softmax of channels": (lambda x: wf.nn.softmax(x, axis=1), (IMAGES,)),
    "log_softmax": (lambda x: wf.nn.log_softmax(x, axis=0), (X,)),
    "batch norm": (batch_norm, (X, C, C)),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_kernel_with_and_without_gradients(name: str) -> None:
    f, args = FUNCTIONS[name]
    (op,) = nests(f, *args)
    row_space = row_space_of(op.regions[0])
    assert row_space is not None
    assert row_space.by_columns

    def loss(x: Any, *rest: Any) -> Any:
        return wf.sum(f(x, *rest) * wf.exp(x))

    step = wf.value_and_grad(loss, argnums=tuple(range(len(args))))
    assert len(nests(step, *args)) == 1
    value, gradients = wf.compile(step)(*args)
    wide = [a.astype(np.float64) for a in args]
    wanted, exact = wf.compile(step)(*wide)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for got, want in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=3e-5)


def test_softmax_and_batch_norm_against_numpy() -> None:
    e = np.exp(X.astype(np.float64) - X.max(0))
    np.testing.assert_allclose(wf.compile(FUNCTIONS["softmax"][0])(X), e / e.sum(0), rtol=2e-6)
    wide = X.astype(np.float64)
    normal = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5) * C + C
    np.testing.assert_allclose(wf.compile(batch_norm)(X, C, C), normal, rtol=1e-5, atol=1e-5)


def cross_entropy(x: Any, labels: Any) -> Any:
    """Of classes along the first axis."""
    logs = wf.nn.log_softmax(x, axis=0)
    return wf.sum(-wf.take_along_axis(logs, labels[None, :], axis=0))


def test_cross_entropy_of_columns() -> None:
    labels = np.arange(133) * 5 % 12
    step = wf.value_and_grad(cross_entropy)
    assert len(nests(step, X, labels)) == 1
    value, gradient = wf.compile(step)(X, labels)
    e = np.exp(X.astype(np.float64) - X.max(0))
    p = e / e.sum(0)
    np.testing.assert_allclose(value, -np.log(p[labels, np.arange(133)]).sum(), rtol=1e-6)
    p[labels, np.arange(133)] -= 1
    np.testing.assert_allclose(gradient, p, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [7, 130])
def test_a_label_out_of_range_names_its_column(bad: int) -> None:
    labels = np.arange(133) * 5 % 12
    labels[bad] = 12
    step = wf.compile(wf.value_and_grad(cross_entropy))
    with pytest.raises(wf.errors.InvalidArgumentError, match=rf"along_axis.*element {bad} of the"):
        step(X, labels)
    labels[bad] = 11
    step(X, labels)


def test_what_fits_kernels_over_rows_goes_there() -> None:
    """Columns only take what is left: x is read twice and nothing but the result is stored."""

    def f(x: Any) -> Any:
        return wf.nn.softmax(x - wf.mean(x, axis=0, keepdims=True), axis=1)

    made = nests(f, X)
    assert all(v.type.nbytes < X.nbytes for op in made[:-1] for v in op.results)
    wide = X.astype(np.float64) - X.astype(np.float64).mean(0)
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(wf.compile(f)(X), e / e.sum(1, keepdims=True), rtol=2e-6)


def test_long_columns_keep_their_precision() -> None:
    """Sums of f32 go into f64 totals block by block."""
    x = np.random.default_rng(0).random((1000, 65), dtype=np.float32)
    got = wf.compile(lambda x: x / wf.sum(x, axis=0, keepdims=True))(x)
    np.testing.assert_allclose(got, x / x.astype(np.float64).sum(0), rtol=3e-7)


def test_what_is_computed_again_has_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((50, 80)).astype(np.float32) for _ in range(2))

    def below(x: Any, y: Any) -> Any:
        v = x * y
        return wf.max(v, axis=0, keepdims=True) - v

    assert len(nests(below, x, y)) == 1
    assert (np.asarray(wf.compile(below)(x, y)).min(axis=0) == 0).all()


def test_explain_names_blocks_of_columns() -> None:
    text = wf.compile(FUNCTIONS["softmax"][0]).explain(X)
    assert "row kernel: 3 passes over each block of 64 columns" in text
    assert "(exp) kept in scratch of one block" in text


def test_a_new_number_of_rows_compiles_nothing() -> None:
    # the first step on several threads compiles what they need
    f = wf.compile(batch_norm, threads=1)
    f(X, C, C)
    before = compile_count()
    for rows in (2, 13, 400):
        x = np.random.default_rng(rows).random((rows, 133), np.float32)
        assert f(x, C, C).shape == (rows, 133)
    assert compile_count() == before
