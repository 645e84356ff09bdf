"""Nodes of one step beside each other, on several threads: the same bits, errors, ends; and the
deterministic mode, in which nothing runs beside anything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from dataflow_net_checks import agree, seeded
from dataflow_texts import COUNT, NESTED
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.dtypes import float32
from weft.ir.graph import Graph
from weft.ir.text.parser import parse_graph
from weft.passes.control import dataflow_regions
from weft.passes.control.dataflow_regions import plan_regions, split_regions, users
from weft.runtime.dataflow import build as building
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow import threads as helping
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.threads import HELPERS, Beside, Gain, Helpers, Phase
from weft.runtime.recorder import TraceRecorder
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

N = 48


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Gain, "pays", lambda self: True)  # also on a busy machine
    before = wf.get_num_threads()
    wf.set_num_threads(2)
    yield
    wf.set_num_threads(before)


@pytest.fixture
def all_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every region is cut as small as may be, and worth a thread."""
    for module in (dataflow_regions, building):
        monkeypatch.setattr(module, "EXPENSIVE_NS", 1e-9)
    monkeypatch.setattr(dataflow_regions, "MOST_TRAFFIC", 1e9)


def chains(length: int, count: int = 2, *, dtype: str = "f32", scaled: bool = False) -> Graph:
    """So many chains of products of small matrices, each multiplied by one if `scaled`, and their
    sum."""
    t = f"{dtype}[{N}, {N}]"
    lines = [f"graph @chains(%x: {t}, %w: {t}) -> ({t}) stage=dataflow {{"]
    lines.append(f"  %half = constant() {{value={dtype}[] 0.5}} : {dtype}[]")
    for c in range(count):
        lines.append(f"  %h{c} = broadcast_to(%half) {{shape=[{N}, {N}]}} : {t}")
        lines.append(f"  %c{c}_0 = multiply(%{'xw'[c % 2]}, %h{c}) : {t}")
        for i in range(1, length):
            lines.append(f"  %c{c}_{i} = matmul(%c{c}_{i - 1}, %{'wx'[c % 2]}) : {t}")
        if scaled:
            lines.append(f"  %e{c} = multiply(%c{c}_{length - 1}, %x) : {t}")
    ends = [f"e{c}" if scaled else f"c{c}_{length - 1}" for c in range(count)]
    total = ends[0]
    for c in range(1, count):
        lines.append(f"  %s{c} = add(%{total}, %{ends[c]}) : {t}")
        total = f"s{c}"
    return parse_graph("\n".join([*lines, f"  return %{total}", "}"]))


def inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(N, N)) / N**0.5).astype(np.float32) for _ in "xw"]


def kinds(step: DataflowStep) -> list[int]:
    return [node.kind for node in step.built.nodes]


# ------------------------------------------------------------------------------------------ regions
def parts(graph: Graph) -> list[list[str]]:
    plan = split_regions(plan_regions(graph), users(graph))
    return [[op.name for op in region.ops] for region in plan.regions]


def test_dear_chains_are_parts_and_so_is_what_joins_them() -> None:
    chain = ["constant", "broadcast_to", "multiply", *["matmul"] * 199]
    assert parts(chains(200, 3)) == [chain, chain, chain, ["add", "add"]]


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_could_be_one_kernel_is_in_one_part(dtype: str) -> None:
    """A product in one part and a sum in another would be rounded twice, not once."""
    graph = chains(300, dtype=dtype, scaled=True)
    found = parts(graph)
    if dtype == "f16":  # a sum in float32 that another part reads is rounded before that
        assert len(found) == 1
    else:
        assert found[-1] == ["multiply", "multiply", "add"]
        assert len(found) == 3
    given = [a.astype(dtype.replace("f", "float")) for a in inputs()]
    wanted = DataflowStep(graph, deterministic=True).run(given)[0].tobytes()
    assert DataflowStep(graph).run(given)[0].tobytes() == wanted


def test_cheap_chains_stay_together() -> None:
    assert len(parts(chains(4, 3))) == 1


def test_parts_that_hand_too_much_to_each_other_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataflow_regions, "MOST_TRAFFIC", 0.0)
    assert len(parts(chains(200))) == 1


def towers(tail: str = "") -> Graph:
    """Two variables, each multiplied often and written; with `tail` what else is done."""
    t = f"f32[{N}, {N}]"
    lines = [f"graph @towers(%x: {t}) -> (token, token) stage=dataflow {{"]
    for v in "ab":
        lines.append(f'  %{v} = variable() {{name="{v}", dtype=f32, shape=[{N}, {N}]}} : ref<{t}>')
        lines.append(f"  %{v}0 = read(%{v}) : {t}")
        lines += [f"  %{v}{i} = matmul(%{v}{i - 1}, %x) : {t}" for i in range(1, 200)]
    lines.append(f"  %s = add(%a199, %b199) : {t}")
    for v in "ab":
        lines.append(f"  %{v}w = assign(%{v}, %{'s' if tail else v + '199'}) : token")
    return parse_graph("\n".join([*lines, "  return %aw, %bw", "}"]))


def test_what_uses_one_variable_stays_together() -> None:
    assert len(parts(towers("both"))) == 1
    assert len(parts(towers())) == 3  # two towers, and a sum that nobody reads


LOOP = """
graph @loop(%x: f32[N, N], %n: i64[]) -> (f32[N, N]) stage=dataflow {
  %zero = constant() {value=i64[] 0} : i64[]
  %ei = enter(%zero) {frame="w", parallel_iterations=4} : i64[]
  %ea = enter(%x) {frame="w", parallel_iterations=4} : f32[N, N]
  %c = enter(%n) {frame="w", constant=true, parallel_iterations=4} : i64[]
  %i, %ki = merge(%ei) {loop=true} : i64[], i32[]
  %a, %ka = merge(%ea) {loop=true} : f32[N, N], i32[]
  %t = less(%i, %c) : bool[]
  %l = loop_cond(%t) : bool[]
  %i0, %i1 = switch(%i, %l) : i64[], i64[]
  %a0, %a1 = switch(%a, %l) : f32[N, N], f32[N, N]
  %r = exit(%a0) : f32[N, N]
  %one = constant() after(%i1) {value=i64[] 1} : i64[]
  %i2 = add(%i1, %one) : i64[]
  %f = astype(%i1) {dtype=f32} : f32[]
  %h0 = broadcast_to(%f) {shape=[N, N]} : f32[N, N]
BODY
  %a2 = add(%a1, %hLAST) : f32[N, N]
  %z1 = next_iteration(%i2, %i) : token
  %z2 = next_iteration(%a2, %a) : token
  return %r
}
"""


def pipeline(length: int) -> Graph:
    """A loop that adds up what it computes from its counter."""
    body = [f"  %h{i} = matmul(%h{i - 1}, %h0) : f32[N, N]" for i in range(1, length)]
    text = LOOP.replace("BODY", "\n".join(body)).replace("LAST", str(length - 1))
    return parse_graph(text.replace("[N, N]", f"[{N}, {N}]"))


def test_what_a_loop_computes_from_its_counter_is_a_part_of_its_own() -> None:
    found = parts(pipeline(150))
    assert ["add"] in found
    assert next(p for p in found if "matmul" in p).count("matmul") == 149
    assert all("add" not in p for p in found if "matmul" in p)


def test_iterations_overlap_and_give_the_same_bits() -> None:
    graph = pipeline(150)
    x = [np.ones((N, N), np.float32) * 1e-3, np.array(6)]
    wanted = DataflowStep(graph, deterministic=True).run(x)[0]
    step, recorder = DataflowStep(graph), TraceRecorder()
    assert step.run(x, RunContext(recorder=recorder))[0].tobytes() == wanted.tobytes()
    heavy = [e for e in recorder.events() if "matmul" in e.ops]
    assert sorted(e.iteration[0] for e in heavy if not e.dead) == list(range(6))
    own = threading.get_ident()
    assert sum(e.thread != own for e in heavy if not e.dead) >= 5


# --------------------------------------------------------------------------------------------- runs
@pytest.mark.slow
def test_chains_run_on_threads_of_their_own_and_give_the_same_bits() -> None:
    graph = chains(300, 3)
    step, alone = DataflowStep(graph), DataflowStep(graph, deterministic=True)
    assert kinds(step).count(at.DEAR) == 3
    assert at.DEAR not in kinds(alone)
    recorder = TraceRecorder()
    wanted = alone.run(inputs())[0].tobytes()
    assert step.run(inputs(), RunContext(recorder=recorder))[0].tobytes() == wanted
    found = [e for e in recorder.events() if "matmul" in e.ops]
    assert len(found) == 3
    assert {e.kind for e in found} == {"plan"}
    assert threading.get_ident() not in {e.thread for e in found}
    for _ in range(20):
        assert step.run(inputs())[0].tobytes() == wanted
    assert 1 <= HELPERS.count() <= 2


@pytest.mark.slow
def test_one_thread_has_no_helpers() -> None:
    before, recorder = DataflowStep(chains(300)), TraceRecorder()
    wf.set_num_threads(1)
    before.run(inputs(), RunContext(recorder=recorder))
    assert {e.thread for e in recorder.events()} == {threading.get_ident()}
    step = DataflowStep(chains(300))
    assert at.DEAR not in kinds(step)
    assert len(step.built.plans) == 1


def test_regions_of_different_variables_run_beside_each_other() -> None:
    graph = towers()
    value, x = inputs()
    found = {}
    for deterministic in (False, True):
        held = {v: VariableState(v, float32, (N, N), value.copy()) for v in "ab"}
        recorder = TraceRecorder()
        DataflowStep(graph, held, deterministic=deterministic).run(
            [x], RunContext(recorder=recorder)
        )
        states = [e for e in recorder.events() if e.kind == "state"]
        own = sum(e.thread == threading.get_ident() for e in states)
        assert (len(states), own) == ((1, 1) if deterministic else (2, 0))
        found[deterministic] = [held[v].read().tobytes() for v in "ab"]
    assert found[True] == found[False]


@pytest.mark.share(4)
@pytest.mark.usefixtures("all_dear")
@pytest.mark.parametrize("seed", range(40))
def test_nets_of_switches_loops_and_effects(seed: int) -> None:
    net = seeded(2000 + seed, 8)
    if net is not None:
        agree(net)


@pytest.mark.usefixtures("all_dear")
def test_many_threads_run_one_step_whose_nodes_run_beside_each_other() -> None:
    step = DataflowStep(parse_graph(NESTED))
    found: list[Any] = []

    def work() -> None:
        for n in range(1, 8):
            found.append((n, int(step.run([np.array(n)])[0])))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 42
    assert all(got == sum(j for i in range(n) for j in range(i)) for n, got in found)


# ------------------------------------------------------------------------------------- errors, ends
TAKE = """
graph @take(%x: f32[3], %i: i64[1], %j: i64[1]) -> (f32[1], f32[1]) stage=dataflow {
  %a = take(%x, %i) {axis=0} : f32[1]
  %b = take(%x, %j) {axis=0} : f32[1]
  return %a, %b
}
"""


@pytest.mark.usefixtures("all_dear")
def test_an_error_beside_other_nodes_names_the_op_and_the_next_step_runs() -> None:
    step, x = DataflowStep(parse_graph(TAKE)), np.arange(3, dtype=np.float32)
    assert kinds(step).count(at.DEAR) == 2
    for _ in range(50):
        with pytest.raises(wf.errors.InvalidArgumentError, match="index 7"):
            step.run([x, np.array([1]), np.array([7])])
        assert [r.tolist() for r in step.run([x, np.array([1]), np.array([2])])] == [[1], [2]]


@pytest.mark.usefixtures("all_dear")
def test_a_deadline_and_a_cancellation_end_a_loop_of_dear_nodes() -> None:
    step = DataflowStep(parse_graph(COUNT.replace("PARALLEL", "4")))
    endless = [np.array(1 << 60), np.array(0)]
    begun = time.monotonic()
    with pytest.raises(wf.errors.DeadlineExceededError, match="computation"):
        step.run(endless, RunContext(timeout=0.1))
    assert time.monotonic() - begun < 2
    token = wf.CancelToken()
    threading.Timer(0.1, lambda: token.cancel("enough")).start()
    with pytest.raises(wf.errors.CancelledError, match="enough"):
        step.run(endless, RunContext(cancel=token, timeout=20))
    assert step.run([np.array(3), np.array(0)]) == [3]


def test_a_job_that_has_not_begun_when_it_is_stopped_never_does() -> None:
    token = Beside()
    token.stop()
    assert not token.may_begin()


def test_jobs_that_end_no_sooner_are_not_given_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    now = [1_000_000_000]
    monkeypatch.setattr(helping, "clock", lambda: now[0])
    gain = Gain()
    phase = Phase(gain)

    def two_jobs(spent: int) -> None:
        phase.begin()
        phase.begin()
        begun, now[0] = now[0], now[0] + spent
        phase.end(1, begun, begun + 2_000_000)
        phase.end(2, now[0] - 3_000_000, now[0])

    two_jobs(3_200_000)
    assert gain.pays()
    for pause in (5, 10, 20):
        two_jobs(6_000_000)
        assert not gain.pays()
        now[0] += pause * 1_000_000 - 1
        assert not gain.pays()
        now[0] += 1
        assert gain.pays()
    two_jobs(3_200_000)
    two_jobs(6_000_000)
    now[0] += 5_000_000
    assert gain.pays()
    phase.begin()  # one beside something that waits
    now[0] += 3_900_000
    phase.end(1, now[0] - 2_000_000, now[0])
    assert gain.pays()
    phase.begin()
    phase.begin()
    ended = now[0] + 3_200_000
    now[0] += 50_000_000  # the step does something else before it looks
    phase.end(1, ended - 2_000_000, ended)
    phase.end(2, ended - 3_000_000, ended)
    assert gain.pays()


@pytest.mark.slow
def test_where_it_does_not_pay_dear_nodes_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gain, "pays", lambda self: False)
    step, recorder = DataflowStep(chains(300, 3)), TraceRecorder()
    wanted = DataflowStep(chains(300, 3), deterministic=True).run(inputs())[0].tobytes()
    assert step.run(inputs(), RunContext(recorder=recorder))[0].tobytes() == wanted
    found = [e for e in recorder.events() if "matmul" in e.ops]
    assert len(found) == 3
    assert {e.thread for e in found} == {threading.get_ident()}


def test_helpers_take_more_jobs_than_there_are_threads() -> None:
    helpers, done = Helpers(), threading.Semaphore(0)
    most: list[int] = []
    running = 0
    lock = threading.Lock()

    def job() -> None:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        time.sleep(0.001)
        with lock:
            running -= 1
        done.release()

    for _ in range(50):
        helpers.submit(job, 3)
    for _ in range(50):
        assert done.acquire(timeout=5)
    assert max(most) <= 3
    assert helpers.count() == 3
    most.clear()
    for _ in range(20):
        helpers.submit(job, 2)  # a step that may use fewer threads than there are
    for _ in range(20):
        assert done.acquire(timeout=5)
    assert max(most) <= 2
    helpers.end()
    assert not any(t.is_alive() for t in helpers._threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_process_makes_helpers_of_its_own() -> None:
    step = DataflowStep(chains(300, 3))
    wanted = step.run(inputs())[0].tobytes()
    assert HELPERS.count()
    child = os.fork()
    if not child:
        signal.alarm(20)
        before, found = HELPERS.count(), step.run(inputs())[0].tobytes()
        made = HELPERS.count() - before  # one, where it is done before the next job comes
        os._exit(0 if not before and made in (1, 2) and found == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0


EXIT = """
import threading, time
import numpy as np
import weft as wf
wf.set_num_threads(2)
with wf.Graph().as_default() as graph:
    x = wf.placeholder(wf.float32, [64, 64])
    w = wf.Variable(np.zeros((64, 64), np.float32))
    a, b = x, x.T
    for _ in range(60):
        a, b = a @ x, b @ x
    fetch = [a + b, w.assign_add(x)]
    session = wf.Session(graph=graph, control_flow="dataflow")
    session.run(wf.global_variables_initializer())
data = np.eye(64, dtype=np.float32)
session.run(fetch, {x: data})
def work():
    while True:
        session.run(fetch, {x: data})
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.slow
def test_the_end_of_a_process_with_steps_under_way_is_quiet() -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------ deterministic
def order_of(step: DataflowStep, given: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    recorder = TraceRecorder()
    step.run(given, RunContext(recorder=recorder, timeout=20))
    return [(e.name, e.iteration) for e in recorder.events()]


def test_one_node_at_a_time_in_the_same_order() -> None:
    step = DataflowStep(parse_graph(NESTED), deterministic=True)
    orders = [order_of(step, [np.array(6)]) for _ in range(5)]
    assert all(order == orders[0] for order in orders)


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_host_ops_that_wait_are_taken_up_in_the_order_of_their_begins(seed: int) -> None:
    """Whatever is done first, what follows the first op begins first."""
    wf.set_num_threads(2)
    rng = random.Random(seed)
    begun: list[int] = []
    with wf.Graph().as_default() as graph:
        queues = [wf.FIFOQueue(1, [wf.float32], [[]]) for _ in range(4)]
        values = [q.dequeue() for q in queues]
        feed = wf.placeholder(wf.float32, [])
        puts = [q.enqueue((feed,)) for q in queues]

        def note(k: int) -> Any:
            def noted(x: Any) -> Any:
                begun.append(k)
                return x

            return noted

        follow = [wf.py_function(note(k), [v], wf.float32, []) for k, v in enumerate(values)]
    with wf.Session(graph=graph, deterministic=True) as session:
        session.run(puts, {feed: 1.0})
        session.run(follow)
        first = list(begun)
        begun.clear()
        order = rng.sample(range(4), 4)

        def fill() -> None:
            for k in order:
                time.sleep(0.002)
                session.run(puts[k], {feed: 1.0})

        other = threading.Thread(target=fill)
        other.start()
        session.run(follow)
        other.join()
    assert begun == first
