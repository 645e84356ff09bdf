"""Ops of the host and of state in regions: types, what an op acts on, the interpreter's host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.analysis.effects import HOST, effect_keys, host_keys
from weft.ir.analysis.verify import find_faults, verify
from weft.ir.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    OutOfRangeError,
    ParseError,
    UnsupportedError,
)
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.autodiff.reverse_mode import without_effects
from weft.passes.control.dataflow_regions import plan_regions
from weft.passes.control.lower_control_flow import (
    lower_control_flow,
    lowering_reasons,
    scan_to_while,
)
from weft.passes.simplify.cse_dce import dce
from weft.runtime.dataflow.executor import executor_op
from weft.runtime.dataflow.host_dispatch import HostObjects

QUEUE = '%0 = queue() {name="q", kind="fifo", parts=["f32[]"]} : queue<f32[]>'


def text(body: str, args: str = "%p: bool[], %x: f32[]", results: str = "f32[]") -> Graph:
    return parse_graph(f"graph @g({args}) -> ({results}) stage=traced {{\n{body}\n}}\n")


def branch(inner: str = "%0 = enqueue(%a0, %a1) : token") -> Graph:
    return text(f"""
  {QUEUE}
  %1 = cond(%p, %0, %x) : f32[] {{
    ^(%a0: queue<f32[]>, %a1: f32[])
    {inner}
    yield %a1
  }} {{
    ^(%a0: queue<f32[]>, %a1: f32[])
    yield %a1
  }}
  return %1""")


def real_queue(*elements: float) -> Any:
    q = wf.FIFOQueue(10, wf.float32, [[]])
    for x in elements:
        q.enqueue(x)
    return q._queue


def test_regions_take_handles() -> None:
    graph = branch()
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    (cond,) = (op for op in graph.ops if op.name == "cond")
    assert host_keys(cond) == ["<queue> q"]
    assert dce(graph).ops[-1].name == "cond"
    assert executor_op(graph) is cond.regions[0].ops[0]
    assert [lowered for _, lowered, _ in lowering_reasons(graph)] == [True]


def test_what_ops_act_on() -> None:
    graph = text(f"""
  {QUEUE}
  %1 = variable() {{name="v", dtype=f32, shape=[]}} : ref<f32[]>
  %2 = cond(%p, %0, %1, %x) : f32[] {{
    ^(%a0: queue<f32[]>, %a1: ref<f32[]>, %a2: f32[])
    %0 = dequeue(%a0) : f32[]
    %1 = assign(%a1, %0) : token
    %2 = py_function(%a2) {{function="f", parts=["f32[]"]}} : f32[]
    yield %2
  }} {{
    ^(%a0: queue<f32[]>, %a1: ref<f32[]>, %a2: f32[])
    yield %a2
  }}
  return %2""")
    verify(graph)
    cond = graph.ops[-1]
    assert host_keys(cond) == ["<queue> q", HOST]
    assert effect_keys(cond) == ["v", "<queue> q", HOST]
    assert effect_keys(graph.ops[0]) == []


def test_captured_refs_are_ordered_like_others() -> None:
    """What a branch does to a ref that it takes conflicts with what is done to it outside."""
    source = """
  %0 = variable() {name="v", dtype=f32, shape=[]} : ref<f32[]>
  %1 = read(%0) : f32[]
  %2 = cond(%p, %0, %x) AFTER: f32[] {
    ^(%a0: ref<f32[]>, %a1: f32[])
    %0 = assign(%a0, %a1) : token
    yield %a1
  } {
    ^(%a0: ref<f32[]>, %a1: f32[])
    yield %a1
  }
  %3 = add(%1, %2) : f32[]
  return %3"""
    assert "unordered" in str(find_faults(text(source.replace("AFTER", "")))[0])
    graph = text(source.replace("AFTER", "after(%1) "))
    verify(graph)
    state = DictState({"v": np.float32(2)})
    x = np.float32(5)
    assert interpret(lower_control_flow(graph), [np.array(True), x], state, schedule=1) == [7]
    assert state.values["v"] == 5


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("cond(%p, %1)", "op 'cond' takes tensors, handles and refs"),
        ("while(%0) {carries=1}", "op 'while': carries are tensors, got"),
        ("while(%x) {carries=1, parallel_iterations=0}", "parallel_iterations=0, must be at"),
        ("scan(%0) {carries=1, sequences=0, length=2}", "op 'scan': carries are tensors, got"),
        ("scan(%0) {carries=0, sequences=1, length=2}", "op 'scan' takes tensors, got"),
    ],
)
def test_what_regions_do_not_take(op: str, why: str) -> None:
    count = 1 if op.startswith("scan") else 2
    kind = "token" if "%1" in op else "f32[]" if "%x" in op else "queue<f32[]>"
    regions = " ".join([f"{{\n ^(%a0: {kind})\n yield\n}}"] * count)
    with pytest.raises(ParseError, match=why):
        text(f"{QUEUE}\n%1 = enqueue(%0, %x) : token\n{op} {regions}\nreturn %x")


# ------------------------------------------------------------------------ the interpreter's host
def test_the_interpreter_uses_real_objects() -> None:
    graph, q = branch(), real_queue()
    for p in (True, False, True):
        interpret(graph, [np.array(p), np.float32(3)], host=HostObjects({"q": q}))
    assert q.size() == 2


def test_the_interpreter_needs_a_host() -> None:
    inputs = [np.array(True), np.float32(3)]
    with pytest.raises(UnsupportedError, match="nothing that carries out ops of the host"):
        interpret(branch(), inputs)
    with pytest.raises(FailedPreconditionError, match="there is no 'q'"):
        interpret(branch(), inputs, host=HostObjects({}))


def test_what_waits_and_what_fails_in_the_interpreter() -> None:
    graph, q = branch("%0 = dequeue(%a0) : f32[]"), real_queue()
    inputs = [np.array(True), np.float32(3)]
    with pytest.raises(DeadlineExceededError, match=r"op 'dequeue' on .*only other threads"):
        interpret(graph, inputs, host=HostObjects({"q": q}, timeout=0.02))
    q.close(False)
    with pytest.raises(OutOfRangeError, match="op 'dequeue'"):
        interpret(graph, inputs, host=HostObjects({"q": q}))


# ------------------------------------------------------------------------------------------ pieces
def test_a_scan_as_a_while() -> None:
    graph = text(
        """
  %0, %1 = scan(%c, %xs) {carries=1, sequences=1, length=3, reverse=true} : f32[], f32[3] {
    ^(%a0: f32[], %a1: f32[])
    %0 = add(%a0, %a1) : f32[]
    yield %0, %a0
  }
  return %0, %1""",
        "%c: f32[], %xs: f32[3]",
        "f32[], f32[3]",
    )
    block = scan_to_while(graph.ops[0])
    assert [op.name for op in block.ops][-1] == "while"
    again = Graph("again", block, graph.arg_names)
    verify(again)
    inputs = [np.float32(1), np.array([1, 2, 4], np.float32)]
    for a, b in zip(interpret(graph, inputs), interpret(again, inputs), strict=True):
        assert a.tobytes() == b.tobytes()
    assert interpret(again, inputs)[1].tolist() == [7, 5, 1]


def test_a_body_without_its_effects() -> None:
    cond = branch().ops[-1]
    pure = without_effects(cond).op
    assert not pure.regions[0].ops
    assert without_effects(pure).op is pure


def test_regions_of_loops_have_their_constants_and_reads() -> None:
    """What an iteration computes behind a dequeue is one region, with constants and reads in it."""
    graph = text(
        f"""
  {QUEUE}
  %1 = variable() {{name="v", dtype=f32, shape=[]}} : ref<f32[]>
  %2 = while(%n, %0, %1) {{carries=1}} : i64[] {{
    ^(%a0: i64[], %a1: queue<f32[]>, %a2: ref<f32[]>)
    %0 = constant() {{value=i64[] 3}} : i64[]
    %1 = less(%a0, %0) : bool[]
    yield %1
  }} {{
    ^(%a0: i64[], %a1: queue<f32[]>, %a2: ref<f32[]>)
    %0 = read(%a2) : f32[]
    %1 = constant() {{value=f32[] 2.0}} : f32[]
    %2 = multiply(%0, %1) : f32[]
    %3 = dequeue(%a1) : f32[]
    %4 = add(%2, %3) : f32[]
    %5 = assign(%a2, %4) after(%0) : token
    %6 = constant() {{value=i64[] 1}} : i64[]
    %7 = add(%a0, %6) : i64[]
    yield %7
  }}
  return %2""",
        "%n: i64[]",
        "i64[]",
    )
    lowered = lower_control_flow(graph, mode="auto")
    verify(lowered)
    regions = [r for r in plan_regions(lowered).regions if r.frames]
    given = {v.op.name for r in regions for v in r.inputs if v.op is not None}
    assert given == {"merge", "switch", "dequeue"}  # no enter of a constant
    (behind,) = (r for r in regions if any(op.name == "assign" for op in r.ops))
    assert [op.name for op in behind.ops] == ["read", "multiply", "add", "assign"]
    assert len(behind.constants) == 1
    made = behind.graph("region")
    verify(made)
    assert made.ops[0].name == "constant"
    state = DictState({"v": np.float32(1)})
    q = real_queue(1, 2, 3)
    interpret(lowered, [np.array(0)], state, host=HostObjects({"q": q}))
    assert state.values["v"] == ((1 * 2 + 1) * 2 + 2) * 2 + 3


def test_constants_that_may_be_dead_stay_outside() -> None:
    graph = parse_graph("""graph @g(%p: bool[], %n: i64[]) -> () stage=dataflow {
  %0, %1 = switch(%n, %p) : i64[], i64[]
  %2 = constant() after(%1) {value=i64[] 3} : i64[]
  %3 = enter(%2) {frame="f", constant=true} : i64[]
  %4 = enter(%n) {frame="f"} : i64[]
  %5, %6 = merge(%4) {loop=true} : i64[], i32[]
  %7 = add(%5, %3) : i64[]
  %8 = constant() {value=i64[] 5} : i64[]
  %9 = enter(%8) {frame="f", constant=true} : i64[]
  %10 = less(%5, %9) : bool[]
  %11 = loop_cond(%10) : bool[]
  %12, %13 = switch(%5, %11) : i64[], i64[]
  %14 = add(%13, %9) : i64[]
  %15 = next_iteration(%14, %5) : token
  return
}
""")
    verify(graph)
    planned = plan_regions(graph)
    held = {op.name: r.constants for r in planned.regions for op in r.ops if r.frames}
    assert not any(v.op is not None and v.op.operands[0].op is graph.ops[1] for v in held["add"])
