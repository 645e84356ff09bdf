"""Gradients of a batch that do not depend on who computes which part of it.

A sum over the rows of a batch rounds otherwise than the sum of the sums over its halves. So that k
workers have the bits of one process on all their rows, both compute in the same microbatches, whose
gradients are added in pairs of neighbours (`means.py`): what a worker adds up of a power of two of
them is then one of the sums that one process makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontend.control.scan import map_fn
from weft.frontend.indexed_slices import IndexedSlices
from weft.frontend.ops.arguments import check_int
from weft.frontend.ops.shape import reshape
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import current_trace
from weft.frontend.train.optimizer import GradientAndVariable, Optimizer
from weft.frontend.train.replicas.means import mean_tensor
from weft.frontend.train.replicas.sync import SyncReplicas
from weft.frontend.variable import Variable
from weft.ir.dims import product
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

_WHAT = "wf.train.microbatch_gradients"


def microbatch_gradients(
    optimizer: Optimizer | SyncReplicas,
    loss: Any,
    batch: Any,
    microbatches: int,
    var_list: Sequence[Variable] | Variable | None = None,
) -> tuple[Tensor, list[GradientAndVariable]]:
    """The mean of `loss` over the microbatches of a batch, and its gradients, for
    `apply_gradients`: one microbatch after another, in a loop.

    loss: a function of a microbatch (of as many arguments as `batch` is a tuple or list of) that
    gives the mean over its rows. batch: tensors of one size of the first axis, which is known and a
    multiple of `microbatches`. optimizer, var_list: as `optimizer.compute_gradients`.

    The order of all sums follows from `microbatches` alone: k workers of `SyncReplicas` (or towers
    of `mean_gradients`) with n microbatches each, of one size, have bit for bit the gradients and
    mean losses (added in pairs) of one process with k * n of them, if n is a power of two: in
    sessions with `reproducible=True`; in others if n is 2 or more, since one alone is no loop and
    may be fused otherwise. The memory is `microbatches` times that of the gradients. ShapeError for
    sizes that do not divide.
    """
    trace = current_trace()
    if trace is None:
        raise FailedPreconditionError(
            f"{_WHAT} is for graphs and compiled functions",
            hint="use it inside `with graph.as_default():` or @wf.compile",
            location=caller_location(),
        )
    if not callable(loss) or not isinstance(optimizer, Optimizer | SyncReplicas):
        raise TypeRuleError(
            f"{_WHAT}: the arguments are an optimizer and a function that computes the loss, got a "
            f"{type(optimizer).__name__} and a {type(loss).__name__}",
            location=caller_location(),
        )
    count = check_int(_WHAT, microbatches, "microbatches")
    if count < 1:
        raise InvalidArgumentError(
            f"{_WHAT}: microbatches={count}, at least 1 is needed", location=caller_location()
        )
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    cut = tuple(_cut(as_tensor(part), count) for part in parts)
    pairs: list[GradientAndVariable] = []

    def body(rows: tuple[Tensor, ...]) -> tuple[Any, ...]:
        value = loss(*rows)
        pairs[:] = optimizer.compute_gradients(value, var_list)
        return (value, *(_leaves(g) for g, _ in pairs if g is not None))

    values, *stacks = map_fn(body, cut)
    rest = iter(stacks)
    found = [(None if g is None else _mean(g, next(rest), count), v) for g, v in pairs]
    return _mean_tensor(values, count), found


def _cut(part: Tensor, count: int) -> Tensor:
    """[microbatches, rows, ...]."""
    rows = part.shape[0] if part.ndim else 0
    if not isinstance(rows, int) or not rows or rows % count:
        raise ShapeError(
            f"{_WHAT}: {part.describe()} cannot be cut into {count} microbatches of one size",
            hint="the first axis is of the batch; its size must be known, and a multiple",
            location=caller_location(),
        )
    return reshape(part, (count, rows // count, *part.shape[1:]))


def _leaves(gradient: Tensor | IndexedSlices) -> Any:
    if isinstance(gradient, IndexedSlices):
        return gradient.values, gradient.indices
    return gradient


def _mean(like: Tensor | IndexedSlices, stack: Any, count: int) -> Tensor | IndexedSlices:
    """The mean of the microbatches' gradients; of sparse ones the rows of all."""
    if not isinstance(like, IndexedSlices):
        return _mean_tensor(stack, count)
    values, indices = (reshape(x, (product(x.shape[:2]), *x.shape[2:])) for x in stack)
    return IndexedSlices(values, indices, like.dense_shape) / count


def _mean_tensor(stack: Tensor, count: int) -> Tensor:
    return mean_tensor([stack[i] for i in range(count)])
