"""`wf.metrics` against scikit-learn and NumPy: of one batch, of many, eagerly, compiled and in
sessions; checkpoints, what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics as sk
from example_counts import examples
from hypothesis import given

import weft as wf

Array = np.ndarray[Any, Any]
M = wf.metrics
RNG = np.random.default_rng(5)
N, CLASSES = 60, 4
YES = RNG.integers(0, 2, N)
# in the middle between thresholds, so that none is between two scores that differ
GRID = (RNG.integers(0, 199, N) + 0.5) / 199
SCORES = np.where(RNG.random(N) < 0.5, GRID, np.clip(0.3 * GRID + 0.5 * YES, 0, 1))
SCORES = (np.floor(SCORES * 198.99) + 0.5) / 199
CLASS, GUESS = RNG.integers(0, CLASSES, N), RNG.integers(0, CLASSES, N)
ROWS = RNG.normal(size=(N, CLASSES))
X, Z = RNG.normal(size=N), RNG.normal(size=N)
W = RNG.integers(0, 3, N) * 0.5


def area_of_precision(z: Array, p: Array, w: Array) -> float:
    """Davis and Goadrich's curve, integrated numerically: between thresholds the false positives
    grow linearly with the true ones."""
    points = [(0.0, 0.0)]
    for t in np.linspace(0, 1, 200)[::-1]:
        found = p > (t if 0 < t < 1 else -1 if t == 0 else 2)
        points.append((float(w[found & (z == 1)].sum()), float(w[found & (z == 0)].sum())))
    total = 0.0
    for (tp0, fp0), (tp1, fp1) in pairwise(points):
        if tp1 > tp0:
            n = 20_000
            tp = tp0 + (np.arange(n) + 0.5) / n * (tp1 - tp0)
            fp = fp0 + (tp - tp0) * (fp1 - fp0) / (tp1 - tp0)
            total += float(np.mean(tp / (tp + fp))) * (tp1 - tp0)
    return total / float(w[z == 1].sum())


def best(z: Array, p: Array, w: Array, at: float, swapped: bool = False) -> float:
    fpr, tpr, _ = sk.roc_curve(z, p, sample_weight=w, drop_intermediate=False)
    fixed, wanted = (tpr, 1 - fpr) if swapped else (1 - fpr, tpr)
    return float(wanted[fixed >= at - 1e-12].max(initial=0))


def weighted(values: Array, w: Array) -> float:
    return float(np.average(values, weights=w))


def matrix(z: Array, x: Array, w: Array) -> Array:
    return np.asarray(sk.confusion_matrix(z, x, labels=range(CLASSES), sample_weight=w))


def iou(z: Array, x: Array, w: Array) -> float:
    there = np.unique(np.concatenate([z[w > 0], x[w > 0]]))
    return float(
        sk.jaccard_score(z, x, labels=there, average="macro", sample_weight=w, zero_division=0.0)
    )


Truth = Callable[[Array, Array, Array], Any]
#: Name and variant: a metric, labels, predictions, what it is with weights.
CASES: dict[str, tuple[Callable[[], Any], Array, Array, Truth]] = {
    "Accuracy": (
        M.Accuracy, CLASS, GUESS, lambda z, x, w: sk.accuracy_score(z, x, sample_weight=w),
    ),
    "TopKAccuracy": (
        lambda: M.TopKAccuracy(2), CLASS, ROWS,
        lambda z, x, w: sk.top_k_accuracy_score(
            z, x, k=2, labels=range(CLASSES), sample_weight=w
        ),
    ),
    "MeanSquaredError": (
        M.MeanSquaredError, Z, X, lambda z, x, w: sk.mean_squared_error(z, x, sample_weight=w),
    ),
    "RootMeanSquaredError": (
        M.RootMeanSquaredError, Z, X,
        lambda z, x, w: sk.root_mean_squared_error(z, x, sample_weight=w),
    ),
    "MeanAbsoluteError": (
        M.MeanAbsoluteError, Z, X, lambda z, x, w: sk.mean_absolute_error(z, x, sample_weight=w),
    ),
    "Precision": (
        M.Precision, YES, SCORES,
        lambda z, x, w: sk.precision_score(z, x > 0.5, sample_weight=w),
    ),
    "Precision 0.75": (
        lambda: M.Precision(0.75), YES, SCORES,
        lambda z, x, w: sk.precision_score(z, x > 0.75, sample_weight=w),
    ),
    "Recall": (
        M.Recall, YES, SCORES, lambda z, x, w: sk.recall_score(z, x > 0.5, sample_weight=w),
    ),
    "Recall of integers": (
        M.Recall, YES, YES[::-1].copy(), lambda z, x, w: sk.recall_score(z, x, sample_weight=w),
    ),
    "AUC": (M.AUC, YES, SCORES, lambda z, x, w: sk.roc_auc_score(z, x, sample_weight=w)),
    "AUC PR": (lambda: M.AUC(curve="PR"), YES, SCORES, area_of_precision),
    "SensitivityAtSpecificity": (
        lambda: M.SensitivityAtSpecificity(0.7), YES, SCORES,
        lambda z, x, w: best(z, x, w, 0.7),
    ),
    "SpecificityAtSensitivity": (
        lambda: M.SpecificityAtSensitivity(0.6), YES, SCORES,
        lambda z, x, w: best(z, x, w, 0.6, swapped=True),
    ),
    "ConfusionMatrix": (lambda: M.ConfusionMatrix(CLASSES), CLASS, GUESS, matrix),
    "MeanIoU": (lambda: M.MeanIoU(CLASSES), CLASS, GUESS, iou),
    "MeanIoU of absent classes": (lambda: M.MeanIoU(9), CLASS, GUESS, iou),
}  # fmt: skip

PAIRS: dict[str, Callable[..., Any]] = {
    "Accuracy": M.accuracy, "TopKAccuracy": partial(M.top_k_accuracy, k=2),
    "MeanSquaredError": M.mean_squared_error, "RootMeanSquaredError": M.root_mean_squared_error,
    "MeanAbsoluteError": M.mean_absolute_error, "Precision": M.precision,
    "Precision 0.75": partial(M.precision, threshold=0.75), "Recall": M.recall,
    "Recall of integers": M.recall, "AUC": M.auc, "AUC PR": partial(M.auc, curve="PR"),
    "SensitivityAtSpecificity": lambda z, x, w: M.sensitivity_at_specificity(z, x, 0.7, w),
    "SpecificityAtSensitivity": lambda z, x, w: M.specificity_at_sensitivity(z, x, 0.6, w),
    "ConfusionMatrix": lambda z, x, w: M.streaming_confusion_matrix(z, x, CLASSES, w),
    "MeanIoU": lambda z, x, w: M.mean_iou(z, x, CLASSES, w),
    "MeanIoU of absent classes": lambda z, x, w: M.mean_iou(z, x, 9, w),
}  # fmt: skip
CUTS = [slice(0, 17), slice(17, 40), slice(40, N)]


@pytest.mark.share(8)
@pytest.mark.parametrize("name", CASES)
def test_of_one_batch(name: str) -> None:
    """`compute`, eagerly and compiled, with and without weights; the sums stay 0."""
    make, z, x, truth = CASES[name]
    metric = make()
    expected, plain = truth(z, x, W), truth(z, x, np.ones(N))
    np.testing.assert_allclose(metric.compute(z, x, W), expected, rtol=2e-6)
    np.testing.assert_allclose(metric.compute(z, x), plain, rtol=2e-6)
    np.testing.assert_allclose(wf.compile(metric.compute)(z, x, W), expected, rtol=2e-6)
    assert all(not v.numpy().any() for v in metric.variables())


@pytest.mark.share(8)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_of_many_batches(name: str, way: str) -> None:
    """What `update` gives after each batch is that of all so far; `reset` begins again."""
    make, z, x, truth = CASES[name]
    metric = make()
    update = wf.compile(metric.update) if way == "compiled" else metric.update
    for _ in range(2):
        for cut in CUTS:
            so_far = slice(0, cut.stop)
            expected = truth(z[so_far], x[so_far], W[so_far])
            np.testing.assert_allclose(update(z[cut], x[cut], W[cut]), expected, rtol=2e-6)
            np.testing.assert_allclose(metric.result(), expected, rtol=2e-6)
        metric.reset()
        assert all(not v.numpy().any() for v in metric.variables())


@pytest.mark.share(8)
@pytest.mark.parametrize("name", CASES)
def test_pairs_in_a_session(name: str) -> None:
    """TensorFlow 1's: value before, update op after; sizes of batches that only a feed has."""
    _, z, x, truth = CASES[name]
    with wf.Graph().as_default() as graph, wf.Session() as session:
        fed = [wf.placeholder(a.dtype, [None, *a.shape[1:]]) for a in (z, x, W)]
        value, update_op = PAIRS[name](*fed)
        assert len(graph.local_variables) == len(CASES[name][0]().variables())
        begin = wf.tf1.local_variables_initializer()
        before: Any = None
        for _ in range(2):
            session.run(begin)
            for cut in CUTS:
                so_far = slice(0, cut.stop)
                feeds = dict(zip(fed, (z[cut], x[cut], W[cut]), strict=True))
                held, after = session.run([value, update_op], feeds)
                expected = truth(z[so_far], x[so_far], W[so_far])
                np.testing.assert_allclose(after, expected, rtol=2e-6)
                if cut.start:
                    np.testing.assert_allclose(held, before, rtol=2e-6)
                else:
                    assert not np.any(held)
                before = after
            np.testing.assert_allclose(session.run(value), before, rtol=2e-6)


def test_every_metric_has_a_case() -> None:
    others = {"Comparison", "Mean", "Metric", "Streaming", "confusion_matrix", "in_top_k", "mean"}
    classes = {n for n in M.__all__ if n[0].isupper()} - others
    assert {n.split()[0] for n in CASES} == classes
    assert PAIRS.keys() == CASES.keys()
    assert len([n for n in M.__all__ if n[0].islower()]) - 3 == len(classes)


@examples(30, deadline=None)
@given(st.data())
def test_batches_add_up(data: st.DataObject) -> None:
    """However the data are cut, empty batches among them, the result is the same."""
    name = data.draw(st.sampled_from(sorted(CASES)))
    make, z, x, truth = CASES[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, N), max_size=4)))
    metric = make()
    for low, high in zip([0, *cuts], [*cuts, N], strict=True):
        metric.update(z[low:high], x[low:high], W[low:high])
    np.testing.assert_allclose(metric.result(), truth(z, x, W), rtol=2e-6)


# ------------------------------------------------------------------------------------------- mean
def test_mean() -> None:
    for weights in (None, W, 2.0):
        metric = M.Mean()
        for cut in CUTS:
            metric.update(X[cut], weights if not isinstance(weights, np.ndarray) else weights[cut])
        expected = np.average(X, weights=weights if isinstance(weights, np.ndarray) else None)
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
    rows = RNG.normal(size=(5, 3))
    got = M.Mean().compute(rows, [[1.0], [0.0], [2.0], [0.0], [1.0]])
    np.testing.assert_allclose(got, np.average(rows.mean(1), weights=[1, 0, 2, 0, 1]), rtol=1e-6)
    assert float(M.Mean().compute([1.0, np.nan], [1.0, 0.0])) == 1
    with wf.Graph().as_default(), wf.Session() as session:
        value, update_op = M.mean(wf.placeholder(wf.float32, [None], name="x"))
        session.run(wf.tf1.local_variables_initializer())
        assert [session.run(update_op, {"x": [v]}) for v in (1, 2, 6)] == [1, 1.5, 3]
        assert session.run(value) == 3


def test_counts_beyond_what_float32_holds() -> None:
    """2^24 + 1 is no float32; and the number of elements is exact in one batch, too."""
    metric = M.Accuracy()
    for part in metric.variables():
        part.assign(2.0**24)
    for _ in range(4):
        metric.update([1, 1], [1, 0])
    total, count = (float(v) for v in metric.variables())
    assert (total, count) == (2.0**24 + 4, 2.0**24 + 8)


def test_of_nothing() -> None:
    for make, _, _, _ in CASES.values():
        assert not np.any(make().result())
    assert float(M.Precision().compute([1, 1], [0.1, 0.2])) == 0
    assert float(M.AUC().compute([1, 1], [0.1, 0.2])) == 0
    with np.testing.assert_no_warnings():
        assert float(M.AUC(curve="PR").compute([0, 0], [0.1, 0.2])) == 0


def test_predictions_outside_of_0_and_1_count_at_the_ends() -> None:
    got = M.AUC().compute([0, 1, 0, 1], [-3.0, 2.0, 0.25, 0.75])
    assert float(got) == 1


# ---------------------------------------------------------------------------------- plain functions
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_confusion_matrix(way: str) -> None:
    call = lambda z, x, w: M.confusion_matrix(z, x, CLASSES, w)  # noqa: E731
    got = (wf.compile(call) if way == "compiled" else call)(CLASS, GUESS, W)
    np.testing.assert_allclose(got, matrix(CLASS, GUESS, W), rtol=1e-12)
    counts = M.confusion_matrix(CLASS, GUESS, CLASSES)
    assert counts.dtype is wf.int64
    np.testing.assert_array_equal(counts, sk.confusion_matrix(CLASS, GUESS))
    assert M.confusion_matrix([True], [False], 2, dtype=wf.float32).dtype is wf.float32
    for wrong in ([4], [-1]):
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of range"):
            M.confusion_matrix(wrong, [0], CLASSES)
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of range"):
            M.confusion_matrix([0], wrong, CLASSES)


def top_k(scores: Array, targets: Array, k: int) -> Array:
    """Row by row, as TensorFlow's documentation has it."""
    found = []
    for row, t in zip(scores, targets, strict=True):
        inside = 0 <= t < len(row) and np.isfinite(row[t])
        found.append(bool(inside) and int((row > row[t]).sum()) < k)
    return np.array(found, bool)


@examples(60, deadline=None)
@given(st.data())
def test_in_top_k(data: st.DataObject) -> None:
    """With ties, infinite scores, NaN, and targets out of range."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    rows, classes = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 5))
    scores = rng.choice([0.0, 1.0, 2.0, np.inf, -np.inf, np.nan], (rows, classes))
    targets, k = rng.integers(-2, classes + 2, rows), data.draw(st.integers(0, 6))
    expected = top_k(scores, targets, k)
    np.testing.assert_array_equal(M.in_top_k(scores, targets, k), expected)
    if data.draw(st.integers(0, 4)) == 0:
        call = wf.compile(lambda x, t: M.in_top_k(x, t, k))
        np.testing.assert_array_equal(call(scores, targets), expected)


# ------------------------------------------------------------------------------ where they are used
def test_in_a_training_step_without_warnings() -> None:
    """The sums are float64; a model of float32 stays what it was."""
    w = wf.Variable(np.zeros(3, np.float32))
    accuracy, area, mean = M.Accuracy(), M.AUC(), M.Mean()
    optimizer = wf.train.SGD(0.5)
    x = RNG.normal(size=(50, 3)).astype(np.float32)
    z = (x @ [1.0, -2.0, 0.5] > 0).astype(np.int64)

    @wf.compile
    def step(x: Any, z: Any) -> Any:
        logits = x @ w
        loss = wf.losses.sigmoid_cross_entropy(z, logits)
        optimizer.minimize(loss)
        area.update(z, wf.sigmoid(logits))
        mean.update(loss)
        accuracy.update(z, wf.astype(logits > 0, wf.int64))
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = [float(step(x, z)) for _ in range(20)]
    np.testing.assert_allclose(mean.result(), np.mean(losses), rtol=1e-6)
    assert float(accuracy.result()) > 0.9
    assert float(area.result()) > 0.9


def test_without_float64() -> None:
    metric = M.AUC(dtype=wf.float32)
    step = wf.compile(metric.update, x64=False)
    expected = sk.roc_auc_score(YES, SCORES)
    np.testing.assert_allclose(step(YES, SCORES.astype(np.float32)), expected, rtol=1e-6)


def test_objects_in_a_graph() -> None:
    """Made there, and made outside; `reset` is an effect."""
    outside = M.Mean("outside")
    outside.update([9.0])
    with wf.Graph().as_default() as graph, wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        inside = M.Mean("inside")
        assert graph.local_variables == inside.variables()
        update, also = inside.update(x), outside.update(x)
        reset = inside.reset()
        session.run(wf.tf1.local_variables_initializer())
        assert session.run([update, also], {x: [3.0]}) == [3, 6]
        session.run(reset)
        assert session.run(update, {x: [5.0]}) == 5
    assert float(outside.result()) == 6


def test_checkpoints(tmp_path: Path) -> None:
    metric, other = M.MeanIoU(CLASSES), M.MeanIoU(CLASSES)
    metric.update(CLASS[:20], GUESS[:20])
    saver = wf.train.Saver({"iou": metric.variables()[0]})
    path = saver.save(None, tmp_path / "model")
    wf.train.Saver({"iou": other.variables()[0]}).restore(None, path)
    for m in (metric, other):
        m.update(CLASS[20:], GUESS[20:])
        np.testing.assert_allclose(m.result(), iou(CLASS, GUESS, np.ones(N)), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: M.Accuracy().update([1, 2], [[1], [2]]), "ShapeError", "metrics.Accuracy: labels"),
        (lambda: M.Mean().update([[1.0]], [1.0]), "ShapeError", "metrics.Mean: weights of shape"),
        (lambda: M.AUC(1), "InvalidArgumentError", "num_thresholds must be at least 2, got 1"),
        (lambda: M.AUC(curve="roc"), "InvalidArgumentError", "neither 'ROC' nor 'PR'"),
        (lambda: M.SensitivityAtSpecificity(1.5), "InvalidArgumentError", "the specificity must"),
        (lambda: M.SpecificityAtSensitivity("a"), "InvalidArgumentError", "the sensitivity must"),
        (lambda: M.TopKAccuracy(0), "InvalidArgumentError", "k must be at least 1"),
        (lambda: M.MeanIoU(2.5), "InvalidArgumentError", "num_classes"),
        (lambda: M.MeanIoU(2).update([0.5], [0.5]), "TypeRuleError", "classes are integers"),
        (lambda: M.MeanIoU(2).update([2], [0]), "InvalidArgumentError", "out of range"),
        (lambda: M.in_top_k([[1.0]], [[0]], 1), "ShapeError", "targets of shape"),
        (lambda: M.confusion_matrix([0], [0], 0), "InvalidArgumentError", "at least 1, got 0"),
        (lambda: M.Mean(dtype=wf.int32), "TypeRuleError", "sums are floating, not int32"),
        (lambda: M.accuracy([1], [1]), "FailedPreconditionError", r"m = wf.metrics.Accuracy"),
        (lambda: wf.compile(lambda: M.mean([1.0]))(), "FailedPreconditionError", "none is being"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
