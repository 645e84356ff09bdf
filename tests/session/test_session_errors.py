"""What graphs and sessions refuse, and how they say so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
)


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def test_a_missing_feed_names_the_placeholder(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None], name="x")
    with pytest.raises(
        InvalidArgumentError, match=r"placeholder 'x', f32\[x_0\] \(made at"
    ) as caught:
        wf.Session().run(x + 1.0)
    assert "feed_dict={x: value}" in str(caught.value)
    assert 'wf.placeholder(wf.float32, [None], name="x")' in str(caught.value)


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (
            np.ones((2, 4)),
            InvalidArgumentError,
            r"shape \[2, 4\] was fed .*\n.*\n.*must fit \[x_0,3\]",
        ),
        (np.ones(3), InvalidArgumentError, r"shape \[3\] was fed"),
        (np.ones((1, 3), complex), TypeRuleError, "a complex128 value was fed"),
        ("text", TypeRuleError, "a string value was fed"),
        (object(), TypeRuleError, "is no tensor: a object is not a tensor"),
    ],
)
def test_feeds_that_do_not_fit(graph: Any, value: Any, error: type[Exception], match: str) -> None:
    x = wf.placeholder(wf.float32, [None, 3], name="x")
    with pytest.raises(error, match=match):
        wf.Session().run(x, {x: value})


def test_integer_feeds_keep_their_value(graph: Any) -> None:
    x = wf.placeholder(wf.int8, [], name="x")
    session = wf.Session()
    assert session.run(x, {x: np.int64(100)}) == 100
    with pytest.raises(InvalidArgumentError, match="does not fit int8"):
        session.run(x, {x: 300})
    with pytest.raises(InvalidArgumentError, match=r"a float64 value .* does not fit int8: 1\.5"):
        session.run(x, {x: 1.5})


def test_feeds_and_fetches_from_elsewhere(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [])
    with wf.Graph("other").as_default():
        stranger = wf.placeholder(wf.float32, [])
        effect = wf.no_op()
    session = wf.Session()
    with pytest.raises(
        InvalidArgumentError, match=r"a tensor of 'other' \(made at .*is not in .*graph 'g'"
    ):
        session.run(stranger)
    with pytest.raises(InvalidArgumentError, match="feed_dict: a tensor of 'other'"):
        session.run(x, {stranger: 1})
    with pytest.raises(
        InvalidArgumentError, match="effect 'no_op' is not in this session's graph 'g'"
    ):
        session.run(effect)
    with pytest.raises(TypeRuleError, match=r"value fed for .* is symbolic itself"):
        session.run(x, {x: x})
    with pytest.raises(TypeRuleError, match=r"fetches\[0\] is a float, which cannot be fetched"):
        session.run([1.5])
    with pytest.raises(TypeRuleError, match="feed_dict: a Variable cannot be fed"):
        session.run(x, {wf.Variable(1.0): 2})
    with pytest.raises(
        NotFoundError, match="no tensor or effect named 'placeholdr'; did you mean 'placeholder'"
    ):
        session.run("placeholdr")
    wf.name_tensor(x * 2, "a")
    for use, name in [
        (session.run, "b:0"), (session.run, "a:1"), (x.graph.get_operation_by_name, "a:0"),
        (lambda name: session.run("a", {name: 1}), "ab:0"), (x.graph.get_tensor_by_name, "aa:0"),
        (lambda name: wf.import_graph_def(x.graph, return_elements=[name]), "aa:0"),
    ]:  # fmt: skip  # ":0" was part of what is compared, more than half of a short name
        near = "" if name == "b:0" else "; did you mean 'a'"
        with pytest.raises(NotFoundError, match=f"tensor or effect named '{name}'{near}"):
            use(name)


def test_closed_sessions(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [])
    with wf.Session() as session:
        assert session.run(x, {x: 1}) == 1
    with pytest.raises(FailedPreconditionError, match="this session is closed"):
        session.run(x, {x: 1})


def test_tensors_of_a_graph_outside_it() -> None:
    with wf.Graph("g").as_default():
        x = wf.placeholder(wf.float32, [2])
    with pytest.raises(
        TracerError, match=r"to the graph 'g' \(made at .*, but no graph is current"
    ):
        x + 1


def test_building_while_a_step_runs_is_refused(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [])
    y = x + 1.0
    session = wf.Session()
    session.run(y, {x: 1})
    (step,) = session._steps.entries.values()
    run = step.executable.run

    def build_inside(arrays: Any, context: Any) -> Any:
        x * 2.0
        return run(arrays, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step.executable, "run", build_inside)  # stands for a host function
        with pytest.raises(FailedPreconditionError, match="added to the graph 'g' while a step"):
            session.run(y, {x: 1})
    assert session.run(y, {x: 1}) == 2


@pytest.mark.parametrize(
    ("shape", "error", "match"),
    [
        (None, UnsupportedError, "unknown rank is not supported"),
        ([-1], InvalidArgumentError, "-1 in shape"),
        ([1.5], InvalidArgumentError, "1.5 in shape"),
    ],
)
def test_placeholder_shapes(graph: Any, shape: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        wf.placeholder(wf.float32, shape)


def test_a_placeholder_without_a_shape(graph: Any) -> None:
    with pytest.raises(UnsupportedError, match="needs a shape") as caught:
        wf.placeholder(wf.float32)
    assert "shape=[] for a scalar" in str(caught.value)
    assert "wf.placeholder(wf.float32)" in str(caught.value)
    assert wf.placeholder(wf.float32, shape=[]).shape == ()


def test_placeholders_in_a_compiled_function() -> None:
    with pytest.raises(UnsupportedError, match=r"wf\.placeholder is for graphs"):
        wf.compile(lambda x: wf.placeholder(wf.float32, []))(np.ones(1))


def test_unknown_dtypes_targets_and_options(graph: Any) -> None:
    with pytest.raises(TypeRuleError, match="'float33' is not a weft dtype"):
        wf.placeholder("float33", [])
    with pytest.raises(InvalidArgumentError, match="is no address"):
        wf.Session("grpc://localhost:2222")
    with pytest.raises(TypeRuleError, match=r"graph must be a wf\.Graph"):
        wf.Session(graph="g")  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match="options"):
        wf.Session().run([], options=1)  # type: ignore[arg-type]
    for given in ({"timeout": -1}, {"timeout": 0}, {"timeout": np.nan}, {"timeout_in_ms": -1}):
        with pytest.raises(InvalidArgumentError, match="is no time"):
            wf.RunOptions(**given)
    with pytest.raises(InvalidArgumentError, match="are one limit"):
        wf.RunOptions(timeout=1, timeout_in_ms=1000)
    with pytest.raises(TypeRuleError, match="timeout must be a number"):
        wf.RunOptions(timeout="1 s")
    given = [wf.RunOptions(timeout_in_ms=ms).timeout for ms in (0, 1500)]
    assert [*given, wf.RunOptions(timeout=2).timeout, wf.RunOptions().timeout] == [
        None,
        1.5,
        2,
        None,
    ]
    with pytest.raises(InvalidArgumentError, match="control_flow"):
        wf.Session(control_flow="eager")


def test_what_only_clusters_need_is_in_cluster() -> None:
    for old, new in (("connect_seconds", "connect_timeout"), ("spread", "spread")):
        hint = rf"wf\.Session\(cluster=wf\.train\.Cluster\(target, {new}=\.\.\.\)\)"
        with pytest.raises(TypeRuleError, match=f"(?s)has no argument '{old}'.*{hint}"):
            wf.Session("tcp://127.0.0.1:9", **{old: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match=r"has no argument 'retries'\n  at"):
        wf.Session(retries=3)  # type: ignore[arg-type]
    with pytest.raises(TypeRuleError, match=r"takes a wf\.train\.Cluster, got a ClusterSpec"):
        wf.Session(cluster=wf.train.ClusterSpec({"ps": ["a:1"]}))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="are both given"):
        wf.Session("tcp://127.0.0.1:9", cluster=wf.train.Cluster("tcp://127.0.0.1:8"))
    with pytest.raises(InvalidArgumentError, match="connect_timeout=0 is no time"):
        wf.train.Cluster("tcp://127.0.0.1:9", connect_timeout=0)
    for wrong in ({"target": ""}, {"target": 3}, {"target": "a:1", "spec": {"ps": ["a:1"]}}):
        with pytest.raises(TypeRuleError, match=r"wf\.train\.Cluster: "):
            wf.train.Cluster(**wrong)


def test_effects_of_another_graph_as_dependencies(graph: Any) -> None:
    with wf.Graph("other").as_default():
        effect = wf.no_op()
    with pytest.raises(InvalidArgumentError, match="effect 'no_op' belongs to another graph"):
        wf.group(effect)
    with (
        pytest.raises(TypeRuleError, match="control_dependencies: a str is not"),
        wf.control_dependencies(["x"]),
    ):
        pass


def test_graphs_of_one_name_are_told_apart() -> None:
    with wf.Graph().as_default():
        x, effect = wf.placeholder(wf.float32, []), wf.no_op()
    with wf.Graph().as_default():
        y, session = wf.placeholder(wf.float32, []), wf.Session()
        for fetch in (x, effect):
            with pytest.raises(InvalidArgumentError, match="not in this session's graph") as caught:
                session.run(fetch)
            assert places(caught)[-1] == y_line(y) - 1
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(x)
        assert places(caught) == [y_line(x) - 1, y_line(y) - 1]
        with pytest.raises(TracerError, match="belongs to the graph") as wrong:
            x + y
        assert places(wrong) == [y_line(x) - 1, y_line(y) - 1]


def places(caught: Any) -> list[int]:
    """The lines where the graphs of the message were made."""
    return [int(n) for n in re.findall(r"'graph' \(made at [^:]*:(\d+)", str(caught.value))]


def y_line(t: Any) -> int:
    return int(t._locations()[0].line)


@pytest.mark.parametrize(
    ("use", "also"),
    [
        (np.asarray, "use the function of the same name in weft"),
        (lambda t: t.numpy(), ""),
        (bool, "use wf.where"),
    ],
)
def test_a_value_is_wanted_of_a_graph(use: Any, also: str) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [])
        with pytest.raises(TracerError, match="symbolic") as caught:
            use(x)
    hint = str(caught.value.hint)
    assert "Session(graph=...).run(tensor)" in hint
    assert also in hint
    assert "compiled function" not in hint
    assert "default graph" not in hint
    wf.placeholder(wf.float32, [])
    try:
        with pytest.raises(TracerError, match=r"default graph .*wf\.tf1\.reset_default_graph\(\)"):
            use(wf.ones(()) + 1)
    finally:
        wf.reset_default_graph()
    use(wf.ones(()) + 1)


def test_sizes_as_operands(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [None])
    (n,) = x.shape
    wanted = [wf.maximum(n, 4), wf.asarray(n) * 2, wf.full((n,), n)]
    assert [v.tolist() for v in wf.Session().run(wanted, {x: [0, 0, 0]})] == [4, 6, [3, 3, 3]]
