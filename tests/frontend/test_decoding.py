"""Beam search against every sequence there is, and against a beam search in Python; greedy and
sampled decoding against loops; filters of logits against NumPy, row by row."""

from __future__ import annotations

import itertools
import math
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
    made: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return made


class Model:
    """A small recurrent network, whose state is a tree: in NumPy for one sequence, in weft for a
    batch of them."""

    def __init__(self, classes: int, seed: int, sharp: float = 3.0) -> None:
        rng = np.random.default_rng(seed)
        self.a, self.e = rng.normal(size=(5, 5)), rng.normal(size=(classes, 5))
        self.b = rng.normal(size=(5, classes)) * sharp

    def step(self, ids: Any, state: Any) -> tuple[Any, Any]:
        hidden = wf.tanh(state["hidden"] @ self.a + wf.take(wf.asarray(self.e), ids, axis=0))
        return hidden @ self.b, {"hidden": hidden, "count": (state["count"][0] + 1,)}

    def start(self, batch: int) -> Any:
        hidden = np.random.default_rng(7).normal(size=(batch, 5))
        return {"hidden": hidden, "count": (np.zeros(batch, np.int64),)}

    def logs(self, hidden: Array, ids: int) -> tuple[Array, Array]:
        hidden = np.tanh(hidden @ self.a + self.e[ids])
        return log_softmax(hidden @ self.b), hidden

    def score(self, hidden: Array, first: int, ids: Sequence[int]) -> float:
        total = 0.0
        for before, after in zip([first, *ids], ids, strict=False):
            logs, hidden = self.logs(hidden, before)
            total += logs[after]
        return total


def penalty(length: int, power: float) -> float:
    return ((5 + length) / 6) ** power


def every_sequence(
    model: Model, hidden: Array, first: int, classes: int, most: int, end: int, power: float
) -> list[tuple[float, tuple[int, ...]]]:
    """All sequences that end with `end` or are cut off, best first."""
    onward = [c for c in range(classes) if c != end]
    whole = [
        (*ids, end) for n in range(most) for ids in itertools.product(onward, repeat=n)
    ] + list(itertools.product(onward, repeat=most))
    scored = [(model.score(hidden, first, ids) / penalty(len(ids), power), ids) for ids in whole]
    return sorted(scored, key=lambda item: -item[0])


def beam_in_python(
    model: Model, hidden: Array, first: int, width: int, most: int, end: int, power: float
) -> list[tuple[float, tuple[int, ...]]]:
    """What has ended is kept beside a beam of what goes on; never ends early."""
    going: list[tuple[float, tuple[int, ...], Array]] = [(0.0, (), hidden)]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for n in range(1, most + 1):
        longer = []
        for score, ids, state in going:
            logs, after = model.logs(state, ids[-1] if ids else first)
            for c, p in enumerate(logs):
                if c == end:
                    ended.append(((score + p) / penalty(n, power), (*ids, c)))
                else:
                    longer.append((score + p, (*ids, c), after))
        going = sorted(longer, key=lambda item: -item[0])[:width]
        ended = sorted(ended, key=lambda item: -item[0])[:width]
    ended += [(score / penalty(most, power), ids) for score, ids, _ in going]
    return sorted(ended, key=lambda item: -item[0])[:width]


def check(found: Any, b: int, truth: list[tuple[float, tuple[int, ...]]], end: int) -> None:
    ids, lengths, scores = (part[b].numpy() for part in found)
    count = len(truth)
    np.testing.assert_allclose(scores[:count], [score for score, _ in truth], rtol=1e-9)
    mine = [tuple(map(int, row[:n])) for row, n in zip(ids, lengths, strict=True)]
    assert mine == [row for _, row in truth] + [()] * (len(ids) - count)
    assert all((row[n:] == end).all() for row, n in zip(ids, lengths, strict=True))
    assert (scores[count:] == -np.inf).all()


@pytest.mark.share(2)
@pytest.mark.parametrize("power", [0.0, 1.0, -0.5])
def test_a_wide_beam_finds_the_best_of_all(power: float) -> None:
    """Room for all 16 sequences of 4 ids that do not end, of 31; and for more than there are."""
    model = Model(3, 1)
    first = np.array([0, 2])
    start = model.start(2)
    for width, most in ((16, 4), (12, 2)):
        found = wf.compile(
            lambda s, f, width=width, most=most: N.beam_search(
                model.step, s, f, beam_width=width, max_length=most, end_token=1,
                length_penalty=power,
            )
        )(start, first)  # fmt: skip
        for b in range(2):
            truth = every_sequence(model, start["hidden"][b], first[b], 3, most, 1, power)
            check(found, b, truth[:width], 1)


@pytest.mark.parametrize(("classes", "width", "power"), [(5, 1, 0.0), (6, 3, 0.6), (4, 9, 1.0)])
def test_as_in_python(classes: int, width: int, power: float) -> None:
    model, batch, end = Model(classes, classes, 2.0), 4, classes - 1
    first, start = np.arange(batch) % classes, model.start(batch)
    run = lambda s, f: N.beam_search(  # noqa: E731
        model.step, s, f, beam_width=width, max_length=7, end_token=end, length_penalty=power
    )
    found = wf.compile(run)(start, first)
    for b in range(batch):
        truth = beam_in_python(model, start["hidden"][b], first[b], width, 7, end, power)
        check(found, b, truth, end)
    if width == 3:
        eager = run(start, first)
        np.testing.assert_array_equal(eager.ids, found.ids)
        with wf.Graph().as_default(), wf.Session() as session:
            hidden = wf.placeholder(wf.float64, [None, 5])
            count, ids = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.int64, [None])
            fetches = run({"hidden": hidden, "count": (count,)}, ids)
            feeds = {hidden: start["hidden"], count: start["count"][0], ids: first}
            np.testing.assert_array_equal(session.run(fetches.ids, feeds), found.ids)


def test_it_ends_early() -> None:
    """As soon as nothing better can come: here the end is nearly certain after two ids."""
    logits = np.full((3, 3), -9.0)
    logits[[0, 1, 2], [1, 2, 2]] = 9.0  # 0, 1, then the end
    table, calls = wf.asarray(logits), []

    def step(ids: Any, state: Any) -> tuple[Any, Any]:
        wf.debug_callback(calls.append, ids)
        return wf.take(table, ids, axis=0), state

    for decode in (
        lambda: N.beam_search(step, (), [0], beam_width=2, max_length=50, end_token=2).ids[:, 0],
        lambda: N.greedy_decode(step, (), [0], max_length=50, end_token=2).ids,
        lambda: N.sample_decode(step, (), [0], wf.random.key(0), max_length=50, end_token=2).ids,
    ):
        calls.clear()
        assert wf.compile(decode)()[0, :3].numpy().tolist() == [1, 2, 2]
        assert 2 <= len(calls) <= 4


def test_a_state_that_is_a_cache_follows_its_sequences() -> None:
    """Attention over what has been decoded: the scores are those of the whole sequences."""
    rng = np.random.default_rng(2)
    layer = N.MultiHeadAttention(2, 8, rotary=True, input_size=8, dtype="float64")
    table, out = wf.asarray(rng.normal(size=(5, 8))), wf.asarray(rng.normal(size=(8, 5)) * 4)

    def step(ids: Any, cache: Any) -> tuple[Any, Any]:
        made, cache = layer(wf.take(table, ids, axis=0)[:, None], cache=cache)
        return made[:, 0] @ out, cache

    found = wf.compile(
        lambda: N.beam_search(
            step, layer.empty_cache(2, 6), [0, 3], beam_width=4, max_length=6, end_token=4
        )
    )()
    for b, first in enumerate((0, 3)):
        for ids, n, score in zip(*(part[b].numpy() for part in found), strict=True):
            x = wf.take(table, np.array([first, *ids[: n - 1]]), axis=0)[None]
            logs = log_softmax((layer(x, is_causal=True) @ out).numpy()[0])
            np.testing.assert_allclose(logs[np.arange(n), ids[:n]].sum(), score, rtol=1e-9)


# ------------------------------------------------------------------------------ greedy and sampled
@pytest.mark.share(2)
@pytest.mark.parametrize("end", [None, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_greedy(end: int | None, dtype: str) -> None:
    model, first = Model(6, 3), np.array([0, 1, 2, 3])
    start = model.start(4)
    step = lambda ids, s: (wf.astype(model.step(ids, s)[0], dtype), model.step(ids, s)[1])  # noqa: E731
    found = wf.compile(
        lambda s, f: N.greedy_decode(step, s, f, max_length=9, end_token=end)
    )(start, first)  # fmt: skip
    assert found.scores.dtype.name == dtype
    for b in range(4):
        hidden, ids, total = start["hidden"][b], [int(first[b])], 0.0
        while len(ids) <= 9 and not (len(ids) > 1 and ids[-1] == end):
            logs, hidden = model.logs(hidden, ids[-1])
            ids.append(int(logs.argmax()))
            total += logs.max()
        n = len(ids) - 1
        assert int(found.lengths[b]) == n
        assert found.ids[b].numpy().tolist() == ids[1:] + [end or 0] * (9 - n)
        np.testing.assert_allclose(found.scores[b], total, rtol=1e-5)


def test_sampling() -> None:
    """The scores are those of the ids; the same key draws the same; the first ids are drawn as
    often as the model says."""
    model, rows = Model(5, 3, 1.0), 4000
    start, first = model.start(1), np.zeros(rows, np.int64)
    start = {"hidden": np.repeat(start["hidden"], rows, 0), "count": (np.zeros(rows, np.int64),)}
    run = wf.compile(
        lambda key, t: N.sample_decode(
            model.step, start, first, key, max_length=4, end_token=3, temperature=t
        )
    )
    found = run(wf.random.key(1), 1.0)
    ids, lengths, scores = (part.numpy() for part in found)
    for b in range(20):
        n = lengths[b]
        truth = model.score(start["hidden"][b], 0, ids[b, :n])
        np.testing.assert_allclose(scores[b], truth, rtol=1e-9)
        assert n == 4 or ids[b, n - 1] == 3
        assert (ids[b, n:] == 3).all()
    np.testing.assert_array_equal(run(wf.random.key(1), 1.0).ids, ids)
    assert not np.array_equal(run(wf.random.key(2), 1.0).ids, ids)
    logs, _ = model.logs(start["hidden"][0], 0)
    for temperature, drawn in ((1.0, ids), (0.5, run(wf.random.key(3), 0.5).ids.numpy())):
        shares = np.bincount(drawn[:, 0], minlength=5) / rows
        np.testing.assert_allclose(shares, np.exp(log_softmax(logs / temperature)), atol=0.04)


def test_sampling_with_filters() -> None:
    model = Model(6, 4, 1.0)
    start, first = model.start(64), np.zeros(64, np.int64)
    run = lambda **more: N.sample_decode(  # noqa: E731
        model.step, start, first, wf.random.key(0), max_length=5, **more
    ).ids.numpy()
    greedy = N.greedy_decode(model.step, start, first, max_length=5).ids
    np.testing.assert_array_equal(run(top_k=1), greedy)
    np.testing.assert_array_equal(run(top_p=1e-6), greedy)
    ids = run(top_k=2)
    for b in range(64):
        hidden, last = start["hidden"][b], 0
        for c in ids[b]:
            logs, hidden = model.logs(hidden, last)
            assert c in np.argsort(logs)[-2:]
            last = c


@examples(60, deadline=None)
@given(st.data())
def test_filter_logits(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    x = rng.normal(size=(3, data.draw(st.integers(1, 12)))) * 2
    k = data.draw(st.none() | st.integers(1, 14))
    p = data.draw(st.none() | st.floats(0.05, 1.0))
    temperature = data.draw(st.sampled_from([0.3, 1.0, 2.0]))
    got = N.filter_logits(x, temperature=temperature, top_k=k, top_p=p).numpy()
    for row, mine in zip(x / temperature, got, strict=True):
        order = np.argsort(-row)
        kept = order if k is None else order[:k]
        if p is not None:
            shares = np.exp(log_softmax(row[kept]))
            kept = kept[: 1 + int((np.cumsum(shares)[:-1] < p).sum())]
        expected = np.full_like(row, -np.inf)
        expected[kept] = row[kept]
        np.testing.assert_allclose(mine, expected, rtol=1e-12)


def test_ties_stay_together() -> None:
    got = N.filter_logits([1.0, 2.0, 1.0, 0.0], top_k=2)
    np.testing.assert_array_equal(got, np.array([1.0, 2.0, 1.0, -math.inf], np.float32))


STEP = lambda ids, state: (wf.zeros([ids.shape[0], 4]), state)  # noqa: E731


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.beam_search(STEP, (), [0], beam_width=0, max_length=2, end_token=1),
         "InvalidArgumentError", "beam_width must be at least 1, got 0"),
        (lambda: N.beam_search(STEP, (), [0], beam_width=2, max_length=2, end_token=4),
         "InvalidArgumentError", "end_token 4 is out of range for 4 classes"),
        (lambda: N.beam_search(STEP, (), [0.5], beam_width=2, max_length=2, end_token=1),
         "TypeRuleError", r"start_ids are integers \[batch\]"),
        (lambda: N.beam_search(STEP, (0.0,), [0], beam_width=2, max_length=2, end_token=1),
         "ShapeError", "the first axis of each tensor of the state is the batch, 1"),
        (lambda: N.greedy_decode(STEP, (), [0], max_length=0), "InvalidArgumentError",
         "max_length must be"),
        (lambda: N.greedy_decode(STEP, (), [0], max_length=2, end_token=-1),
         "InvalidArgumentError", "end_token must not be negative"),
        (lambda: N.greedy_decode(lambda i, s: wf.zeros([1, 4]), (), [0], max_length=2),
         "TypeRuleError", r"step returned a Tensor, not \(logits, state\)"),
        (lambda: N.greedy_decode(lambda i, s: (wf.zeros([3, 4]), s), (), [0], max_length=2),
         "ShapeError", "for 1 sequences"),
        (lambda: N.filter_logits([1.0], temperature=0.0), "InvalidArgumentError", "temperature"),
        (lambda: N.filter_logits([1.0], top_k=0), "InvalidArgumentError", "top_k must be at"),
        (lambda: N.filter_logits([1.0], top_p=0.0), "InvalidArgumentError", "top_p must be above"),
        (lambda: N.filter_logits(1.0, top_k=1), "ShapeError", r"logits are \[..., classes\]"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
