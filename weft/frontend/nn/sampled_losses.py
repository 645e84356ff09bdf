"""Losses over many classes that look at few of them: sampled softmax and noise-contrastive
estimation, with TensorFlow 1's arguments and formulas (`nn_impl._compute_sampled_logits`).

The classes' weights may be in parts on several devices: only the rows that are looked at are sent,
and their gradients are `IndexedSlices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.nn.embedding import embedding_lookup
from weft.frontend.nn.losses import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
)
from weft.frontend.nn.sampling import Candidates, log_uniform_candidate_sampler
from weft.frontend.ops.arithmetic import add, divide, equal, multiply, subtract, where
from weft.frontend.ops.creation import ones_like, zeros_like
from weft.frontend.ops.elementwise import log
from weft.frontend.ops.index import as_indices
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.ops.rearrange import concat
from weft.frontend.ops.reduction import any as any_of
from weft.frontend.ops.reduction import sum as sum_of
from weft.frontend.ops.shape import expand_dims, reshape
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.autodiff import stop_gradient
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location
from weft.ir.type_rules import fits

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
    losses of telling the true classes from the drawn ones. Arguments as `sampled_softmax_loss`."""
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
