"""Lookups in tables that are split over several tensors (the paper, section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

ROWS = np.random.default_rng(5).standard_normal((11, 3)).astype(np.float32)


def split(table: Any, count: int, strategy: str) -> list[Any]:
    if strategy == "mod":
        return [np.ascontiguousarray(table[i::count]) for i in range(count)]
    return [np.ascontiguousarray(p) for p in np.array_split(table, count)]


@examples(40)
@given(
    st.integers(1, 12),
    st.sampled_from([2, 3, 5]),
    st.sampled_from(["mod", "div"]),
    st.lists(st.integers(-100, 100), max_size=7),
    st.booleans(),
)
def test_values_and_gradients(
    rows: int, count: int, strategy: str, draws: list[int], compiled: bool
) -> None:
    if rows < count:
        return
    table = ROWS[:rows] if rows <= 11 else np.concatenate([ROWS, ROWS[:1]])
    ids = np.array([i % (2 * rows) - rows for i in draws], np.int64).reshape(-1, 1)
    parts = split(table, count, strategy)

    def loss(parts: Any) -> Any:
        found = wf.nn.embedding_lookup(parts, ids, strategy)
        return wf.sum(wf.square(found) * wf.arange(3, dtype=wf.float32)), found

    call = wf.value_and_grad(loss, has_aux=True)
    (_, found), grads = (wf.compile(call) if compiled else call)(parts)
    assert np.array_equal(found, table[ids])
    whole = np.zeros_like(table)
    np.add.at(whole, ids.ravel(), 2 * table[ids.ravel()] * np.arange(3, dtype=np.float32))
    for got, want in zip(grads, split(whole, count, strategy), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_each_part_of_a_graph_gets_its_rows_only(strategy: str) -> None:
    with wf.Graph().as_default():
        parts = [wf.Variable(p) for p in split(ROWS, 3, strategy)]
        ids = wf.placeholder(wf.int64, ["n"])
        loss = wf.sum(wf.nn.embedding_lookup(parts, ids, strategy))
        optimizer = wf.train.SGD(1.0)
        pairs = optimizer.compute_gradients(loss, parts)
        train = optimizer.apply_gradients(pairs)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            given = np.array([4, 10, 4, 9])
            slices = session.run([g for g, _ in pairs], {ids: given})
            assert all(isinstance(s, wf.IndexedSlices) for s in slices)
            assert sum(len(s.indices) for s in slices) == 4
            session.run(train, {ids: given})
            session.run(train, {ids: np.array([], np.int64)})
    want = ROWS.copy()
    np.subtract.at(want, given, 1.0)
    for v, p in zip(parts, split(want, 3, strategy), strict=True):
        np.testing.assert_allclose(v.numpy(), p, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_ids_out_of_range(strategy: str, compiled: bool) -> None:
    parts = split(ROWS, 3, strategy)

    def look_up(ids: Any) -> Any:
        return wf.nn.embedding_lookup(parts, ids, strategy)

    call = wf.compile(look_up) if compiled else look_up
    assert np.array_equal(call(np.array([10, -11])), ROWS[[10, 0]])
    for bad in (11, 12, 13, 40, -12, -40):
        with pytest.raises(wf.errors.WeftError):
            call(np.array([0, bad]))


def test_parts_that_are_not_of_one_table() -> None:
    for parts in ([ROWS, ROWS[:3]], [ROWS, ROWS[:, :2]], [ROWS, ROWS.astype(np.float64)]):
        with pytest.raises(wf.errors.ShapeError, match="parts of one table"):
            wf.nn.embedding_lookup(parts, [0])
    with wf.Graph().as_default(), pytest.raises(wf.errors.ShapeError, match="is not known"):
        wf.nn.embedding_lookup([ROWS, wf.placeholder(wf.float32, [None, 3])], [0])
    empty = [ROWS[:1], ROWS[:0]]
    assert np.array_equal(wf.nn.embedding_lookup(empty, [0, -1]), ROWS[[0, 0]])
    with pytest.raises(wf.errors.UnsupportedError, match="without rows"):
        wf.compile(lambda: wf.nn.embedding_lookup(empty, [0]))()
    with pytest.raises(wf.errors.InvalidArgumentError, match="empty list"):
        wf.nn.embedding_lookup([], [0])
