"""Gradients between differentiation and update: clipping by value and by norm (TensorFlow 1's
functions), and the mean of several replicas' gradients.

The mean is added in one order: neighbours in pairs, then pairs of pairs,
((g0 + g1) + (g2 + g3)) + g4. Of two, four, eight ... neighbours the same sum is made whoever adds
them, so who adds what does not change its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

from weft.frontend.autodiff.indexed_slices import IndexedSlices, added, masked
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.elementwise import abs, add, clip, divide, maximum, multiply, square
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    common_dtype,
    inexact_tensor,
    widened,
)
from weft.frontend.ops.reduction import sum
from weft.frontend.ops.special import sqrt
from weft.frontend.optim.optimizer import GradientAndVariable
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


@overload
def clip_by_value(
    x: IndexedSlices, clip_value_min: TensorLike, clip_value_max: TensorLike
) -> IndexedSlices: ...
@overload
def clip_by_value(
    x: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike
) -> Tensor: ...
def clip_by_value(
    x: TensorLike | IndexedSlices, clip_value_min: TensorLike, clip_value_max: TensorLike
) -> Tensor | IndexedSlices:
    """Each element of x limited to [clip_value_min, clip_value_max]; NaN stays NaN.

    Of IndexedSlices the rows that are there: equal indices are summed first, and the rows that are
    not there stay 0.

    >>> wf.train.clip_by_value(wf.asarray([-5.0, 0.5, 9.0]), -1.0, 1.0)
    Tensor([-1. ,  0.5,  1. ], dtype=float32)
    """
    if not isinstance(x, IndexedSlices):
        return clip(x, clip_value_min, clip_value_max)
    rows, is_first = x.coalesced()
    return masked(rows.with_values(clip(rows.values, clip_value_min, clip_value_max)), is_first)


@overload
def clip_by_norm(x: IndexedSlices, clip_norm: TensorLike, axes: None = None) -> IndexedSlices: ...
@overload
def clip_by_norm(x: TensorLike, clip_norm: TensorLike, axes: Axes = None) -> Tensor: ...
def clip_by_norm(
    x: TensorLike | IndexedSlices, clip_norm: TensorLike, axes: Axes = None
) -> Tensor | IndexedSlices:
    """x * clip_norm / max(norm, clip_norm), with the Euclidean norm over `axes` (None: all of
    x).

    IndexedSlices stay such; their norm is that of the tensor they stand for, and `axes` is None.

    >>> wf.train.clip_by_norm(wf.asarray([3.0, 4.0]), 2.5)
    Tensor([1.5, 2. ], dtype=float32)
    >>> wf.train.clip_by_norm(wf.asarray([0.3, 0.4]), 2.5)  # within: as it is
    Tensor([0.3, 0.4], dtype=float32)
    """
    if isinstance(x, IndexedSlices):
        if axes is not None:
            raise InvalidArgumentError(
                "wf.train.clip_by_norm: axes= is for dense tensors", location=caller_location()
            )
        norm = sqrt(_square_sum(x))
        return x.with_values(_limited(x.values, norm, clip_norm))
    t = inexact_tensor(x, "clip_by_norm")
    norm = sqrt(sum(_squares(t), axes, keepdims=True))
    return _limited(t, norm, clip_norm)


def _limited(t: Tensor, norm: Tensor, clip_norm: TensorLike) -> Tensor:
    dtype = common_dtype("clip_by_norm", [t, clip_norm])
    return cast(multiply(widened(t), divide(clip_norm, maximum(norm, clip_norm))), dtype)


def global_norm(t_list: Sequence[TensorLike | IndexedSlices | None]) -> Tensor:
    """The Euclidean norm of all elements of all tensors; None entries are left out. Of 16-bit
    floats it is float32.

    >>> wf.train.global_norm([wf.asarray([2.0, 3.0]), None, wf.asarray(6.0)])
    Tensor(7., dtype=float32)
    """
    parts = [_square_sum(t) for t in t_list if t is not None]
    if not parts:
        raise InvalidArgumentError(
            "wf.train.global_norm needs at least one tensor", location=caller_location()
        )
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return sqrt(total)


def _squares(t: Tensor) -> Tensor:
    """|t|^2, of 16-bit floats in float32: that of 300 is no float16."""
    return square(abs(widened(t))) if t.dtype.is_complex else square(widened(t))


def _square_sum(t: TensorLike | IndexedSlices) -> Tensor:
    if isinstance(t, IndexedSlices):  # equal rows add up before they are squared
        return sum(_squares(t.coalesced()[0].values))
    return sum(_squares(inexact_tensor(t, "global_norm")))


def clip_by_global_norm(
    t_list: Sequence[TensorLike | IndexedSlices | None],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = None,
) -> tuple[list[Tensor | IndexedSlices | None], Tensor]:
    """(each tensor times clip_norm / max(norm, clip_norm), norm) with the norm over all of them.

    use_norm: the norm, if it is known already. None entries stay None, IndexedSlices such.
    (Pascanu, Mikolov and Bengio 2012.)

    >>> gradients = [wf.asarray([2.0, 3.0]), wf.asarray(6.0)]
    >>> wf.train.clip_by_global_norm(gradients, 3.5)
    ([Tensor([1. , 1.5], dtype=float32), Tensor(3., dtype=float32)], Tensor(7., dtype=float32))
    """
    norm = (
        global_norm(t_list) if use_norm is None else inexact_tensor(use_norm, "clip_by_global_norm")
    )
    scale = divide(clip_norm, maximum(norm, clip_norm))
    clipped: list[Tensor | IndexedSlices | None] = []
    for t in t_list:
        if t is None:
            clipped.append(None)
        elif isinstance(t, IndexedSlices):
            clipped.append(t.with_values(_scaled(t.values, scale)))
        else:
            clipped.append(_scaled(inexact_tensor(t, "clip_by_global_norm"), scale))
    return clipped, norm


def _scaled(t: Tensor, scale: Tensor) -> Tensor:
    wide = widened(t)
    return cast(multiply(wide, cast(scale, wide.dtype)), t.dtype)


T = TypeVar("T")


def in_pairs(parts: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """`combine` over neighbours, then over what that gives, until one is left; the last of an odd
    number waits."""
    level = list(parts)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def mean_gradients(
    grads_and_vars: Sequence[Sequence[GradientAndVariable]],
) -> list[GradientAndVariable]:
    """The mean of the gradients that several replicas have for the same variables, added in pairs
    of neighbours: ((g0 + g1) + (g2 + g3)) / 4. Of `IndexedSlices` it has the rows of all.

    What a variable has no gradient for in any replica is None. InvalidArgumentError if the replicas
    do not name the same variables in the same order, or only some have a gradient.

    >>> w, optimizer = wf.Variable(1.0), wf.train.SGD(1.0)
    >>> towers = [optimizer.compute_gradients(lambda x=x: x * w) for x in (1.0, 4.0)]
    >>> wf.train.mean_gradients(towers)  # for optimizer.apply_gradients
    [(Tensor(2.5, dtype=float32), <Variable 'variable' f32[]: 1.>)]
    """
    rows = [list(pairs) for pairs in grads_and_vars]
    if not rows or any(_ids(row) != _ids(rows[0]) for row in rows):
        raise InvalidArgumentError(
            "mean_gradients: the replicas have gradients of different variables",
            hint="give each replica's compute_gradients the same var_list",
            location=caller_location(),
        )
    found: list[GradientAndVariable] = []
    for column in zip(*rows, strict=True):
        variable = column[0][1]
        parts = [g for g, _ in column if g is not None]
        if parts and len(parts) < len(column):
            raise InvalidArgumentError(
                f"mean_gradients: only some replicas have a gradient of '{variable.name}'",
                location=caller_location(),
            )
        found.append((mean_of(parts) if parts else None, variable))
    return found


def _ids(pairs: Sequence[GradientAndVariable]) -> list[int]:
    return [id(v) for _, v in pairs]


def mean_of(parts: Sequence[Tensor | IndexedSlices]) -> Tensor | IndexedSlices:
    """Their mean, as `mean_gradients` adds; `IndexedSlices` only if all are."""
    slices = [p for p in parts if isinstance(p, IndexedSlices)]
    if len(slices) == len(parts):
        return added(slices) / len(parts)
    return mean_tensor([p.to_dense() if isinstance(p, IndexedSlices) else p for p in parts])


def mean_tensor(parts: Sequence[Tensor]) -> Tensor:
    """The mean of tensors."""
    return divide(in_pairs(parts, add), len(parts))
