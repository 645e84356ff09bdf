"""What the dataflow executor must survive: graphs whose regions could wait for each other, loops
whose merges part, odd values, errors and ends in the middle of a loop, deep and long graphs."""

from __future__ import annotations

import signal
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dataflow_net_checks import held

import weft as wf
from weft.ir.dtypes import int64
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.nodes import Frame, Node, Tables
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext


def agrees(text: str, *inputs: Any, variables: tuple[str, ...] = ()) -> DataflowStep:
    """The step, which gave what the interpreter gives, three times."""
    graph = parse_graph(text)
    arrays = [np.asarray(x) for x in inputs]
    before = {name: np.array(-1) for name in variables}
    state = DictState(before)
    wanted = interpret(graph, arrays, state)
    mine = {name: VariableState(name, int64, (), value) for name, value in before.items()}
    step = DataflowStep(graph, mine)
    for _ in range(3):
        for name, value in before.items():
            mine[name].write(value)
        for got, w in zip(step.run(arrays, RunContext(timeout=10)), wanted, strict=True):
            np.testing.assert_array_equal(got, w)
        assert {n: int(v.read()) for n, v in mine.items()} == {
            n: int(v) for n, v in state.values.items()
        }
    return step


# ------------------------------------------------------------------------------------------ regions
# %P and %q are ops of one frame that are always live; but %q comes after the loop, and in that
# %P is used
WAITS = """
graph @waits(%p: bool[], %x: i64[]) -> (i64[], i64[]) stage=dataflow {
  %zero = constant() {value=i64[] 0} : i64[]
  %s0, %s1 = switch(%x, %p) : i64[], i64[]
  %n0 = negative(%s0) : i64[]
  %m0, %i0 = merge(%n0, %s1) : i64[], i32[]
  %s2, %s3 = switch(%m0, %p) : i64[], i64[]
  %n3 = negative(%s2) : i64[]
  %m3, %i3 = merge(%n3, %s3) : i64[], i32[]
  %P = multiply(%m3, %m3) : i64[]
  %c = enter(%P) {frame="w", constant=true} : i64[]
  %e = enter(%zero) {frame="w"} : i64[]
  %three = constant() {value=i64[] 3} : i64[]
  %end = enter(%three) {frame="w", constant=true} : i64[]
  %m, %k = merge(%e) {loop=true} : i64[], i32[]
  %t = less(%m, %end) : bool[]
  %l = loop_cond(%t) : bool[]
  %f, %g = switch(%m, %l) : i64[], i64[]
  %one = constant() after(%g) {value=i64[] 1} : i64[]
  %a = add(%g, %one) : i64[]
  %b = multiply(%a, %c) : i64[]
  %n = identity(%a) after(%b) : i64[]
  %z = next_iteration(%n, %m) : token
  %out = exit(%f) : i64[]
  %y = negative(%out) : i64[]
  %y0, %y1 = switch(%y, %p) : i64[], i64[]
  %my, %iy = merge(%y0, %y1) : i64[], i32[]
  %q = negative(%my) : i64[]
  return %q, %P
}
"""


@pytest.mark.parametrize("p", [False, True])
def test_what_enters_a_loop_does_not_wait_for_it(p: bool) -> None:
    agrees(WAITS, np.bool_(p), np.int64(3))


# %m2 is there in fewer iterations than %m: ops that read both get one of their inputs only
PARTED = """
graph @parted(%n: i64[], %x: i64[]) -> (token) stage=dataflow {
  %v = variable() {name="v", dtype=i64, shape=[]} : ref<i64[]>
  %w = variable() {name="w", dtype=i64, shape=[]} : ref<i64[]>
  %e = enter(%x) {frame="w", parallel_iterations=PARALLEL} : i64[]
  %e2 = enter(%x) {frame="w", parallel_iterations=PARALLEL} : i64[]
  %c = enter(%n) {frame="w", constant=true, parallel_iterations=PARALLEL} : i64[]
  %m, %k = merge(%e) {loop=true} : i64[], i32[]
  %m2, %k2 = merge(%e2) {loop=true} : i64[], i32[]
  %t = less(%m, %c) : bool[]
  %l = loop_cond(%t) : bool[]
  %f, %g = switch(%m, %l) : i64[], i64[]
  %x2 = exit(%f) : i64[]
  %one = constant() after(%g) {value=i64[] 1} : i64[]
  %a = add(%g, %one) : i64[]
  %z = next_iteration(%a, %m) : token
  %f2, %g2 = switch(%m2, %l) : i64[], i64[]
  %two = constant() after(%g) {value=i64[] 2} : i64[]
  %q = less(%a, %two) : bool[]
  %f3, %g3 = switch(%g2, %q) : i64[], i64[]
  %z2 = next_iteration(%g3, %m2) : token
  %five = constant() after(%g) {value=i64[] 5} : i64[]
  %h = equal(%a, %five) : bool[]
  %h0, %h1 = switch(%a, %h) : i64[], i64[]
  %both, %which = merge(%h1, %f3) : i64[], i32[]
  %x3 = exit(%both) : i64[]
  %done = assign(%v, %x3) : token
  %last = assign(%w, %x2) : token
  return %last
}
"""


@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_merges_of_one_loop_that_part(parallel: int) -> None:
    text = PARTED.replace("PARALLEL", str(parallel))
    step = agrees(text, np.int64(10), np.int64(0), variables=("v", "w"))
    (running,) = step._idle
    first = held(running.state)
    for _ in range(50):
        step.run([np.array(10), np.array(0)])
    (running,) = step._idle
    assert held(running.state) == first
    assert first[2] == 0


# %d and %new are always live as far as conditions say, but only %d waits for %m2
APART = PARTED.replace("PARALLEL", "1").replace(
    "  return",
    """
  %no = constant() {value=bool[] false} : bool[]
  %o = enter(%no) {frame="w", constant=true, parallel_iterations=1} : bool[]
  %r = enter(%v) {frame="w", constant=true, parallel_iterations=1} : ref<i64[]>
  %u0, %u1 = switch(%m2, %o) : i64[], i64[]
  %C, %iC = merge(%u1, %c) : i64[], i32[]
  %y0, %y1 = switch(%c, %o) : i64[], i64[]
  %y, %iy = merge(%y0, %y1) : i64[], i32[]
  %z0, %z1 = switch(%y, %o) : i64[], i64[]
  %z5, %iz = merge(%z0, %z1) : i64[], i32[]
  %d = add(%C, %z5) : i64[]
  %w2 = enter(%w) {frame="w", constant=true, parallel_iterations=1} : ref<i64[]>
  %ad = assign(%w2, %d) : token
  %old = read(%r) after(%z5) : i64[]
  %new = add(%old, %z5) : i64[]
  %an = assign(%r, %new) : token
  return""",
)


def test_what_waits_for_other_merges_is_no_region() -> None:
    text = APART.replace("  %done = assign(%v, %x3) : token\n", "")
    text = text.replace("%last = assign(%w, %x2) : token", "%last = group() after(%x2) : token")
    step = agrees(text, np.int64(10), np.int64(0), variables=("v", "w"))
    assert step._idle


def test_a_loop_that_never_ends_is_an_error_and_leaves_nothing_to_the_next_step() -> None:
    """An enter of the inner frame waits for %m2, which is not there in the second iteration."""
    text = PARTED.replace("PARALLEL", "2").replace(
        "  return",
        '  %ia = enter(%m) {frame="in"} : i64[]\n  %ib = enter(%m2) {frame="in"} : i64[]\n'
        "  %is = negative(%ia) : i64[]\n  %ix = exit(%is) : i64[]\n  return",
    )
    graph = parse_graph(text)
    inputs = [np.asarray(10), np.asarray(0)]
    state = {n: np.zeros((), np.int64) for n in "vw"}
    said = "frame 'in' never ended: one of its enters, %34 of op .enter., got no value"
    with pytest.raises(wf.errors.InvalidArgumentError, match=said) as wanted:
        interpret(graph, inputs, DictState(state))
    held = {n: VariableState(n, int64, (), v.copy()) for n, v in state.items()}
    step = DataflowStep(graph, held)
    with pytest.raises(wf.errors.InvalidArgumentError, match=said) as found:
        step.run(inputs)
    assert found.value.what == wanted.value.what
    assert not step._idle


def test_an_edge_between_frames_is_refused() -> None:
    feed = Node(at.FEED)
    enter = Node(at.ENTER, inputs=[feed.out()], target=1)
    inside = Node(at.IDENTITY, 1, [enter.out()])
    frames = [Frame(-1), Frame(0)]
    Tables([feed, enter, inside], frames)
    for wrong in (
        Node(at.IDENTITY, 0, [inside.out()]),
        Node(at.IDENTITY, 1, [enter.out()], [feed]),
        Node(at.IDENTITY, 1, [inside.out(), feed.out()]),
    ):
        with pytest.raises(wf.errors.InternalError, match="in frame"):
            Tables([feed, enter, inside, wrong], frames)


# ------------------------------------------------------------------------------------------- values
SELECT = """
graph @select(%p: bool[], %x: TYPE) -> (TYPE, TYPE, TYPE, i32[], bool[]) stage=dataflow {
  %f, %t = switch(%x, %p) : TYPE, TYPE
  %m, %i = merge(%f, %t) : TYPE, i32[]
  return %m, %m, %x, %i, %p
}
"""
VALUES = {
    "bf16[3]": np.arange(3).astype(ml_dtypes.bfloat16), "c64[2]": np.array([1 + 2j, 3], "c8"),
    "c128[]": np.array(1j), "f32[0]": np.zeros(0, "f4"), "f32[2,0,3]": np.zeros((2, 0, 3), "f4"),
    "u8[]": np.array(7, "u1"), "bool[2]": np.array([True, False]),
    "string[2]": np.array([b"a" * 300, b""], object), "f32[300000]": np.ones(300000, "f4"),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_all_kinds(kind: str) -> None:
    text, x = SELECT.replace("TYPE", kind), VALUES[kind]
    step = DataflowStep(parse_graph(text))
    for p in (False, True, False):
        *found, number, flag = step.run([np.array(p), x])
        assert (int(number), bool(flag)) == (p, p)
        for got in found:
            assert got.dtype == x.dtype
            assert got.shape == x.shape
            assert got.tolist() == x.tolist()
            assert not np.shares_memory(got, x)


def test_every_byte_but_0_is_true() -> None:
    step = DataflowStep(parse_graph(SELECT.replace("TYPE", "f32[]")))
    for byte in (0, 1, 2, 128, 255):
        p = np.frombuffer(bytes([byte]), np.bool_).reshape(())
        assert int(step.run([p, np.array(1, np.float32)])[3]) == (byte != 0)


# ---------------------------------------------------------------------------- errors, ends, sizes
TAKES = """
graph @takes(%n: i64[], %x: f32[4]) -> (i64[], f32[1]) stage=dataflow {
  %zero = constant() {value=i64[] 0} : i64[]
  %z1 = constant() {value=f32[1] [0.0]} : f32[1]
  %e = enter(%zero) {frame="w", parallel_iterations=4} : i64[]
  %es = enter(%z1) {frame="w", parallel_iterations=4} : f32[1]
  %ex = enter(%x) {frame="w", constant=true, parallel_iterations=4} : f32[4]
  %c = enter(%n) {frame="w", constant=true, parallel_iterations=4} : i64[]
  %m, %k = merge(%e) {loop=true} : i64[], i32[]
  %s, %ks = merge(%es) {loop=true} : f32[1], i32[]
  %t = less(%m, %c) : bool[]
  %l = loop_cond(%t) : bool[]
  %f, %g = switch(%m, %l) : i64[], i64[]
  %sf, %sg = switch(%s, %l) : f32[1], f32[1]
  %r = exit(%f) : i64[]
  %rs = exit(%sf) : f32[1]
  %one = constant() after(%g) {value=i64[] 1} : i64[]
  %a = add(%g, %one) : i64[]
  %three = constant() after(%g) {value=i64[] INDEX} : i64[]
  %i1 = minimum(%g, %three) : i64[]
  %i = reshape(%i1) {shape=[1]} : i64[1]
  %tk = take(%ex, %i) {axis=0} : f32[1]
  %sum = add(%sg, %tk) : f32[1]
  %z = next_iteration(%a, %m) : token
  %zs = next_iteration(%sum, %s) : token
  return %r, %rs
}
"""


def test_an_error_in_an_iteration_ends_the_step_and_not_the_next() -> None:
    step = DataflowStep(parse_graph(TAKES.replace("INDEX", "9")))
    x = np.arange(4, dtype=np.float32)
    for _ in range(10):
        assert step.run([np.array(4), x])[1].tolist() == [6]
        with pytest.raises(wf.errors.InvalidArgumentError, match="index 4"):
            step.run([np.array(9), x])


def endless() -> tuple[DataflowStep, list[Any]]:
    step = DataflowStep(parse_graph(TAKES.replace("INDEX", "3")))
    return step, [np.array(1 << 60), np.zeros(4, np.float32)]


def test_a_deadline_ends_a_loop() -> None:
    step, inputs = endless()
    begun = time.monotonic()
    with pytest.raises(wf.errors.DeadlineExceededError, match="computation"):
        step.run(inputs, RunContext(timeout=0.1))
    assert time.monotonic() - begun < 5
    for timeout in (float("inf"), 1e300, 60):
        assert step.run([np.array(2), inputs[1]], RunContext(timeout=timeout))[0] == 2


def test_a_signal_ends_a_loop() -> None:
    step, inputs = endless()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            step.run(inputs, RunContext(timeout=20))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert step.run([np.array(2), inputs[1]])[0] == 2


def test_a_long_loop_takes_no_more_memory_than_a_short_one() -> None:
    step, inputs = endless()
    assert step.run([np.array(50), inputs[1]])[0] == 50
    first = held(step._idle[0].state)
    assert step.run([np.array(200_000), inputs[1]])[0] == 200_000
    assert held(step._idle[0].state) == first


def test_frames_deep_inside_each_other() -> None:
    depth = 300
    lines = ["%v0 = constant() {value=i64[] 5} : i64[]"]
    lines += [f'%v{d} = enter(%v{d - 1}) {{frame="f{d}"}} : i64[]' for d in range(1, depth + 1)]
    lines.append(f"%w{depth} = negative(%v{depth}) : i64[]")
    lines += [f"%w{d - 1} = exit(%w{d}) : i64[]" for d in range(depth, 0, -1)]
    body = "\n".join(lines)
    text = f"graph @deep() -> (i64[]) stage=dataflow {{\n{body}\nreturn %w0\n}}"
    step = DataflowStep(parse_graph(text))
    assert step.run([]) == step.run([]) == [-5]


def test_a_long_row_of_branches() -> None:
    count = 3000
    lines = [
        f"%a{d}, %b{d} = switch(%v{d}, %p) : i64[], i64[]\n"
        f"%v{d + 1}, %i{d} = merge(%a{d}, %b{d}) : i64[], i32[]"
        for d in range(count)
    ]
    body = "\n".join(lines)
    text = (
        "graph @long(%p: bool[], %v0: i64[]) -> (i64[]) stage=dataflow {\n"
        f"{body}\nreturn %v{count}\n}}"
    )
    step = DataflowStep(parse_graph(text))
    assert step.run([np.array(True), np.array(7)]) == [7]


def test_every_graph_on_the_way_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regions that the executor compiles hold what passes have made before."""
    monkeypatch.setenv("WEFT_VERIFY", "ir")
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [4])
        v = wf.Variable(np.arange(4.0, dtype=np.float32), name="v")
        y = wf.cond(wf.sum(x) > 0.0, lambda: v.read() * 2.0 + x, lambda: wf.identity(x))
        z = wf.while_loop(lambda s: wf.sum(s) < 100.0, lambda s: s * 2.0 + 1.0, [y])[0]
    with wf.Session(graph=graph, control_flow="dataflow") as session:
        session.run(v.initializer)
        plus = session.run([y, z], {x: np.ones(4, np.float32)})
        minus = session.run(y, {x: -np.ones(4, np.float32)})
    assert plus[0].tolist() == [1.0, 3.0, 5.0, 7.0]
    assert plus[1].tolist() == [15.0, 31.0, 47.0, 63.0]
    assert minus.tolist() == [-1.0] * 4
