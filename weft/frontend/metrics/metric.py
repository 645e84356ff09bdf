"""Metrics as objects: sums that grow with each batch, and the number that they give.

Every metric is a function of sums over all batches, so a batch adds its own (`update`), and what is
computed from them is exact, whatever the batches were. The sums are variables: they work eagerly,
in compiled functions, in graphs and with checkpoints. They are float64 unless `dtype` says
otherwise, as float32 stops to count at 2^24; results are float32.

Labels come first, and have the shape of the predictions. weights: a number, or as many axes as the
labels, each of their size or of size 1; what has weight 0 does not count. A quotient of nothing is
0. Errors, at the caller's line: ShapeError, InvalidArgumentError, TypeRuleError.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import Effect, current_trace, suspend_trace
from weft.frontend.metrics.functions import (
    alike,
    as_classes,
    class_pairs,
    in_top_k,
    is_yes,
    ratio,
)
from weft.frontend.nn.reduced_losses import fitted_weights
from weft.frontend.ops.elementwise import (
    abs,
    add,
    clip,
    divide,
    equal,
    greater,
    greater_equal,
    logical_and,
    logical_not,
    multiply,
    not_equal,
    square,
    subtract,
    where,
)
from weft.frontend.ops.linalg import diagonal
from weft.frontend.ops.manipulation import flip, reshape
from weft.frontend.ops.promotion import TensorLike, cast, check_int, strong_tensor
from weft.frontend.ops.reduction import cumulative_sum, max, searchsorted, segment_sum, sum
from weft.frontend.ops.special import log, sqrt
from weft.frontend.state.scopes import group
from weft.frontend.state.variable import Variable
from weft.ir.dtypes import DEFAULT_FLOAT, DType, as_dtype, float64
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location


class Metric:
    """The common part of all metrics: their sums, `result` and `reset`.

    name: before the names of the variables. dtype: of the sums, a floating one.

    >>> metric = wf.metrics.Mean()
    >>> _ = metric.update([1.0, 2.0])
    >>> metric, metric.result()
    (Mean(total=3.0, count=2.0), Tensor(1.5, dtype=float32))
    """

    #: The sums and their shapes, for those whose shapes are always the same.
    _sums: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __init__(self, name: str | None = None, dtype: object = float64) -> None:
        self.name = type(self).__name__ if name is None else name
        self.dtype: DType = as_dtype(dtype)
        if not self.dtype.is_floating:
            raise TypeRuleError(
                f"wf.metrics.{type(self).__name__}: sums are floating, not {self.dtype.name}",
                location=caller_location(),
            )
        trace = current_trace()
        in_graph = trace is not None and trace.kind == "graph"
        # with values from the start; in a compiled function as `wf.Variable` allows
        with suspend_trace() if in_graph else nullcontext():
            self._state = {
                part: Variable(
                    np.zeros(shape, self.dtype.numpy), trainable=False, name=f"{self.name}/{part}"
                )
                for part, shape in self._sums
            }
        if in_graph:
            assert trace is not None
            trace.root().owner.local_variables.extend(self._state.values())

    def __repr__(self) -> str:
        small = {n: v.numpy() for n, v in self._state.items() if not v.ndim}
        return f"{type(self).__name__}({', '.join(f'{n}={v}' for n, v in small.items())})"

    def variables(self) -> list[Variable]:
        """The sums: save and restore them with a model's variables."""
        return list(self._state.values())

    def result(self) -> Tensor:
        """The metric of all that was added since the last `reset`."""
        return self._value(*(v.read() for v in self._state.values()))

    def reset(self) -> Effect:
        """Begin again. In a graph: the effect that does it."""
        zeros = [v.assign(np.zeros(v.shape, v.dtype.numpy)) for v in self._state.values()]
        return group(*zeros, name=f"{self.name}/reset")

    def _add(self, counts: Sequence[Tensor]) -> Tensor:
        """Add what a batch counts; the metric after it."""
        held = zip(self._state.values(), counts, strict=True)
        return self._value(*[v.assign_add(cast(c, self.dtype)) for v, c in held])

    def _value(self, *sums: Tensor) -> Tensor:
        """The metric, of the sums in order."""
        raise NotImplementedError

    def _total(self, values: Tensor, weights: TensorLike | None) -> Tensor:
        """The sum of `values` times weights. Values of weight 0 do not count."""
        wide = cast(values, self.dtype)
        if weights is None:
            return sum(wide)
        weight = self._weights(values, weights)
        return sum(where(equal(weight, 0), 0, multiply(wide, weight)))

    def _weights(self, values: Tensor, weights: TensorLike | None) -> Tensor:
        """The weights in the shape of `values`."""
        wide = cast(values, self.dtype)
        return fitted_weights(self._op, wide, 1 if weights is None else weights)

    @property
    def _op(self) -> str:
        return f"metrics.{type(self).__name__}"


class Mean(Metric):
    """The mean of values, weighted by `weights`.

    >>> mean = wf.metrics.Mean()
    >>> @wf.compile
    ... def step(x):
    ...     mean.update(x, weights=[1.0, 3.0])
    >>> step([0.0, 4.0]), mean.result()
    (None, Tensor(3., dtype=float32))
    >>> mean.compute([2.0, 4.0])  # of these alone
    Tensor(3., dtype=float32)
    """

    _sums = (("total", ()), ("count", ()))

    def update(self, values: TensorLike, weights: TensorLike | None = None) -> Tensor:
        """Add values. The mean after it: in a graph fetching that is what adds."""
        return self._add(self._counts(values, weights))

    def compute(self, values: TensorLike, weights: TensorLike | None = None) -> Tensor:
        """The mean of these values; the sums stay as they are."""
        return self._value(*self._counts(values, weights))

    def _counts(self, values: TensorLike, weights: TensorLike | None) -> list[Tensor]:
        x = strong_tensor(values)
        return [self._total(x, weights), sum(self._weights(x, weights))]

    def _value(self, *sums: Tensor) -> Tensor:
        return cast(ratio(*sums), DEFAULT_FLOAT)


class Comparison(Metric):
    """The common part of metrics that compare labels with predictions.

    >>> issubclass(wf.metrics.Accuracy, wf.metrics.Comparison)
    True
    """

    def update(
        self, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
    ) -> Tensor:
        """Add a batch. The metric after it: in a graph fetching that is what adds."""
        return self._add(self._counts(as_tensor(labels), as_tensor(predictions), weights))

    def compute(
        self, labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
    ) -> Tensor:
        """The metric of this batch alone; the sums stay as they are."""
        return self._value(*self._counts(as_tensor(labels), as_tensor(predictions), weights))

    def _counts(
        self, labels: Tensor, predictions: Tensor, weights: TensorLike | None
    ) -> Sequence[Tensor]:
        """What a batch adds to the sums."""
        raise NotImplementedError


# ----------------------------------------------------------------------- means of what is compared
class _MeanOf(Comparison):
    """The mean of one number for each label."""

    _sums = (("total", ()), ("count", ()))

    def _each(self, labels: Tensor, predictions: Tensor) -> Tensor:
        raise NotImplementedError

    def _counts(
        self, labels: Tensor, predictions: Tensor, weights: TensorLike | None
    ) -> Sequence[Tensor]:
        each = self._each(labels, predictions)
        return [self._total(each, weights), sum(self._weights(each, weights))]

    def _value(self, *sums: Tensor) -> Tensor:
        return cast(ratio(*sums), DEFAULT_FLOAT)

    def _error(self, labels: Tensor, predictions: Tensor) -> Tensor:
        z, x = alike(self._op, labels, predictions)
        return subtract(cast(x, self.dtype), cast(z, self.dtype))


class Accuracy(_MeanOf):
    """The share of predictions that equal their labels: of classes, not of scores.

    >>> wf.metrics.Accuracy().compute([0, 1, 2, 2], [0, 1, 1, 2])
    Tensor(0.75, dtype=float32)
    """

    def _each(self, labels: Tensor, predictions: Tensor) -> Tensor:
        return equal(*alike(self._op, labels, predictions))


class TopKAccuracy(_MeanOf):
    """The share of rows of scores in which the label is among the k largest (`in_top_k`).

    >>> scores = [[0.1, 0.9, 0.5], [0.7, 0.2, 0.1]]
    >>> wf.metrics.TopKAccuracy(2).compute([2, 2], scores)
    Tensor(0.5, dtype=float32)
    """

    def __init__(self, k: int = 5, name: str | None = None, dtype: object = float64) -> None:
        self.k = _positive("TopKAccuracy", "k", k)
        super().__init__(name, dtype)

    def _each(self, labels: Tensor, predictions: Tensor) -> Tensor:
        return in_top_k(predictions, labels, self.k)


class MeanSquaredError(_MeanOf):
    """The mean of (prediction - label)^2.

    >>> wf.metrics.MeanSquaredError().compute([0.0, 1.0], [2.0, 1.0])
    Tensor(2., dtype=float32)
    """

    def _each(self, labels: Tensor, predictions: Tensor) -> Tensor:
        return square(self._error(labels, predictions))


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of (prediction - label)^2.

    >>> wf.metrics.RootMeanSquaredError().compute([0.0, 0.0], [3.0, 3.0])
    Tensor(3., dtype=float32)
    """

    def _value(self, *sums: Tensor) -> Tensor:
        return cast(sqrt(ratio(*sums)), DEFAULT_FLOAT)


class MeanAbsoluteError(_MeanOf):
    """The mean of |prediction - label|.

    >>> wf.metrics.MeanAbsoluteError().compute([0.0, 1.0], [2.0, 1.0])
    Tensor(1., dtype=float32)
    """

    def _each(self, labels: Tensor, predictions: Tensor) -> Tensor:
        return abs(self._error(labels, predictions))


# ----------------------------------------------------------------------------------- of yes and no
class Precision(Comparison):
    """True positives over all that was predicted positive.

    Bools and integers are positive where they are not 0, floating labels above 0, floating
    predictions above `threshold`.

    >>> wf.metrics.Precision().compute([1, 1, 0, 0], [0.9, 0.2, 0.8, 0.1])
    Tensor(0.5, dtype=float32)
    """

    _sums = (("true_positives", ()), ("false_positives", ()))

    def __init__(
        self, threshold: float = 0.5, name: str | None = None, dtype: object = float64
    ) -> None:
        self.threshold = threshold
        super().__init__(name, dtype)

    def _counts(
        self, labels: Tensor, predictions: Tensor, weights: TensorLike | None
    ) -> Sequence[Tensor]:
        z, x = alike(self._op, labels, predictions)
        real, found = is_yes(z), is_yes(x, self.threshold)
        wrong = self._wrong(real, found)
        return [self._total(logical_and(real, found), weights), self._total(wrong, weights)]

    def _wrong(self, real: Tensor, found: Tensor) -> Tensor:
        return logical_and(found, logical_not(real))

    def _value(self, *sums: Tensor) -> Tensor:
        right, wrong = sums
        return cast(ratio(right, add(right, wrong)), DEFAULT_FLOAT)


class Recall(Precision):
    """True positives over all labels that are positive; positive as for `Precision`.

    >>> wf.metrics.Recall().compute([1, 1, 1, 0], [0.9, 0.2, 0.8, 0.1])
    Tensor(0.6666667, dtype=float32)
    """

    _sums = (("true_positives", ()), ("false_negatives", ()))

    def _wrong(self, real: Tensor, found: Tensor) -> Tensor:
        return logical_and(real, logical_not(found))


# ----------------------------------------------------------------------------------- of thresholds
class _Thresholds(Comparison):
    """Counts of positive and negative labels between thresholds of the predictions, in [0, 1].

    Thresholds are evenly spaced, the first below 0, the last above 1 (TF1's); state: of each
    interval between them, so the work for a number is that of a binary search.
    """

    def __init__(
        self, num_thresholds: int = 200, name: str | None = None, dtype: object = float64
    ) -> None:
        kind = type(self).__name__
        self.num_thresholds = _positive(kind, "num_thresholds", num_thresholds, least=2)
        grid = np.linspace(0.0, 1.0, self.num_thresholds)
        grid[0], grid[-1] = -1e-7, 1 + 1e-7
        self._grid = grid
        sizes = (self.num_thresholds + 1,)
        self._sums = (("positives", sizes), ("negatives", sizes))
        super().__init__(name, dtype)

    def _counts(
        self, labels: Tensor, predictions: Tensor, weights: TensorLike | None
    ) -> Sequence[Tensor]:
        z, x = alike(self._op, labels, predictions)
        wide = reshape(cast(x, self.dtype), -1)
        # how many thresholds are below it; what is not in [0, 1] counts at the ends
        place = searchsorted(as_tensor(self._grid.astype(self.dtype.numpy)), wide)
        place = clip(place, 1, self.num_thresholds - 1)
        weight = reshape(self._weights(x, weights), -1)
        real = reshape(is_yes(z), -1)
        some = [where(real, weight, 0), where(real, 0, weight)]
        return [segment_sum(w, place, self.num_thresholds + 1) for w in some]

    def _above(self, sums: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For each threshold the true and false positives; the positives and negatives in all."""
        counts = [flip(cumulative_sum(flip(s))) for s in sums]
        return counts[0][1:], counts[1][1:], counts[0][0], counts[1][0]


class AUC(_Thresholds):
    """The area under the curve of true over false positive rates ("ROC"), or of precision over
    recall ("PR").

    Predictions are probabilities. ROC is summed by trapezoids, PR by Davis and Goadrich's
    interpolation (2006, "The relationship between precision-recall and ROC curves"). The error is
    that of `num_thresholds` thresholds; state: two numbers for each.

    >>> labels, scores = [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]
    >>> wf.metrics.AUC().compute(labels, scores)
    Tensor(0.75, dtype=float32)
    >>> wf.metrics.AUC(curve="PR").compute(labels, scores).numpy().round(2)
    np.float32(0.8)
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        name: str | None = None,
        dtype: object = float64,
    ) -> None:
        if curve not in ("ROC", "PR"):
            raise InvalidArgumentError(
                f"wf.metrics.AUC: curve {curve!r:.60} is neither 'ROC' nor 'PR'",
                location=caller_location(),
            )
        self.curve = curve
        super().__init__(num_thresholds, name, dtype)

    def _value(self, *sums: Tensor) -> Tensor:
        right, wrong, positives, negatives = self._above(sums)
        if self.curve == "PR":
            return cast(_area_of_precision(right, wrong, positives), DEFAULT_FLOAT)
        x, y = ratio(wrong, negatives), ratio(right, positives)
        wide, high = subtract(x[:-1], x[1:]), add(y[:-1], y[1:])
        return cast(multiply(sum(multiply(wide, high)), 0.5), DEFAULT_FLOAT)


def _area_of_precision(right: Tensor, wrong: Tensor, positives: Tensor) -> Tensor:
    """The integral of precision over recall, in which false positives grow linearly with true ones
    from threshold to threshold: with n = all positives found, precision is slope + start / n."""
    n = add(right, wrong)
    more, more_right = subtract(n[:-1], n[1:]), subtract(right[:-1], right[1:])
    slope = ratio(more_right, more)
    start = subtract(right[1:], multiply(slope, n[1:]))
    some = logical_and(greater(n[:-1], 0), greater(n[1:], 0))
    growth = where(some, divide(n[:-1], where(some, n[1:], 1)), 1)
    areas = multiply(slope, add(more_right, multiply(start, log(growth))))
    return ratio(sum(areas), positives)


class SensitivityAtSpecificity(_Thresholds):
    """The largest true positive rate at a threshold whose true negative rate is at least
    `specificity`; 0 if there is none.

    >>> metric = wf.metrics.SensitivityAtSpecificity(0.5)
    >>> metric.compute([0, 0, 1, 1], [0.1, 0.5, 0.3, 0.8])
    Tensor(1., dtype=float32)
    """

    _fixed = "specificity"

    def __init__(
        self,
        at: float,
        num_thresholds: int = 200,
        name: str | None = None,
        dtype: object = float64,
    ) -> None:
        _check_rate(type(self).__name__, self._fixed, at)
        self.at = at
        super().__init__(num_thresholds, name, dtype)

    def _value(self, *sums: Tensor) -> Tensor:
        right, wrong, positives, negatives = self._above(sums)
        sensitivity = ratio(right, positives)
        specificity = ratio(subtract(negatives, wrong), negatives)
        return self._best(specificity, sensitivity)

    def _best(self, fixed: Tensor, wanted: Tensor) -> Tensor:
        return cast(max(where(greater_equal(fixed, self.at), wanted, 0)), DEFAULT_FLOAT)


class SpecificityAtSensitivity(SensitivityAtSpecificity):
    """The largest true negative rate at a threshold whose true positive rate is at least
    `sensitivity`; 0 if there is none.

    >>> wf.metrics.SpecificityAtSensitivity(1.0).compute([0, 0, 1, 1], [0.1, 0.5, 0.3, 0.8])
    Tensor(0.5, dtype=float32)
    """

    _fixed = "sensitivity"

    def _best(self, fixed: Tensor, wanted: Tensor) -> Tensor:
        return super()._best(wanted, fixed)


# --------------------------------------------------------------------------------------- of classes
class ConfusionMatrix(Comparison):
    """How often label i was predicted as j, or the weights of these -> [num_classes, num_classes].

    Labels and predictions are integers 0 .. num_classes-1; InvalidArgumentError for others, when
    the step runs. The result has the dtype of the sums.

    >>> wf.metrics.ConfusionMatrix(2).compute([0, 0, 1], [0, 1, 1])
    Tensor([[1., 1.],
            [0., 1.]], dtype=float64)
    """

    def __init__(self, num_classes: int, name: str | None = None, dtype: object = float64) -> None:
        self.num_classes = _positive(type(self).__name__, "num_classes", num_classes)
        self._sums = (("matrix", (self.num_classes, self.num_classes)),)
        super().__init__(name, dtype)

    def _counts(
        self, labels: Tensor, predictions: Tensor, weights: TensorLike | None
    ) -> Sequence[Tensor]:
        z, x = (as_classes(self._op, t) for t in alike(self._op, labels, predictions))
        weight = self._weights(x, weights)
        return [class_pairs(z, x, weight, self.num_classes)]

    def _value(self, *sums: Tensor) -> Tensor:
        return sums[0]


class MeanIoU(ConfusionMatrix):
    """The mean over classes of intersection over union: i as i over all that are or were called i.

    Classes that are neither among the labels nor the predictions do not count.

    >>> wf.metrics.MeanIoU(3).compute([0, 0, 1, 1], [0, 1, 1, 1]).numpy().round(3)
    np.float32(0.583)
    """

    def _value(self, *sums: Tensor) -> Tensor:
        both = diagonal(sums[0])
        either = subtract(add(sum(sums[0], 0), sum(sums[0], 1)), both)
        there = cast(not_equal(either, 0), self.dtype)
        return cast(ratio(sum(ratio(both, either)), sum(there)), DEFAULT_FLOAT)


def _positive(kind: str, what: str, value: object, least: int = 1) -> int:
    number = check_int(f"metrics.{kind}", value, what)
    if number < least:
        raise InvalidArgumentError(
            f"wf.metrics.{kind}: {what} must be at least {least}, got {number}",
            location=caller_location(),
        )
    return number


def _check_rate(kind: str, what: str, value: Any) -> None:
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise InvalidArgumentError(
            f"wf.metrics.{kind}: the {what} must be in [0, 1], got {value!r:.60}",
            location=caller_location(),
        )
