"""Synchronous training with backup workers, the paper's section 4.4, out of accumulators and a
queue of tokens: each worker is a thread with a graph and a session of its own, and what they share
they find by name.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from at_once import at_once

import weft as wf

Array = np.ndarray[Any, Any]
LEARNING_RATE = 0.125
_numbers = itertools.count()


class Replica:
    """A graph of its own over the shared model: `work` adds one gradient, `update` takes the mean
    of `required` of them and hands out `workers` tokens."""

    def __init__(self, name: str, dtype: wf.DType, workers: int, required: int) -> None:
        self.graph = wf.Graph(name)
        with self.graph.as_default():
            self.w = wf.Variable(np.zeros(3, dtype.numpy), shared_name=f"{name}/w")
            self.b = wf.Variable(np.zeros((), dtype.numpy), shared_name=f"{name}/b")
            self.step = wf.Variable(np.int64(0), shared_name=f"{name}/step")
            grads = [
                wf.ConditionalAccumulator(dtype, v.shape, shared_name=f"{name}/grad{i}")
                for i, v in enumerate((self.w, self.b))
            ]
            self.accumulators = grads
            tokens = wf.FIFOQueue(-1, wf.int64, [[]], shared_name=f"{name}/tokens")
            self.x, self.y = wf.placeholder(dtype, [None, 3]), wf.placeholder(dtype, [None])
            # the token is the step that the worker computes for; it reads the model afterwards
            self.token = tokens.dequeue()
            with wf.control_dependencies([self.token]):
                self.gradients = self._gradients()
            self.work = [
                a.apply_grad(g, self.token) for a, g in zip(grads, self.gradients, strict=True)
            ]
            means = [a.take_grad(required) for a in grads]
            done = [
                v.assign_sub(LEARNING_RATE * g)
                for v, g in zip((self.w, self.b), means, strict=True)
            ]
            with wf.control_dependencies(done):
                now = self.step.assign_add(1)
            self.update = tokens.enqueue_many(wf.broadcast_to(now, (workers,)))
            self.end = tokens.close()
            self.begin = tokens.enqueue_many(np.zeros(workers, np.int64))
            self.init = wf.global_variables_initializer()
        self.session = wf.Session(graph=self.graph)

    def _gradients(self) -> list[Any]:
        residual = wf.matmul(self.x, self.w) + self.b - self.y
        return list(wf.gradients(wf.mean(wf.square(residual)), [self.w, self.b]))

    def compute(self, x: Array, y: Array) -> int:
        """One gradient, for the step of the next token, which is given back. It is dropped if the
        token was left over from an earlier step."""
        token, *_ = self.session.run([self.token, *self.work], {self.x: x, self.y: y})
        return int(token)

    def model(self) -> tuple[Array, Array]:
        """The weights now."""
        return self.w.numpy().copy(), self.b.numpy().copy()


def replicas(count: int, dtype: wf.DType, required: int) -> list[Replica]:
    """A chief and `count` workers over one new model."""
    name = f"sync{next(_numbers)}"
    made = [Replica(name, dtype, count, required) for _ in range(count + 1)]
    chief = made[0].session
    chief.run(made[0].init)
    chief.run(made[0].begin)
    return made


def alone(x: Array, y: Array, steps: int) -> tuple[Array, Array]:
    """One process on the whole batch, in NumPy."""
    w, b = np.zeros(3, x.dtype), np.zeros((), x.dtype)
    for _ in range(steps):
        residual = x @ w + b - y
        grad_w, grad_b = 2 * x.T @ residual / len(x), 2 * residual.sum() / len(x)
        w, b = w - LEARNING_RATE * grad_w, b - LEARNING_RATE * grad_b
    return w, b


def batches(dtype: Any, workers: int, whole: bool) -> tuple[Array, Array]:
    """[workers, 4, 3] and [workers, 4]; whole: such that every sum is exact, in any order."""
    rng = np.random.default_rng(7)
    x = rng.integers(-1, 2, (workers, 4, 3)) if whole else rng.normal(size=(workers, 4, 3))
    y = rng.integers(-4, 5, (workers, 4)) if whole else rng.normal(size=(workers, 4))
    return x.astype(dtype), y.astype(dtype)


@pytest.mark.parametrize("whole", [True, False])
def test_it_is_training_on_the_concatenated_batch(whole: bool) -> None:
    """Where the sums are exact: bit for bit, whatever the order of arrival."""
    workers, steps = 4, 5
    chief, *others = replicas(workers, wf.float64, workers)
    x, y = batches(np.float64, workers, whole)

    # a token is taken by whoever comes first: a fast worker may take two in one step, so each
    # takes its turn here
    turns = threading.Barrier(workers + 1)

    def in_step(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                call()
                turns.wait(60)

        return run

    calls = [in_step(partial(others[k].compute, x[k], y[k])) for k in range(workers)]
    at_once([in_step(lambda: chief.session.run(chief.update)), *calls])
    wanted = alone(x.reshape(-1, 3), y.reshape(-1), steps)
    for got, want in zip(chief.model(), wanted, strict=True):
        if whole:
            assert got.tobytes() == want.tobytes()
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert chief.step.numpy() == steps
    assert others[0].w.numpy().tolist() == chief.w.numpy().tolist()  # one variable


def test_in_the_order_of_the_workers_the_bits_are_fixed() -> None:
    """The sum is in order of arrival. Who makes the workers arrive in a fixed order (each adds its
    gradient when it has the baton) has the bits of ((g0 + g1) + g2) + ..., divided by their number.
    """
    workers, steps = 3, 4
    chief, *others = replicas(workers, wf.float32, workers)
    x, y = batches(np.float32, workers, False)
    seen: list[list[Array]] = []
    for _ in range(steps):
        before = chief.model()
        grads = []
        for k in range(workers):
            feeds = {others[k].x: x[k], others[k].y: y[k]}
            *_, gw, gb = others[k].session.run([*others[k].work, *others[k].gradients], feeds)
            grads.append((gw, gb))
        chief.session.run(chief.update)
        for i, (old, new) in enumerate(zip(before, chief.model(), strict=True)):
            total = (grads[0][i] + grads[1][i]) + grads[2][i]
            mean = (total / np.float32(workers)).astype(np.float32)
            assert new.tobytes() == (old - np.float32(LEARNING_RATE) * mean).tobytes()
        seen.append(list(chief.model()))
    assert not np.array_equal(seen[0][0], seen[-1][0])


def test_backup_workers_and_stale_gradients() -> None:
    """The first 2 of 3 make a step; what the third computed for it is dropped."""
    chief, fast, second, slow = replicas(3, wf.float64, 2)
    x, y = batches(np.float64, 3, True)
    release, holds = threading.Event(), threading.Event()

    def late() -> None:
        with slow.graph.as_default():
            step = wf.placeholder(wf.int64, [])
            late_work = [
                a.apply_grad(g, step)
                for a, g in zip(slow.accumulators, slow.gradients, strict=True)
            ]
        token = slow.session.run(slow.token)
        assert token == 0
        holds.set()
        assert release.wait(60)
        grads = [np.full(3, 1e9), np.array(1e9)]
        feeds = dict(zip(slow.gradients, grads, strict=True))
        slow.session.run(late_work, {step: token, **feeds})

    def others() -> None:
        assert holds.wait(60)
        for step in range(3):
            at_once([partial(fresh, fast, 0, step), partial(fresh, second, 1, step)])
            chief.session.run(chief.update)
        release.set()

    def fresh(replica: Replica, k: int, step: int) -> None:
        while replica.compute(x[k], y[k]) < step:
            pass  # the third worker's token of the step before

    at_once([late, others])
    wanted = alone(x[:2].reshape(-1, 3), y[:2].reshape(-1), 3)
    for got, want in zip(chief.model(), wanted, strict=True):
        assert got.tobytes() == want.tobytes()
    assert chief.step.numpy() == 3
    waiting = [a._accumulator.num_accumulated() for a in chief.accumulators]
    assert waiting == [0, 0]  # the late gradient is in no sum


def test_it_learns_with_free_running_workers() -> None:
    """No order at all: workers run until the tokens end."""
    workers, steps = 4, 60
    chief, *others = replicas(workers, wf.float32, workers - 1)
    rng = np.random.default_rng(0)
    truth = np.array([1.0, -2.0, 0.5], np.float32)

    def worker(k: int) -> None:
        own = np.random.default_rng(k)
        while True:
            x = own.normal(size=(16, 3)).astype(np.float32)
            try:
                others[k].compute(x, x @ truth + np.float32(0.25))
            except wf.errors.OutOfRangeError:  # there are no more tokens
                return

    def lead() -> None:
        try:
            for _ in range(steps):
                chief.session.run(chief.update, options=wf.RunOptions(timeout=30))
        finally:
            chief.session.run(chief.end)

    at_once([lead, *[partial(worker, k) for k in range(workers)]])
    assert chief.step.numpy() == steps
    x = rng.normal(size=(100, 3)).astype(np.float32)
    w, b = chief.model()
    assert np.abs(x @ w + b - (x @ truth + 0.25)).max() < 0.05
