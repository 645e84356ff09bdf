"""Branches, loops and their gradients over the tasks of a cluster, as in a session without one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime.cluster.server import Server

Device = Callable[[str], Any]
#: Makes (placeholders, fetches) under devices.
Model = Callable[[Device], tuple[list[Any], list[Any]]]
PS0, PS1, WORKER = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    servers = Server.create_local_cluster({"ps": 2, "worker": 1})
    try:
        yield servers[-1].target
    finally:
        for server in servers:
            server.stop()


def run(model: Model, device: Device, feeds: list[Any], target: str = "") -> list[Any]:
    graph = wf.Graph()
    with graph.as_default():
        placeholders, fetches = model(device)
        init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        return list(session.run(fetches, dict(zip(placeholders, feeds, strict=True))))


def same(model: Model, feeds: list[Any], target: str) -> None:
    found = run(model, wf.device, feeds, target)
    wanted = run(model, lambda name: contextlib.nullcontext(), feeds)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def loop_and_branch(device: Device) -> tuple[list[Any], list[Any]]:
    """A loop over three tasks with a branch in it, and its gradients."""
    x, n = wf.placeholder(wf.float32, [4], "x"), wf.placeholder(wf.int64, [], "n")
    with device(PS0):
        w = wf.Variable(np.ones(4, np.float32), name="w")
    with device(PS1):
        v = wf.Variable(np.full(4, 0.5, np.float32), name="v")

    def body(i: Any, y: Any) -> Any:
        with device(PS0):
            a = y * w * 0.5
        with device(PS1):
            b = wf.sin(a) + v
        with device(WORKER):
            return i + 1, wf.cond(wf.sum(b) > 2.5, lambda: b * 0.5, lambda: b + a)

    _, y = wf.while_loop(lambda i, y: i < n, body, (wf.constant(0, dtype=wf.int64), x))
    return [x, n], [y, *wf.gradients(wf.sum(y), [x, w, v])]


@pytest.mark.share(2)
@pytest.mark.parametrize("n", [0, 1, 6])
def test_a_loop_with_a_branch_and_gradients(target: str, n: int) -> None:
    same(loop_and_branch, [np.array([1, 2, 3, 4], np.float32), np.int64(n)], target)


def queue_in_a_loop(device: Device) -> tuple[list[Any], list[Any]]:
    """Elements go from a queue on one task through another one to a sum in a third."""
    n = wf.placeholder(wf.int64, [], "n")
    with device(PS0):
        queue = wf.FIFOQueue(100, wf.int64, shapes=[[]])
    with device(PS1):
        total = wf.Variable(np.int64(0), name="total")
    zero = wf.constant(0, dtype=wf.int64)

    def put(i: Any) -> Any:
        with device(WORKER):
            doubled = i * 2
        with device(PS0):
            queue.enqueue(doubled)
        return i + 1

    def take(i: Any, last: Any) -> Any:
        with device(PS0):
            x = queue.dequeue()
        with device(PS1):
            total.assign_add(x * x)
        return i + 1, x

    filled = wf.while_loop(lambda i: i < n, put, [zero])
    with wf.control_dependencies([filled]):
        _, last = wf.while_loop(lambda i, x: i < n, take, (zero, zero))
    with wf.control_dependencies([last]):
        return [n], [last, total.read()]


def test_a_queue_in_a_loop(target: str) -> None:
    same(queue_in_a_loop, [np.int64(7)], target)
