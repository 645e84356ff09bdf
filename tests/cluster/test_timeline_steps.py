"""Several traced steps of a cluster in one trace."""

from __future__ import annotations

import numpy as np
import pytest
from trace_format import read_trace

import weft as wf

TRACE = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


def test_several_steps_in_one_trace() -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 2})
    try:
        with wf.Graph().as_default():
            x = wf.placeholder(wf.float32, [8, 8])
            with wf.device("/job:ps/task:0"):
                w = wf.Variable(np.float32(1.0), name="w")
            towers = []
            for task in range(2):
                with wf.device(f"/job:worker/task:{task}"):
                    towers.append(wf.sum(wf.matmul(x, x) * w.read()))
            with wf.device("/job:ps/task:0"):
                total = towers[0] + towers[1]
            with wf.Session(servers[0].target) as session:
                session.run(wf.global_variables_initializer())
                runs = [wf.RunMetadata() for _ in range(4)]
                for run in runs:
                    session.run(total, {x: np.ones((8, 8))}, TRACE, run)
    finally:
        for server in servers:
            server.stop()
    trace = read_trace(wf.chrome_trace(runs))
    assert [s.name for s in trace.track("session", "steps")] == [f"step {i}" for i in range(1, 5)]
    assert len(trace.arrows) == 4 * 4
    assert all(sent.name.replace("send", "recv") == came.name for sent, came in trace.arrows)
    first, last = runs[0].timeline, runs[-1].timeline
    assert first is not None
    assert last is not None
    whole = (last.end_ns - first.begin_ns) / 1e3
    assert max(s.end for s in trace.track("critical path")) == pytest.approx(whole)
