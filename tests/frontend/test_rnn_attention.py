"""Attention of recurrent decoders against loops in NumPy, row by row and place by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]
N = wf.nn
RNG = np.random.default_rng(6)
BATCH, TIME, PLACES, DEPTH, UNITS = 3, 4, 5, 2, 6
MEMORY = RNG.normal(size=(BATCH, PLACES, DEPTH))
LENGTHS = np.array([5, 2, 1])
X = RNG.normal(size=(BATCH, TIME, 3))


def bahdanau(normalize: bool) -> Any:
    return N.BahdanauAttention(4, normalize, dtype="float64")


def luong(scale: bool) -> Any:
    return N.LuongAttention(UNITS, scale, dtype="float64")


MECHANISMS: dict[str, Callable[[], Any]] = {
    "Bahdanau": lambda: bahdanau(False), "Bahdanau normalized": lambda: bahdanau(True),
    "Luong": lambda: luong(False), "Luong scaled": lambda: luong(True),
}  # fmt: skip


def shaken(module: Any) -> dict[str, Array]:
    """Other values for all variables, biases too; by name."""
    for v in module.variables():
        v.assign(RNG.normal(size=v.shape))
    return {name: v.numpy() for name, v in module.named_variables().items()}


def score(w: dict[str, Array], query: Array, place: Array) -> float:
    key = place @ w["memory_kernel"]
    if "query_kernel" not in w:
        return float(w.get("g", np.array(1.0)) * (query @ key))
    inside = np.tanh(key + query @ w["query_kernel"] + w.get("bias", 0.0))
    v = w["v"]
    return float((w["g"] * v / np.linalg.norm(v) if "g" in w else v) @ inside)


def looked(w: dict[str, Array], query: Array, memory: Array, length: int) -> tuple[Array, Array]:
    """(context, alignments) of one row."""
    scores = np.array([score(w, query, place) for place in memory[:length]])
    weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    alignments = np.zeros(len(memory))
    alignments[:length] = weights
    return weights @ memory[:length], alignments


@pytest.mark.share(2)
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("beam", [1, 3])
def test_mechanisms(name: str, beam: int) -> None:
    """Rows of a beam share a row of the memory."""
    mechanism = MECHANISMS[name]()
    mechanism.build(DEPTH, UNITS)
    w = shaken(mechanism)
    query = RNG.normal(size=(BATCH * beam, UNITS))
    call = lambda q, m, n: mechanism(q, mechanism.read(m, UNITS, n))  # noqa: E731
    context, alignments = wf.compile(call)(query, MEMORY, LENGTHS)
    for i, q in enumerate(query):
        b = i // beam
        truth = looked(w, q, MEMORY[b], LENGTHS[b])
        np.testing.assert_allclose(context[i], truth[0], rtol=1e-10)
        np.testing.assert_allclose(alignments[i], truth[1], rtol=1e-10)
    whole, _ = call(query, MEMORY, None)
    first = looked(w, query[0], MEMORY[0], PLACES)[0]
    np.testing.assert_allclose(whole[0], first, rtol=1e-10)


def test_a_memory_without_places() -> None:
    """Gives 0, and a gradient of 0."""
    mechanism = bahdanau(False)
    query = RNG.normal(size=(BATCH, UNITS))
    mechanism.build(DEPTH, UNITS)

    def context(m: Any) -> Any:
        return mechanism(query, mechanism.read(m, UNITS, [0, 2, 0]))[0]

    assert not context(MEMORY)[0].numpy().any()
    slope = wf.compile(wf.grad(lambda m: wf.sum(context(m))))(MEMORY).numpy()
    assert np.isfinite(slope).all()
    assert not slope[0].any()
    assert slope[1, :2].all()


@pytest.mark.share(3)
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("layer", [None, 4])
@pytest.mark.parametrize("output_attention", [True, False])
def test_wrapper(name: str, layer: int | None, output_attention: bool) -> None:
    """Over a sequence: input feeding, the layer, and what the outputs are."""
    cell = N.GRUCell(UNITS, dtype="float64")
    model = N.AttentionWrapper(cell, MECHANISMS[name](), layer, output_attention)
    size = DEPTH if layer is None else layer
    cell.build(3 + size)
    run = wf.compile(lambda x, m, n: N.dynamic_rnn(model.attend(m, n), x))
    model.attend(MEMORY)  # which makes the variables
    shaken(model.mechanism)
    w = {name: v.numpy() for name, v in model.mechanism.named_variables().items()}
    outputs, state = run(X, MEMORY, LENGTHS)
    for b in range(BATCH):
        hidden, attention = wf.zeros((1, UNITS), dtype="float64"), np.zeros(size)
        for t in range(TIME):
            x = np.concatenate([X[b, t], attention])[None]
            output, hidden = cell(x, hidden)
            query = output.numpy()[0]
            attention, alignments = looked(w, query, MEMORY[b], LENGTHS[b])
            if layer is not None:
                kernel = model.attention_kernel.numpy()
                attention = np.concatenate([query, attention]) @ kernel
            made = attention if output_attention else query
            np.testing.assert_allclose(outputs[b, t], made, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.attention[b], attention, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.alignments[b], alignments, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.cell[b], hidden[0], rtol=1e-9, atol=1e-12)


def test_in_a_session_with_open_sizes() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        model = N.AttentionWrapper(N.LSTMCell(4), N.BahdanauAttention(3), 5)
        memory = wf.placeholder(wf.float32, [None, None, DEPTH])
        x = wf.placeholder(wf.float32, [None, None, 3])
        outputs, state = N.dynamic_rnn(model.attend(memory), x)
        session.run(wf.global_variables_initializer())
        feeds = {memory: MEMORY.astype(np.float32), x: X.astype(np.float32)}
        whole, alignments = session.run([outputs, state.alignments], feeds)
        assert whole.shape == (BATCH, TIME, 5)
        np.testing.assert_allclose(alignments.sum(1), 1.0, rtol=1e-5)
        few = session.run(outputs, {key: value[:2] for key, value in feeds.items()})
        np.testing.assert_allclose(few, whole[:2], rtol=1e-5, atol=1e-6)


def test_gradients() -> None:
    model = N.AttentionWrapper(N.LSTMCell(UNITS, dtype="float64"), luong(True), 4)
    loss = lambda m: wf.sum(N.dynamic_rnn(model.attend(m, LENGTHS), X)[0] ** 2)  # noqa: E731
    slope = wf.compile(wf.grad(loss))
    value = float(loss(MEMORY))  # makes the variables
    assert value > 0
    found = slope(MEMORY).numpy()
    for at in [(0, 0, 0), (0, 4, 1), (1, 1, 0), (2, 0, 1)]:
        step = np.zeros_like(MEMORY)
        step[at] = 1e-6
        difference = (float(loss(MEMORY + step)) - float(loss(MEMORY - step))) / 2e-6
        np.testing.assert_allclose(found[at], difference, rtol=1e-4, atol=1e-8)
    assert not found[1, 2:].any()


@pytest.mark.slow
def test_learns_to_copy() -> None:
    """Encoder, attention and decoder learn to repeat digits; then a beam search over the decoder
    repeats them, with a memory that is not repeated for the beam."""
    digits, length, end = 5, 3, 5
    encoder = N.GRUCell(24, input_size=digits)
    model = N.AttentionWrapper(N.GRUCell(24), N.BahdanauAttention(16), 24)
    out = wf.Variable(wf.random.normal(wf.random.key(0), [24, digits + 1]) * 0.1)
    model.attend(wf.zeros([1, length, 24])).build(digits + 1)
    optimizer = wf.train.Adam(0.01)

    def encoded(ids: Any) -> Any:
        return model.attend(N.dynamic_rnn(encoder, wf.one_hot(ids, digits))[0])

    @wf.compile
    def train(ids: Any) -> Any:
        given = wf.pad(ids, [[0, 0], [1, 0]], constant_values=end)  # end stands for the start, too
        outputs, _ = N.dynamic_rnn(encoded(ids), wf.one_hot(given, digits + 1))
        targets = wf.pad(ids, [[0, 0], [0, 1]], constant_values=end)
        loss = wf.mean(
            N.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs @ out)
        )
        optimizer.minimize(loss)
        return loss

    @wf.compile
    def decode(ids: Any) -> Any:
        decoder = encoded(ids)

        def step(last: Any, state: Any) -> tuple[Any, Any]:
            made, state = decoder(wf.one_hot(last, digits + 1), state)
            return made @ out, state

        start = wf.full((ids.shape[0],), end)
        return N.beam_search(
            step, decoder.zero_state(ids.shape[0]), start, beam_width=3, max_length=6, end_token=end
        ).ids[:, 0]

    rng = np.random.default_rng(0)
    losses = [float(train(rng.integers(0, digits, (64, length)))) for _ in range(250)]
    assert losses[-1] < 0.3 * losses[0]
    ids = rng.integers(0, digits, (40, length))
    right = (decode(ids).numpy()[:, :length] == ids).all(1)
    assert right.mean() > 0.8


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.AttentionWrapper(bahdanau(False), bahdanau(False)), "TypeRuleError",
         "got a BahdanauAttention where a RNNCell is to be"),
        (lambda: luong(False).read(MEMORY, 5), "ShapeError", "num_units is 6, the queries have"),
        (lambda: bahdanau(False).read(MEMORY[0], 5), "ShapeError", r"a memory is \[batch, time"),
        (lambda: bahdanau(False).read(MEMORY, 5, [1]), "ShapeError", "memory_sequence_length of"),
        (lambda: (m := bahdanau(False))(np.zeros((4, 5)), m.read(MEMORY, 5)), "ShapeError",
         "4 queries for a memory of 3 rows"),
        (lambda: (m := bahdanau(False))(np.zeros((4, 5)), m.read(MEMORY[:0], 5)), "ShapeError",
         "4 queries for a memory of 0 rows"),
        (lambda: (m := bahdanau(False)).read(MEMORY, 5) and m.read(MEMORY, 6), "ShapeError",
         r"sizes \(2, 5\), got \(2, 6\)"),
        (lambda: N.BahdanauAttention(0), "InvalidArgumentError", "num_units must be at least 1"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
