"""The dataflow executor on graphs written as text: dead values, frames, iterations, host nodes."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
from dataflow_texts import COUNT, NESTED, SELECT

import weft as wf
from weft.ir.dtypes import float32, int64
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.nodes import Frame, Node, Tables
from weft.runtime.dataflow.state import State
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext


def run(text: str, *inputs: Any, variables: dict[str, VariableState] | None = None) -> list[Any]:
    return call(DataflowStep(parse_graph(text), variables), *inputs)


def call(step: DataflowStep, *inputs: Any) -> list[Any]:
    return step.run([np.asarray(x) for x in inputs])


@pytest.mark.parametrize("parallel", [1, 2, 10])
@pytest.mark.parametrize(("n", "x", "wanted"), [(10, 0, 10), (0, 3, 3), (1000, -5, 1000)])
def test_loop(parallel: int, n: int, x: int, wanted: int) -> None:
    text = COUNT.replace("PARALLEL", str(parallel))
    assert run(text, np.int64(n), np.int64(x)) == [wanted]


def test_one_step_again_and_again_gives_the_same_and_takes_no_more_memory() -> None:
    step = DataflowStep(parse_graph(COUNT.replace("PARALLEL", "3")))

    def blocks() -> int:
        (running,) = step._idle
        found, raw = 0, running.state.word(at.S_ALL_BLOCKS)
        while raw:
            found, raw = found + 1, np.ctypeslib.as_array(_words(raw))[1]
        return found

    assert call(step, np.int64(50), np.int64(0)) == [50]
    first = blocks()
    for _ in range(20):
        assert call(step, np.int64(50), np.int64(0)) == [50]
    assert blocks() == first <= 16


def _words(address: int) -> Any:
    import ctypes

    return (ctypes.c_int64 * 2).from_address(int(address))


@pytest.mark.parametrize("side", [False, True])
def test_only_the_branch_taken_is_alive(side: bool) -> None:
    x = np.arange(3, dtype=np.float32)
    value, number = run(SELECT, np.bool_(side), x)
    np.testing.assert_allclose(value, np.exp(x) if side else -x, rtol=1e-6)
    assert number == int(side)


def test_a_merge_is_dead_only_if_all_its_inputs_are() -> None:
    text = """
graph @dead(%p: bool[], %q: bool[], %x: f32[]) -> (f32[]) stage=dataflow {
  %f, %t = switch(%x, %p) : f32[], f32[]
  %ff, %ft = switch(%f, %q) : f32[], f32[]
  %m, %i = merge(%ff, %ft) : f32[], i32[]
  %y = negative(%m) : f32[]
  %r, %j = merge(%t, %y) : f32[], i32[]
  return %r
}
"""
    x = np.float32(2)
    for p, q, wanted in [(True, True, 2), (True, False, 2), (False, True, -2), (False, False, -2)]:
        assert run(text, np.bool_(p), np.bool_(q), x) == [wanted]


def test_fetching_a_dead_value_is_an_error() -> None:
    text = """
graph @dead(%p: bool[], %x: f32[]) -> (f32[]) stage=dataflow {
  %f, %t = switch(%x, %p) : f32[], f32[]
  return %t
}
"""
    assert run(text, np.bool_(True), np.float32(1)) == [1]
    with pytest.raises(wf.errors.InvalidArgumentError, match="dead"):
        run(text, np.bool_(False), np.float32(1))


def test_a_dead_control_operand_kills() -> None:
    text = """
graph @control(%p: bool[], %x: f32[]) -> (f32[]) stage=dataflow {
  %f, %t = switch(%x, %p) : f32[], f32[]
  %a = constant() after(%t) {value=f32[] 5.0} : f32[]
  %m, %i = merge(%f, %a) : f32[], i32[]
  return %m
}
"""
    assert run(text, np.bool_(True), np.float32(1)) == [5]
    assert run(text, np.bool_(False), np.float32(1)) == [1]


def test_nested_frames() -> None:
    for n in (0, 1, 2, 7, 40):
        wanted = sum(j for i in range(n) for j in range(i))
        assert run(NESTED, np.int64(n)) == [wanted]


def test_a_loop_in_a_branch_that_is_not_taken_is_dead() -> None:
    body = COUNT.replace("PARALLEL", "4").split("{\n", 1)[1].rsplit("return", 1)[0]
    text = f"""
graph @maybe(%p: bool[], %n: i64[], %x0: i64[]) -> (i64[]) stage=dataflow {{
  %off, %x = switch(%x0, %p) : i64[], i64[]
{body}
  %y, %which = merge(%off, %x2) : i64[], i32[]
  return %y
}}
"""
    assert run(text, np.bool_(True), np.int64(9), np.int64(2)) == [9]
    assert run(text, np.bool_(False), np.int64(9), np.int64(2)) == [2]


def test_effects_of_the_branch_taken_only() -> None:
    text = """
graph @effect(%p: bool[], %x: f32[2]) -> (f32[2]) stage=dataflow {
  %v = variable() {name="v", dtype=f32, shape=[2]} : ref<f32[2]>
  %f, %t = switch(%x, %p) : f32[2], f32[2]
  %w = assign(%v, %t) : token
  %r = identity(%x) : f32[2]
  return %r
}
"""
    state = VariableState("v", float32, (2,), np.zeros(2, np.float32))
    x = np.float32([1, 2])
    run(text, np.bool_(False), x, variables={"v": state})
    assert state.read().tolist() == [0, 0]
    run(text, np.bool_(True), x, variables={"v": state})
    assert state.read().tolist() == [1, 2]


def test_an_error_in_a_plan_names_the_op_and_frees_what_was_held() -> None:
    text = """
graph @take(%x: f32[3], %i: i64[1]) -> (f32[1]) stage=dataflow {
  %f, %t = switch(%i, %p0) : i64[1], i64[1]
  %r = take(%x, %t) {axis=0} : f32[1]
  return %r
}
""".replace("%x: f32[3],", "%p0: bool[], %x: f32[3],")
    step = DataflowStep(parse_graph(text))
    x = np.arange(3, dtype=np.float32)
    assert call(step, np.bool_(True), x, np.int64([2]))[0].tolist() == [2]
    with pytest.raises(wf.errors.InvalidArgumentError, match="7"):
        call(step, np.bool_(True), x, np.int64([7]))
    assert call(step, np.bool_(True), x, np.int64([1]))[0].tolist() == [1]


def test_many_threads_run_one_step() -> None:
    step = DataflowStep(parse_graph(NESTED))
    found: list[Any] = []

    def work() -> None:
        for n in range(1, 30):
            found.append((n, int(call(step, np.int64(n))[0])))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 * 29
    assert all(got == sum(j for i in range(n) for j in range(i)) for n, got in found)


# ----------------------------------------------------------------------------- tables without an IR
def _execute(nodes: list[Node]) -> int:
    state = State(Tables(nodes, [Frame(-1)]), 0, 0)
    root = state.start()
    assert state.run(1 << 40) == 0
    state.end(root)
    return state.word(at.S_EXECUTED)


def test_every_null_op_runs_once() -> None:
    chain = [Node(at.NO_OP, outputs=0)]
    for _ in range(9_999):
        chain.append(Node(at.NO_OP, control=[chain[-1]], outputs=0))
    assert _execute(chain) == 10_000
    fan = [Node(at.NO_OP, outputs=0)]
    fan += [Node(at.NO_OP, control=[fan[0]], outputs=0) for _ in range(5_000)]
    fan.append(Node(at.NO_OP, control=fan[1:], outputs=0))
    assert _execute(fan) == 5_002


def test_a_budget_stops_the_loop_and_it_goes_on_later() -> None:
    chain = [Node(at.NO_OP, outputs=0)]
    for _ in range(99):
        chain.append(Node(at.NO_OP, control=[chain[-1]], outputs=0))
    state = State(Tables(chain, [Frame(-1)]), 0, 0)
    root = state.start()
    assert state.run(30) == 1
    assert state.word(at.S_EXECUTED) == 30
    assert state.run(1 << 40) == 0
    assert state.word(at.S_EXECUTED) == 100
    state.end(root)


def test_a_node_of_a_loop_that_waits_for_nothing_is_refused() -> None:
    with pytest.raises(wf.errors.InternalError, match="waits for nothing"):
        Tables([Node(at.NO_OP, frame=1, outputs=0)], [Frame(-1), Frame(0)])


def test_state_of_variables_in_a_loop() -> None:
    text = (
        COUNT.replace("PARALLEL", "2")
        .replace(
            "  return", '  %v = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]>\n  return'
        )
        .replace(
            "  %z = next_iteration",
            '  %v0 = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]>\n'
            '  %vr = enter(%v0) {frame="w", constant=true, parallel_iterations=2} : ref<i64[]>\n'
            "  %old = read(%vr) after(%g) : i64[]\n  %new = add(%old, %one) : i64[]\n"
            "  %done = assign(%vr, %new) : token\n  %z = next_iteration",
        )
    )
    state = VariableState("v", int64, (), np.int64(100) * np.ones((), np.int64))
    assert run(text, np.int64(12), np.int64(0), variables={"v": state}) == [12]
    assert int(state.read()) == 112


def test_two_live_values_at_one_merge_are_an_error() -> None:
    text = """
graph @two(%x: f32[]) -> (f32[]) stage=dataflow {
  %m, %i = merge(%x, %x) : f32[], i32[]
  return %m
}
"""
    with pytest.raises(wf.errors.InvalidArgumentError, match="two live values"):
        run(text, np.float32(1))


def test_a_control_edge_from_a_back_edge_stays_in_its_iteration() -> None:
    text = (
        COUNT.replace("PARALLEL", "2")
        .replace("  %one =", "  %two = constant() after(%g) {value=i64[] 2} : i64[]\n  %one =")
        .replace(
            "  return",
            '  %v0 = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]>\n'
            '  %v = enter(%v0) {frame="w", constant=true, parallel_iterations=2} : ref<i64[]>\n'
            "  %old = read(%v) after(%z) : i64[]\n  %new = add(%old, %two) : i64[]\n"
            "  %done = assign(%v, %new) : token\n  return",
        )
    )
    state = VariableState("v", int64, (), np.zeros((), np.int64))
    assert run(text, np.int64(12), np.int64(0), variables={"v": state}) == [12]
    assert int(state.read()) == 24


@pytest.mark.parametrize("size", [3, 10_000])
def test_what_a_python_function_gives_is_its_own_to_write_to(size: int) -> None:
    buffer = np.zeros(size, np.float32)

    def fill(x: Any) -> Any:
        buffer[:] = x
        return buffer

    with wf.Graph().as_default() as graph:
        first = wf.py_function(fill, [wf.constant(1.0)], wf.float32, [size])
        with wf.control_dependencies([first]):
            second = wf.py_function(fill, [wf.constant(2.0)], wf.float32, [size])
        with wf.control_dependencies([second]):
            both = first + second
        with wf.Session(graph=graph) as session:
            assert session.run(both).tolist() == [3.0] * size


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_what_is_done_just_when_the_time_is_up_is_not_lost(deterministic: bool, more: bool) -> None:
    """A queue may hand its element over while the step gives up; but nothing new begins then."""
    with wf.Graph().as_default() as graph:
        one, two = (wf.FIFOQueue(1, [wf.float32], [[]]) for _ in range(2))
        x = one.dequeue() * 2.0
        put = two.enqueue((x,))
        with wf.control_dependencies([put]):
            fetch = two.dequeue() if more else x
        session = wf.Session(graph=graph, deterministic=deterministic)
        feed = wf.placeholder(wf.float32, [])
        session.run(one.enqueue((feed,)), {feed: 1.0})
        session.run(fetch)
    *_, made = session._steps.entries.values()
    step = made.executable
    assert isinstance(step, DataflowStep)
    for number, host in enumerate(step.built.hosts):
        if host.op.name == "dequeue" and not host.op.control:

            def late(given: Any, done: Any, cancel: Any) -> None:
                cancel.register(lambda: done([np.array(3, np.float32)]))

            step.built.hosts[number] = dataclasses.replace(host, start=late)
            break
    if more:
        with pytest.raises(wf.errors.DeadlineExceededError):
            step.run([], RunContext(timeout=0.05))
    else:
        assert step.run([], RunContext(timeout=0.05)) == [6.0]
