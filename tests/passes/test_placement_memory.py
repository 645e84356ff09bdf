"""Predicted memory of a step beside the plan of the step that runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.program import Program
from weft.ir.text.parser import parse_graph
from weft.passes.manager import PassOptions, run_pipeline
from weft.passes.pipelines import PIPELINES, before_placement
from weft.passes.placement import Device, place

DEVICE = Device("/job:localhost/task:0/cpu:0")


def dense(activation: Any, batch: int, wide: int) -> tuple[Any, Any]:
    """What a step of a net of three layers fetches and is fed."""
    x = wf.placeholder(wf.float32, [batch, wide], name="x")
    y = x
    for _ in range(3):
        y = activation(y @ wf.Variable(np.zeros((wide, wide), np.float32)))
    loss = wf.mean(y * y)
    return [loss, wf.train.SGD(0.1).minimize(loss)], x


def convolved(batch: int) -> tuple[Any, Any]:
    """The same of convolutions."""
    x = wf.placeholder(wf.float32, [batch, 16, 16, 32], name="x")
    y = x
    for _ in range(3):
        y = wf.nn.relu(wf.nn.conv2d(y, wf.Variable(np.zeros((3, 3, 32, 32), np.float32))))
    loss = wf.mean(y * y)
    return [loss, wf.train.SGD(0.1).minimize(loss)], x


@pytest.mark.parametrize(
    ("made", "most"),
    [
        # activations are most of it; what tanh's gradient takes is computed again from its result
        (lambda: dense(wf.tanh, 2048, 128), 1.05),
        # matrices are most of it; their gradients are written into the variables
        (lambda: dense(wf.nn.relu, 8, 512), 1.2),
        (lambda: convolved(16), 1.3),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_the_plan(made: Any, most: float) -> None:
    with wf.Graph().as_default() as graph:
        fetches, x = made()
        fed = {x: np.zeros(x.shape, np.float32)}
        with wf.Session(graph=graph) as session:
            session.run(wf.global_variables_initializer())
            session.run(fetches, fed, run_metadata=(report := wf.RunMetadata()))
            traced = parse_graph(session.ir(fetches, fed, after="traced"))
    passes = before_placement(PIPELINES["standard"], traced)
    step = run_pipeline(Program.of(traced), passes, options=PassOptions())[0].graph
    (peak,) = place(step, [DEVICE]).predict().peaks
    predicted = peak.nbytes - peak.lasting - fed[x].nbytes
    assert report.executor == "native"
    assert 1 / most <= predicted / report.arena_bytes <= most, (predicted, report.arena_bytes)
