"""Ops of a graph as objects, their names, fetches by them, and collections: TensorFlow 1's rules
(tf.Graph, tf.Operation, Session.run) as asserts."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

InvalidArgumentError, NotFoundError = wf.errors.InvalidArgumentError, wf.errors.NotFoundError


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def test_names_are_unique_and_follow_scopes(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [2], name="x")
    again = wf.placeholder(wf.float32, [2], name="x")
    with wf.name_scope("layer"):
        y = wf.exp(x) * again
        z = wf.exp(again)
    assert [t.name for t in (x, again, y, z)] == [
        "x:0",
        "x_1:0",
        "layer/multiply:0",
        "layer/exp_1:0",
    ]
    names = [op.name for op in graph.get_operations()]
    assert names == ["x", "x_1", "layer/exp", "layer/multiply", "layer/exp_1"]
    assert len(set(names)) == len(names)


def test_name_arguments_are_made_unique(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [2], name="x")
    first = wf.tf1.reduce_sum(x, name="total")
    second = wf.tf1.reduce_sum(x * 2, name="total")
    third = wf.tf1.cast(x, wf.int32, name="x")
    assert [t.name for t in (first, second, third)] == ["total:0", "total_1:0", "x_1:0"]
    with wf.name_scope("s"):
        assert wf.tf1.cumsum(x, name="total").name == "s/total:0"
    assert graph.unique_name("total") == "total_2"
    with wf.Session() as session:
        assert session.run(["total", "total_1:0"], {"x:0": [1, 2]}) == [3, 6]


def test_a_name_that_is_given_later_goes_before_one_that_an_op_has_by_itself(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [], name="x")
    plain, other = wf.exp(x), wf.sin(x)
    assert plain.op.name == "exp"
    wf.name_tensor(other, "exp")
    assert (plain.op.name, other.op.name) == ("exp_1", "exp")
    assert plain.op is graph.get_operation_by_name("exp_1")
    wf.name_tensor(plain, "e")
    assert plain.name == "e:0"
    with wf.Session() as session:
        assert session.run("exp:0", {x: 0.0}) == 0.0
        with pytest.raises(NotFoundError, match="named 'exp_1'"):
            session.run("exp_1", {x: 0.0})


def test_what_an_op_knows(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [3], name="x")
    with wf.device("/cpu:0"), wf.control_dependencies([wf.no_op(name="first")]):
        y = wf.name_tensor(wf.sum(x * x), "y")
    op = graph.get_operation_by_name("y")
    assert op is y.op
    assert (op.name, op.type, op.device, op.graph) == ("y", "sum", "/cpu:0", graph)
    assert [t.name for t in op.inputs] == ["multiply:0"]
    assert [t.op for t in op.outputs] == [op]
    assert [t.name for t in op.values()] == ["y:0"]
    assert [o.name for o in op.control_inputs] == ["first"]
    assert op.node_def.startswith("%y = sum(%multiply) after(%first) {axes=[0]")
    assert op.get_attr("keepdims") is False
    assert __file__ in str(op.traceback[0])
    with pytest.raises(NotFoundError, match=r"'y' of type sum has no attribute 'T'\n(.|\n)*axes"):
        op.get_attr("T")
    assert x.op.type == "placeholder"
    assert (x.op.inputs, x.op.control_inputs, x.op.node_def) == ((), [], "%x: f32[3]")
    assert [o.name for o in x.consumers()] == ["multiply"]
    assert y.consumers() == []
    assert y.graph is graph


def test_ops_with_several_results(graph: Any) -> None:
    x, p = wf.placeholder(wf.float32, [], name="x"), wf.placeholder(wf.bool, [], name="p")
    no, yes = wf.tf1.switch(x, p)
    out, index = wf.tf1.merge([no, yes * 2])
    assert [t.name for t in (no, yes, out, index)] == [
        "switch:0", "switch:1", "merge:0", "merge:1",
    ]  # fmt: skip
    assert graph.get_tensor_by_name("merge:1").op is out.op
    with wf.Session() as session:
        assert session.run(["merge:0", "merge:1", "merge"], {x: 3, p: True}) == [6, 1, 6]
        with pytest.raises(NotFoundError, match="'merge:2'"):
            session.run("merge:2", {x: 3, p: True})


def test_variables_have_ops(graph: Any) -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    init = wf.global_variables_initializer()
    grow = v.assign_add([1.0, 1.0])
    assert v.read().name == "v/read:0"
    assert (v.op.name, v.op.type) == ("v", "variable")
    assert {"v", "v/init", "init", "v/read", "assign_add"} <= {
        o.name for o in graph.get_operations()
    }
    with wf.Session() as session:
        session.run(graph.get_operation_by_name("init"))
        assert session.run("v:0").tolist() == session.run("v").tolist() == [1.0, 2.0]
        assert session.run([grow.op, "assign_add:0"])[1].tolist() == [2.0, 3.0]
        assert graph.get_tensor_by_name("v:0").eval().tolist() == [2.0, 3.0]
        assert session.run(v.op) is None
        with pytest.raises(wf.errors.TypeRuleError, match="a Variable cannot be fed"):
            session.run(v, {"v:0": [0.0, 0.0]})
    assert init.type == "group"
    assert [o.name for o in init.control_inputs] == ["v/init"]
    assert init.inputs == ()
    assert init.graph is graph


def test_operations_are_fetched_for_what_they_do(graph: Any) -> None:
    """As TensorFlow: None in their place, however the fetches are nested."""
    seen: list[float] = []
    x = wf.placeholder(wf.float32, [], name="x")
    noted = wf.py_function(lambda t: seen.append(float(t)) or t, [x], wf.float32, shapes=[])
    Pair = collections.namedtuple("Pair", "a b")
    with wf.Session() as session:
        assert session.run(noted.op, {x: 1}) is None
        fetched = {"pair": Pair(noted.op, [x, None]), "ops": (noted.op, x.op)}
        assert session.run(fetched, {x: 2}) == {"pair": Pair(None, [2, None]), "ops": (None, None)}
        noted.op.run({x: 3})
        assert session.make_callable([noted.op, x], [x])(4) == [None, 4]
        with wf.control_dependencies([noted.op]):
            after = wf.identity(x)
        assert session.run(after, {x: 5}) == 5
        assert session.run(wf.group(noted.op, x.op), {x: 6}) is None
    assert seen == [1, 2, 3, 4, 5, 6]
    with (
        wf.Graph("other").as_default(),
        wf.Session() as session,
        pytest.raises(InvalidArgumentError, match="'py_function' is not in this session's graph"),
    ):
        session.run(noted.op)


def test_ops_are_colocated(graph: Any) -> None:
    with wf.device("/cpu:0"):
        x = wf.exp(wf.placeholder(wf.float32, []))
    with wf.tf1.colocate_with(x.op):
        y = x + 1
    assert y.op.device == "/cpu:0"


def test_finalized_graphs_have_names(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [], name="x")
    y = x + 1
    graph.finalize()
    with wf.Session() as session:
        assert session.run([y.op, y.name], {x: 1}) == [None, 2]


def test_tensors_that_are_in_no_graph_have_no_names() -> None:
    t = wf.asarray([1.0])
    for what in ("name", "op", "graph"):
        assert not hasattr(t, what)
    with pytest.raises(AttributeError, match=r"no attribute 'op': only tensors of a wf\.Graph"):
        t.op  # noqa: B018
    with pytest.raises(AttributeError, match="consumers"):
        t.consumers()
    with wf.Graph().as_default(), pytest.raises(AttributeError, match="outside of branches"):
        wf.cond(wf.placeholder(wf.bool, []), lambda: wf.ones(2).name, lambda: wf.ones(2))


def test_names_survive_text(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [], name="x")
    wf.name_tensor(wf.exp(x) + 1, "y")
    again = wf.Graph.from_text(graph.as_graph_def())
    assert [o.name for o in again.get_operations()] == [o.name for o in graph.get_operations()]
    with wf.Graph().as_default() as joined:
        (y,) = wf.tf1.import_graph_def(graph.as_graph_def(), return_elements=["y:0"])
        assert y.name == "import/y:0"
        assert next(o.name for o in joined.get_operations()) == "import/x"


def test_collections(graph: Any) -> None:
    keys = wf.tf1.GraphKeys
    v = wf.Variable(1.0, name="v")
    w = wf.Variable(1.0, trainable=False, name="scope/w")
    assert graph.get_collection(keys.GLOBAL_VARIABLES) == [v, w]
    assert graph.get_collection(keys.TRAINABLE_VARIABLES) == [v]
    assert wf.tf1.get_collection(keys.GLOBAL_VARIABLES, scope="scope/") == [w]
    wf.tf1.add_to_collection(keys.LOSSES, v * 2)
    wf.tf1.add_to_collections([keys.LOSSES, "mine", "mine"], "anything")
    assert graph.get_collection("mine") == ["anything"]
    assert [type(x).__name__ for x in graph.get_collection("losses")] == ["Tensor", "str"]
    assert len(wf.tf1.get_collection("losses", scope="v/")) == 0
    assert len(wf.tf1.get_collection("losses", scope="mult")) == 1
    graph.get_collection("mine").append("lost")  # a copy
    wf.tf1.get_collection_ref("mine").append("kept")
    assert graph.get_collection("mine") == ["anything", "kept"]
    graph.add_to_collection(keys.TRAINABLE_VARIABLES, w)
    graph.add_to_collection(keys.TRAINABLE_VARIABLES, v)
    assert graph.get_collection(keys.TRAINABLE_VARIABLES) == [v, w]
    assert sorted(graph.get_all_collection_keys()) == [
        "losses", "mine", "trainable_variables", "variables",
    ]  # fmt: skip
    graph.clear_collection("mine")
    assert graph.get_collection("mine") == []
    with pytest.raises(wf.errors.TypeRuleError, match="the name is a list"):
        graph.add_to_collection(["a"], 1)
    with wf.Graph().as_default():
        assert wf.tf1.get_collection("losses") == []


def test_many_names_take_little_time(graph: Any) -> None:
    """Each op is looked at once, however often names are asked for."""
    x: Any = wf.placeholder(wf.float32, [], name="x")
    names = []
    for _ in range(2000):
        x = x + 1.0
        names.append(x.name)
    assert names[-1] == "add_1999:0"
    assert len(set(names)) == 2000
    assert np.array_equal(wf.Session().run(names[:3], {"x": 0.0}), [1, 2, 3])
