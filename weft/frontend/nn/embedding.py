"""Tables of many rows, in parts over several tensors or devices (the paper, sections 4.2 and 6.4):
embedding lookup, a softmax over classes whose weights are such a table, losses that look at few of
its classes, and the samplers that draw those.

Sharded softmax: each part multiplies where it is, and gives two numbers for each row: the log of
the sum of its exponentials, and the logit of the label if that is its own. So a part receives the
inputs and sends [batch] numbers; neither weights nor logits travel.

Candidate sampling has TensorFlow 1's functions, arguments and formulas
(`nn_impl._compute_sampled_logits`; "Candidate Sampling Algorithms Reference", TensorFlow's
candidate_sampling.pdf). The numbers come from the counter-based generator of `wf.random`, so what a
sampler gives is a function of its key. The classes' weights may be in parts on several devices:
only the rows that are looked at are sent, and their gradients are `IndexedSlices`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.autodiff.gradients import stop_gradient
from weft.frontend.control.loops import while_loop
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.losses import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
)
from weft.frontend.ops.creation import constant, iota, ones_like, zeros, zeros_like
from weft.frontend.ops.dispatch import apply, open_sizes_first
from weft.frontend.ops.dynamic import partition_places
from weft.frontend.ops.elementwise import (
    add,
    divide,
    equal,
    floor_divide,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    maximum,
    minimum,
    multiply,
    negative,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices, scatter_nd_update, take, take_along_axis
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, expand_dims, reshape, squeeze, stack
from weft.frontend.ops.promotion import TensorLike, cast, inexact_tensor, widened
from weft.frontend.ops.reduction import any as any_of
from weft.frontend.ops.reduction import argmax, argsort, cumulative_sum, logsumexp
from weft.frontend.ops.reduction import max as max_of
from weft.frontend.ops.reduction import sum as sum_of
from weft.frontend.ops.special import exp, expm1, log, log1p, sqrt
from weft.frontend.random.distributions import fold_in, uniform
from weft.frontend.random.generator import default_generator
from weft.frontend.sparse.sparse_tensor import (
    SparseTensor,
    as_sparse,
    real_values,
    scattered,
)
from weft.frontend.sparse.sparse_tensor import places as entry_places
from weft.frontend.state.scopes import beside
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import DType, bool_, float32, float64, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError
from weft.ir.locations import caller_location
from weft.ir.spec import fits


def embedding_lookup(
    params: TensorLike | Sequence[TensorLike], ids: TensorLike, partition_strategy: str = "mod"
) -> Tensor:
    """The rows of the table `params` at the integers `ids`: shape ids.shape + params.shape[1:].

    params: one table, or a list of P parts of one. partition_strategy "mod": row i is row i // P of
    part i % P; "div": the parts are consecutive, the first ones a row longer where P does not
    divide the number of rows (TensorFlow 1's two). In a graph and eagerly each part is asked for
    its own rows only (dynamic_partition, take, dynamic_stitch, as in section 4.2 of the paper), on
    its device, and its gradient is `IndexedSlices`; in a compiled function, whose sizes are fixed,
    each part is asked for a row for every id. Negative ids count from the end; ids out of range are
    errors.

    >>> table = wf.asarray([[0, 1], [10, 11], [20, 21], [30, 31]])
    >>> wf.nn.embedding_lookup(table, [3, 0, 3]).numpy().tolist()
    [[30, 31], [0, 1], [30, 31]]
    >>> parts = [table[0::2], table[1::2]]  # "mod": row i is in part i % 2
    >>> wf.nn.embedding_lookup(parts, [3, 0, 3]).numpy().tolist()
    [[30, 31], [0, 1], [30, 31]]
    >>> wf.nn.embedding_lookup([table[:2], table[2:]], [3, 0], "div").numpy().tolist()
    [[30, 31], [0, 1]]
    """
    if partition_strategy not in ("mod", "div"):
        raise InvalidArgumentError(
            f"wf.nn.embedding_lookup: partition_strategy must be 'mod' or 'div', got "
            f"{partition_strategy!r}",
            location=caller_location(),
        )
    parts = list(params) if isinstance(params, (list, tuple)) else [params]
    if not parts:
        raise InvalidArgumentError(
            "wf.nn.embedding_lookup: params is an empty list", location=caller_location()
        )
    tables = [as_tensor(p) for p in parts]
    for table in tables:
        if not table.ndim:
            raise ShapeError(
                "wf.nn.embedding_lookup: params needs at least one axis", location=caller_location()
            )
    if len(tables) == 1:
        with beside(tables[0]):
            return take(tables[0], ids, axis=0)
    rows = part_sizes(tables, partition_strategy)
    places = cast(as_indices("nn.embedding_lookup", ids), int64)
    flat = reshape(places, [-1])
    total = sum(rows)  # an id below -total becomes one above, which no part has either
    flat = where(less(flat, 0), where(less(flat, -total), total, add(flat, total)), flat)
    found = (_routed if open_sizes_first() else _selected)(tables, rows, flat, partition_strategy)
    return reshape(found, [*places.shape, *tables[0].shape[1:]])


def embedding_lookup_sparse(
    params: TensorLike | Sequence[TensorLike],
    sp_ids: Any,
    sp_weights: Any = None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str = "mean",
    max_norm: float | None = None,
) -> Tensor:
    """For each row of `sp_ids` its rows of the table together -> [batch, *params.shape[1:]].

    sp_ids: a SparseTensor [batch, ...] of integers, the ids of each example; its first index says
    the example, the others do not matter. sp_weights: a weight for each id, a SparseTensor with the
    same indices, or None for 1. params, partition_strategy: as for `embedding_lookup`. combiner:
    "sum" of weight * row; "mean", which divides by the sum of the weights; "sqrtn", by the root of
    the sum of their squares. max_norm: rows of a larger l2 norm are scaled to it before. An example
    without ids gives 0. InvalidArgumentError for another combiner, TypeRuleError and ShapeError for
    what does not fit.

    >>> table = wf.asarray([[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]])
    >>> tags = wf.sparse.SparseTensor([[0, 0], [0, 1], [2, 0]], [2, 1, 0], (3, 2))
    >>> wf.nn.embedding_lookup_sparse(table, tags)  # the means of rows 2 and 1, of none, of row 0
    Tensor([[15., 16.],
            [ 0.,  0.],
            [ 0.,  1.]], dtype=float32)
    """
    op = "wf.nn.embedding_lookup_sparse"
    if combiner not in ("sum", "mean", "sqrtn"):
        raise InvalidArgumentError(
            f"{op}: combiner must be 'sum', 'mean' or 'sqrtn', got {combiner!r}",
            location=caller_location(),
        )
    ids = as_sparse(op, sp_ids)
    there, columns = entry_places(ids)
    as_indices("nn.embedding_lookup_sparse", ids.values)
    rows = embedding_lookup(params, real_values(ids, there), partition_strategy)
    ones = (1,) * (rows.ndim - 1)
    wide = widened(inexact_tensor(rows, "nn.embedding_lookup_sparse"))
    dtype = rows.dtype if rows.dtype.is_floating else wide.dtype
    if max_norm is not None:
        squares = sum_of(multiply(wide, wide), axis=tuple(range(1, wide.ndim)), keepdims=True)
        limit = max_norm * max_norm
        shrunk = divide(max_norm, sqrt(maximum(squares, limit)))  # a norm of 0 has no slope
        wide = multiply(wide, where(less_equal(squares, limit), 1, shrunk))
    weights = _weights_of(op, ids, sp_weights, wide.dtype)
    batch = ids.dense_shape[0]
    weighed = multiply(wide, reshape(weights, (*weights.shape, *ones)))
    total = scattered((batch, *wide.shape[1:]), columns[:1], weighed, there)
    if combiner != "sum":
        by = weights if combiner == "mean" else multiply(weights, weights)
        count = scattered((batch,), columns[:1], by, there)
        some = scattered((batch,), columns[:1], ones_like(weights), there)
        count = where(equal(some, 0), 1, count)
        divisor = count if combiner == "mean" else sqrt(count)
        total = divide(total, reshape(divisor, (batch, *ones)))
    return cast(total, dtype)


def _weights_of(op: str, ids: SparseTensor, sp_weights: Any, dtype: DType) -> Tensor:
    """The weight of each id."""
    if sp_weights is None:
        return ones_like(ids.values, dtype=dtype)
    weights = as_sparse(op, sp_weights)
    if not fits(weights.values.shape, ids.values.shape) or weights.ndim != ids.ndim:
        raise ShapeError(
            f"{op}: {weights.nse} weights of a tensor of shape {format_shape(weights.dense_shape)} "
            f"for {ids.nse} ids of shape {format_shape(ids.dense_shape)}",
            hint="give a weight for each id, at the same indices",
            location=caller_location(),
        )
    return cast(weights.values, dtype)


def part_sizes(tables: Sequence[Tensor], strategy: str) -> list[int]:
    """The number of rows of each part. ShapeError if they are not parts of one table."""
    rows = [t.shape[0] for t in tables]
    known = [n for n in rows if isinstance(n, int)]
    if len(known) < len(rows):
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: how many rows the parts {shapes} have is not known",
            hint="give them sizes, such as wf.placeholder(wf.float32, [1000, 64]); or look up in "
            "one table",
            location=caller_location(),
        )
    total, count = sum(known), len(tables)
    wanted = [total // count + (i < total % count) for i in range(count)]
    alike = all(t.shape[1:] == tables[0].shape[1:] for t in tables)
    if known != wanted or not alike or len({t.dtype for t in tables}) > 1:
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: {shapes} are not the parts of one table by '{strategy}'",
            hint=f"they would have {wanted} rows, and else the same shape and dtype",
            location=caller_location(),
        )
    return known


def part_of_id(flat: Tensor, rows: Sequence[int], strategy: str) -> tuple[Tensor, Tensor]:
    """For each id the part that has it, and the row there."""
    count, total = len(rows), sum(rows)
    if strategy == "mod":
        return remainder(flat, count), floor_divide(flat, count)
    short, longer = total // count, total % count
    part = floor_divide(flat, short + 1)
    if short:
        part = maximum(part, floor_divide(subtract(flat, longer), short))
    part = minimum(part, count - 1)  # which has no such row either, and says so
    start = add(part * short, where(less(part, longer), part, longer))
    return part, subtract(flat, start)


def _routed(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    part, row = part_of_id(flat, rows, strategy)
    back = partition_places(part, len(tables))
    found = []
    for table, places in zip(tables, back, strict=True):
        wanted = take(row, places)
        with beside(table):  # its rows are sent, not the table
            found.append(take(table, wanted, axis=0))
    return apply("dynamic_stitch", *back, *found, rows=flat.shape[0])


def _selected(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    if not all(rows):
        raise UnsupportedError(
            "wf.nn.embedding_lookup: in a compiled function no part may be without rows, but they "
            f"have {list(rows)}",
            hint="use fewer parts, or look up in a wf.Graph",
            location=caller_location(),
        )
    part, row = part_of_id(flat, rows, strategy)
    out: Tensor | None = None
    for number, table in enumerate(tables):
        mine = equal(part, number)
        found = take(table, where(mine, row, 0), axis=0)
        column = mine
        for _ in range(table.ndim - 1):
            column = expand_dims(column, -1)
        out = found if out is None else where(column, found, out)
    assert out is not None
    return out


def sharded_softmax_cross_entropy(
    weights: Sequence[TensorLike],
    biases: Sequence[TensorLike] | None,
    labels: TensorLike,
    inputs: TensorLike,
    partition_strategy: str = "mod",
) -> Tensor:
    """-log softmax(inputs @ weights.T + biases)[label] for each row: [batch].

    weights: the parts of [num_classes, dim], as for `embedding_lookup`; biases: the parts of
    [num_classes], or None. labels: integers [batch]. inputs: [batch, dim]. In a graph with devices
    each part's product is on the part's device; pass `colocate_gradients_with_ops=True` to the
    optimizer, and its gradient is, too. ShapeError for what does not fit, InvalidArgumentError when
    it runs for a label that is no class.

    >>> weights, inputs, labels = wf.zeros([4, 3]), wf.ones([2, 3]), [0, 3]
    >>> parts = [weights[0::2], weights[1::2]]  # two of the 4 classes each
    >>> wf.nn.sharded_softmax_cross_entropy(parts, None, labels, inputs).numpy().round(3)
    array([1.386, 1.386], dtype=float32)
    """
    op = "wf.nn.sharded_softmax_cross_entropy"
    parts = [as_tensor(w) for w in weights]
    offsets = None if biases is None else [as_tensor(b) for b in biases]
    x = as_tensor(inputs)
    label = cast(as_indices("nn.sharded_softmax_cross_entropy", labels), int64)
    fits = x.ndim == 2 and label.ndim == 1 and all(w.ndim == 2 for w in parts) and parts
    if not fits or (offsets is not None and len(offsets) != len(parts)):
        shapes = ", ".join(format_shape(w.shape) for w in parts)
        raise ShapeError(
            f"{op}: weights {shapes}, labels {format_shape(label.shape)} and inputs "
            f"{format_shape(x.shape)} are not parts of [classes, dim], [batch] and [batch, dim]",
            hint="give as many parts of the biases [classes] as of the weights",
            location=caller_location(),
        )
    rows = part_sizes(parts, partition_strategy)
    known = greater_equal(label, 0)
    owner, row = part_of_id(where(known, label, 0), rows, partition_strategy)
    row = where(known, row, sum(rows))  # no part has that
    sums: list[Tensor] = []
    found: Tensor | None = None
    for number, part in enumerate(parts):
        mine = equal(owner, number)
        with beside(part):
            logits = matmul(x, part, transpose_b=True)
            if offsets is not None:
                logits = add(logits, offsets[number])
            sums.append(logsumexp(logits, axis=1))
            place = expand_dims(where(mine, row, 0), 1)
            own = squeeze(take_along_axis(logits, place, axis=1), axis=1)
            own = where(mine, own, 0)
        found = own if found is None else add(found, own)
    assert found is not None
    total = sums[0] if len(sums) == 1 else logsumexp(stack(sums, axis=0), axis=0)
    return subtract(total, found)


class Candidates(NamedTuple):
    """The result of a sampler. sampled_candidates: i64[num_sampled]. true_expected_count:
    f32[batch, num_true], how often each true class is expected among them. sampled_expected_count:
    f32[num_sampled], the same of each that was drawn.

    >>> true = [[1], [0], [7]]
    >>> drawn = wf.nn.uniform_candidate_sampler(true, 1, 5, True, 10, key=wf.random.key(0))
    >>> {name: tensor.shape for name, tensor in drawn._asdict().items()}
    {'sampled_candidates': (5,), 'true_expected_count': (3, 1), 'sampled_expected_count': (5,)}
    """

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
    *,
    key: TensorLike | None = None,
) -> Candidates:
    """Classes of [0, range_max) with P(k) = (log(k + 2) - log(k + 1)) / log(range_max + 1): for
    classes in the order of falling frequency, as words of a vocabulary.

    true_classes: integers [batch, num_true]. unique: draw again what was drawn before, until
    `num_sampled` are different; the expected counts are then those for as many draws as it took.
    seed: that of a process-wide stream; key: the numbers are a function of it instead.
    InvalidArgumentError for numbers out of range, ShapeError for other true_classes.

    >>> key, true = wf.random.key(0), [[0], [1], [500]]
    >>> drawn = wf.nn.log_uniform_candidate_sampler(true, 1, 5, True, 1000, key=key)
    >>> drawn.sampled_candidates
    Tensor([  0,  28,   1, 116, 752], dtype=int64)
    >>> drawn.true_expected_count[:, 0].numpy().round(3)
    array([0.523, 0.345, 0.002], dtype=float32)
    """
    spread = math.log(range_max + 1) if range_max > 0 else 1.0

    def draw(k: Tensor, count: int) -> Tensor:
        power = exp(multiply(uniform(k, (count,), float64), spread))
        # rounding may reach range_max + 1
        return minimum(subtract(cast(power, int64), 1), range_max - 1)

    def probability(classes: Tensor) -> Tensor:
        c = cast(classes, float64)
        return divide(log(divide(add(c, 2.0), add(c, 1.0))), spread)

    what = "log_uniform_candidate_sampler"
    checked = _checked(what, true_classes, num_true, num_sampled, unique, range_max)
    return _sample(checked, num_sampled, unique, _key(seed, key), draw, probability)


def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
    *,
    key: TensorLike | None = None,
) -> Candidates:
    """Classes of [0, range_max), each as likely. Arguments and errors as
    `log_uniform_candidate_sampler`.

    >>> drawn = wf.nn.uniform_candidate_sampler([[1]], 1, 5, False, 10, key=wf.random.key(0))
    >>> drawn.sampled_candidates
    Tensor([1, 2, 2, 2, 5], dtype=int64)
    >>> drawn.true_expected_count  # 5 draws of 10 classes
    Tensor([[0.5]], dtype=float32)
    """

    def draw(k: Tensor, count: int) -> Tensor:
        return minimum(
            cast(multiply(uniform(k, (count,), float64), float(range_max)), int64), range_max - 1
        )

    def probability(classes: Tensor) -> Tensor:
        return add(multiply(cast(classes, float64), 0.0), 1.0 / range_max)

    what = "uniform_candidate_sampler"
    checked = _checked(what, true_classes, num_true, num_sampled, unique, range_max)
    return _sample(checked, num_sampled, unique, _key(seed, key), draw, probability)


def _key(seed: int | None, key: TensorLike | None) -> TensorLike:
    return default_generator(seed).next_key() if key is None else key


def _checked(
    what: str, true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool,
    range_max: int,
) -> Tensor:  # fmt: skip
    """The true classes as i64."""
    numbers = {"num_true": num_true, "num_sampled": num_sampled, "range_max": range_max}
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise InvalidArgumentError(
                f"wf.nn.{what}: {name} must be an integer of at least 1, got {number!r:.40}",
                location=caller_location(),
            )
    if unique and num_sampled > range_max:
        raise InvalidArgumentError(
            f"wf.nn.{what}: there are no {num_sampled} different classes of {range_max}",
            hint="draw fewer, or unique=False",
            location=caller_location(),
        )
    true = cast(as_indices(f"nn.{what}", true_classes), int64)
    if true.ndim != 2 or not same(true.shape[1], num_true):
        raise ShapeError(
            f"wf.nn.{what}: true_classes of shape {format_shape(true.shape)} are not [batch, "
            f"num_true={num_true}]",
            hint="labels of one class each: wf.reshape(labels, (-1, 1))",
            location=caller_location(),
        )
    return reshape(true, (true.shape[0], num_true))


def _sample(
    true: Tensor,
    num_sampled: int,
    unique: bool,
    key: TensorLike,
    draw: Callable[[Tensor, int], Tensor],
    probability: Callable[[Tensor], Tensor],
) -> Candidates:
    given = fold_in(key, 0)
    if unique:
        found, tries = _different(given, num_sampled, draw)
        total = cast(tries, float64)

        def expected(classes: Tensor) -> Tensor:  # 1 - (1 - p)^tries
            return negative(expm1(multiply(log1p(negative(probability(classes))), total)))
    else:
        found = draw(given, num_sampled)

        def expected(classes: Tensor) -> Tensor:
            return multiply(probability(classes), float(num_sampled))

    counts = (cast(expected(classes), float32) for classes in (true, found))
    made: list[Tensor] = [stop_gradient(t) for t in (found, *counts)]
    return Candidates(*made)


def _different(
    key: Tensor, wanted: int, draw: Callable[[Tensor, int], Tensor]
) -> tuple[Tensor, Tensor]:
    """The first `wanted` different numbers of a stream, in its order, and how many were drawn.

    The stream comes in blocks; a block is sorted behind what was found so far, so that what equals
    an earlier number is found as its neighbour.
    """
    block = wanted + wanted // 2 + 16
    places = iota((block,), 0, dtype=int64)

    def step(
        number: Tensor, count: Tensor, tries: Tensor, found: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        drawn = draw(fold_in(key, number), block)
        fresh = take(_first(concat([found, drawn])), add(places, wanted), axis=0)
        rank = add(cumulative_sum(cast(fresh, int64)), count)  # of each that is fresh, from 1
        kept = logical_and(fresh, less_equal(rank, wanted))
        at = where(kept, subtract(rank, 1), wanted)  # the last place takes what is not kept
        longer = concat([found, zeros((1,), dtype=int64)])
        longer = scatter_nd_update(longer, reshape(at, (block, 1)), drawn)
        total = max_of(rank)
        enough = greater_equal(total, wanted)
        last = add(cast(argmax(cast(greater_equal(rank, wanted), int64)), int64), 1)
        tries = add(tries, where(enough, last, block))
        found = take(longer, iota((wanted,), 0, dtype=int64), axis=0)
        return add(number, 1), minimum(total, wanted), tries, found

    nothing = np.arange(-1, -wanted - 1, -1)  # different from each other and from every class
    start = [constant(np.int64(0)), constant(np.int64(0)), constant(np.int64(0)), constant(nothing)]
    _, _, tries, found = while_loop(lambda n, count, *_: less(count, wanted), step, start)
    return found, tries


def _first(values: Tensor) -> Tensor:
    """Whether each value is the first of its kind, bool[n]."""
    order = argsort(values, stable=True)
    ordered = take(values, order, axis=0)
    same = equal(ordered[1:], ordered[:-1])
    fresh = concat([constant(np.ones(1, np.bool_)), logical_not(same)])
    blank = zeros(values.shape, dtype=bool_)
    return scatter_nd_update(blank, reshape(order, (*values.shape, 1)), fresh)


Parts = TensorLike | Sequence[TensorLike]
#: What is added to the logit of a sampled class that is a true one; TensorFlow's -FLT_MAX.
_NEVER = -float(np.finfo(np.float32).max)


def sampled_softmax_loss(
    weights: Parts,
    biases: Parts,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | tuple[Any, Any, Any] | None = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
    *,
    key: TensorLike | None = None,
) -> Tensor:
    """The softmax cross entropy over the true classes and `num_sampled` drawn ones: [batch].

    The logits are corrected by the log of how often each class is expected (Jean et al. 2014,
    section 3). weights: [num_classes, dim], or a list of parts of it (`embedding_lookup`); biases:
    [num_classes], alike. labels: integers [batch, num_true]. inputs: [batch, dim]. sampled_values:
    what a sampler gave; by default `log_uniform_candidate_sampler` draws different classes, with
    `seed` or `key`. remove_accidental_hits: a drawn class that is a true one of a row does not
    count there. For training: it underestimates the loss. Errors as the sampler's and lookup's.

    >>> weights, biases, inputs = wf.zeros([1000, 8]), wf.zeros([1000]), wf.ones([2, 8])
    >>> losses = wf.nn.sampled_softmax_loss(
    ...     weights, biases, [[3], [14]], inputs, 20, 1000, key=wf.random.key(0)
    ... )
    >>> losses.numpy().round(2)  # over all 1000 classes it is log(1000), 6.91
    array([6.21, 5.18], dtype=float32)
    """
    logits, target = _sampled_logits(
        "sampled_softmax_loss", weights, biases, labels, inputs, num_sampled, num_classes, num_true,
        sampled_values, remove_accidental_hits, partition_strategy, seed, key,
    )  # fmt: skip
    return softmax_cross_entropy_with_logits(labels=stop_gradient(target), logits=logits)


def nce_loss(
    weights: Parts,
    biases: Parts,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Candidates | tuple[Any, Any, Any] | None = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
    *,
    key: TensorLike | None = None,
) -> Tensor:
    """The noise-contrastive loss (Gutmann and Hyvarinen 2010): [batch], the sum of the logistic
    losses of telling the true classes from the drawn ones. Arguments as `sampled_softmax_loss`.

    >>> labels, inputs = [[3], [14]], wf.ones([2, 8])
    >>> drawn = wf.nn.uniform_candidate_sampler(labels, 1, 20, True, 1000, key=wf.random.key(0))
    >>> wf.nn.nce_loss(
    ...     wf.zeros([1000, 8]), wf.zeros([1000]), labels, inputs, 20, 1000, sampled_values=drawn
    ... ).shape
    (2,)
    """
    logits, target = _sampled_logits(
        "nce_loss", weights, biases, labels, inputs, num_sampled, num_classes, num_true,
        sampled_values, remove_accidental_hits, partition_strategy, seed, key,
    )  # fmt: skip
    losses = sigmoid_cross_entropy_with_logits(labels=stop_gradient(target), logits=logits)
    return sum_of(losses, axis=1)


def _sampled_logits(
    op: str,
    weights: Parts,
    biases: Parts,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    strategy: str,
    seed: int | None,
    key: TensorLike | None,
) -> tuple[Tensor, Tensor]:
    """Logits and target probabilities, [batch, num_true + num_sampled], the true classes first."""
    x = as_tensor(inputs)
    true = cast(as_indices(f"nn.{op}", labels), int64)
    if x.ndim != 2 or true.ndim != 2 or not same(true.shape[1], num_true):
        raise ShapeError(
            f"wf.nn.{op}: labels of shape {format_shape(true.shape)} and inputs of shape "
            f"{format_shape(x.shape)} are not [batch, num_true={num_true}] and [batch, dim]",
            hint="labels of one class each: wf.reshape(labels, (-1, 1))",
            location=caller_location(),
        )
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            true, num_true, num_sampled, True, num_classes, seed, key=key
        )
    drawn, true_count, drawn_count = (stop_gradient(as_tensor(t)) for t in sampled_values)
    drawn = cast(drawn, int64)
    true = reshape(true, (true.shape[0], num_true))
    if not fits(drawn.shape, (num_sampled,)):
        raise InvalidArgumentError(
            f"wf.nn.{op}: num_sampled={num_sampled}, but sampled_values has classes of shape "
            f"{format_shape(drawn.shape)}",
            location=caller_location(),
        )
    drawn = reshape(drawn, (num_sampled,))
    true_logits, drawn_logits = _logits(weights, biases, true, drawn, x, strategy)
    if remove_accidental_hits:
        hit = any_of(equal(expand_dims(true, 2), reshape(drawn, (1, 1, num_sampled))), axis=1)
        drawn_logits = add(drawn_logits, where(hit, cast(_NEVER, x.dtype), 0))
    true_logits = subtract(true_logits, cast(log(true_count), x.dtype))
    drawn_logits = subtract(drawn_logits, cast(log(drawn_count), x.dtype))
    target = [divide(ones_like(true_logits), num_true), zeros_like(drawn_logits)]
    return concat([true_logits, drawn_logits], axis=1), concat(target, axis=1)


def _logits(
    weights: Parts, biases: Parts, true: Tensor, drawn: Tensor, x: Tensor, strategy: str
) -> tuple[Tensor, Tensor]:
    """Those of the true classes, [batch, num_true], and of the drawn ones, [batch, num_sampled].

    One lookup in each table, of all ids.
    """
    ids = concat([reshape(true, (-1,)), drawn])
    w = cast(embedding_lookup(weights, ids, strategy), x.dtype)
    b = cast(embedding_lookup(biases, ids, strategy), x.dtype)
    (count,) = drawn.shape
    assert isinstance(count, int)
    own = reshape(w[:-count], (*true.shape, w.shape[1]))
    dots = add(sum_of(multiply(expand_dims(x, 1), own), axis=2), reshape(b[:-count], true.shape))
    return dots, add(matmul(x, w[-count:], transpose_b=True), b[-count:])
