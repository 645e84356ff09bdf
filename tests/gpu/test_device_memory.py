"""A GPU whose memory is short: what was idle goes, what failed is let go, the next call works, and
the error says which tensor it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_device import use_fake
from fake_driver import CUresult

import weft as wf
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.emulated import EmulatedDevice
from weft.runtime.device.execution import activation as activations
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.execution.out_of_memory import let_go
from weft.runtime.device.protocol import Device

MB = 1 << 20
Exhausted = wf.errors.ResourceExhaustedError
WithMemory = Callable[[int], Device]


@pytest.fixture(params=["emulated", "faked"])
def with_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> WithMemory:
    """Makes /gpu:0 a device of so many bytes."""

    def make(nbytes: int) -> Device:
        if request.param == "faked":
            use_fake(monkeypatch, memory=nbytes)
        else:
            monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
            made = EmulatedDevice("/gpu:0", memory=nbytes)
            monkeypatch.setattr(registry, "_devices", {("1", 0): made})
        return registry.gpu(0)

    return make


def _resident(device: Device) -> str:
    device.reclaim()
    return device.resident.describe()


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _step(function: Callable[..., Any], *args: Any) -> DeviceExecutable:
    """The function for arguments of these types, on /gpu:0."""
    graph = wf.compile(function).trace(*args)
    return compile_for_device(graph, find=lambda: registry.gpu(0))


# -- what is idle goes ----------------------------------------------------------------------------


def _gradient(x: Any) -> Any:
    made = wf.while_loop(lambda y: wf.sum(y) < 1e4, lambda y: wf.tanh(y) + y * 1.5 + 1, x)
    return wf.gradients([wf.sum(made)], [x])


def test_what_a_loop_kept_goes_with_its_activation(with_memory: WithMemory) -> None:
    with_memory(8 * MB)
    gradient = wf.compile(device="gpu:0")(_gradient)
    gradient(_ones(1000))
    total = wf.compile(device="gpu:0")(wf.sum)
    assert float(total(_ones(15 * MB // 8))) == 15 * MB // 8
    np.testing.assert_array_equal(gradient(_ones(3))[0], gradient(_ones(3))[0])


def test_arguments_that_come_early_take_nothing_from_others(
    with_memory: WithMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for those of the next call is taken only if there is some left."""
    with_memory(9 * MB)
    made, plain = list[str](), activations.Activation

    def activation(name: str, *more: Any) -> Any:
        made.append(name)
        return plain(name, *more)

    monkeypatch.setattr(activations, "Activation", activation)
    f, g = (wf.compile(device="gpu:0")(lambda x, n=n: wf.sum(wf.tanh(x * n))) for n in (1.0, 2.0))
    x = _ones(MB)
    for _ in range(3):
        for step in (f, g):
            last = [step(x) for _ in range(3)]
            assert float(last[-1]) == float(last[0])
    assert len(made) == 2


def test_activations_hold_no_cycle(with_memory: WithMemory) -> None:
    """A collection need not come to give the memory back."""
    device = with_memory(8 * MB)
    step = _step(_gradient, _ones(100))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            step.run([_ones(100)])
        assert "what loops of '_gradient' keep" in _resident(device)
        step.activations.drop_idle()
        assert _resident(device) == "nothing"
    finally:
        gc.enable()


def test_what_only_holds_itself_goes_too(with_memory: WithMemory) -> None:
    device = with_memory(8 * MB)

    class Holder:
        def __init__(self) -> None:
            self.held: list[Any] = [wf.to_device(_ones(MB), "gpu:0")]
            self.held.append(self.held)

        def drop_spare(self) -> None:
            pass

        def drop_idle(self) -> None:
            self.held = []

    holder = Holder()
    device.resident.may_ask(holder)
    assert wf.to_device(_ones(5, MB // 4), "gpu:0").shape == (5, MB // 4)


def test_constants_of_idle_plans_go(with_memory: WithMemory) -> None:
    """Each size has a plan, and W a copy for each."""
    device = with_memory(4 * MB)
    w = np.random.default_rng(0).random((512, 512)).astype(np.float32)
    product = wf.compile(device="gpu:0")(lambda x: wf.sum(x @ w, axis=0))
    for rows in (2, 3, 5, 7, 9, 2, 9, 9):
        made = np.asarray(product(_ones(rows, 512)))
        np.testing.assert_allclose(made, rows * w.sum(axis=0), rtol=1e-5)
    assert device.resident.nbytes <= 4 * MB


def test_constants_are_there_once_for_calls_at_once(with_memory: WithMemory) -> None:
    device = with_memory(64 * MB)
    w = np.random.default_rng(0).random((256, 256)).astype(np.float32)
    step = _step(lambda x: x @ w, _ones(3, 256))
    activations = [step.activations.take(device) for _ in range(2)]
    assert len({activation._constants.addresses[0] for activation in activations}) == 1
    for activation in activations:
        step.activations.give(activation)
    del activation, activations
    assert f"constants of '{step.name}' ({w.nbytes:,} bytes)" in _resident(device)
    device.resident.drop_idle()
    assert _resident(device) == "nothing"
    for _ in range(3):  # launched, recorded, replayed
        np.testing.assert_allclose(step.run([_ones(3, 256)])[0][0], w.sum(0), rtol=1e-5)
    device.resident.drop_idle()  # and the recordings with the activation
    other = wf.to_device(w, "gpu:0")
    np.testing.assert_allclose(step.run([_ones(3, 256)])[0][0], w.sum(0), rtol=1e-5)
    assert other.shape == (256, 256)


def test_a_session_after_initial_values_that_leave_no_room(with_memory: WithMemory) -> None:
    with_memory(3 * MB + 4096)
    rng = np.random.default_rng(0)
    first, second = (rng.random((512, 512)).astype(np.float32) for _ in range(2))
    with wf.Graph().as_default():
        with wf.device("/gpu:0"):
            w, u = wf.Variable(first, name="W"), wf.Variable(second, name="U")
            x = wf.placeholder(wf.float32, [None, 512])
            y = wf.matmul(x, w) + wf.matmul(x, u)
        with wf.Session() as session:
            with pytest.raises(Exhausted) as failed:  # both, and what both are set to: 4 MB
                session.run(wf.global_variables_initializer())
            assert "it is variable 'U', f32[512,512]: 1,048,576 bytes" in str(failed.value)
            for variable in (w, u):
                session.run(variable.initializer)
            made = session.run(y, {x: _ones(2, 512)})
            np.testing.assert_allclose(made[0], first.sum(0) + second.sum(0), rtol=1e-5)
            with pytest.raises(Exhausted):
                session.run(y, {x: _ones(2000, 512)})
            np.testing.assert_array_equal(session.run(y, {x: _ones(2, 512)}), made)


def test_a_closed_session_gives_its_memory_up(with_memory: WithMemory) -> None:
    device = with_memory(64 * MB)
    gc.collect()
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 8])
        with wf.device("/gpu:0"):
            v = wf.Variable(np.arange(8, dtype=np.float32), name="v")
            y = wf.reduce_sum(x * v, 1) * np.arange(1.0, 4.0, dtype=np.float32).sum()
        with wf.device("/cpu:0"):
            mixed = wf.exp(y)
        session = wf.Session()
        gc.disable()  # nor need a collection come
        try:
            session.run(wf.global_variables_initializer())
            for rows in (2, 7, 2, 9):
                session.run(y, {x: _ones(rows, 8)})
                session.run(mixed, {x: _ones(rows, 8)})
            assert "a step of 'graph_localhost_task_0_gpu_0'" in _resident(device)
            session.close()
            assert _resident(device) == "variable 'v' (32 bytes)"
        finally:
            gc.enable()
        with wf.Session() as other:
            np.testing.assert_array_equal(other.run(v), np.arange(8))


# -- what failed is let go ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["held", "raised from another"])
def test_an_error_that_is_held_holds_no_memory(with_memory: WithMemory, kind: str) -> None:
    device = with_memory(10 * MB)

    @wf.compile(device="gpu:0")
    def step(x: Any) -> Any:
        gram = wf.sum(wf.matmul(x, wf.permute_dims(x, (1, 0))))
        return wf.broadcast_to(gram, (1000, 1500)) + 1.0

    held: list[BaseException] = []
    for rows in (1100, 100, 1100, 100):
        try:
            step(_ones(rows, 8))
        except Exhausted as error:
            held.append(error)
            if kind != "held":
                other = RuntimeError("what the user says")
                other.__cause__ = error
                held[-1] = other
    assert len(held) == 2
    device.resident.drop_idle()
    assert _resident(device) == "nothing"


def test_an_interrupt_that_is_held_holds_no_memory(
    with_memory: WithMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = with_memory(64 * MB)
    step = wf.compile(device="gpu:0")(lambda x: wf.matmul(x, wf.permute_dims(x, (1, 0))))

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(device), "launch", interrupted)
        with pytest.raises(KeyboardInterrupt) as held:
            step(_ones(600, 8))
    device.resident.drop_idle()
    assert _resident(device) == "nothing"
    assert float(step(_ones(3, 8))[0, 0]) == 8
    del held


def test_a_mixed_step_that_failed_holds_no_memory(with_memory: WithMemory) -> None:
    device = with_memory(6 * MB)
    with wf.Graph().as_default():
        x, small = wf.placeholder(wf.float32, [None, 500]), wf.placeholder(wf.float32, [3])
        with wf.device("/cpu:0"):
            c = wf.sum(small)
        with wf.device("/gpu:0"):
            y = wf.sum(wf.matmul(x * c, wf.permute_dims(x, (1, 0))))
        with wf.device("/cpu:0"):
            out = y + 1
        held = []
        with wf.Session() as session:
            for rows in (10, 1200, 10, 2000, 10):
                feed = {x: _ones(rows, 500), small: _ones(3)}
                try:
                    assert session.run(out, feed) == rows * rows * 500 * 3 + 1
                except Exhausted as error:
                    held.append(error)
        assert len(held) == 2
        largest = "f32[2000,2000]: 16,000,000 bytes, of op 'matmul'"
        assert f"the largest value there is one, {largest}" in str(held[1])
        assert "wf.matmul(x * c, wf.permute_dims(x, (1, 0)))" in str(held[1])
    device.resident.drop_idle()
    assert _resident(device) == "nothing"


def test_a_mixed_step_that_ran_out_of_time_holds_no_memory(with_memory: WithMemory) -> None:
    """Nor does the error of the part that only ended as the other one did."""
    device = with_memory(64 * MB)
    with wf.Graph().as_default():
        x, most = wf.placeholder(wf.float32, [100_000]), wf.placeholder(wf.float32, [])
        with wf.device("/cpu:0"):
            first = x * 1.0
        with wf.device("/gpu:0"):
            y = wf.while_loop(lambda a: wf.sum(a) < most, lambda a: a * 1.0 + 1e-3, first)
        with wf.device("/cpu:0"):
            last = y + 1.0
        with wf.Session() as session:
            feed = {x: np.zeros(100_000, np.float32), most: np.float32(1)}
            session.run(last, feed)
            device.resident.drop_idle()
            before = _resident(device)
            gc.disable()
            try:
                for _ in range(2):
                    with pytest.raises(wf.errors.DeadlineExceededError):
                        session.run(
                            last, feed | {most: np.float32(1e38)}, wf.RunOptions(timeout=0.1)
                        )
                    for holder in list(device.resident._holders):
                        holder.drop_idle()
                    assert _resident(device) == before
            finally:
                gc.enable()


def test_what_is_let_go() -> None:
    """The locals of functions of weft, those of errors before it, too, and nobody else's."""
    weft: dict[str, Any] = {"__name__": "weft.some.module"}
    exec(
        "def made(make, work):\n"
        "    held = make()\n"
        "    work()\n"
        "def wrapped(work):\n"
        "    try:\n"
        "        work()\n"
        "    except ValueError:\n"
        "        raise KeyError('another')\n",
        weft,
    )

    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def make() -> Thing:
        thing = Thing()
        things.append(weakref.ref(thing))
        return thing

    def fails() -> None:
        own = make()
        raise ValueError(own is None)

    with pytest.raises(KeyError) as failed:
        weft["wrapped"](lambda: weft["made"](make, fails))
    assert all(thing() is not None for thing in things)
    let_go(failed.value)
    assert [thing() is None for thing in things] == [True, False]


# -- the error names the tensor -------------------------------------------------------------------


def _failed(work: Callable[[], object]) -> Exhausted:
    with pytest.raises(Exhausted) as failed:
        work()
    assert type(failed.value) is Exhausted
    return failed.value


def test_the_error_of_a_function_names_the_tensor(with_memory: WithMemory) -> None:
    device = with_memory(4 * MB)
    run = wf.compile(device="gpu:0")
    held = wf.to_device(_ones(256, 256), "gpu:0")

    def argument(wide: Any, x: Any) -> Any:
        return wf.sum(wide) + x

    text = str(_failed(lambda: run(argument)(_ones(1200, 1000), np.float32(1))))
    assert "no 4,800,000 bytes for a step of 'argument'" in text
    assert "; it is argument 'wide', f32[1200,1000]: 4,800,000 bytes" in text
    assert "arrays of wf.to_device (262,144 bytes)" in text

    def result(x: Any) -> Any:
        return wf.sum(x), wf.broadcast_to(x, (1100, 1000)) * 2

    error = _failed(lambda: run(result)(_ones(1000)))
    assert "; it is result 1, f32[1100,1000]: 4,400,000 bytes, of op 'broadcast_to', " in str(error)
    assert "wf.broadcast_to(x, (1100, 1000))" in str(error)

    def value(x: Any) -> Any:
        y = wf.matmul(x, wf.permute_dims(x, (1, 0)))
        return wf.sum(wf.matmul(y, y))

    error = _failed(lambda: run(value)(_ones(1050, 4)))
    assert "for a step of 'value'" in str(error)
    assert "; most is for scratch memory: 13,230,000 bytes, of op 'matmul'; " in str(error)
    assert "; the largest value there is one, f32[1050,1050]: 4,410,000 bytes, of" in str(error)
    assert "wf.matmul(" in str(error)

    large = wf.to_device(_ones(500, 1000), "gpu:0")

    def beside(x: Any) -> Any:
        return wf.sum(wf.cumsum(wf.cumsum(x[:450] * 2.0)[::-1]))

    error = _failed(partial(run(beside), large))
    assert "for a step of 'beside'" in str(error)
    assert "the largest value there is one, f32[450,1000]: 1,800,000 bytes, of op" in str(error)
    del large

    w = np.random.default_rng(0).random((1030, 1030)).astype(np.float32)

    def constant(x: Any) -> Any:
        return wf.sum(x @ w)

    error = _failed(lambda: run(constant)(_ones(1, 1030)))
    assert "for constants of 'constant'" in str(error)
    assert "; the largest is constant 0, f32[1030,1030]: 4,243,600 bytes" in str(error)
    assert "x @ w" in str(error)
    text = str(_failed(lambda: wf.to_device(w, "gpu:0")))
    assert "for arrays of wf.to_device" in text
    assert "; it is f32[1030,1030]: 4,243,600 bytes" in text
    assert held.device == "gpu:0"
    device.resident.drop_idle()
    assert _resident(device) == "arrays of wf.to_device (262,144 bytes)"


def test_of_small_results_the_largest_is_named(with_memory: WithMemory) -> None:
    with_memory(MB // 4)
    step = wf.compile(device="gpu:0")(lambda x: (x + 1.0, x * wf.ones((1000,))))
    held = []
    with pytest.raises(Exhausted, match=r"; the largest is result 1, f32\[1000\]: 4,000 bytes"):
        held.extend(step(np.float32(1)) for _ in range(100))
    assert 10 < len(held) < 100


def test_the_error_of_a_loop_names_what_it_keeps(with_memory: WithMemory) -> None:
    with_memory(2 * MB)

    @wf.compile(device="gpu:0")
    def gradient(x: Any) -> Any:
        made = wf.while_loop(lambda y: wf.sum(y) < 1e30, lambda y: wf.tanh(y) + y * 1.05, x)
        return wf.gradients([wf.sum(made)], [x])

    text = str(_failed(lambda: gradient(_ones(10_000))))
    assert "for what loops of 'gradient' keep for gradients" in text
    assert "; an iteration keeps f32[10000], 40,000 bytes for the gradient of op " in text
    assert "wf.while_loop(" in text


def test_the_error_of_many_sizes_is_of_those_that_came(with_memory: WithMemory) -> None:
    with_memory(MB)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 4])
        with wf.device("/gpu:0"):
            y = wf.sum(wf.cumsum(wf.sin(wf.concat([x] * 10, 1)), axis=1))
        with wf.Session() as session:
            for rows in (1100, 1200, 1300):  # a plan for that alone, one for many, filled in
                made = session.run(y, {x: _ones(rows, 4)})
                np.testing.assert_allclose(made, np.sin(1) * rows * 820, rtol=1e-5)
            error = _failed(lambda: session.run(y, {x: _ones(4000, 4)}))
            assert "one, f32[4000,40]: 640,000 bytes, of op " in str(error)
            assert session.run(y, {x: _ones(1300, 4)}) == made


def test_sessions_tell_of_memory_as_such(with_memory: WithMemory) -> None:
    with_memory(4 * MB)
    large = np.random.default_rng(0).random((1500, 1500)).astype(np.float32)
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [3], name="x")
        with wf.device("/gpu:0"):
            z, small = wf.sum(wf.constant(large) * x[0]), x * 2
        with wf.Session() as session:
            error = _failed(lambda: session.run(z, {x: _ones(3)}))
            assert error.what.startswith("device /gpu:0 has no 9,000,192 bytes for constants of ")
            assert "constant 0, f32[1500,1500]: 9,000,000 bytes" in str(error)
            assert "wf.constant(large)" in str(error)
            np.testing.assert_array_equal(session.run(small, {x: _ones(3)}), [2, 2, 2])


def test_sessions_say_so_where_there_is_no_such_device(with_memory: WithMemory) -> None:
    with_memory(4 * MB)
    with wf.Graph().as_default(), wf.device("/gpu:7"):
        y = wf.exp(wf.constant(1.0))
        missing = pytest.raises(wf.errors.InvalidArgumentError, match="there is no device '/gpu:7'")
        with wf.Session() as session, missing:
            session.run(y)


# -- memory that the driver takes by itself -------------------------------------------------------


class _Short:
    """A launch of the driver that has no memory the next `often` times."""

    def __init__(self, api: Any, name: str) -> None:
        self._launch, self.often, self.asked = getattr(api, name), 0, 0

    def __call__(self, *args: Any) -> Any:
        self.asked += 1
        if self.often > 0:
            self.often -= 1
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        return self._launch(*args)


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuGraphLaunch"])
def test_a_launch_without_memory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    api = use_fake(monkeypatch, memory=64 * MB)
    idle = wf.compile(device="gpu:0")(lambda x: wf.sum(wf.exp(x) + x, axis=0))
    np.asarray(idle(_ones(900, 900)))

    @wf.compile(device="gpu:0")
    def step(x: Any) -> Any:
        y = wf.sum(wf.exp(x))
        return wf.sum(wf.tanh(x) * y)

    for _ in range(3 if name == "cuGraphLaunch" else 1):
        expected = float(step(_ones(30)))
    short = _Short(api, name)
    monkeypatch.setattr(api, name, short)
    device = registry.gpu(0)
    assert "a step of 'lambda'" in _resident(device)
    recording = int(name == "cuLaunchKernel")  # while that is made nothing can be waited for
    short.often = recording + 1
    assert float(step(_ones(30))) == expected  # with what was idle it is enough
    assert short.asked > 1
    assert "a step of 'lambda'" not in _resident(device)
    short.often = recording + 2
    text = str(_failed(lambda: step(_ones(30))))
    what = "what was recorded" if name == "cuGraphLaunch" else "kernel '"
    assert f"device /gpu:0 has no memory that the driver needs to launch {what}" in text
    assert "resident are " in text
    assert " of 67,108,864 bytes: a step of 'step' (" in text
    for _ in range(3):
        assert float(step(_ones(30))) == expected
