"""`wf.device` and `wf.colocate_with`: what they write on ops, and sessions of one device."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.graph import Operation
from weft.ir.types import RefType
from weft.runtime.device.backends.local import on_local_device

PS, WORKER = "/job:ps/task:0", "/job:worker/task:1"


def _op(t: Any) -> Operation:
    op = t._value.op
    assert isinstance(op, Operation)
    return op


def _made_in(*scopes: Any) -> str:
    """The device of an op made in nested scopes."""
    with wf.Graph().as_default(), ExitStack() as stack:
        x = wf.placeholder(wf.float32, [])
        for scope in scopes:
            stack.enter_context(wf.device(scope))
        return wf.exp(x).device


# ------------------------------------------------------------------------------------- scopes
@pytest.mark.parametrize(
    ("scopes", "device"),
    [  # as TensorFlow 2.21's compat.v1, in weft's spelling
        ((), ""),
        (("/cpu:0",), "/cpu:0"),
        (("/gpu:1", "/device:CPU:*"), "/cpu:1"),
        (("/job:ps/task:1", "/job:worker"), "/job:worker/task:1"),
        (("/job:ps", None), ""),
        (("/job:ps", "/task:2", None, "/cpu:0"), "/cpu:0"),
        (("/job:ps", ""), "/job:ps"),
        (("/job:ps", wf.DeviceSpec(task=3)), "/job:ps/task:3"),
        (("/job:ps", lambda op: "/job:w/task:1"), "/job:w/task:1"),
        ((lambda op: "/job:w/task:1", "/job:ps"), "/job:w/task:1"),
        ((lambda op: "/task:1", lambda op: "/task:2/cpu:0"), "/task:1"),
        (("/job:ps", lambda op: ""), "/job:ps"),
        (("/job:ps", lambda op: None), "/job:ps"),  # an error in TF
        ((lambda op: op.device + "/cpu:0", "/job:ps/task:1"), "/job:ps/task:1/cpu:0"),
    ],
)
def test_nested_scopes_merge(scopes: tuple[Any, ...], device: str) -> None:
    assert _made_in(*scopes) == device


def test_scope_ends_and_reaches_into_graphs() -> None:
    graph = wf.Graph()
    with wf.device("/job:ps"), graph.as_default():
        x = wf.placeholder(wf.float32, [])
        inside = x + x
    with graph.as_default():
        with pytest.raises(ZeroDivisionError), wf.device("/job:worker"):
            _ = 1 / 0
        outside = x + x
    assert (inside.device, outside.device) == ("/job:ps", "")


def test_what_is_no_device() -> None:
    wrong: list[tuple[Any, str]] = [
        ("/boat:1", r"'boat:1'(.|\n)*test_device_scopes"), (3, "given 3, which names no device"),
    ]  # fmt: skip
    for given, message in wrong:
        with pytest.raises(wf.errors.InvalidArgumentError, match=message), wf.device(given):
            pass
    with wf.Graph().as_default(), wf.device(lambda op: 7):  # type: ignore[arg-type,return-value]
        x = wf.placeholder(wf.float32, [])
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"returned 7(.|\n)*test_device"):
            wf.exp(x)


def test_function_sees_the_op() -> None:
    seen: list[tuple[str, str, str, int]] = []

    def note(op: Any) -> None:
        seen.append((op.type, op.name, op.device, op.nbytes))
        assert repr(op).startswith("<op ")
        assert isinstance(op.attrs, dict)

    with wf.Graph().as_default(), wf.device(note), wf.device("/job:ps"):
        v = wf.Variable(np.zeros((2, 3), np.float32), name="v")
        wf.exp(v)
        wf.exp(wf.placeholder(wf.float32, [None]))
    assert seen == [
        ("variable", "v", "/job:ps", 24), ("exp", "", "/job:ps", 24), ("exp", "", "/job:ps", 0),
    ]  # fmt: skip


# -------------------------------------------------------------------------------------- state
def test_accesses_of_state_have_no_device() -> None:
    """They are where the state is; so a read in a worker's scope does not move the variable."""
    with wf.Graph().as_default() as g:
        with wf.device(PS):
            v = wf.Variable(np.zeros(3, np.float32), name="v")
        free = wf.Variable(np.zeros(3, np.float32), name="free")
        with wf.device(WORKER), wf.colocate_with(v):
            y = v + free
            v.assign_add(y)
            v.scatter_add([0], [1.0])
            free.assign(y)
            _ = v.initializer
    assert (y.device, _op(y).group) == (PS, "v")
    for op in g.ir().ops:
        if op.name == "variable":
            named = str(op.attrs["name"])
            assert (op.device, op.group) == ((PS, "v") if named == "v" else ("", ""))
        elif op.operands and isinstance(op.operands[0].type, RefType):
            assert (op.device, op.group) == ("", "")
    assert {"read", "assign", "assign_add", "scatter_add"} <= {op.name for op in g.ir().ops}


def test_queues_are_where_they_are_made() -> None:
    with wf.Graph().as_default() as g:
        with wf.device(PS):
            q = wf.FIFOQueue(3, wf.float32, [[]], name="q")
            acc = wf.ConditionalAccumulator(wf.float32, [], name="acc")
        with wf.device(WORKER):
            q.enqueue(wf.placeholder(wf.float32, [], name="x") + 1)
            q.dequeue()
            acc.apply_grad(wf.placeholder(wf.float32, []), local_step=0)
            other = wf.FIFOQueue(3, wf.float32, [[]], name="other")
        other.size()
    devices = {(op.name, op.attrs.get("name"), op.device) for op in g.ir().ops}
    assert devices == {
        ("queue", "q", PS), ("accumulator", "acc", PS), ("queue", "other", WORKER),
        ("constant", None, ""), ("add", None, WORKER), ("enqueue", None, ""),
        ("dequeue", None, ""), ("accumulator_apply_gradient", None, ""), ("queue_size", None, ""),
    }  # fmt: skip


def test_bodies_of_loops_and_branches() -> None:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [], name="x")
        with wf.device(PS):
            v = wf.Variable(np.float32(2), name="v")

        def body(i: Any) -> Any:
            with wf.device("/cpu:1"):
                return i * v + 1

        with wf.device(WORKER):
            wf.cond(x > 0, lambda: wf.exp(x), lambda: wf.exp(x) + 1)
            wf.while_loop(lambda i: i < 10, body, [x])
    ir = g.ir()
    (cond,) = [op for op in ir.ops if op.name == "cond"]
    (loop,) = [op for op in ir.ops if op.name == "while"]
    assert {op.device for r in cond.regions for op in r.ops if op.name != "constant"} == {WORKER}
    test, body_block = loop.regions
    assert loop.device == WORKER
    assert {op.device for op in test.ops if op.name == "less"} == {WORKER}
    assert [op.device for op in body_block.ops if op.name in ("multiply", "add")] == [
        "/job:worker/task:1/cpu:1"
    ] * 2


# --------------------------------------------------------------------------------- colocation
def test_colocation_joins_groups() -> None:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [], name="x")
        v = wf.Variable(np.float32(1), name="v")
        with wf.device(PS):
            a = wf.exp(x)
        b = wf.sin(x)
        with wf.device(WORKER), wf.colocate_with(a):
            c = wf.cos(x)
            with wf.device("/cpu:0"):
                d = wf.cos(x)
            with wf.colocate_with(b):
                e = wf.cos(x)
            with wf.colocate_with(None, ignore_existing=True):
                f = wf.cos(x)
            with wf.colocate_with(v, ignore_existing=True):
                h = v * x
        with wf.colocate_with(b):
            i = wf.tan(x)
    ops = {k: _op(t) for k, t in locals().items() if k in "abcdefhi"}
    group = ops["a"].group
    assert group
    assert {k for k, op in ops.items() if op.group == group} == set("abcdei")
    assert [ops[k].device for k in "acdef"] == [PS, PS, PS, PS, ""]
    assert (ops["f"].group, ops["h"].group) == ("", "v")
    handle = next(op for op in g.ir().ops if op.name == "variable")
    read = next(op for op in g.ir().ops if op.name == "read")
    assert (handle.group, read.group) == ("v", "")


def test_colocation_in_a_body() -> None:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [], name="x")
        a = wf.exp(x)

        def body() -> Any:
            b = wf.sin(x)
            with wf.colocate_with(b), wf.colocate_with(a):
                return wf.cos(b)

        wf.cond(x > 0, body, lambda: x)
    (cond,) = [op for op in g.ir().ops if op.name == "cond"]
    assert [op.group for op in cond.regions[0].ops] == [_op(a).group] * 2 == ["with_sin"] * 2


def test_what_nothing_can_be_colocated_with() -> None:
    other = wf.Graph()
    with other.as_default():
        foreign = wf.no_op()
    eager = pytest.raises(wf.errors.FailedPreconditionError, match="for graphs")
    with eager, wf.colocate_with(wf.asarray(1.0)):
        pass
    cases: list[tuple[Any, type[Exception], str]] = [
        (None, wf.errors.InvalidArgumentError, "ignore_existing"),
        (wf.asarray(1.0), wf.errors.InvalidArgumentError, "has its value"),
        (3, wf.errors.TypeRuleError, "a int is not a tensor"),
        (foreign, wf.errors.InvalidArgumentError, "another graph"),
    ]
    with wf.Graph().as_default():
        cases.append((wf.placeholder(wf.float32, []), wf.errors.InvalidArgumentError, "an input"))
        for item, kind, message in cases:
            with pytest.raises(kind, match=message), wf.colocate_with(item):
                pass


# ---------------------------------------------------------------------------------- gradients
def _gradient_ops(colocated: bool) -> tuple[list[Operation], list[Operation], list[Operation]]:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [3], name="x")
        with wf.device(PS):
            a = wf.sin(x)
        b = wf.exp(a)
        loss = wf.sum(b)
        count = len(g.ir().ops)
        with wf.device(WORKER):
            wf.gradients(loss, [x], colocate_gradients_with_ops=colocated)
    made = [op for op in g.ir().ops[count:] if op.name != "constant"]
    return made, [op for op in made if op.name == "cos"], [_op(a), _op(b), _op(loss)]


def test_gradients_are_where_the_scope_is() -> None:
    made, _, forward = _gradient_ops(colocated=False)
    assert {op.device for op in made} == {WORKER}
    assert [(op.device, op.group) for op in forward] == [(PS, ""), ("", ""), ("", "")]


def test_gradients_colocated_with_ops() -> None:
    made, cosines, forward = _gradient_ops(colocated=True)
    sine, exp, _ = forward
    assert [(op.device, op.group) for op in cosines] == [(PS, sine.group)]
    assert len({op.group for op in forward} | {""}) == 4
    assert {op.group for op in made} <= {op.group for op in forward} | {""}
    assert {op.group for op in made if op.device == PS} == {sine.group}
    (through_exp,) = [op for op in made if op.group == exp.group]
    assert through_exp.name == "multiply"


def test_gradients_through_loops_keep_devices() -> None:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [], name="x")

        def body(i: Any) -> Any:
            with wf.device("/gpu:0"):
                return wf.sin(i)

        y = wf.while_loop(lambda i: i < 10, body, [x], maximum_iterations=3)
        before = {id(op) for op in g.ir().walk()}
        with wf.device("/cpu:0"):
            wf.gradients(y, [x], colocate_gradients_with_ops=True)
    new = [op for op in g.ir().walk() if id(op) not in before]
    assert {op.device for op in new if op.name in ("sin", "cos")} == {"/gpu:0"}
    assert {op.device for op in g.ir().walk() if id(op) in before} == {"", "/gpu:0"}


def test_optimizer_works_beside_its_variable() -> None:
    with wf.Graph().as_default() as g:
        with wf.device(PS):
            v = wf.Variable(np.ones(3, np.float32), name="v")
        with wf.device(WORKER):
            loss = wf.sum(v * v)
            wf.train.AdagradOptimizer(0.1).minimize(loss)
    ops = {op.attrs["name"]: op for op in g.ir().ops if op.name == "variable"}
    assert {op.device for op in ops.values()} == {PS}
    assert {op.group for op in ops.values()} == {"v"}
    assert {op.device for op in g.ir().ops if op.name == "rsqrt"} == {PS}
    assert {op.device for op in g.ir().ops if op.name == "multiply"} >= {WORKER}


def test_no_device_no_trace_of_one() -> None:
    with wf.Graph().as_default() as g:
        v = wf.Variable(np.ones(3, np.float32), name="v")
        wf.train.AdamOptimizer(0.1).minimize(wf.sum(v * v))
    assert not any(op.device or op.group for op in g.ir().walk())


# ------------------------------------------------------------------------------ graphs as text
def _placed_graph() -> wf.Graph:
    graph = wf.Graph("placed")
    with graph.as_default(), wf.device("/job:localhost"):
        x = wf.placeholder(wf.float32, [3], name="x")
        v = wf.Variable(np.arange(3, dtype=np.float32), name="v")
        with wf.colocate_with(v):
            y = wf.cond(wf.sum(x) > 0, lambda: v * x, lambda: x)
        with wf.device("/cpu:*"):
            wf.name_tensor(wf.exp(y), "out")
    return graph


def _marks(graph: wf.Graph) -> list[tuple[str, str, str]]:
    return [(op.name, op.device, op.group) for op in graph.ir().walk()]


def test_text_and_import_keep_devices() -> None:
    graph = _placed_graph()
    assert {m[1] for m in _marks(graph)} >= {"/job:localhost", "/job:localhost/cpu:*"}
    again = wf.Graph.from_text(graph.as_text())
    assert again.as_text() == graph.as_text()
    with wf.Graph().as_default() as other:
        for name in ("one", "two"):
            wf.import_graph_def(graph, name=name)
    marks = [m for m in _marks(other) if m[0] != "constant"]
    own = [m for m in _marks(graph) if m[0] != "constant"]
    for name in ("one", "two"):
        wanted = [(op, device, group and f"{name}/{group}") for op, device, group in own]
        half = marks[: len(own)] if name == "one" else marks[len(own) :]
        assert half == wanted


def test_sessions_of_one_device_run_placed_graphs() -> None:
    graph = _placed_graph()
    x = np.ones(3, np.float32)
    for control_flow in ("auto", "native", "dataflow"):
        with wf.Session(graph=graph, control_flow=control_flow) as session, graph.as_default():
            session.run(wf.global_variables_initializer())
            out = session.run("out", {"x": x})
        np.testing.assert_allclose(out, np.exp(np.arange(3)), rtol=1e-6)


def test_a_device_that_is_not_there_is_an_error() -> None:
    with wf.Graph().as_default() as g:
        x = wf.placeholder(wf.float32, [], name="x")
        with wf.device("/gpu:0"):
            y = wf.exp(x)
        z = wf.sin(x)
        with wf.Session(graph=g) as session:
            assert session.run(z, {x: 0.0}) == 0
            with pytest.raises(
                wf.errors.InvalidArgumentError,
                match=r"no device '/gpu:0' here; the devices are: /job:localhost/task:0/cpu:0",
            ) as caught:
                session.run(y, {x: 0.0})
    assert "test_device_scopes.py" in str(caught.value)


def test_one_device_strips_nested_ops() -> None:
    ir = _placed_graph().ir()
    bare = on_local_device(ir)
    assert not any(op.device or op.group for op in bare.walk())
    assert [op.name for op in bare.walk()] == [op.name for op in ir.walk()]
    assert on_local_device(bare) is bare


# --------------------------------------------------------------------------- compiled and eager
def test_compiled_functions() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        with wf.device("/cpu:0"):
            y = wf.exp(x)
        assert y.device == "/cpu:0"
        assert (y + 1).device == "cpu"
        return y + 1

    x = np.ones(3, np.float32)
    np.testing.assert_allclose(f(x), np.exp(1) + 1, rtol=1e-6)
    assert 'device("/cpu:0")' in str(f.trace(x))
    with wf.device("/job:elsewhere"):  # around the call: the function is compiled for here
        f(np.ones(4, np.float32))

    @wf.compile
    def g(x: Any) -> Any:
        with wf.device("/job:ps"):
            return wf.exp(x)

    with pytest.raises(wf.errors.InvalidArgumentError, match="no device '/job:ps' here"):
        g(x)
    wf.compile(device="/cpu:0")(lambda x: x)(x)
    with pytest.raises(wf.errors.UnsupportedError, match="runs in this process"):
        wf.compile(device="/job:ps/gpu:0")(lambda x: x)


def test_eager() -> None:
    x = wf.asarray([1.0, 2.0])
    with wf.device("/cpu:0"), wf.device(lambda op: "/job:ps"):  # functions are for graphs
        assert float(wf.sum(x)) == 3
        assert wf.Variable(x).numpy().tolist() == [1, 2]
    with wf.device("/gpu:0"):
        with pytest.raises(wf.errors.InvalidArgumentError, match="no device '/gpu:0' here"):
            wf.exp(x)
        with pytest.raises(wf.errors.InvalidArgumentError, match="no device '/gpu:0' here"):
            wf.Variable(x)
        with wf.device(None):
            wf.exp(x)
    assert x.device == "cpu"
    assert x.to_device("/cpu:0") is x is x.to_device("cpu")
    with pytest.raises(wf.errors.InvalidArgumentError, match="no device"):
        x.to_device("/job:ps/gpu:0")


def test_grad_outside_graphs() -> None:
    def f(x: Any) -> Any:
        with wf.device("/cpu:0"):
            return wf.sum(x * x)

    np.testing.assert_array_equal(wf.grad(f)(wf.asarray([1.0, 2.0])), [2, 4])


def test_groups_of_imported_graphs_are_not_taken_for_others() -> None:
    """A group made after an import does not get the name of one that came with it, in a body
    neither."""
    with wf.Graph().as_default() as first:
        x = wf.placeholder(wf.float32, [], name="x")

        def body() -> Any:
            a = wf.exp(x)
            with wf.colocate_with(a):
                return wf.sin(a)

        wf.cond(x > 0, body, lambda: x)
    text = first.as_text()
    assert 'group("with_exp")' in text
    again = wf.Graph.from_text(text)
    with again.as_default():
        b = wf.exp(wf.placeholder(wf.float32, []))
        with wf.colocate_with(b):
            c = wf.sin(b)
    assert _op(b).group == _op(c).group == "with_exp_1"


def test_states_of_random_ops_are_where_they_draw() -> None:
    """And not where parameters are."""
    setter = wf.train.replica_device_setter(ps_tasks=2)
    with wf.Graph().as_default() as g, wf.device(setter):
        v = wf.Variable(np.zeros(3, np.float32), name="v")
        with wf.device("/job:worker/task:1"):
            wf.random_uniform([3])
        with wf.colocate_with(v):
            wf.random_normal([3])
    marks = [(op.device, op.group) for op in g.ir().ops if op.name == "variable"]
    assert marks == [(PS, "v"), (WORKER, ""), (PS, "v")]
