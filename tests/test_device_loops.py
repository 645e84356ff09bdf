"""Loops and branches on a GPU: the host decides, launches follow. Emulated, with races looked for;
and over a driver that is faked, whose streams are as lazy as they may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeCompiler, FakeDriver

import weft as wf
from weft.frontend import pytree
from weft.runtime.device import registry
from weft.runtime.device.driver import Driver
from weft.runtime.device.plan import CheckFaults, DeviceLoop, DevicePlan, PlannedCopy, PlannedLaunch

Array = np.ndarray[Any, Any]


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _counted(x: wf.Tensor) -> Any:
    return wf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, wf.tanh(y) * 0.9 + x), (0, x))


def _never(x: wf.Tensor) -> Any:
    return wf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * x), (0, x))


def _until(x: wf.Tensor) -> Any:
    return wf.while_loop(lambda y: wf.sum(y) < 100.0, lambda y: y * 1.5, wf.abs(x))


def _bounded(x: wf.Tensor) -> Any:
    return wf.while_loop(
        lambda y: wf.sum(y) < 1e9, lambda y: y[::-1] * 1.5, wf.abs(x), maximum_iterations=3
    )


def _odd_rows(xs: wf.Tensor) -> Any:
    return wf.scan(lambda c, x: (c * 0.5 + x, wf.sum(c) * x), init=wf.zeros((5,)), xs=xs)


def _recurrent(xs: wf.Tensor, w: wf.Tensor) -> Any:
    def body(c: wf.Tensor, x: wf.Tensor) -> Any:
        h = wf.tanh(wf.matmul(c, w) + x)
        return h, h

    return wf.scan(body, init=wf.zeros((2, 6)), xs=xs)


def _gradient(xs: wf.Tensor, w: wf.Tensor) -> Any:
    def loss(w: wf.Tensor) -> wf.Tensor:
        last, rows = _recurrent(xs, w)
        return wf.sum(last * last) + wf.sum(rows)

    return wf.grad(loss)(w)


def _nested(x: wf.Tensor) -> Any:
    def body(i: wf.Tensor, y: wf.Tensor) -> Any:
        z = wf.while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z[::-1] * 1.1 + x), (0, y))
        return i + 1, z[1]

    return wf.while_loop(lambda i, y: i < 4, body, (0, x))


def _scan_in_scan(xs: wf.Tensor) -> Any:
    def body(c: wf.Tensor, x: wf.Tensor) -> Any:
        return wf.scan(lambda d, y: (d[::-1] * 0.5 + y, d * y), init=c, xs=wf.stack([x, x * 2.0]))

    return wf.scan(body, init=wf.ones((3,)), xs=xs)


def _either(x: wf.Tensor, p: wf.Tensor) -> Any:
    y = wf.cond(p > 0, lambda y: wf.exp(y), lambda y: y[::-1] * 2.0, x)
    return y, wf.sum(y)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "counted": (_counted, (_random(4, 5),)),
    "never": (_never, (_random(4, 5),)),
    "until": (_until, (_random(4, 5),)),
    "bounded": (_bounded, (_random(4, 5),)),
    "odd rows": (_odd_rows, (_random(7, 5),)),
    "recurrent": (_recurrent, (_random(5, 2, 6), _random(6, 6))),
    "gradient": (_gradient, (_random(5, 2, 6), _random(6, 6))),
    "nested": (_nested, (_random(3, 3),)),
    "scan in scan": (_scan_in_scan, (_random(4, 3),)),
    "then": (_either, (_random(4, 5), 1)),
    "else": (_either, (_random(4, 5), -1)),
}


@pytest.mark.parametrize("driver", [False, True], ids=["emulated", "faked driver"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_and_branches_are_those_of_the_cpu(
    name: str, driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "0" if driver else "check")
    if driver:
        api = FakeDriver(FakeCompiler())
        monkeypatch.setattr(registry, "_devices", {})
        monkeypatch.setattr(registry, "Driver", partial(Driver, api))
        monkeypatch.setattr(registry, "compile_kernel", api.compiler)
    function, args = PROGRAMS[name]
    on_gpu, on_cpu = wf.compile(device="gpu:0")(function), wf.compile(function)
    expected = pytree.tree_leaves(on_cpu(*args))
    for _ in range(3):
        made = pytree.tree_leaves(on_gpu(*args))
        for value, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5)


def _plan(function: Callable[..., Any], *args: Any) -> DevicePlan:
    made = wf.compile(device="gpu:0")(function)
    return made._specialized(args, {}).executable().plan


def test_rows_that_begin_at_odd_places_are_copied_and_others_are_not() -> None:
    def copies(width: int) -> int:
        (loop,) = (n for n in _plan(_rows, _random(7, width)).nodes if isinstance(n, DeviceLoop))
        return sum(isinstance(n, PlannedCopy) for n in loop.body)

    def _rows(xs: wf.Tensor) -> Any:
        zero = wf.zeros(xs.shape[1:])
        return wf.scan(lambda c, x: (c * 0.5 + x, wf.sum(c) * x), init=zero, xs=xs)

    assert copies(5) == 2
    assert copies(8) == 0


def test_the_host_looks_for_faults_before_variables_are_written_and_not_twice() -> None:
    table, a, b = (wf.Variable(_random(6, 4)) for _ in range(3))

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


def test_a_plan_for_people_has_loops_and_decisions() -> None:
    text = wf.compile(device="gpu:0")(_until).explain(_random(4, 5))
    assert "while: loop" in text
    assert "the host leaves unless" in text
    assert "the host reads" in wf.compile(device="gpu:0")(_either).explain(_random(4, 5), 1)
