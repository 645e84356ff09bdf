"""Metrics, moving averages, and optimizers that decide at run time, in a graph of two tasks: what a
session of one process gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from clusters import local_cluster

import weft as wf

pytestmark = pytest.mark.net

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Z = (X[:, 0] > 0).astype(np.int64)


def trained(target: Any, ps: str | None, worker: str | None) -> list[Any]:
    """Five steps, the third of which has an infinite gradient."""
    with wf.Graph().as_default():
        with wf.device(ps):
            w = wf.Variable(np.zeros((3, 1), np.float32), name="w")
        with wf.device(worker):
            x, z = wf.placeholder(wf.float32, [None, 3]), wf.placeholder(wf.int64, [None])
            logits = (x @ w)[:, 0]
            loss = wf.losses.sigmoid_cross_entropy(z, logits)
            inner = wf.train.GradientAccumulation(wf.train.Lamb(0.1), 2)
            optimizer = wf.train.LossScaling(inner, 8.0)
            train = optimizer.minimize(loss, [w])
            averages = wf.train.ExponentialMovingAverage(0.5)
            with wf.control_dependencies([train]):
                follow = averages.apply([w])
            _, area = wf.metrics.auc(z, wf.sigmoid(logits))
            held = [w, averages.average(w), optimizer.loss_scale()]
        begin = [wf.global_variables_initializer(), wf.tf1.local_variables_initializer()]
        with wf.Session(target) if target else wf.Session() as session:
            session.run(begin)
            seen = []
            for i in range(5):
                given = np.full_like(X, np.inf) if i == 2 else X
                seen.append(session.run([follow, area], {x: given, z: Z})[1])
                seen += session.run(held)
    return seen


def test_two_tasks() -> None:
    expected = trained(None, None, None)
    with local_cluster({"ps": 1, "worker": 1}) as servers:
        got = trained(servers[-1].target, "/job:ps/task:0", "/job:worker/task:0")
    assert len(got) == len(expected) == 20
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert [float(v) for v in got[3::4]] == [8, 8, 4, 4, 4]
    assert float(np.abs(got[-3]).max()) > 0.05
