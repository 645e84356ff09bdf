"""Loops and branches on a GPU: the host decides, launches follow. Emulated, with races looked for;
and over a driver that is faked, whose streams are as lazy as they may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from cuda_device import use_fake
from fake_driver import FakeDriver
from loop_programs import either, random_array, until
from stack_sums import SUMS

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError
from weft.ir.text.parser import parse_graph
from weft.runtime.device.backends import registry
from weft.runtime.device.execution import segments
from weft.runtime.device.execution.executable import compile_for_device
from weft.runtime.device.plan import CheckFaults, DeviceLoop, DevicePlan, PlannedCopy, PlannedLaunch

Array = np.ndarray[Any, Any]


def _plan(function: Callable[..., Any], *args: Any) -> DevicePlan:
    made = wf.compile(device="gpu:0")(function)
    step: Any = made._specialized(args, {}).executable()
    return cast(DevicePlan, step.plan)


def test_rows_that_begin_at_odd_places_are_copied_and_others_are_not() -> None:
    def copies(width: int) -> int:
        (loop,) = (
            n for n in _plan(_rows, random_array(7, width)).nodes if isinstance(n, DeviceLoop)
        )
        return sum(isinstance(n, PlannedCopy) for n in loop.body)

    def _rows(xs: wf.Tensor) -> Any:
        zero = wf.zeros(xs.shape[1:])
        return wf.scan(lambda c, x: (c * 0.5 + x, wf.sum(c) * x), init=zero, xs=xs)

    assert copies(5) == 2
    assert copies(8) == 0


def test_the_host_looks_for_faults_before_variables_are_written_and_not_twice() -> None:
    table, a, b = (wf.Variable(random_array(6, 4)) for _ in range(3))

    def step(index: wf.Tensor) -> wf.Tensor:
        a.assign(a * 2.0)
        rows = wf.gather(table, index, axis=0)
        b.assign_add(rows)
        a.assign_add(rows + 1.0)
        return rows

    nodes = _plan(step, np.zeros(6, np.int64)).nodes
    told = [k for k, n in enumerate(nodes) if isinstance(n, PlannedLaunch) and n.fault >= 0]
    checks = [k for k, n in enumerate(nodes) if isinstance(n, CheckFaults)]
    writes = [k for k, n in enumerate(nodes) if isinstance(n, PlannedLaunch) and n.writes]
    assert len(told) == len(checks) == 1
    assert told[0] < checks[0]
    assert not [k for k in writes if told[0] < k < checks[0]]
    assert [k for k in writes if k > checks[0]]


def _writes_and_looks_up(kind: str, v: wf.Variable) -> Callable[..., Any]:
    """A loop that adds to `v` and then reads `x` by an index, in each of `n` iterations."""

    def body(i: wf.Tensor, total: wf.Tensor, x: wf.Tensor, index: wf.Tensor) -> Any:
        v.assign_add(wf.ones((3,)) + 0.0 * total)
        return i + 1, total + wf.sum(wf.take(x, wf.take(index, wf.reshape(i, (1,)))))

    def step(x: wf.Tensor, index: wf.Tensor, n: wf.Tensor) -> wf.Tensor:
        def one(i: wf.Tensor, total: wf.Tensor) -> Any:
            if kind != "branch":
                return body(i, total, x, index)
            return wf.cond(i >= 0, lambda: body(i, total, x, index), lambda: (i + 1, total))

        last = 4 if kind == "counted" else n
        start = wf.asarray(0), wf.asarray(np.float32(0))
        return wf.while_loop(lambda i, total: i < last, one, start)[1]

    return step


@pytest.mark.parametrize("kind", ["counted", "unknown", "branch"])
@pytest.mark.parametrize("bad", [None, 0, 1, 3])
def test_no_variable_is_written_after_a_fault_in_a_loop(
    kind: str, bad: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the next iteration either."""
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    index = np.array([9 if k == bad else k for k in range(4)])
    args = random_array(5), index, np.int64(4)
    left = []
    for device in ("cpu", "gpu:0"):
        v = wf.Variable(np.zeros(3, np.float32))
        step = wf.compile(device=device)(_writes_and_looks_up(kind, v))
        if bad is None:
            step(*args)
        else:
            with pytest.raises(InvalidArgumentError, match="index 9 "):
                step(*args)
        left.append(v.numpy().tolist())
    assert left[0] == left[1] == [4 if bad is None else bad + 1] * 3


def test_a_plan_for_people_has_loops_and_decisions() -> None:
    text = wf.compile(device="gpu:0")(until).explain(random_array(4, 5))
    assert "while: loop" in text
    assert "the host leaves unless" in text
    assert "the host reads" in wf.compile(device="gpu:0")(either).explain(random_array(4, 5), 1)


def _lstm() -> Callable[[wf.Tensor], Any]:
    w = wf.Variable(random_array(12, 32) * 0.3)
    optimizer = wf.train.GradientDescentOptimizer(0.1)

    def step(xs: wf.Tensor) -> wf.Tensor:
        def body(carry: Any, x: wf.Tensor) -> Any:
            h, c = carry
            i, f, o, u = wf.split(wf.matmul(wf.concat([x, h], axis=1), w), 4, axis=1)
            c = wf.sigmoid(f) * c + wf.sigmoid(i) * wf.tanh(u)
            h = wf.sigmoid(o) * wf.tanh(c)
            return (h, c), h

        (h, _), ys = wf.scan(body, init=(wf.zeros((2, 8)), wf.zeros((2, 8))), xs=xs)
        loss = wf.mean(ys * ys) + wf.sum(h)
        optimizer.minimize(loss)
        return loss

    return step


def _calls(api: FakeDriver, function: Callable[..., Any], *args: Any) -> list[str]:
    """What a call asks of the driver, once what comes again is recorded."""
    for _ in range(3):
        function(*args)
    before = len(api.calls)
    function(*args)
    return api.calls[before:]


def _launches(calls: list[str]) -> list[str]:
    return [name for name in calls if name.startswith("launch")]


def test_a_training_step_of_an_lstm_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    api = use_fake(monkeypatch, runs=False)
    step = wf.compile(device="gpu:0")(_lstm())
    calls = _calls(api, step, random_array(28, 2, 4))
    assert calls.count("graph") == 1
    assert not _launches(calls)
    assert len(calls) < 5  # copies in and out beside it


def test_a_long_loop_is_some_graphs_and_no_more_than_may_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "MOST_NODES", 100)
    xs = random_array(90, 2, 4)
    step = wf.compile(device="gpu:0")(_lstm())
    api = use_fake(monkeypatch, runs=False)
    calls = _calls(api, step, xs)
    assert len(_launches(calls)) < 3  # one by itself is not recorded
    assert 5 < calls.count("graph") < 30
    assert api.graphs == calls.count("graph")
    monkeypatch.setattr(segments, "MOST_KEPT", 250)
    calls = _calls(api, wf.compile(device="gpu:0")(_lstm()), xs)
    assert 0 < calls.count("graph") < 10
    assert len(_launches(calls)) > 200


def test_loops_whose_buffers_swap_are_recorded_twice_whatever_their_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def until(x: wf.Tensor) -> Any:
        def body(y: wf.Tensor) -> wf.Tensor:
            return wf.cumulative_sum(y[::-1] * 0.1 + 0.5, axis=0)[::-1] + y.mean()

        return wf.while_loop(lambda y: wf.sum(y) < 2e3, body, wf.abs(x))

    def counted(x: wf.Tensor) -> Any:
        return wf.while_loop(lambda i, y: i < 50, lambda i, y: (i + 1, y[::-1] * 0.5 + x), (0, x))

    x = random_array(4, 5)
    expected = [np.asarray(wf.compile(f)(x)[-1]) for f in (until, counted)]
    api = use_fake(monkeypatch)
    on_gpu = wf.compile(device="gpu:0")(until)
    calls = _calls(api, on_gpu, x)
    assert not _launches(calls)
    assert calls.count("graph") > 8
    assert api.graphs <= 4
    np.testing.assert_allclose(on_gpu(x)[-1], expected[0], rtol=1e-4)
    monkeypatch.setattr(segments, "MOST_NODES", 8)
    on_gpu = wf.compile(device="gpu:0")(counted)
    before = api.graphs
    calls = _calls(api, on_gpu, x)
    assert calls.count("graph") > 10
    assert api.graphs - before <= 3
    np.testing.assert_allclose(on_gpu(x)[-1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("driver", [False, True], ids=["emulated", "faked driver"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32"])
def test_sums_of_stacks_of_stacks(
    dtype: str, driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver:
        use_fake(monkeypatch)
    else:
        monkeypatch.setenv("WEFT_EMULATE_GPU", "check")
    graph = parse_graph(SUMS.replace("f32", dtype))
    kind = as_dtype(dtype).numpy
    made = compile_for_device(graph, find=lambda: registry.gpu(0))
    for k in range(3):
        x, y = np.array([1, 2, 3 + k], kind), np.array([10, 20, 30], kind)
        wanted = [y + y, x, y, 0 * x]
        for value, other in zip(made.run([x, y]), wanted, strict=True):
            np.testing.assert_array_equal(value, other)
    assert "adds up what was kept" in made.describe_program()


@pytest.mark.slow
@pytest.mark.parametrize("driver", [False, True], ids=["emulated", "faked driver"])
def test_third_derivatives_of_loops_of_unknown_length(
    driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def root(x: wf.Tensor) -> wf.Tensor:
        start = (x, x * 0.5 + 0.5)

        def better(x: wf.Tensor, y: wf.Tensor) -> Any:
            return x, 0.5 * (y + x / y)

        _, y = wf.while_loop(
            lambda x, y: wf.max(wf.abs(y * y - x)) > 1e-5, better, start, gradient_memory=1 << 20
        )
        return wf.sum(y)

    f = root
    for _ in range(3):
        f = wf.grad(lambda x, f=f: wf.sum(f(x)))
    if driver:
        use_fake(monkeypatch)
    else:
        monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    x = np.array([0.7, 2.0], np.float64)
    on_gpu = wf.compile(device="gpu:0")(f)
    step: Any = on_gpu._specialized((x,), {}).executable()
    assert "arena_add" in {op.name for op in step.graph.walk()}
    for _ in range(2):
        np.testing.assert_allclose(on_gpu(x), wf.compile(f)(x), rtol=1e-9)
        np.testing.assert_allclose(on_gpu(x), 0.375 * x**-2.5, rtol=1e-2)


def test_a_loop_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    @wf.compile(device="gpu:0")
    def step(x: wf.Tensor) -> wf.Tensor:
        def loss(x: wf.Tensor) -> wf.Tensor:
            y = wf.while_loop(
                lambda y: wf.sum(y) < 1e6, lambda y: wf.tanh(y) + y * 1.1, x, gradient_memory=1000
            )
            return wf.sum(y * y)

        return wf.grad(loss)(x)

    with pytest.raises(wf.errors.ResourceExhaustedError, match="gradient_memory=1,000"):
        step(np.ones((4, 4), np.float32))
    assert np.isfinite(step(np.full((4, 4), 9e4, np.float32))).all()
