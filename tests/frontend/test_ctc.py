"""CTC loss against every path there is, and against a loop over states in NumPy; decoders against
every path, and against a prefix beam search in Python; the edit distance against a loop."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given

import weft as wf

Array = np.ndarray[Any, Any]
N = wf.nn


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def said(path: Sequence[int], blank: int, merge: bool = True) -> tuple[int, ...]:
    """What a path of frames stands for."""
    kept = [c for i, c in enumerate(path) if not (merge and i and path[i - 1] == c)]
    return tuple(c for c in kept if c != blank)


def every_path(logs: Array, blank: int, merge: bool = True) -> dict[tuple[int, ...], float]:
    """The log probability of each label sequence, from all paths of the frames."""
    time, classes = logs.shape
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(classes), repeat=time):
        found[said(path, blank, merge)] += math.exp(sum(logs[t, c] for t, c in enumerate(path)))
    return {labels: math.log(p) for labels, p in found.items()}


def by_states(logs: Array, labels: Sequence[int], blank: int, merge: bool = True) -> float:
    """-log p of the labels: Graves's forward recursion, state by state (TF1's without merging)."""
    states = [blank]
    for label in labels:
        states += [label, blank]
    alpha = np.full(len(states), -np.inf)
    alpha[0] = 0.0  # before the first frame
    for row in logs:
        after = np.full_like(alpha, -np.inf)
        for s, c in enumerate(states):
            ways = [alpha[s]] if c == blank or merge else []
            ways += [alpha[s - 1]] if s else []
            if s > 1 and c != blank and not (merge and states[s - 2] == c):
                ways.append(alpha[s - 2])
            after[s] = np.logaddexp.reduce(ways) + row[c] if ways else -np.inf
        alpha = after
    return -float(np.logaddexp.reduce(alpha[-2:]))


def case(seed: int, batch: int, time: int, classes: int, most: int, blank: int = 0) -> Any:
    """(logits, labels, label lengths, logit lengths), with anything after the labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(batch, time, classes)) * 2
    kinds = [c for c in range(classes) if c != blank]
    labels = rng.choice(kinds, (batch, most))
    n_labels = rng.integers(0, most + 1, batch)
    n_frames = rng.integers(min(time, 2 * most), time + 1, batch)
    labels[np.arange(most) >= n_labels[:, None]] = rng.choice([-7, blank, 99])
    return logits, labels, n_labels, n_frames


# ----------------------------------------------------------------------------------------- the loss
@pytest.mark.share(3)
@pytest.mark.parametrize("blank", [0, 2, -1])
@pytest.mark.parametrize("merge", [True, False])
def test_every_path(blank: int, merge: bool) -> None:
    """Of 4 frames and 3 classes: each label sequence has the sum of its paths, and the
    probabilities of all are 1."""
    logits = np.random.default_rng(1).normal(size=(4, 3)) * 2
    truth = every_path(log_softmax(logits), blank % 3, merge)
    assert math.isclose(sum(map(math.exp, truth.values())), 1.0)
    width = max(map(len, truth))
    labels = np.full((len(truth), width), -1)
    for row, key in zip(labels, truth, strict=True):
        row[: len(key)] = key
    got = wf.compile(
        lambda x: N.ctc_loss(
            labels, x, [len(k) for k in truth], blank_index=blank, merge_repeated=merge
        )
    )(np.broadcast_to(logits, (len(truth), 4, 3)))
    np.testing.assert_allclose(-got.numpy(), list(truth.values()), rtol=1e-10)


@examples(60, deadline=None)
@given(st.data())
def test_as_a_loop_over_states(data: st.DataObject) -> None:
    classes, most = data.draw(st.integers(2, 5)), data.draw(st.integers(0, 4))
    blank, merge = data.draw(st.integers(0, classes - 1)), data.draw(st.booleans())
    x, labels, n, m = case(
        data.draw(st.integers(0, 99)), data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 9)), classes, most, blank,
    )  # fmt: skip
    time_major = data.draw(st.booleans())
    got = N.ctc_loss(
        labels, np.moveaxis(x, 1, 0) if time_major else x, n, m,
        time_major=time_major, blank_index=blank, merge_repeated=merge,
    )  # fmt: skip
    expected = [
        by_states(log_softmax(x[b, : m[b]]), labels[b, : n[b]], blank, merge) for b in range(len(x))
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.share(2)
@pytest.mark.parametrize("way", ["eager", "compiled", "session", "float32", "vmap"])
def test_ways(way: str) -> None:
    x, labels, n, m = case(3, 4, 12, 6, 5)
    truth = [by_states(log_softmax(x[b, : m[b]]), labels[b, : n[b]], 0) for b in range(4)]
    if way == "session":
        with wf.Graph().as_default(), wf.Session() as session:
            logits = wf.placeholder(wf.float64, [None, None, 6])
            target = wf.placeholder(wf.int64, [None, None])
            ends = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.int64, [None])
            loss = N.ctc_loss(target, logits, *ends)
            slope = wf.gradients(loss, [logits])[0]
            feeds = dict(zip((logits, target, *ends), (x, labels, n, m), strict=True))
            got, slopes = session.run([loss, slope], feeds)
        eager = wf.grad(lambda x: wf.sum(N.ctc_loss(labels, x, n, m)))(x)
        np.testing.assert_allclose(slopes, eager, rtol=1e-9, atol=1e-12)
    elif way == "vmap":
        one = lambda x, a, n, m: N.ctc_loss(a[None], x[None], n[None], m[None])[0]  # noqa: E731
        got = wf.compile(wf.vmap(one))(x, labels, n, m)
    else:
        call = lambda x: N.ctc_loss(labels, x, n, m)  # noqa: E731
        got = call(x) if way == "eager" else wf.compile(call)(
            x.astype(np.float32) if way == "float32" else x)  # fmt: skip
    np.testing.assert_allclose(got, truth, rtol=1e-5 if way == "float32" else 1e-9)


@pytest.mark.share(2)
@pytest.mark.parametrize("merge", [True, False])
def test_gradients(merge: bool) -> None:
    """Against central differences; those of rows, 0 past the end; and of second order."""
    x, labels, n, m = case(5, 3, 7, 4, 3)
    labels[0, :2], n[0], m[0] = [2, 2], 2, 6  # a repeated label
    weights = np.array([1.0, -2.0, 0.5])
    loss = wf.compile(lambda x: wf.sum(weights * N.ctc_loss(labels, x, n, m, merge_repeated=merge)))
    slope = wf.compile(wf.grad(loss))
    first = slope(x).numpy()
    direction = np.random.default_rng(0).normal(size=x.shape)
    second = wf.compile(lambda x: wf.hvp(loss, (x,), (wf.asarray(direction),)))(x)
    h = 1e-5
    for at in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[at] = h
        difference = (float(loss(x + step)) - float(loss(x - step))) / (2 * h)
        np.testing.assert_allclose(first[at], difference, rtol=1e-6, atol=1e-8)
    assert not any(first[b, m[b] :].any() for b in range(3))
    np.testing.assert_allclose(first.sum(-1), 0, atol=1e-12)  # as a softmax is taken
    along = (slope(x + h * direction).numpy() - slope(x - h * direction).numpy()) / (2 * h)
    np.testing.assert_allclose(wf.tree_leaves(second)[0], along, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_long_sequences_in_float32() -> None:
    """The gradient is as exact where the loss is in the thousands."""
    x, labels, n, m = case(8, 2, 600, 30, 60)
    f = wf.compile(wf.value_and_grad(lambda x: wf.sum(N.ctc_loss(labels, x, n, m))))
    value, slope = f(x)
    near, slope32 = f(x.astype(np.float32))
    truth = sum(by_states(log_softmax(x[b, : m[b]]), labels[b, : n[b]], 0) for b in range(2))
    assert truth > 2000
    np.testing.assert_allclose(value, truth, rtol=1e-12)
    np.testing.assert_allclose(near, truth, rtol=1e-6)
    np.testing.assert_allclose(slope32, slope, atol=2e-3)


def test_what_does_not_fit() -> None:
    """Three labels in two frames, and a repeated one without room for a blank: as PyTorch."""
    labels, n = [[1, 2, 1], [1, 1, 0], [1, 2, 0]], [3, 2, 2]
    x = np.random.default_rng(0).normal(size=(3, 2, 3))
    for zero in (False, True):
        loss = lambda x, zero=zero: N.ctc_loss(labels, x, n, zero_infinity=zero)  # noqa: E731
        values = wf.compile(loss)(x).numpy()
        slopes = wf.compile(wf.grad(lambda x, f=loss: wf.sum(f(x))))(x).numpy()
        fill = 0.0 if zero else np.inf
        np.testing.assert_array_equal(values[:2], fill)
        assert (slopes[:2] == 0).all() if zero else np.isnan(slopes[:2]).all()
        assert np.isfinite(values[2])
        assert np.isfinite(slopes[2]).all()
    nothing = N.ctc_loss(np.zeros((2, 0), int), x[:2], logit_length=[0, 2])
    np.testing.assert_allclose(nothing, [0.0, -log_softmax(x[1])[:, 0].sum()], rtol=1e-12)


@pytest.mark.slow
def test_learns_an_alignment() -> None:
    """Frames that show digits for a while each, the digits as labels: an affine map learns it."""
    rng = np.random.default_rng(0)
    w = wf.Variable(np.zeros((5, 4), np.float32))
    optimizer = wf.train.Adam(0.1)
    labels = np.array([[1, 2, 3], [3, 1, 1], [2, 2, 1]])
    frames = [np.repeat([[0, c] for c in row], 3) for row in labels]  # three frames each
    x = np.eye(5, dtype=np.float32)[np.stack(frames)]
    x += 0.1 * rng.normal(size=x.shape).astype(np.float32)

    @wf.compile
    def step(x: Any) -> Any:
        loss = wf.mean(N.ctc_loss(labels, x @ w))
        optimizer.minimize(loss)
        return loss

    losses = [float(step(x)) for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
    np.testing.assert_array_equal(N.ctc_greedy_decoder(x @ w).labels[:, :3], labels)


# --------------------------------------------------------------------------------------- decoders
def greedy(x: Array, blank: int, merge: bool) -> tuple[tuple[int, ...], float]:
    return said(x.argmax(-1).tolist(), blank, merge), float(log_softmax(x).max(-1).sum())


def prefix_beam(logs: Array, width: int, blank: int) -> list[tuple[tuple[int, ...], float]]:
    """Prefix beam search with dicts (Hannun et al. 2014): labels and log probabilities."""
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    for row in logs:
        found: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-np.inf, -np.inf])
        for labels, (ends_blank, ends_label) in beam.items():
            total = np.logaddexp(ends_blank, ends_label)
            for c, p in enumerate(row):
                if c == blank:
                    found[labels][0] = np.logaddexp(found[labels][0], total + p)
                elif labels and labels[-1] == c:
                    found[labels][1] = np.logaddexp(found[labels][1], ends_label + p)
                    longer = (*labels, c)
                    found[longer][1] = np.logaddexp(found[longer][1], ends_blank + p)
                else:
                    longer = (*labels, c)
                    found[longer][1] = np.logaddexp(found[longer][1], total + p)
        order = sorted(found.items(), key=lambda item: -np.logaddexp(*item[1]))[:width]
        beam = {labels: (float(a), float(b)) for labels, (a, b) in order}
    totals = [(labels, float(np.logaddexp(a, b))) for labels, (a, b) in beam.items()]
    return [(labels, p) for labels, p in totals if p > -np.inf]


def rows(found: Any) -> list[tuple[int, ...]]:
    """The labels of a decoder as tuples, padding checked."""
    labels, lengths = found.labels.numpy(), found.lengths.numpy()
    flat = labels.reshape(-1, labels.shape[-1])
    for row, length in zip(flat, lengths.ravel(), strict=True):
        assert (row[length:] == -1).all()
    return [tuple(map(int, row[:n])) for row, n in zip(flat, lengths.ravel(), strict=True)]


@examples(60, deadline=None)
@given(st.data())
def test_greedy(data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 4))
    blank, merge = data.draw(st.integers(0, classes - 1)), data.draw(st.booleans())
    x, _, _, m = case(data.draw(st.integers(0, 99)), 3, data.draw(st.integers(1, 9)), classes, 0)
    got = N.ctc_greedy_decoder(x, m, blank_index=blank, merge_repeated=merge)
    truth = [greedy(x[b, : m[b]], blank, merge) for b in range(3)]
    assert rows(got) == [labels for labels, _ in truth]
    np.testing.assert_allclose(got.log_probs, [p for _, p in truth], rtol=1e-10)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("classes", "width", "paths", "blank"), [(2, 3, 3, 0), (3, 1, 1, 2), (4, 6, 2, 1), (5, 9, 4, 0)]
)
def test_beam_search_as_in_python(classes: int, width: int, paths: int, blank: int) -> None:
    decode = wf.compile(
        lambda x, m: N.ctc_beam_search_decoder(
            x, m, beam_width=width, top_paths=paths, blank_index=blank
        )
    )
    for seed in range(4):
        x, _, _, m = case(seed, 8, 9, classes, 0)
        got = decode(x, m)
        assert got.labels.shape == (8, paths, 9)
        for b in range(8):
            truth = prefix_beam(log_softmax(x[b, : m[b]]), width, blank)[:paths]
            mine = rows(N.CTCLabels(*(part[b] for part in got)))
            assert mine == [k for k, _ in truth] + [()] * (paths - len(truth))
            scores = [p for _, p in truth] + [-np.inf] * (paths - len(truth))
            np.testing.assert_allclose(got.log_probs[b], scores, rtol=1e-9)


@pytest.mark.share(2)
@pytest.mark.parametrize("time_major", [False, True])
def test_a_wide_beam_is_exact(time_major: bool) -> None:
    """With room for all sequences: the sums of all paths, and what the loss says."""
    logits = np.random.default_rng(4).normal(size=(5, 3)) * 2
    truth = sorted(every_path(log_softmax(logits), 1).items(), key=lambda item: -item[1])
    x = logits[:, None] if time_major else logits[None]
    decode = wf.compile(
        lambda x: N.ctc_beam_search_decoder(
            x, beam_width=len(truth), top_paths=len(truth), time_major=time_major, blank_index=1
        )
    )
    got = decode(x)
    assert rows(got) == [labels for labels, _ in truth]
    np.testing.assert_allclose(got.log_probs[0], [p for _, p in truth], rtol=1e-10)
    loss = N.ctc_loss(got.labels[0], np.broadcast_to(logits, (len(truth), 5, 3)), got.lengths[0],
                      blank_index=1)  # fmt: skip
    np.testing.assert_allclose(-loss.numpy(), got.log_probs[0], rtol=1e-10)


def test_decoders_of_a_session() -> None:
    """Whose batch and time a feed decides."""
    x, _, _, m = case(2, 3, 6, 4, 0)
    with wf.Graph().as_default(), wf.Session() as session:
        logits, ends = wf.placeholder(wf.float64, [None, None, 4]), wf.placeholder(wf.int64, [None])
        beam = N.ctc_beam_search_decoder(logits, ends, beam_width=5, top_paths=2)
        first = N.ctc_greedy_decoder(logits, ends)
        got = session.run([beam.labels, beam.log_probs, first.labels], {logits: x, ends: m})
    truth = N.ctc_beam_search_decoder(x, m, beam_width=5, top_paths=2)
    np.testing.assert_array_equal(got[0], truth.labels)
    np.testing.assert_allclose(got[1], truth.log_probs, rtol=1e-10)
    np.testing.assert_array_equal(got[2], N.ctc_greedy_decoder(x, m).labels)


# ---------------------------------------------------------------------------------- edit distance
def distance(a: Sequence[int], b: Sequence[int]) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i, j in itertools.product(range(len(a)), range(len(b))):
        table[i + 1, j + 1] = min(
            table[i, j + 1] + 1, table[i + 1, j] + 1, table[i, j] + (a[i] != b[j])
        )
    return int(table[-1, -1])


@examples(80, deadline=None)
@given(st.data())
def test_edit_distance(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    batch, n, m = (data.draw(st.integers(low, 8)) for low in (1, 0, 0))
    a, b = rng.integers(0, 3, (batch, n)), rng.integers(0, 3, (batch, m))
    a_len, b_len = rng.integers(0, n + 1, batch), rng.integers(0, m + 1, batch)
    expected = np.array([distance(a[i, : a_len[i]], b[i, : b_len[i]]) for i in range(batch)], float)
    got = N.edit_distance(a, b, a_len, b_len, normalize=False)
    assert got.dtype is wf.float32
    np.testing.assert_array_equal(got, expected)
    whole = np.array([distance(a[i], b[i]) for i in range(batch)])
    np.testing.assert_array_equal(N.edit_distance(a, b, normalize=False), whole)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(expected / b_len, posinf=np.inf)  # TF's: 0 for two empty ones
    np.testing.assert_allclose(N.edit_distance(a, b, a_len, b_len), share, rtol=1e-6)


def test_edit_distance_compiled_and_of_a_session() -> None:
    a, b = [[1, 2, 3, 4], [1, 1, 1, 1]], [[2, 3, 5], [1, 1, 2]]
    got = wf.compile(lambda a, b: N.edit_distance(a, b, [4, 2], normalize=False))(a, b)
    np.testing.assert_array_equal(got, [2, 1])
    with wf.Graph().as_default(), wf.Session() as session:
        x, y = wf.placeholder(wf.int64, [None, None]), wf.placeholder(wf.int64, [None, None])
        found = N.edit_distance(x, y)
        np.testing.assert_allclose(session.run(found, {x: a, y: b}), [2 / 3, 2 / 3], rtol=1e-6)


X = np.zeros((2, 3, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.ctc_loss([[1], [9]], X), "InvalidArgumentError",
         r"label 9 at \[1, 0\] is no label: of 4 classes 0 is blank"),
        (lambda: N.ctc_loss([[1], [0]], X), "InvalidArgumentError", r"label 0 at \[1, 0\]"),
        (lambda: wf.compile(lambda a: N.ctc_loss(a, X))([[1], [-1]]), "InvalidArgumentError",
         "out of"),
        (lambda: N.ctc_loss([[1.5], [1.0]], X), "TypeRuleError", "labels are integers, got float"),
        (lambda: N.ctc_loss([[1]], X), "ShapeError", "for a batch of 2"),
        (lambda: N.ctc_loss([[1], [1]], X, [1]), "ShapeError", "label_length of shape"),
        (lambda: N.ctc_loss([[1], [1]], X, [1, 1], [1.0, 2.0]), "TypeRuleError", "lengths are"),
        (lambda: N.ctc_loss([[1], [1]], X[0]), "ShapeError", r"logits are \[batch, time, classes"),
        (lambda: N.ctc_loss([[1], [1]], X + 1j), "TypeRuleError", "logits are floats"),
        (lambda: N.ctc_loss([[1], [1]], X, blank_index=4), "InvalidArgumentError", "blank_index 4"),
        (lambda: N.ctc_beam_search_decoder(X, beam_width=2, top_paths=3), "InvalidArgumentError",
         "top_paths is 3, for a beam of width 2"),
        (lambda: N.ctc_beam_search_decoder(X, beam_width=0, top_paths=0), "InvalidArgumentError",
         "top_paths"),
        (lambda: N.edit_distance([1], [2]), "ShapeError", r"hypothesis and truth are \[batch"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
