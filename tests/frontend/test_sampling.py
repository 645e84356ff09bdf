"""Candidate samplers and the losses over what they draw, against TensorFlow 2.21's numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]


def _p(classes: Any, range_max: int) -> Array:
    c = np.asarray(classes, np.float64)
    return np.log((c + 2) / (c + 1)) / math.log(range_max + 1)


# ------------------------------------------------------------------------------------ samplers
@pytest.mark.parametrize("range_max", [1, 2, 7, 1000, 10**6])
def test_log_uniform_draws_by_its_probabilities(range_max: int) -> None:
    count = 20_000
    found = wf.nn.log_uniform_candidate_sampler(
        [[0]], 1, count, False, range_max, key=wf.random.key(range_max)
    )
    drawn = found.sampled_candidates.numpy()
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < range_max
    edges = np.unique(np.geomspace(1, range_max + 1, 12).astype(np.int64)) - 1
    for low, high in itertools.pairwise(edges):
        p = math.log((high + 1) / (low + 1)) / math.log(range_max + 1)
        share = np.mean((drawn >= low) & (drawn < high))
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / count) + 1e-9
    np.testing.assert_allclose(
        found.sampled_expected_count, _p(drawn, range_max) * count, rtol=1e-6
    )


def test_uniform_draws_alike() -> None:
    found = wf.nn.uniform_candidate_sampler([[3, 9]], 2, 20_000, False, 10, key=wf.random.key(1))
    counts = np.bincount(found.sampled_candidates.numpy(), minlength=10)
    assert np.abs(counts - 2000).max() < 5 * math.sqrt(1800)
    assert np.all(found.sampled_expected_count.numpy() == 2000)
    assert found.true_expected_count.tolist() == [[2000, 2000]]


@pytest.mark.parametrize(("wanted", "range_max"), [(1, 1), (5, 5), (30, 31), (64, 10_000)])
def test_different_classes_are_the_stream_without_repeats(wanted: int, range_max: int) -> None:
    """What is drawn is what a loop would draw that skips what it has; the counts are those for as
    many draws as it took."""
    key = wf.random.key(wanted)
    found = wf.nn.log_uniform_candidate_sampler([[0]], 1, wanted, True, range_max, key=key)
    drawn = found.sampled_candidates.numpy()
    assert len(set(drawn.tolist())) == wanted
    block = wanted + wanted // 2 + 16
    stream: list[int] = []
    seen: list[int] = []
    tries = 0
    for number in range(10_000):
        given = wf.random.fold_in(wf.random.fold_in(key, 0), number)
        power = np.exp(wf.random.uniform(given, (block,), wf.float64).numpy()
                       * math.log(range_max + 1))  # fmt: skip
        stream += np.minimum(power.astype(np.int64) - 1, range_max - 1).tolist()
        while tries < len(stream) and len(seen) < wanted:
            if stream[tries] not in seen:
                seen.append(stream[tries])
            tries += 1
        if len(seen) == wanted:
            break
    assert drawn.tolist() == seen
    p = _p(drawn, range_max)
    with np.errstate(divide="ignore"):
        expected = -np.expm1(tries * np.log1p(-p))
    np.testing.assert_allclose(found.sampled_expected_count, expected, rtol=1e-6)
    of_zero = -math.expm1(tries * math.log1p(-min(float(_p(0, range_max)), 1 - 1e-16)))
    np.testing.assert_allclose(found.true_expected_count, [[of_zero]], rtol=1e-6)


def test_same_everywhere() -> None:
    """Eagerly, compiled and in a session: a function of the key."""

    def draw(key: Any) -> Any:
        return wf.nn.log_uniform_candidate_sampler([[1], [4]], 1, 20, True, 100, key=key)

    key = wf.random.key(5)
    eager, compiled = draw(key), wf.compile(draw)(key)
    with wf.Graph().as_default(), wf.Session() as session:
        graph = session.run(list(draw(key)))
    for a, b, c in zip(eager, compiled, graph, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes() == np.asarray(c).tobytes()


def test_seeds() -> None:
    def draw(seed: int | None) -> list[int]:
        return wf.nn.uniform_candidate_sampler(
            [[0]], 1, 8, True, 10**6, seed
        ).sampled_candidates.tolist()

    wf.set_random_seed(3)
    first = [draw(7), draw(7), draw(8), draw(None)]
    wf.set_random_seed(3)
    assert [draw(7), draw(7), draw(8), draw(None)] == first
    assert len({tuple(d) for d in first}) == 4


def test_what_samplers_refuse() -> None:
    sample = wf.nn.log_uniform_candidate_sampler
    for numbers in ((0, 5, 9), (1, 0, 9), (1, 5, 0), (1, 5.0, 9), (True, 5, 9)):
        true, sampled, top = numbers
        with pytest.raises(wf.errors.InvalidArgumentError, match="at least 1"):
            sample([[0]], true, sampled, False, top)  # type: ignore[arg-type]
    with pytest.raises(wf.errors.InvalidArgumentError, match="no 10 different classes of 9"):
        sample([[0]], 1, 10, True, 9)
    for classes in ([0], [[0, 1]]):
        with pytest.raises(wf.errors.ShapeError, match="not \\[batch, num_true=1\\]"):
            sample(classes, 1, 3, True, 9)
    with pytest.raises(wf.errors.TypeRuleError):
        sample([[0.5]], 1, 3, True, 9)


# -------------------------------------------------------------------------------------- losses
#: Drawn, and its expected counts, by TensorFlow's log_uniform_candidate_sampler (unique, 9 of 23,
#: true classes as below).
DRAWN = [6, 21, 1, 9, 4, 2, 0, 10, 5]
TRUE_COUNTS = [
    [0.9332214, 0.421274096],
    [0.551033914, 0.777173817],
    [0.137831196, 0.647858679],
    [0.339938045, 0.339938045],
    [0.777173817, 0.9332214],
    [0.244666129, 0.477893353],
    [0.647858679, 0.284618378],
]
DRAWN_COUNTS = [
    0.37635529,
    0.143537089,
    0.777173817,
    0.284618378,
    0.477893353,
    0.647858679,
    0.9332214,
    0.263146877,
    0.421274096,
]
LABELS = [[0, 5], [3, 1], [22, 2], [7, 7], [1, 0], [11, 4], [2, 9]]
#: By TensorFlow: sampled_softmax_loss with and without remove_accidental_hits, nce_loss likewise.
SOFTMAX = {
    True: [5.37506437, 6.69206953, 5.3695488, 2.92763042, 4.67700768, 5.89109087, 5.20955706],
    False: [5.39896488, 6.69362831, 5.37686443, 2.92763042, 4.70286369, 5.89496422, 5.22129488],
}
NCE = {
    True: [17.1556606, 18.08535, 17.6672592, 23.3957138, 18.2914009, 17.5542889, 15.4143858],
    False: [19.1271057, 18.237999, 18.4273071, 23.3957138, 21.6908493, 18.0520477, 16.3242779],
}


def _given() -> tuple[Array, Array, Array]:
    """weights, biases, inputs"""
    k = np.arange(23 * 5, dtype=np.float64)
    w = np.sin(k * 0.7).reshape(23, 5)
    b = np.cos(np.arange(23) * 1.3)
    x = np.sin(np.arange(7 * 5) * 1.1 + 0.4).reshape(7, 5) * 1.5
    return tuple(a.astype(np.float32) for a in (w, b, x))  # type: ignore[return-value]


def test_tensorflows_expected_counts() -> None:
    """All of them say the same number of tries."""
    p = _p(DRAWN, 23)
    tries = np.log1p(-np.array(DRAWN_COUNTS)) / np.log1p(-p)
    count = round(float(tries[0]))
    np.testing.assert_allclose(tries, count, rtol=1e-4)
    np.testing.assert_allclose(TRUE_COUNTS, -np.expm1(count * np.log1p(-_p(LABELS, 23))), rtol=1e-6)


@pytest.mark.parametrize("hits", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_losses_are_tensorflows(hits: bool, parts: int) -> None:
    w, b, x = _given()
    values = (np.array(DRAWN), np.array(TRUE_COUNTS, np.float32),
              np.array(DRAWN_COUNTS, np.float32))  # fmt: skip
    weights, biases = [w[i::parts] for i in range(parts)], [b[i::parts] for i in range(parts)]
    for fn, want in ((wf.nn.sampled_softmax_loss, SOFTMAX), (wf.nn.nce_loss, NCE)):
        got = fn(weights, biases, LABELS, x, 9, 23, 2, values, remove_accidental_hits=hits)
        np.testing.assert_allclose(got, want[hits], rtol=2e-5)


def test_all_classes_drawn_is_the_full_softmax() -> None:
    """With every class drawn, hits removed and no correction to make, it is the loss itself."""
    w, b, x = _given()
    labels = np.arange(7)[:, None]
    ones = (np.arange(23), np.ones((7, 1), np.float32), np.ones(23, np.float32))
    got = wf.nn.sampled_softmax_loss(w, b, labels, x, 23, 23, 1, ones)
    want = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, 0], logits=x @ w.T + b)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_gradients_are_those_of_rows() -> None:
    w, b, x = _given()
    with wf.Graph().as_default():
        weights = wf.create_partitioned_variables(w.shape, [2, 1], w, name="w")
        biases = wf.create_partitioned_variables(b.shape, [2], b, name="b")
        values = (np.array(DRAWN), np.array(TRUE_COUNTS, np.float32),
                  np.array(DRAWN_COUNTS, np.float32))  # fmt: skip
        loss = wf.sum(
            wf.nn.sampled_softmax_loss(weights, biases, LABELS, x, 9, 23, 2, values,
                                       partition_strategy="div")
        )  # fmt: skip
        grads = wf.gradients(loss, [*weights, *biases])
        assert all(isinstance(g, wf.IndexedSlices) for g in grads)
        dense = [g.to_dense() for g in grads if isinstance(g, wf.IndexedSlices)]
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            got = session.run(dense)

    def whole(weights: Any, biases: Any) -> Any:
        return wf.sum(wf.nn.sampled_softmax_loss(weights, biases, LABELS, x, 9, 23, 2, values))

    gw, gb = wf.grad(whole, (0, 1))(wf.asarray(w), wf.asarray(b))
    np.testing.assert_allclose(np.concatenate(got[:2]), gw, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(got[2:]), gb, rtol=1e-5, atol=1e-6)
    seen = np.unique(np.concatenate([np.ravel(LABELS), DRAWN]))
    assert np.all(np.delete(gw.numpy(), seen, axis=0) == 0)


def test_what_losses_refuse() -> None:
    w, b, x = _given()
    with pytest.raises(wf.errors.ShapeError, match="labels of one class each"):
        wf.nn.sampled_softmax_loss(w, b, [1] * 7, x, 9, 23)
    with pytest.raises(wf.errors.InvalidArgumentError, match="num_sampled=8"):
        wf.nn.nce_loss(w, b, LABELS, x, 8, 23, 2, (DRAWN, TRUE_COUNTS, DRAWN_COUNTS))
