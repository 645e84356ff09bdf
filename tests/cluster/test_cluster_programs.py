"""Random programs over the tasks of a cluster give what they give in one process, and end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from session_programs import arrays, build
from shares import every

import weft as wf
from weft.runtime.cluster.server import Server


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    servers = Server.create_local_cluster({"ps": 1, "worker": 2})
    try:
        yield servers[1].target
    finally:
        for server in servers:
            server.stop()


def outcome(seed: int, target: str) -> list[list[Any]]:
    """What two steps give, and the variables afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, init, feeds, fetches = build(seed, placed=bool(target))
    found = []
    options = wf.RunOptions(timeout=10)
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        for k in range(2):
            given = dict(zip(feeds, arrays(seed + k), strict=True))
            found.append(session.run(fetches, given, options))
        with graph.as_default():
            found.append(session.run(wf.global_variables()))
    return found


def check(seed: int, target: str) -> None:
    wanted = outcome(seed, "")
    try:
        found = outcome(seed, target)
    finally:
        wf.Session.reset(target)
    for a, b in zip(wanted, found, strict=True):
        for x, y in zip(map(np.asarray, a), map(np.asarray, b), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            if x.dtype.kind in "biuOS":
                assert x.tolist() == y.tolist()
            else:  # native code may round otherwise where the cut ends a kernel
                near = 3e-2 if x.dtype.itemsize == 2 else 1e-4
                np.testing.assert_allclose(
                    x.astype(np.complex128), y.astype(np.complex128), rtol=near, atol=near
                )


@pytest.mark.parametrize("first", every(2, [0, 5]))
def test_a_few(first: int, target: str) -> None:
    for seed in range(first, first + 5):
        check(seed, target)


@pytest.mark.slow
def test_many(target: str) -> None:
    for seed in range(100, 140):
        check(seed, target)
