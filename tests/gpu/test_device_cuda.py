"""The CUDA device over a driver that is faked: order of streams, graphs, memory, errors."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import CUresult, FakeCompiler, FakeDriver

import weft as wf
from weft.runtime.device.backends import cuda, registry
from weft.runtime.device.backends.cuda import CudaDevice
from weft.runtime.device.execution import activation
from weft.runtime.native.api import native_api


def _inputs(rows: int = 33) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.random((rows, 20), np.float32), rng.random(20, np.float32)


def _layer(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    return wf.sum(wf.nn.relu(x * w - 0.1), axis=1)


def test_results_are_those_of_the_cpu_call_after_call(fake: Callable[..., FakeDriver]) -> None:
    fake()
    on_gpu, on_cpu = wf.compile(device="gpu:0")(_layer), wf.compile(_layer)
    x, w = _inputs()
    for k in range(4):  # launched, recorded, replayed, replayed
        given = x + np.float32(k)
        np.testing.assert_allclose(on_gpu(given, w), on_cpu(given, w), rtol=1e-6)


def test_the_second_call_records_a_graph_and_later_ones_launch_it(
    fake: Callable[..., FakeDriver],
) -> None:
    api = fake()

    @wf.compile(device="gpu:0")
    def two(x: wf.Tensor, w: wf.Tensor) -> Any:
        return wf.sum(x, axis=0), wf.sum(x * w, axis=1)

    x, w = _inputs()
    for _ in range(2):
        two(x, w)
    recorded = len(api.calls)
    made = two(x, w)
    # in while the call before is not done, then where kernels read it; out of the next call's way
    assert api.calls[recorded:] == ["upload", "copy", "graph", "copy"]
    np.asarray(made[0])
    assert api.calls[recorded + 4 :] == ["download"]
    assert api.graphs == 1


def test_variables_stay_on_the_device_and_come_back_when_they_are_read(
    fake: Callable[..., FakeDriver],
) -> None:
    api = fake()
    v = wf.Variable(np.arange(6, dtype=np.float32))

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> None:
        v.assign_add(x)

    for _ in range(3):
        step(np.ones(6, np.float32))
    uploads = api.calls.count("upload")
    assert v.state.resident is not None
    np.testing.assert_array_equal(np.asarray(v.read()), np.arange(6) + 3)
    assert v.state.resident is not None  # reading is a copy
    step(np.ones(6, np.float32))
    assert api.calls.count("upload") == uploads + 1  # of the argument alone
    v.assign(np.zeros(6, np.float32))
    assert v.state.resident is None
    step(np.ones(6, np.float32))
    np.testing.assert_array_equal(np.asarray(v.read()), np.ones(6))


def test_a_cpu_step_takes_a_variable_over_and_gives_it_back(
    fake: Callable[..., FakeDriver],
) -> None:
    fake()
    native_api()  # which looks at variables itself
    v = wf.Variable(np.zeros(5, np.float32))

    def add() -> wf.Tensor:
        return v.assign_add(np.ones(5, np.float32))

    on_gpu, on_cpu = wf.compile(device="gpu:0")(add), wf.compile(add)
    for k in range(4):
        assert np.asarray(on_gpu())[0] == 2 * k + 1
        assert np.asarray(on_cpu())[0] == 2 * k + 2


def test_memory_is_given_back_and_never_used_after_that(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    x, w = _inputs()
    for _ in range(3):
        wf.compile(device="gpu:0")(_layer)(x, w)
    gc.collect()
    device = registry.gpu(0)
    device.allocate(256, "a last one")
    device.synchronize()
    gc.collect()
    device.host(8)
    device.synchronize()
    assert not api.blocks
    assert not api.graphs


def test_no_memory_names_what_for_and_what_is_there_and_the_next_call_works(
    fake: Callable[..., FakeDriver],
) -> None:
    fake(memory=500_000)
    v = wf.Variable(np.zeros(50_000, np.float32), name="table")

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        return wf.sum(v.assign_add(x))

    step(np.zeros(50_000, np.float32))
    with pytest.raises(wf.errors.ResourceExhaustedError) as caught:
        wf.compile(device="gpu:0")(_layer)(*_inputs(9000))
    text = str(caught.value)
    assert "a step of '_layer'" in text
    assert "variable 'table' (200,000 bytes)" in text
    assert "of 500,000 bytes" in text
    assert float(step(np.ones(50_000, np.float32))) == 50_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": True}, ["no NVIDIA driver is installed", "libcuda", "WEFT_EMULATE_GPU=1"]),
        ({"init": CUresult.CUDA_ERROR_NO_DEVICE}, ["the NVIDIA driver finds none"]),
        ({"devices": 0}, ["the NVIDIA driver finds none", "CUDA_VISIBLE_DEVICES"]),
        ({"version": 12040}, ["too old", "CUDA 12.4", "CUDA 13.0"]),
    ],
)
def test_what_is_missing_is_said(
    fake: Callable[..., FakeDriver], options: dict[str, Any], words: list[str]
) -> None:
    fake(**options)
    function = wf.compile(device="gpu:0")(_layer)
    with pytest.raises(wf.errors.FailedPreconditionError) as caught:
        function(*_inputs())
    for word in (*words, "test_device_cuda.py"):
        assert word in str(caught.value)
    assert "none: " in function.explain(*_inputs())  # and the plan is there without it


def test_machine_code_that_the_driver_does_not_take(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    compiler = api.compiler
    api.compiler = FakeCompiler()  # which knows none of the kernels
    function = wf.compile(device="gpu:0")(_layer)
    with pytest.raises(wf.errors.ToolchainError, match=r"(?s)CUDA 13\.0, does not load.*INVALID_IM"
                       r".*WEFT_CUBINS.*newer driver"):  # fmt: skip
        function(*_inputs())
    api.compiler = compiler
    np.testing.assert_allclose(function(*_inputs()), wf.compile(_layer)(*_inputs()), rtol=1e-6)


def test_a_gpu_that_is_not_there(fake: Callable[..., FakeDriver]) -> None:
    fake(devices=2)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"'/gpu:2'.*/gpu:0, /gpu:1"):
        wf.compile(device="gpu:2")(_layer)(*_inputs())
    np.testing.assert_allclose(
        wf.compile(device="/gpu:1")(_layer)(*_inputs()), wf.compile(_layer)(*_inputs()), rtol=1e-6
    )


def test_others_may_wait_for_the_device_while_launches_are_recorded(
    fake: Callable[..., FakeDriver],
) -> None:
    fake()  # which refuses to wait for a stream that is captured, as the driver does
    device, wrong = registry.gpu(0), list[object]()
    memory = device.allocate(512, "a test")

    def wait() -> None:
        try:
            device.synchronize()
        except BaseException as error:
            wrong.append(error)

    def work() -> None:
        device.clear(memory.address, 256)
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()

    again = device.capture(work)
    assert again is not None
    assert not wrong
    again()
    held = np.ones(512, np.uint8)
    device.download(held, memory.address)
    assert not held[:256].any()
    assert held[256:].all()  # what the fake driver fills new memory with


def test_two_devices_in_turn_from_two_threads(fake: Callable[..., FakeDriver]) -> None:
    fake(devices=2)  # which refuses work for a device that is not the thread's
    functions = [wf.compile(device=f"gpu:{k}")(_layer) for k in range(2)]
    x, w = _inputs()
    expected = np.asarray(wf.compile(_layer)(x, w))
    wrong: list[object] = []

    def work() -> None:
        try:
            for k in (0, 1, 0, 1, 1, 0):
                np.testing.assert_allclose(functions[k](x, w), expected, rtol=1e-6)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert not wrong


def test_a_kernel_that_fails(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = fake()
    function = wf.compile(device="gpu:0")(_layer)
    function(*_inputs())
    api.fault_in = api.compiler.compiled[-1]
    with pytest.raises(wf.errors.InternalError, match="WEFT_GPU_BLOCKING=1"):
        np.asarray(function(*_inputs()))
    with pytest.raises(wf.errors.InternalError) as caught:  # whichever call of the driver is next
        function(*_inputs())
    assert "a kernel failed" in str(caught.value)
    monkeypatch.setenv("WEFT_GPU_BLOCKING", "1")
    api = fake()
    function = wf.compile(device="gpu:0")(_layer)
    function(*_inputs())
    api.fault_in = api.compiler.compiled[-1]
    with pytest.raises(wf.errors.InternalError) as caught:
        function(*_inputs())
    assert f"kernel '{api.fault_in}' failed on /gpu:0" in str(caught.value)
    assert "test_device_cuda.py" in str(caught.value)  # the user's line


def test_memory_that_runs_out_outside_of_the_pool(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = fake()
    full = (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    monkeypatch.setattr(api, "cuMemHostAlloc", lambda nbytes, flags: full)
    with pytest.raises(wf.errors.ResourceExhaustedError, match="pinned memory"):
        wf.compile(device="gpu:0")(_layer)(*_inputs())
    api = fake()
    monkeypatch.setattr(api, "cuModuleLoadData", lambda image: full)
    with pytest.raises(wf.errors.ResourceExhaustedError, match="cuModuleLoadData"):
        wf.compile(device="gpu:0")(_layer)(*_inputs())


def test_large_arguments_may_change_when_the_call_has_returned(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "STAGED", 1000)
    monkeypatch.setattr(cuda, "LARGE", 10000)  # each is copied in three parts
    api = fake()
    v = wf.Variable(np.zeros(6000, np.float32))

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> None:
        v.assign_add(x)

    x = np.empty(6000, np.float32)
    for k in range(3):
        x[:] = 2.0**k * np.arange(6000)
        step(x)
    x[:] = np.nan
    np.testing.assert_array_equal(np.asarray(v.read()), np.arange(6000) * np.float32(7.0))
    assert api.calls.count("upload") == 3 * 3 + 3  # and the variable


def test_a_forked_child_is_told_that_the_device_is_not_its_own(
    fake: Callable[..., FakeDriver],
) -> None:
    fake()
    v = wf.Variable(np.zeros(3, np.float32))
    step = wf.compile(device="gpu:0")(lambda: v.assign_add(np.ones(3, np.float32)))
    step()
    device = registry.gpu(0)
    assert isinstance(device, CudaDevice)
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with device._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        told = 0
        for use in (step, v.read, lambda: wf.compile(device="gpu:0")(_layer)(*_inputs())):
            try:
                use()
            except wf.errors.FailedPreconditionError as error:
                told += "forked" in str(error)
        os._exit(told)
    release.set()
    holder.join()
    try:
        for _ in range(1000):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        assert done
        assert os.waitstatus_to_exitcode(status) == 3
    finally:
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    np.testing.assert_array_equal(np.asarray(v.read()), np.ones(3))


def test_the_device_tells_what_it_is(fake: Callable[..., FakeDriver]) -> None:
    fake()
    device = registry.gpu(0)
    assert isinstance(device, CudaDevice)
    assert device.cc == (9, 0)
    assert device.description == "Fake GPU, sm_90, driver for CUDA 13.0"
    assert registry.gpu(0) is device
