"""Labels out of frames, and how far they are from the truth: greedy and beam search decoders of
connectionist temporal classification, and the edit distance.

The beam search is that of prefixes (A. Graves, "Supervised sequence labelling with recurrent neural
networks", 2012, section 7.5.3; A. Hannun et al., "First-pass large vocabulary continuous speech
recognition", 2014): the beam holds label sequences, each with the probabilities of its paths that
end in a blank and of those that do not. It is one loop over the frames; labels are found by going
back along the parents that each frame has kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from weft.frontend.control.loops import scan
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.nn.activations import log_softmax
from weft.frontend.nn.recurrent import chosen_rows, true_rows
from weft.frontend.nn.sequences.ctc import check_frames, clipped_lengths
from weft.frontend.ops.creation import arange
from weft.frontend.ops.elementwise import (
    add,
    bitwise_right_shift,
    bitwise_xor,
    divide,
    equal,
    floor_divide,
    logical_and,
    maximum,
    minimum,
    multiply,
    not_equal,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.indexing import at, take_along_axis
from weft.frontend.ops.manipulation import (
    concat,
    cut,
    expand_dims,
    known_size,
    moveaxis,
    reshape,
    squeeze,
)
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_int,
    expand,
    filled,
    inexact_tensor,
    promote_tensors,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import any as any_of
from weft.frontend.ops.reduction import argmax, cumulative_min, sort, top_k
from weft.frontend.ops.reduction import max as max_of
from weft.frontend.ops.reduction import sum as sum_of
from weft.frontend.ops.special import logaddexp
from weft.ir.dims import same
from weft.ir.dtypes import DEFAULT_FLOAT, int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location

#: What stands after the labels of a row.
PADDING = -1


class CTCLabels(NamedTuple):
    """Decoded labels: `labels` int64 [..., time], -1 after the end; `lengths` int64 [...]; and
    `log_probs` [...], of one path (greedy) or of all paths in the beam.

    >>> wf.nn.ctc_greedy_decoder(wf.asarray([[[0.0, 9.0], [9.0, 0.0]]])).lengths
    Tensor([1], dtype=int64)
    """

    labels: Tensor
    lengths: Tensor
    log_probs: Tensor


def ctc_greedy_decoder(
    logits: TensorLike,
    logit_length: TensorLike | None = None,
    *,
    time_major: bool = False,
    blank_index: int = 0,
    merge_repeated: bool = True,
) -> CTCLabels:
    """The labels of the most probable path: the best class of each frame, repeated ones merged,
    blanks removed.

    Arguments as those of `ctc_loss`. labels: int64 [batch, time], -1 after their ends; lengths and
    log_probs [batch], the latter of that path. merge_repeated: False keeps a label for each frame.
    Of equal classes the first is taken. No gradient but that of log_probs.

    >>> best = [[0, 2, 2, 0, 2, 1]]  # class 0 is blank
    >>> wf.nn.ctc_greedy_decoder(9.0 * wf.one_hot(best, 3)).labels
    Tensor([[ 2,  2,  1, -1, -1, -1]], dtype=int64)
    """
    op = "nn.ctc_greedy_decoder"
    t = inexact_tensor(logits, op)
    batch, time, blank = check_frames(op, t, time_major, blank_index)
    lengths = clipped_lengths(op, "logit_length", logit_length, batch, time)
    found = _greedy(
        t, lengths, time_major=bool(time_major), blank=blank, merge=bool(merge_repeated)
    )
    return CTCLabels(*found)


@runs_native
def _greedy(
    logits: TensorLike,
    logit_length: TensorLike | None,
    *,
    time_major: bool,
    blank: int,
    merge: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    t = as_tensor(logits)
    logs = log_softmax(widened(moveaxis(t, 1, 0) if time_major else t))
    batch, time = logs.shape[0], known_size("nn.ctc_greedy_decoder", logs, 1)
    lengths = None if logit_length is None else as_tensor(logit_length)
    here = true_rows(lengths, time, batch)
    best = argmax(logs, axis=2)
    total = sum_of(where(here, max_of(logs, axis=2), 0), axis=1)
    kept = logical_and(here, not_equal(best, blank))
    if merge and time != 0:
        before = concat([filled(blank, int64, (batch, 1)), cut(best, 1, 0, time - 1)], axis=1)
        kept = logical_and(kept, not_equal(best, before))
    return (*_joined(where(kept, best, PADDING)), cast(total, t.dtype))


def _joined(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The labels of rows [..., time] that are no padding, together at the front; how many."""
    time = known_size("nn.CTCLabels", labels, -1)
    kept = not_equal(labels, PADDING)
    lengths = sum_of(cast(kept, int64), axis=-1)
    if time == 0:
        return labels, lengths
    frames = sort(where(kept, arange(time), time))
    found = take_along_axis(labels, minimum(frames, time - 1), axis=-1)
    return where(equal(frames, time), PADDING, found), lengths


# ---------------------------------------------------------------------------------- beam search
class _Beam(NamedTuple):
    """Label sequences [batch, width]: of paths that end in a blank, and of others, the log of the
    probability; the last label, -1 if there is none; who they are, and who is without that label.

    A sequence is known by a hash of 64 bits, which says who is whose continuation: the chance of
    one mistake is below the width squared times frames over 2^64."""

    blank: Tensor
    other: Tensor
    last: Tensor
    name: Tensor
    parent: Tensor


def ctc_beam_search_decoder(
    logits: TensorLike,
    logit_length: TensorLike | None = None,
    *,
    beam_width: int = 100,
    top_paths: int = 1,
    time_major: bool = False,
    blank_index: int = 0,
) -> CTCLabels:
    """The most probable labels that a beam of `beam_width` label sequences finds, best first.

    Arguments as those of `ctc_loss`. labels: int64 [batch, top_paths, time], -1 after their ends;
    lengths and log_probs [batch, top_paths]; log_probs is the log of the probability of all paths
    that stayed in the beam, which is -`ctc_loss` if all did, and -inf (without labels) where there
    are fewer label sequences than top_paths. Repeated labels that a blank parts are two.

    Graves 2012, section 7.5.3. InvalidArgumentError for a width below 1, and more top_paths.

    >>> logits = wf.log(wf.asarray([[[0.6, 0.4], [0.6, 0.4]]]))  # the best path is blank, blank,
    >>> found = wf.nn.ctc_beam_search_decoder(logits, beam_width=4, top_paths=2)
    >>> found.labels[0, :, 0], wf.exp(found.log_probs).numpy().round(2)  # but label 1 has three
    (Tensor([ 1, -1], dtype=int64), array([[0.64, 0.36]], dtype=float32))
    """
    op = "nn.ctc_beam_search_decoder"
    t = inexact_tensor(logits, op)
    batch, time, blank = check_frames(op, t, time_major, blank_index)
    width, paths = check_int(op, beam_width, "beam_width"), check_int(op, top_paths, "top_paths")
    if not 1 <= paths <= width:
        raise InvalidArgumentError(
            f"wf.{op}: top_paths is {paths}, for a beam of width {width}",
            hint="a beam has at least as many sequences as it is to give, and that is one or more",
            location=caller_location(),
        )
    lengths = clipped_lengths(op, "logit_length", logit_length, batch, time)
    found = _searched(
        t, lengths, time_major=bool(time_major), blank=blank, width=width, paths=paths
    )
    return CTCLabels(*found)


@runs_native
def _searched(
    logits: TensorLike,
    logit_length: TensorLike | None,
    *,
    time_major: bool,
    blank: int,
    width: int,
    paths: int,
) -> tuple[Tensor, Tensor, Tensor]:
    t = as_tensor(logits)
    logs = log_softmax(widened(t if time_major else moveaxis(t, 1, 0)))
    time, batch, _ = logs.shape
    lengths = None if logit_length is None else as_tensor(logit_length)
    here = moveaxis(true_rows(lengths, time, batch), 1, 0)
    places = expand(expand_dims(arange(width), 0), (batch, width))
    empty = equal(places, 0)  # one sequence, of no labels
    never = filled(-math.inf, logs.dtype, (batch, width))
    start = _Beam(where(empty, cast(0, logs.dtype), never), never,
                  filled(PADDING, int64, (batch, width)), places, subtract(-1, places))  # fmt: skip

    def forward(beam: _Beam, row: tuple[Tensor, Tensor]) -> Any:
        after, parent, label = _frame(beam, row[0], blank)
        goes = row[1]
        kept = _Beam(*(chosen_rows(goes, *pair) for pair in zip(after, beam, strict=True)))
        return kept, (chosen_rows(goes, parent, places), chosen_rows(goes, label, PADDING))

    last, trail = scan(forward, start, (logs, here))
    scores = cut(logaddexp(last.blank, last.other), 1, 0, paths)  # a beam is in order

    def back(place: Tensor, row: tuple[Tensor, Tensor]) -> Any:
        parent, label = row
        return take_along_axis(parent, place, axis=1), take_along_axis(label, place, axis=1)

    added = scan(back, cut(places, 1, 0, paths), trail, reverse=True)[1]
    found = not_equal(scores, -math.inf)  # others are none
    labels, counts = _joined(where(expand_dims(found, 2), moveaxis(added, 0, -1), PADDING))
    return labels, counts, cast(scores, t.dtype)


def _frame(beam: _Beam, logs: Tensor, blank: int) -> tuple[_Beam, Tensor, Tensor]:
    """The beam after a frame of log probabilities [batch, classes]; of each sequence the place of
    what it was before, and the label that was added, -1 for none."""
    batch, width = beam.blank.shape
    classes = logs.shape[1]
    assert isinstance(width, int)
    assert isinstance(classes, int)
    total = logaddexp(beam.blank, beam.other)
    every = arange(classes)
    # [batch, width, classes]: a sequence with one more label
    again = equal(expand_dims(beam.last, 2), every)
    of_paths = where(again, expand_dims(beam.blank, 2), expand_dims(total, 2))
    longer = add(of_paths, expand_dims(logs, 1))
    longer = reshape(longer, (batch, width * classes))
    # [batch, of a, of b]: b is a with one more label, which is then not made once more
    alive = not_equal(total, -math.inf)
    follows = equal(expand_dims(beam.name, 2), expand_dims(beam.parent, 1))
    follows = logical_and(follows, logical_and(expand_dims(alive, 2), expand_dims(alive, 1)))
    has_parent, label = any_of(follows, axis=1), maximum(beam.last, 0)
    made = add(multiply(argmax(follows, axis=1), classes), label)
    joins = where(has_parent, take_along_axis(longer, made, axis=1), -math.inf)
    longer = at(longer)[expand_dims(arange(batch), 1), made].min(
        where(has_parent, -math.inf, math.inf)
    )
    other = logaddexp(add(beam.other, take_along_axis(logs, label, axis=1)), joins)
    stays = _Beam(add(total, cut(logs, 1, blank, blank + 1)), other, *beam[2:])
    staying = expand_dims(logaddexp(stays.blank, stays.other), 2)
    choices = where(equal(every, blank), staying, reshape(longer, (batch, width, classes)))
    best = top_k(reshape(choices, (batch, width * classes)), width)
    parent, added = floor_divide(best.indices, classes), remainder(best.indices, classes)
    same_as = equal(added, blank)
    was = _Beam(*(take_along_axis(part, parent, axis=1) for part in stays))
    after = _Beam(
        where(same_as, was.blank, -math.inf),
        where(same_as, was.other, best.values),
        where(same_as, was.last, added),
        where(same_as, was.name, _mixed(was.name, added)),
        where(same_as, was.parent, was.name),
    )
    return after, parent, where(same_as, PADDING, added)


def _mixed(name: Tensor, label: Tensor) -> Tensor:
    """The hash of a sequence with one more label: the finalizer of SplitMix64 (G. Steele et al.,
    "Fast splittable pseudorandom number generators", 2014), of int64."""
    x = add(multiply(name, 0x1E3779B97F4A7C15), add(label, 1))
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        x = multiply(bitwise_xor(x, bitwise_right_shift(x, shift)), factor)
    return bitwise_xor(x, bitwise_right_shift(x, 31))


# -------------------------------------------------------------------------------- edit distance
def edit_distance(
    hypothesis: TensorLike,
    truth: TensorLike,
    hypothesis_length: TensorLike | None = None,
    truth_length: TensorLike | None = None,
    *,
    normalize: bool = True,
) -> Tensor:
    """How many labels must be inserted, removed or replaced to make one sequence of the other, for
    each row: float32 [batch] (V. Levenshtein 1966; TF's edit_distance, of padded rows).

    hypothesis: [batch, n], truth: [batch, m], of dtypes that can be compared; the first
    hypothesis_length and truth_length [batch] of a row count, or all. normalize: divide by the
    length of the truth; for an empty truth that is inf, or 0 if the hypothesis is empty, too.
    ShapeError, TypeRuleError for operands that do not fit.

    >>> wf.nn.edit_distance([[1, 2, 3, 0]], [[1, 3, 3, 4]], [3], [4], normalize=False)
    Tensor([2.], dtype=float32)
    """
    op = "nn.edit_distance"
    a, b = promote_tensors(strong_tensor(hypothesis), strong_tensor(truth), op=op)
    if a.ndim != 2 or b.ndim != 2 or not same(a.shape[0], b.shape[0]):
        raise ShapeError(
            f"wf.{op}: hypothesis and truth are [batch, labels], got {a.describe()} and "
            f"{b.describe()}",
            location=caller_location(),
        )
    n = clipped_lengths(op, "hypothesis_length", hypothesis_length, a.shape[0], a.shape[1])
    m = clipped_lengths(op, "truth_length", truth_length, b.shape[0], b.shape[1])
    return _distance(a, b, n, m, normalize=bool(normalize))


@runs_native
def _distance(
    hypothesis: TensorLike,
    truth: TensorLike,
    n: TensorLike | None,
    m: TensorLike | None,
    *,
    normalize: bool,
) -> Tensor:
    a, b = as_tensor(hypothesis), as_tensor(truth)
    (batch, size), width = a.shape, known_size("nn.edit_distance", b, 1)
    counts = sum_of(cast(true_rows(None if m is None else as_tensor(m), width, batch), int64), 1)
    here = true_rows(None if n is None else as_tensor(n), size, batch)
    along = arange(width + 1)

    def row(before: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        label, goes = given
        replaced = cast(not_equal(b, expand_dims(label, 1)), int64)
        left = cut(before, 1, 0, width), cut(before, 1, 1, width + 1)
        near = minimum(add(left[0], replaced), add(left[1], 1))
        reached = concat([add(cut(before, 1, 0, 1), 1), near], axis=1)
        # insertions: the least of near[k] + (j - k) over all k up to j
        after = add(cumulative_min(subtract(reached, along), axis=1), along)
        return chosen_rows(goes, after, before), None

    start = expand(expand_dims(along, 0), (batch, width + 1))
    last, _ = scan(row, start, (moveaxis(a, 1, 0), moveaxis(here, 1, 0)))
    distance = squeeze(take_along_axis(last, expand_dims(counts, 1), axis=1), 1)
    found = cast(distance, DEFAULT_FLOAT)
    if not normalize:
        return found
    nothing = equal(counts, 0)
    empty = where(equal(distance, 0), cast(0, DEFAULT_FLOAT), math.inf)
    return where(nothing, empty, divide(found, cast(maximum(counts, 1), DEFAULT_FLOAT)))
