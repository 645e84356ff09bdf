"""`sparse_matmul`: its kernels for each instruction set, bit by bit; where the pass makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cut_calls import check_cuts, step_of
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.target import host_isas
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]


def drawn(seed: int, sizes: tuple[int, ...], kinds: tuple[Any, Any], row: int) -> list[Array]:
    """dense, entries in some order (sorted for every other seed), values."""
    rng = np.random.default_rng(seed)
    (rows, inner, n, width), (dtype, index) = sizes, kinds
    places = np.stack([rng.integers(0, rows, n), rng.integers(-inner, inner, n)], axis=1)
    if np.dtype(index).kind == "u":
        places %= inner
        places[:, 0] %= rows
    if seed % 2:
        places = places[np.lexsort(places.T[::-1])]
    dense = rng.standard_normal((inner, width) if width else inner).astype(dtype)
    entries = np.ascontiguousarray(places[:, ::-1] if row else places).astype(index)
    return [dense, entries, rng.standard_normal(n).astype(dtype)]


def one_op(arrays: list[Array], rows: int, row: int) -> Graph:
    b = Builder([TensorType(as_dtype(str(x.dtype)), x.shape) for x in arrays])
    made = b.emit("sparse_matmul", b.args, {"rows": (rows,), "row": row})
    return b.graph("product", ["dense", "entries", "values"], made)


@given(
    seed=st.integers(0, 2**16),
    sizes=st.tuples(*[st.integers(1, 40)] * 2, st.integers(0, 200), st.integers(0, 70)),
    dtype=st.sampled_from([np.float32, np.float64]),
    index=st.sampled_from([np.int64, np.int32, np.int8, np.uint64]),
    row=st.integers(0, 1),
    isa=st.sampled_from(host_isas() or ("native",)),
)
@examples(120)
def test_kernels_have_the_bits_of_numpy(
    seed: int, sizes: tuple[int, ...], dtype: Any, index: Any, row: int, isa: str
) -> None:
    """Each sum in the order of the entries, each product rounded by itself."""
    arrays = drawn(seed, sizes, (dtype, index), row)
    (got,) = step_of(one_op(arrays, sizes[0], row), isa).run(arrays)
    dense, entries, values = arrays
    wanted = np.zeros((sizes[0], *dense.shape[1:]), dtype)
    for (i, j), value in zip(entries[:, ::-1] if row else entries, values, strict=True):
        wanted[int(i)] += value * dense[int(j)]
    assert np.array_equal(got, wanted)
    assert np.array_equal(interpret(one_op(arrays, sizes[0], row), arrays)[0], wanted)


def test_any_cut_gives_the_same_bits() -> None:
    arrays = drawn(3, (50, 60, 4000, 300), (np.float32, np.int64), 0)
    check_cuts(one_op(arrays, 50, 0), arrays)


@pytest.mark.parametrize(("at", "axis"), [((2, 0), 0), ((1, 1), 1)])
@pytest.mark.parametrize("width", [0, 3])
def test_an_index_out_of_bounds(at: tuple[int, int], axis: int, width: int) -> None:
    """An error that says which, and nothing far away is touched."""
    arrays = drawn(1, (5, 4, 6, width), (np.float32, np.int64), 0)
    step = step_of(one_op(arrays, 5, 0))
    arrays[1][at] = 2**40
    size = (5, 4)[axis]
    with pytest.raises(
        wf.errors.InvalidArgumentError, match=f"out of bounds for axis {axis} of size {size}"
    ):
        step.run(arrays)


def test_where_the_pass_makes_it() -> None:
    """Products of each kind and their gradients; the same bits as without the pass."""
    rng = np.random.default_rng(0)
    a = wf.SparseTensor(rng.integers(0, 9, (80, 2)), rng.standard_normal(80), (9, 9))
    csr, b = wf.sparse.to_csr(a), rng.standard_normal((9, 5))
    functions: dict[str, tuple[Any, tuple[Any, ...], int]] = {
        "matrix": (lambda a, b: a @ b, (a, b), 1),
        "vector": (lambda a, b: a @ b[:, 0], (a, b), 1),
        "one column": (lambda a, b: a @ b[:, :1], (a, b), 1),
        "left": (lambda a, b: wf.transpose(b) @ a, (a, b), 1),
        "csr": (lambda a, b: a @ b, (csr, b), 1),
        "gradients": (
            lambda a, b: wf.grad(lambda v, b: wf.sum(wf.sin(a.with_values(v) @ b)), argnums=(0, 1))(
                a.values, b
            ),
            (a, b),
            2,
        ),
    }
    for name, (f, operands, count) in functions.items():
        compiled = wf.compile(f)
        assert compiled.ir(*operands).count("= sparse_matmul(") == count, name
        wanted = interpret(
            compiled.trace(*operands), [np.asarray(x) for x in wf.tree_leaves(operands)]
        )
        for got, right in zip(wf.tree_leaves(compiled(*operands)), wanted, strict=True):
            if name == "gradients":  # whose sums over columns are in another order
                np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-12)
            else:
                assert np.array_equal(got.numpy(), right), name


def test_in_steps_of_many_sizes() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float64, [None, None])
        b = wf.placeholder(wf.float64, [None, None])
        out = wf.sparse.matmul(x, b)
        for n in (3, 5, 8, 13, 21, 34):
            rng = np.random.default_rng(n)
            dense, right = (rng.random((n, n)) < 0.3) * 1.5, rng.standard_normal((n, n + 1))
            places = np.argwhere(dense)
            fed = (places, dense[tuple(places.T)], dense.shape)
            got = session.run(out, {x: fed, b: right})
            np.testing.assert_allclose(got, dense @ right, rtol=1e-12, atol=1e-12)
        report = session.explain(out, {x: fed, b: right})
        assert "sparse_matmul_f64" in report
