"""Cells made of cells against the same cells one after the other, cells with layer norms and of
images against their formulas in NumPy, layers in both directions layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import weft as wf

Array = np.ndarray[Any, Any]
N = wf.nn
RNG = np.random.default_rng(4)
BATCH, TIME, INPUTS = 3, 5, 4
X = RNG.normal(size=(BATCH, TIME, INPUTS))
LENGTHS = np.array([5, 2, 0])


def same(got: Any, expected: Any) -> None:
    for a, b in zip(wf.tree_leaves(got), wf.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def gru(size: int, inputs: int | None = None) -> Any:
    return N.GRUCell(size, input_size=inputs, dtype="float64")


def lstm(size: int, inputs: int | None = None) -> Any:
    return N.LSTMCell(size, input_size=inputs, dtype="float64")


# --------------------------------------------------------------------------------- cells of cells
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
def test_layers(lengths: Array | None) -> None:
    """As one dynamic_rnn after the other, and their states as a tuple."""
    cells = [gru(6), lstm(3), gru(2)]
    stacked = N.MultiRNNCell(cells)
    got = wf.compile(lambda x: N.dynamic_rnn(stacked, x, lengths))(X)
    x, states = wf.asarray(X), []
    for cell in cells:
        x, state = N.dynamic_rnn(cell, x, lengths)
        states.append(state)
    same(got, (x, tuple(states)))
    assert stacked.output_size == 2
    assert len(stacked.variables()) == 4 + 2 + 4
    assert list(stacked.named_variables())[4] == "cells/1/kernel"


def test_gradients_of_layers() -> None:
    stacked = N.MultiRNNCell([gru(4, INPUTS), N.ResidualWrapper(gru(4))])
    loss = lambda x: wf.sum(N.dynamic_rnn(stacked, x, LENGTHS)[0] ** 2)  # noqa: E731
    slope = wf.compile(wf.grad(loss))(X).numpy()
    assert not slope[1, 2:].any()
    for at in [(0, 0, 1), (0, 4, 2), (1, 1, 0)]:
        step = np.zeros_like(X)
        step[at] = 1e-6
        difference = (float(loss(X + step)) - float(loss(X - step))) / 2e-6
        np.testing.assert_allclose(slope[at], difference, rtol=1e-4, atol=1e-8)


def test_residual() -> None:
    cell = gru(INPUTS)
    state = cell.zero_state(BATCH)
    plain, after = cell(X[:, 0], state)
    same(N.ResidualWrapper(cell)(X[:, 0], state), (X[:, 0] + plain, after))
    made = N.ResidualWrapper(cell, lambda x, y: x * y)(X[:, 0], state)
    same(made, (X[:, 0] * plain, after))


def test_dropout() -> None:
    """Not in evaluation; in training each step anew, at the rates, what stays scaled up."""

    class Same(N.RNNCell):
        def call(self, x: Any, state: Any) -> tuple[Any, Any]:
            return x, x

    inner, x = Same(1000), wf.ones([1, 3, 1000])
    for name in ("input_rate", "output_rate"):
        cell = N.DropoutWrapper(inner, **{name: 0.75})
        np.testing.assert_array_equal(N.dynamic_rnn(cell, x)[0], x)
        run = wf.compile(lambda x, cell=cell: (cell.train(), N.dynamic_rnn(cell, x)[0])[1])
        y = run(x).numpy()[0]
        assert set(np.unique(y)) == {0.0, 4.0}
        assert (np.abs((y == 0).mean(1) - 0.75) < 0.1).all()
        assert not np.array_equal(y[0], y[1])
        assert not np.array_equal(run(x).numpy()[0], y)
    cell = N.DropoutWrapper(inner, state_rate=0.75).train()
    y, state = N.dynamic_rnn(cell, x)
    np.testing.assert_array_equal(y, x)
    assert set(np.unique(state)) == {0.0, 4.0}


def test_dropout_in_a_session() -> None:
    """Each step and each place anew, with a gradient: the generator's state goes with the loop."""
    with wf.Graph().as_default(), wf.Session() as session:
        cell = N.DropoutWrapper(N.GRUCell(50, input_size=3), output_rate=0.5).train()
        x = wf.placeholder(wf.float32, [None, None, 3])
        outputs, _ = N.dynamic_rnn(cell, x)
        slope = wf.gradients(wf.sum(outputs), [cell.variables()[0]])[0]
        session.run(wf.global_variables_initializer())
        fed = {x: np.ones((2, 4, 3), np.float32)}
        first, second = (session.run(outputs, fed) == 0 for _ in range(2))
        assert session.run(slope, fed).any()
    assert 0.4 < first.mean() < 0.6
    assert not np.array_equal(first, second)
    assert not np.array_equal(first[:, 0], first[:, 1])


def test_dropout_of_states_of_an_lstm() -> None:
    """c stays whole, h does not, also where it is in a state of layers."""
    layers = N.MultiRNNCell([N.LSTMCell(200), N.LSTMCell(200)])
    cell = N.DropoutWrapper(layers, state_rate=0.5).train()
    _, state = cell(wf.ones([1, 3]), cell.zero_state(1))
    for part in state:
        assert (part.c.numpy() != 0).all()
        assert 0.3 < (part.h.numpy() == 0).mean() < 0.7


# ------------------------------------------------------------------------------- kinds of LSTMs
def normed(x: Array, scale: Array, offset: Array) -> Array:
    made: Array = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + offset
    return made


@pytest.mark.parametrize("forget", [0.0, 1.0])
def test_layer_norm_lstm(forget: float) -> None:
    n = 6
    cell = N.LayerNormLSTMCell(n, forget_bias=forget, input_size=INPUTS, dtype="float64")
    for v in cell.variables():
        v.assign(RNG.normal(size=v.shape))
    w = {name: v.numpy() for name, v in cell.named_variables().items()}
    outputs, state = wf.compile(lambda x: N.dynamic_rnn(cell, x))(X)
    for b in range(BATCH):
        c, h = np.zeros(n), np.zeros(n)
        for t in range(TIME):
            gates = np.split(np.concatenate([X[b, t], h]) @ w["kernel"], 4)
            parts = zip(gates, np.split(w["gates_scale"], 4), np.split(w["gates_offset"], 4),
                        strict=True)  # fmt: skip
            i, j, f, o = (normed(*part) for part in parts)
            c = expit(f + forget) * c + expit(i) * np.tanh(j)
            c = normed(c, w["cell_scale"], w["cell_offset"])
            h = expit(o) * np.tanh(c)
            np.testing.assert_allclose(outputs[b, t], h, rtol=1e-9, atol=1e-12)
        same((state.c[b], state.h[b]), (c, h))


def convolved(x: Array, kernel: Array) -> Array:
    """[h, w, in] with zeros around, place by place."""
    high, wide = kernel.shape[:2]
    top, left = (high - 1) // 2, (wide - 1) // 2
    padded = np.pad(x, ((top, high - 1 - top), (left, wide - 1 - left), (0, 0)))
    out = np.zeros((*x.shape[:2], kernel.shape[3]))
    for i, j in np.ndindex(*x.shape[:2]):
        out[i, j] = np.einsum("hwc,hwco->o", padded[i : i + high, j : j + wide], kernel)
    return out


def test_conv_lstm() -> None:
    cell = N.ConvLSTMCell((4, 3, 2), 3, (3, 2), dtype="float64")
    cell.bias.assign(RNG.normal(size=12))
    kernel, bias = cell.kernel.numpy(), cell.bias.numpy()
    x = RNG.normal(size=(2, 3, 4, 3, 2))
    lengths = np.array([3, 1])
    outputs, state = wf.compile(lambda x: N.dynamic_rnn(cell, x, lengths))(x)
    expected = np.zeros((2, 3, 4, 3, 3))
    for b in range(2):
        c = h = np.zeros((4, 3, 3))
        for t in range(lengths[b]):
            made = convolved(np.concatenate([x[b, t], h], -1), kernel) + bias
            i, j, f, o = np.split(made, 4, -1)
            c = expit(f + 1.0) * c + expit(i) * np.tanh(j)
            h = expected[b, t] = expit(o) * np.tanh(c)
        same((state.c[b], state.h[b]), (c, h))
    same(outputs, expected)
    slope = wf.grad(lambda x: wf.sum(N.dynamic_rnn(cell, x, lengths)[0]))(x).numpy()
    assert slope[0].all()
    assert not slope[1, 1:].any()


# --------------------------------------------------------------------------------- both directions
@pytest.mark.parametrize("time_major", [False, True])
def test_layers_in_both_directions(time_major: bool) -> None:
    ahead, back = [lstm(4), gru(3)], [gru(2), gru(3)]
    x = X.swapaxes(0, 1) if time_major else X
    starts = [None, wf.ones((BATCH, 3), dtype="float64")]
    got = N.stack_bidirectional_dynamic_rnn(
        ahead, back, x, LENGTHS, initial_states_bw=starts, time_major=time_major
    )
    y, last = wf.asarray(x), []
    for fw, bw, start in zip(ahead, back, starts, strict=True):
        both, states = N.bidirectional_dynamic_rnn(
            fw, bw, y, LENGTHS, initial_state_bw=start, time_major=time_major
        )
        y = wf.concat(both, axis=2)
        last.append(states)
    same(got, (y, tuple(s[0] for s in last), tuple(s[1] for s in last)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.MultiRNNCell([]), "InvalidArgumentError", "takes at least one cell"),
        (lambda: N.MultiRNNCell(gru(2)), "TypeRuleError", "takes a list of wf.nn.RNNCells"),
        (lambda: N.MultiRNNCell([gru(2), gru(2)])(X[:, 0], (0,)), "ShapeError",
         "1 states for 2 cells"),
        (lambda: N.DropoutWrapper(gru(2), input_rate=1.5), "InvalidArgumentError",
         r"input_rate must be a number in \[0, 1\], got 1.5"),
        (lambda: N.DropoutWrapper(3), "TypeRuleError", "wf.nn.DropoutWrapper: takes a list"),
        (lambda: N.ResidualWrapper(gru(2))(X[:, 0], np.zeros((BATCH, 2))), "ShapeError",
         "do not add"),
        (lambda: N.ConvLSTMCell((4, 3), 2), "InvalidArgumentError", "input_shape is 3 sizes"),
        (lambda: N.dynamic_rnn(N.ConvLSTMCell((4, 3, 2), 2), X), "ShapeError", "of rank 5"),
        (lambda: N.dynamic_rnn(N.ConvLSTMCell((4, 3, 2), 2), np.zeros((1, 2, 5, 3, 2))),
         "ShapeError", r"made for images of shape \(4, 3, 2\)"),
        (lambda: N.stack_bidirectional_dynamic_rnn([gru(2)], [gru(2), gru(2)], X),
         "InvalidArgumentError", "1 cells forward, 2 backward"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
