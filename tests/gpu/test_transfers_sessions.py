"""`wf.transfer_guard` and `wf.DeviceArray`s in sessions: what is copied, and what may not be."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver

import weft as wf

ONES = np.ones(3, np.float32)


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    """A placeholder, and what can be had of it: on the CPU, on /gpu:0, and on both."""
    with wf.Graph().as_default() as made:
        x = wf.placeholder(wf.float32, [3], name="x")
        v = wf.Variable(ONES, name="v")
        with wf.device("/gpu:0"):
            wf.name_tensor(x * 2, "on_gpu")
            wf.group(v.assign_add(x), name="update")
            wf.name_tensor(wf.exp(x), "e")
        with wf.device("/gpu:1"):
            wf.name_tensor(x - 1, "on_second")
        with wf.device("/cpu:0"):
            wf.name_tensor(x + 1, "on_cpu")
            wf.name_tensor(wf.sum(made.tensor("e")), "back")
        with wf.device("/gpu:0"):
            wf.name_tensor(made.tensor("on_cpu") * made.tensor("e"), "there")
        v.state.write(ONES)
        yield made


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


def refused(call: Callable[[], Any]) -> str:
    """What the guard says of it, of whose place this file knows."""
    with wf.transfer_guard("disallow"), pytest.raises(wf.errors.FailedPreconditionError) as caught:
        call()
    assert "which wf.transfer_guard disallows" in str(caught.value)
    assert "test_transfers_sessions.py" in str(caught.value)
    return str(caught.value)


def test_feeds_and_fetches_of_a_step_on_a_gpu(two: None, graph: wf.Graph) -> None:
    here, there = wf.to_device(ONES, "gpu:0"), wf.to_device(ONES, "gpu:1")
    with wf.Session(graph=graph) as session:
        text = refused(lambda: session.run("on_gpu", {"x": ONES}))
        assert (
            "feed x of 'graph', f32[3], is a host array or number that is copied to gpu:0" in text
        )
        assert 'feed wf.to_device(x, "gpu:0")' in text
        text = refused(lambda: session.run("on_gpu", {"x": there}))
        assert "feed x of 'graph', f32[3], is an array of gpu:1 that is copied to gpu:0" in text
        text = refused(lambda: session.run("on_gpu", {"x": here}))
        assert "fetch on_gpu of 'graph', f32[3], is copied from gpu:0 to the host" in text
        called = session.make_callable("on_gpu", ["x"])
        assert "feed x of 'graph'" in refused(lambda: called(ONES))
        traced = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
        again: Any = {"options": traced, "run_metadata": wf.RunMetadata()}
        assert "feed x of" in refused(lambda: session.run("on_gpu", {"x": ONES}, **again))
        before = graph.variables[0].state.read().copy()
        refused(lambda: session.run("update", {"x": ONES}))
        np.testing.assert_array_equal(graph.variables[0].state.read(), before)  # nothing has run
        with wf.transfer_guard("disallow"):
            session.run("update", {"x": here})
        np.testing.assert_array_equal(graph.variables[0].state.read(), before + 1)


def test_what_is_on_the_cpu_is_not_guarded(two: None, graph: wf.Graph) -> None:
    given = wf.to_device(ONES, "gpu:0")
    with wf.Session(graph=graph) as session:
        with wf.transfer_guard("disallow"):
            np.testing.assert_array_equal(session.run("on_cpu", {"x": ONES}), ONES + 1)
        text = refused(lambda: session.run("on_cpu", {"x": given}))
        assert "an array f32[3] on gpu:0 is copied to the host" in text
        np.testing.assert_array_equal(session.run("on_cpu", {"x": given}), ONES + 1)


def test_copies_in_a_step_on_several_devices(two: None, graph: wf.Graph) -> None:
    given = wf.to_device(ONES, "gpu:0")
    with wf.Session(graph=graph) as session:
        text = refused(lambda: session.run("back", {"x": ONES}))
        assert (
            "feed x of 'graph', f32[3], is a host array or number that is copied to gpu:0" in text
        )
        text = refused(lambda: session.run("back", {"x": given}))
        found = r"a step of 'graph' copies '\S+', f32\[3\] \(made at \S*test_transfers_sessions.py:"
        assert re.search(found + r"\d+\), from gpu:0 to cpu:0", text)
        text = refused(lambda: session.run("there", {"x": ONES}))  # fed to the CPU, too
        assert "fetch there of 'graph', f32[3], is copied from gpu:0 to the host" in text
        text = refused(lambda: session.run(["on_second", "on_gpu"], {"x": given}))
        assert "is an array of gpu:0 that is copied to gpu:1" in text


@pytest.mark.parametrize(
    ("fetch", "expected"),
    [
        ("on_gpu", ONES * 2),
        ("on_second", ONES - 1),
        ("back", np.float32(3 * np.exp(np.float32(1)))),
        ("there", 2 * np.exp(ONES)),
        (["on_second", "on_gpu", "on_cpu"], [ONES - 1, ONES * 2, ONES + 1]),
    ],
)
@pytest.mark.parametrize("device", ["gpu:0", "gpu:1"])
def test_arrays_on_a_gpu_are_fed_wherever_they_are_read(
    two: None, graph: wf.Graph, fetch: Any, expected: Any, device: str
) -> None:
    with wf.Session(graph=graph) as session:
        for _ in range(2):
            made = session.run(fetch, {"x": wf.to_device(ONES, device)})
            for a, b in zip(np.atleast_2d(made), np.atleast_2d(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_is_fed_stays_on_its_gpu(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch, graph: wf.Graph
) -> None:
    api = fake(devices=2)
    given = wf.to_device(ONES, "gpu:0")
    with wf.Session(graph=graph) as session:
        for fetches in ("on_gpu", "back"):
            for _ in range(3):
                session.run(fetches, {"x": given})
            begun = len(api.calls)
            session.run(fetches, {"x": given})
            calls = api.calls[begun:]
            assert "upload" not in calls
            session.run(fetches, {"x": ONES})
            assert "upload" in api.calls[begun + len(calls) :]
    assert given._copy is None


def test_feeds_that_do_not_fit(two: None, graph: wf.Graph) -> None:
    with wf.Session(graph=graph) as session:
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"a value of shape \[2\] was fed"):
            session.run("on_gpu", {"x": wf.to_device(np.ones(2, np.float32), "gpu:0")})
        half = wf.to_device(np.ones(3, np.float16), "gpu:0")
        assert "f16[3] on gpu:0 is copied to the host" in refused(
            lambda: session.run("update", {"x": half})
        )
        np.testing.assert_array_equal(session.run("on_gpu", {"x": half}), ONES * 2)


def test_an_array_that_was_donated_is_no_feed(two: None) -> None:
    given = wf.to_device(ONES, "gpu:0")
    wf.compile(device="gpu:0", donate=("x",))(lambda x: x + 1)(given)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3])
        with wf.device("/gpu:0"):
            y = x * 2
        with wf.Session() as session, pytest.raises(wf.errors.WeftError, match="donated"):
            session.run(y, {x: given})


def test_feeds_of_a_partial_run_and_of_many_sizes(two: None) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None], name="x")
        with wf.device("/gpu:0"):
            y = wf.sum(x * 2)
            z = y + 1
        with wf.Session() as session:
            for n in (2, 3, 4, 5):  # from the second on one plan
                given = wf.to_device(np.ones(n, np.float32), "gpu:0")
                assert session.run(y, {x: given}) == 2 * n
                with (
                    wf.transfer_guard("disallow"),
                    pytest.raises(
                        wf.errors.FailedPreconditionError,
                        match=r"feed x of 'graph', f32\[x_0\], is",
                    ),
                ):
                    session.run(y, {x: given.numpy()})
            handle = session.partial_run_setup([y, z], [x])
            assert session.partial_run(handle, y, {x: given}) == 10
            assert session.partial_run(handle, z) == 11


def test_the_log_says_each_copy(
    two: None, graph: wf.Graph, caplog: pytest.LogCaptureFixture
) -> None:
    with wf.Session(graph=graph) as session, caplog.at_level(logging.WARNING, "weft.transfers"):
        with wf.transfer_guard("log"):
            np.testing.assert_array_equal(session.run("on_gpu", {"x": ONES}), ONES * 2)
        told = [r.getMessage() for r in caplog.records]
    assert len(told) == 2
    assert "feed x of 'graph', f32[3], is a host array" in told[0]
    assert "fetch on_gpu of 'graph'" in told[1]
    assert all("test_transfers_sessions.py" in t for t in told)
