"""`donate=` on a GPU: results in the memory of arrays there, and who may not give theirs away."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device
from fake_driver import FakeDriver
from gpu_kinds import REAL, on_a_real_one_too
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.frontend.core import device_array
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError
from weft.runtime.device import plan as layout
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.cuda import CudaDevice
from weft.runtime.device.execution import activation
from weft.runtime.device.protocol import Resident

Array = np.ndarray[Any, Any]
X = np.arange(100, dtype=np.float32).reshape(10, 10)
GPU = "gpu:0"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of more than 64 bytes are large ones."""
    monkeypatch.setattr(layout, "DEVICE_SMALL_INPUT_BYTES", 64)
    monkeypatch.setattr(layout, "DEVICE_SMALL_RESULT_BYTES", 64)


def there(x: Any = X) -> Any:
    return wf.to_device(x, GPU)


def address(t: Any) -> int:
    return int(t._held.address)


def donating(f: Callable[..., Any], donate: Any = "x") -> Any:
    return wf.compile(device=GPU, donate=donate)(f)


# ------------------------------------------------------------------------------- memory is taken
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("n", [1, 100, 2000])
def test_the_result_is_where_the_argument_was(n: int) -> None:
    """However large it is; calls in flight follow each other."""
    f = donating(lambda x, y: x * 2.0 + y)
    start = np.arange(n, dtype=np.float32)
    x = there(start)
    home, gone = address(x), []
    for _ in range(4):
        gone.append(x)
        x = f(x, 1.0)
        assert address(x) == home
    np.testing.assert_array_equal(x, start * 16 + 15)
    for one in gone:
        with pytest.raises(FailedPreconditionError, match="was donated"):
            one.numpy()


@pytest.mark.usefixtures("gpu", "small")
def test_a_tensor_of_the_host_gives_its_place_there() -> None:
    f = donating(lambda x: x + 1.0)
    x = wf.asarray(X)
    y = f(x)
    with pytest.raises(FailedPreconditionError, match="was donated to 'lambda'"):
        x.numpy()
    home = address(y)
    z = f(y)
    assert address(z) == home
    np.testing.assert_array_equal(z, X + 2)
    with pytest.raises(TypeError, match="ndarray"):
        f(X)
    kept = np.asarray(seen := wf.asarray(X))
    with pytest.raises(InvalidArgumentError, match="is seen by an array"):
        f(seen)
    np.testing.assert_array_equal(kept, X)


def train(donate: Any) -> tuple[Any, Any, Array, Array]:
    @wf.compile(device=GPU, donate=donate)
    def step(params: Any, slots: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h = wf.tanh(wf.matmul(x, p["w1"]) + p["b1"])
            return wf.mean(wf.square(wf.matmul(h, p["w2"]) + p["b2"] - y))

        value, g = wf.value_and_grad(loss)(params)
        slots = {k: 0.9 * slots[k] + g[k] for k in slots}
        return {k: params[k] - 0.1 * slots[k] for k in params}, slots, value

    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 32), "b1": (32,), "w2": (32, 24), "b2": (24,)}
    params = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((8, 16), (8, 24)))
    state = there((params, {k: np.zeros_like(v) for k, v in params.items()}))
    return step, state, x, y


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most bytes that were resident since it was last asked, or began."""
    add, most = Resident.add, [0]

    def note(self: Resident, what: str, nbytes: int) -> None:
        add(self, what, nbytes)
        most[0] = max(most[0], self.nbytes)

    monkeypatch.setattr(Resident, "add", note)

    def asked() -> int:
        registry.gpu(0).reclaim()
        was, most[0] = most[0], registry.gpu(0).resident.nbytes
        return was

    return asked


@pytest.mark.usefixtures("gpu", "small")
def test_a_training_loop_holds_its_state_once(peak: Callable[[], int]) -> None:
    """The same losses, to the bit; as many bytes less as the results have that take memory."""
    peaks, losses = [], []
    for donate in ((), ("params", "slots")):
        step, state, x, y = train(donate)
        found: list[float] = []
        before = registry.gpu(0).resident.nbytes
        for k in range(5):
            *state, loss = step(*state, x, y)
            if k == 1:
                peak()  # of the calls before all is as it stays
            found.append(loss)
        losses.append([float(one) for one in found])
        plan = step._specialized((*state, x, y), {}).executable().plan
        peaks.append(peak() - before)
        taken = sum(plan.inputs[i].nbytes for i in plan.donated.values())
        del step, state, loss, found
        registry.gpu(0).resident.drop_idle()
        registry.gpu(0).reclaim()
    assert losses[0] == losses[1]
    state_bytes = 2 * 4 * (16 * 32 + 32 + 32 * 24 + 24)
    assert taken > 0.9 * state_bytes
    assert peaks[0] - peaks[1] >= taken


def test_one_recording_serves_the_loop(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state stays where it is."""
    fake()
    recorded: list[int] = []
    capture = CudaDevice.capture
    monkeypatch.setattr(
        CudaDevice, "capture", lambda self, *a: (recorded.append(1), capture(self, *a))[1]
    )
    step, state, x, y = train(("params", "slots"))
    x, y = there((x, y))
    for _ in range(8):
        *state, loss = step(*state, x, y)
    assert float(loss) > 0
    assert len(recorded) == 1


@pytest.mark.usefixtures("gpu", "small")
def test_what_no_result_can_take_goes_back() -> None:
    """When the step has read it."""
    f = donating(lambda x: wf.matmul(x, x))
    x = there(np.eye(40, dtype=np.float32))
    assert dict(f._specialized((x,), {}).executable().plan.donated) == {}
    resident = registry.gpu(0).resident
    was = resident.describe()
    assert "arrays of wf.to_device (6,400 bytes)" in was
    y = f(x)
    registry.gpu(0).reclaim()
    assert "to_device" not in resident.describe()
    with pytest.raises(FailedPreconditionError, match="or went back to the device"):
        x + 1
    np.testing.assert_array_equal(y, np.eye(40))


@on_a_real_one_too
@pytest.mark.usefixtures("place", "small")
def test_results_of_other_types_and_arguments_as_they_are() -> None:
    f = donating(
        lambda x, kept: (wf.astype(wf.argsort(wf.sort(x)), wf.int32), wf.reshape(kept, (10, 10))),
        ("x", "kept"),
    )
    x, kept = there((X.ravel(), X.ravel()))
    homes = [address(x), address(kept)]
    order, same = f(x, kept)
    assert address(same) == homes[1]
    assert order.dtype == wf.int32
    np.testing.assert_array_equal(order, np.arange(100))
    np.testing.assert_array_equal(same, X)
    text = f.explain(there(X.ravel()), there(X.ravel()))
    assert "result 1 is where the donated argument 'kept' was" in text
    twice = donating(lambda x: (x, x))
    x = there(X)
    home = address(x)
    one, two = twice(x)
    assert address(one) == home != address(two)
    np.testing.assert_array_equal(two, X)


@pytest.mark.parametrize("kind", ["emulated", REAL])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_random_functions(data: st.DataObject, kind: str) -> None:
    """What is donated changes nothing but where results are."""
    donate = data.draw(st.lists(st.integers(0, 1), unique=True))
    steps = data.draw(st.lists(st.tuples(st.sampled_from("+*@Tsc"), st.integers(0, 8),
                                         st.integers(0, 8)), max_size=6))  # fmt: skip
    outputs = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))

    made: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda a, b: a + b, "*": lambda a, b: a * b, "@": wf.matmul,
        "T": lambda a, b: wf.matrix_transpose(a) + a,
        "s": lambda a, b: a - wf.sum(b, axis=0), "c": lambda a, b: wf.sort(a, axis=0),
    }  # fmt: skip

    def f(x: Any, y: Any) -> Any:
        held = [x, y]
        for kind, i, j in steps:
            a, b = held[i % len(held)], held[j % len(held)]
            held.append(made[kind](a, b))
        return [held[k % len(held)] for k in outputs]

    arrays = [np.random.default_rng(k).integers(-2, 3, (4, 4)).astype(np.float32)
              for k in range(2)]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        if kind == "emulated":
            patch.setenv("WEFT_EMULATE_GPU", "1")
        else:
            use_device(kind, patch)
        patch.setattr(layout, "DEVICE_SMALL_RESULT_BYTES", 16)
        wanted = [r.numpy() for r in wf.compile(device=GPU)(f)(*there(arrays))]
        given = there(arrays)
        found = wf.compile(device=GPU, donate=donate)(f)(*given)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        for i, one in enumerate(given):
            assert (i in donate) == ("donated to" in repr(one))


# ------------------------------------------------------------------------------ who may not give
def refused(match: str, f: Any, *args: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=match) as caught:
        f(*args)
    assert "test_device_donate.py" in str(caught.value)


def test_memory_that_others_see(fake: Callable[..., FakeDriver]) -> None:
    fake()
    f = donating(lambda x, y: x * 2.0 + y)
    x = there(X)
    refused("'x' is passed more than once", f, x, x)
    capsule = x.__dlpack__(stream=1)
    refused("'x' is shared with another library", f, x, 1.0)
    np.testing.assert_array_equal(x, X)
    borrowed = wf.from_dlpack(Through(x))
    del capsule
    refused("'x' is in memory of another library, which weft has borrowed", f, borrowed, 1.0)
    refused("'x' is shared with another library", f, x, 1.0)
    del borrowed
    twin = copy.deepcopy(x)
    assert x.__cuda_array_interface__["data"][0] == address(x)
    refused("'x' has told its address", f, x, 1.0)
    np.testing.assert_array_equal(f(twin, 1.0), X * 2 + 1)
    np.testing.assert_array_equal(x, X)
    cpu = wf.compile(donate="x")(lambda x: x + 1.0)
    with pytest.raises(wf.errors.TypeRuleError, match="a DeviceArray"):
        cpu(x)


class Through:
    """An array as another library has it."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)


@pytest.mark.usefixtures("small")
def test_others_that_still_read_when_they_let_go(fake: Callable[..., FakeDriver]) -> None:
    """Their stream is waited for before the memory is written to."""
    api = fake()
    f = donating(lambda x: x * 2.0)
    f(there(X))
    x = there(X)
    capsule = x.__dlpack__(stream=77)
    stream, read, at = api.CUstream(77), np.empty_like(X), address(x)
    api.cuCtxSetCurrent("context 0")
    api._put(stream, lambda: ctypes.memmove(read.ctypes.data, at, X.nbytes) and None)
    del capsule
    y = f(x)
    assert address(y) == at
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(read, X)


def test_a_stream_that_cannot_be_waited_for(
    fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library is recording on it: the array stays as it is, the result has memory of its own."""
    fake()
    f, x = donating(lambda x: x * 2.0), there(X)
    monkeypatch.setattr(CudaDevice, "reclaim", lambda self: False)
    held = x._held
    y = f(x)
    assert "donated to" in repr(x)
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(held.numpy(), X)


def test_small_results_of_one_call(gpu: str) -> None:
    """They are in one block, each at a place of its own."""
    a, b = wf.compile(device=GPU)(lambda x: (x + 1.0, x + 2.0))(X)
    assert a._held.memory is b._held.memory
    c = donating(lambda x: x * 3.0)(a)
    assert c._held.memory is b._held.memory
    np.testing.assert_array_equal(c, (X + 1) * 3)
    np.testing.assert_array_equal(b, X + 2)


@pytest.mark.usefixtures("gpu")
def test_a_variable_has_memory_of_its_own() -> None:
    v = wf.Variable(X, name="v")
    read = wf.compile(device=GPU)(lambda: v + 0.0)
    whole = wf.compile(device=GPU)(lambda: v.read())
    keep = donating(lambda x: v.assign(x))
    for give in (read, whole):
        f = donating(lambda x: x * 0.0)
        f(give())
        np.testing.assert_array_equal(whole(), X)
    x = there(X * 2)
    keep(x)
    f(there(X))
    np.testing.assert_array_equal(v.numpy(), X * 2)
    with pytest.raises(FailedPreconditionError, match="was donated"):
        x.numpy()


# ---------------------------------------------------------------------------------- what remains
@on_a_real_one_too
@pytest.mark.usefixtures("place")
def test_every_use_says_where_it_went() -> None:
    f = donating(lambda x: x + 1.0)
    g = wf.compile(device=GPU)(lambda x: x * 2.0)
    x = there(X)
    y = x.numpy()
    f(x)
    np.testing.assert_array_equal(y, X)  # a copy on the host
    assert repr(x) == "<DeviceArray donated to 'lambda'>"
    uses: list[Callable[[], Any]] = [
        lambda: x + 1, lambda: x.numpy(), lambda: x.shape, lambda: np.asarray(x), lambda: f(x),
        lambda: g(x), lambda: wf.sum(x), lambda: x[0], lambda: float(x), lambda: x.dtype,
        lambda: wf.compile(lambda y: y)(x), lambda: x.block_until_ready(), lambda: copy.deepcopy(x),
        lambda: wf.to_device(x, "cpu"), lambda: x.__dlpack__(), lambda: x.device, lambda: len(x),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(FailedPreconditionError, match=r"was donated to 'lambda' at .*f\(x\)"):
            use()


def test_calls_that_fail(fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device was asked to write to is gone, what it was not is still there."""
    monkeypatch.setattr(layout, "DEVICE_SMALL_RESULT_BYTES", 64)
    fake(memory=300_000)
    look_up = donating(lambda x, i: (x + 1.0, wf.take(X, i, axis=0)))
    x = there(X)
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        look_up(x, np.array([99]))
    with pytest.raises(FailedPreconditionError, match="was donated"):
        x.numpy()
    grow = donating(lambda x: (x + 1.0, wf.broadcast_to(wf.sum(x), (1000, 200)) * 1.0))
    x = there(X)
    with pytest.raises(wf.errors.ResourceExhaustedError):
        grow(x)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(donating(lambda x: x + 1.0)(x), X + 1)


@pytest.mark.usefixtures("place")
def test_two_threads_with_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has it; who reads it at the time is told that it went."""
    device = registry.gpu(0)
    x, f = there(X), donating(lambda x: x + 1.0)
    f(there(X))
    download = type(device).download

    def between(self: Any, *args: Any) -> None:
        download(self, *args)
        thread = threading.Thread(target=f, args=(x,))
        thread.start()
        thread.join()

    with monkeypatch.context() as patch:
        patch.setattr(type(device), "download", between)
        with pytest.raises(FailedPreconditionError, match="to a call in another thread"):
            x.numpy()
    g, x = wf.compile(device=GPU)(lambda x: x * 2.0), there(X)
    work = activation.Activation.work

    def before(self: Any) -> None:
        monkeypatch.setattr(activation.Activation, "work", work)
        thread = threading.Thread(target=f, args=(x,))
        thread.start()
        thread.join()
        work(self)

    monkeypatch.setattr(activation.Activation, "work", before)
    with pytest.raises(FailedPreconditionError, match="to a call in another thread"):
        g(x)
    np.testing.assert_array_equal(g(there(X)), X * 2)
    x, made, failed = there(X), [], []

    def donate() -> None:
        try:
            made.append(f(x).numpy())
        except FailedPreconditionError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=donate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(failed) == 3
    np.testing.assert_array_equal(made[0], X + 1)


@pytest.mark.parametrize("way", ["export", "interface"])
def test_an_array_that_goes_while_it_is_shared(
    way: str, fake: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is given memory that another thread's call is about to write to."""
    fake()
    f, x = donating(lambda x: x + 1.0), there(X)
    share = getattr(device_array, way)

    def late(*args: Any, **options: Any) -> Any:
        f(x)
        return share(*args, **options)

    monkeypatch.setattr(device_array, way, late)
    with pytest.raises(FailedPreconditionError, match="was donated"):
        x.__dlpack__() if way == "export" else x.__cuda_array_interface__


@on_a_real_one_too
@pytest.mark.usefixtures("place")
def test_measuring_leaves_arguments_alone() -> None:
    f, x = donating(lambda x: x * 2.0), there(np.tile(X, 30))
    made = f._specialized((x,), {}).executable()
    for _ in range(2):
        np.testing.assert_array_equal(made.run([x._held])[0], np.tile(X, 30) * 2)
        np.testing.assert_array_equal(made.run([x.numpy()])[0], np.tile(X, 30) * 2)
    np.testing.assert_array_equal(x.numpy(), np.tile(X, 30))
