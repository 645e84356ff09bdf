"""`sparse_pairs_padded`: its kernels against its reference; the same results by other ops, on an
emulated GPU and where rows or columns are many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cut_calls import step_of
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.engines import using_engine
from weft.ir.dtypes import int64
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.pipelines import GPU, STANDARD

Array = np.ndarray[Any, Any]


def one_op(arrays: list[Array], sizes: tuple[int, ...], room: int) -> Graph:
    b = Builder([TensorType(int64, x.shape) for x in arrays])
    made = b.emit("sparse_pairs_padded", b.args, {"shape": sizes, "room": room})
    return b.graph("pairs", ["a", "b"], made)


def drawn(seed: int, sizes: tuple[int, ...], counts: tuple[int, ...]) -> list[Array]:
    """Indices of both in any order, with repetitions; some out of range."""
    rng = np.random.default_rng(seed)
    out = []
    for limits, n in zip((sizes[:2], sizes[1:]), counts, strict=True):
        low, more = (-1, 2) if seed % 2 else (0, 1)
        places = [rng.integers(low, max(size - 1, 0) + more, n) for size in limits]
        out.append(np.stack(places, axis=1).astype(np.int64))
    return out


@given(
    seed=st.integers(0, 2**16),
    sizes=st.tuples(st.integers(0, 70), st.integers(0, 9), st.sampled_from([0, 1, 64, 65, 5000])),
    counts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    room=st.integers(0, 300),
)
@examples(120)
def test_the_kernel_is_the_reference(
    seed: int, sizes: tuple[int, ...], counts: tuple[int, ...], room: int
) -> None:
    arrays = drawn(seed, sizes, counts)
    graph = one_op(arrays, sizes, room)
    for got, wanted in zip(step_of(graph).run(arrays), interpret(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(4))
def test_numbas_is_the_reference(seed: int) -> None:
    sizes = (6, 5, 70)
    arrays = drawn(seed, sizes, (20, 30))
    graph = one_op(arrays, sizes, (7, 99, 300, 0)[seed])
    with using_engine("numba"):
        found = step_of(graph).run(arrays)
    for got, wanted in zip(found, interpret(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_the_reference_is_scipys_structure() -> None:
    a, b = drawn(4, (40, 9, 30), (80, 90))
    indices, left, right, place = interpret(one_op([a, b], (40, 9, 30), 2000), [a, b])
    x, y = (
        scipy.sparse.csr_array((np.ones(len(i), int), tuple(i.T)), shape=shape)
        for i, shape in ((a, (40, 9)), (b, (9, 30)))
    )
    want = x @ y
    want.sort_indices()
    there = indices[:, 0] < 40
    np.testing.assert_array_equal(indices[there], np.stack(want.tocoo().coords, axis=1))
    pairs = int(want.sum())
    np.testing.assert_array_equal(np.bincount(place[:pairs]), want.data)
    np.testing.assert_array_equal(a[left[:pairs], 1], b[right[:pairs], 0])
    np.testing.assert_array_equal(indices[place[:pairs], 0], a[left[:pairs], 0])
    assert set(place[pairs:]) == {1999}


def sparse(rows: int, columns: int, seed: int, *, wide: int = 1) -> wf.SparseTensor:
    """Of whole numbers, whose sums are exact, in any order, with padding."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(rows * columns)[: rows * columns // 3]
    indices = np.stack([places // columns, places % columns], axis=1)
    indices[:, 1] *= wide
    shape = (rows, columns * wide)
    indices = np.concatenate([indices, [shape]])
    values = np.append(rng.integers(1, 5, len(places)), 99).astype(np.float32)
    return wf.SparseTensor(indices, values, shape, padded=True)


def product(a: Any, b: Any) -> Any:
    return wf.sparse.matmul(a, b, nse=90)


def check(found: wf.SparseTensor, a: wf.SparseTensor, b: wf.SparseTensor) -> None:
    want = scipy.sparse.csr_array(a.to_dense().numpy()) @ b.to_dense().numpy()
    assert (found.nse, found.padded) == (90, True)
    np.testing.assert_array_equal(found.to_dense(), want)
    there = found.indices.numpy()[:, 0] < found.dense_shape[0]
    order = found.indices.numpy()[there] @ [found.dense_shape[1], 1]
    assert (np.diff(order) > 0).all()  # one entry for each place, in order
    assert not there[there.sum() :].any()  # padding last


def test_other_ops_give_the_same_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = sparse(6, 5, 0), sparse(5, 7, 1)
    graph = wf.compile(product).trace(a, b)
    assert "sparse_pairs_padded" in {op.name for op in graph.walk()}
    leaves = [np.asarray(x) for x in wf.tree_leaves((a, b))]
    made = {
        name: (_after(passes, graph), _names(_after(passes, graph)))
        for name, passes in (("gpu", GPU), ("cpu", STANDARD))
    }
    assert ("sparse_pairs_padded" in made["cpu"][1], "argsort" in made["cpu"][1]) == (True, False)
    assert ("sparse_pairs_padded" in made["gpu"][1], "argsort" in made["gpu"][1]) == (False, True)
    found = [interpret(g, leaves) for g, _ in made.values()]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    on_gpu = wf.compile(product, device="gpu:0")(a, b)
    indices, values = np.asarray(on_gpu.indices), np.asarray(on_gpu.values)
    check(wf.SparseTensor(indices, values, on_gpu.dense_shape, padded=True), a, b)


def _after(passes: Any, graph: Graph) -> Graph:
    for each in passes:
        graph = each(graph)
    return graph


def _names(graph: Graph) -> set[str]:
    return {op.name for op in graph.walk()}


def test_many_columns_take_other_ops() -> None:
    """A kernel has a word for each: not for 2**40 of them."""
    a, b = sparse(6, 5, 0), sparse(5, 7, 1, wide=2**37)
    f = wf.compile(product)
    assert "sparse_pairs_padded" not in _names(f.trace(a, b))
    found, want = f(a, b), wf.sparse.matmul(a, b)
    there = found.indices.numpy()[:, 0] < 6
    np.testing.assert_array_equal(found.indices.numpy()[there], want.indices)
    np.testing.assert_array_equal(found.values.numpy()[there], want.values)


def test_eagerly_and_in_batches() -> None:
    a, b = sparse(6, 5, 0), sparse(5, 7, 1)
    check(product(a, b), a, b)
    check(wf.compile(product)(a, b), a, b)
    values = np.stack([a.values.numpy() * k for k in (1, 2)])
    f = wf.vmap(lambda i, v: product(wf.SparseTensor(i, v, a.dense_shape, padded=True), b).values)
    turned = np.stack([a.indices.numpy(), a.indices.numpy()[::-1]])
    got = f(turned, np.stack([values[0], values[1][::-1]]))
    np.testing.assert_array_equal(got[0] * 2, got[1])
    report = wf.compile(product).explain(a, b)
    assert "dataflow executor" not in report


@pytest.mark.parametrize("wrong", [[[0, 9]], [[9, 0]], [[-1, 0]]])
@pytest.mark.parametrize("first", [True, False])
def test_indices_out_of_range_are_seen(wrong: Any, first: bool) -> None:
    other = wf.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 3))

    @wf.compile
    def f(i: Any) -> Any:
        x = wf.SparseTensor(i, np.ones(1, np.float32), (3, 3))
        return wf.sparse.matmul(*(x, other) if first else (other, x), nse=4)

    assert f(np.array([[1, 1]])).to_dense().numpy().sum() == 2
    with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
        f(np.array(wrong))
