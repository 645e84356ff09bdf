"""Variables: eager updates, effects in compiled functions, creation, what is refused, and shapes
that change."""

from __future__ import annotations

import copy
import gc
import pickle  # noqa: TID251  # what users do to variables
import re
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
)

Point = namedtuple("Point", "x y")


def test_variable_dtypes_and_eager_updates() -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    assert (v.dtype, v.shape, v.ndim, v.size, v.trainable) == (wf.float32, (2,), 1, 2, True)
    assert wf.Variable(3).dtype is wf.int64
    assert wf.Variable(0.5).dtype is wf.float32
    assert wf.Variable(0, dtype=wf.float32).dtype is wf.float32
    assert wf.Variable(lambda: [1.0]).shape == (1,)
    assert v.assign_add(1.0).tolist() == [2, 3]
    assert v.assign_sub([1.0, 1.0]).tolist() == [1, 2]
    assert v.assign(np.array([5, 6], np.float32)).tolist() == [5, 6]
    assert (v * 2).tolist() == [10, 12]
    assert v[1].item() == 6
    assert_array_equal(np.asarray(v), [5, 6])
    assert np.sum(v) == 11
    assert isinstance(np.ones(2, np.float32) + v, Tensor)
    assert repr(v) == "<Variable 'v' f32[2]: [5., 6.]>"


def test_a_variable_copies_what_it_is_given() -> None:
    start = np.zeros(2, np.float32)
    v, w = wf.Variable(start), wf.Variable(start)
    v.assign_add(1.0)
    assert w.numpy().tolist() == [0, 0]
    assert start.tolist() == [0, 0]
    v.numpy()[0] = 9
    assert v.numpy().tolist() == [1, 1]


def test_scatter_updates() -> None:
    v = wf.Variable(np.zeros((3, 2), np.float32))
    v.scatter_add([0, 0, 2], np.ones((3, 2), np.float32))
    assert v.numpy().tolist() == [[2, 2], [0, 0], [1, 1]]
    v.scatter_sub([2], np.ones((1, 2), np.float32))
    v.scatter_update([1], np.full((1, 2), 7, np.float32))
    assert v.numpy().tolist() == [[2, 2], [7, 7], [0, 0]]


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (np.zeros(2), TypeRuleError, "float64 value does not fit variable 'v' \\(float32\\)"),
        (
            np.zeros(3, np.float32),
            ShapeError,
            r"shape \[3\] does not fit variable 'v' \(f32\[2\]\)",
        ),
        (1.0, ShapeError, r"shape \[\] does not fit"),
    ],
)
def test_assignments_that_do_not_fit(value: Any, error: type[Exception], match: str) -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    with pytest.raises(error, match=match):
        v.assign(value)
    with pytest.raises(error, match=match):
        wf.compile(lambda: v.assign(value))()
    assert v.numpy().tolist() == [1, 2]


def test_in_place_operators_on_variables_are_refused() -> None:
    v = wf.Variable([1.0])
    with pytest.raises(UnsupportedError, match=r"use variable\.assign_add"):
        v += 1.0


def test_effects_follow_program_order_in_a_function() -> None:
    v = wf.Variable(1.0)

    @wf.compile
    def f(x: Any) -> Any:
        first = v * 1.0
        v.assign(x)
        second = v + 0.0
        v.assign_add(v)
        return first, second, v

    assert [float(t) for t in f(np.float32(10))] == [1, 10, 20]
    assert [float(t) for t in f(np.float32(3))] == [20, 3, 6]
    assert float(v) == 6


def test_variables_of_one_name_stay_apart() -> None:
    a, b = wf.Variable(1.0, name="w"), wf.Variable(2.0, name="w")
    f = wf.compile(lambda: (a.assign_add(10.0), b.assign_add(20.0)))
    f()
    assert (float(a), float(b)) == (11, 22)


def test_variables_created_by_the_first_trace() -> None:
    class Counter:
        count: Any = None

        @wf.compile
        def bump(self, x: Any) -> Any:
            if self.count is None:
                self.count = wf.Variable(wf.zeros((), dtype=wf.float32))
            return self.count.assign_add(wf.sum(x))

    c = Counter()
    assert float(c.bump(np.ones(2, np.float32))) == 2
    assert float(c.bump(np.ones(3, np.float32))) == 5  # another shape: traced again
    assert float(c.count) == 5


def test_variables_created_by_every_trace_are_refused() -> None:
    f = wf.compile(lambda x: wf.Variable(1.0, name="w") * x)
    assert f(np.ones(1, np.float32)).tolist() == [1]
    with pytest.raises(UnsupportedError, match="variable 'w' is created again"):
        f(np.ones(2, np.float32))


def test_an_initial_value_that_depends_on_inputs_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="depends on the inputs"):
        wf.compile(lambda x: wf.Variable(x) + 1)(np.ones(1))


def test_reading_an_uninitialised_variable() -> None:
    with wf.Graph().as_default():
        v = wf.Variable([1.0], name="late")
    with pytest.raises(FailedPreconditionError, match="'late' is not initialised"):
        v.read()


def test_nothing_keeps_a_dropped_function_alive() -> None:
    f = wf.compile(lambda x: x + 1)
    f(np.ones(2))
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


def test_reading_the_second_of_two_uninitialised_variables_of_one_name() -> None:
    ready = wf.Variable([1.0], name="w")
    with wf.Graph().as_default():
        late = wf.Variable([1.0], name="w")
    f = wf.compile(lambda: (ready.assign([5.0]), late * 1.0))
    with pytest.raises(FailedPreconditionError, match="'w' is not initialised"):
        f()
    late.assign([2.0])
    assert [t.tolist() for t in f()] == [[5], [2]]


def test_a_copy_is_a_variable_of_its_own() -> None:
    v = wf.Variable([1.0, 2.0], trainable=False, name="w")
    copies = [copy.deepcopy(v), copy.copy(v), copy.deepcopy(copy.deepcopy(v))]
    v.assign_add(1.0)
    for c in copies:
        assert c.numpy().tolist() == [1, 2]
        assert (c.dtype, c.trainable) == (wf.float32, False)
        assert c.name == c.state.name
    names = {v.name, *(c.name for c in copies)}
    assert len(names) == 4
    assert all(re.fullmatch(r"w(_copy_\d+)?", name) for name in names)
    both = copy.deepcopy([v, v])
    assert both[0] is both[1]
    state = copy.deepcopy(v.state)
    state.write(np.zeros(2, np.float32))
    assert (v.numpy().tolist(), state.read().tolist()) == ([2, 3], [0, 0])


@pytest.mark.parametrize("dtype", [wf.float32, wf.bfloat16, wf.int8, wf.complex64])
def test_pickled_variables(dtype: Any) -> None:
    v = wf.Variable([1, 2], dtype=dtype, trainable=False, name="w")
    p = pickle.loads(pickle.dumps(v))
    assert (p.name, p.dtype, p.trainable) == ("w", dtype, False)
    assert_array_equal(p.numpy(), v.numpy())
    p.assign_add(wf.ones(2, dtype=dtype))
    assert v.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_model_trains_as_the_original(again: Any) -> None:
    first = Model()
    first.step(2.0)
    second = again(first)
    assert second.tied is second.w
    assert [float(m.step(2.0)) for m in (first, first)] == [
        float(m.step(2.0)) for m in (second, second)
    ]


class Model:
    def __init__(self) -> None:
        self.w = self.tied = wf.Variable([1.0])
        self.optimizer = wf.train.AdamOptimizer(0.1)

    @wf.compile
    def step(self, x: Any) -> Any:
        loss = wf.sum(self.w * x)
        self.optimizer.minimize(loss)
        return loss


def test_copies_in_graphs_and_traces() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(wf.ones([2]), name="w")
        with pytest.raises(UnsupportedError, match="cannot be pickled before it is initialised"):
            pickle.dumps(v)
        c = copy.deepcopy(v)
        session.run(wf.global_variables_initializer())
        session.run(v.assign_add([1.0, 1.0]))
        assert session.run([v, c])[1].tolist() == [1, 1]
        assert pickle.loads(pickle.dumps(v)).numpy().tolist() == [2, 2]
    with pytest.raises(UnsupportedError, match="'w' is copied while 'lambda' is traced"):
        wf.compile(lambda: copy.deepcopy(v) + 1)()


# ---------------------------------------------------------------------------- shapes that change
F32 = np.float32


def _open(value: Any = (1.0, 2.0, 3.0), **options: Any) -> wf.Variable:
    return wf.Variable(np.asarray(value, F32), validate_shape=False, **options)


def test_a_shape_that_changes_eagerly() -> None:
    v = _open([[1.0, 2.0]])
    assert (v.shape, v.ndim, v.size) == ((1, 2), 2, 2)
    for shape in ((3, 2), (0, 4), (2, 1)):
        value = np.random.default_rng(0).normal(size=shape).astype(F32)
        v.assign(value)
        assert (v.shape, v.size, wf.shape(v).numpy().tolist()) == (shape, value.size, list(shape))
        np.testing.assert_array_equal(v, value)
        np.testing.assert_array_equal(v.assign_add(value), value + value)
        value[0:0] = 0  # the variable has a copy
    v.scatter_update([1], [[7.0]])
    np.testing.assert_array_equal(v[1], [7.0])
    for wrong in (lambda: v.assign(np.ones(3, F32)), lambda: v.assign_add(np.ones((4, 2, 1), F32))):
        with pytest.raises(ShapeError, match=r"f32\[\?,\?\].*(\n.*)*number of axes"):
            wrong()
    with pytest.raises(TypeRuleError, match="float64 value"):
        v.assign(np.ones((1, 1)))
    assert v.shape == (2, 1)


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_a_shape_that_changes_in_a_session(mode: str) -> None:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x = wf.placeholder(wf.float32, [None])
        v = wf.Variable(x, validate_shape=False, name="v")
        assert v.read().shape[0] is not None
        total, squares = wf.sum(v * wf.ones(wf.shape(v))), v * v
        put = wf.tf1.assign(v, wf.concat([x, x]), validate_shape=False)
        more, less, rows = v.assign_add(x), v.assign_sub(x), v.scatter_add([0, 0], [1.0, 2.0])
        with wf.control_dependencies([put]):
            after = v.read()
        with pytest.raises(wf.errors.FailedPreconditionError, match="'v' is not initialised"):
            session.run(total)
        now = np.arange(3, dtype=F32)
        session.run(v.initializer, {x: now})
        for size in (3, 1, 0, 5):
            given = np.arange(size, dtype=F32) + 1
            found = session.run([total, squares])
            np.testing.assert_allclose(found[0], now.sum())
            np.testing.assert_array_equal(found[1], now * now)
            np.testing.assert_array_equal(session.run(after, {x: given}), np.tile(given, 2))
            now = np.tile(given, 2)
            np.testing.assert_array_equal(session.run(more, {x: now}), now + now)
            np.testing.assert_array_equal(session.run(less, {x: now}), now)
            if size:
                now[0] += 3
                np.testing.assert_array_equal(session.run(rows), now)
        with pytest.raises(ShapeError, match="only assign gives a variable another shape"):
            session.run(more, {x: np.ones(3)})
        np.testing.assert_array_equal(v.numpy(), now)


_CHANGES = st.lists(
    st.sampled_from(["grow", "mask", "add", "row", "read", "branch", "loop", "negate"]), max_size=7
)


def _changed(v: wf.Variable, steps: list[str], x: Any) -> list[Any]:
    """What the steps read, in their order."""
    out: list[Any] = [wf.sum(v.read())]
    for step in steps:
        if step == "grow":
            v.assign(wf.concat([v.read(), x]))
        elif step == "mask":
            value = v.read()
            v.assign(value[value > 0])
        elif step == "add":
            v.assign_add(wf.ones_like(v.read()))
        elif step == "row":
            v.assign(wf.concat([v.read(), x[:1]]))
            v.scatter_update([0], [5.0])
        elif step == "negate":
            v.assign(-v.read())
        elif step == "branch":
            more = wf.sum(v.read()) > 2
            out.append(
                wf.cond(
                    more, lambda: wf.sum(v.assign(v.read()[1:])), lambda: wf.sum(v.read()) + x[0]
                )
            )
        elif step == "loop":

            def body(i: Any) -> Any:
                v.assign(wf.concat([v.read(), wf.reshape(wf.astype(i, wf.float32), (1,))]))
                return i + 1

            wf.while_loop(lambda i: i < 3, body, 0)
        out.append(v.read())
    return out


@examples(40)
@given(_CHANGES)
def test_a_shape_that_changes_in_a_compiled_function(steps: list[str]) -> None:
    """Any program of such changes gives what it gives eagerly."""
    x = np.array([-1.5, 2.0], F32)
    ours, eager = _open(), _open()
    compiled = wf.compile(lambda x: _changed(ours, steps, x))
    for _ in range(2):
        wanted = [np.asarray(t) for t in _changed(eager, steps, wf.asarray(x))]
        for a, b in zip(compiled(x), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(ours, eager)
        assert ours.shape == eager.shape


def test_it_is_learned() -> None:
    v = _open(np.ones((2, 3)))
    optimizer = wf.train.SGD(0.1)

    @wf.compile
    def step(x: wf.Tensor) -> wf.Tensor:
        optimizer.minimize(lambda: wf.sum(wf.square(wf.matmul(v, x))), [v])
        return wf.grad(lambda y: wf.sum(v.read() * y))(x)

    x = np.arange(3, dtype=F32)
    for rows in (2, 4, 0):
        w = np.random.default_rng(rows).normal(size=(rows, 3)).astype(F32)
        v.assign(w)
        w = w - 0.2 * np.outer(w @ x, x)
        np.testing.assert_allclose(step(x), w.sum(0), rtol=1e-5)
        np.testing.assert_allclose(v, w, rtol=1e-5)
    with wf.Graph().as_default(), wf.Session() as session:
        u = _open()
        (gradient,) = wf.gradients(wf.sum(u * u * u), [u])
        session.run(wf.global_variables_initializer())
        for size in (3, 1):
            session.run(u.assign(np.full(size, 2.0, F32)))
            np.testing.assert_array_equal(session.run(gradient), np.full(size, 12.0))


@pytest.mark.parametrize("update", ["assign_add", "assign_sub", "scatter_add", "scatter_update"])
@pytest.mark.parametrize("size", [3, 1])
def test_gradients_go_through_its_updates(update: str, size: int) -> None:
    """Of a sum of weighted squares of what the variable holds after one."""
    rows = update.startswith("scatter")
    start, at = np.arange(size, dtype=F32) + 1, np.array([0, size - 1])[: min(size, 2)]
    given = np.arange(len(at) if rows else size, dtype=F32) + 0.5
    after, sign = start.copy(), -1 if update == "assign_sub" else 1
    if update == "scatter_update":
        after[at] = given
    elif rows:
        after[at] += given
    else:
        after += sign * given
    weights = np.cos(np.arange(size, dtype=F32))
    whole = 2 * weights * after
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        v = wf.Variable(x, validate_shape=False)
        y = wf.placeholder(wf.float32, [None if not rows else len(at)])
        made = getattr(v, update)(*([at] if rows else []), y)
        loss = wf.sum(made * made * wf.cos(wf.astype(wf.arange(wf.shape(made)[0]), wf.float32)))
        (gradient,) = wf.gradients(loss, [y])
        session.run(v.initializer, {x: start})
        found = session.run(gradient, {y: given})
    np.testing.assert_allclose(found, sign * (whole[at] if rows else whole), rtol=1e-5)


def test_it_is_saved_and_restored(tmp_path: Any) -> None:
    v, other = _open(name="v"), wf.Variable(1.0, name="other")
    saver = wf.train.Saver({"v": v, "other": other})
    for size in (3, 0, 7):
        value = np.arange(size, dtype=F32)
        v.assign(value)
        path = saver.save(None, str(tmp_path / f"at_{size}"))
        v.assign(np.ones(2, F32))
        saver.restore(None, path)
        np.testing.assert_array_equal(v, value)
    fixed = wf.train.Saver({"v": wf.Variable(np.ones(3, F32)), "other": other})
    matrix = wf.train.Saver({"v": _open([[1.0]]), "other": other})
    for wrong in (fixed, matrix):
        with pytest.raises(InvalidArgumentError, match=r"the file has f32\[7\]"):
            wrong.restore(None, path)
    with wf.Graph().as_default(), wf.Session() as session:
        u = _open(name="v")
        ops = wf.train.Saver({"v": u}).build()
        session.run(wf.global_variables_initializer())
        session.run(ops.restore, {ops.filename: path})
        np.testing.assert_array_equal(session.run(u), np.arange(7))
        session.run(u.assign(np.ones(2, F32)))
        session.run(ops.save, {ops.filename: str(tmp_path / "by_ops")})
    wf.train.Saver({"v": v}).restore(None, str(tmp_path / "by_ops"))
    np.testing.assert_array_equal(v, [1, 1])


def test_it_is_shared_copied_and_each_sessions_own() -> None:
    one, two = _open(shared_name="changes"), _open(np.ones(5), shared_name="changes")
    two.assign(np.ones(2, F32))
    assert one.shape == (2,)
    with pytest.raises(InvalidArgumentError, match="changes"):
        wf.Variable(np.ones(2, F32), shared_name="changes")
    made = copy.copy(one), pickle.loads(pickle.dumps(one))
    for v in made:
        assert v.shape == (2,)
        v.assign(np.zeros(4, F32))
    assert one.shape == (2,)
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None], name="x")
        w = wf.Variable(x, validate_shape=False, name="w")
        read = wf.name_tensor(w * 1.0, "read")
        sessions = [wf.Session(own_variables=True) for _ in range(2)]
        for i, session in enumerate(sessions):
            session.run(w.initializer, {x: np.ones(i + 2)})
        assert [session.run(read).shape for session in sessions] == [(2,), (3,)]
        text = graph.as_text()
    loaded = wf.Graph.from_text(text)
    with wf.Session(graph=loaded) as session:
        session.run("w/init", {"x:0": np.ones(4)})
        assert session.run("read:0").shape == (4,)


def test_updates_are_broadcast_as_eagerly() -> None:
    given: list[tuple[str, Any]] = [
        ("assign_add", 1.0),
        ("assign_sub", np.arange(2, dtype=F32)),
        ("assign_add", np.array([[1.0], [2.0], [3.0]], F32)),
        ("assign_add", np.ones((1, 1), F32)),
    ]
    rows = [2.0, np.ones((2, 1), F32), np.array([5.0, 7.0], F32), np.ones((1, 2), F32)]
    shape = (3, 2)
    for op, value in [*given, *(("scatter_add", r) for r in rows), ("scatter_update", 4.0)]:
        more = (np.array([0, 2]),) if op.startswith("scatter") else ()
        eager, ours, of_graph = (_open(np.ones(shape)) for _ in range(3))
        getattr(eager, op)(*more, value)
        made = wf.compile(lambda *g, v=ours, op=op: getattr(v, op)(*g))(*more, value)
        np.testing.assert_array_equal(made, eager)
        np.testing.assert_array_equal(ours, eager)
        with wf.Graph().as_default(), wf.Session() as session:
            new = getattr(of_graph, op)(*more, value)
            np.testing.assert_array_equal(session.run(new), eager)
    scaled = wf.compile(lambda v, s: wf.grad(lambda s: wf.sum(v.assign_add(s) ** 2))(s))
    np.testing.assert_allclose(scaled(_open(np.ones(shape)), 2.0), 2 * 3 * 6)


def test_rows_that_do_not_fit_are_an_error() -> None:
    v = _open(np.ones((3, 3, 2)))
    add = wf.compile(lambda i, rows: v.scatter_add(i, rows))
    for shape in ((2, 2, 3), (2, 3, 7), (0, 7, 2)):
        with pytest.raises(ShapeError, match=rf"shape \[{shape[0]}, 3, 2\] of a variable"):
            add(np.zeros(shape[0], np.int32), np.ones(shape, F32))
    np.testing.assert_array_equal(v, np.ones((3, 3, 2)))


def test_gradients_of_a_graph_that_was_read() -> None:
    with wf.Graph().as_default() as graph:
        v = _open(name="v")
        wf.name_tensor(v * v * 1.5, "y")
        wf.name_tensor(v.assign_add(1.0), "more")
    with wf.Graph.from_text(graph.as_text()).as_default() as graph:
        (v,) = wf.global_variables()
        (dy,) = wf.gradients(graph.get_tensor_by_name("y:0"), [v])
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            session.run("more:0")
            np.testing.assert_array_equal(session.run(dy), [6, 9, 12])
            session.run(v.assign(np.ones(5, F32)))
            np.testing.assert_array_equal(session.run(dy), [3] * 5)


def test_updates_of_many_threads_are_whole() -> None:
    v = _open(np.zeros(1000))
    add = wf.compile(lambda: v.assign_add(wf.ones((1000,))))
    add()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: add(), range(40)))
    np.testing.assert_array_equal(v, np.full(1000, 41))


def test_functions_with_a_part_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    v = _open()
    whole = wf.compile(lambda: v + 1.0, device="gpu:0")
    np.testing.assert_array_equal(whole(), v.numpy() + 1)

    @wf.compile
    def parts(x: wf.Tensor) -> wf.Tensor:
        with wf.device("gpu:0"):
            y = wf.exp(x)
        v.assign(wf.concat([v.read(), y]))
        return wf.sum(v)

    np.testing.assert_allclose(parts(np.zeros(2, F32)), 8)
    np.testing.assert_allclose(parts(np.zeros(3, F32)), 11)
