"""No region of a part waits for what comes, over other devices, of itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from part_waits import cycle_of
from session_programs import step_of
from tasks_here import run_steps, steps_of

from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.passes.partition.partition import partition
from weft.passes.placement import Device, place

PS, WORKER = 'device("/job:ps/task:0/cpu:0")', 'device("/job:worker/task:0/cpu:0")'

READ = f"""graph @g(%s: string[2]) -> (f32[2]) stage=traced {{
  %0 = variable() {{name="v", dtype=f32, shape=[2]}} : ref<f32[2]> {PS}
  %1 = string_length(%s) : i32[2] {PS}
  %2 = astype(%1) {{dtype=f32}} : f32[2] {PS}
  %3 = read(%0) : f32[2] {PS}
  %4 = multiply(%3, %2) : f32[2] {PS}
  %5 = sin(%4) : f32[2] {WORKER}
  %6 = assign(%0, %5) after(%3) : token {PS}
  return %4
}}
"""


def runs(graph: Graph, inputs: list[Any], state: dict[str, Any]) -> None:
    """The executor gives what the interpreter gives of the whole."""
    made = partition(graph)
    assert cycle_of(made) == []
    wanted = interpret(graph, inputs, DictState(dict(state)))
    found, exchange = run_steps(made.parts, steps_of(made, state), inputs, 5.0)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert not exchange.left()


def test_a_read_is_done_before_what_waits_for_a_message() -> None:
    """The same region may not hold the read and the assignment of what another device makes of
    it."""
    names = np.array([b"a", b"bcd"], object)
    runs(parse_graph(READ), [names], {"v": np.array([0.5, 2.0], np.float32)})


def loop(joins: int) -> Graph:
    """A loop on two devices that needs what one of them computes at its top, so many ops deep; what
    it computes after the loop may not be in one region with that."""
    lines = "\n".join(
        f'  %{k + 1} = string_join(%{k}, %{k}) {{separator=""}} : string[] {WORKER}'
        for k in range(1, 1 + joins)
    )
    n = joins + 2
    return parse_graph(f"""
graph @g(%n: i64[], %c: i64[], %x: f32[], %s: string[]) -> (i64[], f32[]) stage=traced {{
  %0 = add(%c, %c) : i64[] {PS}
  %1 = string_join(%s, %s) {{separator=""}} : string[] {WORKER}
{lines}
  %{n} = string_length(%{n - 1}) : i32[] {WORKER}
  %{n + 1} = astype(%{n}) {{dtype=i64}} : i64[] {WORKER}
  %{n + 2} = add(%{n + 1}, %0) : i64[] {WORKER}
  %{n + 3} = constant() {{value=i64[] 0}} : i64[]
  %{n + 4}, %{n + 5} = while(%{n + 3}, %x, %n, %{n + 2}) {{carries=2, limit=-1}} : i64[], f32[] {{
    ^(%a0: i64[], %a1: f32[], %a2: i64[], %a3: i64[])
    %0 = less(%a0, %a2) : bool[] {PS}
    yield %0
  }} {{
    ^(%a0: i64[], %a1: f32[], %a2: i64[], %a3: i64[])
    %0 = add(%a0, %a3) : i64[] {PS}
    %1 = sin(%a1) : f32[] {WORKER}
    yield %0, %1
  }}
  %{n + 6} = cos(%{n + 5}) : f32[] {WORKER}
  return %{n + 4}, %{n + 6}
}}
""")


@pytest.mark.parametrize("joins", range(9))
def test_what_comes_after_a_loop_is_not_with_what_it_needs(joins: int) -> None:
    inputs = [np.int64(9), np.int64(1), np.float32(0.5), np.array(b"", object)]
    runs(loop(joins), inputs, {})


DEAD_READ = """graph @g(%p: bool[]) -> (i64[]) stage=traced {
  %0 = variable() {name="c", dtype=i64, shape=[]} : ref<i64[]> device("/job:ps/task:0/cpu:0")
  %1 = cond(%p, %0) : i64[] device("/job:worker/task:0/cpu:0") {
    ^(%a0: ref<i64[]>)
    %0 = constant() {value=i64[] 1} : i64[] device("/job:worker/task:0/cpu:0")
    yield %0
  } {
    ^(%a0: ref<i64[]>)
    %0 = read(%a0) : i64[] device("/job:ps/task:0/cpu:0")
    %1 = constant() {value=i64[] 2} : i64[] device("/job:worker/task:0/cpu:0")
    yield %1
  }
  return %1
}
"""


@pytest.mark.parametrize("p", [False, True])
def test_what_nobody_needs_ties_no_branch_to_a_device(p: bool) -> None:
    made = partition(parse_graph(DEAD_READ))
    assert interpret_parts(made.parts, [np.array(p)])[0] == 2 - p
    assert [part.device for part in made.parts] == ["/job:worker/task:0/cpu:0"]


DEVICES = [Device(f"/job:{t}/cpu:0") for t in ("worker/task:0", "worker/task:1", "ps/task:0")]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_sessions(first: int) -> None:
    """Steps with everything in them, cut at random: nothing waits for itself, and the parts give
    the bits of the whole."""
    for seed in range(first, first + 20):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step, inputs, state, host = step_of(seed)
        placed = place(step, DEVICES)
        made = partition(placed.graph, DEVICES[0].name)
        assert cycle_of(made) == []
        whole, cut = DictState(dict(state)), DictState(dict(state))
        wanted = interpret(step, inputs, whole, host=host())
        found = interpret_parts(made.parts, inputs, cut, schedule=seed, host=host())
        for a, b in zip(wanted, found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                assert a.tolist() == b.tolist() or a.tobytes() == b.tobytes()
        for name, value in whole.values.items():
            assert value.tobytes() == cut.values[name].tobytes()
