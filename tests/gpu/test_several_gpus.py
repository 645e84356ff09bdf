"""Several GPUs in one process: emulated ones, CUDA devices over a fake driver, the machine's."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device, use_fake
from fake_driver import FakeDriver
from gpu_kinds import REAL, need_gpus

import weft as wf
from weft.ir.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from weft.runtime.cluster import server
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.emulated import EmulatedDevice
from weft.runtime.device.protocol import Device

Array = np.ndarray[Any, Any]
Make = Callable[..., FakeDriver | None]


@pytest.fixture
def fake(fake: Callable[..., FakeDriver]) -> Callable[..., FakeDriver]:
    """As that of all tests, with two GPUs."""
    return partial(fake, devices=2)


@pytest.fixture(params=["emulated", "peers", "through the host", REAL])
def two(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fake: Make
) -> tuple[Device, Device]:
    """Two GPUs of each sort."""
    if request.param == "emulated":
        monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
        monkeypatch.setattr(registry, "_devices", {})
    elif request.param == "real":
        use_device("real", monkeypatch)
        need_gpus(2)
    else:
        fake(peers=request.param == "peers")
    return registry.gpu(0), registry.gpu(1)


# ----------------------------------------------------------------------------------------- registry


def test_how_many_are_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_devices", {})
    for text, count, checks in (("1", 1, False), ("3", 3, False), ("check", 1, True),
                                ("check:2", 2, True)):  # fmt: skip
        monkeypatch.setenv("WEFT_EMULATE_GPU", text)
        found = [registry.gpu(k) for k in range(count)]
        assert [d.name for d in found] == [f"/gpu:{k}" for k in range(count)]
        assert all(isinstance(d, EmulatedDevice) and d._checks == checks for d in found)
        assert registry.gpu(0) is found[0]
        assert [info.index for info in registry.gpus()] == list(range(count))
        with pytest.raises(InvalidArgumentError, match=f"no device '/gpu:{count}'") as caught:
            registry.gpu(count)
        assert f"/gpu:{count - 1}" in str(caught.value)
    for text in ("-1", "check:0", "2 ", "two"):
        monkeypatch.setenv("WEFT_EMULATE_GPU", text)
        with pytest.raises(InvalidArgumentError, match="0, 1 or check"):
            registry.gpu(0)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "3")
    held = registry.gpu(2)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")  # a device that was made is not there any more
    with pytest.raises(InvalidArgumentError, match="/gpu:2"):
        registry.gpu(2)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "3")
    registry.gpu(2)
    assert held.name == "/gpu:2"


def test_what_a_driver_says_of_its_gpus(fake: Callable[..., FakeDriver]) -> None:
    api = fake(memory=80 << 30)
    infos = registry.gpus()
    assert [info.name for info in infos] == [f"/job:localhost/task:0/gpu:{k}" for k in (0, 1)]
    info = infos[1]
    assert (info.kind, info.index, info.cc, info.memory) == ("gpu", 1, (9, 0), 80 << 30)
    assert info.flops == pytest.approx(66.9e12, rel=1e-3)  # an H100's
    assert info.bandwidth == pytest.approx(3.35e12, rel=1e-3)
    assert str(info) == "/gpu:1  Fake GPU, sm_90, driver for CUDA 13.0, 80.0 GiB"
    assert not registry._devices  # none is made use of
    assert not api.blocks
    assert registry.gpu(1).description == info.description
    fake(devices=0)
    with pytest.raises(FailedPreconditionError, match="finds none"):
        registry.gpus()
    assert registry.gpu_names() == []


# ------------------------------------------------------------------------------------------- copies


def _held(device: Device, array: Array) -> Any:
    memory = device.allocate(array.nbytes, "a test")
    device.upload(memory.address, array)
    return memory


def _bytes(device: Device, memory: Any, count: int) -> Array:
    out = np.empty(count, np.uint8)
    device.download(out, memory.address)
    return out


def test_a_copy_comes_after_all_that_either_device_was_asked_for(
    two: tuple[Device, Device],
) -> None:
    first, second = two
    ones, twos = np.full(600, 1, np.uint8), np.full(600, 2, np.uint8)
    source, target = _held(first, ones), _held(second, twos)
    first.begin()
    first.clear(source.address + 100, 100)  # nobody waits for it but the copy
    second.begin()
    second.clear(target.address, 600)
    second.copy_from(first, target.address + 8, source.address + 50, 400)
    expected = np.zeros(600, np.uint8)
    expected[8:408] = np.r_[np.ones(50), np.zeros(100), np.ones(250)]
    np.testing.assert_array_equal(_bytes(second, target, 600), expected)


def test_what_the_source_is_asked_for_next_waits_for_the_copy(two: tuple[Device, Device]) -> None:
    first, second = two
    source, target = _held(first, np.full(300, 7, np.uint8)), _held(second, np.zeros(300, np.uint8))
    second.copy_from(first, target.address, source.address, 300)
    first.begin()
    first.clear(source.address, 300)
    first.synchronize()  # the copy is not waited for by any other than this
    del source
    gc.collect()
    first.allocate(8, "what comes next gives the memory back")
    first.synchronize()
    np.testing.assert_array_equal(_bytes(second, target, 300), np.full(300, 7))


def test_a_copy_of_nothing_and_back_again(two: tuple[Device, Device]) -> None:
    first, second = two
    data = np.arange(256, dtype=np.uint8)
    a, b = _held(first, data), _held(second, np.zeros(256, np.uint8))
    second.copy_from(first, b.address, a.address, 0)
    assert not _bytes(second, b, 256).any()
    for _ in range(3):
        second.copy_from(first, b.address, a.address, 256)
        first.begin()
        first.clear(a.address, 256)
        first.copy_from(second, a.address, b.address, 256)
    np.testing.assert_array_equal(_bytes(first, a, 256), data)


def test_how_the_bytes_go(fake: Callable[..., FakeDriver]) -> None:
    for peers, expected in ((True, ["peer copy"]), (False, ["download", "upload"])):
        api = fake(peers=peers)
        first, second = registry.gpu(0), registry.gpu(1)
        a, b = _held(first, np.ones(8, np.uint8)), _held(second, np.zeros(8, np.uint8))
        api.calls.clear()
        second.copy_from(first, b.address, a.address, 8)
        assert api.calls == expected
        assert _bytes(second, b, 8).all()


def test_two_threads_copy_in_both_directions(two: tuple[Device, Device]) -> None:
    first, second = two
    a, b = _held(first, np.full(64, 1, np.uint8)), _held(second, np.full(64, 2, np.uint8))
    wrong: list[object] = []

    def work(to: Device, target: Any, other: Device, source: Any) -> None:
        try:
            for _ in range(20):
                to.copy_from(other, target.address, source.address, 64)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=args)
               for args in ((second, b, first, a), (first, a, second, b))]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    np.testing.assert_array_equal(_bytes(first, a, 64), _bytes(second, b, 64))


def test_an_emulated_device_knows_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")
    first, second = registry.gpu(0), registry.gpu(1)
    memory = first.allocate(64, "a test")
    with pytest.raises(InternalError, match="not memory of /gpu:1"):
        second.clear(memory.address, 64)
    with pytest.raises(InternalError, match="not memory of /gpu:1"):
        second.copy_from(first, memory.address, memory.address, 64)


def test_devices_of_two_sorts(fake: Callable[..., FakeDriver]) -> None:
    fake()
    real, other = registry.gpu(0), EmulatedDevice()
    data = np.arange(40, dtype=np.uint8)
    a, b = _held(real, data), _held(other, np.zeros(40, np.uint8))
    other.copy_from(real, b.address, a.address, 40)
    np.testing.assert_array_equal(_bytes(other, b, 40), data)
    real.begin()
    real.clear(a.address, 40)
    real.copy_from(other, a.address, b.address, 40)
    np.testing.assert_array_equal(_bytes(real, a, 40), data)


# ---------------------------------------------------------------------------------------- variables


def test_a_variable_moves_from_device_to_device(two: tuple[Device, Device]) -> None:
    v = wf.Variable(np.arange(5, dtype=np.float32), name="moving")
    steps = [wf.compile(device=f"gpu:{k}")(lambda x: v.assign_add(x)) for k in (0, 1)]
    one = np.ones(5, np.float32)
    for k in (0, 1, 1, 0, 1, 0, 0, 1):
        steps[k](one)
        assert getattr(v.state.resident, "device", None) is two[k]
    np.testing.assert_array_equal(np.asarray(v.read()), np.arange(5) + 8)
    assert "variable 'moving' (20 bytes)" in two[1].resident.describe()
    gc.collect()
    two[0].allocate(8, "gives back what died")
    assert "moving" not in two[0].resident.describe()


def test_a_move_does_not_come_by_the_host(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    v = wf.Variable(np.arange(5, dtype=np.float32))
    steps = [wf.compile(device=f"gpu:{k}")(lambda: v.assign_add(v + 1.0)) for k in (0, 1)]
    for k in (0, 1):
        steps[k]()
    api.calls.clear()
    steps[0]()
    held = [c for c in api.calls if c in ("peer copy", "upload")]
    assert held == ["peer copy"]


def test_a_variable_without_a_value_stays_so(two: tuple[Device, Device]) -> None:
    with wf.Graph().as_default():
        with wf.device("/gpu:1"):
            v = wf.Variable(np.zeros(3, np.float32))
            read = v + 1.0
        with wf.Session() as session:
            with pytest.raises(FailedPreconditionError, match="not initialised"):
                session.run(read)
            session.run(v.initializer)
            np.testing.assert_array_equal(session.run(read), np.ones(3))
            assert getattr(v.state.resident, "device", None) is two[1]


def test_functions_on_two_gpus_share_a_variable_from_many_threads(
    two: tuple[Device, Device],
) -> None:
    v = wf.Variable(np.zeros(4, np.float32))
    w = wf.Variable(np.zeros(4, np.float32))

    def both() -> Any:
        a = v.assign_add(np.ones(4, np.float32))
        return w.assign(a), a

    functions = [wf.compile(device=f"gpu:{k}")(both) for k in (0, 1)]
    for f in functions:
        f()
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for k in range(6):
                a, b = (np.asarray(r) for r in functions[(number + k) % 2]())
                assert (a == a[0]).all()  # no step has seen half of another's
                assert (a == b).all()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong
    for x in (v, w):
        np.testing.assert_array_equal(np.asarray(x.read()), np.full(4, 26))


def test_a_step_that_fails_after_a_move_keeps_what_it_has_written(
    two: tuple[Device, Device],
) -> None:
    v, w = (wf.Variable(np.zeros(3, np.float32), name=name) for name in "vw")
    first = wf.compile(device="gpu:0")(lambda: (v.assign_add(v + 1.0), w.assign_add(w + 1.0)))

    @wf.compile(device="gpu:1")
    def second(x: wf.Tensor, i: wf.Tensor) -> None:
        v.assign_add(np.ones(3, np.float32))
        w.assign(wf.gather(x, i, axis=0) + 0.5)

    first()
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(InvalidArgumentError, match="index 9"):
        second(x, np.array([0, 9, 1]))
    assert np.asarray(v.read()).tolist() == [2.0] * 3  # written before the index was looked at
    assert np.asarray(w.read()).tolist() == [1.0] * 3
    first()
    second(x, np.array([0, 2, 1]))
    assert np.asarray(v.read()).tolist() == [6.0] * 3
    assert np.asarray(w.read()).tolist() == [0.5, 2.5, 1.5]


def test_too_little_memory_on_the_second_device(fake: Callable[..., FakeDriver]) -> None:
    fake(memory=300_000)
    v = wf.Variable(np.zeros(40_000, np.float32), name="table")
    filler = registry.gpu(1).allocate(200_000, "something else")
    steps = [wf.compile(device=f"gpu:{k}")(lambda: wf.sum(v.assign_add(v + 1.0))) for k in (0, 1)]
    assert float(steps[0]()) == 40_000
    with pytest.raises(wf.errors.ResourceExhaustedError, match=r"/gpu:1 .*variable 'table'"):
        steps[1]()
    assert float(steps[0]()) == 3 * 40_000  # where it was, as it was
    del filler
    assert float(steps[1]()) == 7 * 40_000


@pytest.mark.parametrize(
    ("emulate", "gpus"), [("0", []), ("1", ["/gpu:0"]), ("2", ["/gpu:0", "/gpu:1"])]
)
def test_a_task_offers_its_gpus(
    emulate: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", emulate)
    monkeypatch.setattr(server, "_has_driver", lambda: False)
    task = "/job:worker/task:0"
    assert server.devices_of(task) == [f"{task}/cpu:0", *(f"{task}{gpu}" for gpu in gpus)]


def test_a_task_whose_gpus_cannot_be_used_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "yes")
    with pytest.raises(InvalidArgumentError, match="not 'yes'"):
        server.devices_of("/job:worker/task:0")
    monkeypatch.setenv("WEFT_EMULATE_GPU", "0")
    monkeypatch.setattr(server, "_has_driver", lambda: True)
    use_fake(monkeypatch, missing=True)
    assert server.devices_of("/job:worker/task:0") == ["/job:worker/task:0/cpu:0"]
    assert "offers no GPU: " in caplog.text
