"""Permutations of axes behind what follows convolutions: the same results, and few left."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.simplify.algebra import simplify
from weft.passes.simplify.cse_dce import cse, dce
from weft.passes.simplify.layouts import move_permutations

Array = np.ndarray[Any, Any]


def permutations(graph: Graph) -> int:
    """How many there are that are no views."""
    return sum(op.name == "permute_dims" for op in graph.ops)


def moved(graph: Graph) -> Graph:
    done = dce(simplify(cse(move_permutations(simplify(graph)))))
    verify(done)
    return done


def _arrays(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


#: What may follow, with channels first; each keeps rank 4.
STEPS: dict[str, Any] = {
    "tanh": lambda x, v: wf.tanh(x),
    "relu": lambda x, v: wf.nn.relu(x),
    "channels": lambda x, v: x * wf.sum(v)
    + wf.cumulative_sum(wf.ones([x.shape[1]], dtype=wf.float64))[:, None, None],
    "rows": lambda x, v: x + wf.sin(wf.mean(x, axis=(1, 2), keepdims=True)),
    "gate": lambda x, v: x * wf.nn.sigmoid(wf.mean(x, axis=(2, 3), keepdims=True)),
    "largest": lambda x, v: wf.max(x, axis=1, keepdims=True) - x,
    "twice": lambda x, v: wf.concat([x, x * 0.5], axis=1),
    "below": lambda x, v: wf.concat([x, x], axis=2),
    "pad": lambda x, v: wf.pad(x, [(0, 0), (1, 0), (0, 1), (2, 0)]),
    "cut": lambda x, v: x[:, : max(1, x.shape[1] - 1), ::2, 1:] if min(x.shape[2:]) > 1 else x,
    "sums": lambda x, v: wf.cumulative_sum(x, axis=1),
    "conv": lambda x, v: wf.nn.conv2d(
        x, wf.ones([2, 2, x.shape[1], 3], dtype=wf.float64) * 0.1, padding="SAME",
        data_format="NCHW",
    ),
    "residual": lambda x, v: x
    + wf.nn.conv2d(
        x, wf.ones([3, 3, x.shape[1], x.shape[1]], dtype=wf.float64) * 0.1, padding="SAME",
        data_format="NCHW",
    ),
    "pool": lambda x, v: wf.nn.max_pool2d(x, 2, strides=1, padding="SAME", data_format="NCHW"),
    "mean pool": lambda x, v: wf.nn.avg_pool2d(
        x, 2, strides=1, padding="SAME", data_format="NCHW"
    ),
    "shuffle": lambda x, v: wf.reshape(
        wf.permute_dims(
            wf.reshape(x, [x.shape[0], -1, 2 - x.shape[1] % 2, *x.shape[2:]]), (0, 2, 1, 3, 4)
        ),
        x.shape,
    ),
    "larger": lambda x, v: wf.take(x, np.arange(2 * x.shape[2]) // 2, axis=2)[:, :, :6],
    "chosen": lambda x, v: wf.take(x, wf.asarray([0, -1, 0]), axis=1),
    "flat and back": lambda x, v: wf.reshape(
        wf.tanh(wf.reshape(x, [*x.shape[:2], -1])), x.shape
    ),
    "rows of channels": lambda x, v: wf.reshape(
        wf.sin(wf.reshape(x, [x.shape[0], -1, x.shape[3]])), x.shape
    ),
    "flip": lambda x, v: wf.permute_dims(x, (0, 1, 3, 2)),
    "switch": lambda x, v: wf.where(wf.isfinite(x) & (x > 0), x, wf.full_like(x, 2.0)),
}  # fmt: skip
ENDS: dict[str, Any] = {
    "all": lambda x: x,
    "mean": lambda x: wf.mean(x, axis=(2, 3)),
    "rows": lambda x: wf.sum(x, axis=(0, 1)),
    "flat": lambda x: wf.reshape(x, [x.shape[0], -1]),
    "most": lambda x: wf.argmax(x, axis=1),
}


@examples(50)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=7), st.sampled_from(sorted(ENDS)),
    st.integers(0, 2**16), st.booleans(),
)  # fmt: skip
def test_random_programs(steps: list[str], end: str, seed: int, gradient: bool) -> None:
    def f(x: Any, v: Any) -> Any:
        made = [STEPS["conv"](x, v)]
        for step in steps:
            made.append(STEPS[step](made[-1], v))
        return ENDS[end](made[-1]), wf.mean(made[len(made) // 2], axis=1)

    x, v = _arrays(seed, (2, 3, 4, 5), (3,))
    if gradient:
        whole = f

        def f(x: Any, v: Any) -> Any:
            return wf.grad(lambda x: sum(wf.sum(y) for y in whole(x, v)[1:]))(x)

    graph = wf.compile(f).trace(x, v)
    wanted, got = interpret(graph, [x, v]), interpret(moved(graph), [x, v])
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("steps", [
    ["relu", "conv", "channels", "relu", "pool"],
    ["residual", "gate", "residual", "relu"],
    ["twice", "conv", "relu", "pad", "conv", "cut", "largest"],
    ["relu", "mean pool", "relu", "conv"],
])  # fmt: skip
def test_two_are_left(steps: list[str]) -> None:
    """One before the first convolution, and one after all; with a mean of each channel, one."""

    def f(x: Any) -> Any:
        v = wf.ones([3], dtype=wf.float64)
        x = STEPS["conv"](x, v)
        for step in steps:
            x = STEPS[step](x, v)
        return x

    (x,) = _arrays(0, (2, 3, 8, 8))
    graph = wf.compile(f).trace(x)
    assert permutations(simplify(graph)) > 2
    assert permutations(moved(graph)) == 2
    assert permutations(moved(wf.compile(lambda x: ENDS["mean"](f(x))).trace(x))) == 1


def test_a_channel_shuffle() -> None:
    """Of ShuffleNet (Zhang et al. 2017): the shuffle is the only copy between two convolutions."""

    def f(x: Any) -> Any:
        x = STEPS["relu"](STEPS["residual"](x, None), None)
        parts = wf.reshape(x, [x.shape[0], 2, 2, *x.shape[2:]])
        x = wf.reshape(wf.permute_dims(parts, (0, 2, 1, 3, 4)), x.shape)
        return ENDS["mean"](STEPS["residual"](x, None))

    (x,) = _arrays(4, (2, 4, 6, 6))
    graph = wf.compile(f).trace(x)
    assert permutations(moved(graph)) == 2
    np.testing.assert_allclose(
        interpret(moved(graph), [x])[0], interpret(graph, [x])[0], rtol=1e-12
    )


def test_an_epilogue_with_channels_first() -> None:
    """As with channels last, a convolution does what follows it."""

    def layer(x: Any, w: Any, b: Any, axis: str) -> Any:
        y = wf.nn.conv2d(x, w, padding="SAME", data_format=axis)
        return wf.nn.relu(y + (b[:, None, None] if axis == "NCHW" else b))

    w, b = (a.astype(np.float32) for a in _arrays(1, (3, 3, 8, 8), (8,)))

    def net(axis: str) -> Any:
        return wf.compile(lambda x: layer(layer(x, w, b, axis), w, b, axis))

    (x,) = (a.astype(np.float32) for a in _arrays(2, (1, 8, 16, 16)))
    first, last = net("NCHW"), net("NHWC")
    ours = np.asarray(first(x))
    theirs = np.asarray(last(np.ascontiguousarray(x.transpose(0, 2, 3, 1)))).transpose(0, 3, 1, 2)
    assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes()
    kinds = re.findall(r'kind="(.*?)"', first.ir(x))
    conv = "conv_add_less_equal_where"
    assert kinds == ["permute_dims", conv, conv, "permute_dims"]


def test_in_bodies_of_loops() -> None:
    def f(x: Any) -> Any:
        step = STEPS["residual"]
        return wf.scan(lambda c, _: (wf.tanh(step(c, None)), None), x, length=3)[0]

    (x,) = _arrays(3, (1, 2, 5, 5))
    graph = wf.compile(f).trace(x)
    np.testing.assert_allclose(
        interpret(moved(graph), [x])[0], interpret(graph, [x])[0], rtol=1e-12
    )


def test_without_convolutions_nothing_moves() -> None:
    graph = wf.compile(lambda x: wf.tanh(wf.permute_dims(x, (1, 0)))).trace(np.ones((2, 3)))
    assert move_permutations(graph) is graph
