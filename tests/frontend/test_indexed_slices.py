"""IndexedSlices: gradients of looked-up rows that are never made dense unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.frontend.autodiff.indexed_slices import IndexedSlices

V, D = 10, 3
RNG = np.random.default_rng(7)
TABLE = RNG.standard_normal((V, D)).astype(np.float32)


def dense(slices: Any) -> np.ndarray[Any, Any]:
    out = np.zeros(slices.dense_shape, np.asarray(slices.values).dtype)
    np.add.at(out, np.asarray(slices.indices), np.asarray(slices.values))
    return out


def in_graph(build: Any, feed: Any = None) -> Any:
    with wf.Graph().as_default():
        table = wf.Variable(TABLE, name="table")
        fetches = build(table)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            return session.run(fetches, feed)


@pytest.mark.parametrize("ids", [[1, 4, 1], [[0, 9], [9, 9]], 3, [], [-1, 9, -10, 0]])
@pytest.mark.parametrize("lookup", [wf.take, wf.gather, wf.nn.embedding_lookup])
def test_the_gradient_of_a_lookup_is_rows(ids: Any, lookup: Any) -> None:
    ids = np.asarray(ids, np.int64)

    def build(table: wf.Variable) -> Any:
        rows = lookup(table, ids, axis=0) if lookup is wf.take else lookup(table, ids)
        return wf.gradients(wf.sum(rows * rows), [table])

    (got,) = in_graph(build)
    assert isinstance(got, IndexedSlices)
    assert got.dense_shape == (V, D)
    assert got.values.shape == (ids.size, D)
    assert got.indices.tolist() == ids.ravel().tolist()
    want = np.zeros((V, D), np.float32)
    np.add.at(want, ids.ravel(), 2 * TABLE[ids.ravel()])
    np.testing.assert_allclose(dense(got), want, rtol=1e-6)


def test_rows_by_gather_nd_are_rows() -> None:
    def build(table: wf.Variable) -> Any:
        return wf.gradients(wf.sum(wf.gather_nd(table, [[1], [2], [1]])), [table])

    (got,) = in_graph(build)
    assert got.indices.tolist() == [1, 2, 1]
    assert np.array_equal(got.values, np.ones((3, D), np.float32))


def test_several_lookups_follow_each_other_and_dense_wins() -> None:
    def build(table: wf.Variable) -> Any:
        a, b = wf.take(table, [1, 2], axis=0), wf.take(table, np.array([2], np.int32), axis=0)
        rows = wf.sum(a) * 2.0 + wf.sum(b * b)
        return wf.gradients(rows, [table]) + wf.gradients(rows + wf.sum(table), [table])

    rows, mixed = in_graph(build)
    assert isinstance(rows, IndexedSlices)
    assert sorted(rows.indices.tolist()) == [1, 2, 2]
    assert isinstance(mixed, np.ndarray)  # the loss reads all of the table, too
    np.testing.assert_allclose(mixed, dense(rows) + 1, rtol=1e-6)


def test_reads_that_an_assignment_parts_are_joined() -> None:
    table = wf.Variable(TABLE)

    @wf.compile
    def step() -> Any:
        first = wf.take(table, [3], axis=0)
        table.assign(table * 2.0)
        (got,) = wf.gradients(wf.sum(first) + 5.0 * wf.sum(wf.take(table, [4], axis=0)), [table])
        return got

    got = step()
    assert isinstance(got, IndexedSlices)
    pairs = zip(got.indices.tolist(), got.values[:, 0].tolist(), strict=True)
    assert sorted(pairs) == [(3, 1.0), (4, 5.0)]


def test_gradients_of_tensors_and_of_grad_are_dense() -> None:
    def build(table: wf.Variable) -> Any:
        t = table.read()
        return wf.gradients(wf.sum(wf.take(t, [1], axis=0)), [t])

    (got,) = in_graph(build)
    assert isinstance(got, np.ndarray)
    assert isinstance(wf.grad(lambda t: wf.sum(wf.take(t, [1], axis=0)))(TABLE), wf.Tensor)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s + 1.0,
        lambda s: 1.0 - s,
        lambda s: s * np.ones((V, D), np.float32),
        lambda s: wf.sum(s),
        lambda s: wf.asarray(s),
        lambda s: np.asarray(s),
        lambda s: np.ones((V, D), np.float32) + s,
        lambda s: wf.ones([V, D]) - s,
    ],
)
def test_nothing_makes_them_dense_unasked(use: Any) -> None:
    slices = wf.IndexedSlices(TABLE[:2], [4, 4], (V, D))
    with pytest.raises(wf.errors.TypeRuleError, match=r"to_dense|IndexedSlices") as info:
        use(slices)
    assert "test_indexed_slices.py" in str(info.value)
    assert slices.to_dense().shape == (V, D)


def test_arithmetic_that_keeps_rows() -> None:
    a = wf.IndexedSlices(TABLE[:2], [4, 4], (V, D))
    b = wf.IndexedSlices(TABLE[2:3], np.array([1], np.int32), (V, D))
    made = (a * 2.0 - b / 4.0) + wf.asarray(np.float32(0.5)) * -a
    assert isinstance(made, IndexedSlices)
    np.testing.assert_allclose(dense(made), 1.5 * dense(a) - dense(b) / 4, rtol=1e-6)
    with pytest.raises(wf.errors.ShapeError, match="do not add"):
        a + wf.IndexedSlices(TABLE[:2], [4, 4], (V + 1, D))


@pytest.mark.parametrize(
    ("values", "indices", "shape"),
    [
        (TABLE[:2], [1, 2, 3], (V, D)),
        (TABLE[:2], [1, 2], (V, D + 1)),
        (TABLE[:2], [[1, 2]], (V, D)),
        (np.float32(1), [1], ()),
    ],
)
def test_parts_that_do_not_fit(values: Any, indices: Any, shape: Any) -> None:
    with pytest.raises(wf.errors.ShapeError, match="no rows of a table"):
        wf.IndexedSlices(values, indices, shape)
    with pytest.raises(wf.errors.TypeRuleError, match="must be integers"):
        wf.IndexedSlices(TABLE[:1], [1.5], (V, D))


@settings(max_examples=40)
@given(
    st.lists(st.integers(-V, V - 1), max_size=8),
    st.floats(0.01, 3.0),
    st.sampled_from([(-0.5, 0.5), (0.25, 1.0), (-1.0, -0.25)]),
)
def test_clipping_is_that_of_the_tensor_they_stand_for(
    ids: list[int], norm: float, limits: tuple[float, float]
) -> None:
    values = np.random.default_rng(len(ids)).standard_normal((len(ids), D)).astype(np.float32)
    slices = wf.IndexedSlices(values, np.asarray(ids, np.int64), (V, D))
    whole = slices.to_dense()
    np.testing.assert_allclose(whole.numpy(), dense(slices), rtol=1e-6)
    np.testing.assert_allclose(
        wf.clip_by_norm(slices, norm).to_dense(), wf.clip_by_norm(whole, norm), rtol=1e-5, atol=1e-6
    )
    (a, none, b), total = wf.clip_by_global_norm([slices, None, TABLE], norm)
    (c, d), same = wf.clip_by_global_norm([whole, TABLE], norm)
    assert none is None
    np.testing.assert_allclose(total, same, rtol=1e-5)
    np.testing.assert_allclose(a.to_dense(), c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, d, rtol=1e-5)
    clipped = wf.clip_by_value(slices, *limits).to_dense().numpy()
    want = np.clip(dense(slices), *limits)
    want[sorted(set(range(V)) - {i % V for i in ids})] = 0
    np.testing.assert_allclose(clipped, want, rtol=1e-5)


OPTIMIZERS = [
    lambda: wf.train.SGD(0.1),
    lambda: wf.train.Momentum(0.1, 0.9),
    lambda: wf.train.Adagrad(0.1),
    lambda: wf.train.Adam(0.1),
]


@pytest.mark.share(3)
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("style", ["graph", "compiled", "eager"])
def test_an_optimizer_does_as_with_the_dense_gradient(make: Any, style: str) -> None:
    ids = np.array([1, 4, 1, -1])

    def run(sparse: bool) -> Any:
        graph = wf.Graph()
        with graph.as_default() if style == "graph" else wf.name_scope("x"):
            table = wf.Variable(TABLE, name="table")
            optimizer = make()

            def loss() -> Any:
                return wf.sum(wf.square(wf.take(table, ids, axis=0)))

            def step() -> Any:
                if not sparse:
                    return optimizer.minimize(loss if style == "eager" else loss(), [table])
                pairs = optimizer.compute_gradients(loss if style == "eager" else loss(), [table])
                assert isinstance(pairs[0][0], IndexedSlices)
                return optimizer.apply_gradients([(g * 1.0, v) for g, v in pairs])

            if style == "graph":
                train = step()
                with wf.Session() as session:
                    session.run(wf.global_variables_initializer())
                    for _ in range(3):
                        session.run(train)
            else:
                call = wf.compile(lambda: (step(), None)[1]) if style == "compiled" else step
                for _ in range(3):
                    call()
            return table.numpy()

    np.testing.assert_allclose(run(True), run(False), rtol=1e-6)


def test_a_compiled_update_touches_the_rows_only() -> None:
    table = wf.Variable(np.zeros((100_000, 64), np.float32))
    optimizer = wf.train.SGD(0.1)

    @wf.compile
    def step(ids: Any) -> Any:
        loss = wf.sum(wf.square(wf.take(table, ids, axis=0) - 1.0))
        pairs = optimizer.compute_gradients(loss, [table])
        clipped, norm = wf.clip_by_global_norm([g for g, _ in pairs], 1e6)
        optimizer.apply_gradients(list(zip(clipped, [table], strict=True)))
        return norm

    ids = np.array([5, 7, 5])
    norm = step(ids)
    np.testing.assert_allclose(norm, np.sqrt(64 * (4.0**2 + 2.0**2)), rtol=1e-6)
    assert "only its looked-up rows are updated" in step.explain(ids)
    assert set(np.flatnonzero(table.numpy()[:, 0])) == {5, 7}


def test_as_arguments_and_results_of_compiled_functions() -> None:
    slices = wf.IndexedSlices(TABLE[:2], [4, 5], (V, D))
    got = wf.compile(lambda s: s * 2.0)(slices)
    assert isinstance(got, IndexedSlices)
    assert got.dense_shape == (V, D)
    assert np.array_equal(got.values, 2 * TABLE[:2])
    again = wf.compile(lambda s: s.to_dense())(slices)
    assert np.array_equal(again, slices.to_dense())


def test_fetched_slices_do_not_become_dense_by_themselves() -> None:
    """Their values are NumPy arrays."""
    with wf.Graph().as_default(), wf.Session() as session:
        table = wf.Variable(np.ones((4, 3), np.float32))
        index = wf.placeholder(wf.int64, [None])
        (slices,) = wf.gradients(wf.sum(wf.gather(table, index)), [table])
        session.run(wf.global_variables_initializer())
        made = session.run(slices, {index: [1, 2]})
        with pytest.raises(wf.errors.TypeRuleError, match=r"would make a dense tensor f32\[4,3\]"):
            np.asarray(made)
