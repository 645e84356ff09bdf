"""Clipping of gradients by value and by norm (TensorFlow 1's functions)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.ops.arguments import Axes
from weft.frontend.ops.arithmetic import add, clip, divide, maximum, multiply, square
from weft.frontend.ops.elementwise import sqrt
from weft.frontend.ops.promotion import TensorLike, inexact_tensor
from weft.frontend.ops.reduction import sum
from weft.frontend.tensor import Tensor
from weft.ir.errors import InvalidArgumentError
from weft.ir.source import caller_location


def clip_by_value(x: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike) -> Tensor:
    """Each element of x limited to [clip_value_min, clip_value_max]; NaN stays NaN."""
    return clip(x, clip_value_min, clip_value_max)


def clip_by_norm(x: TensorLike, clip_norm: TensorLike, axes: Axes = None) -> Tensor:
    """x * clip_norm / max(norm, clip_norm), with the Euclidean norm over `axes` (None: all of
    x).
    """
    t = inexact_tensor(x, "clip_by_norm")
    norm = sqrt(sum(square(t), axes, keepdims=True))
    return multiply(t, divide(clip_norm, maximum(norm, clip_norm)))


def global_norm(t_list: Sequence[TensorLike | None]) -> Tensor:
    """The Euclidean norm of all elements of all tensors; None entries are left out."""
    parts = [sum(square(inexact_tensor(t, "global_norm"))) for t in t_list if t is not None]
    if not parts:
        raise InvalidArgumentError(
            "wf.global_norm needs at least one tensor", location=caller_location()
        )
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part)
    return sqrt(total)


def clip_by_global_norm(
    t_list: Sequence[TensorLike | None],
    clip_norm: TensorLike,
    use_norm: TensorLike | None = None,
) -> tuple[list[Tensor | None], Tensor]:
    """(each tensor times clip_norm / max(norm, clip_norm), norm) with the norm over all of them.

    use_norm: the norm, if it is known already. None entries stay None. (Pascanu, Mikolov and Bengio
    2012.)
    """
    norm = (
        global_norm(t_list) if use_norm is None else inexact_tensor(use_norm, "clip_by_global_norm")
    )
    scale = divide(clip_norm, maximum(norm, clip_norm))
    clipped: list[Tensor | None] = []
    for t in t_list:
        if t is None:
            clipped.append(None)
            continue
        whole = inexact_tensor(t, "clip_by_global_norm")
        clipped.append(multiply(whole, scale.astype(whole.dtype)))
    return clipped, norm
