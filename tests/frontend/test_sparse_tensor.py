"""`wf.sparse` on random entries against NumPy on the dense tensor: eagerly, compiled, in a graph,
and with padding. Gradients against those of the dense form."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from sparse_ways import (
    SEEDS,
    Array,
    check,
    dense,
    entries,
    in_session,
    interpreted,
    padded,
    plain,
)

import weft as wf


# ------------------------------------------------------------------------------- to and from dense
@examples(84)
@given(SEEDS, st.integers(1, 3))
def test_to_and_from_dense(seed: int, rank: int) -> None:
    parts = entries(seed, rank, least=0)
    truth = dense(*parts)
    x = wf.SparseTensor(*parts)
    check(lambda x: x.to_dense(), truth, x)
    found = wf.sparse.from_dense(truth)
    assert found.nse == np.count_nonzero(truth)
    assert np.array_equal(found.to_dense().numpy(), truth)
    assert np.array_equal(found.indices.numpy(), np.argwhere(truth))
    count = int(np.count_nonzero(truth)) + 2
    fixed = wf.compile(lambda t: wf.sparse.from_dense(t, nse=count))(truth)
    assert fixed.nse == count
    assert np.array_equal(fixed.to_dense().numpy(), truth)


def test_default_values_bools_and_strings() -> None:
    x = wf.SparseTensor([[3], [1]], [7, 5], (5,))
    check(lambda x: x.to_dense(-1), np.array([-1, 5, -1, 7, -1]), x)
    x = wf.SparseTensor([[3], [1]], [True, True], (5,))
    check(lambda x: x.to_dense(), np.array([0, 1, 0, 1, 0], bool), x)
    words = wf.SparseTensor([[0, 1], [1, 0]], np.array(["a", "b"], object), (2, 2))
    assert words.to_dense().numpy().tolist() == [[b"", b"a"], [b"b", b""]]
    assert words.to_dense("-").numpy().tolist() == [[b"-", b"a"], [b"b", b"-"]]
    split = wf.tf1.string_split(["a b", "c"])
    assert wf.sparse.to_dense(split).numpy().tolist() == [[b"a", b"b"], [b"c", b""]]


# --------------------------------------------------------------------------- order, sums and places
@examples(60)
@given(SEEDS, st.integers(1, 3))
def test_order_and_places(seed: int, rank: int) -> None:
    parts = entries(seed, rank)
    truth, x = dense(*parts), wf.SparseTensor(*parts)
    check(wf.sparse.reorder, truth, x)
    check(wf.sparse.coalesce, truth, x)
    one = wf.sparse.coalesce(x)
    assert np.array_equal(one.indices.numpy(), np.unique(parts[0], axis=0))
    assert np.array_equal(wf.sparse.coalesce(padded(x)).indices.numpy(), one.indices.numpy())
    ordered = wf.sparse.reorder(x).indices.numpy().tolist()
    assert ordered == sorted(ordered)
    perm = np.random.default_rng(seed).permutation(rank).tolist()
    check(lambda x: wf.sparse.transpose(x, perm), truth.transpose(perm), x)
    check(wf.sparse.transpose, truth.T, x)
    check(lambda x: wf.sparse.expand_dims(x, 1), np.expand_dims(truth, 1), x)
    for got in (wf.sparse.reshape(x, [-1, 1]), wf.sparse.reshape(padded(x), [-1, 1])):
        assert np.array_equal(got.to_dense().numpy(), truth.reshape(-1, 1))
    start, size = [1] * rank, [2] * (rank - 1) + [-1]
    part = truth[(*[slice(1, 3)] * (rank - 1), slice(1, None))]
    check(lambda x: wf.sparse.slice(x, start, size), part, x)
    cut = wf.sparse.slice(x, start, size)
    assert cut.nse == sum(bool((i >= 1).all() and (i[:-1] < 3).all()) for i in parts[0])


@examples(60)
@given(SEEDS, SEEDS, st.integers(1, 3))
def test_sums_of_two(seed: int, other: int, rank: int) -> None:
    parts, shape = entries(seed, rank), entries(seed, rank)[2]
    rng = np.random.default_rng(other)
    second = (
        np.stack([rng.integers(0, n, 3) for n in shape], axis=1),
        rng.normal(size=3).astype(np.float32),
        shape,
    )
    x, y = wf.SparseTensor(*parts), wf.SparseTensor(*second)
    whole, addend = dense(*parts), dense(*second)
    check(lambda x: x + y, whole + addend, x)
    check(lambda x: x - y, whole - addend, x)
    check(lambda x, t: x + t, whole + addend, x, addend)
    check(lambda x, t: t - x, addend - whole, x, addend)
    large = whole + addend
    large[np.abs(large) < 1] = 0
    check(lambda x: wf.sparse.add(x, y, 1), large, x)
    axis = int(rng.integers(rank))
    check(lambda x: wf.sparse.concat([x, y, x], axis), np.concatenate([whole, addend, whole], axis),
          x)  # fmt: skip


@examples(60)
@given(SEEDS, st.integers(1, 3))
def test_elementwise_with_dense(seed: int, rank: int) -> None:
    parts = entries(seed, rank)
    x, truth = wf.SparseTensor(*parts), dense(*parts)
    rng = np.random.default_rng(seed)
    tail = int(rng.integers(0, rank + 1))
    shape = [int(rng.choice([1, n])) for n in parts[2][rank - tail :]]
    t = rng.uniform(1, 2, shape).astype(np.float32)
    check(lambda x, t: x * t, truth * t, x, t)
    check(lambda x, t: t * x, truth * t, x, t)
    check(lambda x, t: x / t, truth / t, x, t)
    check(lambda x: -x * 2, truth * -2, x)


# -------------------------------------------------------------------------- reductions and softmax
@examples(60)
@given(SEEDS, st.integers(1, 3), st.booleans())
def test_reductions(seed: int, rank: int, keepdims: bool) -> None:
    parts = entries(seed, rank, repeated=False)
    x, truth = wf.SparseTensor(*parts), dense(*parts)
    stored = np.zeros(parts[2], bool)
    stored[tuple(parts[0].T)] = True
    rng = np.random.default_rng(seed)
    chosen = tuple(np.flatnonzero(rng.integers(0, 2, rank)).tolist())
    for axis in (None, chosen, -1):
        how: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
        check(lambda x, how=how: wf.sparse.reduce_sum(x, **how), truth.sum(**how), x)
        for f, g, worst in (
            (wf.sparse.reduce_max, np.max, -np.inf), (wf.sparse.reduce_min, np.min, np.inf),
        ):  # fmt: skip
            wanted = np.where(stored.any(**how), g(np.where(stored, truth, worst), **how), 0)
            check(lambda x, f=f, how=how: f(x, **how), wanted.astype(np.float32), x)


@examples(60)
@given(SEEDS, st.integers(2, 3))
def test_softmax(seed: int, rank: int) -> None:
    parts = entries(seed, rank, repeated=False)
    x, wanted = wf.SparseTensor(*parts), np.zeros(parts[2], np.float32)
    stored = {tuple(i): float(v) for i, v in zip(parts[0].tolist(), parts[1], strict=True)}
    for index, value in stored.items():
        row = [v for i, v in stored.items() if i[:-1] == index[:-1]]
        wanted[index] = np.exp(value) / np.exp(row).sum()
    check(wf.sparse.softmax, wanted, x)


# ------------------------------------------------------------------------------------ whole rows
@examples(60)
@given(SEEDS, st.integers(1, 3))
def test_rows_kept_and_filled(seed: int, rank: int) -> None:
    parts = entries(seed, rank)
    x = wf.SparseTensor(*parts)
    keep = parts[1] > 0
    kept = dense(parts[0][keep], parts[1][keep], parts[2])
    assert np.array_equal(wf.sparse.retain(x, keep).to_dense().numpy(), kept)
    assert np.array_equal(wf.compile(wf.sparse.retain)(x, keep).to_dense().numpy(), kept)
    rows = parts[2][0]
    empty = ~np.isin(np.arange(rows), parts[0][:, 0])
    filler = np.zeros((empty.sum(), rank), np.int64)
    filler[:, 0] = np.flatnonzero(empty)
    wanted = dense(parts[0], parts[1], parts[2])
    wanted[tuple(filler.T)] = 5
    check(lambda x: wf.sparse.fill_empty_rows(x, 5.0).output, wanted, x)
    check(lambda x: wf.sparse.fill_empty_rows(x, 5.0).empty_row_indicator, empty, x)
    larger = tuple(n + 2 for n in parts[2])
    shown = wf.sparse.reset_shape(padded(x), larger).to_dense().numpy()
    assert np.array_equal(shown, dense(parts[0], parts[1], larger))
    least = tuple((parts[0].max(axis=0, initial=-1) + 1).tolist())
    assert wf.sparse.reset_shape(x).shape == wf.sparse.reset_shape(padded(x)).shape == least
    reset = in_session(wf.sparse.reset_shape, x)
    assert tuple(reset.dense_shape) == least


# ---------------------------------------------------------------------------------------- products
def products(seed: int, dtype: Any) -> tuple[wf.SparseTensor, Array, Array, Array]:
    """A sparse [m, k], its dense form, and dense operands for its right and its left."""
    indices, values, (m, k) = entries(seed, 2)
    rng = np.random.default_rng(seed)
    if dtype == np.complex64:
        values = values + 1j * rng.integers(-8, 8, len(values))
    values = values.astype(dtype)
    right, left = (
        (rng.integers(-8, 8, s) + (1j * rng.integers(-8, 8, s) if dtype == np.complex64 else 0))
        for s in ((k, 3), (3, m))
    )
    x = wf.SparseTensor(indices, values, (m, k))
    return x, dense(indices, values, (m, k)), right.astype(dtype), left.astype(dtype)


@examples(48)
@given(SEEDS, st.sampled_from([np.float32, np.float64, np.complex64, np.int32]))
def test_products(seed: int, dtype: Any) -> None:
    x, a, right, left = products(seed, dtype)
    check(lambda x, b: x @ b, a @ right, x, right)
    check(lambda x, b: b @ x, left @ a, x, left)
    check(lambda x, b: x @ b, a @ right[:, 0], x, right[:, 0].copy())
    check(lambda x, b: b @ x, left[0] @ a, x, left[0].copy())
    batch = np.stack([right, 2 * right])
    check(lambda x, b: x @ b, a @ batch, x, batch)
    h = np.conj(right.T).copy()
    f = wf.sparse.matmul
    check(lambda x, b: f(x, b, adjoint_a=True), a.conj().T @ left.T, x, left.T.copy())
    check(lambda x, b: f(x, b, adjoint_b=True), a @ right, x, h)
    check(lambda x, b: f(b, x, adjoint_b=True), right.T @ a.conj().T, x, right.T.copy())
    check(lambda x, b: f(b, x, adjoint_a=True), left @ a, x, np.conj(left.T).copy())


@examples(48)
@given(SEEDS)
def test_batches_of_sparse_matrices(seed: int) -> None:
    indices, values, shape = entries(seed, 3)
    x, a = wf.SparseTensor(indices, values, shape), dense(indices, values, shape)
    b = np.random.default_rng(seed).normal(size=(shape[0], shape[2], 2)).astype(np.float32)
    check(lambda x, b: x @ b, a @ b, x, b)
    c = np.random.default_rng(seed).normal(size=(shape[0], 2, shape[1])).astype(np.float32)
    check(lambda x, c: c @ x, c @ a, x, c)


@examples(48)
@given(SEEDS)
def test_csr_against_scipy(seed: int) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    indices, values, shape = entries(seed, 2)
    truth = scipy_sparse.coo_matrix((values, tuple(indices.T)), shape).tocsr()
    truth.sort_indices()
    x = wf.sparse.CSRMatrix(truth.indptr, truth.indices, truth.data, truth.shape)
    own = wf.sparse.to_csr(wf.SparseTensor(indices, values, shape))
    for ours, scipys in ((own.indptr, truth.indptr), (own.indices, truth.indices)):
        assert np.array_equal(ours.numpy(), scipys)
    assert np.array_equal(own.values.numpy(), truth.data)
    b = np.random.default_rng(seed).normal(size=(shape[1], 2)).astype(np.float32)
    for f in (lambda x, b: x @ b, wf.compile(lambda x, b: x @ b)):
        np.testing.assert_allclose(f(x, b), truth @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b.T @ wf.sparse.transpose(x), (truth @ b).T, rtol=1e-5, atol=1e-5)
    assert np.array_equal(x.to_dense().numpy(), truth.toarray())
    assert np.array_equal(wf.sparse.reduce_sum(x, 0).numpy(), np.asarray(truth.sum(0))[0])


def test_vectors_batches_and_sixteen_bits() -> None:
    x = wf.SparseTensor([[0, 1], [1, 0]], np.array([1 + 2j, 3j], np.complex64), (2, 2))
    a, v = x.to_dense().numpy(), np.array([1j, 2 - 1j], np.complex64)
    check(lambda x, v: wf.sparse.matmul(x, v, adjoint_b=True), a @ v.conj(), x, v)
    check(lambda x, v: wf.sparse.matmul(v, x, adjoint_a=True), v.conj() @ a, x, v)
    batch = np.arange(12, dtype=np.complex64).reshape(3, 2, 2)
    check(lambda x, b: b @ x, batch @ a, x, batch)
    half = wf.SparseTensor([[0, 0], [0, 1], [0, 0]], np.float16([2048, 1, 1]), (1, 2))
    product = half @ np.float16([[1], [1]])
    assert product.dtype is wf.float16
    assert product.numpy() == 2050  # in 16 bits 2048 + 1 is 2048


def test_csr_of_a_graph() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        indptr, column = (wf.placeholder(wf.int64, [n]) for n in (4, None))
        values = wf.placeholder(wf.float32, [column.shape[0]])
        x = wf.sparse.CSRMatrix(indptr, column, values, (3, 2))
        out = x @ np.array([[1.0], [10.0]], np.float32)
        fed = {indptr: [0, 1, 1, 3], column: [1, 0, 1], values: [5.0, 7.0, 8.0]}
        assert session.run(out, fed).tolist() == [[50], [0], [87]]
        fed = {indptr: [0, 0, 0, 0], column: [], values: []}
        assert session.run(out, fed).tolist() == [[0], [0], [0]]


# --------------------------------------------------------------------------------------- gradients
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, b: x @ b,
    "left": lambda x, b: wf.transpose(b) @ wf.sparse.transpose(x),
    "adjoint": lambda x, b: wf.sparse.matmul(wf.sparse.transpose(x), b, adjoint_a=True),
    "multiply": lambda x, b: (x * b[:, 0]).to_dense() * (x / (b[:, 1] + 9)).to_dense(),
    "sum": lambda x, b: wf.sparse.reduce_sum(x, axis=1)[:, None] * wf.sum(b),
    "coalesce": lambda x, b: wf.sparse.coalesce(x) @ b,
    "add": lambda x, b: (x + x * 2) @ b,
    "concat": lambda x, b: wf.sparse.concat([x, x], axis=0) @ b,
    "slice": lambda x, b: wf.sparse.slice(x, [0, 1], [9, -1]) @ b[1:],
    "dense": lambda x, b: wf.matmul(wf.sparse.add(x, wf.zeros(x.shape, dtype=x.dtype)), b),
    "max": lambda x, b: wf.sparse.reduce_max(x, axis=0)[:, None] * b,
}


def loss_of(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, b: wf.sum(wf.sin(f(x, b)))


@pytest.mark.share(6)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name: str) -> None:
    """Those of values and of the tensor, against the same function of the dense form."""
    indices, shape = np.array([[0, 1], [2, 0], [2, 3], [1, 1]]), (3, 4)
    values = np.array([0.5, -1.25, 2.0, 0.75])
    b = np.random.default_rng(0).normal(size=(4, 2))
    x = wf.SparseTensor(indices, values, shape)

    def of_dense(values: Any, b: Any) -> Any:
        """The same by dense ops: a loss of the dense tensor made of the values."""
        t = wf.zeros(shape, dtype=wf.float64).at[indices[:, 0], indices[:, 1]].add(values)
        made: dict[str, Callable[[], Any]] = {
            "multiply": lambda: (t * b[:, 0]) * (t / (b[:, 1] + 9)),
            "sum": lambda: wf.sum(t, axis=1)[:, None] * wf.sum(b),
            "add": lambda: wf.matmul(3 * t, b),
            "concat": lambda: wf.matmul(wf.concat([t, t], axis=0), b),
            "slice": lambda: wf.matmul(t[:, 1:], b[1:]),
            "max": lambda: (
                wf.stack([t[2, 0], wf.maximum(t[0, 1], t[1, 1]), 0 * t[0, 0], t[2, 3]])[:, None] * b
            ),
            "left": lambda: wf.transpose(wf.matmul(t, b)),
        }
        return wf.sum(wf.sin(made.get(name, lambda: wf.matmul(t, b))()))

    wanted = wf.grad(of_dense, argnums=(0, 1))(values, b)
    f = loss_of(LOSSES[name])
    given_values = wf.grad(lambda v, b: f(x.with_values(v), b), argnums=(0, 1))
    for way in (given_values, wf.compile(given_values)):
        for got, right in zip(way(values, b), wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12)
    more = padded(x, 2)
    ends = np.concatenate([[7.0], values, [7.0]])
    got = wf.compile(wf.grad(lambda v, b: f(more.with_values(v), b), argnums=(0, 1)))(ends, b)
    np.testing.assert_allclose(got[0][1:-1], wanted[0], rtol=1e-9, atol=1e-12)
    assert got[0][0] == got[0][-1] == 0
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-9, atol=1e-12)


def test_gradient_of_softmax_by_differences() -> None:
    x = wf.SparseTensor([[0, 0], [0, 2], [1, 1], [0, 1]], [1.0, 0.5, 3.0, -1.0], (2, 3))
    weights = np.arange(6.0).reshape(2, 3)

    def f(v: Any) -> Any:
        return wf.sum(wf.sparse.softmax(x.with_values(v)).to_dense() * weights)

    v = np.array([1.0, 0.5, 3.0, -1.0])
    slopes = [(f(v + e) - f(v - e)) / 2e-6 for e in np.eye(4) * 1e-6]
    np.testing.assert_allclose(wf.grad(f)(v), np.asarray(slopes, np.float64), atol=1e-7)
    np.testing.assert_allclose(wf.compile(wf.grad(f))(v), wf.grad(f)(v), atol=1e-12)


def test_gradients_of_graphs_are_rows() -> None:
    """Of a table that is multiplied, IndexedSlices: as many rows as entries."""
    table = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, 4])
        w = wf.Variable(table, name="w")
        session.run(wf.global_variables_initializer())
        slices, values = wf.gradients(wf.sum(wf.sparse.matmul(x, w)), [w, x.values])
        fed = ([[0, 1], [2, 3], [2, 1]], [1.0, 2.0, 4.0], (3, 4))
        got, of_values = session.run([slices, values], {x: fed})
    assert isinstance(got, wf.IndexedSlices)
    assert got.values.tolist() == [[1, 1], [2, 2], [4, 4]]
    np.testing.assert_allclose(of_values, table.sum(axis=1)[[1, 3, 1]], rtol=1e-6)


# ----------------------------------------------------------------- control flow and transformations
def test_in_branches_loops_and_batches() -> None:
    x = wf.SparseTensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2))
    a = x.to_dense().numpy()

    @wf.compile
    def branches(x: Any, double: Any) -> Any:
        return wf.cond(double, lambda: x * 2, lambda: x)

    assert np.array_equal(branches(x, True).to_dense(), 2 * a)
    assert np.array_equal(branches(x, False).to_dense(), a)

    @wf.compile
    def power(x: Any, b: Any) -> Any:
        def body(i: Any, x: Any, b: Any) -> Any:
            return i + 1, x * 2, x @ b

        return wf.while_loop(lambda i, x, b: i < 3, body, (0, x, b))[2]

    assert np.array_equal(power(x, np.eye(2, dtype=np.float32)), 8 * a @ a @ a)
    values = np.array([[2.0, 3.0], [5.0, 7.0]], np.float32)
    b = np.array([1.0, 10.0], np.float32)
    rows = wf.vmap(lambda v: x.with_values(v) @ b)(values)
    assert rows.numpy().tolist() == [[20, 3], [50, 7]]
    other = wf.SparseTensor([[1, 1], [1, 0]], [5.0, 7.0], (2, 2))
    both = wf.tree_map(lambda *parts: wf.stack(parts), x, other)  # [2, n, rank] and [2, n]
    wanted = np.stack([a, other.to_dense().numpy()])
    assert np.array_equal(wf.vmap(lambda x: x.to_dense())(both), wanted)
    twice = wf.vmap(lambda x: wf.sparse.slice(x + x, [0, 1], [2, 1]).to_dense())
    assert np.array_equal(twice(both), 2 * wanted[:, :, 1:])
    assert np.array_equal(wf.compile(twice)(both), 2 * wanted[:, :, 1:])
    value, slope = wf.jvp(lambda v: x.with_values(v) @ b, (x.values,), (wf.ones(2),))
    assert value.numpy().tolist() == [20, 3]
    assert slope.numpy().tolist() == [10, 1]


def test_open_numbers_of_entries_in_a_signature() -> None:
    """A compiled function for any number of entries: traced once."""
    x = wf.SparseTensor([[0, 1]], [2.0], (2, 2))
    kind = wf.tree_map(lambda t: wf.TensorType(t.dtype, (None, *t.shape[1:])), x)
    f = wf.compile(
        lambda x, b: (x @ b, wf.sparse.softmax(x).to_dense()),
        input_signature=[kind, wf.TensorType(wf.float32, (2, 2))],
    )
    eye = np.eye(2, dtype=np.float32)
    for y in (x, wf.SparseTensor([[0, 1], [1, 0], [1, 0]], [1.0, 5.0, 2.0], (2, 2))):
        assert np.array_equal(f(y, eye)[0], y.to_dense())
    assert f(x, eye)[1].numpy().tolist() == [[0, 1], [0, 0]]


def test_large_eager_products_are_native() -> None:
    """The same bits as by the interpreter, a call that is large and one that is not."""
    rng = np.random.default_rng(0)
    x = wf.SparseTensor(rng.integers(0, 300, (9000, 2)), rng.standard_normal(9000), (300, 300))
    b = rng.standard_normal((300, 20))
    for operand in (b, b[:, 0]):
        assert np.array_equal((x @ operand).numpy(), interpreted(lambda x, b: x @ b, x, operand))


def test_in_loops_and_branches_of_graphs() -> None:
    fed = ([[0, 1], [1, 0]], [1.0, -3.0], [2, 2])
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, 2])
        _, eight = wf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (0, x))
        chosen = wf.cond(wf.sum(x.values) > 0, lambda: x, lambda: -x)
        last, sums = wf.scan(lambda c, _: (c * 2.0, wf.sparse.reduce_sum(c)), x, length=3)
        made = session.run([eight, chosen, last, sums], {x: fed})
    assert [m.values.tolist() for m in made[:3]] == [[8, -24], [-1, 3], [8, -24]]
    assert made[3].tolist() == [-2, -4, -8]


# ---------------------------------------------------------------------------------------- sessions
def test_feeds_and_fetches() -> None:
    given_parts = ([[0, 1], [2, 0]], [5.0, 7.0], [4, 3])
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, 3], "x")
        made = session.run({"x": x, "sum": wf.sparse.reduce_sum(x)}, {x: given_parts})
        assert isinstance(made["x"], wf.SparseTensorValue)
        indices, values, shape = made["x"]
        assert indices.tolist() == [[0, 1], [2, 0]]
        assert (values.tolist(), shape.tolist(), made["sum"]) == ([5, 7], [4, 3], 12)
        again = session.run(x, {x: made["x"]})
        assert again.dense_shape.tolist() == [4, 3]
        total = wf.sparse.reduce_sum(x)
        call = session.make_callable(total, [x])
        assert call(given_parts) == call(wf.SparseTensor(*given_parts)) == 12
        handle = session.partial_run_setup([total, x], [x])
        assert session.partial_run(handle, total, {x: given_parts}) == 12
        assert session.partial_run(handle, x).dense_shape.tolist() == [4, 3]
        before = str(session.graph)
        session.run(x, {x: given_parts})
        assert str(session.graph) == before
        report = session.explain(x.to_dense(), {x: given_parts})
        assert "runs as one native plan" in report
        for wrong, match in (
            (([[0, 3]], [5.0], [4, 3]), r"index \[0, 3\] of entry 0 is out of range"),
            (([[0, 1]], [5.0], [4, 4]), r"shape \[4, 4\] .* SparseTensor of shape"),
            ((([0, 1]), [5.0], [4, 3]), r"indices \[2\]"),
            (3, "a int was fed for a SparseTensor"),
        ):
            with pytest.raises(
                (wf.errors.InvalidArgumentError, wf.errors.TypeRuleError), match=match
            ):
                session.run(total, {x: wrong})
        derived = wf.sparse.transpose(x)
        with pytest.raises(wf.errors.InvalidArgumentError, match="cannot be fed"):
            session.run(total, {derived: given_parts})
        with pytest.raises(wf.errors.UnsupportedError, match="unknown rank"):
            wf.tf1.sparse_placeholder(wf.float32)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    m = scipy_sparse.random(5, 3, 0.5, format="csr", dtype=np.float32)
    got = in_session(lambda x: x.to_dense(), wf.SparseTensor(np.zeros((0, 2)), [], (5, 3)))
    assert got.tolist() == np.zeros((5, 3)).tolist()
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, None])
        assert np.array_equal(session.run(x.to_dense(), {x: m}), m.toarray())


def test_graphs_with_placeholders_are_freed() -> None:
    with wf.Graph().as_default() as graph, wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, 3])
        session.run(x, {x: ([[0, 1]], [5.0], [2, 3])})
    alive = weakref.ref(graph)
    del graph, session, x
    gc.collect()
    assert alive() is None


def test_finalized_graphs() -> None:
    """What a session needs to fetch a placeholder is there."""
    with wf.Graph().as_default() as graph, wf.Session() as session:
        x = wf.tf1.sparse_placeholder(wf.float32, [None, None])
        turned = wf.sparse.transpose(x)
        graph.finalize()
        got = session.run(turned, {x: ([[0, 1]], [5.0], [2, 3])})
    assert got.dense_shape.tolist() == [3, 2]


def test_shapes_that_are_fed() -> None:
    """dense_shape as a tensor of a graph."""
    with wf.Graph().as_default(), wf.Session() as session:
        shape = wf.placeholder(wf.int64, [2])
        x = wf.SparseTensor([[0, 1]], [5.0], shape)
        for sizes in ([1, 2], [3, 4]):
            whole, rows = session.run([x.to_dense(), wf.sparse.reduce_sum(x, 1)], {shape: sizes})
            assert whole.shape == tuple(sizes)
            assert rows.tolist() == [5] + [0] * (sizes[0] - 1)
        with pytest.raises(wf.errors.InvalidArgumentError):
            session.run(x.to_dense(), {shape: [1, 1]})


def test_names_of_tensorflow() -> None:
    """TensorFlow 1's functions, on the examples of its documentation where it has one."""
    x = wf.SparseTensor([[0, 2], [0, 0], [1, 1]], [1, 1, 1], (2, 3))
    assert wf.tf1.sparse_reduce_sum(x).numpy() == 3
    assert wf.tf1.sparse_reduce_sum(x, 0).numpy().tolist() == [1, 1, 1]
    assert wf.tf1.sparse_reduce_sum(x, 1, True).numpy().tolist() == [[2], [1]]
    assert wf.tf1.sparse_reduce_max(x * 3, [0, 1]).numpy() == 3
    assert wf.tf1.sparse_reorder(x).indices.numpy().tolist() == [[0, 0], [0, 2], [1, 1]]
    turned = wf.tf1.sparse_transpose(x)
    assert turned.indices.numpy().tolist() == [[0, 0], [1, 1], [2, 0]]
    assert wf.tf1.sparse_reshape(x, [-1]).indices.numpy().tolist() == [[2], [0], [4]]
    assert wf.tf1.sparse_reset_shape(x, [3, 3]).shape == (3, 3)
    joined = wf.tf1.sparse_concat(1, [x, x])
    assert joined.shape == (2, 6)
    assert joined.indices.numpy().tolist() == [[0, 0], [0, 2], [0, 3], [0, 5], [1, 1], [1, 4]]
    assert wf.tf1.sparse_add(x, x, thresh=3).nse == 0
    assert plain(wf.tf1.sparse_maximum(x, -x)).tolist() == np.maximum(plain(x), -plain(x)).tolist()
    assert plain(wf.tf1.sparse_minimum(x, -x)).tolist() == np.minimum(plain(x), -plain(x)).tolist()
    assert wf.tf1.sparse_retain(x, [True, False, True]).nse == 2
    assert wf.tf1.sparse_slice(x, [0, 1], [1, 2]).to_dense().numpy().tolist() == [[0, 1]]
    assert wf.tf1.sparse_softmax(x).values.numpy().tolist() == [0.5, 0.5, 1]
    product = wf.tf1.sparse_tensor_dense_matmul(x, [[1, 2], [3, 4]], adjoint_a=True, adjoint_b=True)
    assert product.numpy().tolist() == [[1, 3], [2, 4], [1, 3]]
    filled, empty = wf.tf1.sparse_fill_empty_rows(wf.tf1.sparse_slice(x, [0, 1], [2, 1]), 7)
    assert filled.to_dense().numpy().tolist() == [[7], [1]]
    assert empty.numpy().tolist() == [True, False]
    assert wf.tf1.sparse_tensor_to_dense(x, 4).numpy().tolist() == [[1, 4, 1], [4, 1, 4]]
    for given_parts, wanted in (
        ((2, [4], 9), [0, 0, 9, 0]), (([1, 3], [4], [5, 6]), [0, 5, 0, 6]),
        (([[0, 1]], [1, 2], [5]), [[0, 5]]), (([1], [3], 5, -1), [-1, 5, -1]),
    ):  # fmt: skip
        assert wf.tf1.sparse_to_dense(*given_parts).numpy().tolist() == wanted
    value = wf.SparseTensorValue(*map(wf.asarray, ([[0]], [2], [3])))
    assert wf.tf1.sparse_tensor_to_dense(value).numpy().tolist() == [2, 0, 0]
    assert wf.tf1.sparse_add(value, value).to_dense().numpy().tolist() == [4, 0, 0]
    assert wf.sparse.multiply(value, 3).to_dense().numpy().tolist() == [6, 0, 0]


# --------------------------------------------------------------------------------- embedding lookup
@examples(60)
@given(SEEDS, st.sampled_from(["sum", "mean", "sqrtn"]), st.booleans(), st.booleans())
def test_embedding_lookup_sparse(seed: int, combiner: str, weighted: bool, limited: bool) -> None:
    """Against TensorFlow's definition, in a loop."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(6, 3)).astype(np.float32)
    rows = np.sort(rng.integers(0, 4, 7))
    indices = np.stack([rows, np.arange(7)], axis=1)
    ids, weights = rng.integers(0, 6, 7), rng.uniform(0.5, 2, 7).astype(np.float32)
    sp_ids, sp_weights = wf.SparseTensor(indices, ids, (4, 7)), None
    if weighted:
        sp_weights = wf.SparseTensor(indices, weights, (4, 7))
    wanted = np.zeros((4, 3))
    for row in range(4):
        mine = rows == row
        found, w = table[ids[mine]].astype(np.float64), weights[mine] if weighted else 1
        if limited:
            norms = np.linalg.norm(found, axis=1, keepdims=True)
            found = np.where(norms > 1.5, found * 1.5 / norms, found)
        w = np.broadcast_to(w, mine.sum())[:, None]
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        wanted[row] = (found * w).sum(axis=0) / divisor if mine.any() else 0

    def f(table: Any, x: Any) -> Any:
        return wf.nn.embedding_lookup_sparse(
            table, x, sp_weights, combiner=combiner, max_norm=1.5 if limited else None
        )

    for got in (f(table, sp_ids), wf.compile(f)(table, sp_ids)):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)
    if not weighted:
        np.testing.assert_allclose(f(table, padded(sp_ids)), wanted, rtol=2e-5, atol=1e-5)
        parts = [table[0::2], table[1::2]]
        np.testing.assert_allclose(f(parts, sp_ids), wanted, rtol=2e-5, atol=1e-5)
    t = table.astype(np.float64)
    slope = wf.grad(lambda t: wf.sum(wf.sin(f(t, sp_ids))))(t)
    step = rng.normal(size=t.shape)
    ends = [wf.sum(wf.sin(f(t + s * step, sp_ids))).numpy() for s in (1e-6, -1e-6)]
    np.testing.assert_allclose((slope * step).sum(), (ends[0] - ends[1]) / 2e-6, atol=1e-4)


def test_embedding_lookup_sparse_refuses() -> None:
    table, x = wf.ones((3, 2)), wf.SparseTensor([[0, 0]], [1], (2, 2))
    with pytest.raises(wf.errors.InvalidArgumentError, match="combiner must be"):
        wf.nn.embedding_lookup_sparse(table, x, combiner="max")
    with pytest.raises(wf.errors.ShapeError, match="a weight for each id"):
        wf.nn.embedding_lookup_sparse(
            table, x, wf.SparseTensor([[0, 0], [0, 1]], [1.0, 1.0], (2, 2))
        )
    with pytest.raises(
        wf.errors.TypeRuleError, match=r"wf.nn.embedding_lookup_sparse takes a wf\.sparse"
    ):
        wf.nn.embedding_lookup_sparse(table, [1])


# ------------------------------------------------------------------------------------------- errors
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "index": (lambda: wf.SparseTensor([[0, 2]], [1.0], (2, 2)), wf.errors.InvalidArgumentError,
              r"index \[0, 2\] of entry 0 is out of range for dense_shape \[2,2\]"),
    "negative": (lambda: wf.SparseTensor([[0], [-1]], [1.0, 2.0], (2,)),
                 wf.errors.InvalidArgumentError, r"index \[-1\] of entry 1"),
    "count": (lambda: wf.SparseTensor([[0]], [1.0, 2.0], (2,)), wf.errors.ShapeError,
              r"indices are \[n, rank\]"),
    "rank": (lambda: wf.SparseTensor([[0]], [1.0], (2, 2)), wf.errors.ShapeError, "no entries"),
    "floats": (lambda: wf.SparseTensor([[0.5]], [1.0], (2,)), wf.errors.TypeRuleError,
               "indices must be integers"),
    "size": (lambda: wf.SparseTensor([[0]], [1.0], (-2,)), wf.errors.ShapeError, "negative size"),
    "dense": (lambda: wf.sparse.softmax(wf.ones((2, 2))), wf.errors.TypeRuleError,
              "wf.sparse.softmax takes a wf.sparse.SparseTensor, got a Tensor"),
    "as tensor": (lambda: wf.exp(wf.SparseTensor([[0]], [1.0], (2,))), wf.errors.TypeRuleError,
                  "to_dense"),
    "number": (lambda: wf.SparseTensor([[0]], [1.0], (2,)) + 1, wf.errors.ShapeError,
               "would make a dense tensor"),
    "shapes": (lambda: wf.SparseTensor([[0]], [1.0], (2,)) + wf.ones(3), wf.errors.ShapeError,
               r"\[2\] and \[3\] differ"),
    "broadcast": (lambda: wf.SparseTensor([[0]], [1.0], (2,)) * wf.ones(3), wf.errors.ShapeError,
                  "does not broadcast"),
    "product": (lambda: wf.SparseTensor([[0, 0]], [1.0], (2, 3)) @ wf.ones((2, 2)),
                wf.errors.ShapeError, "does not go with"),
    "concat": (lambda: wf.sparse.concat([wf.SparseTensor([[0, 0]], [1.0], (2, n)) for n in (1, 2)]),
               wf.errors.ShapeError, "differ in more than axis 0"),
    "perm": (lambda: wf.sparse.transpose(wf.SparseTensor([[0, 0]], [1.0], (2, 2)), [0, 0]),
             wf.errors.InvalidArgumentError, "no order of 2 axes"),
    "reshape": (lambda: wf.sparse.reshape(wf.SparseTensor([[0, 0]], [1.0], (2, 2)), [3]),
                wf.errors.ShapeError, "4 elements"),
    "slice": (lambda: wf.sparse.slice(wf.SparseTensor([[0]], [1.0], (2,)), [-1], [1]),
              wf.errors.InvalidArgumentError, "no part"),
    "smaller": (lambda: wf.sparse.reset_shape(wf.SparseTensor([[0]], [1.0], (2,)), [1]),
                wf.errors.ShapeError, "smaller than"),
    "places": (lambda: wf.sparse.coalesce(wf.SparseTensor([[0] * 3], [1.0], (2**22,) * 3)),
               wf.errors.UnsupportedError, "more places"),
    "indptr": (lambda: wf.sparse.CSRMatrix([0, 2], [0], [1.0], (1, 2)),
               wf.errors.InvalidArgumentError, "must rise from 0 to 1"),
    "csr": (lambda: wf.sparse.CSRMatrix([0, 1], [0], [1.0], (2, 2)), wf.errors.ShapeError,
            "indptr is"),
    "nse in vmap": (lambda: wf.vmap(wf.sparse.from_dense)(np.ones((2, 2))),
                    wf.errors.TracerError, "would differ by example"),
    "negative shape": (lambda: wf.compile(lambda s: wf.SparseTensor([[0]], [1.0], s))(
                       np.array([-2])), wf.errors.InvalidArgumentError, "in dense_shape"),
}  # fmt: skip


def test_compiled_functions_find_how_many_entries_there_are() -> None:
    f = wf.compile(wf.sparse.from_dense)
    for x in (np.eye(3), np.zeros((2, 2)), np.eye(3)):
        found = f(x)
        assert found.nse == np.count_nonzero(x)
        np.testing.assert_array_equal(found.to_dense(), x)


@pytest.mark.parametrize("rows", [3, 7])
def test_a_shape_that_a_compiled_function_computes(rows: int) -> None:
    indices, values = np.array([[0, 1], [2, 0]]), np.array([2.0, 3.0], np.float32)
    wanted = np.zeros((rows, 4), np.float32)
    wanted[[0, 2], [1, 0]] = values

    @wf.compile
    def made(n: wf.Tensor, v: wf.Tensor) -> Any:
        x = wf.SparseTensor(indices, v, (n, 4))
        product = wf.sparse.matmul(x, wf.ones((4, 2), dtype=wf.float32))
        return {"x": x, "sum": wf.sparse.add(x, x), "t": wf.sparse.transpose(x), "p": product}

    found = made(np.int32(rows), values)
    assert [found[k].dense_shape for k in ("x", "sum", "t")] == [(rows, 4), (rows, 4), (4, rows)]
    np.testing.assert_array_equal(found["x"].to_dense(), wanted)
    np.testing.assert_array_equal(found["sum"].to_dense(), 2 * wanted)
    np.testing.assert_array_equal(found["t"].to_dense(), wanted.T)
    np.testing.assert_allclose(found["p"], wanted @ np.ones((4, 2)))
    outer = wf.compile(lambda n, v: wf.sum(made(n, v)["sum"].to_dense() ** 2.0))
    np.testing.assert_allclose(outer(np.int32(rows), values), 4 * (wanted**2).sum())
    gradient = wf.compile(wf.grad(lambda v, n: outer(n, v)))
    np.testing.assert_allclose(gradient(values, np.int32(rows)), 8 * values)


def test_a_shape_that_an_argument_has_leaves_a_function_native() -> None:
    signature = [wf.TensorType(wf.float32, (None,))]
    f = wf.compile(
        lambda x: wf.SparseTensor([[0], [1]], x[:2], (wf.shape(x)[0],)), input_signature=signature
    )
    for size in (5, 2):
        found = f(np.arange(size, dtype=np.float32) + 1)
        assert found.dense_shape == (size,)
        np.testing.assert_array_equal(found.to_dense()[:2], [1, 2])
    assert "dataflow executor" not in f.explain(np.ones(5, np.float32))


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    f, error, match = BAD[name]
    with pytest.raises(error, match=match):
        f()


def test_indices_out_of_range_when_it_runs() -> None:
    """Negative ones do not count from the end, and others are no padding."""
    x = wf.SparseTensor([[0, 1]], [5.0], (2, 2))

    @wf.compile
    def f(indices: Any) -> Any:
        return wf.SparseTensor(indices, x.values, (2, 2)).to_dense()

    assert f(np.array([[1, 0]])).numpy().tolist() == [[0, 0], [5, 0]]
    for wrong in ([[-1, 0]], [[0, 2]], [[0, -1]]):
        with pytest.raises(wf.errors.InvalidArgumentError):
            f(np.array(wrong))
