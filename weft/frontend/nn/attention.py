"""Attention, composed of public ops: the pass fuse_attention makes it one kernel."""

from __future__ import annotations

import math

from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.activations import softmax
from weft.frontend.ops.creation import arange
from weft.frontend.ops.elementwise import add, greater_equal, multiply, where
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import reshape
from weft.frontend.ops.promotion import TensorLike, cast, inexact_tensor, strong_tensor, widened
from weft.ir.dims import format_shape
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.locations import caller_location

_NAME = "nn.scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale query key^T, masked) value: each row of `query` is answered with a mean of the
    rows of `value` (A. Vaswani et al., "Attention is all you need", 2017, equation 1).

    query: (..., rows, depth), key: (..., columns, depth), value: (..., columns, width), all of one
    floating dtype and with the same leading sizes (heads, say); the result is (..., rows, width).
    attn_mask: broadcasts to (..., rows, columns); a bool one is True where a row sees a column,
    another is added to the scaled scores. is_causal: row i sees columns up to i; both may be given.
    scale: 1 / sqrt(depth) if it is None. Names and meaning are PyTorch's; a row that sees nothing
    is NaN. 16-bit floats are computed in float32.

    Compiled for the CPU, float32 and float64, it is one kernel each for values and for gradients,
    whose memory grows with rows and columns and not with their product; docs/performance.md says
    when. ShapeError, TypeRuleError for operands that do not fit.
    """
    q, k, v = (inexact_tensor(x, _NAME) for x in (query, key, value))
    _check(q, k, v)
    dtype = q.dtype
    q, k, v = (widened(t) for t in (q, k, v))
    factor = 1 / math.sqrt(_depth(q)) if scale is None else scale
    scores = multiply(matmul(q, k, transpose_b=True), factor)
    mask = None if attn_mask is None else strong_tensor(attn_mask)
    if mask is not None and mask.dtype.kind != "bool":
        if not mask.dtype.is_floating:
            raise TypeRuleError(
                f"{_NAME}: attn_mask is of dtype {mask.dtype.name}",
                hint="a mask is bool, or of floats that are added to the scores",
                location=caller_location(),
            )
        scores = add(scores, cast(mask, scores.dtype))
    elif mask is not None:
        scores = where(mask, scores, -math.inf)
    if is_causal:
        rows, columns = scores.shape[-2:]
        below = greater_equal(reshape(arange(rows), (-1, 1)), arange(columns))
        scores = where(below, scores, -math.inf)
    return cast(matmul(softmax(scores), v), dtype)


def _depth(query: Tensor) -> int:
    depth = query.shape[-1]
    if not isinstance(depth, int):
        raise ShapeError(
            f"{_NAME}: the last size of query, {format_shape(query.shape)}, is not known",
            hint="give scale=",
            location=caller_location(),
        )
    return max(depth, 1)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = ", ".join(format_shape(t.shape) for t in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        names = ", ".join(t.dtype.name for t in (query, key, value))
        raise TypeRuleError(
            f"{_NAME}: query, key and value have the dtypes {names}",
            hint="convert them with wf.astype",
            location=caller_location(),
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"{_NAME}: query, key and value have shapes {shapes}",
            hint="each has rows and columns: (..., rows, depth)",
            location=caller_location(),
        )
