"""Distributions of `wf.random` that are drawn by rejection: rounds for all elements at once, in a
native loop, until each has been accepted.

Keys, shapes and errors as in `weft.frontend.random.keys`. The parameters are part of the test, so
the numbers have no gradient: it is 0.
"""

from __future__ import annotations

from typing import Any

from weft.frontend.control.loops import while_loop
from weft.frontend.ops.arguments import check_shape
from weft.frontend.ops.arithmetic import (
    abs,
    add,
    divide,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    multiply,
    square,
    subtract,
    where,
)
from weft.frontend.ops.creation import full_like, zeros_like
from weft.frontend.ops.elementwise import exp, lgamma, log, pow, sigmoid, sqrt
from weft.frontend.ops.promotion import TensorLike, cast, check_dtype, expand, inexact_tensor
from weft.frontend.ops.reduction import any, max, sum
from weft.frontend.random.keys import (
    _check_key,
    _open_uniform,
    _work_dtype,
    fold_in,
    normal,
    split,
)
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.autodiff import stop_gradient
from weft.ir.dims import Shape, broadcast_shapes
from weft.ir.dtypes import DEFAULT_INT, DType, float64, promote
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import caller_location

#: Rounds at the most. Each rejects at worst a third of the elements.
_ROUNDS = 200
#: From here on Poisson numbers come from a transformed uniform number, below from waiting times.
_LARGE_RATE = 10.0


def gamma(key: TensorLike, a: TensorLike, shape: Any = None, dtype: object = None) -> Tensor:
    """Gamma distributed with shape parameter a > 0 and scale 1; `shape` (by default that of a) is
    one that a broadcasts to. NaN for other a.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; 16-bit floats are
    computed in float32.
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
