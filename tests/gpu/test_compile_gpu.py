"""`wf.compile(device="gpu:0")` on an emulated GPU: the same programs, what it tells, its errors."""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from rich.progress import Progress

import weft as wf
from weft.codegen.cuda import lowerings
from weft.runtime.device.backends import registry
from weft.runtime.device.planning import planner

sys.path.insert(0, str(ROOT / "examples"))

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.share(2)
@pytest.mark.parametrize("way", ["train_compiled", "train_session"])
def test_the_digits_program_has_the_losses_of_the_cpu(way: str) -> None:
    import digits

    data, start = digits.load_digits(), digits.initial_weights()
    data = replace(data, test_x=data.test_x[:50], test_y=data.test_y[:50])
    with Progress(disable=True) as progress:
        made, expected = (
            getattr(digits, way)(data, start, 4, 32, progress, device)
            for device in ("gpu:0", "cpu")
        )
    np.testing.assert_allclose(made.losses, expected.losses, rtol=1e-5)
    assert made.accuracy == expected.accuracy


def test_results_of_many_kinds() -> None:
    def many(x: wf.Tensor, k: int) -> dict[str, Any]:
        return {"same": x, "sum": wf.sum(x), "rows": wf.nn.softmax(x), "times": x * k,
                "number": wf.constant([1, 2, 3]), "flat": wf.reshape(x, [-1]) + 1.0,
                "flags": x > 0.0, "none": x[:, :0] * 2.0}  # fmt: skip

    x = _random(7, 12)
    made, expected = wf.compile(device="gpu:0")(many)(x, 3), wf.compile(many)(x, 3)
    assert made.keys() == expected.keys()
    for name, value in expected.items():
        got = np.asarray(made[name])
        assert (got.dtype, got.shape) == (np.asarray(value).dtype, np.asarray(value).shape), name
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_open_sizes_are_traced_once_and_share_plans(caplog: pytest.LogCaptureFixture) -> None:
    rows, weights = _random(40, 12), wf.to_device(_random(12, 5), "gpu:0")
    given = [wf.TensorType(wf.float32, (None, 12)), wf.TensorType(wf.float32, (12, 5))]

    def layer(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.nn.softmax(x @ w)

    f = wf.compile(layer, device="gpu:0", input_signature=given)
    with caplog.at_level("INFO", "weft.compile"):
        for n in (40, 17, 3, 33, 1, 0, 17, 29):
            made, expected = f(rows[:n], weights), layer(rows[:n], weights.numpy())
            assert isinstance(made, wf.DeviceArray)
            np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert f.cache_info().made == 1
    shared = [r.message for r in caplog.records if "planned layer for many sizes" in r.message]
    assert 1 <= len(shared) <= 3  # sizes 0 and 1 have plans of their own
    assert "<<<" in f.explain(rows, weights)
    with wf.transfer_guard("disallow"), pytest.raises(wf.errors.FailedPreconditionError, match="x"):
        f(rows, weights)
    same = [wf.TensorType(wf.float32, ("n",))] * 2
    with pytest.raises(wf.errors.ShapeError, match="the size n is 3 and 4") as caught:
        wf.compile(lambda a, b: a + b, device="gpu:0", input_signature=same)(_random(3), _random(4))
    assert caught.value.locations[0].file == __file__


def test_an_index_out_of_bounds_is_told_and_no_variable_changes_after_it() -> None:
    table = wf.Variable(_random(6, 4))
    first, later = wf.Variable(np.zeros(2, np.float32)), wf.Variable(np.zeros(2, np.float32))

    @wf.compile(device="gpu:0")
    def step(index: wf.Tensor) -> wf.Tensor:
        first.assign_add(np.ones(2, np.float32))
        rows = wf.gather(table, index, axis=0)
        later.assign_add(wf.sum(rows[:, :2], axis=0))
        return rows

    np.testing.assert_array_equal(step(np.array([1, -1]))[1], np.asarray(table.read())[-1])
    before = np.asarray(later.read())
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"index 6 .*axis 0 of size 6") as e:
        step(np.array([1, 6]))
    assert "test_compile_gpu.py" in str(e.value)
    np.testing.assert_array_equal(np.asarray(later.read()), before)
    step(np.array([1, 2]))
    assert np.asarray(first.read())[0] >= 2


def test_a_variable_without_a_value() -> None:
    v = wf.Variable(np.zeros(3, np.float32))
    v.state.clear()

    @wf.compile(device="gpu:0")
    def read() -> wf.Tensor:
        return v + 1.0

    with pytest.raises(wf.errors.FailedPreconditionError, match="not initialised"):
        read()

    @wf.compile(device="gpu:0")
    def write(x: wf.Tensor) -> None:
        v.assign(x * 2.0)

    write(np.ones(3, np.float32))
    np.testing.assert_array_equal(read(), np.full(3, 3.0))


def test_what_a_variable_on_the_device_is_for_others(tmp_path: Path) -> None:
    v = wf.Variable(np.zeros(3, np.float32), name="v")

    @wf.compile(device="gpu:0")
    def step() -> None:
        v.assign_add(np.ones(3, np.float32))

    step()
    assert v.state.resident is not None
    assert v.state.initialized
    assert "[1., 1., 1.]" in repr(v)
    for other in (copy.copy(v), copy.deepcopy(v)):
        np.testing.assert_array_equal(np.asarray(other.read()), np.ones(3))
    saver = wf.train.Saver({"v": v})
    path = saver.save(None, str(tmp_path / "model"))
    step()
    assert v.state.resident is not None
    saver.restore(None, path)
    np.testing.assert_array_equal(np.asarray(v.read()), np.ones(3))
    step()
    v.state.buffer()[0] = 7  # the live buffer: on the host from now on
    step()
    np.testing.assert_array_equal(np.asarray(v.read()), [8, 3, 3])


def test_threads_may_call_one_function_at_once() -> None:
    total = wf.Variable(np.zeros((), np.float32))

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        total.assign_add(wf.sum(x))
        return x * 2.0

    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(10):
            if not np.array_equal(np.asarray(step(np.full(50, k, np.float32))), np.full(50, 2 * k)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert float(np.asarray(total.read())) == 10 * 50 * (1 + 2 + 3)


def test_a_compiled_method_and_a_function_in_a_function_run_there_too() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = wf.Variable(_random(4))

        @wf.compile(device="gpu:0")
        def run(self, x: wf.Tensor) -> wf.Tensor:
            return inner(x) * self.w

    @wf.compile
    def inner(x: wf.Tensor) -> wf.Tensor:
        return x + 1.0

    model = Model()
    model.run(_random(4))
    assert "<<<" in model.run.explain(_random(4))
    expected = (_random(4) + 1) * np.asarray(model.w.read())
    np.testing.assert_allclose(model.run(_random(4)), expected, rtol=1e-6)


def test_a_function_for_a_gpu_that_becomes_a_part_of_what_runs_elsewhere() -> None:
    @wf.compile(device="gpu:0")
    def inner(x: wf.Tensor) -> Any:
        return wf.sum(x * x)

    @wf.compile(device="gpu:1")
    def elsewhere(x: wf.Tensor) -> Any:
        return wf.cond(wf.sum(x) > 0, lambda: inner(x), lambda: wf.sum(x))

    x, outer = np.ones(3, np.float32), wf.compile(lambda x: inner(x) + 1)
    said = "'inner' is compiled for gpu:0, but here it is a part of"
    with pytest.warns(wf.DeviceWarning, match=f"{said} 'lambda', which runs on the CPU") as caught:
        assert float(outer(x)) == 4
    assert [w.filename for w in caught] == [__file__]
    with pytest.warns(wf.DeviceWarning, match=f"{said} 'grad_inner', which runs on the CPU"):
        np.testing.assert_array_equal(np.asarray(wf.grad(inner)(x)), 2 * x)
    with pytest.warns(wf.DeviceWarning, match=f"{said} 'elsewhere', which runs on gpu:1"):
        elsewhere.trace(x)
    with wf.Graph().as_default():
        p = wf.placeholder(wf.float32, [3])
        with pytest.warns(wf.DeviceWarning, match=r"a part of a graph.*\n.*wf.device\(.*/gpu:0"):
            inner(p)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(outer(np.ones(4, np.float32))) == 5  # it has been said
        wf.grad(inner)(x)
        with wf.Graph().as_default():
            p = wf.placeholder(wf.float32, [3])
            with wf.device("/gpu:0"):
                wf.compile(device="gpu:0")(lambda x: x + 1)(p)
        again = wf.compile(device="gpu:0")(wf.value_and_grad(inner))
        value, gradient = again(x)
        assert float(value) == 3
        np.testing.assert_array_equal(np.asarray(gradient), 2 * x)
        fresh = wf.compile(device="gpu:0")(lambda x: wf.sum(x))
        with wf.Graph().as_default(), wf.device(lambda op: "/gpu:0"):
            fresh(wf.placeholder(wf.float32, [3]))  # the function says where
        for _ in range(2):  # an error that was met is met again
            with pytest.raises(wf.DeviceWarning):
                wf.grad(fresh)(x)


def test_explain_names_the_emulated_device_the_launches_and_the_variables() -> None:
    v = wf.Variable(np.zeros(3, np.float32), name="held")

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        return v.assign_add(x) * 2.0

    text = step.explain(_random(3))
    assert "/gpu:0: emulated with NumPy" in text
    assert "<<<" in text
    assert "variable 'held' stays there: f32[3], 12 bytes" in text
    assert "fuse_matmul" not in text


def test_what_is_of_the_cpu_alone_says_so() -> None:
    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        return x + 1.0

    for ask in (step.llvm, step.cost):
        with pytest.raises(wf.errors.UnsupportedError, match="runs on a GPU"):
            ask(_random(3))


@pytest.mark.parametrize("name", ["gpu:0", "/gpu:0", "GPU", "/job:localhost/task:0/device:GPU:0"])
def test_names_of_the_device(name: str) -> None:
    np.testing.assert_array_equal(
        wf.compile(device=name)(lambda x: x + 1.0)(np.ones(2, np.float32)), [2.0, 2.0]
    )


@pytest.mark.parametrize("name", ["/job:ps/task:0/gpu:0", "/task:1/gpu:0", "tpu:0", "/job:ps"])
def test_devices_that_a_compiled_function_cannot_be_on(name: str) -> None:
    error = wf.errors.InvalidArgumentError if name == "tpu:0" else wf.errors.UnsupportedError
    with pytest.raises(error):
        wf.compile(device=name)


def test_errors_of_placement() -> None:
    def half(device: str) -> Any:
        def function(x: wf.Tensor) -> wf.Tensor:
            with wf.device(device):
                return x + 1.0

        return function

    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(wf.compile(device="gpu:0")(half("/gpu:0"))(x), [2.0, 2.0])
    np.testing.assert_array_equal(wf.compile(device="gpu:0")(half("/cpu:0"))(x), [2.0, 2.0])
    np.testing.assert_array_equal(wf.compile(half("/gpu:0"))(x), [2.0, 2.0])
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_EMULATE_GPU makes /gpu:0"):
        wf.compile(device="gpu:1")(half(""))(x)


def test_an_op_without_a_gpu_kernel_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(lowerings.GPU_LOWERINGS, "argmax")

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> Any:
        return wf.argmax(x)

    with pytest.raises(wf.errors.UnsupportedError, match="argmax") as caught:
        step(_random(3))
    assert "test_compile_gpu.py" in str(caught.value)


def test_an_emulated_device_with_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = registry.EmulatedDevice(memory=20_000)
    monkeypatch.setitem(registry._devices, ("1", 0), small)

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        return x + 1.0

    for rows in (1000, 1500, 2000):  # each has memory for itself, if others let theirs go
        assert np.asarray(step(np.ones(rows, np.float32)))[0] == 2
    with pytest.raises(wf.errors.ResourceExhaustedError, match="a step of 'step'"):
        step(np.ones(3000, np.float32))
    assert np.asarray(step(np.ones(1000, np.float32)))[0] == 2


def test_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "yes")
    with pytest.raises(wf.errors.InvalidArgumentError, match="0, 1 or check"):
        wf.compile(device="gpu:0")(lambda x: x + 1.0)(np.ones(2, np.float32))


def test_a_grid_with_too_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MOST_BLOCKS", 2)
    with pytest.raises(wf.errors.UnsupportedError, match="a GPU takes at most 2") as caught:
        wf.compile(device="gpu:0")(lambda x: x + 1.0)(_random(100_000))
    assert "test_compile_gpu.py" in str(caught.value)
