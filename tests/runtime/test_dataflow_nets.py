"""Random dataflow graphs (`dataflow_nets`): the executor gives what the interpreter gives, and does
the same effects; where the interpreter raises, it raises, too; and it leaves no memory behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dataflow_net_checks import agree, held, seeded, variables_of
from dataflow_nets import Net, nets
from example_counts import examples
from hypothesis import assume, event, given

from weft.ir.errors import InvalidArgumentError
from weft.runtime.dataflow.executor import DataflowStep

Array = np.ndarray[Any, Any]


@given(nets())
@examples(60)
def test_a_net(net: Net | None) -> None:
    assume(net is not None)
    assert net is not None
    event(agree(net))


def compare_many(seeds: range, size: int) -> dict[str, int]:
    kinds = {"values": 0, "error": 0, "effects without an order": 0}
    for seed in seeds:
        net = seeded(seed, size)
        if net is not None:
            kinds[agree(net)] += 1
    return kinds


def test_many_nets() -> None:
    kinds = compare_many(range(40), 8)
    assert kinds["values"] > 10
    assert kinds["error"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4000, 1000))
def test_very_many_nets(first: int) -> None:
    compare_many(range(10_000 + first, 11_000 + first), 9)


def test_steps_leave_no_memory_behind() -> None:
    kept = 0
    for seed in range(40):
        net = seeded(seed, 7)
        if net is None:
            continue
        step = DataflowStep(net.graph, variables_of(net))
        arrays = [np.ascontiguousarray(x) for x in net.inputs]
        try:
            for _ in range(3):
                step.run(arrays)
        except InvalidArgumentError:
            continue
        first = held(step._idle[0].state)
        for _ in range(10):
            step.run(arrays)
        (running,) = step._idle
        assert held(running.state) == first
        assert first[2] == 0
        kept += 1
    assert kept > 10
