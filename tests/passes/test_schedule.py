"""The order of a step's ops: the same results in less memory."""

from __future__ import annotations

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

import weft as wf
from weft.ir.analysis.effects import unordered
from weft.ir.analysis.verify import verify
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph
from weft.passes.manager import run_passes
from weft.passes.memory import schedule as module
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.memory.schedule import order_reasons, schedule
from weft.passes.pipelines import STANDARD

RNG = np.random.default_rng(0)
X = RNG.standard_normal((128, 128), dtype=np.float32)
LABELS = RNG.integers(0, 128, 128)


def anyway(graph: Graph) -> Graph:
    """The pass, however small the graph is and whatever it saves."""
    with (
        patch.object(module, "REORDERED_ARENA_BYTES", 0),
        patch.object(module, "REORDERED_SHARE", -1e9),
    ):
        return schedule(graph)


def weights(layers: int) -> list[Any]:
    rng = np.random.default_rng(1)
    return [0.1 * rng.standard_normal((128, 128), dtype=np.float32) for _ in range(layers)]


def loss_of(params: Any, x: Any, labels: Any) -> Any:
    for w in params[:-1]:
        x = wf.tanh(wf.matmul(x, w))
    logits = wf.matmul(x, params[-1])
    return wf.mean(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def training_step(layers: int = 6) -> tuple[Any, list[Any]]:
    """A step of Adam on variables, and these."""
    params = [wf.Variable(w) for w in weights(layers)]
    optimizer = wf.train.AdamOptimizer(0.01)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        loss = loss_of(params, x, labels)
        optimizer.minimize(loss)
        return loss

    return step, params


def before(step: Any, *args: Any) -> Graph:
    """The graph that the pass is given."""
    traced = step._specialized(args, {}).traced.graph
    return run_passes(traced, [p for p in STANDARD if p is not schedule])[0]


@given(case=graph_and_inputs(stage="traced", max_ops=25))
def test_any_graph_means_the_same(case: Case) -> None:
    assume(bits_are_defined(case.graph))
    new = anyway(case.graph)
    verify(new)
    assert sorted(map(id, new.ops)) == sorted(map(id, case.graph.ops))
    assert len(unordered(new.block)) == len(unordered(case.graph.block))
    for a, b in zip(results(case.graph, case), results(new, case), strict=True):
        assert exactly(a, b)


def anyhow(graph: Graph) -> Graph:
    """For compiled code: `anyway`, by a name of its own."""
    return anyway(graph)


@given(case=graph_and_inputs(stage="traced", max_ops=20, dtypes=WHOLE))
@examples(40)
def test_compiled_code_too(case: Case) -> None:
    check_exactly(case, (*PIPELINE, anyhow))


def test_updates_come_when_their_gradients_are_there() -> None:
    step, params = training_step()
    graph = before(step, X, LABELS)
    after = schedule(graph)
    verify(after)
    old, new = plan_memory(graph), plan_memory(after)
    assert new.arena_bytes < 0.8 * old.arena_bytes
    assert len(new.copies) <= len(old.copies)
    (why,) = order_reasons(graph)
    assert f"{old.arena_bytes} bytes of the arena as written, {new.arena_bytes} so" in why
    assert why in step.explain(X, LABELS)
    losses = [float(step(X, LABELS)) for _ in range(4)]
    with patch.object(module, "REORDERED_ARENA_BYTES", 1 << 40):
        other, others = training_step()
        assert [float(other(X, LABELS)) for _ in range(4)] == losses
    for a, b in zip(params, others, strict=True):
        assert (a.numpy() == b.numpy()).all()


def test_reasons_of_graphs_that_keep_their_order() -> None:
    small = wf.compile(lambda x: wf.sum(wf.tanh(x)))
    assert "stay in the caches" in order_reasons(before(small, X[:8]))[0]
    chain = wf.compile(lambda x: wf.matmul(wf.matmul(wf.matmul(x, x), x), x))
    large = np.tile(X, (2, 2))
    assert order_reasons(before(chain, large)) == ["as written: no op could free memory earlier"]
    assert schedule(before(chain, large)) == before(chain, large)


def test_donated_parameters_are_still_overwritten() -> None:
    @wf.compile(donate=("params",))
    def step(params: Any, x: Any, labels: Any) -> Any:
        grads = wf.grad(loss_of)(params, x, labels)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

    first = [wf.constant(w) for w in weights(6)]
    held = [t.__array_interface__["data"][0] for t in first]
    after = step(first, X, LABELS)
    assert sorted(t.__array_interface__["data"][0] for t in after) == sorted(held)


def test_a_failing_step_leaves_variables_alone() -> None:
    held = wf.Variable(np.zeros((256, 256), np.float32))

    @wf.compile
    def step(x: Any, rows: Any) -> Any:
        h = wf.tanh(x)
        y = wf.matmul(wf.matmul(wf.matmul(x, x), x), x)
        picked = wf.take(y, rows, axis=0)
        held.assign(held + wf.matmul(h, h))
        return picked

    big = np.tile(X, (2, 2))
    step(big, np.array([1, 2]))
    seen = held.numpy().copy()
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        step(big, np.array([1, 300]))
    assert (held.numpy() == seen).all()
