"""Tensors that are computed again behind the peak of memory: the same bits in less of it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compiled_checks import PIPELINE
from example_counts import examples
from graphs import Case, graph_and_inputs
from hypothesis import assume, given
from interpreter_checks import bits_are_defined, exactly, results
from random_graph_checks import WHOLE, check_exactly
from structured_programs import programs

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.passes.fusion import recompute as module
from weft.passes.fusion.fuse import fuse
from weft.passes.fusion.recompute import rematerialization_reasons, rematerialize
from weft.passes.manager import run_passes
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.memory.schedule import copied_bytes
from weft.passes.pipelines import STANDARD
from weft.passes.simplify.effects import order_effects


def with_limits(**limits: float) -> ExitStack:
    """The module's limits changed, for small tensors."""
    stack = ExitStack()
    for name, value in {
        "REMATERIALIZED_ARENA_BYTES": 0,
        "REMATERIALIZED_BYTES": 1,
        **limits,
    }.items():
        stack.enter_context(patch.object(module, name, value))
    return stack


def anyway(graph: Graph) -> Graph:
    """The pass, however small the graph is, whatever it saves and however long it takes."""
    with with_limits(REMATERIALIZED_TIME=1e9, REMATERIALIZED_SHARE=-1e9, ROUNDS=2):
        return rematerialize(graph)


@given(case=graph_and_inputs(stage="optimized", max_ops=25))
@examples(60)
def test_any_graph_means_the_same(case: Case) -> None:
    assume(bits_are_defined(case.graph))
    new = anyway(fuse(case.graph))
    verify(new)
    for a, b in zip(results(case.graph, case), results(new, case), strict=True):
        assert exactly(a, b)


@given(programs(effects=True))
@examples(60)
def test_programs_with_variables_mean_the_same(program: Case) -> None:
    old, new = DictState(dict(program.state)), DictState(dict(program.state))
    wanted = interpret(program.graph, program.inputs, old)
    got = interpret(anyway(fuse(program.graph)), program.inputs, new)
    for a, b in zip(got, wanted, strict=True):
        assert (a is None and b is None) or exactly(a, b)
    assert all(exactly(old.values[name], new.values[name]) for name in old.values)


def anyhow(graph: Graph) -> Graph:
    """For compiled code: `anyway`, by a name of its own."""
    return anyway(graph)


@given(case=graph_and_inputs(stage="traced", max_ops=20, dtypes=WHOLE))
@examples(30)
def test_compiled_code_too(case: Case) -> None:
    check_exactly(case, (*PIPELINE, anyhow))


def training_step(rows: int = 256, n: int = 64) -> tuple[Any, list[Any], tuple[Any, Any]]:
    """A step of two layers, each behind a norm with a trained gain, with its variables."""
    rng = np.random.default_rng(1)
    shapes = [(n,), (n, n), (n,), (n, 4 * n), (4 * n, 8)]
    params = [wf.Variable((1 + 0.1 * rng.standard_normal(s)).astype(np.float32)) for s in shapes]
    optimizer = wf.train.AdamOptimizer(0.01)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        gain, w, gain2, up, head = params
        h = x + wf.matmul(wf.nn.layer_norm(x, -1) * gain, w)
        h = wf.nn.gelu(wf.matmul(wf.nn.layer_norm(h, -1) * gain2, up))
        logits = wf.matmul(h, head)
        loss = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        optimizer.minimize(wf.mean(loss))
        return wf.mean(loss)

    x = rng.standard_normal((rows, n), dtype=np.float32)
    return step, params, (x, rng.integers(0, 8, rows))


WRITTEN = """
graph @written(%x: f32[64,8], %w: f32[8,8]) -> (f32[8,8]) stage=traced {
  %v = variable() {name="v", dtype=f32, shape=[8]} : ref<f32[8]>
  %r = read(%v) : f32[8]
  %s = broadcast_to(%r) {shape=[64, 8]} : f32[64,8]
  %h = multiply(%x, %s) : f32[64,8]
  %a = matmul(%h, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %b = matmul(%a, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %c = matmul(%b, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %ab = multiply(%a, %b) : f32[64,8]
  %abc = multiply(%ab, %c) : f32[64,8]
  %d = matmul(%abc, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %n = sum(%d) {axes=[0], keepdims=false} : f32[8]
  %1 = assign(%v, %n) : token
  %g = matmul(%h, %d) {transpose_a=true, transpose_b=false} : f32[8,8]
  return %g
}
"""


def test_what_reads_a_variable_runs_before_it_is_written() -> None:
    graph = fuse(order_effects(parse_graph(WRITTEN)))
    with with_limits(REMATERIALIZED_TIME=1.0):
        after = rematerialize(graph)
    names = [op.attrs.get("kind", op.name) for op in after.ops]
    assert names.count("multiply") == 2
    again = len(names) - 1 - names[::-1].index("multiply")
    assert names.index("multiply_multiply") < again < names.index("sum") < names.index("assign")


CHAIN = """
graph @chain(%x: f32[64,8], %w: f32[8,8]) -> (f32[8,8], f32[{rows},8]) stage=traced {
  %h = exp(%x) : f32[64,8]
  %a = matmul(%h, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %b = matmul(%a, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %c = matmul(%b, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %g = matmul(%h, %c) {transpose_a=true, transpose_b=false} : f32[8,8]
  %d = matmul(%c, %w) {transpose_a=false, transpose_b=false} : f32[64,8]
  %s = slice(%d) {starts=[0, 0], stops=[{rows}, 8], steps=[1, 1]} : f32[{rows},8]
  return %g, %s
}
"""


@pytest.mark.parametrize(("rows", "times"), [(64, 1), (63, 2)])
def test_a_result_may_be_written_over_an_input_of_its_type(rows: int, times: int) -> None:
    graph = fuse(parse_graph(CHAIN.replace("{rows}", str(rows))))
    with with_limits(REMATERIALIZED_TIME=1.0):
        after = rematerialize(graph)
    assert [op.attrs.get("kind") for op in after.ops].count("exp") == times


def before(step: Any, *args: Any) -> Graph:
    """The graph that the pass is given."""
    traced = step._specialized(args, {}).traced.graph
    return run_passes(traced, STANDARD[: STANDARD.index(rematerialize)])[0]


def test_a_norm_is_computed_again_behind_the_peak() -> None:
    with with_limits(REMATERIALIZED_TIME=1.0):
        step, params, batch = training_step()
        graph = before(step, *batch)
        reasons = rematerialization_reasons(graph)
        after = rematerialize(graph)
        verify(after)
        old, new = plan_memory(graph), plan_memory(after)
        assert new.arena_bytes < 0.95 * old.arena_bytes
        assert copied_bytes(new) <= copied_bytes(old)
        assert reasons, "nothing was computed again"
        assert "computed again after the peak" in reasons[0]
        assert reasons[0] in step.explain(*batch)
        losses = [float(step(*batch)) for _ in range(4)]
    other, others, _ = training_step()
    assert rematerialize(before(other, *batch)) == before(other, *batch), "small steps stay"
    assert [float(other(*batch)) for _ in range(4)] == losses
    for a, b in zip(params, others, strict=True):
        assert (a.numpy() == b.numpy()).all()


def test_no_more_than_a_share_of_the_time() -> None:
    step, _, batch = training_step()
    graph = before(step, *batch)
    with with_limits(REMATERIALIZED_TIME=0.0):
        assert rematerialize(graph) is graph
        assert rematerialization_reasons(graph) == []
