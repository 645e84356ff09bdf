"""What placement is told by costs, files and rules, and what it tells: traces, JSON, reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.frontend.tools.main import main
from weft.ir.cost.rates import PLAIN, START_NS
from weft.ir.cost.work import nanoseconds
from weft.ir.dtypes import float32
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import Location, Locations
from weft.ir.ops.builder import Builder
from weft.ir.spec import AttrValue
from weft.ir.text.parser import parse_graph
from weft.ir.types import tensor_type
from weft.passes.fusion.fuse import fuse
from weft.passes.placement import (
    CostModel,
    Device,
    Links,
    Measured,
    PlacementError,
    Rates,
    place,
    read_devices,
)
from weft.passes.placement.constraints import Rule, constrain
from weft.passes.placement.report import explain_placement
from weft.passes.placement.timeline import Network

HOME, OTHER = Device("/job:worker/task:0/cpu:0"), Device("/job:worker/task:1/cpu:0")
PS = Device("/job:ps/task:0/cpu:0")


@dataclass(frozen=True)
class Event:
    ops: tuple[str, ...]
    locations: Locations
    begin_ns: int
    end_ns: int
    step: int = 0
    thread: int = 0
    dead: bool = False
    waits: bool = False


def line(number: int) -> Locations:
    return (Location("m.py", number, 1),)


def two_products() -> tuple[Graph, Operation, Operation]:
    """x @ x @ x, each product on a line of its own."""
    builder = Builder([tensor_type(float32, 100, 100)])
    x = builder.args[0]
    first = builder.emit("matmul", [x, x], locations=line(1))[0]
    second = builder.emit("matmul", [first, x], locations=line(2))[0]
    assert first.op is not None
    assert second.op is not None
    return builder.graph("g", ["x"], [second]), first.op, second.op


# ------------------------------------------------------------------------------------------ network


def test_messages_take_turns() -> None:
    links = Links(latency_s=1.0, bytes_per_s=10.0, message_s=0.5, local_latency_s=0.1)
    net = Network(links)
    assert net.send("a", "b", 10, 0.0) == (0.0, 2.5)  # latency, handling and the bytes
    assert net.send("a", "c", 10, 0.0) == (1.5, 4.0)  # a was busy for 1.5 s
    assert net.send("d", "b", 10, 0.0) == (0.0, 4.0)  # b is busy until 2.5
    assert net.arrival("d", "e", 0, 10.0) == net.arrival("d", "e", 0, 10.0) == 11.5
    assert net.send("a", "a", 0, 3.0) == (3.0, 3.1)


# -------------------------------------------------------------------------------------------- costs


def test_measured_costs_are_those_of_the_trace() -> None:
    graph, first, second = two_products()
    events = [Event(("matmul",), line(1), 0, 5000), Event(("matmul",), line(2), 5000, 6000),
              Event(("matmul",), line(1), 9000, 16000, step=1),
              Event(("matmul",), line(2), 16000, 19000, step=1)]  # fmt: skip
    costs = CostModel.from_events(events).costs_of(graph)
    assert costs.nanoseconds(first) == 6000  # the median of two steps
    assert costs.nanoseconds(second) == 2000
    assert costs.measured == 2


def test_what_one_event_took_is_shared_out() -> None:
    graph, first, second = two_products()
    both = (*line(1), *line(2))
    costs = CostModel.from_events([Event(("matmul",), both, 0, 1000)]).costs_of(graph)
    assert costs.nanoseconds(first) == pytest.approx(500)
    assert costs.nanoseconds(second) == pytest.approx(500)


def test_events_that_say_nothing_are_left_out() -> None:
    graph, first, _ = two_products()
    static = CostModel().costs_of(graph).nanoseconds(first)
    ignored = [Event(("matmul",), line(1), 0, 10**9, dead=True),
               Event(("matmul",), line(1), 0, 10**9, waits=True),
               Event(("matmul",), line(1), 0, 10**9),  # around the next
               Event(("exp",), line(1), 5, 10)]  # fmt: skip
    assert CostModel.from_events(ignored).costs_of(graph).nanoseconds(first) == static
    alone = CostModel.from_events(ignored[2:3]).costs_of(graph)
    assert alone.nanoseconds(first) == 10**9


LOOP = """graph @g(%x: f32[2], %n: i64[], %k: i64[]) -> (f32[2]) stage=traced {
  %o = constant() {value=i64[] 1} : i64[] loc("m.py":1:1)
  %i, %y = while(%k, %x, %n, %o) {carries=2, limit=4} : i64[], f32[2] {
    ^(%i: i64[], %c: f32[2], %n: i64[], %o: i64[])
    %t = less(%i, %n) : bool[] loc("m.py":2:1)
    yield %t
  } {
    ^(%i: i64[], %c: f32[2], %n: i64[], %o: i64[])
    %j = add(%i, %o) : i64[] loc("m.py":3:1)
    %b = tanh(%c) : f32[2] loc("m.py":4:1)
    yield %j, %b
  } loc("m.py":5:1)
  return %y
}"""


def test_a_loop_costs_what_its_ops_took() -> None:
    graph = parse_graph(LOOP)
    (loop,) = (op for op in graph.ops if op.name == "while")
    static = CostModel().costs_of(graph)
    assert static.trips(loop) == 4
    events = [Event(("tanh",), line(4), 0, 40_000), Event(("add",), line(3), 40_000, 40_001)]
    costs = CostModel.from_events(events).costs_of(graph)
    tanh = next(op for op in graph.walk() if op.name == "tanh")
    assert costs.nanoseconds(tanh) == 10_000
    assert 40_000 < costs.nanoseconds(loop) < 41_000


def test_sizes_that_nobody_knows() -> None:
    text = """graph @g(%x: f32[n,8], %w: f32[8,?]) -> (f32[n,8]) stage=traced {
      %a = exp(%x) : f32[n,8]
      %u = tanh(%w) : f32[8,?]
      return %a }"""
    graph = parse_graph(text)
    small = CostModel(sizes={"n": 10}).costs_of(graph)
    large = CostModel(sizes={"n": 100_000}).costs_of(graph)
    exp, tanh = graph.ops
    assert small.nbytes(exp.result) == 10 * 8 * 4
    assert large.nbytes(exp.result) == 100_000 * 8 * 4
    assert large.nanoseconds(exp) > 1000 * small.nanoseconds(tanh) / 10
    assert small.nbytes(tanh.result) == 8 * 32 * 4


def test_a_trace_of_a_real_step_prices_its_ops(tmp_path: Path) -> None:
    with wf.Graph("model").as_default() as graph:
        x = wf.placeholder(wf.float32, [256, 256], name="x")
        w = wf.Variable(np.eye(256, dtype=np.float32), name="w")
        y = wf.sum(wf.tanh(x @ w))
        init = wf.global_variables_initializer()
    full = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    metadata = wf.RunMetadata()
    with wf.Session(graph=graph) as session:
        session.run(init)
        feeds = {x: np.ones((256, 256), np.float32)}
        session.run(y, feeds)
        session.run(y, feeds, full, metadata)
    path = str(tmp_path / "costs.json")
    CostModel.from_events(metadata.events).save(path)
    model = CostModel.load(path)
    ir = parse_graph(str(graph._trace.builder.graph("g", ["x"], [y._value])))
    placed = place(ir, [HOME], costs=model)
    assert placed.predict().measured >= 2
    busy = sum(e.end_ns - e.begin_ns for e in metadata.events if e.kind == "kernel")
    assert placed.predict().seconds == pytest.approx(busy * 1e-9, rel=0.2)


def test_the_costs_of_several_steps_are_their_median() -> None:
    """Each step that a session traces calls itself number 0."""
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [64, 64], name="x")
        y = wf.sum(wf.tanh(x @ x))
    full = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    steps = []
    with wf.Session(graph=graph) as session:
        for _ in range(6):
            metadata = wf.RunMetadata()
            session.run(y, {x: np.ones((64, 64), np.float32)}, full, metadata)
            steps.append(metadata.events)
    each = [sum(m.ns for m in CostModel.from_events(events).measured) for events in steps[1:]]
    found = sum(m.ns for m in CostModel.from_steps(steps[1:]).measured)
    assert min(each) <= found <= max(each)
    assert found < sum(each) / 2


_NEGATIVE = {"ops": [], "places": [], "ns": -1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1}',
        '{"version": 1, "links": {"speed": 1.0}, "sizes": {}, "measured": []}',
        json.dumps({"version": 1, "links": {}, "sizes": {}, "measured": [_NEGATIVE]}),
    ],
)
def test_files_that_are_no_cost_model(text: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"costs\.json"):
        CostModel.load(str(path))
    with pytest.raises(NotFoundError):
        CostModel.load(str(tmp_path / "none"))


def test_a_cost_model_survives_its_file(tmp_path: Path) -> None:
    model = CostModel(Links(latency_s=1e-3), (Measured(("a", "b"), ("m.py:1:1",), 3.5),), {"n": 4})
    model.save(str(tmp_path / "m.json"))
    assert CostModel.load(str(tmp_path / "m.json")) == model


# -------------------------------------------------------------------------------------------- state


def test_state_that_is_held_stays() -> None:
    text = """graph @g(%x: f32[2]) -> (f32[2]) stage=traced {
      %w = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]> DEVICE
      %a = read(%w) : f32[2]
      %y = add(%a, %x) : f32[2]
      return %y }"""
    free = parse_graph(text.replace("DEVICE", ""))
    assert place(free, [HOME, PS]).state == {"w": HOME.name}
    assert place(free, [HOME, PS], held={"w": PS.name, "v": HOME.name}).state == {"w": PS.name}
    fixed = parse_graph(text.replace("DEVICE", 'device("/job:worker")'))
    with pytest.raises(PlacementError, match="variable 'w' is on /job:ps/task:0/cpu:0 already"):
        place(fixed, [HOME, PS], held={"w": PS.name})
    with pytest.raises(PlacementError, match="already"):  # a task that is gone
        place(free, [HOME], held={"w": PS.name})


# ----------------------------------------------------------------------------------- rules, reports

STEP = """graph @step(%x: f32[2]) -> (f32[2]) stage=traced {
  %w = variable() {name="w/kernel", dtype=f32, shape=[2]} : ref<f32[2]> device("/job:worker/task:0") loc("m.py":1:1)
  %a = read(%w) : f32[2] loc("m.py":2:1)
  %y = add(%a, %x) : f32[2] device("/job:worker/task:0/cpu:0") loc("m.py":3:1)
  return %y
}
"""  # noqa: E501


def device_of(graph: Graph, name: str) -> str:
    return next(op.device for op in graph.walk() if op.name == name)


def test_rules_change_the_constraints_of_a_graph() -> None:
    graph = parse_graph(STEP)
    moved = constrain(graph, [Rule.parse("w/*=/job:ps"), Rule.parse("op:add=")])
    assert device_of(moved, "variable") == "/job:ps"
    assert device_of(moved, "add") == ""
    assert device_of(graph, "variable") == "/job:worker/task:0"
    placed = place(moved, [HOME, PS])
    assert (device_of(placed.graph, "read"), device_of(placed.graph, "add")) == (PS.name, HOME.name)
    at = constrain(graph, [Rule.parse("at:m.py:3:*=/device:GPU:1")], clear=True)
    assert [op.device for op in at.ops] == ["", "", "/gpu:1"]
    assert constrain(graph, []) == graph


@pytest.mark.parametrize("text", ["w", "=/job:ps", "op:=/job:ps", "w=/task:x"])
def test_rules_that_are_not_well_formed(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Rule.parse(text)


def test_a_rule_about_nothing() -> None:
    with pytest.raises(NotFoundError, match="nothing called 'v'"):
        constrain(parse_graph(STEP), [Rule.parse("v=/job:ps")])


def test_the_report_says_what_is_where_and_why() -> None:
    graph = constrain(parse_graph(STEP), [Rule.parse("w/kernel=/job:ps")])
    placed = place(graph, [HOME, PS])
    text = explain_placement(placed, measured_seconds=placed.predict().seconds * 2)
    for part in (
        "placement of 'step': 3 ops on 2 of 2 devices",
        "predicted was 0.50 of it",
        "/job:ps/task:0/cpu:0: 2 ops",
        "  add at m.py:3:1: asked for: /job:worker/task:0/cpu:0 at m.py:3:1",
        "  read at m.py:2:1: with variable 'w/kernel': op 'variable' is to run on /job:ps",
        "1 messages, 8 bytes",
        f"  f32[2]  {PS.name} -> {HOME.name}: 8 bytes",
    ):
        assert part in text, text
    assert "and 2 more" in explain_placement(place(graph, [HOME, PS]), limit=0)


# -------------------------------------------------------------------------------------------- files


def test_devices_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps({
        "devices": [HOME.name, {"name": "/job:ps/task:0/gpu:0", "scale": 0.5, "memory": 100,
                                "kernels": ["add"]}],
        "links": {"latency_s": 1, "bytes_per_s": 2e9},
    }))  # fmt: skip
    devices, links = read_devices(str(path))
    gpu = Device("/job:ps/task:0/gpu:0", 0.5, 100, frozenset({"add"}))
    assert (devices, links) == ([HOME, gpu], Links(1, 2e9))
    path.write_text(json.dumps([HOME.name]))
    assert read_devices(str(path)) == ([HOME], None)


@pytest.mark.parametrize(
    "data", [{}, [], [3], [{"scale": 2.0}], ["/job:ps"], [{"name": PS.name, "speed": 1}],
             [PS.name, PS.name], {"devices": [PS.name], "links": []},
             {"devices": [PS.name], "links": {"latency_s": "fast"}},
             {"devices": [PS.name], "links": {"latency_s": -1.0}}],
)  # fmt: skip
def test_files_that_hold_no_devices(data: object, tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidArgumentError, match=r"devices\.json"):
        read_devices(str(path))


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    """The command line `weft place` on STEP and two devices, with more arguments."""
    graph, devices = tmp_path / "g.weft", tmp_path / "d.json"
    graph.write_text(STEP)
    devices.write_text(json.dumps([HOME.name, PS.name]))
    return lambda *more: ["place", str(graph), "--devices", str(devices), *more]


def test_the_command_prints_the_placed_graph(
    files: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(files("--set", "w*=/job:ps", "--set", "op:add=")) == 0
    placed = parse_graph(capsys.readouterr().out)
    assert [op.device for op in placed.ops] == [PS.name, PS.name, HOME.name]
    out = tmp_path / "out.weft"
    assert main(files("-o", str(out), "--explain", "--clear", "--stay")) == 0
    assert "placement of 'step'" in capsys.readouterr().out
    assert {op.device for op in parse_graph(out.read_text()).ops} == {HOME.name}


def test_the_command_explains_a_conflict(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(files("--set", "op:add=/job:ps/task:3")) == 2
    assert "op 'add' is to run on /job:ps/task:3 at m.py:3:1" in capsys.readouterr().err
    assert main(files("--set", "op:add=/job:ps/task:3", "--soft", "--explain")) == 0
    assert "not held (soft placement)" in capsys.readouterr().out


def test_the_command_takes_costs(
    files: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "costs.json"
    CostModel(measured=(Measured(("add",), ("m.py:3:1",), 2e9),)).save(str(costs))
    assert main(files("--costs", str(costs), "--explain")) == 0
    assert "predicted to take 2 s (costs: 1 of 3 ops measured)" in capsys.readouterr().out


# -------------------------------------------------------------------------------------------- nests


def chain(name: str, count: int, devices: Sequence[str] = ("",), **attrs: AttrValue) -> Graph:
    """So many ops of a million elements one after the other, on these devices in turn."""
    builder = Builder([tensor_type(float32, 1_000_000)])
    value = builder.args[0]
    for k in range(count):
        where = devices[k % len(devices)]
        (value,) = builder.emit(name, [value], attrs, locations=line(k + 1), device=where)
    return builder.graph("g", ["x"], [value])


def total(graph: Graph) -> float:
    costs = CostModel().costs_of(graph)
    return sum(map(costs.nanoseconds, graph.ops))


def test_a_chain_that_will_be_one_kernel_reads_and_writes_memory_once() -> None:
    one, ten = total(chain("negative", 1)), total(chain("negative", 10))
    assert ten == pytest.approx(one + 9 * 1e6 * PLAIN.ns)
    fused = fuse(chain("negative", 10).at_stage("optimized"))
    assert len(fused.ops) == 1
    moved = nanoseconds(fused.ops)  # of one nest, as it is priced when it is one
    assert ten == pytest.approx(moved + START_NS)
    along = [total(chain("cumulative_sum", k, axis=0, reverse=False)) for k in (1, 10)]
    assert along[1] == pytest.approx(10 * along[0])  # never one kernel


def test_what_the_user_puts_on_different_devices_is_no_nest() -> None:
    apart = total(chain("negative", 10, [HOME.name] * 5 + [OTHER.name] * 5))
    assert apart == pytest.approx(2 * total(chain("negative", 5)))


def test_what_nests_read_through_costs_nothing_of_its_own() -> None:
    builder = Builder([tensor_type(float32, 1000, 1000), tensor_type(float32, 1000)])
    x, b = builder.args
    wide = builder.emit1("broadcast_to", b, shape=(1000, 1000))
    y = builder.emit1("add", x, wide)
    z = builder.emit1("exp", y)
    graph = builder.graph("g", ["x", "b"], [z, builder.emit1("sum", z, axes=(1,), keepdims=False)])
    costs = CostModel().costs_of(graph)
    assert costs.nanoseconds(graph.ops[0]) == 0.0
    (fused,) = fuse(graph.at_stage("optimized")).ops
    assert sum(map(costs.nanoseconds, graph.ops)) == pytest.approx(nanoseconds([fused]) + START_NS)
    rates = Rates(flops=1e12, bytes_per_s=1e12, used=1.0, launch_s=1e-6)
    launched = sum(costs.nanoseconds(op, rates) for op in graph.ops)
    assert launched == pytest.approx(rates.nanoseconds(fused, 0.0))


def test_a_chain_stays_where_ops_that_are_kernels_each_would_leave() -> None:
    fast = Device(OTHER.name, scale=0.1)
    model = CostModel(Links(latency_s=1e-6, message_s=1e-6, bytes_per_s=8e6 / 600e-6))

    def where(graph: Graph) -> set[str]:
        return {op.device for op in place(graph, [HOME, fast], costs=model).graph.ops}

    assert where(chain("negative", 10)) == {HOME.name}
    assert where(chain("cumulative_sum", 10, axis=0, reverse=False)) == {OTHER.name}
