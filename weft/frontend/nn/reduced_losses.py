"""`wf.losses`: losses that reduce to one number, with weights, and penalties of parameters.

As TensorFlow 1's `tf.losses`, with those of Keras, Optax and PyTorch that it has not. Each loss
takes labels and predictions of one shape (a Python number goes with any), which promote as in
arithmetic; bools and integers become the default float, and 16-bit floats are computed in float32.
A loss of every element has their shape, one of classes or vectors (`axis` -1 in each) gives one
loss for a row; then comes `compute_weighted_loss`. Errors, at the caller's line: ShapeError,
InvalidArgumentError, TypeRuleError.
"""

from __future__ import annotations

import builtins
import math
import numbers
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.nn.activations import log_softmax
from weft.frontend.nn.losses import (
    paired,
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    less,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    square,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import size
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    expand,
    inexact_tensor,
    is_scalar,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import max, mean, sum, var
from weft.frontend.ops.special import (
    exp,
    expm1,
    log,
    log1p,
    pow,
    rsqrt,
    sigmoid,
    sinh,
    sqrt,
    xlogy,
)
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location

_LN2: Final = math.log(2.0)


class Reduction:
    """How a loss becomes one number; the values are the strings that `reduction=` takes.

    NONE: not at all. SUM: the sum of losses times weights. SUM_BY_NONZERO_WEIGHTS (the default, as
    in TensorFlow 1): that over the number of losses whose weight is not 0. MEAN: that over the sum
    of the weights. SUM_OVER_BATCH_SIZE: that over the number of losses. Without weights the last
    three are the mean. Of no losses at all each is 0.

    >>> for how in (wf.losses.Reduction.SUM, "mean", "sum_over_batch_size"):
    ...     print(wf.losses.compute_weighted_loss([1.0, 2.0], [4.0, 0.0], reduction=how))
    Tensor(4., dtype=float32)
    Tensor(1., dtype=float32)
    Tensor(2., dtype=float32)
    """

    NONE: Final = "none"
    SUM: Final = "sum"
    MEAN: Final = "mean"
    SUM_OVER_BATCH_SIZE: Final = "sum_over_batch_size"
    SUM_BY_NONZERO_WEIGHTS: Final = "sum_by_nonzero_weights"


_DEFAULT: Final = Reduction.SUM_BY_NONZERO_WEIGHTS
_REDUCTIONS: Final = ("none", "sum", "mean", "sum_over_batch_size", "sum_by_nonzero_weights")


# ------------------------------------------------------------------------ weights and reductions
@runs_native
def compute_weighted_loss(
    losses: TensorLike, weights: TensorLike = 1.0, reduction: str = _DEFAULT
) -> Tensor:
    """`losses` times `weights`, reduced as `Reduction` says (TF1's name).

    weights: a number, or a tensor with as many axes as the losses, each of their size or of size 1:
    rows of a matrix are weighed by [rows, 1]. A loss whose weight is 0 does not count, even if it
    is infinite or NaN; where all weights are 0 the mean is 0.

    >>> wf.losses.compute_weighted_loss([[1.0, 3.0], [5.0, np.inf]], [[1.0, 1.0], [0.5, 0.0]])
    Tensor(2.1666667, dtype=float32)
    """
    op = "losses.compute_weighted_loss"
    each = inexact_tensor(losses, op)
    return _reduced(op, each, weights, reduction, each.dtype)


def _reduced(op: str, losses: Tensor, weights: TensorLike, reduction: str, dtype: DType) -> Tensor:
    """The reduction, in `dtype`. It is computed in at least float32: a mean may be within the range
    of 16 bits where losses are not."""
    if reduction not in _REDUCTIONS:
        raise InvalidArgumentError(
            f"wf.{op}: reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}",
            location=caller_location(),
        )
    wide = widened(losses)
    if is_scalar(weights) and weights == 1:
        if reduction == "none":
            return cast(wide, dtype)
        return cast(sum(wide) if reduction == "sum" else _mean(wide), dtype)
    weight = fitted_weights(op, wide, weights)
    weighted = where(equal(weight, 0), 0, multiply(wide, weight))
    if reduction == "none":
        return cast(weighted, dtype)
    if reduction == "sum_over_batch_size":
        return cast(_mean(weighted), dtype)
    total = sum(weighted)
    if reduction == "sum":
        return cast(total, dtype)
    counted = weight if reduction == "mean" else cast(not_equal(weight, 0), wide.dtype)
    by = sum(counted)
    nothing = equal(by, 0)
    return cast(where(nothing, 0, divide(total, where(nothing, 1, by))), dtype)


def _mean(x: Tensor) -> Tensor:
    """The mean; 0 of nothing, as with weights."""
    if builtins.all(isinstance(n, int) and n > 0 for n in x.shape):
        return mean(x)
    return where(equal(size(x), 0), 0, mean(x))


def fitted_weights(op: str, losses: Tensor, weights: TensorLike) -> Tensor:
    """The weights in the dtype and shape of the losses."""
    w = cast(strong_tensor(weights), losses.dtype)
    fits = w.ndim in (0, losses.ndim) and builtins.all(
        a == 1 or same(a, b) for a, b in zip(w.shape, losses.shape, strict=w.ndim > 0)
    )
    if not fits:
        raise ShapeError(
            f"wf.{op}: weights of shape {format_shape(w.shape)} for losses of shape "
            f"{format_shape(losses.shape)}",
            hint="weights are a number, or have an axis for each axis of the losses, of its size "
            "or of size 1, such as weights[:, None] for the rows of a matrix",
            location=caller_location(),
        )
    return expand(w, losses.shape)


def _pair(name: str, labels: TensorLike, predictions: TensorLike) -> tuple[Tensor, Tensor]:
    """Labels and predictions as floats of one dtype and one shape, 16-bit ones as they are.

    Ranks or sizes that differ are no broadcast: (n) with (n, 1) would be n * n losses.
    """
    op, z, x = f"losses.{name}", as_tensor(labels), as_tensor(predictions)
    if z.ndim and x.ndim:
        check_alike(op, z, x)
    return paired(op, labels, predictions)


def check_alike(op: str, labels: Tensor, predictions: Tensor) -> None:
    """ShapeError unless labels and predictions have one shape."""
    a, b = labels.shape, predictions.shape
    if len(a) != len(b) or not builtins.all(map(same, a, b)):
        raise ShapeError(
            f"wf.{op}: labels of shape {format_shape(a)} for predictions of shape "
            f"{format_shape(b)}",
            hint="both need one shape: wf.reshape or wf.expand_dims one of them",
            location=caller_location(),
        )


def _over_elements(
    name: str,
    labels: TensorLike,
    predictions: TensorLike,
    loss: Callable[[Tensor, Tensor], Tensor],
    weights: TensorLike,
    reduction: str,
) -> Tensor:
    """The reduction of `loss(labels, predictions)`, which is computed in at least float32."""
    z, x = _pair(name, labels, predictions)
    each = loss(widened(z), widened(x))
    return _reduced(f"losses.{name}", each, weights, reduction, x.dtype)


# ------------------------------------------------------------------------------- of each element
@runs_native
def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """(predictions - labels)^2 for each element.

    >>> wf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0])
    Tensor(2., dtype=float32)
    >>> wf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0], weights=[1.0, 0.5], reduction="sum")
    Tensor(2., dtype=float32)
    """
    loss = lambda z, x: square(subtract(x, z))  # noqa: E731
    return _over_elements("mean_squared_error", labels, predictions, loss, weights, reduction)


@runs_native
def absolute_difference(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """|predictions - labels| for each element (the mean absolute error).

    >>> wf.losses.absolute_difference([1.0, 2.0], [1.0, 4.0])
    Tensor(1., dtype=float32)
    """
    loss = lambda z, x: abs(subtract(x, z))  # noqa: E731
    return _over_elements("absolute_difference", labels, predictions, loss, weights, reduction)


@runs_native
def huber_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    delta: float = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """e^2 / 2 where |e| <= delta, else delta * |e| - delta^2 / 2, for e = predictions - labels.

    Huber 1964. InvalidArgumentError unless delta > 0.

    >>> wf.losses.huber_loss([0.0, 0.0], [0.5, 3.0], reduction="none")
    Tensor([0.125, 2.5  ], dtype=float32)
    """
    _at_least("huber_loss", "delta", delta, positive=True)

    def loss(z: Tensor, x: Tensor) -> Tensor:
        error = abs(subtract(x, z))
        near = minimum(error, delta)
        return add(multiply(square(near), 0.5), multiply(subtract(error, near), delta))

    return _over_elements("huber_loss", labels, predictions, loss, weights, reduction)


@runs_native
def log_cosh(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """log(cosh(predictions - labels)): about e^2 / 2 near 0, |e| - log(2) far from it (Keras).

    >>> wf.losses.log_cosh([0.0, 0.0], [1.0, 100.0], reduction="none").numpy().round(3)
    array([ 0.434, 99.307], dtype=float32)
    """

    def loss(z: Tensor, x: Tensor) -> Tensor:
        error = subtract(x, z)
        small = less(abs(error), 1)
        near = sinh(multiply(where(small, error, 0), 0.5))
        far = abs(error)
        tail = subtract(add(far, log1p(exp(multiply(far, -2)))), _LN2)
        # cosh(e) = 1 + 2 sinh(e / 2)^2, in which nothing cancels
        return where(small, log1p(multiply(square(near), 2)), tail)

    return _over_elements("log_cosh", labels, predictions, loss, weights, reduction)


@runs_native
def log_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    reduction: str = _DEFAULT,
) -> Tensor:
    """-z * log(p + epsilon) - (1 - z) * log(1 - p + epsilon) for labels z and probabilities p.

    The binary cross entropy of probabilities; of logits `sigmoid_cross_entropy` is more exact.

    >>> wf.losses.log_loss([1.0, 0.0], [0.5, 0.25], reduction="none").numpy().round(3)
    array([0.693, 0.288], dtype=float32)
    """

    def loss(z: Tensor, p: Tensor) -> Tensor:
        positive = multiply(z, log(add(p, epsilon)))
        other = multiply(subtract(1, z), log(add(subtract(1, p), epsilon)))
        return negative(add(positive, other))

    return _over_elements("log_loss", labels, predictions, loss, weights, reduction)


@runs_native
def poisson(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    reduction: str = _DEFAULT,
) -> Tensor:
    """p - z * log(p + epsilon) for counts z and rates p: the negative log likelihood of a Poisson
    distribution without log(z!) (Keras).

    >>> wf.losses.poisson([1.0, 0.0], [1.0, 2.0], reduction="none").numpy().round(3)
    array([1., 2.], dtype=float32)
    """
    loss = lambda z, p: subtract(p, multiply(z, log(add(p, epsilon))))  # noqa: E731
    return _over_elements("poisson", labels, predictions, loss, weights, reduction)


@runs_native
def log_poisson(
    labels: TensorLike,
    log_predictions: TensorLike,
    weights: TensorLike = 1.0,
    compute_full_loss: bool = False,
    reduction: str = _DEFAULT,
) -> Tensor:
    """exp(c) - z * c for counts z and logs of rates c (TF1's nn.log_poisson_loss).

    compute_full_loss: plus Stirling's z * log(z) - z + log(2 pi z) / 2 for log(z!) where z > 1.

    >>> wf.losses.log_poisson([1.0, 2.0], [0.0, 1.0], reduction="none").numpy().round(3)
    array([1.   , 0.718], dtype=float32)
    """

    def loss(z: Tensor, c: Tensor) -> Tensor:
        least = subtract(exp(c), multiply(z, c))
        if not compute_full_loss:
            return least
        many = greater(z, 1)
        n = where(many, z, 1)
        root = multiply(log(multiply(n, 2 * math.pi)), 0.5)
        return add(least, where(many, add(subtract(multiply(n, log(n)), n), root), 0))

    return _over_elements("log_poisson", labels, log_predictions, loss, weights, reduction)


@runs_native
def hinge_loss(
    labels: TensorLike, logits: TensorLike, weights: TensorLike = 1.0, reduction: str = _DEFAULT
) -> Tensor:
    """max(0, 1 - y * logits) for y = 2 * label - 1; labels are 0 or 1 (TF1's).

    >>> wf.losses.hinge_loss([1.0, 0.0], [0.25, 0.5], reduction="none")
    Tensor([0.75, 1.5 ], dtype=float32)
    """
    return _over_elements("hinge_loss", labels, logits, _hinge, weights, reduction)


def _hinge(z: Tensor, x: Tensor) -> Tensor:
    sign = subtract(multiply(z, 2), 1)
    return maximum(subtract(1, multiply(sign, x)), 0)


@runs_native
def squared_hinge(
    labels: TensorLike, logits: TensorLike, weights: TensorLike = 1.0, reduction: str = _DEFAULT
) -> Tensor:
    """The square of `hinge_loss` of each element; labels are 0 or 1.

    >>> wf.losses.squared_hinge([1.0, 0.0], [0.5, 0.5], reduction="none")
    Tensor([0.25, 2.25], dtype=float32)
    """
    loss = lambda z, x: square(_hinge(z, x))  # noqa: E731
    return _over_elements("squared_hinge", labels, logits, loss, weights, reduction)


@runs_native
def sigmoid_cross_entropy(
    multi_class_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """`wf.nn.sigmoid_cross_entropy_with_logits` of each element.

    label_smoothing: labels become z * (1 - label_smoothing) + label_smoothing / 2; in [0, 1].

    >>> wf.losses.sigmoid_cross_entropy([1.0, 0.0], [0.0, -100.0]).numpy().round(3)
    np.float32(0.347)
    """
    smooth = _smoothing("sigmoid_cross_entropy", label_smoothing)

    def loss(z: Tensor, x: Tensor) -> Tensor:
        if smooth:
            z = add(multiply(z, 1 - smooth), smooth / 2)
        return sigmoid_cross_entropy_with_logits(labels=z, logits=x)

    return _over_elements(
        "sigmoid_cross_entropy", multi_class_labels, logits, loss, weights, reduction
    )


@runs_native
def sigmoid_focal_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    alpha: float | None = None,
    gamma: float = 2.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """a * (1 - q)^gamma * sigmoid cross entropy, q the probability of the label (Lin et al. 2017).

    For labels z and p = sigmoid(logits), q = z * p + (1 - z) * (1 - p) and a = alpha * z + (1 -
    alpha) * (1 - z), or 1 without alpha. Optax's sigmoid_focal_loss.

    >>> losses = wf.losses.sigmoid_focal_cross_entropy([1.0, 1.0], [0.0, 2.0], reduction="none")
    >>> losses.numpy().round(4)
    array([0.1733, 0.0018], dtype=float32)
    """
    _at_least("sigmoid_focal_cross_entropy", "gamma", gamma)

    def loss(z: Tensor, x: Tensor) -> Tensor:
        entropy = sigmoid_cross_entropy_with_logits(labels=z, logits=x)
        wrong = add(multiply(z, sigmoid(negative(x))), multiply(subtract(1, z), sigmoid(x)))
        out = multiply(entropy, _power(wrong, gamma))
        if alpha is None:
            return out
        return multiply(out, add(multiply(z, alpha), multiply(subtract(1, z), 1 - alpha)))

    name = "sigmoid_focal_cross_entropy"
    return _over_elements(name, labels, logits, loss, weights, reduction)


def _power(x: Tensor, exponent: float) -> Tensor:
    """x^exponent for x >= 0, with gradients that are finite at 0 where the limit is."""
    if exponent == 0:
        return multiply(x, 0) + 1
    return square(x) if exponent == 2 else pow(x, exponent)


# ------------------------------------------------------------------------- of classes and vectors
@runs_native
def softmax_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0.0,
    axis: int = -1,
    reduction: str = _DEFAULT,
) -> Tensor:
    """`wf.nn.softmax_cross_entropy_with_logits` of each row.

    label_smoothing: labels become z * (1 - label_smoothing) + label_smoothing / classes (Szegedy et
    al. 2016, section 7); in [0, 1].

    >>> wf.losses.softmax_cross_entropy([[1.0, 0.0]], [[0.0, 0.0]]).numpy().round(3)
    np.float32(0.693)
    """
    name = "softmax_cross_entropy"
    smooth = _smoothing(name, label_smoothing)
    z, x = _pair(name, onehot_labels, logits)
    along = check_axis(f"losses.{name}", axis, x.ndim)
    each = softmax_cross_entropy_with_logits(labels=z, logits=x, axis=along)
    spread = _spread(each, x, smooth, along)
    return _reduced(f"losses.{name}", spread, weights, reduction, x.dtype)


@runs_native
def sparse_softmax_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """`wf.nn.sparse_softmax_cross_entropy_with_logits` of each row: labels are integers 0 ..
    classes-1, the classes of the logits their last axis.

    label_smoothing: as for `softmax_cross_entropy`. Rows that are padding have weight 0, and any
    label that is valid.

    >>> logits = [[0.0, 0.0], [9.0, 0.0]]
    >>> wf.losses.sparse_softmax_cross_entropy([0, 1], logits, weights=[0.0, 1.0]).numpy().round(3)
    np.float32(9.0)
    """
    name = "sparse_softmax_cross_entropy"
    smooth = _smoothing(name, label_smoothing)
    x = inexact_tensor(logits, f"losses.{name}")
    each = sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)
    return _reduced(f"losses.{name}", _spread(each, x, smooth, -1), weights, reduction, x.dtype)


def _spread(each: Tensor, logits: Tensor, smooth: float, axis: int) -> Tensor:
    """The cross entropies with the part `smooth` of each label spread over all classes."""
    if not smooth:
        return each
    uniform = negative(mean(log_softmax(widened(logits), axis), axis))
    return add(multiply(widened(each), 1 - smooth), multiply(uniform, smooth))


@runs_native
def softmax_focal_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    alpha: float | None = None,
    gamma: float = 2.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """-alpha * sum(z * (1 - p)^gamma * log(p)) over the last axis, for p = softmax(logits).

    Lin et al. 2017 for several classes; Keras' categorical_focal_crossentropy, which takes alpha
    0.25 where none (that is 1) is given here.

    >>> wf.losses.softmax_focal_cross_entropy([[1.0, 0.0]], [[0.0, 0.0]]).numpy().round(4)
    np.float32(0.1733)
    """
    name = "softmax_focal_cross_entropy"
    _at_least(name, "gamma", gamma)

    def loss(z: Tensor, x: Tensor) -> Tensor:
        logs = log_softmax(x, -1)
        entropy = where(equal(z, 0), 0, multiply(z, logs))
        return multiply(entropy, _power(negative(expm1(logs)), gamma))

    factor = -1.0 if alpha is None else -alpha
    rows = lambda z, x: multiply(sum(loss(z, x), -1), factor)  # noqa: E731
    return _over_elements(name, onehot_labels, logits, rows, weights, reduction)


@runs_native
def categorical_hinge(
    onehot_labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """max(0, 1 + max((1 - z) * x) - sum(z * x)) over the last axis, labels z (Keras).

    >>> wf.losses.categorical_hinge([[0.0, 1.0]], [[0.5, 1.25]])
    Tensor(0.25, dtype=float32)
    """

    def loss(z: Tensor, x: Tensor) -> Tensor:
        right, wrong = sum(multiply(z, x), -1), max(multiply(subtract(1, z), x), -1)
        return maximum(add(subtract(wrong, right), 1), 0)

    return _over_elements("categorical_hinge", onehot_labels, predictions, loss, weights, reduction)


@runs_native
def kl_divergence(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    log_predictions: bool = False,
    reduction: str = _DEFAULT,
) -> Tensor:
    """sum(z * log(z / p)) over the last axis, for probabilities z and p (Kullback and Leibler).

    log_predictions: `predictions` are logs of p, such as `wf.nn.log_softmax` gives (PyTorch's and
    Optax's form). A class with z = 0 counts 0, one with p = 0 < z gives inf.

    >>> wf.losses.kl_divergence([[0.5, 0.5]], [[0.25, 0.75]]).numpy().round(4)
    np.float32(0.1438)
    """

    def loss(z: Tensor, p: Tensor) -> Tensor:
        nothing = equal(z, 0)
        logs = p if log_predictions else log(where(nothing, 1, p))
        cross = where(nothing, 0, multiply(z, where(nothing, 0, logs)))
        return sum(subtract(xlogy(z, z), cross), -1)

    return _over_elements("kl_divergence", labels, predictions, loss, weights, reduction)


@runs_native
def cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    axis: int = -1,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-12,
    reduction: str = _DEFAULT,
) -> Tensor:
    """1 - the cosine of the angle between the vectors along `axis`; one loss for each vector.

    The vectors need not have length 1, as TF1's must; squares of lengths are at least `epsilon`.

    >>> wf.losses.cosine_distance([[1.0, 0.0]], [[3.0, 4.0]]).numpy().round(3)
    np.float32(0.4)
    """
    name = "cosine_distance"

    def loss(z: Tensor, x: Tensor) -> Tensor:
        along = check_axis(f"losses.{name}", axis, x.ndim)
        lengths = [rsqrt(maximum(sum(square(t), along), epsilon)) for t in (z, x)]
        product = sum(multiply(z, x), along)
        return subtract(1, multiply(multiply(product, lengths[0]), lengths[1]))

    return _over_elements(name, labels, predictions, loss, weights, reduction)


# --------------------------------------------------------------------------- of pairs and triplets
@runs_native
def mean_pairwise_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """The mean of ((x_i - x_j) - (z_i - z_j))^2 over the pairs i != j of a row's elements (TF1).

    A row is everything but the first axis; it has at least two elements. One loss for each row.

    >>> wf.losses.mean_pairwise_squared_error([[0.0, 1.0]], [[0.0, 3.0]])
    Tensor(4., dtype=float32)
    """
    name = "mean_pairwise_squared_error"

    def loss(z: Tensor, x: Tensor) -> Tensor:
        if not x.ndim:
            raise ShapeError(
                f"wf.losses.{name} needs rows, got scalars", location=caller_location()
            )
        over = tuple(range(1, x.ndim))
        # of differences of pairs the mean square is twice the unbiased variance
        return multiply(var(subtract(x, z), over, correction=1), 2)

    return _over_elements(name, labels, predictions, loss, weights, reduction)


@runs_native
def margin_ranking_loss(
    labels: TensorLike,
    first: TensorLike,
    second: TensorLike,
    weights: TensorLike = 1.0,
    margin: float = 0.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """max(0, margin - label * (first - second)): label 1 where the first is to be larger, -1 where
    the second is (PyTorch's MarginRankingLoss).

    >>> wf.losses.margin_ranking_loss([1.0, -1.0], [0.0, 0.0], [2.0, 2.0], reduction="none")
    Tensor([2., 0.], dtype=float32)
    """
    name = "margin_ranking_loss"
    a, b = _pair(name, first, second)
    loss = lambda y, d: maximum(subtract(margin, multiply(y, d)), 0)  # noqa: E731
    return _over_elements(name, labels, subtract(a, b), loss, weights, reduction)


@runs_native
def contrastive_loss(
    labels: TensorLike,
    distances: TensorLike,
    weights: TensorLike = 1.0,
    margin: float = 1.0,
    reduction: str = _DEFAULT,
) -> Tensor:
    """z * d^2 + (1 - z) * max(margin - d, 0)^2 for distances d of pairs, which are alike where the
    label z is 1 (Hadsell, Chopra and LeCun 2006, equation 4, times 2).

    >>> wf.losses.contrastive_loss([1.0, 0.0], [0.5, 0.75], reduction="none")
    Tensor([0.25  , 0.0625], dtype=float32)
    """

    def loss(z: Tensor, d: Tensor) -> Tensor:
        apart = square(maximum(subtract(margin, d), 0))
        return add(multiply(z, square(d)), multiply(subtract(1, z), apart))

    return _over_elements("contrastive_loss", labels, distances, loss, weights, reduction)


@runs_native
def triplet_margin_loss(
    anchors: TensorLike,
    positives: TensorLike,
    negatives: TensorLike,
    weights: TensorLike = 1.0,
    margin: float = 1.0,
    epsilon: float = 1e-6,
    reduction: str = _DEFAULT,
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d(a, b) = sqrt(sum((a - b)^2) +
    epsilon) over the last axis (Schroff et al. 2015; Optax's formula).

    >>> near, far = [[0.0, 3.0]], [[0.0, 5.0]]
    >>> wf.losses.triplet_margin_loss([[0.0, 0.0]], far, near).numpy().round(3)
    np.float32(3.0)
    """
    name = "triplet_margin_loss"

    def distance(other: TensorLike) -> Tensor:
        a, b = _pair(name, anchors, other)
        squares = sum(square(subtract(widened(a), widened(b))), -1)
        return cast(sqrt(add(squares, epsilon)), a.dtype)

    near, far = distance(positives), distance(negatives)
    each = maximum(add(subtract(widened(near), widened(far)), margin), 0)
    return _reduced(f"losses.{name}", each, weights, reduction, near.dtype)


# ------------------------------------------------------------------------------------- penalties
Regularizer: TypeAlias = Callable[[TensorLike], Tensor]


def l1_regularizer(scale: float) -> Regularizer:
    """A function of a parameter that gives scale * sum(|x|), for `wf.tf1.get_variable` and loss
    functions. InvalidArgumentError for a negative scale.

    >>> wf.losses.l1_regularizer(0.5)([1.0, -3.0])
    Tensor(2., dtype=float32)
    """
    return l1_l2_regularizer(scale, 0.0)


def l2_regularizer(scale: float) -> Regularizer:
    """A function of a parameter that gives scale * sum(x^2) / 2 (TF1's; Keras has no half).

    >>> wf.losses.l2_regularizer(0.5)([1.0, -3.0])
    Tensor(2.5, dtype=float32)
    """
    return l1_l2_regularizer(0.0, scale)


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0) -> Regularizer:
    """The sum of `l1_regularizer(scale_l1)` and `l2_regularizer(scale_l2)`.

    >>> penalty = wf.losses.l1_l2_regularizer(0.5, 0.5)
    >>> w = wf.asarray([1.0, -3.0])
    >>> penalty(w), wf.grad(penalty)(w)
    (Tensor(4.5, dtype=float32), Tensor([ 1., -2.], dtype=float32))
    """
    _at_least("l1_l2_regularizer", "scale_l1", scale_l1)
    _at_least("l1_l2_regularizer", "scale_l2", scale_l2)

    def penalty(x: TensorLike) -> Tensor:
        t = inexact_tensor(x, "losses.l1_l2_regularizer")
        wide = widened(t)
        total = multiply(sum(abs(wide)), scale_l1) if scale_l1 else None
        if scale_l2 or total is None:
            squares = multiply(sum(square(wide)), scale_l2 / 2)
            total = squares if total is None else add(total, squares)
        return cast(total, t.dtype)

    return penalty


# ---------------------------------------------------------------------------------------- settings
def _at_least(name: str, what: str, value: Any, positive: bool = False) -> None:
    """InvalidArgumentError for a setting that is no finite number >= 0 (> 0)."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or value == math.inf or not (value > 0 if positive else value >= 0):
        raise InvalidArgumentError(
            f"wf.losses.{name}: {what} must be a number {'>' if positive else '>='} 0, got "
            f"{value!r:.60}",
            location=caller_location(),
        )


def _smoothing(name: str, value: Any) -> float:
    """A label smoothing, which is in [0, 1]."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise InvalidArgumentError(
            f"wf.losses.{name}: label_smoothing must be in [0, 1], got {value!r:.60}",
            location=caller_location(),
        )
    return float(value)
