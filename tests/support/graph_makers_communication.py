"""Makers of sends and receives (see `graph_makers`)."""

from __future__ import annotations

import numpy as np
from graphs import GraphMaker

_DEVICES = ("/job:ps/task:0/cpu:0", "/job:worker/task:11/cpu:0")


def communication(m: GraphMaker, op: str) -> None:
    """A send of something, or a receive of anything, under a key of its own."""
    key = sum(o.name in ("send", "recv") for o in m.builder.ops)
    counters = [m.constant(np.array(n)) for n in range(m.int(0, 2))]
    pair = {"key": key, "tensor": f"add_{key}", "src": m.pick(_DEVICES), "dst": m.pick(_DEVICES)}
    if op == "send":
        m.emit(op, [m.some(), *counters], **pair)
        return
    kind = m.some().type
    given = {"dtype": kind.dtype, "shape": kind.shape, "live": m.int(0, 2), "depth": m.int(1, 3)}
    m.emit(op, counters, **pair, **given)
