"""float32 that goes from task to task in half the bytes, by the user's choice alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from placed_programs import place_at_random
from session_programs import step_of
from tasks_here import run_steps, steps_of

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.program import Program as Partitioned
from weft.ir.text.parser import parse_graph
from weft.passes.partition.partition import partition
from weft.runtime.cluster.server import Server

VALUES = np.array([1.001, -3.14159, 1e-40, 3.4e38, np.inf, np.nan, 65504.5, 0.1], np.float32)

#: Two readers on another task, one on another device of the same task, one at home.
READ = """graph @g(%x: f32[8]) -> (f32[8], f32[8], f32[8], f32[8]) stage=traced {
  %0 = negative(%x) : f32[8] device("/job:a/task:0/cpu:0")
  %1 = negative(%0) : f32[8] device("/job:b/task:0/cpu:0")
  %2 = abs(%0) : f32[8] device("/job:b/task:0/cpu:0")
  %3 = negative(%0) : f32[8] device("/job:a/task:0/cpu:1")
  %4 = negative(%0) : f32[8] device("/job:a/task:0/cpu:0")
  return %1, %2, %3, %4
}
"""
OTHERS = """graph @g(%x: f32[], %n: i32[3], %d: f64[3], %h: f16[3])
    -> (f32[], i32[3], f64[3], f16[3]) stage=traced {
  %0 = negative(%x) : f32[] device("/job:a/task:0/cpu:0")
  %1 = negative(%n) : i32[3] device("/job:a/task:0/cpu:0")
  %2 = negative(%d) : f64[3] device("/job:a/task:0/cpu:0")
  %3 = negative(%h) : f16[3] device("/job:a/task:0/cpu:0")
  %4 = negative(%0) : f32[] device("/job:b/task:0/cpu:0")
  %5 = negative(%1) : i32[3] device("/job:b/task:0/cpu:0")
  %6 = negative(%2) : f64[3] device("/job:b/task:0/cpu:0")
  %7 = negative(%3) : f16[3] device("/job:b/task:0/cpu:0")
  return %4, %5, %6, %7
}
"""
WIDER = """graph @g(%x: f32[8]) -> (f32[8], f32[8]) stage=traced {
  %0 = astype(%x) {dtype=bf16} : bf16[8] device("/job:a/task:0/cpu:0")
  %1 = astype(%0) {dtype=f32} : f32[8] device("/job:a/task:0/cpu:0")
  %2 = negative(%1) : f32[8] device("/job:b/task:0/cpu:0")
  %3 = negative(%1) : f32[8] device("/job:c/task:0/cpu:0")
  return %2, %3
}
"""
MASK = """graph @g(%x: f32[8]) -> (f32[8], bool[8]) stage=traced {
  %0 = isnan(%x) : bool[8] device("/job:a/task:0/cpu:0")
  %1 = astype(%0) {dtype=f32} : f32[8] device("/job:a/task:0/cpu:0")
  %2 = negative(%1) : f32[8] device("/job:b/task:0/cpu:0")
  %3 = logical_not(%0) : bool[8] device("/job:b/task:0/cpu:0")
  return %2, %3
}
"""


def rounded(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float32)


def compiled(made: Partitioned) -> list[Any]:
    """The results of compiled parts."""
    return run_steps(made.parts, steps_of(made, {}), [VALUES], 20.0)[0]


def test_what_another_task_gets_is_rounded_once() -> None:
    graph = parse_graph(READ)
    assert [e.type.dtype.short for e in partition(graph).edges] == ["f32", "f32"]
    made = partition(graph, bfloat16=True)
    for part in made.parts:
        verify(part.graph)
    by_target = {edge.dst: edge for edge in made.edges}
    assert by_target["/job:b/task:0/cpu:0"].type.dtype is wf.bfloat16
    assert by_target["/job:b/task:0/cpu:0"].nbytes == 16
    assert by_target["/job:a/task:0/cpu:1"].type.dtype is wf.float32  # the same task: no wire
    got = interpret_parts(made.parts, [VALUES])
    low = rounded(-VALUES)
    for found, wanted in zip(got, [-low, abs(low), VALUES, VALUES], strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert np.isinf(got[0][3])  # beyond bfloat16's largest number: as casts have it
    text = made.text(locations=False)
    assert "astype(%0) {dtype=bf16}" in text
    assert "dtype=bf16, shape=[8]" in text  # the recv says it, too


def test_compiled_parts_have_the_interpreters_bits() -> None:
    made = partition(parse_graph(READ), bfloat16=True)
    for _ in range(2):
        for found, wanted in zip(
            compiled(made), interpret_parts(made.parts, [VALUES]), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_other_dtypes_and_scalars_are_exact() -> None:
    graph = parse_graph(OTHERS.replace("\n    ->", " ->"))
    made = partition(graph, bfloat16=True)
    assert [str(e.type) for e in made.edges] == ["f32[]", "i32[3]", "f64[3]", "f16[3]"]
    numbers = np.array([1.001, 1 / 3, 7])
    given = [np.float32(1.001), numbers.astype(np.int32), numbers, numbers.astype(np.float16)]
    for found, wanted in zip(interpret_parts(made.parts, given), given, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("text", [WIDER, MASK])
def test_what_a_cast_made_wider_goes_as_it_was(text: str) -> None:
    """The same bits in fewer bytes, whatever the user has chosen."""
    graph = parse_graph(text)
    for bfloat16 in (False, True):
        made = partition(graph, bfloat16=bfloat16)
        assert {e.type.dtype.short for e in made.edges} == ({"bf16"} if text is WIDER else {"bool"})
        assert len(made.edges) == (2 if text is WIDER else 1)
        wanted = interpret(graph, [VALUES])
        for got in (interpret_parts(made.parts, [VALUES]), compiled(made)):
            for found, exact in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(found, exact)


# ------------------------------------------------------------------------------------ on a cluster
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    servers = Server.create_local_cluster({"ps": 1, "worker": 1})
    yield servers[1].target
    for server in servers:
        server.stop()


@pytest.mark.parametrize("size", [8, 200_000])
def test_session_with_bfloat16_sendrecv(target: str, size: int) -> None:
    wf.Session.reset(target)
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    with wf.Graph().as_default() as graph:
        with wf.device(PS):
            v = wf.Variable(x, name="v")
        with wf.device(WORKER):
            delta = v.read() * 1.5
        with wf.device(PS):
            update = v.assign_add(delta)
        scalar = wf.reduce_sum(delta)
        init = wf.global_variables_initializer()
        for choice in (False, True):
            with wf.Session(
                graph=graph, cluster=wf.train.Cluster(target, bfloat16_sendrecv=choice)
            ) as session:
                session.run(init)
                there, back = (rounded, rounded) if choice else (np.asarray, np.asarray)
                np.testing.assert_array_equal(session.run(delta), there(x) * np.float32(1.5))
                text = session.explain(update)
                assert ("2 messages in bfloat16" in text) == choice
                assert (f"bf16[{size}], {2 * size:,} bytes" in text) == choice
                after = session.run(update)
                wanted = x + back(there(x) * np.float32(1.5))
                np.testing.assert_allclose(after, wanted, rtol=1e-6)  # fma
                assert session.run(scalar).dtype == np.float32


def test_loop_over_tasks(target: str) -> None:
    """Each iteration's tensor is rounded on its way; counters and conditions are exact."""
    with wf.Graph().as_default() as graph:

        def body(i: Any, x: Any) -> Any:
            with wf.device(PS):
                y = x * 1.1
            with wf.device(WORKER):
                return i + 1, y + 0.001

        with wf.device(WORKER):
            _, out = wf.while_loop(
                lambda i, x: i < 5, body, (0, wf.ones([3]) * 1.001), parallel_iterations=1
            )
        with wf.Session(
            graph=graph, cluster=wf.train.Cluster(target, bfloat16_sendrecv=True)
        ) as session:
            got = session.run(out)
    x = np.full(3, 1.001, np.float32)
    for _ in range(5):
        x = rounded(rounded(x) * np.float32(1.1)) + np.float32(0.001)
    np.testing.assert_allclose(got, x, rtol=1e-6)


def test_one_edge_by_choice(target: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    with wf.Graph().as_default() as graph:
        with wf.device(PS):
            v = wf.Variable(x, name="edge")
        with wf.device(WORKER):
            low, exact = wf.bfloat16_transfer(v.read()) * 2.0, v.read() * 2.0
        init = wf.global_variables_initializer()
        with wf.Session(target, graph) as session:
            session.run(init)
            np.testing.assert_array_equal(session.run(low), rounded(x) * 2)
            np.testing.assert_array_equal(session.run(exact), x * 2)
            assert "1 messages in bfloat16" in session.explain(low)
            assert "messages in bfloat16" not in session.explain(exact)


def test_rounding_is_the_same_in_one_process() -> None:
    got = wf.bfloat16_transfer(VALUES)
    np.testing.assert_array_equal(got, rounded(VALUES))
    np.testing.assert_array_equal(wf.compile(wf.bfloat16_transfer)(VALUES), rounded(VALUES))
    slope = wf.grad(lambda x: wf.reduce_sum(wf.bfloat16_transfer(x) * 1.001))(np.float32([1, 2]))
    np.testing.assert_array_equal(slope, rounded([1.001, 1.001]))
    with pytest.raises(wf.errors.TypeRuleError, match="takes float32, got"):
        wf.bfloat16_transfer(np.array([1, 2]))


@pytest.mark.parametrize("seed", range(3000, 3010))
def test_random_programs(seed: int) -> None:
    """Branches, loops, state and gradients over three tasks: every part is right IR, and what comes
    out does not depend on the order in which things happen."""
    graph, inputs, state, host = step_of(seed)
    made = partition(place_at_random(graph, seed, 3, stay=seed % 4 / 4), bfloat16=True)
    for part in made.parts:
        verify(part.graph)
    assert all(e.type.dtype is not wf.float32 or not e.type.shape for e in made.edges)
    first, second = (
        interpret_parts(made.parts, inputs, DictState(state), schedule=n, host=host())
        for n in (seed, seed + 1)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
