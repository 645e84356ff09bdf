"""Traced runs of steps on a GPU: an event for each launch and copy, results as ever."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake

import weft as wf

FULL = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


@pytest.fixture(params=["emulated", "faked driver"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulated":
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    else:
        use_fake(monkeypatch)
    return str(request.param)


def _rows(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)


def _traced(session: Any, fetched: Any, fed: Any) -> tuple[Any, wf.RunMetadata]:
    about = wf.RunMetadata()
    return session.run(fetched, fed, options=FULL, run_metadata=about), about


def test_a_traced_step_has_an_event_for_each_launch(driver: str) -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        x = wf.placeholder(wf.float32, [5, 4])
        w = wf.Variable(np.ones((4, 3), np.float32))
        y = wf.sum(wf.tanh(wf.matmul(x, w)), axis=0)
        update = w.assign_sub(w * 0.5)
        session.run(wf.global_variables_initializer())
        plain = session.run(y, {x: _rows(5)})
        result, about = _traced(session, y, {x: _rows(5)})
        np.testing.assert_array_equal(result, plain)
        assert len(about.events) == about.kernels > 0
        assert {"matmul", "tanh", "sum"} <= {name for e in about.events for name in e.ops}
        assert all(e.begin_ns <= e.end_ns for e in about.events)
        if driver != "emulated":  # the fake driver says half a millisecond of each
            assert all(e.end_ns - e.begin_ns <= 500_000 for e in about.events)
        assert all("test_device_traced.py" in str(e.locations[0]) for e in about.events)
        assert len(json.loads(wf.chrome_trace([about]))["traceEvents"]) >= len(about.events)
        _traced(session, update, {})
        np.testing.assert_array_equal(session.run(w), np.full((4, 3), 0.5, np.float32))
        for _ in range(3):  # recordings are as before
            np.testing.assert_allclose(
                session.run(y, {x: _rows(5)}),
                np.tanh(_rows(5) @ np.full((4, 3), 0.5, np.float32)).sum(axis=0), rtol=1e-5,
            )  # fmt: skip


def test_events_of_loops_tell_the_iteration(driver: str) -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        xs = wf.placeholder(wf.float32, [3, 2, 4])

        def body(carry: wf.Tensor, x: wf.Tensor) -> Any:
            inner = wf.while_loop(lambda v: wf.sum(wf.abs(v)) > 1.0, lambda v: v[::-1] * 0.4, x)
            return carry * 0.5 + inner, wf.matmul(carry, wf.matrix_transpose(inner))

        last, _ = wf.scan(body, init=wf.ones((2, 4)), xs=xs)
        fed = {xs: np.ones((3, 2, 4), np.float32)}
        plain = session.run(last, fed)
        for _ in range(2):
            result, about = _traced(session, last, fed)
            np.testing.assert_array_equal(result, plain)
            outer = [e.iteration for e in about.events if e.frame == "scan"]
            assert {number for (number,) in outer} == {0, 1, 2}
            inner = [e.iteration for e in about.events if e.frame == "scan/while"]
            assert {numbers[0] for numbers in inner} == {0, 1, 2}
            assert {numbers[1] for numbers in inner} >= {0, 1, 2}
            np.testing.assert_array_equal(session.run(last, fed), plain)


def test_a_traced_step_that_fails_ends_as_ever(driver: str) -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        index = wf.placeholder(wf.int64, [3])
        y = wf.gather(wf.constant(_rows(6)), index) * 2.0
        with pytest.raises(wf.errors.InvalidArgumentError, match="index 9"):
            _traced(session, y, {index: np.array([0, 9, 1])})
        result, about = _traced(session, y, {index: np.array([0, 5, 1])})
        np.testing.assert_array_equal(result, _rows(6)[[0, 5, 1]] * 2)
        assert about.events
