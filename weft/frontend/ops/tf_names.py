"""TensorFlow 1's names and argument orders for ops that the array API calls otherwise.

Each is a thin function over the op in a module beside this one, which describes dtypes and errors.
"""

from __future__ import annotations

from typing import Any

from weft.frontend.ops import arithmetic as ops_arithmetic
from weft.frontend.ops import creation as ops_creation
from weft.frontend.ops import reduction as ops_reduction
from weft.frontend.ops.arguments import Axes, check_axis
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.promotion import TensorLike, scalar_tensor, strong_tensor, weaken
from weft.frontend.ops.rearrange import cut, known_size
from weft.frontend.session.graph import name_tensor
from weft.frontend.tensor import Tensor, as_tensor


def cast(x: TensorLike, dtype: object) -> Tensor:
    """`astype(x, dtype)`."""
    return ops_arithmetic.astype(x, dtype)


def identity(x: TensorLike, name: str | None = None) -> Tensor:
    """x itself, as a value of its own: in a graph it comes after the current control dependencies.

    name: in a graph, what `Session.run(name)` fetches it by.
    """
    t = as_tensor(x)
    out = weaken(apply("identity", t), [t])
    return out if name is None else name_tensor(out, name)


def fill(dims: Any, value: TensorLike) -> Tensor:
    """`full(dims, value)`."""
    return ops_creation.full(dims, value)


def reduce_sum(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`sum`, but integers stay in their own dtype, as TF1 sums them."""
    t = strong_tensor(x)
    dtype = t.dtype if t.dtype.is_numeric else None
    return ops_reduction.sum(t, axis, dtype=dtype, keepdims=keepdims)


def reduce_prod(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`prod`, but integers stay in their own dtype, as TF1 multiplies them."""
    t = strong_tensor(x)
    dtype = t.dtype if t.dtype.is_numeric else None
    return ops_reduction.prod(t, axis, dtype=dtype, keepdims=keepdims)


def reduce_mean(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`mean` (of integers: a float)."""
    return ops_reduction.mean(x, axis, keepdims=keepdims)


def reduce_max(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`max`."""
    return ops_reduction.max(x, axis, keepdims=keepdims)


def reduce_min(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`min`."""
    return ops_reduction.min(x, axis, keepdims=keepdims)


def reduce_all(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`all`."""
    return ops_reduction.all(x, axis, keepdims=keepdims)


def reduce_any(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`any`."""
    return ops_reduction.any(x, axis, keepdims=keepdims)


def reduce_logsumexp(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`logsumexp`."""
    return ops_reduction.logsumexp(x, axis, keepdims=keepdims)


def cumsum(x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """TF1's running sum: `reverse` starts at the end, `exclusive` leaves each element itself
    out.
    """
    return _tf_running("cumulative_sum", x, axis, exclusive, reverse)


def cumprod(x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """TF1's running product: `reverse` starts at the end, `exclusive` leaves each element itself
    out.
    """
    return _tf_running("cumulative_prod", x, axis, exclusive, reverse)


def _tf_running(op: str, x: TensorLike, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    t = strong_tensor(x)
    along = check_axis(op, axis, t.ndim)
    if exclusive:  # shift by one element and start with the neutral one
        size, first = known_size(op, t, along), int(reverse)
        here, none = tuple(int(i == along) for i in range(t.ndim)), (0,) * t.ndim
        fill = scalar_tensor(0 if op == "cumulative_sum" else 1, t.dtype)
        t = apply("pad", t, fill, lo=none if reverse else here, hi=here if reverse else none)
        t = cut(t, along, first, size + first)
    return apply(op, t, axis=along, reverse=bool(reverse))
