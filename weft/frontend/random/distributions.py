"""`wf.random` with explicit keys: the same key and shape always give the same numbers.

A key is a uint32[2] tensor. Use each key once: derive others with `split` and `fold_in`. The bits
are Threefry-2x32-20 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
2011); they do not depend on the number of threads. Errors, at the caller's line: TypeRuleError for
what is no key, ShapeError and InvalidArgumentError for wrong shapes, dtypes and ranges.

Distributions are drawn by the inverses of their distribution functions (Devroye, "Non-uniform
random variate generation", 1986, II.2), or by rejection, in rounds for all elements at once, in a
native loop, until each has been accepted. Of rejection the parameters are part of the test, so
those numbers have no gradient: it is 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.frontend.autodiff.gradients import stop_gradient
from weft.frontend.control.loops import while_loop
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import arange, full_like, zeros_like
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    abs,
    add,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    clip,
    copysign,
    divide,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    minimum,
    multiply,
    negative,
    nextafter,
    remainder,
    square,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import cut, reshape, unstack
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_dtype,
    check_int,
    check_shape,
    expand,
    inexact_tensor,
    is_concrete,
    is_scalar,
    strong_tensor,
)
from weft.frontend.ops.reduction import any, argmax, cumulative_sum, max, sum
from weft.frontend.ops.special import erfinv, exp, lgamma, log, log1p, pow, sigmoid, sqrt, tan
from weft.ir.dims import Dim, Shape, SymbolicDim, broadcast_shapes, format_shape, product
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
    promote,
    uint32,
    uint64,
)
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.ir.spec import fits

#: Explicit bits of the significand, and the implied one: how many random bits a uniform number has.
_PRECISION = {float16: 11, bfloat16: 8, float32: 24, float64: 53}


def key(seed: int) -> Tensor:
    """The key for an integer seed: its low 64 bits, the high word first -> uint32[2].

    >>> wf.random.key(7)
    Tensor([0, 7], dtype=uint32)
    """
    value = check_int("random.key", seed, "seed") & 0xFFFFFFFFFFFFFFFF
    return as_tensor(np.array([value >> 32, value & 0xFFFFFFFF], np.uint32))


def _check_key(op: str, k: TensorLike) -> Tensor:
    t = as_tensor(k)
    if t.dtype is not uint32 or t.shape != (2,):
        raise TypeRuleError(
            f"wf.random.{op}: a key is a uint32[2], got {t.dtype.name} of shape "
            f"{format_shape(t.shape)}",
            hint="make one with wf.random.key(seed); split and fold_in derive others. split gives "
            "a list: a key for each example of wf.vmap is wf.stack(keys)",
            location=caller_location(),
        )
    return t


def split(key: TensorLike, num: int = 2) -> list[Tensor]:
    """`num` new keys, independent of each other and of the old one, which must not be used
    again.

    >>> for_weights, for_data = wf.random.split(wf.random.key(0))
    >>> for_weights, for_data
    (Tensor([1797259609, 2579123966], dtype=uint32), Tensor([1351547692, 3235790642], dtype=uint32))
    """
    k = _check_key("split", key)
    count = check_int("random.split", num, "num")
    if count < 0:
        raise InvalidArgumentError(
            f"wf.random.split: num must not be negative, got {count}", location=caller_location()
        )
    return list(unstack(apply("random_bits", k, shape=(count, 2))))


def fold_in(key: TensorLike, data: TensorLike) -> Tensor:
    """A new key from a key and an integer (modulo 2^32), such as a step number; it may be
    traced.

    >>> keys = [wf.random.fold_in(wf.random.key(0), step) for step in (1, 2)]
    >>> [wf.random.randint(key, [3], 0, 10).numpy().tolist() for key in keys]
    [[1, 8, 3], [5, 2, 5]]
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
    """Uniformly random bits as uint32 (the default) or uint64.

    >>> wf.random.bits(wf.random.key(0), [2], wf.uint64)
    Tensor([ 5804853137921540441, 13897614986671967998], dtype=uint64)
    """
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

    >>> key = wf.random.key(0)
    >>> wf.random.uniform(key, [3]).numpy().round(3)
    array([0.418, 0.6  , 0.315], dtype=float32)
    >>> wf.random.uniform(key, [3], minval=[0.0, 10.0, 20.0], maxval=30.0).numpy().round(2)
    array([12.55, 22.01, 23.15], dtype=float32)
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

    >>> key = wf.random.key(0)
    >>> wf.random.normal(key, [3]).numpy().round(3)
    array([-0.206,  0.255, -0.483], dtype=float32)
    >>> wf.random.normal(key, [3], mean=100.0, stddev=[0.0, 1.0, 10.0]).numpy().round(1)
    array([100. , 100.3,  95.2], dtype=float32)
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

    >>> x = wf.random.truncated_normal(wf.random.key(0), [10_000], stddev=0.1)
    >>> bool(wf.all(wf.abs(x) <= 0.2)), round(float(wf.std(x)), 2)
    (True, 0.09)
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
    share = (high - low) / 2
    if high - low < _LEAST_SHARE:
        raise InvalidArgumentError(
            f"wf.random.truncated_normal: too little of a normal distribution is between {lower} "
            f"and {upper} standard deviations: {share if share > 0 else 0.0:.1e}",
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

    >>> wf.count_nonzero(wf.random.bernoulli(wf.random.key(0), 0.2, [10_000]))
    Tensor(1966, dtype=int64)
    """
    k, chance = _check_key("bernoulli", key), inexact_tensor(p, "random.bernoulli")
    wanted = chance.shape if shape is None else check_shape("random.bernoulli", shape)
    work = _work_dtype(chance.dtype)  # a coarse uniform number would miss small probabilities
    return less(uniform(k, wanted, work), expand(cast(chance, work), wanted))


def exponential(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Exponentially distributed with rate 1: -log(1 - u) for u uniform in [0, 1).

    16-bit floats are computed in float32.

    >>> x = wf.random.exponential(wf.random.key(0), [10_000])
    >>> bool(wf.all(x >= 0)), round(float(wf.mean(x)), 1)
    (True, 1.0)
    """
    target = check_dtype(dtype, DEFAULT_FLOAT)
    unit = uniform(key, shape, _work_dtype(target))
    return cast(negative(log1p(negative(unit))), target)


def gumbel(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Gumbel: -log(-log(u)) for u uniform in (0, 1). 16-bit floats: as `exponential`.

    >>> wf.random.gumbel(wf.random.key(0), [3]).numpy().round(3)
    array([ 0.138,  0.673, -0.145], dtype=float32)
    """
    k, wanted = _check_key("gumbel", key), check_shape("random.gumbel", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    unit = _open_uniform("gumbel", k, wanted, _work_dtype(target))
    return cast(negative(log(negative(log(unit)))), target)


def categorical(key: TensorLike, logits: TensorLike, axis: int = -1, shape: Any = None) -> Tensor:
    """Classes drawn with probability softmax(logits) over `axis` -> int64.

    shape: that of the result, to which the logits without `axis` broadcast; by default just theirs.
    The maximum of logits plus Gumbel noise (Gumbel, "Statistical theory of extreme values", 1954).

    >>> logits = wf.log(wf.asarray([0.1, 0.2, 0.7]))
    >>> wf.random.categorical(wf.random.key(0), logits, shape=[8])
    Tensor([2, 2, 2, 2, 1, 2, 1, 2], dtype=int64)
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


def permutation(key: TensorLike, x: TensorLike, axis: int = 0) -> Tensor:
    """The parts of x along `axis` in random order; for a number n, 0 .. n-1 in random order.

    Sorts 64 random bits for each part: every order is equally likely up to collisions, of which the
    chance is below n^2 / 2^65.

    >>> wf.random.permutation(wf.random.key(0), wf.asarray([[1, 2, 3], [4, 5, 6]]), axis=1)
    Tensor([[2, 1, 3],
            [5, 4, 6]], dtype=int64)
    """
    k = _check_key("permutation", key)
    t = _values(x)
    along = check_axis("random.permutation", axis, t.ndim)
    order = apply("argsort", bits(k, (t.shape[along],), uint64), axis=0, descending=False)
    return apply("take", t, order, axis=along)


def shuffle(key: TensorLike, x: TensorLike) -> Tensor:
    """The rows of x (its parts along the first axis) in random order.

    >>> wf.random.shuffle(wf.random.key(0), wf.asarray([[1, 1], [2, 2], [3, 3]]))
    Tensor([[2, 2],
            [1, 1],
            [3, 3]], dtype=int64)
    """
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

    >>> wf.random.randint(wf.random.key(0), [2, 3], 0, [1, 10, 100])
    Tensor([[ 0,  0, 84],
            [ 0,  8, 43]], dtype=int64)
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


def _unit(op: str, key: TensorLike, shape: Any, dtype: object) -> tuple[Tensor, DType]:
    """Uniform in (0, 1), wide enough to compute in, and the dtype of the result."""
    k, wanted = _check_key(op, key), check_shape(f"random.{op}", shape)
    target = check_dtype(dtype, DEFAULT_FLOAT)
    return _open_uniform(op, k, wanted, _work_dtype(target)), target


def rademacher(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """-1 or 1, equally likely (int64 by default).

    >>> wf.random.rademacher(wf.random.key(0), [6])
    Tensor([ 1, -1,  1, -1,  1, -1], dtype=int64)
    """
    k, wanted = _check_key("rademacher", key), check_shape("random.rademacher", shape)
    is_low = less(apply("random_bits", k, shape=wanted), 1 << 31)
    return cast(where(is_low, 1, -1), check_dtype(dtype, DEFAULT_INT))


def laplace(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Laplace: a sign and an exponential number, from one u in (-1, 1).

    >>> x = wf.random.laplace(wf.random.key(0), [10_000])
    >>> round(float(wf.mean(x)), 1), round(float(wf.std(x)), 1)  # 0, sqrt(2)
    (0.0, 1.4)
    """
    unit, target = _unit("laplace", key, shape, dtype)
    centred = subtract(multiply(unit, 2), 1)
    return cast(copysign(negative(log1p(negative(abs(centred)))), centred), target)


def logistic(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard logistic: log(u / (1 - u)) for u uniform in (0, 1).

    >>> x = wf.random.logistic(wf.random.key(0), [10_000])
    >>> round(float(wf.std(x)), 1)  # pi / sqrt(3)
    1.8
    """
    unit, target = _unit("logistic", key, shape, dtype)
    return cast(subtract(log(unit), log1p(negative(unit))), target)


def cauchy(key: TensorLike, shape: Any = (), dtype: object = None) -> Tensor:
    """Standard Cauchy: tan(pi (u - 1/2)) for u uniform in (0, 1).

    >>> x = wf.random.cauchy(wf.random.key(0), [10_000])
    >>> round(float(wf.mean(wf.abs(x) < 1)), 1)  # half of them are within 1
    0.5
    """
    unit, target = _unit("cauchy", key, shape, dtype)
    return cast(tan(multiply(subtract(unit, 0.5), math.pi)), target)


def choice(
    key: TensorLike,
    a: TensorLike,
    shape: Any = (),
    replace: bool = True,
    p: TensorLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Parts of `a` along `axis` drawn at random, `shape` of them; of a number n: from 0 .. n-1.

    p: the probabilities, a vector (weights are scaled to a sum of 1); None: all equal. Without
    replacement and with p: the largest of log p plus Gumbel noise (Efraimidis and Spirakis,
    "Weighted random sampling with a reservoir", 2006), which takes parts of probability 0 last.

    >>> key = wf.random.key(0)
    >>> wf.random.choice(key, 10, [4]), wf.random.choice(key, 4, [4], replace=False)
    (Tensor([9, 8, 2, 6], dtype=int64), Tensor([3, 0, 2, 1], dtype=int64))
    >>> wf.random.choice(key, [10, 20, 30], [6], p=[0.0, 0.5, 0.5])
    Tensor([20, 30, 20, 30, 20, 30], dtype=int64)
    """
    k, wanted = _check_key("choice", key), check_shape("random.choice", shape)
    values = _values(a)
    along = check_axis("random.choice", axis, values.ndim)
    size, count = _counts(values.shape[along], product(wanted), replace)
    weights = None if p is None else inexact_tensor(p, "random.choice")
    if weights is not None and not fits(weights.shape, (size,)):
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


def _values(x: TensorLike) -> Tensor:
    """What is put in order or chosen from: of a number n 0 .. n-1."""
    if isinstance(x, (int, np.integer, SymbolicDim)):
        return arange(x)
    t = strong_tensor(x)
    if t.ndim or not t.dtype.is_integer:
        return t
    return arange(int(t.numpy()) if is_concrete(t) else t)


def _counts(size: Dim, count: Dim, replace: bool) -> tuple[Dim, Dim]:
    """How many there are, and how many are drawn; what is not known yet a step checks."""
    if not isinstance(size, int) or not isinstance(count, int):
        return size, count
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


def _with_replacement(k: Tensor, size: Any, shape: Shape, weights: Tensor | None) -> Tensor:
    if weights is None:
        return randint(k, shape, 0, size)
    ends = cumulative_sum(cast(weights, _work_dtype(weights.dtype)))
    total = apply("take", ends, strong_tensor(size - 1), axis=0)
    # u * total < total but for rounding, which must not reach past the last part that has weight
    drawn = multiply(uniform(k, shape, ends.dtype), total)
    found = apply("searchsorted", ends, drawn, side="right")
    last = apply("searchsorted", ends, reshape(total, (1,)), side="left")
    return apply("minimum", found, apply("broadcast_to", reshape(last, ()), shape=shape))


#: Rounds at the most. Each rejects at worst a third of the elements.
_ROUNDS = 200
#: From here on Poisson numbers come from a transformed uniform number, below from waiting times.
_LARGE_RATE = 10.0


def gamma(key: TensorLike, a: TensorLike, shape: Any = None, dtype: object = None) -> Tensor:
    """Gamma distributed with shape parameter a > 0 and scale 1; `shape` (by default that of a) is
    one that a broadcasts to. NaN for other a.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; 16-bit floats are
    computed in float32.

    >>> x = wf.random.gamma(wf.random.key(0), [0.5, 2.0, 9.0], [10_000, 3])
    >>> wf.mean(x, axis=0).numpy().round(1)
    array([0.5, 2. , 9. ], dtype=float32)
    """
    k, alpha = _check_key("gamma", key), inexact_tensor(a, "random.gamma")
    target = check_dtype(dtype, alpha.dtype)
    wanted = alpha.shape if shape is None else check_shape("random.gamma", shape)
    drawn, unit, inverse = _gamma(k, alpha, wanted, _work_dtype(target))
    found: Tensor = stop_gradient(cast(multiply(drawn, pow(unit, inverse)), target))
    return found


def _log_gamma(key: Tensor, alpha: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """The logarithms of gamma numbers: those of small shape parameters are less than any float."""
    drawn, unit, inverse = _gamma(key, alpha, shape, dtype)
    found: Tensor = stop_gradient(add(log(drawn), multiply(log(unit), inverse)))
    return found


def _gamma(key: Tensor, alpha: Tensor, shape: Shape, work: DType) -> tuple[Tensor, Tensor, Tensor]:
    """Three numbers x, u, e of which x * u^e is gamma distributed: e is 0 unless alpha < 1."""
    wanted = shape
    alpha = stop_gradient(expand(cast(alpha, work), wanted))
    rounds, last = split(key)
    is_small = less(alpha, 1)
    d = subtract(where(is_small, add(alpha, 1), alpha), 1 / 3)
    c = divide(1 / 3, sqrt(d))

    def propose(each: Tensor) -> tuple[Tensor, Tensor]:
        of_normal, of_uniform = split(each)
        x = normal(of_normal, wanted, work)
        v = add(multiply(c, x), 1)
        cube = multiply(square(v), v)
        bound = add(multiply(square(x), 0.5), multiply(d, add(subtract(1, cube), log(cube))))
        u = _open_uniform("gamma", of_uniform, wanted, work)
        return multiply(d, cube), logical_and(greater(v, 0), less(log(u), bound))

    drawn = _until_accepted(rounds, propose, greater(alpha, 0), alpha)
    unit = _open_uniform("gamma", last, wanted, work)
    return drawn, unit, where(is_small, divide(1, alpha), 0)


def beta(
    key: TensorLike, a: TensorLike, b: TensorLike, shape: Any = None, dtype: object = None
) -> Tensor:
    """Beta distributed: g / (g + h) for gamma numbers g and h with the shape parameters a and b, of
    which the logarithms are drawn.

    `shape`: by default that of a and b, broadcast.

    >>> x = wf.random.beta(wf.random.key(0), 2.0, 6.0, [10_000])
    >>> round(float(wf.mean(x)), 2)  # 2 / (2 + 6)
    0.25
    """
    first, second = split(_check_key("beta", key))
    one, two = inexact_tensor(a, "random.beta"), inexact_tensor(b, "random.beta")
    wanted = _common("beta", shape, one, two)
    target = check_dtype(dtype, promote(one.dtype, two.dtype))
    work = _work_dtype(target)
    g, h = _log_gamma(first, one, wanted, work), _log_gamma(second, two, wanted, work)
    return cast(sigmoid(subtract(g, h)), target)


def dirichlet(
    key: TensorLike, alpha: TensorLike, shape: Any = None, dtype: object = None
) -> Tensor:
    """Dirichlet distributed vectors, the last axis of alpha: gamma numbers, of which the logarithms
    are drawn, over their sum.

    shape: that of the result without that axis; by default alpha's.

    >>> x = wf.random.dirichlet(wf.random.key(0), [1.0, 2.0, 7.0], [1000])
    >>> x.shape, wf.mean(x, axis=0).numpy().round(1)
    ((1000, 3), array([0.1, 0.2, 0.7], dtype=float32))
    """
    k, weights = _check_key("dirichlet", key), inexact_tensor(alpha, "random.dirichlet")
    if not weights.ndim:
        raise InvalidArgumentError(
            "wf.random.dirichlet: alpha must be at least a vector", location=caller_location()
        )
    rest = weights.shape[:-1] if shape is None else check_shape("random.dirichlet", shape)
    target = check_dtype(dtype, weights.dtype)
    g = _log_gamma(k, weights, (*rest, weights.shape[-1]), _work_dtype(target))
    if weights.shape[-1] == 0:
        return cast(g, target)
    parts = exp(subtract(g, max(g, axis=-1, keepdims=True)))
    return cast(divide(parts, sum(parts, axis=-1, keepdims=True)), target)


def poisson(key: TensorLike, lam: TensorLike, shape: Any = None, dtype: object = None) -> Tensor:
    """Poisson distributed numbers with rate lam >= 0 (int64 by default); -1 for other rates.

    Rates below 10: how many exponential waiting times fit in. Others: Hoermann, "The transformed
    rejection method for generating Poisson random variables", 1993, algorithm PTRS.

    >>> wf.random.poisson(wf.random.key(0), [0.0, 3.0, 1000.0])
    Tensor([  0,   3, 987], dtype=int64)
    """
    k, rate = _check_key("poisson", key), inexact_tensor(lam, "random.poisson")
    wanted = rate.shape if shape is None else check_shape("random.poisson", shape)
    rate = stop_gradient(expand(cast(rate, float64), wanted))
    first, second = split(k)
    is_large = greater_equal(rate, _LARGE_RATE)
    few = _waiting_times(first, where(is_large, 0, rate))
    many = _transformed(second, where(is_large, rate, _LARGE_RATE), is_large)
    drawn = where(greater_equal(rate, 0), where(is_large, many, few), -1)
    return cast(drawn, check_dtype(dtype, DEFAULT_INT))


def _waiting_times(key: Tensor, rate: Tensor) -> Tensor:
    """How many exponential numbers add up to no more than `rate`."""
    shape = rate.shape

    def waits(i: Tensor, time: Tensor, count: Tensor) -> Tensor:
        return logical_and(less(i, _ROUNDS), any(less_equal(time, rate)))

    def wait(i: Tensor, time: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unit = _open_uniform("poisson", fold_in(key, i), shape, float64)
        later = subtract(time, log(unit))
        return add(i, 1), later, add(count, cast(less_equal(later, rate), float64))

    nothing = zeros_like(rate)
    count: Tensor = while_loop(waits, wait, (0, nothing, nothing))[2]
    return count


def _transformed(key: Tensor, rate: Tensor, is_needed: Tensor) -> Tensor:
    b = add(multiply(sqrt(rate), 2.53), 0.931)
    a = add(multiply(b, 0.02483), -0.059)
    inverse_alpha = add(divide(1.1328, subtract(b, 3.4)), 1.1239)
    limit = subtract(0.9277, divide(3.6224, subtract(b, 2)))

    def propose(each: Tensor) -> tuple[Tensor, Tensor]:
        of_u, of_v = split(each)
        u = subtract(_open_uniform("poisson", of_u, rate.shape, float64), 0.5)
        v = _open_uniform("poisson", of_v, rate.shape, float64)
        us = subtract(0.5, abs(u))
        slope = add(divide(multiply(a, 2), us), b)
        k = floor(add(multiply(slope, u), add(rate, 0.43)))
        quick = logical_and(greater_equal(us, 0.07), less_equal(v, limit))
        out = logical_or(less(k, 0), logical_and(less(us, 0.013), greater(v, us)))
        height = divide(multiply(v, inverse_alpha), add(divide(a, square(us)), b))
        density = subtract(multiply(k, log(rate)), add(rate, lgamma(add(where(out, 0, k), 1))))
        exact = logical_and(logical_not(out), less_equal(log(height), density))
        return k, logical_or(quick, exact)

    return _until_accepted(key, propose, is_needed, rate)


def _until_accepted(key: Tensor, propose: Any, is_needed: Tensor, like: Tensor) -> Tensor:
    """For each element the first proposal that is accepted; NaN where none is needed.

    propose(key): numbers of the type of `like`, and which of them are accepted.
    """

    def is_open(i: Tensor, done: Tensor, value: Tensor) -> Tensor:
        return logical_and(less(i, _ROUNDS), any(logical_not(done)))

    def step(i: Tensor, done: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        proposed, accepted = propose(fold_in(key, i))
        taken = logical_and(accepted, logical_not(done))
        return add(i, 1), logical_or(done, accepted), where(taken, proposed, value)

    start = (0, logical_not(is_needed), full_like(like, float("nan")))
    value: Tensor = while_loop(is_open, step, start)[2]
    return value


def _common(op: str, shape: Any, *parameters: Tensor) -> Shape:
    if shape is not None:
        return check_shape(f"random.{op}", shape)
    try:
        return broadcast_shapes(*(p.shape for p in parameters))
    except WeftError as error:
        raise error.at(caller_location()) from None
