"""What metrics are made of, as functions without state: `confusion_matrix`, `in_top_k`, quotients,
which labels and predictions go together."""

from __future__ import annotations

from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.reduced_losses import check_alike, fitted_weights
from weft.frontend.ops.creation import ones
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    greater,
    greater_equal,
    isfinite,
    less,
    logical_and,
    multiply,
    not_equal,
    where,
)
from weft.frontend.ops.indexing import take_along_axis
from weft.frontend.ops.manipulation import expand_dims, reshape, squeeze
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_dtype,
    check_int,
    check_positive,
    expand,
    strong_tensor,
)
from weft.frontend.ops.reduction import count_nonzero, segment_sum
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import bool_, float64, int64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.locations import caller_location


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    dtype: object = None,
) -> Tensor:
    """How often label i was predicted as j -> [num_classes, num_classes], int64 by default; with
    weights their sums, float64 by default.

    Labels and predictions are integers 0 .. num_classes-1 of one shape; InvalidArgumentError for
    others, when it runs. num_classes is given, as in compiled code a shape is known before values
    are.

    >>> wf.metrics.confusion_matrix([0, 0, 1], [0, 1, 1], num_classes=2)
    Tensor([[1, 1],
            [0, 1]], dtype=int64)
    """
    op = "metrics.confusion_matrix"
    count = check_positive(op, num_classes, "num_classes")
    z, x = (as_classes(op, t) for t in alike(op, labels, predictions))
    target = check_dtype(dtype, int64 if weights is None else float64)
    if weights is None:
        return class_pairs(z, x, expand(ones((), dtype=target), x.shape), count)
    return class_pairs(z, x, fitted_weights(op, cast(x, target), weights), count)


def class_pairs(labels: Tensor, predictions: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The sums of the weights by label and prediction."""
    # else a pair out of range could be another's place
    inside = logical_and(
        logical_and(greater_equal(labels, 0), less(labels, classes)),
        logical_and(greater_equal(predictions, 0), less(predictions, classes)),
    )
    pair = add(multiply(labels, classes), predictions)
    place = reshape(where(inside, pair, -1), -1)
    return reshape(segment_sum(reshape(weights, -1), place, classes * classes), (classes, classes))


def in_top_k(predictions: TensorLike, targets: TensorLike, k: int) -> Tensor:
    """Whether fewer than k scores of the row are larger than that of its target -> bool (TF1's).

    predictions: scores, classes on the last axis. targets: integers, their shape without it. Of
    equal scores all are in the top k that one is in. False for a target out of range, and one whose
    score is infinite or NaN.

    >>> wf.metrics.in_top_k([[0.1, 0.9, 0.5], [0.7, 0.2, 0.1]], [2, 2], k=2)
    Tensor([ True, False], dtype=bool)
    """
    op = "metrics.in_top_k"
    scores, index = strong_tensor(predictions), as_classes(op, strong_tensor(targets))
    rows = scores.shape[:-1]
    if not scores.ndim or index.ndim != len(rows) or not all(map(same, index.shape, rows)):
        raise ShapeError(
            f"wf.{op}: targets of shape {format_shape(index.shape)} for predictions of shape "
            f"{format_shape(scores.shape)}",
            hint="targets have the shape of the predictions without the last axis",
            location=caller_location(),
        )
    number = check_int(op, k, "k")
    classes = scores.shape[-1]
    # a size that a feed decides is not compared with: gathers check it
    valid = greater_equal(index, 0)
    if isinstance(classes, int):
        valid = logical_and(valid, less(index, classes))
    picked = take_along_axis(scores, expand_dims(where(valid, index, 0), -1), axis=-1)
    ahead = count_nonzero(greater(scores, picked), axis=-1)
    score = squeeze(picked, -1)
    known = logical_and(valid, isfinite(score)) if scores.dtype.is_inexact else valid
    return logical_and(known, less(ahead, number))


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where the whole is 0."""
    nothing = equal(whole, 0)
    return where(nothing, 0, divide(part, where(nothing, 1, whole)))


def alike(op: str, labels: TensorLike, predictions: TensorLike) -> tuple[Tensor, Tensor]:
    """Labels and predictions as they are. ShapeError unless they have one shape."""
    z, x = strong_tensor(labels), strong_tensor(predictions)
    check_alike(op, z, x)
    return z, x


def is_yes(x: Tensor, threshold: float = 0.0) -> Tensor:
    """Which labels or predictions say yes: floating ones above the threshold, others but 0."""
    if x.dtype is bool_:
        return x
    return greater(x, threshold) if x.dtype.is_floating else not_equal(x, 0)


def as_classes(op: str, x: Tensor) -> Tensor:
    """`x` as int64. TypeRuleError for what is no integer."""
    if not (x.dtype.is_integer or x.dtype is bool_):
        raise TypeRuleError(
            f"wf.{op}: classes are integers, got {x.dtype.name}",
            hint="wf.argmax(scores, axis=-1) gives the class of each row",
            location=caller_location(),
        )
    return cast(x, int64)
