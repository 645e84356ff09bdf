"""Traces of the dataflow executor: one event for each run of a node, with its place and time."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataflow_texts import COUNT, NESTED, SELECT

import weft as wf
from weft.ir.dtypes import float32
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import HostOp
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.host_dispatch import at_once
from weft.runtime.dataflow.node_trace import ROOM
from weft.runtime.recorder import TraceEvent, TraceRecorder
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

LOOP = COUNT.replace("PARALLEL", "3")


def traced(step: DataflowStep, *inputs: Any) -> list[TraceEvent]:
    recorder = TraceRecorder()
    step.run([np.asarray(x) for x in inputs], RunContext(recorder=recorder, timeout=20))
    assert recorder.dropped == 0
    return recorder.events()


def test_every_node_that_runs_has_an_event() -> None:
    step = DataflowStep(parse_graph(LOOP))
    events = traced(step, np.int64(5), np.int64(0))
    assert step.executed() == len(events)
    merges = [e for e in events if e.kind == "merge"]
    assert [e.iteration for e in merges] == [(i,) for i in range(6)]
    assert {e.frame for e in merges} == {"w"}
    assert {e.frame for e in events if e.kind in ("feed", "fetch", "enter")} == {""}
    adds = [e for e in events if "add" in e.ops]
    assert [e.dead for e in adds] == [False] * 5 + [True]
    assert {e.thread for e in events} == {threading.get_ident()}
    assert [e.name for e in events if e.kind == "feed"] == ["x", "n"]
    assert not any(e.waits for e in events)


def test_the_times_are_those_of_the_monotonic_clock_and_follow_each_other() -> None:
    step = DataflowStep(parse_graph(LOOP))
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    events = traced(step, np.int64(50), np.int64(0))
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert before <= events[0].begin_ns
    assert events[-1].end_ns <= after
    assert all(e.begin_ns <= e.end_ns for e in events)
    assert all(a.end_ns <= b.begin_ns for a, b in itertools.pairwise(events))


def test_events_of_nested_loops_say_which_iterations() -> None:
    events = traced(DataflowStep(parse_graph(NESTED)), np.int64(4))
    inner = {e.iteration for e in events if e.frame == "outer/inner" and "add" in e.ops
             and not e.dead}  # fmt: skip
    assert inner == {(i, j) for i in range(4) for j in range(i)}


def test_a_dead_node_is_marked() -> None:
    step = DataflowStep(parse_graph(SELECT))
    events = traced(step, np.bool_(True), np.zeros(3, np.float32))
    assert {e.ops[0]: e.dead for e in events if e.kind == "plan"} == {
        "negative": True,
        "exp": False,
    }
    assert next(e for e in events if e.kind == "switch").name == "switch"


def test_more_events_than_there_is_room_for_at_once() -> None:
    step = DataflowStep(parse_graph(LOOP))
    events = traced(step, np.int64(ROOM), np.int64(0))
    assert len(events) == step.executed() > 2 * ROOM
    adds = [e.iteration[0] for e in events if "add" in e.ops]
    assert adds == list(range(ROOM + 1))


@pytest.mark.slow
def test_a_limit_keeps_the_newest_and_counts_the_rest() -> None:
    step = DataflowStep(parse_graph(LOOP))
    whole = traced(step, np.int64(3 * ROOM), np.int64(0))
    recorder = TraceRecorder(limit=2 * ROOM)
    step.run([np.array(3 * ROOM), np.array(0)], RunContext(recorder=recorder))
    kept = recorder.events()
    assert len(kept) + recorder.dropped == len(whole)
    assert 0 < len(kept) <= 2 * ROOM
    assert [e.name for e in kept] == [e.name for e in whole[-len(kept) :]]
    with pytest.raises(wf.errors.InvalidArgumentError, match="0 events"):
        TraceRecorder(limit=0)


def test_steps_have_numbers_and_a_step_without_a_recorder_leaves_no_event() -> None:
    step, recorder = DataflowStep(parse_graph(LOOP)), TraceRecorder()
    inputs = [np.array(2), np.array(0)]
    step.run(inputs, RunContext(recorder=recorder))
    step.run(inputs)
    step.run(inputs, RunContext(recorder=recorder))
    events = recorder.events()
    assert sorted({e.step for e in events}) == [0, 1]
    assert len([e for e in events if e.step == 0]) == len([e for e in events if e.step == 1])
    assert step._idle[0].state.word(at.S_TRACE) == 0


def test_a_host_op_that_waits_is_one_event_from_begin_to_end() -> None:
    with wf.Graph().as_default() as graph:
        queue = wf.FIFOQueue(2, [wf.float32], [[]])
        value, feed = queue.dequeue(), wf.placeholder(wf.float32, [])
        put = queue.enqueue((feed,))
    with wf.Session(graph=graph) as session:
        session.run(put, {feed: 1.0})
        session.run(value)
        step = last_step(session)
        session.run(put, {feed: 1.0})
        quick = [e for e in traced(step) if e.kind == "host"]
        late = threading.Timer(0.05, lambda: session.run(put, {feed: 2.0}))
        late.start()
        slow = [e for e in traced(step) if e.kind == "host"]
        late.join()
    assert [(e.name, e.waits) for e in quick] == [("dequeue", False)]
    assert [(e.name, e.waits) for e in slow] == [("dequeue", True)]
    assert slow[0].end_ns - slow[0].begin_ns > 30_000_000
    assert slow[0].locations[0].file == __file__


def last_step(session: wf.Session) -> DataflowStep:
    *_, made = session._steps.entries.values()
    assert isinstance(made.executable, DataflowStep)
    return made.executable


def test_a_region_with_variables_is_an_event_of_kind_state() -> None:
    text = """
graph @effect(%x: f32[2]) -> (f32[2]) stage=dataflow {
  %v = variable() {name="v", dtype=f32, shape=[2]} : ref<f32[2]>
  %w = assign(%v, %x) : token
  %r = identity(%x) after(%w) : f32[2]
  return %r
}
"""
    state = VariableState("v", float32, (2,), np.zeros(2, np.float32))
    events = traced(DataflowStep(parse_graph(text), {"v": state}), np.float32([1, 2]))
    (found,) = (e for e in events if e.kind == "state")
    assert "assign" in found.ops
    assert not found.waits


# ------------------------------------------------------------------------------- kernels of regions
def kernels(step: DataflowStep, *inputs: Any) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """The events of a run, and those of the kernels in its regions."""
    recorder = TraceRecorder(kernels=True)
    step.run([np.asarray(x) for x in inputs], RunContext(recorder=recorder, timeout=20))
    recorded = recorder.recorded()
    return list(recorded.events), list(recorded.kernels)


def test_each_kernel_of_a_region_is_recorded_within_its_run() -> None:
    step = DataflowStep(parse_graph(LOOP))
    plain = traced(step, np.int64(5), np.int64(0))
    assert not any(e.region for e in plain)
    for _ in range(2):
        events, found = kernels(step, np.int64(5), np.int64(0))
        assert [e.name for e in events] == [e.name for e in plain]
        ran = [e for e in events if e.kind == "plan" and not e.dead]
        assert len(found) >= len(ran) > 5
        for kernel in found:
            assert kernel.kind == "kernel"
            assert kernel.kernels
            assert any(e.begin_ns <= kernel.begin_ns <= kernel.end_ns <= e.end_ns for e in ran)
    assert not any(e.region for e in traced(step, np.int64(5), np.int64(0)))  # as it was before


def test_kernels_on_other_threads_and_on_variables_are_recorded() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [400, 400], name="x")
        v = wf.Variable(np.ones((400, 400), np.float32), name="v")
        queue = wf.FIFOQueue(9, [wf.float32], [[]])
        sums = [queue.enqueue((wf.sum(wf.matmul(x, x) * float(n)),)) for n in range(2)]
        put = wf.group(*sums, queue.enqueue((wf.sum(v.read()),)))
    with wf.Session(graph=graph) as session:
        session.run(wf.global_variables_initializer())
        array = np.ones((400, 400), np.float32)
        session.run(put, {x: array})
        events, found = kernels(last_step(session), array)
        taken = [float(session.run(queue.dequeue())) for _ in range(6)]
    assert sorted(taken) == sorted([0.0, 400.0**3, 400.0**2] * 2)
    for kind, name in (("plan", "matmul"), ("state", "sum")):
        ran = [e for e in events if e.kind == kind]
        (kernel, *_) = (k for k in found if name in k.ops)
        assert any(e.begin_ns <= kernel.begin_ns <= kernel.end_ns <= e.end_ns for e in ran)
    outputs = [o for k in found for o in k.outputs if o.op == "matmul"]
    assert all((o.shape, o.dtype) == ((400, 400), "float32") for o in outputs)


def test_what_ends_a_walk_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in what native code has called."""
    step = DataflowStep(parse_graph(LOOP))
    monkeypatch.setattr("weft.runtime.native.kernel_times.clock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernels(step, np.int64(5), np.int64(0))
    monkeypatch.undo()
    assert kernels(step, np.int64(5), np.int64(0))[1]


def interrupted() -> int:
    raise KeyboardInterrupt


# ------------------------------------------------------------------------------- deterministic mode
def two_stages_in_branches() -> str:
    """In each of three branches a region of one variable, and in a branch after it one of
    another."""
    results = [f"%{stage}{i}" for stage in "wh" for i in range(3)]
    flags = ", ".join(f"%p{i}: bool[]" for i in range(3))
    tokens = ", ".join("token" for _ in results)
    lines = [f"graph @g(%x: f32[], {flags}) -> ({tokens}) stage=dataflow {{"]
    for i in range(3):
        lines += [f'  %{v}{i} = variable() {{name="{v}{i}", dtype=f32, shape=[]}} : ref<f32[]>'
                  for v in "uv"]  # fmt: skip
        lines += [
            f"  %n{i}, %y{i} = switch(%x, %p{i}) : f32[], f32[]",
            f"  %r{i} = read(%v{i}) after(%y{i}) : f32[]",
            f"  %z{i} = add(%r{i}, %y{i}) : f32[]",
            f"  %w{i} = assign(%v{i}, %z{i}) : token",
            f"  %m{i}, %k{i} = switch(%z{i}, %p{(i + 1) % 3}) : f32[], f32[]",
            f"  %g{i} = add(%k{i}, %k{i}) : f32[]",
            f"  %h{i} = assign(%u{i}, %g{i}) : token",
        ]
    return "\n".join([*lines, f"  return {', '.join(results)}", "}"])


def test_a_trace_does_not_change_the_order_of_a_deterministic_step() -> None:
    names = [f"{v}{i}" for v in "uv" for i in range(3)]
    held = {n: VariableState(n, float32, (), np.zeros((), np.float32)) for n in names}
    step = DataflowStep(parse_graph(two_stages_in_branches()), held, deterministic=True)
    assert len(step.built.hosts) == 6
    order: list[int] = []

    def noted(number: int, host: HostOp) -> HostOp:
        assert host.now is not None
        run = host.now

        def now(arrays: list[Any]) -> list[Any]:
            order.append(number)
            return run(arrays)

        return replace(host, now=now, start=at_once(now))

    step.built.hosts[:] = [noted(n, host) for n, host in enumerate(step.built.hosts)]
    inputs = [np.ones((), np.float32), *[np.array(True)] * 3]
    step.run(inputs)
    plain = list(order)
    order.clear()
    step.run(inputs, RunContext(recorder=TraceRecorder()))
    assert order == plain
    assert sorted(order) == list(range(6))
