"""Variables that graphs share by name, containers, `get_variable` and `variable_scope`."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import weft as wf

E = wf.errors


# --------------------------------------------------------------------------------- by a shared name
def test_two_graphs_see_one_state() -> None:
    with wf.Graph().as_default():
        one = wf.Variable([1.0, 2.0], shared_name="both")
        add, first = one.assign_add([1.0, 1.0]), wf.Session()
        first.run(one.initializer)
    with wf.Graph().as_default():
        two = wf.Variable([5.0, 5.0], shared_name="both")
        second = wf.Session()
        assert second.run(two).tolist() == [1, 2]  # initialised by the other graph
        first.run(add)
        assert second.run(two.assign_sub([0.0, 1.0])).tolist() == [2, 2]
        second.run(two.initializer)
    assert one.numpy().tolist() == [5, 5]
    assert (one.name, two.name) == ("both", "both")
    eager = wf.Variable([0.0, 0.0], shared_name="both")
    assert eager.numpy().tolist() == [5, 5]  # it has a value already
    assert wf.compile(lambda: eager * 2.0)().numpy().tolist() == [10, 10]


def test_the_state_goes_with_the_last_who_holds_it() -> None:
    v = wf.Variable(3.0, shared_name="gone")
    w = wf.Variable(0.0, shared_name="gone")
    del v
    gc.collect()
    assert w.numpy() == 3
    del w
    gc.collect()
    assert wf.Variable(4.0, shared_name="gone").numpy() == 4


def test_a_copy_is_not_shared() -> None:
    v = wf.Variable(3.0, shared_name="copied")
    w = copy.deepcopy(v)
    v.assign(1.0)
    assert w.numpy() == 3


def test_a_shared_name_is_made_alike() -> None:
    kept = wf.Variable([1.0, 2.0], shared_name="alike")
    for start, dtype in (([1.0], None), (1.0, None), ([1.0, 2.0], wf.float64), ([1, 2], None)):
        with pytest.raises(
            E.InvalidArgumentError, match=r"'alike' is that of the variable 'alike': f32\[2\]"
        ) as e:
            wf.Variable(start, dtype=dtype, shared_name="alike")
        assert "test_variable_sharing.py" in str(e.value)
    with pytest.raises(E.InvalidArgumentError, match="made alike"):
        wf.FIFOQueue(3, wf.float32, [2], shared_name="alike")
    assert kept.numpy().tolist() == [1, 2]


def test_names_are_strings_and_an_empty_one_is_none() -> None:
    for names in ({"shared_name": 5}, {"container": 5}, {"name": 5}):
        with pytest.raises(E.TypeRuleError, match=f"{next(iter(names))} is a int, not a str") as e:
            wf.Variable(0.0, **names)  # type: ignore[arg-type]
        assert "test_variable_sharing.py" in str(e.value)
    one, two = wf.Variable(1.0, shared_name=""), wf.Variable(2.0, shared_name="")
    assert (one.numpy(), two.numpy()) == (1, 2)


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_two_variables_of_one_state_in_one_graph(mode: str) -> None:
    """They are one variable of the graph: effects on them are in order."""
    with wf.Graph().as_default() as graph:
        a = wf.Variable(1.0, name="a", shared_name="in one graph")
        b = wf.Variable(2.0, name="b", shared_name="in one graph")
        assert graph.variables == [a]
        reads, added, set_ = b * 1.0, a.assign_add(10.0), b.assign(a.read() * 0.0 + 5.0)

        def body(i: Any) -> Any:
            a.assign_add(1.0)
            b.assign_add(1.0)
            return i + 1

        last = wf.while_loop(lambda i: i < 3, body, 0)
        of_both = wf.gradients(a * b, [a])[0]
        session = wf.Session(control_flow=mode)
        session.run(wf.global_variables_initializer())
        assert session.run([set_, added, reads]) == [5, 11, 1]
        assert (a.numpy(), b.numpy()) == (5, 5)
        assert session.run(of_both) == 10
        session.run(last)
        assert b.numpy() == 11

    @wf.compile
    def step() -> Any:
        a.assign_add(1.0)
        b.assign_add(2.0)
        return a.read(), b.read()

    assert [x.item() for x in step()] == [14, 14]


def test_an_initial_value_computed_from_itself() -> None:
    with wf.Graph().as_default():
        a = wf.Variable(1.0, name="a", shared_name="cycle")
        b = wf.Variable(a + 1.0, name="b")
        c = wf.Variable(b * 2.0, name="c", shared_name="another")
        with pytest.raises(E.InvalidArgumentError, match="'d' is computed from that variable") as e:
            wf.Variable(a * 2.0, name="d", shared_name="cycle")
        assert "test_variable_sharing.py" in str(e.value)
        with pytest.raises(E.InvalidArgumentError, match="'e' is computed from that variable"):
            wf.Variable(c + 1.0, name="e", shared_name="cycle")
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        assert session.run([a, b, c]) == [1, 2, 4]


def test_made_by_many_threads_it_is_one() -> None:
    found: list[Any] = []
    start = threading.Barrier(16)

    def make() -> None:
        start.wait(30)
        with wf.Graph().as_default():
            v = wf.Variable(np.zeros(3, np.float32), shared_name="threads")
            found.append(v)
            session = wf.Session()
            if not v.state.initialized:
                with v.state.lock:
                    if not v.state.initialized:
                        session.run(v.initializer)
            step = v.assign_add(1.0)
            for _ in range(10):
                session.run(step)

    threads = [threading.Thread(target=make) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(50)
    assert len({id(v.state) for v in found}) == 1
    assert found[0].numpy().tolist() == [160, 160, 160]


# -------------------------------------------------------------------------------------- containers
def test_containers_are_namespaces() -> None:
    with wf.container("one") as name:
        a = wf.Variable(1.0, shared_name="x")
        with wf.container("two"):
            b = wf.Variable(2.0, shared_name="x")
        assert name == "one"
    c = wf.Variable(3.0, shared_name="x")
    same = wf.Variable(9.0, shared_name="x", container="two")
    assert [v.numpy().item() for v in (a, b, c, same)] == [1, 2, 3, 2]
    with wf.container("one"), wf.container(""):
        assert wf.Variable(0.0, shared_name="x").numpy() == 3
    with pytest.raises(E.InvalidArgumentError, match="'x' in container 'one'"):
        wf.Variable(0, shared_name="x", container="one")
    with pytest.raises(E.TypeRuleError, match="not a str"), wf.container(3):  # type: ignore[arg-type]
        pass


def test_reset_clears_containers() -> None:
    with wf.Graph().as_default():
        plain = wf.Variable(1.0, name="plain")
        with wf.container("one"):
            held = wf.Variable(2.0, name="held")
            shared = wf.Variable(3.0, shared_name="shared")
        other = wf.Variable(4.0, name="other", container="two")
        step = shared.assign_add(1.0)
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        session.run(step)
        session.run(step)
        wf.Session.reset("", ["one"])
        assert [v.state.initialized for v in (plain, other)] == [True, True]
        assert [v.state.initialized for v in (held, shared)] == [False, False]
        with pytest.raises(E.FailedPreconditionError, match="'shared' is not initialised"):
            session.run(step)
        session.run([shared.initializer, held.initializer])
        assert session.run(step) == 4
        new = wf.Variable(0.0, shared_name="shared", container="one")
        session.run(new.initializer)
        assert (session.run(shared), session.run(new)) == (4, 0)  # the name was forgotten
        wf.Session.reset("")
        assert session.run(wf.report_uninitialized_variables()).tolist() == [b"plain"]
    eager = wf.Variable(5.0)
    wf.Session.reset("")
    assert eager.numpy() == 5
    with pytest.raises(E.InvalidArgumentError, match="is no address"):
        wf.Session.reset("grpc://x")
    with pytest.raises(E.TypeRuleError, match="not a list of names"):
        wf.Session.reset("", "one")


def test_resources_are_in_containers_too() -> None:
    with wf.container("queues"):
        one = wf.FIFOQueue(3, wf.int64, [], shared_name="q")
    two = wf.FIFOQueue(5, wf.int64, [], shared_name="q")  # another container, so made otherwise
    one.enqueue(1)
    assert (one.size().item(), two.size().item()) == (1, 0)
    wf.Session.reset("", ["queues"])
    with wf.container("queues"):
        assert not wf.FIFOQueue(3, wf.int64, [], shared_name="q").size()
    assert one.dequeue().item() == 1  # who holds it keeps it


def test_a_graph_from_text_shares_and_is_cleared() -> None:
    with wf.Graph().as_default() as graph:
        v = wf.Variable([1.0], shared_name="in text", container="texts")
        wf.Variable([2.0], name="own")
        wf.global_variables_initializer()
        wf.group(v.assign_add([1.0]), name="add")
    loaded = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=loaded) as session:
        session.run("init")
        session.run("add")
        assert v.numpy().tolist() == [2]
        again = {w.name: w for w in loaded.variables}
        wf.Session.reset("", ["texts"])
        assert not again["in text"].state.initialized
        wf.Session.reset("")
        assert not again["own"].state.initialized


def test_reset_while_steps_run() -> None:
    with wf.Graph().as_default():
        v = wf.Variable(wf.zeros(10_000), name="v", container="busy")
        step, start = wf.group(v.assign_add(1.0)), v.initializer
        session = wf.Session()
        session.run(start)
        failed: list[BaseException] = []
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    session.run(step)
                except E.FailedPreconditionError:
                    session.run(start)
                except BaseException as error:
                    failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for _ in range(200):
            wf.Session.reset("", ["busy"])
        stop.set()
        for t in threads:
            t.join(30)
        assert not failed
        session.run(start)
        assert_array_equal(v.numpy(), np.zeros(10_000))


# ------------------------------------------------------------------------------------- get_variable
def test_variables_are_found_again() -> None:
    with wf.Graph().as_default() as graph:
        with wf.variable_scope("layer") as scope:
            w = wf.get_variable("w", [3, 2])
            with wf.variable_scope("inner"):
                b = wf.get_variable("b", 4, initializer=wf.zeros)
        assert (w.name, b.name, scope.name) == ("layer/w", "layer/inner/b", "layer")
        with wf.variable_scope("layer", reuse=True):
            assert wf.get_variable("w") is w
            with wf.variable_scope("inner"):  # reuse is inherited
                assert wf.get_variable("b", [4]) is b
        with wf.variable_scope(scope, reuse=wf.AUTO_REUSE):
            assert wf.get_variable("w", [3, 2], wf.float32) is w
            assert wf.get_variable("new", []).shape == ()
        with wf.variable_scope("elsewhere"), wf.variable_scope(scope, reuse=True):
            assert wf.get_variable("w") is w
        with wf.variable_scope("layer") as again:
            again.reuse_variables()
            assert wf.get_variable("w") is w
        with wf.variable_scope(None, "block") as one:
            wf.get_variable("x", [1])
        with wf.variable_scope(None, "block") as two:
            pass
        assert (one.name, two.name) == ("block", "block_1")
        assert len(graph.trainable_variables) == 4
        assert wf.get_variable_scope().name == ""
    with wf.Graph().as_default(), wf.variable_scope("layer"):
        assert wf.get_variable("w", [3, 2]) is not w  # each graph has its names


def test_get_variable_shares_parameters_between_calls() -> None:
    def model(x: Any) -> Any:
        with wf.variable_scope("dense", reuse=wf.AUTO_REUSE):
            w = wf.get_variable("w", [3, 1], initializer=wf.ones)
            return wf.matmul(x, w)

    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2, 3])
        both = model(x) + model(x * 2.0)
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        assert session.run(both, {x: np.ones((2, 3))}).tolist() == [[9], [9]]
        assert len(wf.trainable_variables()) == 1


def test_initializers() -> None:
    with wf.Graph().as_default():
        made = {
            "glorot": wf.get_variable("glorot", [300, 100]),
            "count": wf.get_variable("count", [2], wf.int32),
            "value": wf.get_variable("value", initializer=[1.0, 2.0]),
            "number": wf.get_variable("number", initializer=3),
            "sized": wf.get_variable("sized", np.array([2, 2]), initializer=wf.ones),
            "called": wf.get_variable("called", initializer=lambda: wf.ones((2, 2))),
            "cast": wf.get_variable("cast", dtype=wf.float64, initializer=0.5),
            "normal": wf.get_variable(
                "normal", [50], initializer=lambda s, dtype: wf.random_normal(s, 5.0, dtype=dtype)
            ),
            "still": wf.get_variable("still", [1], initializer=wf.ones, trainable=False),
        }
        with wf.variable_scope("s", initializer=wf.ones, dtype=wf.float16):
            made["scoped"] = wf.get_variable("x", [2])
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        got = session.run(made)
        assert abs(got["glorot"]).max() <= np.sqrt(6 / 400) < abs(got["glorot"]).max() * 1.01
        assert got["count"].tolist() == [0, 0]
        assert got["count"].dtype == np.int32
        assert got["value"].tolist() == [1, 2]
        assert (got["number"], got["number"].dtype) == (3, np.int64)
        assert got["called"].shape == (2, 2)
        assert got["cast"].dtype == np.float64
        assert 4 < got["normal"].mean() < 6
        assert got["scoped"].dtype == np.float16
        assert "still" not in [v.name for v in wf.trainable_variables()]


def test_what_get_variable_refuses() -> None:
    with wf.Graph().as_default():
        w = wf.get_variable("w", [2])
        wf.Variable(0.0, name="not found")
        cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
            (lambda: wf.get_variable("w", [2]), E.InvalidArgumentError, "'w' already, made at"),
            (lambda: wf.get_variable("x"), E.ShapeError, "'x' needs a shape"),
            (lambda: wf.get_variable("x", [None, 2]), E.ShapeError, "is not known"),  # type: ignore[list-item]
            (lambda: wf.get_variable("x", [3], initializer=[1.0]), E.ShapeError, "initial value"),
            (
                lambda: wf.get_variable("x", [3], initializer=lambda s, dtype: wf.zeros(2)),
                E.ShapeError,
                "shape",
            ),
            (lambda: wf.get_variable("x", [3], wf.complex64), E.InvalidArgumentError, "needs an"),
            (lambda: wf.get_variable(""), E.TypeRuleError, "no name"),
            (lambda: reused(True, "not found"), E.NotFoundError, "no variable 'not found'"),
            (lambda: reused(True, "w", [3]), E.ShapeError, r"shape \[2\], not \[3\]"),
            (lambda: reused(wf.AUTO_REUSE, "w", [2], wf.int32), E.TypeRuleError, "float32, not"),
            (lambda: reused("yes", "w"), E.TypeRuleError, "reuse='yes'"),
            (lambda: wf.variable_scope("").__enter__(), E.TypeRuleError, "no name"),
        ]
        for build, kind, what in cases:
            with pytest.raises(kind, match=what) as e:
                build()
            assert "test_variable_sharing.py" in str(e.value)
        assert reused(wf.AUTO_REUSE, "w") is w
        assert "x" not in [v.name for v in wf.global_variables()]


def reused(reuse: Any, *args: Any) -> Any:
    with wf.variable_scope(wf.get_variable_scope(), reuse=reuse):
        return wf.get_variable(*args)


def test_outside_of_graphs() -> None:
    """The names are those of the default graph; values are there at once."""
    wf.reset_default_graph()
    with wf.variable_scope("eager"):
        v = wf.get_variable("v", [2], initializer=wf.ones)
    assert v.numpy().tolist() == [1, 1]
    with wf.variable_scope("eager", reuse=True):
        assert wf.get_variable("v") is v

        @wf.compile
        def step(x: Any) -> Any:
            with wf.variable_scope("made in it", reuse=wf.AUTO_REUSE):
                return x * wf.get_variable("f", [], initializer=lambda s, dtype: 3.0)

        assert [step(n).item() for n in (1.0, 2)] == [3, 6]
    wf.reset_default_graph()
    with wf.variable_scope("eager"):
        assert wf.get_variable("v", [2]) is not v
    wf.reset_default_graph()


def test_scopes_of_threads_are_apart() -> None:
    with wf.Graph().as_default() as graph:
        names: list[str] = []

        def work(i: int) -> None:
            with graph.as_default(), wf.variable_scope(f"t{i}"):
                names.append(wf.get_variable("v", [1]).name)

        with wf.variable_scope("outer"):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(30)
        assert sorted(names) == [f"t{i}/v" for i in range(8)]


def test_scopes_are_those_of_tensorflow() -> None:
    """The names that TensorFlow 2.21 (compat.v1) gives for the same calls; "error" where it
    raises."""
    found: list[str] = []

    def attempt(*args: Any, **options: Any) -> None:
        try:
            found.append(wf.get_variable(*args, **options).name)
        except E.WeftError:
            found.append("error")

    with wf.Graph().as_default():
        with wf.variable_scope("a") as a:
            attempt("x", [2])
            attempt("x", [2])
            with wf.variable_scope("b", reuse=True):
                attempt("x", [2])
            with wf.variable_scope("b", reuse=wf.AUTO_REUSE):
                attempt("x", [2])
                with wf.variable_scope("c"):
                    attempt("y", [2])
                with wf.variable_scope("c", reuse=False):  # reuse is inherited all the same
                    attempt("y", [2])
        with wf.variable_scope("q"):
            with wf.variable_scope(a, reuse=True):
                attempt("x")
                with wf.variable_scope("b"):
                    attempt("x", [2])
                    attempt("new", [2])
            for _ in range(2):
                with wf.variable_scope(None, "d"):
                    attempt("z", [1])
            with wf.name_scope("ns"):
                attempt("w", [1])
                found.append(wf.Variable(1.0, name="plain").name)
        wf.get_variable_scope().reuse_variables()
        attempt("q/w")
        attempt("none", [1])
    assert found == [
        *("a/x", "error", "error", "a/b/x", "a/b/c/y", "a/b/c/y", "a/x", "a/b/x", "error"),
        *("q/d/z", "q/d_1/z", "q/w", "q/ns/plain", "q/w", "error"),
    ]  # fmt: skip
