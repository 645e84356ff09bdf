"""What partitioning gives besides parts, what it refuses, and how parts that do not fit fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from part_waits import cycle_of
from tasks_here import run_steps

from weft.ir.analysis.verify import verify
from weft.ir.errors import InternalError, InvalidArgumentError, VerifyError
from weft.ir.graph import Block, Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType
from weft.passes.partition.partition import Part, partition
from weft.runtime.dataflow.executor import dataflow_step

PS, WORKER = "/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"

TWO = """graph @g(%x: f32[3]) -> (f32[3]) stage=traced {
  %0 = exp(%x) : f32[3] device("/job:ps/task:0/cpu:0") loc("model.py":7:3)
  %1 = sin(%0) : f32[3] device("/job:worker/task:0/cpu:0") loc("model.py":8:3)
  return %1
}
"""

BRANCH = """graph @g(%p: bool[], %x: f32[2]) -> (f32[2]) stage=traced {
  %0 = exp(%x) : f32[2] device("/job:worker/task:0/cpu:0")
  %1 = cond(%p, %0) : f32[2] device("/job:worker/task:0/cpu:0") {
    ^(%a0: f32[2])
    %0 = sin(%a0) : f32[2] device("/job:ps/task:0/cpu:0")
    yield %0
  } {
    ^(%a0: f32[2])
    %0 = cos(%a0) : f32[2] device("/job:worker/task:0/cpu:0")
    yield %0
  }
  return %1
}
"""

NESTED = """graph @g(%n: i64[], %m: i64[]) -> (i64[], i64[]) stage=traced {
  %0 = constant() {value=i64[] 0} : i64[]
  %1, %2 = while(%0, %0, %n, %m) {carries=2, limit=-1} : i64[], i64[] {
    ^(%a0: i64[], %a1: i64[], %a2: i64[], %a3: i64[])
    %0 = less(%a0, %a2) : bool[] device("/job:worker/task:0/cpu:0")
    yield %0
  } {
    ^(%a0: i64[], %a1: i64[], %a2: i64[], %a3: i64[])
    %0 = constant() {value=i64[] 1} : i64[]
    %1 = add(%a0, %0) : i64[] device("/job:worker/task:0/cpu:0")
    %2 = constant() {value=i64[] 0} : i64[]
    %3, %4 = while(%2, %a1, %a3) {carries=2, limit=-1} : i64[], i64[] {
      ^(%a0: i64[], %a1: i64[], %a2: i64[])
      %0 = less(%a0, %a2) : bool[] device("/job:ps/task:0/cpu:0")
      yield %0
    } {
      ^(%a0: i64[], %a1: i64[], %a2: i64[])
      %0 = constant() {value=i64[] 1} : i64[]
      %1 = add(%a0, %0) : i64[] device("/job:ps/task:0/cpu:0")
      %2 = add(%a1, %1) : i64[] device("/job:worker/task:0/cpu:0")
      yield %1, %2
    }
    yield %1, %4
  }
  return %1, %2
}
"""


def executed(graph: Graph, inputs: list[Any]) -> tuple[list[Any], Any]:
    made = partition(graph)
    steps = [dataflow_step(part.graph, {}, {}, "auto") for part in made.parts]
    return run_steps(made.parts, steps, inputs, 20.0)


def test_edges_say_what_goes_where() -> None:
    made = partition(parse_graph(TWO))
    (edge,) = made.edges
    assert (edge.key, edge.tensor, edge.src, edge.dst) == (0, "exp_0", PS, WORKER)
    assert edge.nbytes == 12
    assert isinstance(edge.type, TensorType)
    assert str(edge.locations[0]) == "model.py:7:3"
    assert [part.device for part in made.parts] == [PS, WORKER]
    assert [(part.feeds, part.fetches) for part in made.parts] == [((0,), ()), ((), (0,))]


@pytest.mark.parametrize("p", [False, True])
def test_a_branch_on_the_executor(p: bool) -> None:
    graph, x = parse_graph(BRANCH), np.array([0.5, 2.0], np.float32)
    found, exchange = executed(graph, [np.array(p), x])
    np.testing.assert_allclose(found[0], interpret(graph, [np.array(p), x])[0], rtol=1e-6)
    assert (exchange.sent, exchange.dead) == (2, 0 if p else 2)
    assert not exchange.left()


@pytest.mark.parametrize(("n", "m"), [(0, 5), (3, 0), (4, 7), (200, 3)])
def test_loops_on_the_executor(n: int, m: int) -> None:
    """Both devices go round in both loops; each learns by itself when they are over."""
    graph, inputs = parse_graph(NESTED), [np.array(n), np.array(m)]
    wanted = interpret(graph, inputs)
    found, exchange = executed(graph, inputs)
    assert [int(v) for v in found] == [int(v) for v in wanted]
    assert not exchange.left()


ACTS = """graph @g(%n: i64[]) -> (i64[]) stage=traced {
  %0 = constant() {value=i64[] 0} : i64[]
  %1 = while(%0, %n) {carries=1, limit=-1} : i64[] {
    ^(%a0: i64[], %a1: i64[])
    %0 = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]> device("/job:ps/task:0/cpu:0")
    %1 = assign(%0, %a1) : token device("/job:ps/task:0/cpu:0")
    %2 = less(%a0, %a1) : bool[] device("/job:worker/task:0/cpu:0")
    yield %2
  } {
    ^(%a0: i64[], %a1: i64[])
    %0 = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]> device("/job:ps/task:0/cpu:0")
    %1 = read(%0) : i64[] device("/job:ps/task:0/cpu:0")
    %2 = constant() {value=i64[] 1} : i64[]
    %3 = add(%1, %2) : i64[] device("/job:ps/task:0/cpu:0")
    %4 = assign(%0, %3) after(%1) : token device("/job:ps/task:0/cpu:0")
    %5 = add(%a0, %2) : i64[] device("/job:ps/task:0/cpu:0")
    yield %5
  }
  return %1
}
"""


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_test_that_assigns_what_the_loop_was_given(n: int) -> None:
    """It does so in its turn, though nothing of its turn is needed for it."""
    graph, inputs = parse_graph(ACTS), [np.array(n)]
    whole = DictState({"v": np.array(-1)})
    wanted = interpret(graph, inputs, whole)
    assert whole.values["v"] == n
    parts = partition(graph).parts
    for schedule in (None, *range(20)):
        state = DictState({"v": np.array(-1)})
        assert interpret_parts(parts, inputs, state, schedule=schedule) == wanted
        assert state.values["v"] == n


def without(part: Part, name: str) -> Part:
    """A part without its ops of that name."""
    block = part.graph.block
    kept = tuple(op for op in block.ops if op.name != name)
    cut = replace(part.graph, block=Block(block.args, kept, block.results))
    return replace(part, graph=cut)


def test_who_waits_for_whom() -> None:
    ps, worker = partition(parse_graph(TWO)).parts
    with pytest.raises(InternalError) as caught:
        interpret_parts([without(ps, "send"), worker], [np.ones(3, np.float32)])
    text = str(caught.value)
    assert f"{WORKER} waits for key 0: 'exp_0' from {PS}, which has no send of it" in text
    assert "model.py:7:3" in text


def test_a_message_that_nobody_receives() -> None:
    ps, _ = partition(parse_graph(TWO)).parts
    with pytest.raises(InternalError, match="was sent, and nobody received it"):
        interpret_parts([ps], [np.ones(3, np.float32)])


def test_parts_in_any_order() -> None:
    parts = partition(parse_graph(TWO)).parts
    x = np.arange(3, dtype=np.float32)
    (found,) = interpret_parts(parts[::-1], [x])
    np.testing.assert_array_equal(found, np.sin(np.exp(x)))


def test_a_send_with_control_operands_is_refused() -> None:
    text = """graph @g(%x: f32[]) -> () stage=partitioned {
  %0 = exp(%x) : f32[]
  %1 = send(%x) after(%0) {key=0, tensor="x", src="/cpu:0", dst="/cpu:1"} : token
  return
}
"""
    with pytest.raises(VerifyError, match="has control operands"):
        verify(parse_graph(text))


@pytest.mark.parametrize(
    ("op", "what"),
    [
        ('send(%x, %x) {key=0, src="a", dst="b"} : token', "iteration number 0 must be an i64"),
        ('send(%x) {key=-1, src="a", dst="b"} : token', "key=-1, must be at least 0"),
        ('send(%x) {key=0, src="", dst="b"} : token', "src must name a device"),
        ('send() {key=0, src="a", dst="b"} : token', "sends a tensor, got nothing"),
        ('recv() {key=0, src="a", dst="b", dtype=f32, shape=[], live=-1} : f32[]', "live=-1"),
        ('recv() {key=0, src="a", dst="b", dtype=f32, shape=[], depth=0} : f32[]', "depth=0"),
    ],
)
def test_type_rules(op: str, what: str) -> None:
    text = f"graph @g(%x: f32[]) -> () stage=partitioned {{\n  %0 = {op}\n  return\n}}\n"
    with pytest.raises(Exception, match=what):
        verify(parse_graph(text))


def test_state_on_two_devices_names_the_line() -> None:
    text = """graph @g() -> (f32[2]) stage=traced {
  %0 = variable() {name="v", dtype=f32, shape=[2]} : ref<f32[2]> device("/job:ps/task:0/cpu:0")
  %1 = read(%0) : f32[2] device("/job:ps/task:1/cpu:0") loc("m.py":2:1)
  return %1
}
"""
    with pytest.raises(InvalidArgumentError, match="'v', which is on /job:ps/task:0") as caught:
        partition(parse_graph(text))
    assert "m.py:2:1" in str(caught.value)


def test_a_graph_that_is_not_placed_is_refused() -> None:
    text = TWO.replace("/job:ps/task:0/cpu:0", "/job:ps")
    with pytest.raises(InvalidArgumentError, match="op 'exp' is on /job:ps, which does not name"):
        partition(parse_graph(text))


def test_what_nobody_needs_is_not_sent() -> None:
    text = """graph @g(%x: f32[2]) -> (f32[2]) stage=traced {
  %0 = exp(%x) : f32[2] device("/job:ps/task:0/cpu:0")
  %1 = sin(%0) : f32[2] device("/job:worker/task:0/cpu:0")
  return %0
}
"""
    made = partition(parse_graph(text))
    assert [part.device for part in made.parts] == [PS]
    assert not made.edges
    assert made.parts[0].graph.stage == "traced"


SIZES = """graph @g(%x: f32[4]) -> (f32[n], i64[]) stage=traced {
  %0 = constant() {value=f32[] 0.5} : f32[]
  %1 = broadcast_to(%0) {shape=[4]} : f32[4] device("/job:ps/task:0/cpu:0")
  %2 = greater(%x, %1) : bool[4] device("/job:ps/task:0/cpu:0")
  %3 = nonzero(%2) {sizes=["n"]} : i64[n,1] device("/job:ps/task:0/cpu:0")
  %4 = gather_nd(%x, %3) : f32[n] device("/job:worker/task:0/cpu:0")
  %5 = constant() {value=i64[] 2} : i64[]
  %6 = broadcast_to(%5) after(%3) {shape=[n]} : i64[n] device("/job:worker/task:1/cpu:0")
  %7 = sum(%6) {axes=[0], keepdims=false} : i64[] device("/job:worker/task:1/cpu:0")
  return %4, %7
}
"""


@pytest.mark.parametrize("values", [[1, 0, 2, 0], [0, 0, 0, 0], [3, 4, 5, 6]])
def test_sizes_that_values_decide(values: list[int]) -> None:
    """A size that only an op on another device knows comes with a value that has it."""
    graph, x = parse_graph(SIZES), np.array(values, np.float32)
    wanted = interpret(graph, [x])
    for found in (interpret_parts(partition(graph).parts, [x]), executed(graph, [x])[0]):
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)


STRINGS = """graph @g(%s: string[2]) -> (i32[2]) stage=traced {
  %0 = string_join(%s, %s) {separator="-"} : string[2] device("/job:ps/task:0/cpu:0")
  %1 = string_length(%0) : i32[2] device("/job:worker/task:0/cpu:0")
  return %1
}
"""


def test_strings_are_sent() -> None:
    graph, given = parse_graph(STRINGS), np.array([b"a", b"bcd"], object)
    assert interpret_parts(partition(graph).parts, [given])[0].tolist() == [3, 7]
    assert executed(graph, [given])[0][0].tolist() == [3, 7]


LATE = """graph @g(%x: f32[2048,2048], %y: f32[2048,2048]) -> (f32[2048,2048]) stage=traced {
  %0 = exp(%x) : f32[2048,2048] device("/job:ps/task:0/cpu:0")
  %1 = sin(%y) : f32[2048,2048] device("/job:worker/task:0/cpu:0")
  %2 = cos(%1) : f32[2048,2048] device("/job:worker/task:0/cpu:0")
  %3 = tanh(%2) : f32[2048,2048] device("/job:worker/task:0/cpu:0")
  %4 = add(%0, %3) : f32[2048,2048] device("/job:worker/task:0/cpu:0")
  return %4
}
"""


@pytest.mark.parametrize("rows", [2048, 2047])
def test_a_large_tensor_is_asked_for_late(rows: int) -> None:
    """When the last of what its first reader needs besides begins to be computed; smaller ones at
    once."""
    graph = parse_graph(LATE.replace("[2048,", f"[{rows},"))
    made = partition(graph)
    assert made.edges[0].nbytes == 4 * 2048 * rows
    part = next(p for p in made.parts if p.device == WORKER)
    (recv,) = [op for op in part.graph.ops if op.name == "recv"]
    assert [v.op.name for v in recv.control if v.op] == (["cos"] if rows == 2048 else [])
    assert cycle_of(made) == []
    inputs = [np.full((rows, 2048), value, np.float32) for value in (0.25, 0.5)]
    found, exchange = executed(graph, inputs)
    np.testing.assert_allclose(found[0], interpret(graph, inputs)[0], rtol=1e-6)
    assert not exchange.left()


def test_a_small_constant_repeated_is_made_where_it_is_needed() -> None:
    graph = parse_graph("""graph @g(%x: f32[3000]) -> (f32[3000], f32[3000]) stage=traced {
  %0 = constant() {value=f32[] 2.0} : f32[]
  %1 = broadcast_to(%0) {shape=[3000]} : f32[3000] device("/job:ps/task:0/cpu:0")
  %2 = multiply(%x, %1) : f32[3000] device("/job:ps/task:0/cpu:0")
  %3 = add(%x, %1) : f32[3000] device("/job:worker/task:0/cpu:0")
  return %2, %3
}
""")
    made = partition(graph)
    assert not made.edges
    assert [sum(op.name == "broadcast_to" for op in p.graph.ops) for p in made.parts] == [1, 1]
    x = np.arange(3000, dtype=np.float32)
    assert [r.tobytes() for r in interpret_parts(made.parts, [x])] == [
        r.tobytes() for r in interpret(graph, [x])
    ]
