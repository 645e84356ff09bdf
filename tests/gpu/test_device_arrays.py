"""`wf.DeviceArray`: results that stay on a GPU, arguments that are there, what the guard says."""

from __future__ import annotations

import copy
import gc
import logging
import pickle  # noqa: TID251
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import CUresult, FakeDriver

import weft as wf
from weft.frontend.compile.cost import inputs_of
from weft.runtime.device import plan
from weft.runtime.device.array import DeviceValue
from weft.runtime.device.backends import registry
from weft.runtime.device.execution import activation, segments
from weft.runtime.device.execution.activation import KeptActivations

Array = np.ndarray[Any, Any]
on_gpu = wf.compile(device="gpu:0")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of more than 64 bytes are large ones."""
    monkeypatch.setattr(plan, "DEVICE_SMALL_INPUT_BYTES", 64)
    monkeypatch.setattr(plan, "DEVICE_SMALL_RESULT_BYTES", 64)


def _x(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_what_a_result_is(gpu: str) -> None:
    x = _x(3, 4)
    y = on_gpu(lambda x: x * 2.0)(x)
    assert isinstance(y, wf.DeviceArray)
    assert isinstance(y, wf.Tensor)
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes) == ((3, 4), wf.float32, 2, 12, 48)
    assert (y.device, len(y), y.describe()) == ("gpu:0", 3, "f32[3,4] on gpu:0")
    assert y.block_until_ready() is y
    assert not y.numpy().flags.writeable
    np.testing.assert_array_equal(y, x * 2)
    np.testing.assert_array_equal(np.sin(y), np.sin(x * 2))
    np.testing.assert_array_equal(y[1, 1:], x[1, 1:] * 2)  # as all ops outside functions do
    np.testing.assert_array_equal(y + y, x * 4)
    assert not isinstance(y + y, wf.DeviceArray)
    assert y.tolist() == (x * 2).tolist()
    with pytest.raises(TypeError, match="unhashable"):
        hash(y)


def test_one_element(gpu: str) -> None:
    total, whole = on_gpu(lambda x: (wf.sum(x), wf.astype(wf.sum(x), wf.int64)))(np.full(4, 1.5))
    assert (float(total), total.item(), int(whole), bool(total)) == (6.0, 6.0, 6, True)
    assert range(10)[whole] == 6
    assert f"{total:.2f}" == "6.00"
    with pytest.raises(wf.errors.InvalidArgumentError, match="without axes"):
        float(on_gpu(lambda x: x + 1.0)(_x(2)))


def test_copies_and_pickles(gpu: str) -> None:
    y = on_gpu(lambda x: x + 1.0)(_x(5))
    assert copy.copy(y) is y
    deep = copy.deepcopy(y)
    assert isinstance(deep, wf.DeviceArray)
    assert deep._held.address != y._held.address
    np.testing.assert_array_equal(deep, y.numpy())
    loaded = pickle.loads(pickle.dumps(y))  # where it is read there may be no GPU
    assert type(loaded) is wf.Tensor
    np.testing.assert_array_equal(loaded, y.numpy())


def test_to_device_and_back(gpu: str) -> None:
    x = _x(2, 3)
    tree = wf.to_device({"x": x, "n": [3, wf.asarray([1, 2])]}, "gpu:0")
    assert {leaf.device for leaf in wf.tree_leaves(tree)} == {"gpu:0"}
    x[...] = 0.0  # it is a copy
    assert np.any(tree["x"].numpy())
    assert tree["n"][0].weak  # a Python number takes the dtype of what it meets
    assert wf.to_device(tree["x"], "/gpu:0") is tree["x"]
    assert wf.from_dlpack(tree["x"]) is tree["x"]
    assert tree["x"].to_device("gpu:0") is tree["x"]
    back = tree["x"].to_device("cpu")
    assert type(back) is wf.Tensor
    np.testing.assert_array_equal(back, tree["x"].numpy())
    product = on_gpu(lambda tree: tree["x"] * tree["n"][0])(tree)
    assert product.dtype == wf.float32
    np.testing.assert_array_equal(product, tree["x"].numpy() * 3)
    for bad, words in (
        ("gpu:7", "no device '/gpu:7'"),
        ("/job:a/task:1/gpu:0", "no device of this"),
    ):
        with pytest.raises(wf.errors.InvalidArgumentError, match=words) as caught:
            wf.to_device(x, bad)
        assert "test_device_arrays.py" in str(caught.value)
    with pytest.raises(wf.errors.UnsupportedError, match="no arrays of strings") as caught:
        wf.to_device(wf.constant(["a"]), "gpu:0")
    assert "test_device_arrays.py" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_arrays_may_be_there_but_are_not_computed_with(gpu: str, dtype: Any) -> None:
    z = np.array([1 + 2j, -0.0 - 3j], dtype)
    there, given = wf.to_device(z, "gpu:0"), on_gpu(lambda z: z)(z)
    v = wf.Variable(z)
    for x in (there, given, on_gpu(lambda z: z)(there), on_gpu(v.read)()):
        assert isinstance(x, wf.DeviceArray)
        assert x.numpy().tobytes() == z.tobytes()
        np.testing.assert_array_equal(x.to_device("cpu"), z)
        with pytest.raises(wf.errors.UnsupportedError, match="complex numbers run on the CPU only"):
            on_gpu(lambda z: z * z)(x)
        np.testing.assert_array_equal(wf.compile(lambda z: z * z)(x), z * z)


@pytest.mark.usefixtures("small")
def test_results_are_not_written_over_by_later_calls(gpu: str) -> None:
    step = on_gpu(lambda x, y: (x + y, wf.sum(x)))
    x = _x(40)
    made = [step(x, np.full(40, k, np.float32)) for k in range(6)]
    for k, (sums, total) in enumerate(made):
        np.testing.assert_array_equal(sums, x + np.float32(k))
        np.testing.assert_allclose(float(total), x.sum(), rtol=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [3, 50])
def test_a_chain_of_calls_is_that_of_the_cpu(gpu: str, size: int) -> None:
    def step(p: wf.Tensor, m: wf.Tensor, k: wf.Tensor) -> Any:
        return p * 0.5 + m, m - p * k, m

    one, other = on_gpu(step), wf.compile(step)
    mine: Any = (_x(size), _x(size, seed=1))
    theirs: Any = mine
    for k in range(7):  # launched, recorded, launched from two places in turn
        mine, theirs = one(*mine[:2], np.float32(k)), other(*theirs[:2], np.float32(k))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_arrays_on_the_device_are_neither_sent_nor_fetched(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    step = on_gpu(lambda x, y: (x + y, x * y))
    x, y = wf.to_device([_x(9), _x(9)], "gpu:0")
    api.calls.clear()
    for _ in range(4):
        x, y = step(x, y)
    assert not {"upload", "download"} & set(api.calls)
    assert not any(call.startswith("launch") for call in api.calls[-1:])
    float(wf.sum(x))
    assert api.calls.count("download") == 1
    float(wf.sum(x))  # the copy is kept
    assert api.calls.count("download") == 1


def test_a_call_returns_before_the_device_is_done(fake: Callable[..., FakeDriver]) -> None:
    fake()
    step = on_gpu(lambda x: x * 2.0 + 1.0)
    x = wf.to_device(_x(5), "gpu:0")
    first = step(x)
    second = step(first)
    device = registry.gpu(0)
    assert device._work.done < len(device._work.work)  # type: ignore[attr-defined]
    assert not second._held.ready.done()  # type: ignore[union-attr]
    first.block_until_ready()
    assert first._held.ready.done()  # type: ignore[union-attr]
    assert not second._held.ready.done()  # type: ignore[union-attr]
    np.testing.assert_allclose(second, (x.numpy() * 2 + 1) * 2 + 1, rtol=1e-6)


def test_small_arguments_do_not_overtake_calls_that_are_not_done(
    fake: Callable[..., FakeDriver],
) -> None:
    fake()
    step = on_gpu(lambda x: x * 2.0)
    made = [step(np.full(3, k, np.float32)) for k in range(6)]
    assert [y.numpy().tolist() for y in made] == [[2.0 * k] * 3 for k in range(6)]


def test_copies_to_the_device_do_not_wait_for_its_kernels(fake: Callable[..., FakeDriver]) -> None:
    fake()
    y = on_gpu(lambda x: x * 2.0)(_x(5))
    x = wf.to_device(_x(7), "gpu:0")
    assert x._held.ready.done()
    assert not y._held.ready.done()
    np.testing.assert_array_equal(x, _x(7))
    assert not y._held.ready.done()
    np.testing.assert_array_equal(on_gpu(lambda a, b: wf.concat([a, b]))(x, y)[7:], y)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("staged", [1 << 20, 100, 10])
def test_arguments_arrive_while_the_device_is_at_the_call_before(
    staged: int, fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "STAGED", staged)
    fake()
    step = on_gpu(lambda x, y, z: (wf.sum(x), wf.sum(y) * z))
    x, y = np.ones(200, np.float32), np.ones(300, np.float32)
    made: list[Any] = [step(x, y, 2.0)]
    device = registry.gpu(0)
    for k in range(2, 5):
        made.append(step(x * k, y * k, 2.0 * k))
        device.sent().wait()
        assert not made[-2][0]._held.ready.done()
    assert [(float(a), float(b)) for a, b in made] == [(200 * k, 600 * k * k) for k in range(1, 5)]


def test_without_memory_for_more_arguments_they_wait(fake: Callable[..., FakeDriver]) -> None:
    fake(memory=30_000)
    f, x = on_gpu(lambda x: x * 2.0), np.ones(2000, np.float32)
    first, second = f(x), f(x + 1)
    registry.gpu(0).sent().wait()
    assert first._held.ready.done()
    assert (first[0], second[0]) == (2, 4)


@pytest.mark.usefixtures("small")
def test_arguments_may_change_when_a_call_has_returned(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    for staged in (1 << 20, 100, 10):  # by pinned memory; the large one from where it is; both
        monkeypatch.setattr(activation, "STAGED", staged)
        api = fake()
        step = on_gpu(lambda x, y: (wf.sum(x), wf.sum(y)))
        x, y = np.ones(200, np.float32), np.ones(3, np.float32)
        if staged != 1 << 20:  # such memory may be pinned, too: by another library
            api.pinned[x.ctypes.data], api.pinned[y.ctypes.data] = x.view("u1"), y.view("u1")
        made = []
        for k in range(5):
            x[...], y[...] = k, k
            made.append(step(x, y))
        x[...], y[...] = -1, -1
        assert [(float(a), float(b)) for a, b in made] == [(200 * k, 3 * k) for k in range(5)]
        api.pinned.pop(x.ctypes.data, None), api.pinned.pop(y.ctypes.data, None)


@pytest.mark.usefixtures("small")
def test_recordings_are_kept_for_places_that_come_back(fake: Callable[..., FakeDriver]) -> None:
    api = fake()
    step = on_gpu(lambda x: (wf.sum(x, axis=0, keepdims=True) + x, wf.max(x)))
    places = [wf.to_device(_x(20, 2, seed=k), "gpu:0") for k in range(2)]
    device = registry.gpu(0)
    blocks = [
        device.allocate(160, "a test") for _ in range(2)
    ]  # the pool gives places back in turn
    api.calls.clear()

    def allocated(self: Any, nbytes: int, what: str, turn: list[int] = [0]) -> Any:  # noqa: B006
        if nbytes != 160:
            return original(self, nbytes, what)
        turn[0] += 1
        return blocks[turn[0] % 2]

    original = type(device).allocate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(device), "allocate", allocated)
        for k in range(8):
            step(places[k % 2])
    assert api.calls.count("graph") >= 4
    assert api.graphs == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "MOST_SETS", 1)
        kept = [step(wf.to_device(_x(20, 2, seed=k), "gpu:0")) for k in range(6)]  # elsewhere
    assert api.captures == 2  # both recordings get other places
    assert api.calls.count("graph") >= 4 + 6
    for k, (rows, _) in enumerate(kept):
        x = _x(20, 2, seed=k)
        np.testing.assert_allclose(rows, x.sum(axis=0, keepdims=True) + x, rtol=1e-3)
    del step, kept, rows
    gc.collect()
    device.allocate(8, "a test")
    assert api.graphs == 0


def test_memory_of_a_thousand_calls_is_given_back(gpu: str) -> None:
    step = on_gpu(lambda x: (x + 1.0, wf.sum(x)))
    x = wf.to_device(np.zeros(300, np.float32), "gpu:0")
    device = registry.gpu(0)
    for k in range(200 if gpu == "emulated" else 1000):
        x, total = step(x)
        if k == 20:
            resident = device.resident.nbytes
    assert device.resident.nbytes <= resident + 4096
    np.testing.assert_array_equal(x.numpy()[:2], np.float32(200 if gpu == "emulated" else 1000))
    del x, total
    gc.collect()
    device.allocate(1, "a test")
    assert "results" not in device.resident.describe()


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (np.array([-2147483648], np.int32), "-2147483648 "),
        (np.array([1 << 40]), "2147483647 or more "),
        (np.array([-1 << 40]), "-2147483648 or less "),
        (np.array([1 << 31], np.uint32), "2147483647 or more "),
        (np.array([(1 << 63) + 5], np.uint64), "9223372036854775808 or more "),
        (np.array([(1 << 64) - 1], np.uint64), "18446744073709551615 "),
    ],
)
def test_an_index_of_many_bits_is_told_of_as_far_as_it_is_known(
    gpu: str, index: np.ndarray[Any, Any], told: str
) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=rf"index {told}\(element 0"):
        np.asarray(wf.compile(lambda i: wf.take(np.arange(5.0), i), device="gpu:0")(index))


def test_an_index_out_of_bounds_is_told_of_by_the_call(gpu: str) -> None:
    pick = on_gpu(lambda t, i: wf.gather(t, i, axis=0))
    table, index = wf.to_device([_x(4, 2), np.array([0, 5])], "gpu:0")
    with pytest.raises(wf.errors.InvalidArgumentError, match="index 5") as caught:
        pick(table, index)
    assert "test_device_arrays.py" in str(caught.value)
    np.testing.assert_array_equal(pick(table, np.array([3, 0])), table.numpy()[[3, 0]])


def test_a_kernel_that_fails_is_told_of_by_who_reads(fake: Callable[..., FakeDriver]) -> None:
    reads: list[Callable[[Any], Any]] = [
        float, wf.DeviceArray.block_until_ready, np.asarray, copy.deepcopy,
        lambda y: wf.to_device(y, "cpu"), lambda y: registry.gpu(0).synchronize(),
    ]  # fmt: skip
    for read in reads:
        api = fake()
        step = on_gpu(lambda x: wf.sum(x))
        step(_x(3))
        api.fault_in = api.compiler.compiled[-1]
        y = step(_x(3))  # nobody has waited
        if read is copy.deepcopy:
            with pytest.raises(wf.errors.InternalError, match="a kernel failed"):
                float(read(y))
            continue
        with pytest.raises(wf.errors.InternalError, match="WEFT_GPU_BLOCKING=1"):
            read(y)
    api = fake()
    step = on_gpu(lambda x: wf.sum(x))
    y = step(_x(3))
    api.failed = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(wf.errors.InternalError, match="a kernel failed"):  # by the next call
        step(y)


def test_variables_and_arrays_together(gpu: str) -> None:
    w = wf.Variable(np.zeros(6, np.float32))
    step = on_gpu(lambda x: (w.assign_add(x), wf.sum(w)))
    x = wf.to_device(np.ones(6, np.float32), "gpu:0")
    totals = [step(x)[1] for _ in range(5)]
    assert [float(t) for t in totals] == [6.0, 12.0, 18.0, 24.0, 30.0]
    np.testing.assert_array_equal(w.read(), np.full(6, 5.0))
    value = step(x)[0]
    step(x)
    np.testing.assert_array_equal(value, np.full(6, 6.0))  # not the variable's memory


@pytest.mark.usefixtures("small")
def test_many_threads(gpu: str) -> None:
    step = on_gpu(lambda x, k: x * 1.0 + k)
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            x: Any = np.zeros(30 if number % 2 else 4, np.float32)
            for k in range(15):
                x = step(x, np.float32(number + k))
            np.testing.assert_array_equal(x, np.full(x.shape, 15 * number + 105))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cpu_functions_sessions_and_graphs_take_them(gpu: str) -> None:
    y = on_gpu(lambda x: x + 1.0)(np.zeros(3, np.float32))
    on_cpu = wf.compile(lambda x, k=1: x * 2.0)
    for _ in range(3):
        np.testing.assert_array_equal(on_cpu(y), [2.0, 2.0, 2.0])
        np.testing.assert_array_equal(on_cpu(x=y), [2.0, 2.0, 2.0])
    with wf.Graph().as_default() as graph:
        p = wf.placeholder(wf.float32, [3])
        total = wf.sum(p + y)
    with wf.Session(graph=graph) as session:
        result = session.run(total, {p: y})
    assert type(result) is not wf.DeviceArray
    assert result == 6.0
    nested = on_gpu(lambda x: on_gpu(lambda z: z + y)(x) * 2.0)  # a constant of the graph
    np.testing.assert_array_equal(nested(y), [4.0, 4.0, 4.0])
    v = wf.Variable(np.zeros(3, np.float32))
    v.assign(y)
    np.testing.assert_array_equal(v.read(), np.ones(3))


def test_nested_weak_keyword_and_static_arguments(gpu: str) -> None:
    @wf.compile(device="gpu:0", static_argnames="k")
    def f(pair: dict[str, Any], scale: Any, k: int = 1) -> dict[str, Any]:
        return {"out": [pair["a"] * scale, pair["b"] + k], "scale": scale}

    pair = wf.to_device({"a": _x(3), "b": _x(2)}, "gpu:0")
    for _ in range(3):
        made = f(pair, scale=2.0, k=3)
        np.testing.assert_array_equal(made["out"][0], pair["a"].numpy() * 2)
        np.testing.assert_array_equal(made["out"][1], pair["b"].numpy() + 3)
        again = f(pair, made["scale"], k=3)
        assert again["out"][0].dtype == wf.float32  # weak as the number it was
    assert f.cache_info().size == 1
    bits = wf.compile(device="gpu:0")(lambda x, n: x + n)
    number = wf.to_device(300, "gpu:0")
    with pytest.raises(wf.errors.InvalidArgumentError, match="300"):
        bits(np.zeros(2, np.uint8), number)  # as a Python integer that does not fit


def test_the_guard_disallows_what_nobody_asked_for(gpu: str) -> None:
    def scaled(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.sum(x * y)

    f, x = on_gpu(scaled), wf.to_device(_x(3), "gpu:0")
    with wf.transfer_guard("disallow"):
        total = f(x, wf.to_device(_x(3), "gpu:0"))
        assert total.numpy().shape == ()  # asked for
        fresh = f(x, x)
        cases: list[tuple[Callable[[], Any], list[str]]] = [
            (lambda: f(x, _x(3)), ["argument y of 'scaled', f32[3]", "to gpu:0", "wf.to_device"]),
            (lambda: f(x, 2.0), ["argument y of 'scaled', f64[]"]),
            (lambda: f(x, wf.asarray(_x(3))), ["argument y of 'scaled'"]),
            (lambda: float(fresh), ["f32[] on gpu:0", "copied to the host", "x.numpy()"]),
            (lambda: bool(fresh), ["copied to the host"]),
            (lambda: np.asarray(fresh), ["copied to the host"]),
            (lambda: fresh + 1.0, ["by an op there"]),
            (lambda: wf.compile(scaled)(x, fresh), ["copied to the host"]),
        ]
        for call, words in cases:
            with pytest.raises(wf.errors.FailedPreconditionError) as caught:
                call()
            for word in (*words, "which wf.transfer_guard disallows", "test_device_arrays.py"):
                assert word in str(caught.value)
        with wf.transfer_guard("allow"):
            assert float(fresh) == float(np.sum(x.numpy() * x.numpy(), dtype=np.float32))
        assert float(fresh)  # its copy is here already
        last = f(x, x)
        assert repr(last) == "<DeviceArray f32[] on gpu:0>"  # which transfers nothing
    assert repr(last).startswith("DeviceArray(")
    f(x, _x(3))


def test_the_guard_is_of_a_thread_or_of_all(gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    f = on_gpu(lambda x: x + 1.0)
    outcome: list[str] = []

    def work() -> None:
        try:
            f(_x(2))
            outcome.append("ran")
        except wf.errors.FailedPreconditionError:
            outcome.append("refused")

    def in_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with wf.transfer_guard("disallow"):
        in_thread()
        work()
    wf.set_transfer_guard("disallow")
    try:
        in_thread()
        with wf.transfer_guard("log"), caplog.at_level(logging.WARNING, "weft.transfers"):
            work()
    finally:
        wf.set_transfer_guard("allow")
    assert outcome == ["ran", "refused", "refused", "ran"]
    assert "is a host array or number that is copied to gpu:0" in caplog.text
    assert "test_device_arrays.py" in caplog.text
    for wrong in (lambda: wf.set_transfer_guard("no"), lambda: wf.transfer_guard("no").__enter__()):
        with pytest.raises(wf.errors.InvalidArgumentError, match="allow, log, disallow, not 'no'"):
            wrong()


def test_a_session_gives_numpy_arrays(gpu: str) -> None:
    with wf.Graph().as_default() as graph, wf.device("/gpu:0"):
        x = wf.placeholder(wf.float32, [None])
        y = x * 2.0
    with wf.Session(graph=graph) as session:
        made = session.run(y, {x: np.ones(3, np.float32)})
    assert type(made) is np.ndarray


def test_steps_for_others(gpu: str) -> None:
    """What the executor of steps over several devices uses."""
    f = on_gpu(lambda x: (x + 1.0, wf.sum(x)))
    f(_x(3))
    step: Any = f._specialized((_x(3),), {}).executable()
    device = registry.gpu(0)
    held = DeviceValue.of(_x(3), device, "a test")
    kept = KeptActivations()
    for _ in range(2):  # the second time on the same activation
        made = step.call([held], kept)
    assert len(kept) == 1
    assert kept[step] not in step.activations.idle
    np.testing.assert_array_equal(made[0].numpy(), _x(3) + 1)
    assert made[0].on(device) is made[0]
    np.testing.assert_array_equal(step.run([held])[0], _x(3) + 1)


@pytest.mark.usefixtures("gpu")
def test_a_function_for_the_cpu_does_not_take_its_memory() -> None:
    y = on_gpu(lambda x: x + 1.0)(_x(3))
    wanted = _x(3) + 1
    added = wf.compile(lambda x: x + 1.0, donate="x")
    for _ in range(2):  # the second time there is a copy on the host
        with pytest.raises(wf.errors.TypeRuleError, match=r"a DeviceArray\n.*\n.*x\.numpy\(\)"):
            added(y)
        np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(added(wf.asarray(y.numpy())), wanted + 1)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.usefixtures("gpu")
def test_measuring_with_arrays_that_are_there() -> None:
    f, y = on_gpu(lambda x: x * 2.0), wf.to_device(_x(2, 3), "gpu:0")
    with pytest.raises(wf.errors.UnsupportedError, match="cost"):
        f.cost(y)
    made = f._specialized((y,), {})
    (given,) = inputs_of(f._key((y,), {}), made.traced.graph.args)
    np.testing.assert_array_equal(given, _x(2, 3))


def test_too_little_memory_beside_results(fake: Callable[..., FakeDriver]) -> None:
    fake(memory=68_000)
    f, x = on_gpu(lambda x: x * 2.0), np.ones(2000, np.float32)
    alive: list[Any] = []
    with pytest.raises(wf.errors.ResourceExhaustedError) as caught:
        alive.extend(f(x) for _ in range(20))
    for words in ("no 8,000 bytes for results of 'lambda'", "results of 'lambda' (48,000 bytes)",
                  "test_device_arrays.py"):  # fmt: skip
        assert words in str(caught.value)
    for y in alive:
        np.testing.assert_array_equal(y, x * 2)
    del alive[1:], y
    np.testing.assert_array_equal(f(x), x * 2)

    class Ring:
        def __init__(self) -> None:
            self.me, self.held = self, f(x)

    for _ in range(20):  # which only the collector finds
        Ring()
    np.testing.assert_array_equal(alive[0], x * 2)
