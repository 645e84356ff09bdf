"""The pipeline `reproducible` in functions that are compiled in pieces, and in a training on four
tasks. Programs that are cut anywhere are in `test_ways.py`."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from layer_programs import normal

import weft as wf


def test_compiled_functions() -> None:
    """Alone, or with something before and after it, a function has the same bits."""
    x = np.random.default_rng(0).normal(size=(37, 130)).astype(np.float32)
    head = wf.compile(lambda x: wf.tanh(x * 1.25 + 0.5), passes="reproducible")
    body = wf.compile(lambda x: normal(x, x), passes="reproducible")
    tail = wf.compile(lambda x: wf.sum(x * x, axis=0) ** 3, passes="reproducible")
    whole = wf.compile(
        lambda x: (
            wf.sum(normal(wf.tanh(x * 1.25 + 0.5), x) * normal(wf.tanh(x * 1.25 + 0.5), x), axis=0)
            ** 3
        ),
        passes="reproducible",
    )
    assert np.asarray(tail(body(head(x)))).tobytes() == np.asarray(whole(x)).tobytes()


class Digits:
    """The paper's Figure 1: weights on parameter servers, slices of the batch on workers; the
    gradients add up in the order of the slices."""

    def __init__(self, placed: bool) -> None:
        on = wf.device if placed else lambda name: contextlib.nullcontext()
        rng = np.random.default_rng(0)
        with wf.Graph("digits").as_default() as self.graph:
            made = []
            for k, shape in enumerate([(64, 100), (100, 10)]):
                with on(f"/job:ps/task:{k}"):
                    start = (rng.normal(size=shape) / 8).astype(np.float32)
                    made.append(wf.Variable(start, name=f"w{k}"))
            self.x = wf.placeholder(wf.float32, [32, 64], name="x")
            self.labels = wf.placeholder(wf.int64, [32], name="labels")
            losses = []
            for k in range(2):
                half = slice(16 * k, 16 * k + 16)
                with on(f"/job:worker/task:{k}"):
                    hidden = wf.nn.relu(self.x[half] @ made[0])
                    losses.append(
                        wf.mean(
                            wf.nn.sparse_softmax_cross_entropy_with_logits(
                                labels=self.labels[half], logits=hidden @ made[1]
                            )
                        )
                    )
            self.loss = losses[0] + losses[1]
            self.train = wf.train.AdamOptimizer(0.01).minimize(self.loss)
            self.weights = made

    def trained(self, target: str) -> list[bytes]:
        """Losses and weights of 30 steps."""
        rng = np.random.default_rng(1)
        x = rng.normal(size=(32, 64)).astype(np.float32)
        fed = {self.x: x, self.labels: rng.integers(0, 10, 32)}
        with wf.Session(target, graph=self.graph, reproducible=True) as session:
            session.run(wf.global_variables_initializer())
            losses = [session.run([self.loss, self.train], fed)[0] for _ in range(30)]
            assert losses[-1] < losses[0] / 2
            return [np.asarray(v).tobytes() for v in (*losses, *session.run(self.weights))]


@pytest.mark.slow
def test_training_on_four_tasks_is_that_of_one_process() -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 2, "worker": 2})
    try:
        wanted = Digits(placed=False).trained("")
        assert Digits(placed=True).trained(servers[2].target) == wanted
    finally:
        for server in servers:
            server.stop()
