"""The graph that tests of monitored sessions train."""

from __future__ import annotations

from typing import Any

import weft as wf

train = wf.train
Graph = tuple[wf.Graph, Any, Any, wf.Variable]


def model() -> Graph:
    """w <- w + x at each step; returns (graph, x, update, w)."""
    graph = wf.Graph("monitored")
    with graph.as_default():
        x = wf.placeholder(wf.float32, [], name="x")
        w = wf.Variable(1.0, name="w")
        step = train.get_or_create_global_step()
        update = wf.group(w.assign_add(x), step.assign_add(1), name="update")
    return graph, x, update, w
