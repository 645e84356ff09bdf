"""Devices' names: the grammar, merging, matching; and devices and groups of ops in the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.device import LOCAL_TASK, DeviceSpec, canonical_device
from weft.ir.drawing.dot import dot
from weft.ir.dtypes import float32
from weft.ir.graph import Graph, Operation, canonical
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType
from weft.runtime.plan_store import digest_graph

NUMBERS = st.one_of(st.none(), st.integers(0, 10**9 - 1))
SPECS = st.builds(
    DeviceSpec,
    st.one_of(st.none(), st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True)),
    NUMBERS,
    st.one_of(st.none(), st.sampled_from(["cpu", "gpu", "tpu", "xla_cpu", "CPU"])),
    NUMBERS,
)


@pytest.mark.parametrize(
    ("text", "canonical_text"),
    [
        ("", ""),
        ("/", ""),
        ("/job:ps/task:0/cpu:0", "/job:ps/task:0/cpu:0"),
        ("/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/task:0/cpu:0"),
        ("job:ps", "/job:ps"),
        ("cpu:0", "/cpu:0"),
        ("/CPU", "/cpu:*"),
        ("/device:GPU:*", "/gpu:*"),
        ("/device:GPU", "/gpu:*"),
        ("/device:TPU:3", "/device:tpu:3"),
        ("/device:*:3", "/device:*:3"),
        ("/device:*:*", ""),
        ("/cpu:0/job:ps", "/job:ps/cpu:0"),  # parts in any order
        ("/task:1/task:2", "/task:2"),  # the later wins, as in TF
        ("/job:*/task:*", ""),
        ("/job:a-b_1/task:12", "/job:a-b_1/task:12"),
    ],
)
def test_canonical_text(text: str, canonical_text: str) -> None:
    assert canonical_device(text) == canonical_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/foo:1", "not understood: 'foo:1'"),
        ("foo", "not understood"),
        (" /cpu:0", "not understood"),
        ("/task:x", "'x' where a number"),
        ("/task:-1", "'-1' where a number"),
        ("/cpu:1.5", "where a number"),
        ("/cpu:", "where a number"),
        ("/job:ps/cpu:0/gpu:0", "two kinds: cpu:0 and gpu:0"),
        ("/job:", "the job's name ''"),
        ("/job:1a", "the job's name '1a'"),
        ("/job:ps/replica:2", "another replica"),
        ("/job:a:b", "not understood"),
        ("/job:ps//cpu:0", "not understood"),
        ("/device::0", "not well formed"),
        ("/cpu:0:1", "not well formed"),
        ("/task:1234567890", "where a number"),
        ("/task:٣", "where a number"),
    ],
)
def test_what_is_no_device(text: str, message: str) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=message):
        DeviceSpec.parse(text)


def test_parts_that_no_device_has() -> None:
    for bad in ({"task": -1}, {"task": True}, {"index": 1.0}, {"job": "a/b"}, {"kind": "c:u"}):
        with pytest.raises(wf.errors.InvalidArgumentError, match="part of a device's name"):
            DeviceSpec(**bad)
    with pytest.raises(wf.errors.InvalidArgumentError, match="a device is a string"):
        DeviceSpec.parse(3)  # type: ignore[arg-type]


@given(SPECS)
def test_text_and_spec_are_inverse(spec: DeviceSpec) -> None:
    assert DeviceSpec.parse(str(spec)) == spec
    assert canonical_device(str(spec)) == str(spec)


@given(SPECS, SPECS, SPECS)
def test_merging(a: DeviceSpec, b: DeviceSpec, c: DeviceSpec) -> None:
    both = a.merged(b)
    for part in ("job", "task", "kind", "index"):
        inner = getattr(b, part)
        assert getattr(both, part) == (getattr(a, part) if inner is None else inner)
    assert a.merged(DeviceSpec()) == a == DeviceSpec().merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert b.matches(both)
    assert both.is_full == (None not in (both.job, both.task, both.kind, both.index))


def test_merging_is_tensorflows() -> None:
    """As `tf.device` nested in TensorFlow 2.21's compat.v1."""
    for outer, inner, both in [
        ("/gpu:1", "/device:CPU:*", "/cpu:1"),
        ("/job:ps/task:1", "/job:worker", "/job:worker/task:1"),
        ("/job:ps", "", "/job:ps"),
        ("/job:ps/task:1", "/cpu:0", "/job:ps/task:1/cpu:0"),
    ]:
        merged = DeviceSpec.parse(outer).merged(DeviceSpec.parse(inner))
        assert str(merged) == both


def test_matching_and_tasks() -> None:
    full = DeviceSpec.parse("/job:ps/task:1/gpu:0")
    assert full.is_full
    assert full.task_name == "/job:ps/task:1"
    for text in ("", "/job:ps", "/gpu:*", "/task:1/gpu:0", "/job:ps/task:1/gpu:0"):
        assert DeviceSpec.parse(text).matches(full)
    for text in ("/job:worker", "/cpu:*", "/task:0", "/job:ps/task:1/gpu:1"):
        assert not DeviceSpec.parse(text).matches(full)
    assert DeviceSpec.parse(LOCAL_TASK).task_name == LOCAL_TASK
    with pytest.raises(wf.errors.InvalidArgumentError, match=re.escape("'/job:ps' names no task")):
        _ = DeviceSpec.parse("/job:ps").task_name


# ------------------------------------------------------------------------------ in graphs


def _graph(devices: list[str], groups: list[str]) -> Graph:
    """A loop nest of ops of these devices and groups: in regions and around them."""
    scalar = TensorType(float32, ())
    inner = Builder([scalar])
    value = inner.args[0]
    for device, group in zip(devices[1:], groups[1:], strict=True):
        (value,) = inner.emit("exp", (value,), device=device, group=group)
    outer = Builder([scalar])
    (out,) = outer.emit(
        "scan", (outer.args[0],),
        {"carries": 1, "sequences": 0, "length": 3, "reverse": False},
        regions=(inner.block([value]),), device=devices[0], group=groups[0],
    )  # fmt: skip
    (ordered,) = outer.emit("group", control=[out], device=devices[0])
    (same,) = outer.emit("identity", [out], control=[ordered], group=groups[0])
    return outer.graph("g", ["x"], [same])


@given(st.lists(SPECS, min_size=1, max_size=4), st.data())
def test_text_round_trip(specs: list[DeviceSpec], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.text(max_size=6), min_size=len(specs), max_size=len(specs)))
    graph = _graph([str(s) for s in specs], groups)
    for locations in (True, False):
        text = print_graph(graph, locations)
        assert print_graph(parse_graph(text)) == text
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert canonical(again) == canonical(graph)
    assert [(op.device, op.group) for op in again.walk()] == [
        (op.device, op.group) for op in graph.walk()
    ]


def test_devices_and_groups_tell_graphs_apart() -> None:
    plain, same = _graph(["", ""], ["", ""]), _graph(["", ""], ["", ""])
    others = [
        _graph(["/cpu:0", ""], ["", ""]),
        _graph(["", "/cpu:0"], ["", ""]),
        _graph(["", ""], ["g", ""]),
        _graph(["", ""], ["", "g"]),
    ]
    for graph in (plain, same, *others):
        for op in graph.walk():
            op.locations = ()
    graphs = [plain, *others]
    assert plain == same
    for i, a in enumerate(graphs):
        for j, b in enumerate(graphs):
            assert (a == b) == (i == j)
            assert (canonical(a) == canonical(b)) == (i == j)
            assert (digest_graph(a)[0] == digest_graph(b)[0]) == (i == j)


def test_text() -> None:
    op = Operation("f", (), {}, (), device="/cpu:0", group='a "b"')
    assert (op.device, op.group) == ("/cpu:0", 'a "b"')
    text = print_graph(_graph(["/job:ps", "/gpu:*"], ['a "b"', "c"]), locations=False)
    assert ' : f32[] device("/job:ps") group("a \\"b\\"") {\n' in text
    assert '%0 = exp(%a0) : f32[] device("/gpu:*") group("c")\n' in text
    assert '%1 = group() after(%0) : token device("/job:ps")\n' in text
    long = text.replace("/gpu:*", "/device:GPU:*").replace("/job:ps", "job:ps/replica:0")
    assert print_graph(parse_graph(long), locations=False) == text


def test_faults_in_the_text_are_shown() -> None:
    text = print_graph(_graph(["/job:ps", "/gpu:*"], ["", ""]), locations=False)
    with pytest.raises(wf.errors.ParseError, match=r"'boat:1'") as caught:
        parse_graph(text.replace("/gpu:*", "/boat:1"))
    assert "<text>:4:" in str(caught.value)
    with pytest.raises(wf.errors.ParseError, match=r"at the end of device"):
        parse_graph(text.replace('"/gpu:*")', '"/gpu:*", 3)'))


def test_dot_says_where() -> None:
    text = dot(_graph(["/job:ps", "/gpu:*"], ["a", "c"]))
    assert "/job:ps" in text
    assert "group c" in text


def test_clone_keeps_devices() -> None:
    graph = _graph(["/job:ps", "/gpu:0"], ["a", "b"])
    for reinfer in (False, True):
        builder = Builder([TensorType(float32, ())])
        mapping = dict(zip(graph.args, builder.args, strict=True))
        for op in graph.ops:
            results = builder.clone(op, mapping, reinfer=reinfer)
            mapping.update(zip(op.results, results, strict=True))
        made = builder.graph("g", ["x"], [mapping[v] for v in graph.results])
        assert made == graph
