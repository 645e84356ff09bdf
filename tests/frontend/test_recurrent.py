"""Recurrent cells against their formulas in NumPy, one example and one place at a time; sequences
of several lengths, both directions; masks and reversed sequences against loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from scipy.special import expit

import weft as wf

Array = np.ndarray[Any, Any]
N = wf.nn
BATCH, TIME, INPUTS, UNITS = 4, 6, 3, 5
RNG = np.random.default_rng(2)
X = RNG.normal(size=(BATCH, TIME, INPUTS))
LENGTHS = np.array([6, 2, 0, 4])


def weights(cell: Any) -> dict[str, Array]:
    return {name: v.numpy() for name, v in cell.named_variables().items()}


def basic(w: dict[str, Array], x: Array, state: Any) -> tuple[Array, Any]:
    h = np.tanh(np.concatenate([x, state]) @ w["kernel"] + w["bias"])
    return h, h


def gru(w: dict[str, Array], x: Array, h: Array) -> tuple[Array, Any]:
    gates = expit(np.concatenate([x, h]) @ w["gate_kernel"] + w["gate_bias"])
    r, u = gates[:UNITS], gates[UNITS:]
    c = np.tanh(np.concatenate([x, r * h]) @ w["candidate_kernel"] + w["candidate_bias"])
    new = u * h + (1 - u) * c
    return new, new


def lstm(clip: float = np.inf, proj_clip: float = np.inf, forget: float = 1.0) -> Any:
    def step(w: dict[str, Array], x: Array, state: Any) -> tuple[Array, Any]:
        c, h = state
        zero = np.zeros(UNITS)
        i, j, f, o = np.split(np.concatenate([x, h]) @ w["kernel"] + w["bias"], 4)
        kept = expit(f + forget + w.get("w_f_diag", zero) * c) * c
        c = kept + expit(i + w.get("w_i_diag", zero) * c) * np.tanh(j)
        c = np.clip(c, -clip, clip)
        h = expit(o + w.get("w_o_diag", zero) * c) * np.tanh(c)
        if "projection" in w:
            h = np.clip(h @ w["projection"], -proj_clip, proj_clip)
        return h, (c, h)

    return step


Step = Callable[[dict[str, Array], Array, Any], tuple[Array, Any]]
CELLS: dict[str, tuple[Callable[[], Any], Step]] = {
    "BasicRNN": (lambda: N.BasicRNNCell(UNITS, dtype="float64"), basic),
    "GRU": (lambda: N.GRUCell(UNITS, dtype="float64"), gru),
    "LSTM": (lambda: N.LSTMCell(UNITS, dtype="float64"), lstm()),
    "LSTM peepholes": (
        lambda: N.LSTMCell(UNITS, use_peepholes=True, forget_bias=0.5, dtype="float64"),
        lstm(forget=0.5),
    ),
    "LSTM projection": (
        lambda: N.LSTMCell(
            UNITS, True, 0.3, num_proj=2, proj_clip=0.1, dtype="float64",
            initializer=wf.initializers.normal(stddev=1.0),
        ),
        lstm(0.3, 0.1),
    ),
}  # fmt: skip


def by_hand(cell: Any, step: Step, x: Array, lengths: Array, back: bool = False) -> Any:
    """(outputs, the parts of the last state), example by example."""
    w = weights(cell)
    outputs = np.zeros((len(x), TIME, cell.output_size))
    states = []
    for b, rows in enumerate(x):
        zero = np.zeros(cell.output_size)
        state: Any = (np.zeros(UNITS), zero) if isinstance(cell, N.LSTMCell) else zero
        places = range(min(lengths[b], TIME))
        for t in reversed(places) if back else places:
            outputs[b, t], state = step(w, rows[t], state)
        states.append(state if isinstance(state, tuple) else (state,))
    return outputs, [np.stack(part) for part in zip(*states, strict=True)]


def same(got: Any, expected: Any) -> None:
    outputs, state = got
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-10, atol=1e-12)
    parts = list(state) if isinstance(state, tuple) else [state]
    for part, truth in zip(parts, expected[1], strict=True):
        np.testing.assert_allclose(part, truth, rtol=1e-10, atol=1e-12)


@pytest.mark.share(12)
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("way", ["eager", "compiled", "time major", "session"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
def test_sequences(name: str, way: str, lengths: Array | None) -> None:
    make, step = CELLS[name]
    wf.random.set_random_seed(1)
    full = np.full(BATCH, TIME) if lengths is None else lengths
    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            cell = make()
            x, n = (
                wf.placeholder(wf.float64, [None, TIME, INPUTS]),
                wf.placeholder(wf.int64, [None]),
            )
            fetches = N.dynamic_rnn(cell, x, None if lengths is None else n)
            session.run(wf.global_variables_initializer())
            got = session.run(wf.tree_leaves(fetches), {x: X, n: full})
            same((got[0], tuple(got[1:])), by_hand(cell, step, X, full))
            few = session.run(fetches[0], {x: X[:2], n: full[:2]})
            np.testing.assert_allclose(few, got[0][:2], rtol=1e-10, atol=1e-12)
        return
    cell = make()
    if way == "time major":
        outputs, state = N.dynamic_rnn(cell, X.swapaxes(0, 1), lengths, time_major=True)
        same((outputs.numpy().swapaxes(0, 1), state), by_hand(cell, step, X, full))
        return
    call = lambda x: N.dynamic_rnn(cell, x, lengths)  # noqa: E731
    same((wf.compile(call) if way == "compiled" else call)(X), by_hand(cell, step, X, full))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("time_major", [False, True])
def test_both_directions(name: str, lengths: Array | None, time_major: bool) -> None:
    make, step = CELLS[name]
    forward, backward = make(), make()
    full = np.full(BATCH, TIME) if lengths is None else lengths
    given_x = X.swapaxes(0, 1) if time_major else X
    run = wf.compile(
        lambda x: N.bidirectional_dynamic_rnn(forward, backward, x, lengths, time_major=time_major)
    )
    outputs, states = run(given_x)
    for out, state, cell, back in zip(outputs, states, (forward, backward), (False, True),
                                      strict=True):  # fmt: skip
        rows = out.numpy().swapaxes(0, 1) if time_major else out
        same((rows, state), by_hand(cell, step, X, full, back))


@pytest.mark.parametrize("shape", [(), (BATCH,), (BATCH, 3)], ids=str)
def test_states_and_outputs_of_any_rank(shape: tuple[int, ...]) -> None:
    """Of a cell of one's own: lengths are those of rows, whatever the axes after them are."""

    class Count(N.RNNCell):
        def call(self, x: Any, state: Any) -> tuple[Any, Any]:
            after = state + 1.0
            return wf.reshape(after, (BATCH, *shape)), after

    start = np.zeros((BATCH, *shape))
    outputs, state = wf.compile(
        lambda x: N.dynamic_rnn(Count(1), x, LENGTHS, initial_state=wf.asarray(start))
    )(X)
    ends = np.minimum(LENGTHS, TIME).reshape(BATCH, *[1] * len(shape))
    np.testing.assert_array_equal(state, start + ends)
    counts = np.arange(1.0, TIME + 1).reshape(1, TIME, *[1] * len(shape))
    expected = np.where(counts <= ends[:, None], counts, 0.0)
    np.testing.assert_array_equal(outputs, np.broadcast_to(expected, (BATCH, TIME, *shape)))


def test_initial_states_go_on() -> None:
    """A sequence in two parts, the state of the first handed to the second."""
    for make, _ in CELLS.values():
        cell = make()
        whole, last = N.dynamic_rnn(cell, X)
        first, state = N.dynamic_rnn(cell, X[:, :2])
        second, end = N.dynamic_rnn(cell, X[:, 2:], initial_state=state)
        np.testing.assert_allclose(wf.concat([first, second], axis=1), whole, rtol=1e-12)
        for a, b in zip(wf.tree_leaves(end), wf.tree_leaves(last), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CELLS)
def test_gradients(name: str) -> None:
    """Of the inputs, through time and lengths, against central differences; none past the end."""
    cell = CELLS[name][0]()
    cell.build(INPUTS)
    loss = lambda x: wf.sum(N.dynamic_rnn(cell, x, LENGTHS)[0] ** 2)  # noqa: E731
    slope = wf.compile(wf.grad(loss))(X).numpy()
    for b, n in enumerate(LENGTHS):
        assert not slope[b, n:].any()
    for at in [(0, 0, 1), (0, 5, 2), (1, 1, 0), (3, 2, 1)]:
        step = np.zeros_like(X)
        step[at] = 1e-6
        difference = (float(loss(X + step)) - float(loss(X - step))) / 2e-6
        np.testing.assert_allclose(slope[at], difference, rtol=1e-4, atol=1e-8)


def test_learns_to_remember() -> None:
    """The first of eight numbers, from the last output; float32, Adam, compiled."""
    cell, out = N.LSTMCell(16), wf.Variable(np.zeros((16, 1), np.float32))
    cell.build(1)
    optimizer = wf.train.Adam(0.02)

    @wf.compile
    def step(x: Any) -> Any:
        _, state = N.dynamic_rnn(cell, x)
        loss = wf.losses.mean_squared_error(x[:, 0], state.h @ out)
        optimizer.minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    losses = [float(step(rng.uniform(-1, 1, (32, 8, 1)).astype(np.float32))) for _ in range(400)]
    assert np.mean(losses[-20:]) < 0.05 * np.mean(losses[:5])


def test_cells_are_modules(tmp_path: Path) -> None:
    cell = N.LSTMCell(UNITS, input_size=INPUTS)
    assert cell.summary().splitlines()[-1].startswith("180 parameters")
    path = wf.train.Saver({"cell": cell}).save(None, tmp_path / "cell")
    other = N.LSTMCell(UNITS, input_size=INPUTS)
    wf.train.Saver({"cell": other}).restore(None, path)
    x = X.astype(np.float32)
    np.testing.assert_array_equal(N.dynamic_rnn(other, x)[0], N.dynamic_rnn(cell, x)[0])
    assert (N.GRUCell(4).output_size, N.LSTMCell(4, num_proj=2).output_size) == (4, 2)
    np.testing.assert_array_equal(N.GRUCell(2, input_size=1).gate_bias.numpy(), 1)


# --------------------------------------------------------------------------------- several lengths
@examples(50, deadline=None)
@given(st.data())
def test_sequence_mask(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    lengths = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 7, shape)
    maxlen = data.draw(st.integers(0, 5))
    expected = np.zeros((*shape, maxlen), bool)
    for at in np.ndindex(*shape):
        expected[at][: max(lengths[at], 0)] = True
    np.testing.assert_array_equal(N.sequence_mask(lengths, maxlen), expected)
    floats = N.sequence_mask(lengths, maxlen, dtype=wf.float32)
    assert floats.dtype is wf.float32
    np.testing.assert_array_equal(floats, expected)


@examples(60, deadline=None)
@given(st.data())
def test_reverse_sequence(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    axes = data.draw(st.permutations(range(len(shape))))
    time, batch = axes[0], axes[1]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, lengths = rng.normal(size=shape), rng.integers(0, shape[time] + 2, shape[batch])
    expected = x.copy()
    for b, n in enumerate(lengths):
        rows = np.moveaxis(expected, (batch, time), (0, 1))[b]
        rows[:n] = rows[:n][::-1].copy()
    call = lambda x: N.reverse_sequence(x, lengths, time, batch - len(shape))  # noqa: E731
    np.testing.assert_array_equal(call(x), expected)
    np.testing.assert_array_equal(call(call(x)), x)
    if data.draw(st.integers(0, 5)) == 0:
        np.testing.assert_array_equal(wf.compile(call)(x), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.sequence_mask([1.5], 3), "TypeRuleError", "lengths are integers, got float32"),
        (lambda: N.sequence_mask([1], -1), "InvalidArgumentError", "maxlen must not be negative"),
        (lambda: N.reverse_sequence(X, [1] * 4, 1, 1), "InvalidArgumentError", "both 1"),
        (lambda: N.reverse_sequence(X, [1] * 3), "ShapeError", "seq_lengths of shape"),
        (lambda: N.LSTMCell(0), "InvalidArgumentError", "num_units must be at least 1, got 0"),
        (lambda: N.LSTMCell(2, num_proj=0), "InvalidArgumentError", "num_proj must be"),
        (lambda: N.GRUCell(2)(X, 0), "ShapeError", r"an input is \[batch, inputs\]"),
        (lambda: N.GRUCell(2, input_size=3).build(4), "ShapeError", "inputs of size 3, got 4"),
        (lambda: N.dynamic_rnn(lambda x, s: x, X), "TypeRuleError", "takes a wf.nn.RNNCell"),
        (lambda: N.dynamic_rnn(N.GRUCell(2), X[0]), "ShapeError", r"sequences are \[batch, time"),
        (lambda: N.dynamic_rnn(N.GRUCell(2, dtype="float64"), X, [1]), "ShapeError",
         "sequence_length"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
