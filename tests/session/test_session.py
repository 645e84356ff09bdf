"""Graphs and sessions: TensorFlow 1's way of working, for static graphs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import weft as wf
from weft.frontend.core.trace import current_trace
from weft.frontend.session.graph import name_tensor
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TracerError,
)


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


# ------------------------------------------------------------------------------------------ running
def test_fetches_nest_and_feeds_take_any_size(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None, 3], name="x")
    y = x * 2.0
    total = wf.sum(y)
    session = wf.Session()
    assert session.graph is graph
    out = session.run({"y": y, "both": (total, [x])}, {x: np.ones((2, 3))})
    assert_allclose(out["y"], np.full((2, 3), 2))
    assert out["both"][0] == 12
    assert isinstance(out["both"][0], np.float32)
    assert out["both"][1][0].shape == (2, 3)
    assert session.run(total, {x: np.ones((5, 3))}) == 30
    assert session.run(total, {"x": [[1, 2, 3]]}) == 12
    assert session.run([]) == []


def test_steps_are_compiled_once_per_definition(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None])
    y = x + 1.0
    session = wf.Session()
    for _ in range(3):
        session.run(y, {x: [1.0]})
        session.run(y, {x: np.ones(1, np.float64)})
    assert session.cache_info().made == 1
    session.run(y, {x: [1.0, 2.0]})
    session.run([y, y], {x: [1.0]})
    assert session.cache_info().made == 3


def test_any_tensor_can_be_fed_and_what_it_needed_is_pruned(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [2], name="x")
    hidden = wf.exp(x)
    out = hidden * 2.0
    session = wf.Session()
    assert_allclose(session.run(out, {hidden: [3.0, 4.0]}), [6, 8])
    assert_allclose(session.run([hidden, out], {hidden: [3.0, 4.0], x: [0, 0]})[0], [3, 4])


def test_symbolic_sizes_reach_shapes_and_attributes(graph: Any) -> None:
    x = wf.placeholder(wf.float32, ["batch", None, 2])
    flat = wf.reshape(x, (x.shape[0], -1))
    mean = wf.mean(flat, axis=1)
    tail = x[1:, ::-1]
    session = wf.Session()
    for shape in ((4, 3, 2), (2, 5, 2)):
        value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        found = session.run([flat, mean, tail], {x: value})
        assert_allclose(found[0], value.reshape(shape[0], -1))
        assert_allclose(found[1], value.reshape(shape[0], -1).mean(1), rtol=1e-5)
        assert_allclose(found[2], value[1:, ::-1])


def test_named_sizes_are_shared(graph: Any) -> None:
    x = wf.placeholder(wf.float32, ["n"], name="x")
    y = wf.placeholder(wf.float32, ["n"], name="y")
    with pytest.raises(
        InvalidArgumentError, match=r"shape \[3\], which does not fit f32\[n\] with n=2"
    ):
        wf.Session().run(x + y, {x: np.ones(2), y: np.ones(3)})


def test_symbolic_sizes_do_not_broadcast_against_each_other(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None], name="x")
    y = wf.placeholder(wf.float32, [None], name="y")
    total = x + y
    session = wf.Session()
    assert session.run(total, {x: [1, 2], y: [3, 4]}).tolist() == [4, 6]
    with pytest.raises(
        InvalidArgumentError, match=r"do not fit together: .*; fed: x \[1\] .*, y \[2\]"
    ) as caught:
        session.run(total, {x: [1], y: [3, 4]})
    assert "total = x + y" in str(caught.value)
    assert 'one name: wf.placeholder(dtype, ["batch"])' in str(caught.value)


def test_a_size_that_no_feed_decides(graph: Any) -> None:
    x = wf.placeholder(wf.float32, ["n"], name="x")
    total = wf.sum(x)
    y = total + wf.zeros((x.shape[0],))
    with pytest.raises(
        InvalidArgumentError, match=r"feeds do not say the shape \[n\] of op"
    ) as caught:
        wf.Session().run(y, {total: 1.0})
    assert "y = total + wf.zeros((x.shape[0],))" in str(caught.value)


def test_make_callable(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [])
    call = wf.Session().make_callable(x * 3.0, [x])
    assert [call(v) for v in (1, 2)] == [3, 6]
    with pytest.raises(InvalidArgumentError, match="takes 1 values, got 2"):
        call(1, 2)


def test_names(graph: Any) -> None:
    with wf.name_scope("layer"):
        a = wf.placeholder(wf.float32, [], name="a")
        v = wf.Variable(1.0, name="w")
        with wf.name_scope("inner"):
            name_tensor(a * 2.0, "twice")
    again = wf.placeholder(wf.float32, [], name="layer/a")
    assert v.name == "layer/w"
    assert graph.tensor("layer/a") is a
    assert graph.tensor("layer/a_1:0") is again
    assert wf.Session().run("layer/inner/twice", {"layer/a": 4}) == 8
    with pytest.raises(InvalidArgumentError, match="named 'layer/inner/twice' already"):
        name_tensor(a, "layer/inner/twice")


# -------------------------------------------------------------------------------------------- state
def test_variables_wait_for_their_initializer(graph: Any) -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    init = wf.global_variables_initializer()
    session = wf.Session()
    with pytest.raises(FailedPreconditionError, match="'v' is not initialised") as caught:
        session.run(v * 2.0)
    assert "global_variables_initializer" in str(caught.value)
    assert "test_session.py" in str(caught.value)
    assert session.run(init) is None
    assert session.run(v).tolist() == [1, 2]
    session.run(v.assign_add([1.0, 1.0]))
    assert v.numpy().tolist() == [2, 3]
    session.run(init)
    assert v.numpy().tolist() == [1, 2]


def test_initial_values_may_be_computed_in_the_graph(graph: Any) -> None:
    v = wf.Variable(wf.zeros((2,)) + 3.0, name="v")
    wf.Session().run(v.initializer)
    assert v.numpy().tolist() == [3, 3]


def test_initial_values_may_depend_on_other_variables(graph: Any) -> None:
    a = wf.Variable(2.0, name="a")
    b = wf.Variable(a * 3.0, name="b")
    c = wf.Variable(b.initialized_value() + a, name="c")
    noise = wf.Variable(wf.random_normal([2]), name="noise")
    copy = wf.Variable(noise, name="copy")
    init = wf.global_variables_initializer()
    session = wf.Session()
    session.run(init)
    assert session.run([a, b, c]) == [2, 6, 8]
    assert noise.numpy().tolist() == copy.numpy().tolist()
    session.run([a.assign(10.0), b.assign(0.0)])
    session.run(init)  # initial values again, not what the others hold
    assert session.run([a, b, c]) == [2, 6, 8]
    session.run(wf.variables_initializer([c, b]))  # in any order
    assert session.run([b, c]) == [6, 8]


def test_an_initializer_alone_uses_the_values_that_others_have(graph: Any) -> None:
    a = wf.Variable(2.0, name="a")
    b = wf.Variable(a * 3.0, name="b")
    session = wf.Session()
    with pytest.raises(FailedPreconditionError, match="'a' is not initialised"):
        session.run(b.initializer)
    session.run(wf.variables_initializer([a]))
    session.run(a.assign(5.0))
    session.run(wf.variables_initializer([b]))
    assert b.numpy() == 15


def test_an_initial_value_with_an_effect_on_another_variable_is_not_repeated(graph: Any) -> None:
    a = wf.Variable(2.0, name="a")
    bumped = wf.Variable(a.assign_add(1.0), name="bumped")
    session = wf.Session()
    session.run(a.initializer)
    session.run(wf.variables_initializer([bumped]))
    assert (a.numpy(), bumped.numpy()) == (3, 3)


def test_initialized_value_outside_a_graph() -> None:
    assert float(wf.Variable(2.0).initialized_value()) == 2


def test_a_variable_from_outside_has_its_value_and_goes_back_to_it() -> None:
    v = wf.Variable([1.0])
    with wf.Graph().as_default() as graph:
        bump = v.assign_add([1.0])
        init = wf.global_variables_initializer()
    session = wf.Session(graph=graph)
    assert [session.run(bump).tolist() for _ in range(2)] == [[2], [3]]
    session.run(init)
    assert v.numpy().tolist() == [1]


def test_state_is_shared_by_sessions_and_functions(graph: Any) -> None:
    v = wf.Variable(1.0)
    init, bump = wf.global_variables_initializer(), v.assign_add(1.0)
    one, two = wf.Session(), wf.Session()
    one.run(init)
    assert (one.run(bump), two.run(bump)) == (2, 3)


def test_only_what_is_fetched_happens(graph: Any) -> None:
    v = wf.Variable(1.0)
    init = wf.global_variables_initializer()
    bump = v.assign_add(1.0)
    after = v * 10.0
    session = wf.Session()
    session.run(init)
    assert session.run(after) == 10  # built after the update, which nobody fetched
    assert session.run([after, bump]) == [10, 2]  # reads come before writes
    assert session.run(v) == 2


def test_two_updates_in_one_step_both_count(graph: Any) -> None:
    v = wf.Variable(1.0)
    init = wf.global_variables_initializer()
    first, second = v.assign_add(1.0), v.assign_add(10.0)
    session = wf.Session()
    session.run(init)
    assert session.run([second, first]) == [12, 2]  # in the order in which they were made
    assert session.run(v) == 12


def test_control_dependencies(graph: Any) -> None:
    v = wf.Variable(1.0)
    init = wf.global_variables_initializer()
    bump = v.assign_add(1.0)
    with wf.control_dependencies([bump]):
        after = v * 10.0
        with wf.control_dependencies(None):
            free = v * 100.0
    session = wf.Session()
    session.run(init)
    assert session.run(after) == 20
    assert session.run(free) == 200
    assert session.run([after, free]) == [30, 200]


def test_group_and_no_op(graph: Any) -> None:
    a, b = wf.Variable(0.0), wf.Variable(0.0)
    init = wf.global_variables_initializer()
    both = wf.group(a.assign_add(1.0), [b.assign_add(2.0)], name="both")
    session = wf.Session()
    session.run([init, wf.no_op()])
    assert session.run(both) is None
    assert session.run((a, b)) == (1, 2)


def test_gradient_descent_in_a_graph(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None, 2])
    y = wf.placeholder(wf.float32, [None])
    w = wf.Variable(np.zeros(2, np.float32))
    loss = wf.mean((wf.matmul(x, w) - y) ** 2)
    (g,) = wf.gradients(loss, [w])
    train = w.assign_sub(0.3 * g)
    init = wf.global_variables_initializer()
    rng = np.random.default_rng(0)
    data = rng.normal(size=(64, 2))
    with wf.Session() as session:
        session.run(init)
        for _ in range(100):
            session.run(train, {x: data, y: data @ [2.0, -3.0]})
        assert_allclose(session.run(w), [2, -3], atol=1e-4)


# ------------------------------------------------------------------------------------ default graph
@pytest.fixture
def default_graph() -> Iterator[None]:
    wf.reset_default_graph()
    yield
    wf.reset_default_graph()


@pytest.mark.usefixtures("default_graph")
def test_a_placeholder_makes_the_default_graph_current() -> None:
    assert current_trace() is None
    x = wf.placeholder(wf.float32, [None])
    v = wf.Variable([2.0])
    y = x * v
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())
        assert session.run(y, {x: [3.0]}).tolist() == [6]
    f = wf.compile(lambda a: a + 1)
    assert f(np.ones(1)).tolist() == [
        2
    ]  # on values it runs; on symbolic tensors it joins the graph
    assert f(x).dtype is wf.float32
    wf.reset_default_graph()
    assert float(wf.sum(wf.asarray([1.0]))) == 1
    with pytest.raises(TracerError, match="after the trace of 'default'"):
        y * y
    with pytest.raises(TracerError, match="sizes that have values only while the graph"):
        y + 1


@pytest.mark.usefixtures("default_graph")
def test_the_default_graph_is_not_current_in_other_threads() -> None:
    wf.placeholder(wf.float32, [])
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(float(wf.sum(wf.asarray([1.0])))))
    thread.start()
    thread.join()
    assert seen == [1.0]


def test_outside_a_graph_initializers_have_nothing_to_do() -> None:
    wf.Variable(1.0)
    done = wf.global_variables_initializer()
    assert wf.Session(graph=wf.Graph()).run(done) is None
    assert wf.Session(graph=wf.Graph()).run(wf.group()) is None


def test_summary() -> None:
    x = np.ones(3, np.float32)
    end = r"compiled in \d+\.\d\d s; {}; (1 thread|at most \d+ threads)"
    with wf.Graph().as_default(), wf.Session() as session:
        given = wf.placeholder(wf.float32, [None], name="x")
        queue = wf.FIFOQueue(3, wf.float32, [()])
        native = session.summary(wf.exp(given) + 1, {given: x})
        assert re.fullmatch("1 kernel call; " + end.format("one native plan"), native)
        fetches = [queue.enqueue(wf.sum(given)), queue.size()]
        executor = session.summary(fetches, {given: x})
        assert re.fullmatch(
            r"\d+ nodes, 1 region, 2 ops of the host, \d+ kernel calls?; "
            + end.format("the dataflow executor"),
            executor,
        )
        assert queue.size() is not None
        assert session.run(queue.size()) == 0  # nothing was run


def test_summary_on_a_cluster() -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 1})
    with wf.Graph().as_default(), wf.device("/job:worker/task:0"):
        with wf.device("/job:ps/task:0"):
            v = wf.Variable(np.float32(2))
        y = v * 3
        with wf.Session(servers[1].target) as session:
            text = session.summary(y)
    for server in servers:
        server.stop()
    assert "2 parts on /job:ps/task:0/cpu:0, /job:worker/task:0/cpu:0" in text
