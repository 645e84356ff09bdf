"""Layers with branches and loops, whose forms have to give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import weft as wf

Layer = Callable[[Any, Any], Any]


def normal(x: Any, w: Any) -> Any:
    centred = x - wf.mean(x, axis=1, keepdims=True)
    return centred * wf.rsqrt(wf.mean(centred * centred, axis=1, keepdims=True) + 1e-3)


LAYERS: dict[str, Layer] = {
    "dense": lambda x, w: wf.tanh(x @ w) * 0.5 + x,
    "normal": normal,
    "softmax": lambda x, w: wf.nn.softmax(x * 1.5 - 0.25),
    "gate": lambda x, w: wf.sigmoid(x) * x + wf.sum(w) * 0.01,
    "columns": lambda x, w: x - 0.5 * wf.mean(x, axis=0),
    "norm": lambda x, w: x / (1 + wf.sqrt(wf.sum(wf.square(x)))),
    "logsumexp": lambda x, w: x - wf.logsumexp(x, axis=1, keepdims=True) * 0.1,
    "poly": lambda x, w: ((0.1 * x + 0.3) * x - 0.2) * x + 0.9 * x - x * x * 0.1,
    "transpose": lambda x, w: (w.T @ x.T).T * 0.5,
}
FRAMES = ("while", "until", "cond", "scan", "plain")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Callable[..., Any], list[np.ndarray], str]:
    """A function of x and w, arguments, and what it is made of."""
    frames = draw(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=2))
    names = draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3))
    trips = draw(st.integers(0, 3))
    rows, columns = draw(st.sampled_from([(1, 1), (2, 3), (4, 7), (5, 16), (9, 33), (33, 70)]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.normal(size=(rows, columns)).astype(dtype)
    w = (rng.normal(size=(columns, columns)) / np.sqrt(columns)).astype(dtype)

    def layers(x: Any, w: Any) -> Any:
        for name in names:
            x = LAYERS[name](x, w)
        return x

    def around(frame: str, body: Layer) -> Layer:
        if frame == "while":
            return lambda x, w: wf.while_loop(
                lambda i, x: i < trips, lambda i, x: (i + 1, body(x, w)), (0, x)
            )[1]
        if frame == "until":
            return lambda x, w: wf.while_loop(
                lambda i, x: wf.logical_and(i < 4, wf.sum(x * x) < 40),
                lambda i, x: (i + 1, body(x, w)),
                (0, x),
            )[1]
        if frame == "cond":
            return lambda x, w: wf.cond(wf.sum(x) > 0, lambda: body(x, w), lambda: body(-x, w))
        if frame == "scan":

            def step(carry: Any, row: Any) -> tuple[Any, Any]:
                made = body(carry + row * 0.1, w)
                return made, wf.sum(made * row)

            def scanned(x: Any, w: Any) -> Any:
                last, sums = wf.scan(step, init=x, xs=x[:trips] if trips else x[:1])
                return last + wf.sum(sums)

            return scanned
        return body

    function = layers
    for frame in frames:
        function = around(frame, function)
    described = f"{frames} of {names}, {trips} times, {dtype.__name__}[{rows},{columns}]"
    return function, [x, w], described
