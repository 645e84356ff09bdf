"""Tables, barriers, accumulators and stacks in `wf.Graph`s: ops that steps carry out and share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow.host_ops.row import after

E = wf.errors
SOON = wf.RunOptions(timeout=0.05)


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


@pytest.fixture
def session(graph: wf.Graph) -> Iterator[wf.Session]:
    with wf.Session(graph=graph) as made:
        yield made


def refused(call: Any, kind: type[Exception], text: str) -> None:
    """The call fails so, and the message has the line of this file."""
    with pytest.raises(kind, match=text) as error:
        call()
    assert __file__ in str(error.value)


# ------------------------------------------------------------------------------------------- tables
def test_table_of_strings(graph: wf.Graph, session: wf.Session) -> None:
    words = wf.MutableHashTable(wf.string, wf.int64, -1)
    keys = wf.placeholder(wf.string, [None])
    values = wf.placeholder(wf.int64, [None])
    put, found, size = words.insert(keys, values), words.lookup(keys), words.size()
    session.run(put, {keys: ["in", "the", "in"], values: [1, 2, 3]})
    assert session.run(found, {keys: ["the", "and", "in"]}).tolist() == [2, -1, 3]
    assert session.run(size) == 2
    session.run(words.remove(["in", "no"]))
    assert session.run(words[["in", "the"]]).tolist() == [-1, 2]
    session.run(words.import_values(["x"], [9]))
    assert session.run(words.size()) == 1
    assert words.lookup is not None
    assert "x" not in repr(words)


@pytest.mark.parametrize("key", [wf.int32, wf.int64, wf.uint8])
def test_table_of_rows_and_defaults(graph: wf.Graph, session: wf.Session, key: wf.DType) -> None:
    rows = wf.MutableHashTable(key, wf.float32, [0.5, 0.25])
    session.run(rows.insert(np.array([[1], [2]], key.numpy), [[[1, 2.0]], [[3, 4.0]]]))
    asked = np.array([2, 7], key.numpy)
    assert session.run(rows.lookup(asked)).tolist() == [[3, 4], [0.5, 0.25]]
    own = session.run(rows.lookup(asked, [[0.0, 0.0], [8.0, 9.0]]))
    assert own.tolist() == [[3, 4], [8, 9]]
    assert session.run(rows.lookup(asked, [5.0, 5.0])).tolist() == [[3, 4], [5, 5]]


def test_what_a_table_exports_has_a_size_that_the_step_learns(
    graph: wf.Graph, session: wf.Session
) -> None:
    table = wf.MutableHashTable(wf.int64, wf.float32, 0.0)
    x = wf.placeholder(wf.int64, [None])
    put = table.insert(x, wf.astype(x, wf.float32) * 10)
    keys, values = table.export()
    total = wf.sum(values * wf.astype(keys, wf.float32))
    assert session.run(total) == 0
    for n in (1, 4, 3):
        session.run(put, {x: np.arange(n)})
    got_keys, got_values, got_total = session.run([keys, values, total])
    assert got_keys.tolist() == [0, 1, 2, 3]
    assert got_values.tolist() == [0, 10, 20, 30]
    assert got_total == 10 * (1 + 4 + 9)


def test_table_counts_words_from_a_queue(graph: wf.Graph, session: wf.Session) -> None:
    """Two host ops in one step, ordered by data and by control."""
    lines = wf.FIFOQueue(100, wf.string, [[]])
    counts = wf.MutableHashTable(wf.string, wf.int64, 0)
    word = lines.dequeue()
    step = counts.insert(word, counts.lookup(word) + 1)
    text = [b"a", b"b", b"a", b"c", b"a"]
    session.run(lines.enqueue_many(np.array(text, object)))
    for _ in text:
        session.run(step)
    assert session.run(counts[["a", "b", "c", "d"]]).tolist() == [3, 1, 1, 0]


def test_table_refusals(graph: wf.Graph, session: wf.Session) -> None:
    table = wf.MutableHashTable(wf.int64, wf.float32, [0.0, 0.0], name="rows")
    x = wf.placeholder(wf.float32, [3])
    refused(lambda: table.lookup(x), E.TypeRuleError, "'rows'.*lookup: keys takes int64")
    refused(lambda: table.lookup(["a"]), E.TypeRuleError, "'rows'.*keys")
    refused(lambda: table.insert([1, 2, 3], x), E.ShapeError, "'rows'.*values is f32.3,2.")
    refused(lambda: table.lookup([1], np.zeros(3, np.float32)), E.ShapeError, "'rows'.*defaults")


# ----------------------------------------------------------------------------------------- barriers
def test_barrier(graph: wf.Graph, session: wf.Session) -> None:
    b = wf.Barrier([wf.float32, wf.string], [[2], []])
    x = wf.placeholder(wf.float32, [None, 2])
    first, second = b.insert_many(0, ["a", "b"], x), b.insert_many(1, ["b", "a"], ["B", "A"])
    indices, keys, (rows, names) = b.take_many(2)
    session.run(first, {x: [[1, 2], [3, 4]]})
    assert session.run([b.ready_size(), b.incomplete_size()]) == [0, 2]
    with pytest.raises(E.DeadlineExceededError, match="barrier_take_many"):
        session.run(keys, options=SOON)
    session.run(second)
    assert session.run([b.ready_size(), b.incomplete_size()]) == [2, 0]
    got = session.run([indices, keys, rows * 2, names])
    assert (got[0] + 2**62).tolist() == [-(2**62), 1 - 2**62]
    assert got[1].tolist() == [b"a", b"b"]
    assert got[2].tolist() == [[2, 4], [6, 8]]
    assert got[3].tolist() == [b"A", b"B"]


def test_barrier_small_batches_and_closing(graph: wf.Graph, session: wf.Session) -> None:
    b = wf.Barrier(wf.float32, [[]])
    _, keys, (values,) = b.take_many(4, allow_small_batch=True)
    session.run(b.insert_many(0, ["x", "y", "z"], [1.0, 2.0, 3.0]))
    session.run(b.close())
    with pytest.raises(E.CancelledError, match="closed"):
        session.run(b.insert_many(0, ["w"], [1.0]))
    got, total = session.run([keys, wf.sum(values) + 0])
    assert got.tolist() == [b"x", b"y", b"z"]
    assert total == 6
    with pytest.raises(E.OutOfRangeError):
        session.run(keys)


def test_barrier_refusals(graph: wf.Graph, session: wf.Session) -> None:
    b = wf.Barrier([wf.float32, wf.int64], [[2], []], name="pairs")
    refused(lambda: b.insert_many(2, ["a"], [1.0]), E.InvalidArgumentError, "2 components")
    refused(lambda: b.insert_many(0, ["a"], [1.0]), E.ShapeError, "'pairs'.*component 0")
    refused(lambda: b.insert_many(0, ["a", "b"], [[1.0, 2.0]]), E.ShapeError, "'pairs'")
    refused(lambda: b.take_many(1, timeout=1), E.InvalidArgumentError, "RunOptions")
    anything = wf.Barrier([wf.float32])
    refused(lambda: anything.take_many(1), E.UnsupportedError, "any shape")
    with pytest.raises(E.InvalidArgumentError, match="already"):
        session.run(b.insert_many(1, ["k", "k"], [1, 2]))


# ------------------------------------------------------------------------------------- accumulators
@pytest.mark.share(2)
@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
@pytest.mark.parametrize("dtype", [wf.float16, wf.float32, wf.float64])
def test_accumulator(graph: wf.Graph, session: wf.Session, dtype: wf.DType, reduction: str) -> None:
    a = wf.ConditionalAccumulator(dtype, [2], reduction_type=reduction)
    x, step = wf.placeholder(dtype, [2]), wf.placeholder(wf.int64, [])
    apply, taken, number = a.apply_grad(x * 2, step), a.take_grad(2), a.num_accumulated()
    with pytest.raises(E.DeadlineExceededError, match="accumulator_take_gradient"):
        session.run(taken, options=SOON)
    for k in (1, 2, 3):
        session.run(apply, {x: [k, 0], step: 0})
    assert session.run(number) == 3
    got = session.run(taken)
    assert got.dtype == dtype.numpy
    assert got.tolist() == ([4, 0] if reduction == "MEAN" else [12, 0])
    session.run(apply, {x: [1, 1], step: 0})  # stale: the take has moved the global step on
    assert session.run(number) == 0
    session.run(a.set_global_step(7))
    session.run(apply, {x: [1, 1], step: 6})
    session.run(apply, {x: [1, 1], step: 7})
    assert session.run(number) == 1


def test_accumulator_steps_may_be_tensors(graph: wf.Graph, session: wf.Session) -> None:
    a = wf.ConditionalAccumulator(wf.float32, [])
    step = wf.Variable(np.int32(3))
    required = wf.placeholder(wf.int32, [])
    apply, taken, set_step = a.apply_grad(1.5, step), a.take_grad(required), a.set_global_step(step)
    session.run(wf.global_variables_initializer())
    session.run(set_step)
    session.run(apply)
    assert session.run(taken, {required: 1}) == 1.5
    session.run(apply)
    assert session.run(a.num_accumulated()) == 0  # 3 is before 4 now
    with pytest.raises(E.InvalidArgumentError, match="num_required=0"):
        session.run(taken, {required: 0})


def test_accumulator_refusals(graph: wf.Graph, session: wf.Session) -> None:
    a = wf.ConditionalAccumulator(wf.float32, [2], name="mean")
    x = wf.placeholder(wf.float32, [3])
    refused(lambda: a.apply_grad(x), E.ShapeError, "'mean'.*gradient is f32.2., got f32.3.")
    refused(lambda: a.apply_grad(wf.astype(x, wf.float64)), E.TypeRuleError, "'mean'.*float32")
    refused(lambda: a.take_grad(0), E.InvalidArgumentError, "num_required=0")
    refused(lambda: a.take_grad(1, timeout=2), E.InvalidArgumentError, "RunOptions")
    refused(lambda: a.apply_grad(None), E.TypeRuleError, "'mean': apply_grad.*NoneType")
    refused(lambda: a.apply_grad([1.0, 2.0], 0.5), E.InvalidArgumentError, "'mean': local_step")
    refused(lambda: a.set_global_step(-1), E.InvalidArgumentError, "new_global_step=-1 must be")
    anything = wf.ConditionalAccumulator(wf.float32)
    refused(lambda: anything.take_grad(1), E.UnsupportedError, "any shape")


def test_sparse_accumulator(graph: wf.Graph, session: wf.Session) -> None:
    a = wf.SparseConditionalAccumulator(wf.float32, [5, 2])
    indices, rows = wf.placeholder(wf.int32, [None]), wf.placeholder(wf.float32, [None, 2])
    apply, taken = a.apply_grad(indices, rows, [5, 2], local_step=9), a.take_grad(2)
    again = a.take_indexed_slices_grad(1)
    session.run(apply, {indices: [3, 1, 3], rows: [[1, 1], [2, 2], [3, 3]]})
    session.run(apply, {indices: [1], rows: [[4, 4]]})
    got = session.run(taken)
    assert got.indices.tolist() == [1, 3]
    assert got.values.tolist() == [[3, 3], [4, 4]]  # of a row: over the gradients that have it
    assert got.shape.tolist() == [5, 2]
    session.run(apply, {indices: np.zeros(0, np.int32), rows: np.zeros((0, 2), np.float32)})
    assert session.run(again).indices.shape == (0,)
    with pytest.raises(E.ShapeError, match="the index 5"):
        session.run(apply, {indices: [5], rows: [[1, 1]]})


def test_indexed_slices_go_through(graph: wf.Graph, session: wf.Session) -> None:
    """The gradient of looked-up rows, accumulated over workers, is the mean as a dense one."""
    table = wf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2))
    ids = wf.placeholder(wf.int64, [2])
    (grad,) = wf.gradients(wf.sum(wf.square(wf.take(table, ids, axis=0))), [table])
    assert isinstance(grad, wf.IndexedSlices)
    a = wf.SparseConditionalAccumulator(wf.float32, [4, 2], reduction_type="SUM")
    apply, taken = a.apply_indexed_slices_grad(grad), a.take_indexed_slices_grad(2)
    session.run(wf.global_variables_initializer())
    session.run(apply, {ids: [3, 0]})
    session.run(apply, {ids: [-1, 3]})
    assert session.run(taken.to_dense()).tolist() == [[0, 2], [0, 0], [0, 0], [36, 42]]


# ------------------------------------------------------------------------------------------- stacks
def test_stack(graph: wf.Graph, session: wf.Session) -> None:
    s = wf.Stack(wf.float32, 2, element_shape=[2])
    x = wf.placeholder(wf.float32, [2])
    push, pop = s.push(x + 1), s.pop()
    assert session.run(push, {x: [1, 2]}).tolist() == [2, 3]
    session.run(push, {x: [3, 4]})
    with pytest.raises(E.ResourceExhaustedError, match="max_size=2"):
        session.run(push, {x: [5, 6]})
    assert session.run(s.size()) == 2
    assert session.run(pop).tolist() == [4, 5]
    assert session.run(pop).tolist() == [2, 3]
    with pytest.raises(E.InvalidArgumentError, match="empty"):
        session.run(pop)
    session.run(s.close())
    with pytest.raises(E.FailedPreconditionError, match="closed"):
        session.run(push, {x: [1, 2]})
    refused(lambda: s.push(x[:1]), E.ShapeError, "value is f32.2.")
    refused(lambda: wf.Stack(wf.float32).pop(), E.UnsupportedError, "put in first")
    anything = wf.Stack(wf.float32)
    anything.push(x)
    assert anything.pop().ndim == 1


@pytest.mark.parametrize("n", [3, 0, 1])
def test_sizes_that_are_not_declared(graph: wf.Graph, session: wf.Session, n: int) -> None:
    x = wf.placeholder(wf.float32, [None, 2])
    dense = wf.ConditionalAccumulator(wf.float32, [None, 2])
    rows = wf.SparseConditionalAccumulator(wf.float32, [4, None, 2])
    stack = wf.Stack(wf.float32, element_shape=[None, 2])
    value = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    do = [
        dense.apply_grad(x), stack.push(x * 2),
        rows.apply_grad([3, 1], wf.stack([x, x + 1])),
    ]  # fmt: skip
    session.run(do, {x: value})
    taken = rows.take_grad(1)
    got = session.run([dense.take_grad(1) + 1, stack.pop() + 1, taken.indices, taken.values * 2])
    assert got[0].tolist() == (value + 1).tolist()
    assert got[1].tolist() == (value * 2 + 1).tolist()
    assert got[2].tolist() == [1, 3]
    assert got[3].tolist() == [(2 * value + 2).tolist(), (2 * value).tolist()]


# ------------------------------------------------------------------------------------ all of them
def everything() -> tuple[Any, list[Any]]:
    """One of each, with what a step of it fetches."""
    t = wf.MutableHashTable(wf.string, wf.float32, [0.0, 0.0], name="t")
    b = wf.Barrier([wf.float32, wf.int64], [[2], []], name="b")
    a = wf.ConditionalAccumulator(wf.float32, [3], name="a")
    s = wf.SparseConditionalAccumulator(wf.float64, [None, 2], name="s", reduction_type="SUM")
    k = wf.Stack(wf.int64, element_shape=[], name="k")
    first = b.insert_many(0, ["p", "q"], [[1.0, 2.0], [3.0, 4.0]])
    with wf.control_dependencies([first]):  # so that p is the first key
        second = b.insert_many(1, ["q"], [5])
    do = [
        t.insert(["x", "y"], [[1.0, 2.0], [3.0, 4.0]]), first, second,
        a.apply_grad([1.0, 2.0, 3.0]), s.apply_grad([2, 0], [[1.0, 1.0], [2.0, 2.0]]), k.push(7),
    ]  # fmt: skip
    return [t, b, a, s, k], do


def test_text_and_verify(graph: wf.Graph) -> None:
    _, do = everything()
    ir = graph.ir()
    verify(ir)
    text = str(ir)
    assert str(parse_graph(text)) == text
    for line in (
        'table() {name="t", parts=["string[]", "f32[2]"]', ": table<string[], f32[2]>",
        'sparse_accumulator() {name="s", parts=["f64[?,2]"], reduction="SUM"}',
        'host_stack() {name="k", parts=["i64[]"], max_size=-1}',
    ):  # fmt: skip
        assert line in text
    assert len(do) == 6


def test_a_graph_read_from_text_makes_its_own() -> None:
    with wf.Graph().as_default() as graph:
        (t, _, a, s, k), do = everything()
        wf.name_tensor(t.lookup(["x", "z"]), "found")
        wf.name_tensor(a.take_grad(1), "mean")
        wf.name_tensor(s.take_grad(1).values, "rows")
        wf.name_tensor(do[-1] + 0, "pushed")
        wf.name_tensor(k.pop(), "popped")
        text = graph.as_text()
    names = [e.name for e in do[:-1]]
    with wf.Session(graph=wf.Graph.from_text(text)) as session:
        session.run([*names, "pushed"])
        found, mean, rows, popped = session.run(["found", "mean", "rows", "popped"])
    assert found.tolist() == [[1, 2], [0, 0]]
    assert mean.tolist() == [1, 2, 3]
    assert rows.tolist() == [[2, 2], [1, 1]]
    assert popped == 7
    assert a._accumulator.num_accumulated() == 0  # it was not this one


def test_tables_that_never_change_are_in_the_text() -> None:
    keys = ["in", "the", "and", "cat"]
    with wf.Graph().as_default() as graph:
        for i, buckets in enumerate((0, 2)):
            table = wf.lookup.index_table_from_tensor(["in", "the"], buckets)
            wf.name_tensor(table.lookup(keys), f"ids{i}")
        back = wf.lookup.index_to_string_table_from_tensor(["in", "the"])
        wf.name_tensor(back.lookup([1, 7]), "words")
        verify(graph.ir())
        text = graph.as_text()
    assert "buckets=2" in text
    with wf.Session(graph=wf.Graph.from_text(text)) as session:
        plain, hashed, words = session.run(["ids0", "ids1", "words"])
    assert plain.tolist() == [0, 1, -1, -1]
    assert hashed.tolist() == [0, 1, 3, 2]
    assert words.tolist() == [b"the", b"UNK"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("buckets=2", "buckets=0", "'vocabulary' has buckets"),
        ("values=i64[2] [0, 1]", "values=i64[3] [0, 1, 2]", r"values are i64\[2\], got int64\[3\]"),
        ("values=i64[2]", "values=i32[2]", r"values are i64\[2\], got int32\[2\]"),
        ("default=i64[] -1", "default=f32[] -1.0", r"default are i64\[\], got float32\[\]"),
        ('kind="vocabulary"', 'kind="foo"', "there is no kind 'foo'"),
        ('parts=["string[]", ', 'parts=["i64[]", ', r"keys are i64\[\?\], got object\[2\]"),
        ('parts=["string[]", ', 'parts=["text", ', "'text' is no type of a component"),
    ],
)
def test_text_of_tables_that_does_not_fit(old: str, new: str, text: str) -> None:
    with wf.Graph().as_default() as graph:
        wf.lookup.index_table_from_tensor(["in", "the"], 2).lookup(["the"])
    source = graph.as_text()
    assert old in source
    with pytest.raises(E.ParseError, match=text):
        wf.Graph.from_text(source.replace(old, new))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "remove", "import_values", "lookup", "export", "size"]),
        st.lists(st.integers(0, 5), max_size=4),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=25)
def test_a_table_in_a_graph_does_what_one_outside_does(
    steps: list[tuple[str, list[int]]],
) -> None:
    outside = wf.MutableHashTable(wf.int64, wf.float32, [0.5, 1.5])
    with wf.Graph().as_default(), wf.Session() as session:
        inside = wf.MutableHashTable(wf.int64, wf.float32, [0.5, 1.5])
        x = wf.placeholder(wf.int64, [None])
        values = wf.placeholder(wf.float32, [None, 2])
        ops = {
            "insert": inside.insert(x, values), "remove": inside.remove(x),
            "import_values": inside.import_values(x, values), "lookup": inside.lookup(x),
            "export": inside.export(), "size": inside.size(),
        }  # fmt: skip
        done = []
        for number, (name, listed) in enumerate(steps):
            keys = np.array(listed, np.int64)
            rows = np.stack([keys + number, keys * 0], -1).astype(np.float32)
            done.append((name, keys, rows, session.run(ops[name], {x: keys, values: rows})))
    for name, keys, rows, got in done:
        given_rows = [rows] if name in ("insert", "import_values") else []
        given_keys = [] if name in ("export", "size") else [keys]
        want = getattr(outside, name)(*given_keys, *given_rows)
        for a, b in zip(_arrays(got), _arrays(want), strict=True):
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist()


def _arrays(made: Any) -> list[Any]:
    if made is None:
        return []
    return [np.asarray(m) for m in (made if isinstance(made, (list, tuple)) else [made])]


def test_state_goes_on_elsewhere() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        old, do = everything()
        session.run(do)
        states = [r.state_dict() for r in old]  # at once, also while a graph is built
    with wf.Graph().as_default(), wf.Session() as session:
        new, do = everything()
        t, b, a, s, k = [r.load_state_dict(x) for r, x in zip(new, states, strict=True)]
        assert session.run(t[["y"]]).tolist() == [[3, 4]]
        session.run(b.insert_many(1, ["p"], [6]))
        _, keys, (_, numbers) = session.run(b.take_many(2))
        assert (keys.tolist(), numbers.tolist()) == ([b"p", b"q"], [6, 5])
        session.run(do[3])
        assert session.run(a.take_grad(2)).tolist() == [1, 2, 3]
        rows = session.run(s.take_grad(1))
        assert (rows.indices.tolist(), rows.values.tolist()) == ([0, 2], [[2, 2], [1, 1]])
        assert rows.shape is None
        assert session.run(k.pop()) == 7


def test_states_that_do_not_fit_change_nothing() -> None:
    resources, _ = everything_run()
    others = [
        wf.MutableHashTable(wf.string, wf.int64, 0), wf.Barrier([wf.float32], [[2]]),
        wf.ConditionalAccumulator(wf.float64, [3]), wf.SparseConditionalAccumulator(wf.float32),
        wf.Stack(wf.float32),
    ]  # fmt: skip
    for resource, other in zip(resources, others, strict=True):
        before = resource.state_dict()
        refused(
            lambda r=resource, o=other: r.load_state_dict(o.state_dict()),  # type: ignore[misc]
            E.InvalidArgumentError, "the state is that of a",
        )  # fmt: skip
        after = resource.state_dict()
        assert str(before) == str(after)


def everything_run() -> tuple[Any, Any]:
    with wf.Graph().as_default(), wf.Session() as session:
        resources, do = everything()
        session.run(do)
    return resources, do


def test_a_saver_keeps_them(tmp_path: Any) -> None:
    resources, _ = everything_run()
    names = "tbask"
    saver = wf.train.Saver(dict(zip(names, resources, strict=True)))
    path = saver.save(None, str(tmp_path / "model"))
    with wf.Graph().as_default(), wf.Session() as session:
        fresh, _ = everything()
        wf.train.Saver(dict(zip(names, fresh, strict=True))).restore(None, path)
        assert session.run(fresh[0].size()) == 2
        assert session.run(fresh[1].incomplete_size()) == 1
        assert session.run(fresh[2].num_accumulated()) == 1
        assert session.run(fresh[4].pop()) == 7


def test_shared_names(graph: wf.Graph, session: wf.Session) -> None:
    kinds: list[Any] = [
        lambda n: wf.MutableHashTable(wf.int64, wf.float32, 0.0, shared_name=n),
        lambda n: wf.Barrier(wf.int64, [[]], shared_name=n),
        lambda n: wf.ConditionalAccumulator(wf.float32, [2], shared_name=n),
        lambda n: wf.SparseConditionalAccumulator(wf.float32, [3, 2], shared_name=n),
        lambda n: wf.Stack(wf.float32, element_shape=[], shared_name=n),
    ]
    for i, make in enumerate(kinds):
        one, two = make(f"shared{i}"), make(f"shared{i}")
        with wf.container("elsewhere"):
            three = make(f"shared{i}")
        assert one.name == two.name != three.name
    left = wf.ConditionalAccumulator(wf.float32, [2], shared_name="grads")
    session.run(left.apply_grad([1.0, 2.0]))
    with wf.Graph().as_default(), wf.Session() as other:
        right = wf.ConditionalAccumulator(wf.float32, [2], shared_name="grads")
        assert other.run(right.take_grad(1)).tolist() == [1, 2]
    with graph.as_default():
        wf.name_tensor(left.take_grad(1), "taken")
    session.run(left.set_global_step(0))
    session.run(left.apply_grad([3.0, 4.0], 9))
    with wf.Session(graph=wf.Graph.from_text(graph.as_text())) as other:  # by name, too
        assert other.run("taken").tolist() == [3, 4]
    refused(
        lambda: wf.ConditionalAccumulator(wf.float32, [3], shared_name="grads"),
        E.InvalidArgumentError, "shared_name='grads'",
    )  # fmt: skip
    refused(lambda: wf.Barrier(wf.float32, shared_name="grads"), E.InvalidArgumentError, "Barrier")


@pytest.mark.parametrize("what", ["take_many", "take_grad", "take_rows"])
def test_closing_a_session_wakes_who_waits(graph: wf.Graph, what: str) -> None:
    fetch = {
        "take_many": lambda: wf.Barrier(wf.int64, [[]]).take_many(1),
        "take_grad": lambda: wf.ConditionalAccumulator(wf.float32, [2]).take_grad(1),
        "take_rows": lambda: wf.SparseConditionalAccumulator(wf.float32, [2]).take_grad(1),
    }[what]()  # fmt: skip
    session = wf.Session()
    ended: list[float] = []

    def wait() -> None:
        with pytest.raises(E.CancelledError):
            session.run(fetch)
        ended.append(time.monotonic())

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    closed = time.monotonic()
    session.close()
    for t in threads:
        t.join(10)
    assert len(ended) == 4
    assert max(ended) - closed < 1  # 0.1 s where nothing else runs


def test_sixteen_threads_lose_nothing(graph: wf.Graph, session: wf.Session) -> None:
    a = wf.ConditionalAccumulator(wf.float64, [2], reduction_type="SUM")
    t = wf.MutableHashTable(wf.int64, wf.int64, -1)
    s = wf.Stack(wf.int64, element_shape=[])
    x = wf.placeholder(wf.int64, [])
    wide = wf.astype(x, wf.float64)
    both = [a.apply_grad(wf.stack([wide, 1.0]), 10**9), t.insert(x, x * x), s.push(x)]

    def work(first: int) -> None:
        for i in range(first, first + 30):
            session.run(both, {x: i})

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    everyone = [100 * k + i for k in range(16) for i in range(30)]
    assert session.run(a.take_grad(480)).tolist() == [sum(everyone), 480]
    assert session.run(t.lookup(np.array(everyone))).tolist() == [i * i for i in everyone]
    pop = s.pop()
    assert sorted(int(session.run(pop)) for _ in range(480)) == everyone


def test_in_branches_and_loops(graph: wf.Graph, session: wf.Session) -> None:
    a = wf.ConditionalAccumulator(wf.float32, [])
    n = wf.placeholder(wf.int32, [])

    def body(i: Any) -> Any:
        with wf.control_dependencies([a.apply_grad(wf.astype(i, wf.float32))]):
            return wf.identity(i) + 1

    done = wf.while_loop(lambda i: i < n, body, [wf.astype(0, wf.int32)])
    session.run(done, {n: 5})
    assert session.run(a.take_grad(5)) == 2.0
    t = wf.MutableHashTable(wf.int64, wf.int64, 0)
    p = wf.placeholder(wf.bool_, [])
    put = wf.cond(p, lambda: t.insert(1, 10), lambda: t.remove(1))
    session.run(put, {p: True})
    assert session.run(t[1]) == 10
    session.run(put, {p: False})
    assert session.run(t.size()) == 0


def test_results_that_cannot_be_handed_on_end_the_step() -> None:
    """An error between a resource and the step that waits for it is no step that waits for ever."""
    made: list[Any] = []
    after(made.append, lambda x: [x.nothing])(np.zeros(3))
    after(made.append, list)(E.CancelledError("gone"))
    after(made.append, list)((1, 2))
    assert isinstance(made[0], E.InternalError)
    assert isinstance(made[1], E.CancelledError)
    assert made[2] == [1, 2]


def test_native_steps_refuse_them(graph: wf.Graph) -> None:
    a = wf.ConditionalAccumulator(wf.float32, [])
    with pytest.raises(E.UnsupportedError, match="accumulator_take_gradient"):
        wf.Session(control_flow="native").run(a.take_grad(1))


def test_in_compiled_functions() -> None:
    a = wf.ConditionalAccumulator(wf.float32, [])
    put = wf.compile(lambda x: a.apply_grad(x))
    put(np.float32(1))
    put(np.float32(2))
    assert float(wf.compile(lambda n: a.take_grad(n))(np.int32(2))) == 1.5


def test_no_gradient_goes_through_them(graph: wf.Graph) -> None:
    a = wf.ConditionalAccumulator(wf.float32, [])
    x = wf.placeholder(wf.float32, [])
    a.apply_grad(x)
    assert wf.gradients(a.take_grad(1) * x, [x])[0] is not None
