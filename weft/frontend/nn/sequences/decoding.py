"""Decoders of sequence models: beam search, greedy and sampled decoding, each one loop in native
code that ends when every sequence has ended.

The model is a step function: `step(ids, state)` takes the last id of each sequence [rows] and a
state, any nesting of tensors whose first axis is that of the sequences, and gives logits [rows,
classes] and the next state."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from weft.frontend.control.loops import while_loop
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.activations import log_softmax, softmax
from weft.frontend.ops.creation import arange
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    floor_divide,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    multiply,
    not_equal,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.indexing import take, take_along_axis
from weft.frontend.ops.manipulation import concat, cut, expand_dims, known_size, reshape, squeeze
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_int,
    check_positive,
    expand,
    filled,
    inexact_tensor,
    is_scalar,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import TopK, argmax, cumulative_sum, sort
from weft.frontend.ops.reduction import all as all_of
from weft.frontend.ops.reduction import any as any_of
from weft.frontend.ops.reduction import max as max_of
from weft.frontend.ops.reduction import min as min_of
from weft.frontend.ops.reduction import top_k as top_k_of
from weft.frontend.ops.special import pow
from weft.frontend.random.distributions import categorical, fold_in
from weft.ir.dims import Dim, Shape, SymbolicDim, same
from weft.ir.dtypes import DType, bool_, float64, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

Step = Callable[[Tensor, Any], tuple[TensorLike, Any]]

#: Up to so many of the best are found by as many passes for the maximum, each a tenth of a sort.
_PASSES = 8


class Decoded(NamedTuple):
    """Sequences: `ids` int64 [..., max_length], filled up with the end token; `lengths` int64
    [...], the end token counted; `scores` [...], log probabilities, in a beam search divided by the
    length penalty.

    >>> always = lambda ids, state: (wf.asarray([[0.0, 9.0]]), state)
    >>> wf.nn.greedy_decode(always, (), [0], max_length=3, end_token=1).lengths
    Tensor([1], dtype=int64)
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor


# ------------------------------------------------------------------------------- what is checked
def _first_ids(op: str, start_ids: TensorLike) -> Tensor:
    t = strong_tensor(start_ids)
    if not t.dtype.is_integer or t.ndim != 1:
        raise TypeRuleError(
            f"wf.{op}: start_ids are integers [batch], got {t.describe()}",
            location=caller_location(),
        )
    return cast(t, int64)


def _states(op: str, state: Any, batch: Dim) -> Any:
    """The state as tensors, each with the batch as its first axis."""
    state = pytree.tree_map(as_tensor, state)
    for t in pytree.flatten(state)[0]:
        if t.ndim < 1 or not same(t.shape[0], batch):
            raise ShapeError(
                f"wf.{op}: the first axis of each tensor of the state is the batch, {batch}, got "
                f"{t.describe()}",
                hint="a counter of steps is one for each row, too: wf.zeros([batch])",
                location=caller_location(),
            )
    return state


def _logs(op: str, step: Step, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Logits of a step, 16-bit floats widened, and the next state."""
    made: Any = step(ids, state)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise TypeRuleError(
            f"wf.{op}: step returned a {type(made).__name__}, not (logits, state)",
            location=caller_location(),
        )
    logits = inexact_tensor(made[0], op)
    if (
        logits.ndim != 2
        or not same(logits.shape[0], ids.shape[0])
        or not isinstance(logits.shape[1], int)
    ):
        raise ShapeError(
            f"wf.{op}: step gave logits {logits.describe()} for {ids.shape[0]} sequences",
            hint="logits are [sequences, classes], with a known number of classes",
            location=caller_location(),
        )
    return widened(logits), made[1]


def _end(op: str, end_token: object) -> int:
    number = check_int(op, end_token, "end_token")
    if number < 0:
        raise InvalidArgumentError(
            f"wf.{op}: end_token must not be negative, got {number}", location=caller_location()
        )
    return number


def _weak(value: float | Tensor, shape: Shape) -> Tensor:
    """Of the dtype that the loop gives it, the logits'."""
    t = expand(cast(as_tensor(value), float64), shape)
    t.weak = True
    return t


def _check_end(op: str, end: int, logits: Tensor) -> int:
    """The number of classes, of which the end token is one."""
    classes = logits.shape[1]
    assert isinstance(classes, int)
    if end >= classes:
        raise InvalidArgumentError(
            f"wf.{op}: end_token {end} is out of range for {classes} classes",
            location=caller_location(),
        )
    return classes


# ------------------------------------------------------------------------ one sequence for a row
def greedy_decode(
    step: Step,
    initial_state: Any,
    start_ids: TensorLike,
    *,
    max_length: int,
    end_token: int | None = None,
) -> Decoded:
    """The most probable id at each step, until all rows have given end_token or max_length ids.

    step: `step(ids [batch], state) -> (logits [batch, classes], state)`; the first ids are
    start_ids [batch], which are not part of the result. initial_state: any nesting of tensors
    [batch, ...]. Of equal logits the first is taken. What variables the step reads it may not
    make: make them before. Result: `Decoded`, of one sequence for each row. ShapeError,
    TypeRuleError for a step whose results do not fit.

    >>> table = wf.asarray([[0.0, 9.0, 1.0], [2.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    >>> step = lambda ids, state: (wf.take(table, ids, axis=0), state)
    >>> wf.nn.greedy_decode(step, (), [0], max_length=4, end_token=2).ids
    Tensor([[1, 2, 2, 2]], dtype=int64)
    """

    def choose(logits: Tensor, i: Tensor) -> Tensor:
        return argmax(logits, axis=1)

    return _decoded(
        "nn.greedy_decode", step, initial_state, start_ids, max_length, end_token, choose
    )


def sample_decode(
    step: Step,
    initial_state: Any,
    start_ids: TensorLike,
    key: TensorLike,
    *,
    max_length: int,
    end_token: int | None = None,
    temperature: TensorLike = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Decoded:
    """Ids drawn from the model's distribution, changed as `filter_logits` says.

    As `greedy_decode`; key: of `wf.random.key`, the result follows from it. The scores are log
    probabilities under the model itself, before temperature and filters.

    >>> even = lambda ids, state: (wf.zeros([2, 4]), state)
    >>> found = wf.nn.sample_decode(even, (), [0, 0], wf.random.key(0), max_length=3)
    >>> found.ids.shape, found.scores.numpy().round(2)
    ((2, 3), array([-4.16, -4.16], dtype=float32))
    """

    def choose(logits: Tensor, i: Tensor) -> Tensor:
        changed = filter_logits(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        return categorical(fold_in(key, i), changed, axis=1)

    return _decoded(
        "nn.sample_decode", step, initial_state, start_ids, max_length, end_token, choose
    )


def _decoded(
    op: str,
    step: Step,
    initial_state: Any,
    start_ids: TensorLike,
    max_length: object,
    end_token: object,
    choose: Callable[[Tensor, Tensor], Tensor],
) -> Decoded:
    first, limit = _first_ids(op, start_ids), check_positive(op, max_length, "max_length")
    batch, fill = first.shape[0], 0 if end_token is None else _end(op, end_token)
    state = _states(op, initial_state, batch)

    def going(i: Tensor, ids: Tensor, done: Tensor, *_: Any) -> Tensor:
        return logical_and(less(i, limit), logical_not(all_of(done)))

    def body(i: Tensor, ids: Tensor, done: Tensor, found: Tensor, lengths: Tensor, scores: Tensor,
             state: Any) -> Any:  # fmt: skip
        logits, after = _logs(op, step, ids, state)
        if end_token is not None:
            _check_end(op, fill, logits)
        chosen = where(done, fill, choose(logits, i))
        gained = squeeze(take_along_axis(log_softmax(logits), expand_dims(chosen, 1), axis=1), 1)
        scores = where(done, scores, add(scores, gained))
        lengths = add(lengths, cast(logical_not(done), int64))
        found = where(equal(arange(limit), i), expand_dims(chosen, 1), found)
        if end_token is not None:
            done = logical_or(done, equal(chosen, fill))
        return add(i, 1), chosen, done, found, lengths, scores, after

    empty, none = filled(fill, int64, (batch, limit)), filled(0, int64, (batch,))
    done = filled(False, bool_, (batch,))
    start = (filled(0, int64, ()), first, done, empty, none, _weak(0.0, (batch,)), state)
    *_, found, lengths, scores, _ = while_loop(going, body, start)
    return Decoded(found, lengths, scores)


def filter_logits(
    logits: TensorLike,
    *,
    temperature: TensorLike = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Logits [..., classes] / temperature, -inf for classes that are not to be drawn.

    top_k: the k best classes stay (A. Fan et al., 2018). top_p: then the smallest set of best
    classes whose probabilities add up to top_p or more (A. Holtzman et al., "The curious case of
    neural text degeneration", 2019). Classes that equal the last that stays, stay, too.
    InvalidArgumentError for a temperature or k that is not positive, and a p outside (0, 1].

    >>> logits = wf.log(wf.asarray([0.5, 0.1, 0.3, 0.1]))
    >>> wf.nn.softmax(wf.nn.filter_logits(logits, top_p=0.7)).numpy().round(3)
    array([0.625, 0.   , 0.375, 0.   ], dtype=float32)
    """
    op = "nn.filter_logits"
    t = inexact_tensor(logits, op)
    if is_scalar(temperature) and not temperature > 0:
        raise InvalidArgumentError(
            f"wf.{op}: temperature must be positive, got {temperature}",
            hint="wf.nn.greedy_decode is what a temperature near 0 gives",
            location=caller_location(),
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise InvalidArgumentError(
            f"wf.{op}: top_p must be above 0 and at most 1, got {top_p}", location=caller_location()
        )
    classes = t.shape[-1] if t.ndim else None
    if not isinstance(classes, int):
        raise ShapeError(
            f"wf.{op}: logits are [..., classes] with a known number of classes, got "
            f"{t.describe()}",
            location=caller_location(),
        )
    wide = divide(widened(t), temperature)
    if top_k is not None and check_positive(op, top_k, "top_k") < classes:
        least = min_of(_best_of(wide, top_k).values, axis=-1, keepdims=True)
        wide = where(less(wide, least), -math.inf, wide)
    if top_p is not None and top_p < 1:
        ordered = sort(wide, descending=True)
        share = softmax(ordered)
        stays = less(subtract(cumulative_sum(share, axis=-1), share), top_p)
        least = min_of(where(stays, ordered, math.inf), axis=-1, keepdims=True)
        wide = where(less(wide, least), -math.inf, wide)
    return cast(wide, t.dtype)


# ---------------------------------------------------------------------------------- beam search
class _Search(NamedTuple):
    """Sequences that go on: last ids [batch * width], log probabilities [batch, width], ids [batch,
    width, max_length]; the best that have ended: scores, ids, lengths; and the model's state."""

    last: Tensor
    logs: Tensor
    ids: Tensor
    scores: Tensor
    ended: Tensor
    lengths: Tensor
    state: Any


def beam_search(
    step: Step,
    initial_state: Any,
    start_ids: TensorLike,
    *,
    beam_width: int,
    max_length: int,
    end_token: int,
    length_penalty: float = 0.0,
) -> Decoded:
    """The best sequences that a beam of `beam_width` finds, best first: `Decoded` of ids [batch,
    beam_width, max_length], lengths and scores [batch, beam_width].

    step: `step(ids [rows], state) -> (logits [rows, classes], state)`, rows being batch *
    beam_width, each row of the batch beam_width times; the first ids are start_ids [batch], which
    are not part of the result. initial_state: any nesting of tensors [batch, ...]; it is repeated
    for the beam, and follows its sequences.

    A score is the log probability / ((5 + length) / 6) ** length_penalty (Y. Wu et al., "Google's
    neural machine translation system", 2016, equation 14). Sequences end with end_token or at
    max_length. As in tensor2tensor those that have ended are kept beside those that go on, and a
    row is done when no sequence that goes on can become better than those. Where there are fewer
    sequences than beam_width the rest has a score of -inf and length 0. ShapeError, TypeRuleError
    for a step whose results do not fit.

    >>> table = wf.log(wf.asarray([[0.0, 0.6, 0.4], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]))
    >>> step = lambda ids, state: (wf.take(table, ids, axis=0), state)
    >>> found = wf.nn.beam_search(step, (), [0], beam_width=2, max_length=2, end_token=2)
    >>> found.ids, wf.exp(found.scores).numpy().round(2)
    (Tensor([[[2, 2],
             [1, 2]]], dtype=int64), array([[0.4, 0.3]], dtype=float32))
    """
    op = "nn.beam_search"
    first, limit = _first_ids(op, start_ids), check_positive(op, max_length, "max_length")
    width, end = check_positive(op, beam_width, "beam_width"), _end(op, end_token)
    batch = known_size(op, first, 0)
    repeated = partial(_repeated, batch=batch, width=width)
    state = pytree.tree_map(repeated, _states(op, initial_state, batch))

    loop = _Loop(step, batch, width, limit, end, float(length_penalty))
    shape = (batch, width)
    best = where(expand_dims(equal(arange(width), 0), 0), 0.0, -math.inf)
    empty = expand(filled(end, int64, (1, 1, 1)), (*shape, limit))
    start = _Search(repeated(first), _weak(best, shape), empty, _weak(-math.inf, shape), empty,
                    filled(0, int64, shape), state)  # fmt: skip
    i, search = while_loop(loop.goes, loop.once, (filled(0, int64, ()), start))
    cut_off = divide(search.logs, loop.penalty(limit, search.logs.dtype))
    cut_off = where(equal(i, limit), cut_off, -math.inf)
    scores, ids, lengths = _merged(search, cut_off, limit)
    there = not_equal(scores, -math.inf)
    return Decoded(where(expand_dims(there, 2), ids, end), where(there, lengths, 0), scores)


class _Loop(NamedTuple):
    """What the loop of a beam search knows, its condition and its body."""

    step: Step
    batch: int | SymbolicDim
    width: int
    limit: int
    end: int
    power: float

    def penalty(self, length: TensorLike, dtype: DType) -> Tensor:
        return cast(pow(divide(add(cast(as_tensor(length), float64), 5.0), 6.0), self.power), dtype)

    def goes(self, i: Tensor, search: _Search) -> Tensor:
        dtype = search.logs.dtype
        most = maximum(self.penalty(add(i, 1), dtype), self.penalty(self.limit, dtype))
        reach = divide(max_of(search.logs, axis=1), most)  # the best score that may come
        is_open = less(min_of(search.scores, axis=1), reach)
        return logical_and(less(i, self.limit), any_of(is_open))

    def once(self, i: Tensor, search: _Search) -> tuple[Tensor, _Search]:
        op, (batch, width) = "nn.beam_search", (self.batch, self.width)
        logits, after = _logs(op, self.step, search.last, search.state)
        classes = _check_end(op, self.end, logits)
        logs = reshape(log_softmax(logits), (batch, width, classes))
        logs = add(logs, expand_dims(cast(search.logs, logs.dtype), 2))
        ends = squeeze(cut(logs, 2, self.end, self.end + 1), 2)
        ends = divide(ends, self.penalty(add(i, 1), ends.dtype))
        ended = _merged(search, ends, add(i, 1))
        onward = where(equal(arange(classes), self.end), -math.inf, logs)
        best = _best_of(reshape(onward, (batch, width * classes)), width)
        parent, chosen = floor_divide(best.indices, classes), remainder(best.indices, classes)
        rows = reshape(add(parent, expand_dims(multiply(arange(batch), width), 1)), (-1,))
        here = equal(arange(self.limit), i)
        ids = where(here, expand_dims(chosen, 2), _places(search.ids, parent))
        state = pytree.tree_map(lambda t: take(t, rows, axis=0), after)
        return add(i, 1), _Search(reshape(chosen, (-1,)), best.values, ids, *ended, state)


def _repeated(t: Tensor, batch: int | SymbolicDim, width: int) -> Tensor:
    """Each row `width` times."""
    wide = expand(expand_dims(t, 1), (batch, width, *t.shape[1:]))
    return reshape(wide, (batch * width, *t.shape[1:]))


def _places(t: Tensor, places: Tensor) -> Tensor:
    """Of each row of [batch, n, length] those places [batch, k]."""
    return take_along_axis(t, expand_dims(places, 2), axis=1)


def _merged(search: _Search, scores: Tensor, length: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """The best of what has ended and of the beam as it is now, with these scores: scores, ids,
    lengths."""
    width = scores.shape[1]
    assert isinstance(width, int)
    lengths = expand(cast(as_tensor(length), int64), scores.shape)
    best = _best_of(concat([search.scores, scores], axis=1), width)
    ids = _places(concat([search.ended, search.ids], axis=1), best.indices)
    all_lengths = concat([search.lengths, lengths], axis=1)
    return best.values, ids, take_along_axis(all_lengths, best.indices, axis=1)


def _best_of(x: Tensor, k: int) -> TopK:
    """`top_k` along the last axis. Few are found by passes for the maximum; what is then left of a
    row of -inf may name a place twice."""
    if k > _PASSES:
        return top_k_of(x, k)
    places, values, indices = arange(known_size("nn.beam_search", x, -1)), [], []
    for _ in range(k):
        found = argmax(x, axis=-1, keepdims=True)
        values.append(max_of(x, axis=-1, keepdims=True))
        indices.append(found)
        x = where(equal(places, found), -math.inf, x)
    return TopK(concat(values, axis=-1), concat(indices, axis=-1))
