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


def chosen(p: Array, before: Array) -> Array:
    """Raffel et al., algorithm 1's expectation: of each start k, the chance to stop at i is that of
    going past all places from k on, and stopping there."""
    found = np.zeros_like(p)
    for k in range(len(p)):
        for i in range(k, len(p)):
            found[i] += before[k] * np.prod(1 - p[k:i]) * p[i]
    return found


def chosen_rows(p: Array, before: Array) -> Array:
    found = np.zeros_like(p)
    for at in np.ndindex(p.shape[:-1]):
        found[at] = chosen(p[at], before[at])
    return found


@pytest.mark.share(8)
@pytest.mark.parametrize("mode", ["recursive", "parallel", "hard"])
@pytest.mark.parametrize("shape", [(7,), (3, 6), (2, 2, 5), (2, 1), (2, 0), (0, 3)])
def test_monotonic_attention(mode: str, shape: tuple[int, ...]) -> None:
    p, before = RNG.uniform(0.05, 0.95, shape), RNG.uniform(0, 1, shape)
    if mode == "hard":
        p = np.round(p)
        before = np.zeros(shape)
        for at in np.ndindex(shape[:-1]):
            before[at][:1] = 1
            RNG.shuffle(before[at])
    truth = chosen_rows(p, before)
    call = lambda p, b: N.monotonic_attention(p, b, mode)  # noqa: E731
    for f in (call, wf.compile(call)):
        np.testing.assert_allclose(f(p, before), truth, rtol=1e-9, atol=1e-12)
    narrow = N.monotonic_attention(wf.astype(p, wf.float16), wf.astype(before, wf.float16), mode)
    assert narrow.dtype is wf.float16
    np.testing.assert_allclose(narrow, truth, atol=3e-3, rtol=3e-3)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float64, [None] * len(shape))
        y = wf.placeholder(wf.float64, [None] * len(shape))
        made = session.run(call(x, y), {x: p, y: before})
    np.testing.assert_allclose(made, truth, rtol=1e-9, atol=1e-12)
    if mode == "hard" or not p.size:
        return
    weights = RNG.normal(size=shape)
    loss = lambda p, b: wf.sum(call(p, b) * weights)  # noqa: E731
    slopes = wf.compile(wf.grad(loss, argnums=(0, 1)))(p, before)
    for at in np.ndindex(shape):
        for slope, number in zip(slopes, (0, 1), strict=True):
            sides = []
            for step in (1e-6, -1e-6):
                given = [p.copy(), before.copy()]
                given[number][at] += step
                sides.append((chosen_rows(given[0], given[1]) * weights).sum())
            expected = (sides[0] - sides[1]) / 2e-6
            np.testing.assert_allclose(slope.numpy()[at], expected, rtol=1e-5, atol=1e-7)


def test_certain_places() -> None:
    """Chances of 0 and 1: gradients are finite, and both ways agree with the definition."""
    p = np.array([[0.0, 1.0, 0.0, 1.0, 0.5], [0.0] * 5, [1.0] * 5], np.float32)
    before = np.array([[0.25, 0.0, 0.5, 0.25, 0.0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0]], np.float32)
    truth = chosen_rows(p, before)
    np.testing.assert_allclose(N.monotonic_attention(p, before, "recursive"), truth, atol=1e-6)
    for mode in ("recursive", "parallel"):
        loss = lambda p: wf.sum(N.monotonic_attention(p, before, mode) ** 2)  # noqa: B023, E731
        assert np.isfinite(wf.grad(loss)(p).numpy()).all()
    parallel = N.monotonic_attention(p, before, "parallel").numpy()
    np.testing.assert_allclose(parallel[1], truth[1], atol=1e-6)
    one = [[0.0, 1.0, 0.5]], [[0.25, 0.5, 0.0]]  # nothing is looked at beyond a certain place
    np.testing.assert_allclose(N.monotonic_attention(*one, "parallel"), [[0, 0.75, 0]], atol=1e-6)


MONOTONIC: dict[str, Callable[..., Any]] = {
    "Bahdanau": lambda **how: N.BahdanauMonotonicAttention(4, dtype="float64", **how),
    "Bahdanau normalized": lambda **how: N.BahdanauMonotonicAttention(
        4, True, dtype="float64", **how
    ),
    "Luong": lambda **how: N.LuongMonotonicAttention(UNITS, dtype="float64", **how),
    "Luong scaled": lambda **how: N.LuongMonotonicAttention(UNITS, True, dtype="float64", **how),
}


def stopped(w: dict[str, Array], query: Array, memory: Array, length: int, before: Array,
            hard: bool) -> Array:  # fmt: skip
    """The alignments of one row."""
    p = np.zeros(len(memory))
    for i, place in enumerate(memory[:length]):
        found = score(w, query, place) + w["score_bias"]
        p[i] = found > 0 if hard else 1 / (1 + np.exp(-found))
    return chosen(p, before)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", MONOTONIC)
@pytest.mark.parametrize("mode", ["recursive", "parallel", "hard"])
def test_monotonic_mechanisms(name: str, mode: str) -> None:
    """In a beam, and step by step in a wrapper's cell."""
    beam, mechanism = 2, MONOTONIC[name](mode=mode, score_bias_init=-0.5)
    mechanism.build(DEPTH, UNITS)
    assert float(mechanism.score_bias) == -0.5
    w = shaken(mechanism)
    query = RNG.normal(size=(BATCH * beam, UNITS))
    before = np.eye(PLACES)[RNG.integers(0, 2, BATCH * beam)]
    call = lambda q, m, n, b: mechanism(q, mechanism.read(m, UNITS, n), b)  # noqa: E731
    context, alignments = wf.compile(call)(query, MEMORY, LENGTHS, before)
    first = call(query, MEMORY, LENGTHS, None)[1]
    for i, q in enumerate(query):
        memory, n = MEMORY[i // beam], LENGTHS[i // beam]
        truth = stopped(w, q, memory, n, before[i], mode == "hard")
        np.testing.assert_allclose(alignments[i], truth, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(context[i], truth @ memory, rtol=1e-9, atol=1e-12)
        begins = stopped(w, q, memory, n, np.eye(PLACES)[0], mode == "hard")
        np.testing.assert_allclose(first[i], begins, rtol=1e-9, atol=1e-12)
    model = N.AttentionWrapper(N.GRUCell(UNITS, dtype="float64"), mechanism)
    model.cell.build(3 + DEPTH)
    outputs, state = wf.compile(lambda x, m, n: N.dynamic_rnn(model.attend(m, n), x))(
        X, MEMORY, LENGTHS
    )
    for b in range(BATCH):
        hidden, attention = wf.zeros((1, UNITS), dtype="float64"), np.zeros(DEPTH)
        alignments = np.eye(PLACES)[0]
        for t in range(TIME):
            x = np.concatenate([X[b, t], attention])[None]
            output, hidden = model.cell(x, hidden)
            query = output.numpy()[0]
            alignments = stopped(w, query, MEMORY[b], LENGTHS[b], alignments, mode == "hard")
            attention = alignments @ MEMORY[b]
            np.testing.assert_allclose(outputs[b, t], attention, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(state.alignments[b], alignments, rtol=1e-8, atol=1e-12)


def test_monotonic_gradients_and_noise() -> None:
    mechanism = MONOTONIC["Bahdanau"](sigmoid_noise=0.5, mode="recursive")
    model = N.AttentionWrapper(N.LSTMCell(UNITS, dtype="float64"), mechanism, 4)

    def loss(m: Any) -> Any:
        model.eval()
        return wf.sum(N.dynamic_rnn(model.attend(m, LENGTHS), X)[0] ** 2)

    assert float(loss(MEMORY)) == float(loss(MEMORY))  # no noise: not in training
    found = wf.compile(wf.grad(loss))(MEMORY).numpy()
    for at in [(0, 0, 0), (0, 4, 1), (1, 1, 0), (2, 0, 1)]:
        step = np.zeros_like(MEMORY)
        step[at] = 1e-6
        difference = (float(loss(MEMORY + step)) - float(loss(MEMORY - step))) / 2e-6
        np.testing.assert_allclose(found[at], difference, rtol=1e-4, atol=1e-8)
    assert not found[1, 2:].any()
    query, memory = RNG.normal(size=(1, UNITS)), RNG.normal(size=(1, 1, DEPTH))
    mechanism.score_bias.assign(0.25)
    w = {name: v.numpy() for name, v in mechanism.named_variables().items()}
    many = np.repeat(memory, 4000, axis=0)
    draw = wf.compile(lambda q, m: mechanism.train()(q, mechanism.read(m, UNITS))[1])
    noisy = draw(np.repeat(query, 4000, axis=0), many).numpy()[:, 0]
    logits = np.log(noisy / (1 - noisy)) - score(w, query[0], memory[0, 0]) - 0.25
    assert abs(logits.mean()) < 0.05
    assert abs(logits.std() - 0.5) < 0.04


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
        (lambda: N.LuongMonotonicAttention(3, mode="soft"), "InvalidArgumentError",
         r"wf\.nn\.LuongMonotonicAttention: mode='soft' is none of recursive, parallel, hard"),
        (lambda: N.BahdanauMonotonicAttention(3, sigmoid_noise=-1.0), "InvalidArgumentError",
         "sigmoid_noise must be a number from 0 on, got -1.0"),
        (lambda: N.BahdanauMonotonicAttention(3, score_bias_init="a"), "InvalidArgumentError",
         "score_bias_init must be a number, got 'a'"),
        (lambda: N.monotonic_attention([0.5], [1.0], "x"), "InvalidArgumentError", "mode='x' is"),
        (lambda: N.monotonic_attention([0.5], [[1.0]]), "ShapeError", r"both are \[\.\.\., time"),
        (lambda: N.monotonic_attention([[0.5]], [[1.0, 0.0]]), "ShapeError", "."),
        (lambda: N.monotonic_attention(0.5, 1.0), "ShapeError", r"both are \[\.\.\., time"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
