"""Gradients of loops, placed and partitioned: the bits of the whole, stacks on one device or many.
Random programs are in `test_ways.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.types import StackType
from weft.passes.partition.partition import partition
from weft.passes.placement import CostModel, Device, Links, place
from weft.passes.simplify.effects import strip_gradient_ops

DEVICES = [Device(f"/job:{t}/cpu:0") for t in ("worker/task:0", "worker/task:1", "ps/task:0")]
#: Links so fast that placement uses all devices.
FAST = CostModel(Links(latency_s=1e-9, bytes_per_s=1e15, message_s=0.0))


def check(graph: Graph, args: list[Any], state: dict[str, Any], spread: bool) -> int:
    """Run the graph whole and in parts; how many parts there are."""
    whole, cut = DictState(dict(state)), DictState(dict(state))
    expected = interpret(graph, args, whole)
    placed = place(graph, DEVICES, costs=FAST, soft=True, spread=spread)
    made = partition(placed.graph)
    found = interpret_parts(made.parts, args, cut, schedule=3)
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or a.tobytes() == b.tobytes()
    assert {n: v.tobytes() for n, v in whole.values.items()} == {
        n: v.tobytes() for n, v in cut.values.items()
    }
    return len(made.parts)


SIZE = 4


def looped(w: Any, xs: Any, h: Any) -> Any:
    """A while whose length depends on the data: its gradient pops from stacks."""

    def going(i: Any, h: Any) -> Any:
        return (i < xs.shape[0]) & (wf.sum(h) < 1e6)

    def body(i: Any, h: Any) -> Any:
        return i + 1, wf.tanh(xs[i] @ w + h)

    return wf.sum(wf.while_loop(going, body, (0, h))[1])


def scanned(w: Any, xs: Any, h: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        carry = wf.tanh(x @ w + carry)
        return carry, carry

    return wf.sum(wf.scan(step, h, xs)[1] ** 2)


@pytest.mark.parametrize("loss", [looped, scanned])
@pytest.mark.parametrize("names", [("tanh",), ("matmul", "tanh"), ("sum", "multiply", "add")])
def test_gradients_of_loops(loss: Any, names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    args = [rng.normal(size=n).astype(np.float32) for n in ((SIZE, SIZE), (3, 2, SIZE), (2, SIZE))]
    graph = strip_gradient_ops(wf.compile(wf.value_and_grad(loss, argnums=(0, 2))).trace(*args))
    for k, op in enumerate(o for o in graph.walk() if o.name in names):
        op.device = ("/job:worker/task:1", "/job:ps")[(k + names.index(op.name)) % 2]
    assert check(graph, args, {}, spread=True) > 1
    placed = place(graph, DEVICES, soft=True)
    stacks: dict[str, set[str]] = {}
    for op in placed.graph.walk():
        for value in (*op.operands, *op.results):
            if isinstance(value.type, StackType) and not op.regions:
                stacks.setdefault(str(value.type), set()).add(op.device)
    assert (loss is looped) == bool(stacks)
