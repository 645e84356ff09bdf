"""A kernel that fails while nobody waits for it: the error names the calls that it may be of, and
whoever asks for the device later is told that it failed before. Over the fake driver."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import CUresult, FakeDriver

import weft as wf
from weft.runtime.device import protocol
from weft.runtime.device.backends import registry

X = np.arange(6, dtype=np.float32)


def _waves(x: wf.Tensor) -> wf.Tensor:
    y = wf.sin(x)
    return wf.sum(y * 2.0)


def _roots(x: wf.Tensor) -> wf.Tensor:
    return wf.sum(wf.sqrt(x))


def _compiled(function: Callable[..., Any]) -> Any:
    return wf.compile(device="gpu:0")(function)


def _fails_in(api: FakeDriver, function: Any) -> None:
    """Compile, and let the function's last kernel fail from now on."""
    np.asarray(function(X))
    api.fault_in = api.compiler.compiled[-1]


def _error(work: Callable[[], object]) -> str:
    with pytest.raises(wf.errors.InternalError) as caught:
        work()
    return str(caught.value)


def test_the_calls_in_flight_are_named_with_kernels_and_lines(
    fake: Callable[..., FakeDriver],
) -> None:
    api = fake()
    waves, roots, done = _compiled(_waves), _compiled(_roots), _compiled(lambda x: x + 1.0)
    np.asarray(roots(X))
    _fails_in(api, waves)
    np.asarray(done(X))
    waves(X)
    last = roots(X)
    text = _error(lambda: float(last))
    first, *lines = text.splitlines()
    assert first.startswith("a kernel failed on /gpu:0: CUDA_ERROR_ILLEGAL_ADDRESS")
    start = _waves.__code__.co_firstlineno
    assert lines[0].startswith(f"  '_waves': kernel '{api.fault_in}' ({__file__}:{start + 1}, ")
    assert f"{__file__}:{start + 2}" in lines[0]
    assert lines[1].startswith("  '_roots': kernel ")
    assert "'lambda'" not in text  # it is known to be done
    assert "WEFT_GPU_BLOCKING=1" in lines[-1]


LATER: dict[str, Callable[[Any, Any], object]] = {
    "the same call": lambda function, there: function(X),
    "a new one": lambda function, there: _compiled(_roots)(X),
    "to the device": lambda function, there: wf.to_device(X, "gpu:0"),
    "from it": lambda function, there: np.asarray(there),
    "wait": lambda function, there: there.block_until_ready(),
    "wait for all": lambda function, there: registry.gpu(0).synchronize(),
    "memory": lambda function, there: registry.gpu(0).allocate(64, "a test"),
    "a session": lambda function, there: _session_run(),
}


def _session_run() -> None:
    with wf.Graph().as_default(), wf.device("/gpu:0"), wf.Session() as session:
        session.run(wf.exp(wf.constant(X)))


@pytest.mark.parametrize("what", LATER)
def test_later_calls_say_that_the_device_failed_before(
    what: str, fake: Callable[..., FakeDriver]
) -> None:
    api = fake()
    waves = _compiled(_waves)
    _fails_in(api, waves)
    there = waves(X)
    first = _error(lambda: float(waves(X)))
    assert first.startswith("a kernel failed on /gpu:0")
    for status in (api.failed, CUresult.CUDA_SUCCESS):  # whatever the driver says then
        api.failed = status
        text = _error(lambda: LATER[what](waves, there))
        assert "/gpu:0 can do nothing more in this process, as it failed before: " in text
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text
        assert api.fault_in in text
        assert "the process must be started again" in text
    np.testing.assert_array_equal(wf.compile(lambda x: x + 1.0)(X), X + 1)  # the CPU's go on


def test_whoever_is_told_first_is_told_which_calls(fake: Callable[..., FakeDriver]) -> None:
    """Also where the driver says so when it is asked for something else: memory, a launch."""
    for ask in ("memory", "the same call", "from it"):
        api = fake()
        waves = _compiled(_waves)
        np.asarray(waves(X))
        there = waves(X)
        api.failed = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        text = _error(lambda: LATER[ask](waves, there))  # noqa: B023
        assert text.startswith("a kernel failed on /gpu:0")
        assert "'_waves': kernel" in text


def test_while_launches_are_recorded(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses to launch, and to end the recording: the first error is the one told."""
    api = fake()
    both = _compiled(lambda x: (wf.sort(x), _waves(x)))  # one launch is not worth it
    np.asarray(both(X)[0])
    broken, before = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, api.captures
    plain = api.cuStreamEndCapture
    monkeypatch.setattr(api, "cuLaunchKernel", lambda *args: (broken,))
    monkeypatch.setattr(api, "cuStreamEndCapture", lambda s: (plain(s) and broken, None))
    text = _error(lambda: both(X))
    assert api.captures == before + 1
    assert text.startswith("a kernel failed on /gpu:0")
    assert "'lambda': kernel" in text
    assert _error(lambda: both(X)).startswith("/gpu:0 can do nothing more")


def test_a_step_of_a_session_names_itself(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    with wf.Graph().as_default() as graph, wf.device("/gpu:0"), wf.Session() as session:
        v = wf.Variable(X, name="v")
        change = v.assign_add(wf.exp(v))
        session.run(wf.global_variables_initializer())
        session.run(change)
        api.fault_in = api.compiler.compiled[-1]
        text = _error(lambda: session.run(change))
        assert f"kernel '{api.fault_in}' ({__file__}:" in text
        assert graph is not None
        assert "as it failed before" in _error(lambda: session.run(v))


def test_in_a_loop_that_the_host_leads(fake: Callable[..., FakeDriver]) -> None:
    """The call is not all asked for when the host waits for a decision."""
    api = fake()

    def grows(x: wf.Tensor) -> wf.Tensor:
        return wf.while_loop(lambda y: wf.sum(y) < 100.0, lambda y: y * 2.0 + 1.0, x)

    function = _compiled(grows)
    np.asarray(function(X))
    api.fault_in = api.compiler.compiled[-1]
    text = _error(lambda: function(X))
    assert "'grows': kernel '" in text
    assert api.fault_in in text


def test_what_is_told_is_bounded(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MOST_KERNELS", 1)
    api = fake()

    def long(x: wf.Tensor) -> Any:
        return wf.sort(x), wf.cumsum(x), wf.sum(wf.exp(x))

    function, other = _compiled(long), _compiled(_roots)
    _fails_in(api, other)
    for value in function(X):
        np.asarray(value)
    for _ in range(20):
        function(X)
    last = other(X)
    text = _error(lambda: float(last))
    assert text.count("'long': ") == 1  # however often it was called
    assert "calls before these, which are not remembered" in text
    count = len(registry.gpu(0).calls._asked[0].of().launches())  # type: ignore[union-attr]
    assert f", and {count - 1} more" in text
    assert len(registry.gpu(0).calls._asked) == protocol.MOST_CALLS


def test_a_function_that_is_gone_is_named_and_not_kept(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    waves = _compiled(_waves)
    _fails_in(api, waves)
    last = waves(X)
    del waves
    gc.collect()
    assert registry.gpu(0).calls._asked[-1].of() is None
    text = _error(lambda: float(last))
    assert "'_waves': its kernels are not known any more" in text


def test_calls_of_other_threads_are_named(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    waves, roots = _compiled(_waves), _compiled(_roots)
    np.asarray(roots(X))
    _fails_in(api, waves)
    thread = threading.Thread(target=lambda: waves(X))
    thread.start()
    thread.join()
    assert "'_waves': kernel" in _error(lambda: np.asarray(roots(X)))


def test_what_is_done_is_forgotten(fake: Callable[..., FakeDriver]) -> None:
    """By whatever the host waits for: a result, all, a mark that is past, an array of results."""
    fake()
    waves = _compiled(_waves)
    device = registry.gpu(0)
    waits: list[Callable[[Any], object]] = [
        float, np.asarray, wf.DeviceArray.block_until_ready, lambda y: device.synchronize(),
    ]  # fmt: skip
    for wait in waits:
        made = waves(X)
        assert "'_waves'" in device.calls.describe()
        wait(made)
        assert device.calls.describe() == ""
