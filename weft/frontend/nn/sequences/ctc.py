"""Connectionist temporal classification: the loss of labels whose places in time are not known.

A. Graves et al., "Connectionist temporal classification", 2006. Each frame gives a class or blank;
a path of frames stands for the labels that are left when repeated classes are merged and blanks
are removed. The loss is -log of the probability of all paths that stand for the labels.

States are the blanks b_0 .. b_L between labels and the labels e_1 .. e_L themselves, in logarithms:

    u_j = log(exp b_j + exp e_j)
    b_j' = u_j + log p(blank)
    e_j+1' = log(exp e_j+1 + exp u_j) + log p(label j+1)

with b_j in place of u_j in the last if label j+1 is label j, as a blank must part these.

The gradient is softmax - occupancy (Graves's equation 15). Occupancies, the probabilities of states
given the labels, are not taken from a second recursion in logarithms, which loses digits where
the loss is large: the forward pass keeps which share of each sum came from where, and the backward
pass distributes probabilities, which are numbers between 0 and 1, by these shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.control.loops import scan
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.nn.activations import log_softmax
from weft.frontend.nn.recurrent import as_int64, chosen_rows, row_lengths, true_rows
from weft.frontend.ops.creation import arange, one_hot
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import (
    add,
    clip,
    divide,
    equal,
    greater_equal,
    less,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    subtract,
    where,
)
from weft.frontend.ops.indexing import NOWHERE, take_along_axis
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, cut, expand_dims, known_size, moveaxis, squeeze
from weft.frontend.ops.manipulation import shape as shape_of
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_int,
    expand,
    filled,
    inexact_tensor,
    is_concrete,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import sum as sum_of
from weft.frontend.ops.special import exp, log1p
from weft.ir.dims import Dim, format_shape, same
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

_NAME = "nn.ctc_loss"


def ctc_loss(
    labels: TensorLike,
    logits: TensorLike,
    label_length: TensorLike | None = None,
    logit_length: TensorLike | None = None,
    *,
    time_major: bool = False,
    blank_index: int = 0,
    merge_repeated: bool = True,
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that the frames give the labels, one loss for each row [batch].

    labels: integers [batch, max labels], the first label_length [batch] of a row count. logits:
    floats [batch, time, classes], or [time, batch, classes] with time_major; the first logit_length
    [batch] frames count. A softmax is taken of them (of log probabilities it changes nothing).
    Without lengths all count; lengths beyond the size count as the size. blank_index: the class
    that stands for no label; a negative one counts from the last class. merge_repeated: False
    makes each frame of a class a label of its own (TF1's ctc_merge_repeated). 16-bit floats are
    computed in float32.

    Labels that do not fit into the frames have an infinite loss and a gradient of NaN, as in
    PyTorch; zero_infinity makes both 0. A label out of range, or blank, raises
    InvalidArgumentError when the op runs; ShapeError, TypeRuleError for operands that do not fit.

    Graves et al., "Connectionist temporal classification", 2006.

    >>> logits = wf.zeros([1, 3, 2])  # 8 paths of 3 frames, equally probable; 6 of them are "1"
    >>> wf.exp(-wf.nn.ctc_loss([[1]], logits)).numpy().round(3)
    array([0.75], dtype=float32)
    >>> wf.nn.ctc_loss([[1, 1]], logits, logit_length=[2])  # a blank must part the two
    Tensor([inf], dtype=float32)
    """
    t = inexact_tensor(logits, _NAME)
    batch, time, blank = check_frames(_NAME, t, time_major, blank_index)
    targets = _labels(labels, batch)
    width = targets.shape[1]
    of_labels = clipped_lengths(_NAME, "label_length", label_length, batch, width)
    of_frames = clipped_lengths(_NAME, "logit_length", logit_length, batch, time)
    targets = _in_range(targets, of_labels, blank, t.shape[2])
    return _loss(
        t, targets, of_labels, of_frames, time_major=bool(time_major), blank=blank,
        merge=bool(merge_repeated), zero_infinity=bool(zero_infinity),
    )  # fmt: skip


def check_frames(op: str, t: Tensor, time_major: bool, blank_index: object) -> tuple[Dim, Dim, int]:
    """(batch, time, the class of blanks) of logits."""
    if t.ndim != 3 or not isinstance(t.shape[2], int) or t.shape[2] < 1:
        order = "[time, batch, classes]" if time_major else "[batch, time, classes]"
        raise ShapeError(
            f"wf.{op}: logits are {order} with a known number of classes, got {t.describe()}",
            location=caller_location(),
        )
    if not t.dtype.is_floating:
        raise TypeRuleError(
            f"wf.{op}: logits are floats, got {t.dtype.name}", location=caller_location()
        )
    classes, blank = t.shape[2], check_int(op, blank_index, "blank_index")
    if not -classes <= blank < classes:
        raise InvalidArgumentError(
            f"wf.{op}: blank_index {blank} is out of range for {classes} classes",
            location=caller_location(),
        )
    time, batch = t.shape[:2] if time_major else (t.shape[1], t.shape[0])
    return batch, time, blank % classes


def clipped_lengths(
    op: str, name: str, lengths: TensorLike | None, batch: Dim, size: Dim
) -> Tensor | None:
    """Lengths of rows as int64 [batch], within 0 .. size; None if all are whole."""
    if lengths is None:
        return None
    t = row_lengths(op, name, lengths, batch)
    return clip(t, 0, size) if isinstance(size, int) else maximum(t, 0)


def _labels(labels: TensorLike, batch: Dim) -> Tensor:
    t = as_int64(_NAME, labels, "labels are integers")
    if t.ndim != 2 or not same(t.shape[0], batch):
        raise ShapeError(
            f"wf.{_NAME}: labels of shape {format_shape(t.shape)} for a batch of {batch}",
            hint="labels are [batch, max labels]; with time_major logits, too",
            location=caller_location(),
        )
    return t


def _in_range(labels: Tensor, lengths: Tensor | None, blank: int, classes: Dim) -> Tensor:
    """The labels, padding as blanks. One that is no label of a class is out of bounds for the op
    that looks it up; where the values are known now, an error now."""
    count = true_rows(lengths, labels.shape[1], labels.shape[0])
    wrong = logical_or(logical_or(less(labels, 0), greater_equal(labels, classes)),
                       equal(labels, blank))  # fmt: skip
    wrong = logical_and(count, wrong)
    if is_concrete(wrong):
        places = np.argwhere(wrong.numpy())
        if len(places):
            at = tuple(map(int, places[0]))
            raise InvalidArgumentError(
                f"wf.{_NAME}: label {labels.numpy()[at]} at {list(at)} is no label: of {classes} "
                f"classes {blank} is blank",
                hint="places after label_length may hold anything",
                location=caller_location(),
            )
    return where(wrong, NOWHERE, where(count, labels, blank))


def _padded(t: Tensor, value: float, front: bool) -> Tensor:
    """[batch, n] with one more column, of that value."""
    column = filled(value, t.dtype, (t.shape[0], 1))
    return concat([column, t] if front else [t, column], axis=1)


def _summed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log(exp a + exp b), and the share of a in it; a share of two zeros is 1/2."""
    high, low = maximum(a, b), minimum(a, b)
    nothing = equal(high, -math.inf)
    ratio = exp(subtract(low, where(nothing, 0, high)))
    ratio = where(nothing, 1, ratio)
    total = where(nothing, high, add(high, log1p(ratio)))
    return total, divide(where(greater_equal(a, b), 1, ratio), add(ratio, 1))


@runs_native
def _loss(
    logits: TensorLike,
    labels: TensorLike,
    label_length: TensorLike | None,
    logit_length: TensorLike | None,
    *,
    time_major: bool,
    blank: int,
    merge: bool,
    zero_infinity: bool,
) -> Tensor:
    t, targets = inexact_tensor(logits, _NAME), strong_tensor(labels)
    wide = widened(t) if time_major else moveaxis(widened(t), 1, 0)
    if targets.shape[1] == 0:  # a column that no row has
        targets = filled(blank, int64, (targets.shape[0], 1))
        label_length = zeros_of((targets.shape[0],), dtype=int64)
    counts = _size_of(targets, 1) if label_length is None else as_tensor(label_length)
    ends = _size_of(wide, 0) if logit_length is None else as_tensor(logit_length)
    counts, ends = (expand(n, (wide.shape[1],)) for n in (counts, ends))
    loss = _of_paths(wide, targets, counts, ends, blank=blank, merge=merge, zeroed=zero_infinity)
    return cast(loss, t.dtype)


def _size_of(t: Tensor, axis: int) -> Tensor:
    """The size of an axis, which may be known by a feed only: int64 [1]."""
    return cut(shape_of(t), 0, axis, axis + 1)


@custom_gradient
def _of_paths(
    t: Tensor,
    labels: Tensor,
    counts: Tensor,
    ends: Tensor,
    *,
    blank: int,
    merge: bool,
    zeroed: bool,
) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The loss of logits [time, batch, classes] with all lengths given, and its gradient."""
    time, batch, _ = t.shape
    width = known_size(_NAME, labels, 1)
    logs = log_softmax(t)
    index = expand(expand_dims(labels, 0), (time, batch, width))
    going = less(expand_dims(arange(time), 1), expand_dims(ends, 0))  # [time, batch]
    rows = (cut(logs, 2, blank, blank + 1), take_along_axis(logs, index, axis=2), going)
    before = _padded(cut(labels, 1, 0, width - 1), blank, front=True)
    repeated = equal(labels, before)  # a path has a blank before these

    def step(states: tuple[Tensor, Tensor], row: tuple[Tensor, ...]) -> Any:
        (blanks, places), (of_blank, of_labels, goes) = states, row
        through, from_blank = _summed(blanks, _padded(places, -math.inf, front=True))
        into = cut(through, 1, 0, width)
        from_place = expand(zeros_of((1, 1), dtype=t.dtype), (batch, width))
        if merge:
            into = where(repeated, cut(blanks, 1, 0, width), into)
            into, from_place = _summed(places, into)
        after = (add(through, of_blank), add(into, of_labels))
        kept = tuple(chosen_rows(goes, *pair) for pair in zip(after, states, strict=True))
        return kept, (from_blank, from_place)

    start = expand(filled(-math.inf, t.dtype, (1, 1)), (batch, width))
    (blanks, places), shares = scan(step, (_padded(start, 0.0, front=True), start), rows)
    total, from_blank = _summed(_at(blanks, counts), _at(places, subtract(counts, 1)))
    possible = not_equal(total, -math.inf)
    loss = negative(where(possible, total, 0.0) if zeroed else total)

    def gradient(g: Tensor) -> Any:
        end, share = expand_dims(counts, 1), expand_dims(from_blank, 1)
        found = (
            where(equal(arange(width + 1), end), share, 0),
            where(equal(arange(width), subtract(end, 1)), subtract(1, share), 0),
        )
        occupied = _occupancies(found, (*shares, going), repeated if merge else None)
        slopes = subtract(exp(logs), _by_class(*occupied, labels, blank, t.shape[2]))
        alike = expand_dims(expand_dims(where(possible, g, 0.0 if zeroed else math.nan), 0), 2)
        return where(expand_dims(going, 2), multiply(slopes, alike), 0), None, None, None

    return loss, gradient


def _at(states: Tensor, places: Tensor) -> Tensor:
    """One state of each row [batch]; -inf for place -1."""
    index = expand_dims(maximum(places, 0), 1)
    found = squeeze(take_along_axis(states, index, axis=1), 1)
    return where(less(places, 0), -math.inf, found)


def _occupancies(
    found: tuple[Tensor, Tensor], rows: tuple[Tensor, Tensor, Tensor], repeated: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Probabilities of states at each frame, given the labels: of all blanks together [time,
    batch, 1] and of each label's place [time, batch, labels]. found: those after the last frame.
    repeated: None if repeated classes are not merged."""

    def step(states: tuple[Tensor, Tensor], row: tuple[Tensor, ...]) -> Any:
        (blanks, places), (from_blank, from_place, goes) = states, row
        stay = multiply(places, from_place)
        into = subtract(places, stay)
        crossing = into if repeated is None else where(repeated, 0, into)
        through = add(blanks, _padded(crossing, 0.0, front=False))
        of_blanks = multiply(through, from_blank)
        of_places = add(stay, cut(subtract(through, of_blanks), 1, 1, through.shape[1]))
        if repeated is not None:
            of_blanks = add(of_blanks, _padded(subtract(into, crossing), 0.0, front=False))
        before = tuple(
            chosen_rows(goes, *pair) for pair in zip((of_blanks, of_places), states, strict=True)
        )
        return before, (sum_of(blanks, axis=1, keepdims=True), places)

    occupied: tuple[Tensor, Tensor] = scan(step, found, rows, reverse=True)[1]
    return occupied


def _by_class(blanks: Tensor, places: Tensor, labels: Tensor, blank: int, classes: Dim) -> Tensor:
    """Occupancies of states as those of classes [time, batch, classes]."""
    assert isinstance(classes, int)
    table = one_hot(labels, classes, dtype=places.dtype)  # [batch, labels, classes]
    of_labels = moveaxis(matmul(moveaxis(places, 1, 0), table), 1, 0)
    return add(of_labels, multiply(blanks, one_hot(blank, classes, dtype=places.dtype)))
