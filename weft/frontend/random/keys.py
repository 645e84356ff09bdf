"""`wf.random` with explicit keys: the same key and shape always give the same numbers.

A key is a uint32[2] tensor. Use each key once: derive others with `split` and `fold_in`. The bits
are Threefry-2x32-20 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
2011); they do not depend on the number of threads. Errors, at the caller's line: TypeRuleError for
what is no key, ShapeError and InvalidArgumentError for wrong shapes, dtypes and ranges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.frontend.ops.arguments import check_axis, check_int, check_shape, is_concrete
from weft.frontend.ops.arithmetic import (
    add,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    clip,
    less,
    minimum,
    multiply,
    negative,
    nextafter,
    remainder,
    subtract,
)
from weft.frontend.ops.creation import arange
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import erfinv, log, log1p
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_dtype,
    expand,
    inexact_tensor,
    is_scalar,
    strong_tensor,
)
from weft.frontend.ops.rearrange import unstack
from weft.frontend.ops.reduction import argmax
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dims import Shape, format_shape
from weft.ir.dtypes import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location

#: Explicit bits of the significand, and the implied one: how many random bits a uniform number has.
_PRECISION = {float16: 11, bfloat16: 8, float32: 24, float64: 53}


def key(seed: int) -> Tensor:
    """The key for an integer seed: its low 64 bits, the high word first -> uint32[2]."""
    value = check_int("random.key", seed, "seed") & 0xFFFFFFFFFFFFFFFF
    return as_tensor(np.array([value >> 32, value & 0xFFFFFFFF], np.uint32))


def _check_key(op: str, k: TensorLike) -> Tensor:
    t = as_tensor(k)
    if t.dtype is not uint32 or t.shape != (2,):
        raise TypeRuleError(
            f"wf.random.{op}: a key is a uint32[2], got {t.dtype.name} of shape "
            f"{format_shape(t.shape)}",
            hint="make one with wf.random.key(seed); split and fold_in derive others",
            location=caller_location(),
        )
    return t


def split(key: TensorLike, num: int = 2) -> list[Tensor]:
    """`num` new keys, independent of each other and of the old one, which must not be used
    again.
    """
    k = _check_key("split", key)
    count = check_int("random.split", num, "num")
    if count < 0:
        raise InvalidArgumentError(
            f"wf.random.split: num must not be negative, got {count}", location=caller_location()
        )
    return unstack(apply("random_bits", k, shape=(count, 2)))


def fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    """A new key from a key and an integer (modulo 2^32), such as a step number; it may be
    traced.
    """
    k, number = _check_key("fold_in", key), strong_tensor(data)
    if not number.dtype.is_integer or number.ndim:
        raise InvalidArgumentError(
            f"wf.random.fold_in: data must be one integer, got {number.dtype.name} of shape "
            f"{format_shape(number.shape)}",
            location=caller_location(),
        )
    return apply("random_fold_in", k, cast(number, uint32))


def bits(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Uniformly random bits as uint32 (the default) or uint64."""
    k, wanted = _check_key("bits", key), check_shape("random.bits", shape)
    target = check_dtype(dtype, uint32)
    if target is uint32:
        return apply("random_bits", k, shape=wanted)
    if target is not uint64:
        raise InvalidArgumentError(
            f"wf.random.bits gives uint32 or uint64, not {target.name}", location=caller_location()
        )
    low, high = unstack(cast(apply("random_bits", k, shape=(2, *wanted)), uint64))
    return bitwise_or(bitwise_left_shift(high, 32), low)


def _significands(op: str, k: Tensor, shape: Shape, dtype: DType, drop: int) -> tuple[Tensor, int]:
    """Random integers below 2^n, held exactly in `dtype`, and n: its precision less `drop` bits."""
    if dtype not in _PRECISION:
        raise InvalidArgumentError(
            f"wf.random.{op} gives floating numbers, not {dtype.name}",
            hint="wf.random.randint gives integers",
            location=caller_location(),
        )
    n = _PRECISION[dtype] - drop
    if dtype is float64:
        # from int64, which converts faster than uint64; it stays positive
        wide = bitwise_right_shift(bits(k, shape, uint64), 64 - n)
        return cast(cast(wide, int64), dtype), n
    word = bitwise_right_shift(apply("random_bits", k, shape=shape), 32 - n)
    return cast(cast(word, int32), dtype), n


_LEAST_SHARE = 2e-11  # between the bounds of truncated_normal, twice: float64 has 10^5 steps there


def _work_dtype(dtype: DType) -> DType:
    """The dtype to compute random numbers of `dtype` in: 16-bit floats are too coarse."""
    return float32 if dtype in (float16, bfloat16) else dtype


def _open_uniform(op: str, k: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Uniform in (0, 1), neither end included: the middles of 2^n equal steps."""
    number, n = _significands(op, k, shape, dtype, 1)
    return multiply(add(number, 0.5), 2.0**-n)


def uniform(
    key: TensorLike,
    shape: Any = (),
    dtype: object = None,
    minval: TensorLike = 0.0,
    maxval: TensorLike = 1.0,
) -> Tensor:
    """Uniform in [minval, maxval), floating (float32 by default); the bounds broadcast to
    `shape`.

    With all the bits that the dtype holds: multiples of 2^-24 in [0, 1) for float32, 2^-53 for
    float64.
    """
    k, wanted = _check_key("uniform", key), check_shape("random.uniform", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    number, n = _significands("uniform", k, wanted, target, 0)
    unit = multiply(number, 2.0**-n)
    if is_scalar(minval) and is_scalar(maxval) and (minval, maxval) == (0, 1):
        return unit
    if is_scalar(minval) and is_scalar(maxval) and not minval <= maxval:
        raise InvalidArgumentError(
            f"wf.random.uniform: minval {minval} must not be more than maxval {maxval}",
            location=caller_location(),
        )
    low, high = (_parameter(v, target, wanted) for v in (minval, maxval))
    # rounding may reach the upper end, which does not belong to the range
    return minimum(add(multiply(unit, subtract(high, low)), low), nextafter(high, low))


def _parameter(value: TensorLike, dtype: DType, shape: Shape) -> Tensor:
    """A parameter of a distribution in its dtype: a scalar, or expanded to the shape of the
    result.
    """
    t = cast(value, dtype)
    return expand(t, shape) if t.ndim else t


def normal(
    key: TensorLike,
    shape: Any = (),
    dtype: object = None,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
) -> Tensor:
    """Normally distributed, floating (float32 by default): mean + stddev * sqrt(2) * erfinv(u).

    u is uniform in (-1, 1), symmetric about 0: the inverse of the distribution function (Devroye,
    "Non-uniform random variate generation", 1986, II.2). 16-bit floats are computed in float32.
    """
    k, wanted = _check_key("normal", key), check_shape("random.normal", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    work = _work_dtype(target)
    number, n = _significands("normal", k, wanted, work, 0)
    # (2k + 1 - 2^n) / 2^n: odd numerators, so never 0 and never -1 or 1
    centred = multiply(add(multiply(number, 2), 1 - 2**n), 2.0**-n)
    standard = cast(multiply(erfinv(centred), math.sqrt(2)), target)
    return _scaled(standard, mean, stddev)


def _scaled(standard: Tensor, mean: TensorLike, stddev: TensorLike) -> Tensor:
    out = standard
    if not (is_scalar(stddev) and stddev == 1):
        out = multiply(out, _parameter(stddev, out.dtype, out.shape))
    if not (is_scalar(mean) and mean == 0):
        out = add(out, _parameter(mean, out.dtype, out.shape))
    return out


def truncated_normal(
    key: TensorLike,
    shape: Any = (),
    dtype: object = None,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    lower: float = -2.0,
    upper: float = 2.0,
) -> Tensor:
    """Normally distributed, cut off at mean + lower*stddev and mean + upper*stddev (TF1: +-2).

    By the inverse of the distribution function, without rejection. InvalidArgumentError for bounds
    that hold less than 10^-11 of the distribution.
    """
    k, wanted = (
        _check_key("truncated_normal", key),
        check_shape("random.truncated_normal", shape),
    )
    target = check_dtype(dtype, DEFAULT_FLOAT)
    work = _work_dtype(target)
    if not lower < upper:
        raise InvalidArgumentError(
            f"wf.random.truncated_normal: lower {lower} must be less than upper {upper}",
            location=caller_location(),
        )
    low, high = math.erf(lower / math.sqrt(2)), math.erf(upper / math.sqrt(2))
    if high - low < _LEAST_SHARE:
        raise InvalidArgumentError(
            f"wf.random.truncated_normal: too little of a normal distribution is between {lower} "
            f"and {upper} standard deviations: {max((high - low) / 2, 0.0):.1e}",
            location=caller_location(),
        )
    if high - low < 0.1:  # a tail is the difference of numbers near 1
        work = float64
    unit = _open_uniform("truncated_normal", k, wanted, work)
    standard = multiply(erfinv(add(multiply(unit, high - low), low)), math.sqrt(2))
    return _scaled(cast(clip(standard, lower, upper), target), mean, stddev)


def bernoulli(key: TensorLike, p: TensorLike = 0.5, shape: Any = None) -> Tensor:
    """True with probability p -> bool; `shape` (by default that of p) is one that p broadcasts
    to.
    """
    k, chance = _check_key("bernoulli", key), inexact_tensor(p, "random.bernoulli")
    wanted = chance.shape if shape is None else check_shape("random.bernoulli", shape)
    work = _work_dtype(chance.dtype)  # a coarse uniform number would miss small probabilities
    return less(uniform(k, wanted, work), expand(cast(chance, work), wanted))


def exponential(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Exponentially distributed with rate 1: -log(1 - u) for u uniform in [0, 1).

    16-bit floats are computed in float32.
    """
    target = check_dtype(dtype, DEFAULT_FLOAT)
    unit = uniform(key, shape, _work_dtype(target))
    return cast(negative(log1p(negative(unit))), target)


def gumbel(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Gumbel: -log(-log(u)) for u uniform in (0, 1). 16-bit floats: as `exponential`."""
    k, wanted = _check_key("gumbel", key), check_shape("random.gumbel", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    unit = _open_uniform("gumbel", k, wanted, _work_dtype(target))
    return cast(negative(log(negative(log(unit)))), target)


def categorical(key: TensorLike, logits: TensorLike, axis: int = -1, shape: Any = None) -> Tensor:
    """Classes drawn with probability softmax(logits) over `axis` -> int64.

    shape: that of the result, to which the logits without `axis` broadcast; by default just theirs.
    The maximum of logits plus Gumbel noise (Gumbel, "Statistical theory of extreme values", 1954).
    """
    k, scores = _check_key("categorical", key), inexact_tensor(logits, "random.categorical")
    along = check_axis("random.categorical", axis, scores.ndim)
    rest = (*scores.shape[:along], *scores.shape[along + 1 :])
    wanted = rest if shape is None else check_shape("random.categorical", shape)
    place = along + len(wanted) - len(rest)
    if place < 0:
        raise InvalidArgumentError(
            f"wf.random.categorical: logits of shape {format_shape(scores.shape)} do not broadcast "
            f"to {format_shape(wanted)}",
            location=caller_location(),
        )
    full = (*wanted[:place], scores.shape[along], *wanted[place:])
    work = _work_dtype(scores.dtype)
    return argmax(add(expand(cast(scores, work), full), gumbel(k, full, work)), axis=place)


def permutation(key: TensorLike, x: int | TensorLike, axis: int = 0) -> Tensor:
    """The parts of x along `axis` in random order; for an integer n, 0 .. n-1 in random order.

    Sorts 64 random bits for each part: every order is equally likely up to collisions, of which the
    chance is below n^2 / 2^65.
    """
    k = _check_key("permutation", key)
    t = arange(x) if isinstance(x, (int, np.integer)) else strong_tensor(x)
    along = check_axis("random.permutation", axis, t.ndim)
    order = apply("argsort", bits(k, (t.shape[along],), uint64), axis=0, descending=False)
    return apply("take", t, order, axis=along)


def shuffle(key: TensorLike, x: TensorLike) -> Tensor:
    """The rows of x (its parts along the first axis) in random order."""
    return permutation(key, strong_tensor(x))


def randint(
    key: TensorLike,
    shape: Any,
    minval: TensorLike,
    maxval: TensorLike,
    dtype: object = None,
) -> Tensor:
    """Uniform integers in [minval, maxval) (int64 by default); the bounds broadcast to `shape`.

    64 random bits modulo the range: the bias of a value is below range / 2^64. An empty range of
    known bounds raises InvalidArgumentError.
    """
    k, wanted = _check_key("randint", key), check_shape("random.randint", shape)
    target = check_dtype(dtype, DEFAULT_INT)
    if not target.is_integer:
        raise InvalidArgumentError(
            f"wf.random.randint gives integers, not {target.name}", location=caller_location()
        )
    low, high = (strong_tensor(v) for v in (minval, maxval))
    for bound in (low, high):
        if not bound.dtype.is_integer:
            raise InvalidArgumentError(
                f"wf.random.randint: the bounds must be integers, got {bound.dtype.name}",
                location=caller_location(),
            )
    if is_concrete(low) and is_concrete(high) and not (low.numpy() < high.numpy()).all():
        raise InvalidArgumentError(
            "wf.random.randint: minval must be less than maxval", location=caller_location()
        )
    # modulo 2^64 the range and the sum come out right for signed bounds, too
    start, stop = (_parameter(v, uint64, wanted) for v in (low, high))
    offset = remainder(bits(k, wanted, uint64), subtract(stop, start))
    return cast(add(start, offset), target)
