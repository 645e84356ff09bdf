"""Further distributions of `wf.random`, by the inverses of their distribution functions (Devroye,
"Non-uniform random variate generation", 1986, II.2), and draws from given values.

Keys, shapes and errors as in `weft.frontend.random.keys`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.frontend.ops.arguments import check_axis, check_shape
from weft.frontend.ops.arithmetic import (
    abs,
    add,
    copysign,
    less,
    multiply,
    negative,
    subtract,
    where,
)
from weft.frontend.ops.creation import arange
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import log, log1p, tan
from weft.frontend.ops.promotion import TensorLike, cast, check_dtype, inexact_tensor, strong_tensor
from weft.frontend.ops.rearrange import cut
from weft.frontend.ops.reduction import cumulative_sum
from weft.frontend.ops.shape import reshape
from weft.frontend.random.keys import (
    _check_key,
    _open_uniform,
    _work_dtype,
    gumbel,
    permutation,
    randint,
    uniform,
)
from weft.frontend.tensor import Tensor
from weft.ir.dims import Dim, Shape, format_shape, product
from weft.ir.dtypes import DEFAULT_FLOAT, DEFAULT_INT, DType
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


def _unit(op: str, key: TensorLike, shape: Any, dtype: object) -> tuple[Tensor, DType]:
    """Uniform in (0, 1), wide enough to compute in, and the dtype of the result."""
    k, wanted = _check_key(op, key), check_shape(f"random.{op}", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    return _open_uniform(op, k, wanted, _work_dtype(target)), target


def rademacher(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """-1 or 1, equally likely (int64 by default)."""
    k, wanted = _check_key("rademacher", key), check_shape("random.rademacher", shape)
    is_low = less(apply("random_bits", k, shape=wanted), 1 << 31)
    return cast(where(is_low, 1, -1), check_dtype(dtype, DEFAULT_INT))


def laplace(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Laplace: a sign and an exponential number, from one u in (-1, 1)."""
    unit, target = _unit("laplace", key, shape, dtype)
    centred = subtract(multiply(unit, 2), 1)
    return cast(copysign(negative(log1p(negative(abs(centred)))), centred), target)


def logistic(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard logistic: log(u / (1 - u)) for u uniform in (0, 1)."""
    unit, target = _unit("logistic", key, shape, dtype)
    return cast(subtract(log(unit), log1p(negative(unit))), target)


def cauchy(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Cauchy: tan(pi (u - 1/2)) for u uniform in (0, 1)."""
    unit, target = _unit("cauchy", key, shape, dtype)
    return cast(tan(multiply(subtract(unit, 0.5), math.pi)), target)


def choice(
    key: TensorLike,
    a: int | TensorLike,
    shape: Any = (),
    replace: bool = True,
    p: TensorLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Parts of `a` along `axis` drawn at random, `shape` of them; of an integer n: from 0 .. n-1.

    p: the probabilities, a vector (weights are scaled to a sum of 1); None: all equal. Without
    replacement and with p: the largest of log p plus Gumbel noise (Efraimidis and Spirakis,
    "Weighted random sampling with a reservoir", 2006), which takes parts of probability 0 last.
    """
    k, wanted = _check_key("choice", key), check_shape("random.choice", shape)
    values = arange(a) if isinstance(a, (int, np.integer)) else strong_tensor(a)
    along = check_axis("random.choice", axis, values.ndim)
    size, count = _counts(values.shape[along], product(wanted), replace)
    weights = None if p is None else inexact_tensor(p, "random.choice")
    if weights is not None and weights.shape != (size,):
        raise ShapeError(
            f"wf.random.choice: p of shape {format_shape(weights.shape)} for {size} values",
            location=caller_location(),
        )
    if replace:
        chosen = _with_replacement(k, size, wanted, weights)
    elif weights is None:
        chosen = reshape(cut(permutation(k, size), 0, 0, count), wanted)
    else:
        noise = gumbel(k, (size,), _work_dtype(weights.dtype))
        order = apply("argsort", add(log(cast(weights, noise.dtype)), noise), axis=0,
                      descending=True)  # fmt: skip
        chosen = reshape(cut(order, 0, 0, count), wanted)
    return apply("take", values, chosen, axis=along)


def _counts(size: Dim, count: Dim, replace: bool) -> tuple[int, int]:
    """How many there are, and how many are drawn."""
    if not isinstance(size, int) or not isinstance(count, int):
        raise ShapeError("wf.random.choice needs sizes that are known", location=caller_location())
    if count and not size:
        raise InvalidArgumentError(
            "wf.random.choice: there is nothing to choose from", location=caller_location()
        )
    if not replace and count > size:
        raise InvalidArgumentError(
            f"wf.random.choice: {count} of {size} values cannot be drawn without replacement",
            location=caller_location(),
        )
    return size, count


def _with_replacement(k: Tensor, size: int, shape: Shape, weights: Tensor | None) -> Tensor:
    if weights is None:
        return randint(k, shape, 0, size)
    ends = cumulative_sum(cast(weights, _work_dtype(weights.dtype)))
    total = apply("take", ends, strong_tensor(size - 1), axis=0)
    # u * total < total but for rounding, which must not reach past the last part that has weight
    drawn = multiply(uniform(k, shape, ends.dtype), total)
    found = apply("searchsorted", ends, drawn, side="right")
    last = apply("searchsorted", ends, reshape(total, (1,)), side="left")
    return apply("minimum", found, apply("broadcast_to", reshape(last, ()), shape=shape))
