"""What a process holds levels off: steps, new shapes, functions that come and go."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime.native.api import native_api

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc/self/smaps_rollup"),
]

MB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in RAM, exactly (statm is not)."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Rss")


def make_step(width: int = 64) -> Callable[[Any], Any]:
    """A training step with Adam: products, row kernels, state."""
    rng = np.random.default_rng(0)
    w = wf.Variable(rng.standard_normal((width, width)).astype(np.float32))
    b = wf.Variable(np.zeros(width, np.float32))
    optimizer = wf.train.AdamOptimizer(1e-3)

    @wf.compile
    def step(x: Any) -> Any:
        hidden = wf.nn.softmax(wf.matmul(wf.nn.relu(wf.matmul(x, w) + b), w) + b)
        loss = wf.mean(hidden * hidden)
        optimizer.minimize(loss)
        return loss

    return step


def rows(n: int, width: int = 64) -> Any:
    return np.random.default_rng(n).standard_normal((n, width)).astype(np.float32)


def test_ten_thousand_steps() -> None:
    step, x = make_step(), rows(50)
    for _ in range(2000):
        step(x)
    before = resident()
    for _ in range(10_000):
        step(x)
    assert resident() - before < MB


def test_results_of_changing_sizes() -> None:
    """Their blocks are kept for reuse, not for ever."""
    f = wf.compile(lambda x: x * 2)
    native_api()
    given = [np.ones(1 << k, np.float32) for k in range(10, 20)]
    for x in given * 20:
        f(x)
    before = resident()
    for x in given * 500:
        f(x)
    assert resident() - before < MB


@pytest.mark.filterwarnings("ignore:.*different signatures")
def test_new_shapes_beyond_the_limit() -> None:
    """256 specialisations are kept, then one goes for each that comes; kernels are shared."""
    step = make_step(8)
    sizes = np.random.default_rng(0).permutation(np.arange(2, 800))
    for n in sizes[:400]:
        step(rows(n, 8))
    before = resident()
    for n in sizes[400:600]:
        step(rows(n, 8))
    assert resident() - before < 6 * MB


def test_a_specialisation_is_small() -> None:
    """What is kept for a new shape is its traced graph and its table, no other graphs."""
    step = make_step(8)
    for n in range(2, 40):
        step(rows(n, 8))
    before = resident()
    for n in range(40, 140):
        step(rows(n, 8))
    assert (resident() - before) / 100 < 250_000


def test_two_hundred_recompilations_of_a_function() -> None:
    """A function that is made anew for each shape leaves nothing but what shapes share."""
    for n in range(2, 40):
        make_step()(rows(n))
    before = resident()
    for n in range(40, 240):
        make_step()(rows(n))
    assert resident() - before < 2 * MB


def test_functions_that_are_dropped() -> None:
    x = rows(20)
    for _ in range(20):
        make_step()(x)
    before = resident()
    for _ in range(200):
        make_step()(x)
    assert resident() - before < MB


def test_sessions_that_are_dropped() -> None:
    def run() -> None:
        graph = wf.Graph()
        with graph.as_default():
            x = wf.placeholder("f32", [None, 64])
            y = wf.reduce_sum(wf.nn.relu(x * 3.0))
            with wf.Session() as session:
                session.run(y, feed_dict={x: rows(8)})

    for _ in range(50):
        run()
    before = resident()
    for _ in range(300):
        run()
    assert resident() - before < MB
