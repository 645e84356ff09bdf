"""Real programs over several devices, bit for bit: an LSTM with its gradients, digits training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from layers_in_parts import cut as cut_in_parts
from layers_in_parts import held_of, same
from placed_programs import place_at_random

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.types import RefType
from weft.passes.partition.partition import partition
from weft.passes.pipelines import REPRODUCIBLE
from weft.passes.simplify.effects import strip_gradient_ops
from weft.runtime.native.executable import compile_graph

SIZE = 4


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def cell(w: Any, b: Any, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    z = wf.concat([x, h], axis=1) @ w + b
    i, f, g, o = (z[:, k * SIZE : (k + 1) * SIZE] for k in range(4))
    c = wf.sigmoid(f) * c + wf.sigmoid(i) * wf.tanh(g)
    return wf.sigmoid(o) * wf.tanh(c), c


def scanned(w: Any, b: Any, xs: Any, h: Any, c: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        made = cell(w, b, x, *carry)
        return made, made[0]

    _, ys = wf.scan(step, (h, c), xs)
    return wf.sum(ys**2)


def looped(w: Any, b: Any, xs: Any, h: Any, c: Any) -> Any:
    """The same as a while whose length depends on the data: its gradient pops from stacks."""

    def going(i: Any, h: Any, c: Any) -> Any:
        return (i < xs.shape[0]) & (wf.sum(h) < 1e6)

    def body(i: Any, h: Any, c: Any) -> Any:
        h, c = cell(w, b, xs[i], h, c)
        return i + 1, h, c

    _, h, c = wf.while_loop(going, body, (0, h, c))
    return wf.sum(h * c)


def variables_of(graph: Graph) -> dict[str, Any]:
    """Some values for the variables of a graph."""
    found = {}
    for op in graph.walk():
        if op.name == "variable" and isinstance(op.result.type, RefType):
            held = op.result.type.tensor
            value = np.abs(floats(*held.static_shape)) + np.float32(0.1)
            found[str(op.attrs["name"])] = value.astype(held.dtype.numpy)
    return found


def check(graph: Graph, args: Sequence[Any], seed: int) -> None:
    graph = strip_gradient_ops(graph)
    state = variables_of(graph)
    whole, cut = DictState(state), DictState(state)
    expected = interpret(graph, args, whole)
    made = partition(place_at_random(graph, seed, 3, stay=seed / 4))
    assert len(made.parts) > 1
    found = interpret_parts(made.parts, args, cut, schedule=seed)
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or a.tobytes() == b.tobytes()
    assert whole.values.keys() == cut.values.keys()
    assert all(whole.values[n].tobytes() == cut.values[n].tobytes() for n in whole.values)
    check_compiled(graph, state, args, seed)


def check_compiled(graph: Graph, state: dict[str, Any], args: Sequence[Any], seed: int) -> None:
    """The same for compiled code, in the pipeline for it: one native plan and three parts."""
    whole, held = held_of(state), held_of(state)
    wanted = compile_graph(graph, whole, passes=REPRODUCIBLE).run(list(args))
    same(cut_in_parts(graph, held, args, seed, 3), wanted, graph.name)
    for name, value in whole.items():
        assert value.read().tobytes() == held[name].read().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", [scanned, looped])
def test_lstm(loss: Any, seed: int) -> None:
    shapes = (3 + SIZE, 4 * SIZE), (4 * SIZE,), (5, 2, 3), (2, SIZE), (2, SIZE)
    args = [floats(*shape) for shape in shapes]
    check(wf.compile(wf.value_and_grad(loss, argnums=(0, 1))).trace(*args), args, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_digits(seed: int) -> None:
    """The paper's Figure 1 with Adagrad: weights and slots on devices of their own."""
    w1 = wf.Variable(floats(64, 10), name="w1")
    w2 = wf.Variable(floats(10, 10), name="w2")
    optimizer = wf.train.AdagradOptimizer(0.01)

    def step(x: Any, labels: Any) -> Any:
        logits = wf.nn.relu(x @ w1) @ w2
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(losses)
        optimizer.minimize(loss)
        return loss

    x, labels = floats(8, 64), np.arange(8) % 10
    check(wf.compile(step).trace(x, labels), [x, labels], seed)
