"""Hooks of monitored sessions that write files, and hooks that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitored_model import model
from trace_format import read_trace

import weft as wf

train = wf.train


def test_a_profiler_writes_timelines(tmp_path: Path) -> None:
    with wf.Graph("g").as_default():
        x = wf.placeholder(wf.float32, [2])
        step = train.get_or_create_global_step()
        w = wf.Variable(np.zeros(2, np.float32), name="w")
        update = wf.group(w.assign_add(wf.exp(x)), step.assign_add(1))
        hooks = [
            train.ProfilerHook(save_steps=4, output_dir=tmp_path, steps=2),
            train.StopAtStepHook(last_step=11),
        ]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(update, {x: [0, 0]})
    found = {p.name: read_trace(p.read_text()) for p in tmp_path.iterdir()}
    assert sorted(found) == ["timeline-10.json", "timeline-2.json", "timeline-6.json"]
    for trace in found.values():
        names = [s.name for track in trace.slices.values() for s in track]
        assert names
        half = len(names) // 2
        assert names[:half] == names[half:]  # two steps alike
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least 1"):
        train.ProfilerHook(1, steps=0)


def test_a_saver_hook_by_itself(tmp_path: Path) -> None:
    graph, x, update, _ = model()
    hooks = [train.CheckpointSaverHook(tmp_path, save_steps=2)]
    with graph.as_default(), train.MonitoredTrainingSession(hooks=hooks) as session:
        for _ in range(3):
            session.run(update, {x: 1.0})
    assert wf.train.latest_checkpoint(tmp_path) == str(tmp_path / "model-3.safetensors")


def test_a_hook_that_fails_when_the_session_is_made() -> None:
    class Failing(train.SessionRunHook):
        def after_create_session(self, session: wf.Session, coord: Any) -> None:
            raise wf.errors.FailedPreconditionError("of its own")

    servers = train.Server.create_local_cluster({"worker": 1})
    try:
        graph = model()[0]
        with graph.as_default(), pytest.raises(wf.errors.FailedPreconditionError, match="of its"):
            train.MonitoredTrainingSession(servers[0].target, hooks=[Failing()])
    finally:
        servers[0].stop()
