"""Barriers and accumulators whose elements may have any shape: eagerly, in graphs, in compiled
functions and on a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

F32 = np.float32
E = wf.errors
SOON = wf.RunOptions(timeout=20.0)  # so that a fault is no hang
LATE = 99  # a step for which no gradient is stale


def barrier(shapes: Any = None) -> Any:
    return wf.tf1.Barrier([wf.float32, wf.string], shapes)


def test_barriers_eagerly() -> None:
    b = barrier()
    b.insert_many(0, ["a", "b"], np.arange(6, dtype=F32).reshape(2, 3))
    b.insert_many(1, ["a", "b"], [["x"], ["y"]])
    b.insert_many(1, ["c", "d"], ["z", "z"])
    b.insert_many(0, ["c"], np.ones((1, 2, 2)))
    b.insert_many(0, ["d"], [5.0])
    _, keys, (x, words) = b.take_many(2)
    assert keys.tolist() == [b"a", b"b"]
    np.testing.assert_array_equal(x.numpy(), np.arange(6).reshape(2, 3))
    assert words.tolist() == [[b"x"], [b"y"]]
    wanted = r"(?s)component .* \(f32\[...\]\).*make no batch.*in the barrier again"
    with pytest.raises(E.ShapeError, match=wanted):
        b.take_many(2)  # [2, 2] and []
    assert [b.take_many(1)[2][0].shape for _ in range(2)] == [(1, 2, 2), (1,)]


@pytest.mark.parametrize("shapes", [None, [None, ()], [(None, None), None], [(None, 3), ()]])
def test_barriers_in_graphs(shapes: Any) -> None:
    with wf.Graph().as_default() as graph:
        b = barrier(shapes)
        keys = wf.placeholder(wf.string, [None], name="keys")
        x = wf.placeholder(wf.float32, [None, None, 3], name="x")
        words = wf.placeholder(wf.string, [None], name="words")
        first, second = b.insert_many(0, keys, x), b.insert_many(1, keys, words)
        _, found, (rows, texts) = b.take_many(2)
        assert (rows.ndim, texts.ndim, found.ndim) == (3, 1, 1)
        total = wf.sum(rows, axis=0)
        rest = b.take_many(9, allow_small_batch=True)
        for name, t in (("total", total), ("texts", texts), ("rest", rest[2][0])):
            wf.name_tensor(t, name)
        names, text = [first.name, second.name], graph.as_text()
        close = b.close()
    loaded = wf.Graph.from_text(text)  # has a barrier of its own

    def run(session: wf.Session) -> None:
        for size in (2, 0, 5):
            feeds = {"keys:0": ["p", "q"], "x:0": np.ones((2, size, 3)), "words:0": ["a", "b"]}
            session.run(names, feeds)
            made, there = session.run(["total", "texts"])
            np.testing.assert_array_equal(made, np.full((size, 3), 2, F32))
            assert there.tolist() == [b"a", b"b"]

    with wf.Session(graph=graph) as session:
        run(session)
        for name, size in (("p", 1), ("q", 4)):  # do not fit together
            feeds = {"keys:0": [name], "x:0": np.ones((1, size, 3)), "words:0": ["a"]}
            session.run(names, feeds)
        with pytest.raises(E.ShapeError, match="make no batch"):
            session.run("total")
        assert session.run(b.ready_size()) == 2  # they stay
        with graph.as_default():
            one = b.take_many(1)[2][0]
        assert session.run(one).shape == (1, 1, 3)
        session.run(close)
        assert session.run("rest").shape == (1, 4, 3)
    with wf.Session(graph=loaded) as session:
        run(session)


def test_what_says_how_many_axes_a_component_has() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        b = barrier()
        with pytest.raises(E.UnsupportedError, match=r"(?s)component 0 .*inserted first"):
            b.take_many(1)
        put = b.insert_many(0, ["a"], np.ones((1, 2, 2)))
        with pytest.raises(E.UnsupportedError, match=r"component 1 .*any shape"):
            b.take_many(1)
        with pytest.raises(E.ShapeError, match=r"component 0 is f32\[1,\?,\?\], got f32\[1,2\]"):
            b.insert_many(0, ["b"], np.ones((1, 2)))
        session.run(put)
        b_text = b.insert_many(1, ["a"], ["x"])
        session.run(b_text)
        b.load_state_dict(b.state_dict())
        (x, word) = session.run(b.take_many(1)[2])
        assert (x.shape, word.tolist()) == ((1, 2, 2), [b"x"])
    # what is there says it, also while components are missing; else what a graph inserted last
    with wf.Graph().as_default(), wf.Session() as session:
        x, word = b.take_many(1)[2]
        assert (x.ndim, word.ndim) == (3, 1)
    b.insert_many(0, ["k"], [1.0])
    b.insert_many(1, ["m"], [["x", "y"]])
    with wf.Graph().as_default(), wf.Session() as session:
        x, word = b.take_many(1)[2]
        assert (x.ndim, word.ndim) == (1, 2)
        session.run([b.insert_many(0, ["m"], [2.0])])
        assert session.run(x).tolist() == [2.0]


def test_values_of_other_axes_stay_in_the_barrier() -> None:
    b = wf.tf1.Barrier([wf.float32])
    b.insert_many(0, ["a"], np.ones((1, 2)))
    with wf.Graph().as_default() as graph:
        x = b.take_many(1)[2][0]
        few = b.take_many(3, allow_small_batch=True)[2][0]
    session = wf.Session(graph=graph)
    assert session.run(x).tolist() == [[1, 1]]
    b.insert_many(0, ["b"], np.ones((1, 2, 2)))
    for fetch in (x, few):
        if fetch is few:
            b.close()
        with pytest.raises(E.ShapeError, match=r"(?s)f32\[2,2\], not of 1 axes.*again"):
            session.run(fetch, options=SOON)
    assert int(b.ready_size()) == 1
    assert b.take_many(1)[2][0].shape == (1, 2, 2)
    with pytest.raises(E.OutOfRangeError):
        session.run(few, options=SOON)


def test_no_elements_at_once() -> None:
    b = wf.tf1.Barrier([wf.float32])
    with wf.Graph().as_default(), wf.Session() as session:
        b.insert_many(0, ["a"], np.ones((1, 2, 2)))
        _, keys, (x,) = b.take_many(0)
        assert session.run([keys, x])[1].shape == (0, 0, 0)


def test_accumulators_in_graphs() -> None:
    with wf.Graph().as_default() as graph, wf.Session() as session:
        dense = wf.tf1.ConditionalAccumulator(wf.float32)
        with pytest.raises(E.UnsupportedError, match=r"(?s)any shape.*put in first"):
            dense.take_grad(1)
        x = wf.placeholder(wf.float32, [None, 2])
        add, mean = dense.apply_grad(x, LATE), dense.take_grad(2)
        assert mean.ndim == 2
        rows = wf.tf1.SparseConditionalAccumulator(wf.float32, reduction_type="SUM")
        put = rows.apply_grad([3, 1], x, None, LATE)
        taken = rows.take_grad(1)
        assert (taken.values.ndim, taken.indices.ndim) == (2, 1)
        for size in (2, 0, 5):
            for k in (1, 3):
                session.run(add, {x: np.full((size, 2), k)})
            np.testing.assert_array_equal(session.run(mean), np.full((size, 2), 2, F32))
        for _ in range(2):
            session.run(put, {x: [[1, 2], [3, 4]]})
        at, values = session.run([taken.indices, taken.values])
        assert (at.tolist(), values.tolist()) == ([1, 3], [[6, 8], [2, 4]])
        with pytest.raises(E.ShapeError, match=r"gradient is f32\[\?,\?\], got f32\[3\]"):
            dense.apply_grad(np.ones(3, F32))
        with pytest.raises(E.ShapeError, match=r"values is f32\[1,\?\], got f32\[1,2,2\]"):
            rows.apply_grad([0], np.ones((1, 2, 2), F32))
        wf.name_tensor(mean, "mean")
        text = graph.as_text()
    assert 'parts=["f32[...2]"]' in text
    loaded = wf.Graph.from_text(text)
    with wf.Session(graph=loaded) as session:
        for _ in range(2):
            session.run(add.name, {x.name: np.ones((3, 2))})
        assert session.run("mean").shape == (3, 2)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_other_axes_stay(sparse: bool) -> None:
    made = wf.tf1.SparseConditionalAccumulator if sparse else wf.tf1.ConditionalAccumulator
    a: Any = made(wf.float32)

    def apply(*shape: int) -> None:
        a.apply_grad(
            *([np.arange(shape[0])] if sparse else []), np.ones(shape, F32), local_step=LATE
        )

    def value(given: Any) -> Any:
        return given.values if sparse else given

    apply(2, 3)
    with wf.Graph().as_default() as graph:
        mean = value(a.take_grad(1))
        assert mean.ndim == 2
    session = wf.Session(graph=graph)
    assert session.run(mean, options=SOON).shape == (2, 3)
    apply(2, 3, 4)
    with pytest.raises(E.ShapeError, match=r"(?s)gradients of 3 axes.*for 2.*they stay"):
        session.run(mean, options=SOON)
    assert int(a.num_accumulated()) == 1
    assert value(a.take_grad(1)).shape == (2, 3, 4)
    apply(1, 1)
    assert session.run(mean, options=SOON).shape == (1, 1)


def test_compiled_functions() -> None:
    """Each trace has its own number of axes, and each call its own sizes."""
    a, b = wf.tf1.ConditionalAccumulator(wf.float32), barrier()

    @wf.compile
    def mean(x: wf.Tensor) -> wf.Tensor:
        a.apply_grad(x, LATE)
        a.apply_grad(x * 3.0, LATE)
        return a.take_grad(2) + 1.0

    @wf.compile
    def through(x: wf.Tensor) -> wf.Tensor:
        b.insert_many(0, ["k", "l"], x)
        b.insert_many(1, ["l", "k"], ["b", "a"])
        return b.take_many(2)[2][0] * 2.0

    for shape in ((3,), (2, 2), (), (5,), (0, 4)):
        x = np.arange(np.prod(shape, dtype=int), dtype=F32).reshape(shape)
        np.testing.assert_array_equal(mean(x).numpy(), 2 * x + 1)
        pair = np.stack([x, x + 1])
        np.testing.assert_array_equal(through(pair).numpy(), 2 * pair)


def test_on_a_task() -> None:
    """Where the ops say how the resources are made."""
    server = wf.train.Server.create_local_server()
    try:
        with wf.Graph().as_default(), wf.Session(server.target) as session:
            a, b = wf.tf1.ConditionalAccumulator(wf.float32), barrier()
            x = wf.placeholder(wf.float32, [None, 2])
            add, mean = a.apply_grad(x, LATE), a.take_grad(1)
            first, second = b.insert_many(0, ["k"], [x]), b.insert_many(1, ["k"], ["t"])
            taken = b.take_many(1)[2][0]
            for size in (2, 3):
                session.run(add, {x: np.ones((size, 2))})
                assert session.run(mean).shape == (size, 2)
                session.run(first, {x: np.ones((size, 2))})
                session.run(second)
                assert session.run(taken).shape == (1, size, 2)
    finally:
        server.stop()
