"""What the host does around a GPU's work, over a driver that is faked: when it waits, what it holds
meanwhile, what it records, and what becomes of recordings."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake
from fake_driver import CUresult, FakeDriver
from fake_driver_types import CaptureMode

import weft as wf
from weft.ir.errors import InvalidArgumentError
from weft.runtime.device.backends import cuda, registry
from weft.runtime.device.backends.cuda import CudaDevice
from weft.runtime.device.execution import segments
from weft.runtime.device.execution.segments import Captures

Array = np.ndarray[Any, Any]


def _gpu() -> CudaDevice:
    device = registry.gpu(0)
    assert isinstance(device, CudaDevice)
    return device


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# -- the fake driver itself -----------------------------------------------------------------------


UNSAFE: dict[str, Callable[[FakeDriver, CudaDevice], tuple[Any, ...]]] = {
    "cuMemAlloc": lambda api, gpu: api.cuMemAlloc(8),
    "cuMemAllocAsync": lambda api, gpu: api.cuMemAllocAsync(8, gpu._work),
    "cuMemHostAlloc": lambda api, gpu: api.cuMemHostAlloc(8, 0),
    "cuCtxSynchronize": lambda api, gpu: api.cuCtxSynchronize(),
    "cuStreamSynchronize of it": lambda api, gpu: api.cuStreamSynchronize(gpu._recorder),
    "cuStreamSynchronize": lambda api, gpu: api.cuStreamSynchronize(gpu._work),
    "a copy that is not pinned": lambda api, gpu: api.cuMemcpyHtoDAsync(
        8, np.zeros(8).ctypes.data, 8, gpu._recorder
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_the_fake_refuses_what_ends_a_capture(name: str, fake: Callable[..., FakeDriver]) -> None:
    api, gpu, said = fake(), _gpu(), list[Any]()
    memory = gpu.allocate(8, "a test")

    def work() -> None:
        gpu.clear(memory.address, 8)
        said.append(UNSAFE[name](api, gpu)[0])

    assert gpu.capture(work) is None
    assert said == [CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED]
    assert gpu._recorder.capture is None  # which may be captured again
    assert gpu.capture(lambda: gpu.clear(memory.address, 8)) is not None


def test_other_threads_may_not_ask_about_what_is_captured(fake: Callable[..., FakeDriver]) -> None:
    api, gpu, said = fake(), _gpu(), list[Any]()

    def others() -> None:
        api.cuCtxSetCurrent(gpu._context)
        event = api.cuEventCreate(2)[1]
        said.append(api.cuStreamSynchronize(gpu._work)[0])
        said.append(api.cuEventRecord(event, gpu._recorder)[0])
        said.append(api.cuEventSynchronize(event)[0])
        said.append(api.cuStreamWaitEvent(gpu._work, event, 0)[0])
        said.append(api.cuStreamEndCapture(gpu._recorder)[0])

    def work() -> None:
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()

    assert gpu.capture(work) is None
    assert [status.name for status in said] == [
        "CUDA_SUCCESS", "CUDA_SUCCESS", "CUDA_ERROR_CAPTURED_EVENT",
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
    ]  # fmt: skip


def test_the_fake_waits_where_memory_is_not_pinned(fake: Callable[..., FakeDriver]) -> None:
    api, gpu = fake(), _gpu()
    memory, host, plain = gpu.allocate(16, "a test"), gpu.host(16), np.zeros(16, np.uint8)
    for held, waits in ((host, False), (plain, True)):
        gpu._driver.call("cuMemsetD8Async", memory.address, 3, 16, gpu._work)
        gpu._driver.call("cuMemcpyDtoHAsync", held.ctypes.data, memory.address, 16, gpu._work)
        assert (gpu._work.done == len(gpu._work.work)) == waits
        assert bool((held == 3).all()) == waits
    assert api.pageable == ["download"]


# -- looking for faults ---------------------------------------------------------------------------


def _embedding(v: wf.Variable) -> Callable[..., Any]:
    """Reads rows, does more, and writes."""

    def step(index: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        rows = wf.gather(v, index, axis=0)
        loss = wf.sum(wf.cumulative_sum(wf.cumulative_sum(rows, axis=0) * x, axis=1))
        v.assign_add(wf.ones((6, 4)) * loss)
        return loss

    return step


def test_the_host_waits_for_what_checks_and_no_longer(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = fake()
    v = wf.Variable(_random(6, 4))
    expected = wf.Variable(_random(6, 4))
    step, on_cpu = wf.compile(device="gpu:0")(_embedding(v)), wf.compile(_embedding(expected))
    index, x, ran = np.array([5, 0, 2]), _random(4), list[str]()
    launching = api._launching

    def counted(kernel: Any, *rest: Any) -> Callable[[], None]:
        work = launching(kernel, *rest)
        return lambda: (ran.append(kernel.name), work())[1]

    monkeypatch.setattr(api, "_launching", counted)
    for _ in range(4):
        before = api.calls.count("download")
        loss = step(index, x)
        assert api.calls.count("download") == before + 1  # no second look
        early = len(ran)
        np.testing.assert_allclose(loss, on_cpu(index, x), rtol=1e-4)
        _gpu().synchronize()
        assert 1 <= early <= 2 < 4 <= len(ran)  # what looks rows up, and nothing behind it
        ran.clear()
    np.testing.assert_allclose(v.numpy(), expected.numpy(), rtol=1e-4)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_fault_is_told_before_the_write_and_after_it(
    calls: int, fake: Callable[..., FakeDriver]
) -> None:
    fake()
    v, w = wf.Variable(np.zeros(3, np.float32)), wf.Variable(np.zeros(3, np.float32))

    @wf.compile(device="gpu:0")
    def step(i: wf.Tensor, j: wf.Tensor, x: wf.Tensor) -> Any:
        v.assign_add(wf.gather(x, i, axis=0))
        w.assign_add(wf.ones((3,)))
        return wf.sum(wf.gather(wf.tanh(x), j, axis=0)), wf.sum(wf.exp(wf.tanh(x)), axis=0)

    good, bad, x = np.array([0, 1, 2]), np.array([0, 9, 2]), _random(5)
    for _ in range(calls):
        step(good, good, x)
    held = v.numpy(), w.numpy()
    with pytest.raises(InvalidArgumentError, match="index 9 "):
        step(bad, good, x)
    np.testing.assert_array_equal(v.numpy(), held[0])
    with pytest.raises(InvalidArgumentError, match="index 9 "):
        step(good, bad, x)
    assert not np.array_equal(v.numpy(), held[0])
    step(good, good, x)  # nothing is left of it


def test_a_branch_that_checks_nothing_is_not_looked_at(fake: Callable[..., FakeDriver]) -> None:
    api = fake()

    @wf.compile(device="gpu:0")
    def step(p: wf.Tensor, i: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        return wf.cond(p > 0, lambda: wf.sum(wf.gather(x, i, axis=0)), lambda: wf.sum(x * 2.0))

    downloads = []
    for p in (1, -1):
        before = api.calls.count("download")
        step(p, np.array([1, 2]), _random(4))
        downloads.append(api.calls.count("download") - before)
    assert downloads == [2, 1]  # the decision, and a look


# -- waiting, and for what ------------------------------------------------------------------------


def test_nothing_that_is_not_pinned_is_copied_and_nobody_waits_with_the_lock(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "LARGE", 8192)
    api, held = fake(), list[bool]()
    gpu = _gpu()
    api.on_wait = lambda: held.append(gpu._lock._is_owned())  # type: ignore[attr-defined]
    v = wf.Variable(_random(6, 4))
    step = wf.compile(device="gpu:0")(_embedding(v))
    until = wf.compile(device="gpu:0")(
        lambda x: wf.while_loop(lambda y: wf.sum(y) < 100.0, lambda y: y * 1.5, wf.abs(x))
    )
    large = _random(70, 300)
    for _ in range(3):
        float(step(np.array([5, 0, 2]), _random(4)))
        np.asarray(until(_random(4, 5)))
        there = wf.to_device(large, "gpu:0")
        np.testing.assert_array_equal(there.numpy(), large)  # in eleven parts
        del there
    v.numpy()
    assert held
    assert not any(held)
    assert not api.pageable


def test_parts_of_copies_share_two_slots(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "LARGE", 8192)
    api, gpu = fake(), _gpu()
    large = _random(100, 300)
    memory = gpu.allocate(large.nbytes, "a test")
    for k in range(3):
        gpu.upload(memory.address, large + np.float32(k))
        made = np.empty_like(large)
        gpu.download(made, memory.address)
        np.testing.assert_array_equal(made, large + np.float32(k))
    assert sum(len(block) == 8192 for block in api.pinned.values()) == 2


def test_a_recording_is_given_back_without_a_wait(fake: Callable[..., FakeDriver]) -> None:
    api, gpu = fake(), _gpu()
    memory = gpu.allocate(8, "a test")
    recording = gpu.capture(lambda: gpu.clear(memory.address, 8))
    assert recording is not None
    recording()
    waits: list[int] = []
    api.on_wait = lambda: waits.append(1)
    del recording
    gpu.host(8)
    gpu.allocate(8, "a test")
    assert not api.graphs
    assert not waits
    made = np.ones(8, np.uint8)
    gpu.download(made, memory.address)
    assert not made.any()  # it ran all the same


def test_pinned_memory_is_given_back_when_it_has_been_read_without_a_wait(
    fake: Callable[..., FakeDriver],
) -> None:
    api, gpu = fake(), _gpu()
    memory, host = gpu.allocate(8, "a test"), gpu.host(8)
    host[:] = 7
    address = host.ctypes.data
    gpu.upload(memory.address, host)
    waits: list[int] = []
    api.on_wait = lambda: waits.append(1)
    del host
    gpu.allocate(8, "a test")
    assert not waits
    assert address in api.pinned
    gpu.synchronize()
    gpu.allocate(8, "a test")
    assert address not in api.pinned
    made = np.ones(8, np.uint8)
    gpu.download(made, memory.address)
    assert (made == 7).all()


def test_memory_is_not_taken_for_read_while_another_library_records(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its GLOBAL mode no thread may ask about events."""
    api, gpu = fake(), _gpu()
    memory, host = gpu.allocate(8, "a test"), gpu.host(8)
    address = host.ctypes.data
    gpu.upload(memory.address, host)
    refused = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    with monkeypatch.context() as patch:
        patch.setattr(api, "cuEventQuery", lambda event: (refused,))
        assert not gpu.sent().done()
        del host
        gpu.allocate(8, "a test")
        assert address in api.pinned
    gpu.synchronize()
    gpu.allocate(8, "a test")
    assert address not in api.pinned


@pytest.mark.parametrize("stream", [1, 77])  # the default stream, and one that is not known
@pytest.mark.parametrize("status", ["STREAM_CAPTURE_IMPLICIT", "OUT_OF_MEMORY"])
def test_memory_of_others_is_waited_for_also_when_that_failed_at_first(
    stream: int, status: str, fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, gpu = fake(), _gpu()
    memory = gpu.allocate(64, "a test")
    address, other, read = memory.address, api.CUstream(stream), list[Array]()
    gpu.clear(address, 64)
    gpu.precede(stream)
    gpu.forget(stream)
    del memory
    failed = (CUresult[f"CUDA_ERROR_{status}"],)
    with monkeypatch.context() as patch:
        for name in ("cuEventRecord", "cuCtxRecordEvent"):
            patch.setattr(api, name, lambda *args: failed)
        if status == "OUT_OF_MEMORY":
            with pytest.raises(wf.errors.InternalError, match="other libraries failed"):
                gpu.reclaim()
        else:
            assert not gpu.reclaim()
    api._put(other, lambda: read.append(api.view(address, 64).copy()))
    assert gpu.reclaim()
    gpu.synchronize()
    assert address not in api.blocks
    np.testing.assert_array_equal(read, [np.zeros(64, np.uint8)])


def test_what_dies_while_memory_is_reclaimed(fake: Callable[..., FakeDriver]) -> None:
    """At any time: each collection frees a block, and leaves another for the next one."""
    api, gpu = fake(), _gpu()
    blocks = [gpu.allocate(8, "a test") for _ in range(400)]

    def another() -> None:
        if blocks:
            blocks.pop()
            _Cycle(another)

    before = gc.get_threshold()
    another()
    gc.set_threshold(1, 1, 1)
    try:
        assert all(gpu.reclaim() for _ in range(3))
    finally:
        gc.set_threshold(*before)
    assert len(blocks) < 399  # some did
    blocks.clear()
    assert gpu.reclaim()
    gpu.synchronize()
    assert not api.blocks


def test_a_copy_that_fails_halfway_does_not_write_to_memory_that_was_given_back(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "LARGE", 8192)
    api, gpu = fake(), _gpu()
    alloc, large, full = api.cuMemHostAlloc, np.ones(20000, np.uint8), list[int]()

    def only_one(nbytes: int, flags: int) -> tuple[Any, ...]:
        full.append(nbytes)
        out = CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        return alloc(nbytes, flags) if len(full) == 1 else out

    with monkeypatch.context() as patch:
        patch.setattr(api, "cuMemHostAlloc", only_one)
        with pytest.raises(wf.errors.ResourceExhaustedError, match="pinned memory"):
            wf.to_device(large, "gpu:0")
    assert len(full) == 2
    gpu.allocate(8, "a test")  # gives it back
    gpu._wait(gpu._work)
    gpu._wait(gpu._in)
    for _ in range(2):  # and slots are used again
        np.testing.assert_array_equal(wf.to_device(large, "gpu:0").numpy(), large)
    assert sum(len(block) == 8192 for block in api.pinned.values()) == 2


# -- recording ------------------------------------------------------------------------------------


class _Cycle:
    """What only a collection frees; then it calls the driver, as another library's memory does."""

    def __init__(self, free: Callable[[], Any]) -> None:
        self.own, self.free = self, free

    def __del__(self) -> None:
        self.free()


def test_there_are_no_collections_while_launches_are_recorded(
    fake: Callable[..., FakeDriver],
) -> None:
    api, gpu = fake(), _gpu()
    memory = gpu.allocate(8, "a test")
    before = gc.get_threshold()

    def work() -> None:
        gone = weakref.ref(_Cycle(api.cuCtxSynchronize))
        for _ in range(50):  # what a collection would begin at
            [[] for _ in range(10)]
        gpu.clear(memory.address, 8)
        assert gone() is not None

    gc.collect()
    gc.set_threshold(1, 1, 1)
    try:
        assert gpu.capture(work) is not None
        assert gc.isenabled()
        gc.disable()
        assert gpu.capture(work) is not None
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
        gc.set_threshold(*before)


def _ended(api: FakeDriver, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Another thread waits for the whole context late in so many recordings, as
    `torch.cuda.synchronize` does; and those that have been ended."""
    launch, done = api.cuLaunchKernel, list[int]()

    def other(context: str) -> None:
        api.cuCtxSetCurrent(context)
        api.cuCtxSynchronize()

    def launched(kernel: Any, *rest: Any) -> tuple[Any, ...]:
        capture = rest[7].capture
        if (
            capture is not None
            and len(capture.work) >= 7
            and not capture.lost
            and len(done) < times
        ):
            done.append(api.captures)
            thread = threading.Thread(target=other, args=(capture.context,))
            thread.start()
            thread.join()
        return launch(kernel, *rest)

    monkeypatch.setattr(api, "cuLaunchKernel", launched)
    return done


@pytest.mark.parametrize("most", [1024, 20])
def test_a_step_whose_recording_is_ended_is_launched_one_by_one(
    most: int,
    fake: Callable[..., FakeDriver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(segments, "MOST_NODES", most)
    api = fake()
    done = _ended(api, monkeypatch, 2)
    v = wf.Variable(np.zeros(3, np.float32))

    def scan(xs: wf.Tensor) -> Any:
        v.assign_add(wf.ones((3,)))
        return wf.scan(lambda c, x: (wf.tanh(c[::-1] * 0.5 + x), wf.sum(c) * x), wf.zeros((5,)), xs)

    xs = _random(19, 5)
    expected = wf.compile(scan)(xs)
    v.assign(np.zeros(3, np.float32))
    step = wf.compile(device="gpu:0")(scan)
    with caplog.at_level(logging.WARNING, "weft.run"):
        for _ in range(6):
            for made, other in zip(step(xs), expected, strict=True):
                np.testing.assert_allclose(made, other, rtol=1e-5)
    assert v.numpy()[0] == 6
    assert len(done) == 2
    assert api.graphs  # it was recorded in the end
    (said,) = caplog.messages
    assert "asked for one by one" in said
    assert "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" in said


def test_an_error_that_is_the_steps_own_is_not_taken_for_an_ended_recording(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, gpu = fake(), _gpu()

    def work() -> None:
        gpu.clear(0, 8)
        raise InvalidArgumentError("own")

    with pytest.raises(InvalidArgumentError, match="own"):
        gpu.capture(work)
    full = (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    memory = gpu.allocate(8, "a test")
    with monkeypatch.context() as patch:
        patch.setattr(api, "cuGraphInstantiate", lambda graph, flags: full)
        assert gpu.capture(lambda: gpu.clear(memory.address, 8)) is None
    assert gpu.capture(lambda: gpu.clear(memory.address, 8)) is not None


# -- addresses that change ------------------------------------------------------------------------


def _programs() -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    def nests(x: wf.Tensor) -> Any:
        y = wf.cumulative_sum(wf.tanh(x), axis=1)
        return y, wf.sum(wf.exp(y * 0.01), axis=0)

    def scan(x: wf.Tensor) -> Any:
        return wf.scan(lambda c, r: (c[::-1] * 0.5 + r, wf.sum(c) * r), x[0] * 0.0, x)

    def updated(x: wf.Tensor) -> Any:
        return wf.scatter_nd_update(x, np.array([[0]]), x[1:2] * 2.0), wf.sum(x)

    return {"nests": (nests, (3, 700)), "scan": (scan, (6, 450)), "copies": (updated, (3, 700))}


@pytest.mark.parametrize("kind", ["faked", "emulated"])
@pytest.mark.parametrize("name", _programs())
def test_more_sets_of_addresses_than_are_kept_are_not_recorded_anew(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.runtime.device.plan.SMALL_INPUT", 64)
    function, shape = _programs()[name]
    rotation = [_random(*shape) + np.float32(k) for k in range(7)]
    expected = [wf.compile(function)(x) for x in rotation]
    api = use_fake(monkeypatch)
    if kind == "emulated":
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    there = [wf.to_device(x, "gpu:0") for x in rotation]
    step = wf.compile(device="gpu:0")(function)
    counts, kept = [], []
    for _ in range(4):
        made = [step(x) for x in there]
        for one, other in zip(made, expected, strict=True):
            for value, wanted in zip(one, other, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)
        kept.append(made)  # so that results are never where they were
        counts.append(api.captures)
    if kind == "faked":
        assert counts[1] == counts[-1] <= 4 * 2  # pieces of each set that is kept
        assert api.calls.count("graph") > 20
        assert any(call.startswith(("relaunch", "recopy")) for call in api.calls)


@pytest.mark.parametrize(
    "name", ["cuGraphExecKernelNodeSetParams", "cuGraphExecMemcpyNodeSetParams"]
)
def test_a_driver_that_gives_a_node_no_other_parameters(
    name: str, fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it is asked: the recording is half changed then, and launched no more."""
    monkeypatch.setattr("weft.runtime.device.plan.SMALL_INPUT", 64)
    function, shape = _programs()["copies"]
    api, asked = fake(), list[int]()
    change = getattr(api, name)

    def refused(*args: Any) -> tuple[Any, ...]:
        asked.append(1)
        return change(*args) if len(asked) == 1 else (CUresult.CUDA_ERROR_NOT_SUPPORTED,)

    monkeypatch.setattr(api, name, refused)
    rotation = [_random(*shape) + np.float32(k) for k in range(6)]
    expected = [wf.compile(function)(x) for x in rotation]
    there = [wf.to_device(x, "gpu:0") for x in rotation]
    step, kept = wf.compile(device="gpu:0")(function), []
    for _ in range(4):
        kept.append([step(x) for x in there])
        for made, wanted in zip(kept[-1], expected, strict=True):
            np.testing.assert_allclose(made[0], wanted[0], rtol=1e-5)
            np.testing.assert_allclose(made[1], wanted[1], rtol=1e-4)
    assert 1 < len(asked) < 5  # and not each time


def test_sets_of_addresses_that_come_in_turn_are_replayed_as_they_are(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is looked through, launch by launch."""
    monkeypatch.setattr("weft.runtime.device.plan.SMALL_INPUT", 64)
    api, looked = fake(), list[object]()
    given = Captures._given
    monkeypatch.setattr(
        Captures, "_given", lambda self, ask: (looked.append(ask), given(self, ask))[1]
    )
    there = [wf.to_device(_random(3, 700) + np.float32(k), "gpu:0") for k in range(2)]
    step = wf.compile(device="gpu:0")(lambda x: wf.sum(wf.cumulative_sum(x, axis=1), axis=0)[:3])
    for _ in range(2):
        for x in there:
            step(x)
    assert looked
    assert api.captures == 2
    looked.clear()
    for x in there:
        np.testing.assert_allclose(step(x), x.numpy().cumsum(1).sum(0)[:3], rtol=1e-4)
    assert not looked


# -- GPUs without memory pools --------------------------------------------------------------------


def test_a_gpu_without_memory_pools(fake: Callable[..., FakeDriver]) -> None:
    api = fake(pools=False, memory=200_000)
    v = wf.Variable(np.zeros((6, 4), np.float32))
    step = wf.compile(device="gpu:0")(lambda x: (v.assign_add(x[:6]), wf.sum(x, axis=0)))
    x = _random(600, 4)
    for _ in range(30):  # each result in memory of its own, which comes back
        _, total = step(x)
    np.testing.assert_allclose(total, x.sum(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(v.numpy(), 30 * x[:6], rtol=1e-5)
    gpu = _gpu()
    memory = gpu.allocate(64, "a test")
    address = memory.address
    gpu.clear(address, 64)
    del memory
    waits: list[int] = []
    api.on_wait = lambda: waits.append(1)
    gpu.allocate(64, "a test")
    assert address in api.blocks  # `cuMemFree` is not of a stream: the device is not past it yet
    gpu._driver.call("cuStreamSynchronize", gpu._work)
    gpu.allocate(64, "a test")
    assert address not in api.blocks
    assert len(waits) == 1
    assert "cuMemFree" in api.calls
    with pytest.raises(wf.errors.ResourceExhaustedError, match="too much"):
        gpu.allocate(1 << 20, "too much")


def test_gpus_without_pools_copy_from_each_other(fake: Callable[..., FakeDriver]) -> None:
    api = fake(pools=False, devices=2)
    v = wf.Variable(np.ones(5, np.float32))
    doubled = [wf.compile(device=f"gpu:{k}")(lambda: v.assign_add(v)) for k in (0, 1)]
    for k in (0, 1, 1, 0):
        doubled[k]()
    np.testing.assert_array_equal(v.numpy(), np.full(5, 16.0))
    assert api.calls.count("peer copy") == 2


@pytest.mark.parametrize("function", ["cuStreamBeginCapture", "cuStreamEndCapture"])
def test_ctrl_c_at_the_ends_of_a_recording(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """After the driver has begun, before it has ended."""
    api = fake()
    x = np.arange(6, dtype=np.float32)
    on_gpu = wf.compile(device="gpu:0")(lambda x: wf.cumulative_sum(wf.sort(x) * 2.0))
    on_gpu(x)
    real, calls = getattr(api, function), []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1 and function == "cuStreamEndCapture":
            raise KeyboardInterrupt
        made = real(*args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(api, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        on_gpu(x)
    for k in range(4):
        np.testing.assert_allclose(on_gpu(x + k), np.cumsum(np.sort(x + k) * 2), rtol=1e-6)
    assert api.graphs == 1


def test_what_another_library_records_goes_on(fake: Callable[..., FakeDriver]) -> None:
    """In GLOBAL mode, as PyTorch records: no thread makes an unsafe call that says nothing."""
    api = fake()
    x = np.arange(6, dtype=np.float32)
    wf.compile(device="gpu:0")(lambda x: x + 1)(x)
    theirs = api.CUstream(77)
    api.begin_capture(theirs, CaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    results: list[Any] = []

    def calls() -> None:
        on_gpu = wf.compile(device="gpu:0")(lambda x: wf.cumulative_sum(wf.sort(x) * 2.0))
        results.extend(np.asarray(on_gpu(x + k)) for k in range(4))
        results.append(api.cuThreadExchangeStreamCaptureMode(0)[1])  # as it was for the thread

    thread = threading.Thread(target=calls)
    thread.start()
    thread.join(60)
    *found, mode = results
    for k, result in enumerate(found):
        np.testing.assert_allclose(result, np.cumsum(np.sort(x + k) * 2), rtol=1e-6)
    assert mode == CaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert api.end_capture(theirs)[0] == CUresult.CUDA_SUCCESS
    api.begin_capture(theirs, CaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    unguarded = threading.Thread(target=lambda: results.append(api.cuMemAlloc(8)))
    unguarded.start()
    unguarded.join(60)
    assert results[-1][0] == CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED  # the fake does refuse
    assert api.end_capture(theirs)[1] is None
