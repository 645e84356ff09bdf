"""`wf.nn`: losses, normalisation and dropout, composed from public ops.

Bools and integers become the default float; 16-bit floats are computed in float32. Losses give one
number for each row: the class axis is reduced, the others stay, as in TensorFlow 1. Errors, at the
caller's line: ShapeError, InvalidArgumentError, TypeRuleError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.nn.activations import log_softmax, softplus_tail
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    logical_and,
    maximum,
    multiply,
    negative,
    square,
    subtract,
    where,
)
from weft.frontend.ops.indexing import from_the_front, take_along_axis
from weft.frontend.ops.manipulation import expand_dims, squeeze
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    broadcast_tensors,
    cast,
    check_axes,
    check_axis,
    common_dtype,
    expand,
    inexact_tensor,
    is_concrete,
    is_scalar,
    promote_tensors,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import mean, sum
from weft.frontend.ops.special import rsqrt
from weft.frontend.random import Generator, bernoulli, default_generator
from weft.ir.dims import Dim, format_shape, same
from weft.ir.dtypes import real_of
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


class Moments(NamedTuple):
    """The result of `moments`.

    >>> mean, variance = wf.nn.moments(wf.asarray([1.0, 3.0]))
    >>> mean, variance
    (Tensor(2., dtype=float32), Tensor(1., dtype=float32))
    """

    mean: Tensor
    variance: Tensor


def paired(op: str, labels: TensorLike, logits: TensorLike) -> tuple[Tensor, Tensor]:
    """Labels and logits as floats of one dtype and one shape."""
    a, b = promote_tensors(labels, logits, op=op)
    a, b = broadcast_tensors(inexact_tensor(a, op), inexact_tensor(b, op), op=op)
    return a, b


@runs_native
def softmax_cross_entropy_with_logits(
    *, labels: TensorLike, logits: TensorLike, axis: int = -1
) -> Tensor:
    """-sum(labels * log_softmax(logits)) over the class axis; one loss for each row.

    labels: a probability for each class, the shape of the logits. A class of probability 0 counts 0
    even if its logit is -inf. Gradients flow to both.

    >>> labels, logits = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], wf.zeros([2, 3])
    >>> wf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits).numpy().round(3)
    array([1.099, 1.099], dtype=float32)
    """
    op = "nn.softmax_cross_entropy_with_logits"
    target, scores = paired(op, labels, logits)
    along = check_axis(op, axis, scores.ndim)
    wide, logs = widened(target), log_softmax(widened(scores), along)
    unused = logical_and(equal(wide, 0), equal(logs, float("-inf")))
    terms = multiply(wide, where(unused, 0, logs))
    return cast(negative(apply("sum", terms, axes=(along,), keepdims=False)), scores.dtype)


@runs_native
def sparse_softmax_cross_entropy_with_logits(*, labels: TensorLike, logits: TensorLike) -> Tensor:
    """-log_softmax(logits)[..., label] with the classes on the last axis; one loss for each row.

    labels: integers 0 .. classes-1, the shape of the logits without the last axis. One out of
    range, a negative one too, raises InvalidArgumentError when the op runs.

    >>> logits = wf.asarray([[0.0, 0.0], [9.0, 0.0]])
    >>> losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 1], logits=logits)
    >>> losses.numpy().round(3)
    array([0.693, 9.   ], dtype=float32)
    >>> wf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 2], logits=logits)
    Traceback (most recent call last):
        ...
    weft.ir.errors.InvalidArgumentError: wf.nn.sparse_softmax_cross_entropy_with_logits: label ...
    """
    op = "nn.sparse_softmax_cross_entropy_with_logits"
    index, scores = strong_tensor(labels), inexact_tensor(logits, op)
    if not index.dtype.is_integer:
        raise TypeRuleError(
            f"wf.{op}: labels must be integers, got {index.dtype.name}",
            hint="for class probabilities use wf.nn.softmax_cross_entropy_with_logits",
            location=caller_location(),
        )
    rows = scores.shape[:-1]
    if not scores.ndim or index.ndim != len(rows) or not all(map(same, index.shape, rows)):
        raise ShapeError(
            f"wf.{op}: labels of shape {format_shape(index.shape)} for logits of shape "
            f"{format_shape(scores.shape)}",
            hint="labels have the shape of the logits without the last axis",
            location=caller_location(),
        )
    index = _class_index(op, index, scores.shape[-1])
    logs = log_softmax(widened(scores), -1)
    picked = squeeze(take_along_axis(logs, expand_dims(index, -1), axis=-1), -1)
    return cast(negative(picked), scores.dtype)


def _class_index(op: str, labels: Tensor, classes: Dim) -> Tensor:
    """`labels` as indices that do not count from the end: those out of range are out of bounds."""
    if is_concrete(labels) and isinstance(classes, int):
        values = labels.numpy()
        wrong = np.argwhere((values < 0) | (values >= classes))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            raise InvalidArgumentError(
                f"wf.{op}: label {values[at]} at {list(at)} is out of range for {classes} classes",
                hint="give rows without a class any valid label and blank their loss with wf.where",
                location=caller_location(),
            )
    return from_the_front(labels)


@runs_native
def sigmoid_cross_entropy_with_logits(*, labels: TensorLike, logits: TensorLike) -> Tensor:
    """max(x, 0) - x*z + log1p(exp(-|x|)) for logits x and labels z, element by element (TF1's
    formula).

    >>> labels, logits = [1.0, 0.0, 1.0], wf.asarray([0.0, 0.0, -100.0])
    >>> wf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits).numpy().round(3)
    array([  0.693,   0.693, 100.   ], dtype=float32)
    """
    labels, logits = paired("nn.sigmoid_cross_entropy_with_logits", labels, logits)
    z, x = widened(labels), widened(logits)
    linear = where(greater(x, 0), multiply(subtract(1, z), x), negative(multiply(z, x)))
    return cast(add(linear, softplus_tail(x)), logits.dtype)


@runs_native
def weighted_cross_entropy_with_logits(
    *, labels: TensorLike, logits: TensorLike, pos_weight: TensorLike
) -> Tensor:
    """Sigmoid cross entropy with the positive term times q = `pos_weight` (TF1's formula).

    (1 - z)*x + (1 + (q - 1)*z) * softplus(-x). The part of softplus that is linear for x < 0 is
    added to the first term, where it does not cancel.

    >>> labels, logits = [1.0, 0.0], wf.zeros([2])
    >>> wf.nn.weighted_cross_entropy_with_logits(
    ...     labels=labels, logits=logits, pos_weight=3.0
    ... ).numpy().round(3)
    array([2.079, 0.693], dtype=float32)
    """
    labels, logits = paired("nn.weighted_cross_entropy_with_logits", labels, logits)
    dtype = common_dtype("nn.weighted_cross_entropy_with_logits", [logits, pos_weight])
    z, x = widened(labels), widened(logits)
    q = pos_weight if is_scalar(pos_weight) else widened(as_tensor(pos_weight))
    weight = add(multiply(subtract(q, 1), z), 1)
    positive = negative(multiply(multiply(z, q), x))
    linear = where(greater(x, 0), multiply(subtract(1, z), x), positive)
    return cast(add(linear, multiply(weight, softplus_tail(x))), dtype)


@runs_native
def l2_loss(x: TensorLike, /) -> Tensor:
    """sum(x^2) / 2, a scalar (TF1's name).

    >>> wf.nn.l2_loss(wf.asarray([3.0, 4.0]))
    Tensor(12.5, dtype=float32)
    """
    t = inexact_tensor(x, "nn.l2_loss")
    return cast(multiply(sum(square(widened(t))), 0.5), t.dtype)


@runs_native
def mean_squared_error(labels: TensorLike, predictions: TensorLike) -> Tensor:
    """mean((predictions - labels)^2), a scalar.

    >>> wf.nn.mean_squared_error([1.0, 2.0], wf.asarray([1.0, 4.0]))
    Tensor(2., dtype=float32)
    """
    z, x = paired("nn.mean_squared_error", labels, predictions)
    return cast(mean(square(subtract(widened(x), widened(z)))), x.dtype)


# ------------------------------------------------------------------------------- normalisation
@runs_native
def moments(x: TensorLike, axes: Axes = None, keepdims: bool = False) -> Moments:
    """Mean and variance (the mean of |x - mean|^2, which is real) over `axes` (TF1's
    nn.moments).

    >>> x = wf.asarray([[1.0, 10.0], [3.0, 10.0]])
    >>> wf.nn.moments(x, axes=0)
    Moments(mean=Tensor([ 2., 10.], dtype=float32), variance=Tensor([1., 0.], dtype=float32))
    >>> wf.nn.moments(wf.ones([8, 5, 5, 3]), axes=[0, 1, 2]).mean.shape  # of each channel
    (3,)
    """
    t = inexact_tensor(x, "nn.moments")
    over = check_axes("nn.moments", axes, t.ndim)
    centre, variance = _moments(widened(t), over)
    if not keepdims:
        centre, variance = squeeze(centre, over), squeeze(variance, over)
    return Moments(cast(centre, t.dtype), cast(variance, real_of(t.dtype)))


def _moments(t: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    centre = mean(t, axes, keepdims=True)
    distance = subtract(t, centre)
    squares = square(abs(distance)) if t.dtype.is_complex else square(distance)
    return centre, mean(squares, axes, keepdims=True)


@runs_native
def layer_norm(
    x: TensorLike,
    scale: TensorLike | None = None,
    offset: TensorLike | None = None,
    *,
    axis: Axes = -1,
    epsilon: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over `axis`, times scale, plus offset (Ba, Kiros,
    Hinton 2016).

    scale and offset broadcast to x, and promote with it.

    >>> x = wf.asarray([[1.0, 3.0], [10.0, 50.0]])
    >>> wf.nn.layer_norm(x).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    >>> wf.nn.layer_norm(x, scale=[1.0, 2.0], offset=5.0).numpy().round(3)
    array([[4., 7.],
           [4., 7.]], dtype=float32)
    """
    t = inexact_tensor(x, "nn.layer_norm")
    over = check_axes("nn.layer_norm", axis, t.ndim)
    wide = widened(t)
    dtype = common_dtype("nn.layer_norm", [t, *(v for v in (scale, offset) if v is not None)])
    return cast(_normalized(wide, *_moments(wide, over), scale, offset, epsilon), dtype)


@runs_native
def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None = None,
    scale: TensorLike | None = None,
    variance_epsilon: float = 1e-3,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), times scale, plus offset; all broadcast to x.

    TF1's nn.batch_normalization (Ioffe and Szegedy 2015, algorithm 1); mean and variance come from
    `moments` while training, from running averages afterwards.

    >>> x = wf.asarray([[1.0, 10.0], [3.0, 50.0]])
    >>> mean, variance = wf.nn.moments(x, axes=0)
    >>> wf.nn.batch_norm(x, mean, variance, variance_epsilon=1e-6).numpy().round(3)
    array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)
    """
    t = inexact_tensor(x, "nn.batch_norm")
    others = (mean, variance, scale, offset)
    dtype = common_dtype("nn.batch_norm", [t, *(v for v in others if v is not None)])
    out = _normalized(widened(t), mean, variance, scale, offset, variance_epsilon)
    return cast(out, dtype)


def _normalized(
    t: Tensor,
    mean: TensorLike,
    variance: TensorLike,
    scale: TensorLike | None,
    offset: TensorLike | None,
    epsilon: float,
) -> Tensor:
    spread = variance if is_scalar(variance) else widened(as_tensor(variance))
    out = multiply(subtract(t, mean), rsqrt(add(spread, epsilon)))
    if scale is not None:
        out = multiply(out, scale)
    return out if offset is None else add(out, offset)


@runs_native
def l2_normalize(x: TensorLike, axis: Axes = None, epsilon: float = 1e-12) -> Tensor:
    """x / sqrt(max(sum(x^2), epsilon)) over `axis` (TF1's nn.l2_normalize).

    >>> wf.nn.l2_normalize(wf.asarray([[3.0, 4.0], [0.0, 0.0]]), axis=1).numpy().round(3)
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    t = inexact_tensor(x, "nn.l2_normalize")
    over = check_axes("nn.l2_normalize", axis, t.ndim)
    wide = widened(t)
    total = sum(square(wide), over, keepdims=True)
    return cast(multiply(wide, rsqrt(maximum(total, epsilon))), t.dtype)


def dropout(
    x: TensorLike,
    rate: TensorLike = 0.5,
    *,
    key: TensorLike | None = None,
    rng: Generator | None = None,
    noise_shape: Any = None,
) -> Tensor:
    """Each element 0 with probability `rate`, else divided by 1 - rate (Srivastava et al. 2014).

    The random numbers come from `key` (`wf.random.key`), else from the generator `rng`, else from
    the process-wide generator. noise_shape: the shape of the mask, which broadcasts to x. rate 0 is
    x itself.

    >>> x = wf.ones([2, 6])
    >>> wf.nn.dropout(x, rate=0.5, key=wf.random.key(0))
    Tensor([[2., 0., 2., 0., 2., 0.],
            [0., 2., 0., 0., 2., 2.]], dtype=float32)
    >>> wf.nn.dropout(x, rate=0.5, key=wf.random.key(0), noise_shape=[2, 1])  # whole rows
    Tensor([[2., 2., 2., 2., 2., 2.],
            [0., 0., 0., 0., 0., 0.]], dtype=float32)
    """
    t = inexact_tensor(x, "nn.dropout")
    if is_scalar(rate):
        if not 0 <= rate <= 1:
            raise InvalidArgumentError(
                f"wf.nn.dropout: rate must be in [0, 1], got {rate}", location=caller_location()
            )
        if rate == 0:
            return t
    if not (rng is None or isinstance(rng, Generator)):
        raise TypeRuleError(
            f"wf.nn.dropout: rng must be a wf.random.Generator, got {type(rng).__name__}",
            hint="a seed or a key goes into key=wf.random.key(seed)",
            location=caller_location(),
        )
    if key is not None and rng is not None:
        raise InvalidArgumentError(
            "wf.nn.dropout takes key= or rng=, not both", location=caller_location()
        )
    if key is None:
        key = (default_generator() if rng is None else rng).next_key()
    shape = t.shape if noise_shape is None else noise_shape
    keep_rate = subtract(1, rate) if not is_scalar(rate) else 1 - rate
    kept = expand(bernoulli(key, keep_rate, shape=shape), t.shape)
    if is_scalar(rate) and rate == 1:
        return where(kept, t, 0)
    # of the dtype of x, whatever the rate has
    divisor = keep_rate if is_scalar(rate) else cast(keep_rate, t.dtype)
    return where(kept, divide(t, divisor), 0)
