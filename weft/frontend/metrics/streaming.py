"""TensorFlow 1's metrics: functions that make a metric in the graph being built, and give a pair.

`value` is the metric of what was added before, `update_op` adds a batch and gives the metric after
it. `wf.tf1.local_variables_initializer()` begins again. The formulas are those of the classes in
`metric.py`; where TensorFlow 1's differ, the class says so. FailedPreconditionError outside of a
graph, where the classes are what to use."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import current_trace, graph_around
from weft.frontend.metrics import metric as classes
from weft.frontend.ops.promotion import TensorLike
from weft.ir.errors import FailedPreconditionError
from weft.ir.locations import caller_location


class Streaming(NamedTuple):
    """What the functions here give, to be unpacked.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     x = wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.mean(x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     for batch in ([1.0, 2.0], [6.0]):
    ...         print(session.run(update_op, {x: batch}))
    ...     print(session.run(value))
    1.5
    3.0
    3.0
    """

    value: Tensor
    update_op: Tensor


def _streaming(name: str, metric: classes.Mean | classes.Comparison, *batch: Any) -> Streaming:
    """The pair of a metric that is new. FailedPreconditionError outside of a graph."""
    trace = graph_around(current_trace())
    if trace is None or trace.root().kind != "graph":
        kind = type(metric).__name__
        raise FailedPreconditionError(
            f"wf.metrics.{name} adds a metric to a graph, and none is being built",
            hint=f"elsewhere make m = wf.metrics.{kind}(...) once, and call m.update(...)",
            location=caller_location(),
        )
    value = metric.result()  # read before the update: it does not wait for it
    return Streaming(value, metric.update(*batch))


def mean(
    values: TensorLike, weights: TensorLike | None = None, name: str | None = None
) -> Streaming:
    """The pair of `Mean` (TF1's metrics.mean).

    >>> with wf.Graph().as_default():
    ...     value, update_op = wf.metrics.mean(wf.placeholder(wf.float32, [None]))
    ...     print(value.shape, update_op.dtype)
    () weft.float32
    """
    return _streaming("mean", classes.Mean(name or "mean"), values, weights)


def accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `Accuracy` (TF1's metrics.accuracy).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.int64, [None])
    ...     value, update_op = wf.metrics.accuracy(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 1, 1], x: [0, 1, 0]}))
    0.6666667
    """
    metric = classes.Accuracy(name or "accuracy")
    return _streaming("accuracy", metric, labels, predictions, weights)


def top_k_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    k: int = 5,
    name: str | None = None,
) -> Streaming:
    """The pair of `TopKAccuracy`; labels are integers, predictions scores of classes.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None, 3])
    ...     value, update_op = wf.metrics.top_k_accuracy(z, x, k=2)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [1, 2], x: [[0.1, 0.9, 0.5], [0.7, 0.2, 0.1]]}))
    0.5
    """
    metric = classes.TopKAccuracy(k, name or "top_k_accuracy")
    return _streaming("top_k_accuracy", metric, labels, predictions, weights)


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `MeanSquaredError` (TF1's).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.float32, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.mean_squared_error(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0.0, 1.0], x: [2.0, 1.0]}))
    2.0
    """
    metric = classes.MeanSquaredError(name or "mean_squared_error")
    return _streaming("mean_squared_error", metric, labels, predictions, weights)


def root_mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `RootMeanSquaredError` (TF1's).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.float32, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.root_mean_squared_error(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0.0, 0.0], x: [3.0, 3.0]}))
    3.0
    """
    metric = classes.RootMeanSquaredError(name or "root_mean_squared_error")
    return _streaming("root_mean_squared_error", metric, labels, predictions, weights)


def mean_absolute_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `MeanAbsoluteError` (TF1's).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.float32, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.mean_absolute_error(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0.0, 1.0], x: [2.0, 1.0]}))
    1.0
    """
    metric = classes.MeanAbsoluteError(name or "mean_absolute_error")
    return _streaming("mean_absolute_error", metric, labels, predictions, weights)


def precision(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    threshold: float = 0.5,
    name: str | None = None,
) -> Streaming:
    """The pair of `Precision` (TF1's, which has no threshold: there all but 0 is positive).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.precision(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [1, 1, 0, 0], x: [0.9, 0.2, 0.8, 0.1]}))
    0.5
    """
    metric = classes.Precision(threshold, name or "precision")
    return _streaming("precision", metric, labels, predictions, weights)


def recall(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    threshold: float = 0.5,
    name: str | None = None,
) -> Streaming:
    """The pair of `Recall` (TF1's, which has no threshold: there all but 0 is positive).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.recall(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [1, 1, 1, 0], x: [0.9, 0.2, 0.2, 0.1]}))
    0.33333334
    """
    metric = classes.Recall(threshold, name or "recall")
    return _streaming("recall", metric, labels, predictions, weights)


def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    curve: str = "ROC",
    name: str | None = None,
) -> Streaming:
    """The pair of `AUC` (TF1's; its "PR" is summed by trapezoids by default, this one is not).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.auc(z, x)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 0, 1, 1], x: [0.1, 0.4, 0.35, 0.8]}))
    0.75
    """
    metric = classes.AUC(num_thresholds, curve, name or "auc")
    return _streaming("auc", metric, labels, predictions, weights)


def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    name: str | None = None,
) -> Streaming:
    """The pair of `SensitivityAtSpecificity` (TF1's takes the threshold whose specificity is
    nearest).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.sensitivity_at_specificity(z, x, specificity=1.0)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 0, 1, 1], x: [0.1, 0.5, 0.3, 0.8]}))
    0.5
    """
    metric = classes.SensitivityAtSpecificity(
        specificity, num_thresholds, name or "sensitivity_at_specificity"
    )
    return _streaming("sensitivity_at_specificity", metric, labels, predictions, weights)


def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    name: str | None = None,
) -> Streaming:
    """The pair of `SpecificityAtSensitivity` (TF1's takes the threshold whose sensitivity is
    nearest).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.float32, [None])
    ...     value, update_op = wf.metrics.specificity_at_sensitivity(z, x, sensitivity=1.0)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 0, 1, 1], x: [0.1, 0.5, 0.3, 0.8]}))
    0.5
    """
    metric = classes.SpecificityAtSensitivity(
        sensitivity, num_thresholds, name or "specificity_at_sensitivity"
    )
    return _streaming("specificity_at_sensitivity", metric, labels, predictions, weights)


def streaming_confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `ConfusionMatrix`; `confusion_matrix` is that of one batch.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.int64, [None])
    ...     value, update_op = wf.metrics.streaming_confusion_matrix(z, x, num_classes=2)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 0, 1], x: [0, 1, 1]}))
    [[1. 1.]
     [0. 1.]]
    """
    metric = classes.ConfusionMatrix(num_classes, name or "streaming_confusion_matrix")
    return _streaming("streaming_confusion_matrix", metric, labels, predictions, weights)


def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    name: str | None = None,
) -> Streaming:
    """The pair of `MeanIoU` (TF1's).

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     z, x = wf.placeholder(wf.int64, [None]), wf.placeholder(wf.int64, [None])
    ...     value, update_op = wf.metrics.mean_iou(z, x, num_classes=2)
    ...     session.run(wf.tf1.local_variables_initializer())
    ...     print(session.run(update_op, {z: [0, 0, 1, 1], x: [0, 1, 1, 1]}))
    0.5833333
    """
    metric = classes.MeanIoU(num_classes, name or "mean_iou")
    return _streaming("mean_iou", metric, labels, predictions, weights)
