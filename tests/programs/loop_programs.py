"""Programs with loops and branches for GPUs: counted, of unknown length, nested, recurrent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf

Array = np.ndarray[Any, Any]


def random_array(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _counted(x: wf.Tensor) -> Any:
    return wf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, wf.tanh(y) * 0.9 + x), (0, x))


def _never(x: wf.Tensor) -> Any:
    return wf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * x), (0, x))


def until(x: wf.Tensor) -> Any:
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


def either(x: wf.Tensor, p: wf.Tensor) -> Any:
    y = wf.cond(p > 0, lambda y: wf.exp(y), lambda y: y[::-1] * 2.0, x)
    return y, wf.sum(y)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "counted": (_counted, (random_array(4, 5),)),
    "never": (_never, (random_array(4, 5),)),
    "until": (until, (random_array(4, 5),)),
    "bounded": (_bounded, (random_array(4, 5),)),
    "odd rows": (_odd_rows, (random_array(7, 5),)),
    "recurrent": (_recurrent, (random_array(5, 2, 6), random_array(6, 6))),
    "gradient": (_gradient, (random_array(5, 2, 6), random_array(6, 6))),
    "nested": (_nested, (random_array(3, 3),)),
    "scan in scan": (_scan_in_scan, (random_array(4, 3),)),
    "then": (either, (random_array(4, 5), 1)),
    "else": (either, (random_array(4, 5), -1)),
}
