"""Learning rates as functions of the step (TensorFlow 1's names and formulas).

global_step: a number, a tensor, or the variable that counts steps. The result is a floating scalar,
float32 for Python numbers. Give an optimizer a function to have it computed anew for each step::

    >>> import weft as wf
    >>> w, count = wf.Variable(1.0), wf.Variable(0)
    >>> optimizer = wf.train.SGD(lambda: wf.train.exponential_decay(0.5, count, 1, 0.1))
    >>> @wf.compile
    ... def step():
    ...     optimizer.minimize(3.0 * w, global_step=count)
    >>> for _ in range(2):
    ...     step()
    >>> round(w.item(), 3)  # 1 - 3*0.5 - 3*0.05
    -0.65

"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.elementwise import (
    add,
    ceil,
    divide,
    equal,
    floor,
    less,
    less_equal,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.promotion import TensorLike, cast, inexact_tensor, strong_tensor
from weft.frontend.ops.special import cos, exp, pow
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


def _start(learning_rate: TensorLike, global_step: TensorLike) -> tuple[Tensor, Tensor]:
    """The initial rate and the step as floats of one dtype."""
    rate = inexact_tensor(learning_rate, "train.schedules")
    return rate, cast(strong_tensor(global_step), rate.dtype)


def _periods(step: Tensor, decay_steps: TensorLike, staircase: bool) -> Tensor:
    ratio = divide(step, cast(decay_steps, step.dtype))
    return floor(ratio) if staircase else ratio


def exponential_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
) -> Tensor:
    """learning_rate * decay_rate^(step / decay_steps); staircase: the exponent is floored.

    >>> [round(float(wf.train.exponential_decay(1.0, n, 10, 0.5)), 4) for n in (0, 10, 20)]
    [1.0, 0.5, 0.25]
    >>> step = wf.Variable(0)
    >>> optimizer = wf.train.SGD(lambda: wf.train.exponential_decay(0.1, step, 1000, 0.96))
    """
    rate, step = _start(learning_rate, global_step)
    return multiply(rate, pow(cast(decay_rate, rate.dtype), _periods(step, decay_steps, staircase)))


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
) -> Tensor:
    """learning_rate * exp(-decay_rate * step / decay_steps); staircase: step / decay_steps is
    floored.

    >>> [round(float(wf.train.natural_exp_decay(1.0, n, 10, 0.5)), 4) for n in (0, 10, 20)]
    [1.0, 0.6065, 0.3679]
    """
    rate, step = _start(learning_rate, global_step)
    periods = _periods(step, decay_steps, staircase)
    return multiply(rate, exp(multiply(periods, multiply(cast(decay_rate, rate.dtype), -1))))


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
) -> Tensor:
    """learning_rate / (1 + decay_rate * step / decay_steps); staircase: step / decay_steps is
    floored.

    >>> [round(float(wf.train.inverse_time_decay(1.0, n, 10, 1.0)), 4) for n in (0, 10, 30)]
    [1.0, 0.5, 0.25]
    """
    rate, step = _start(learning_rate, global_step)
    periods = _periods(step, decay_steps, staircase)
    return divide(rate, add(multiply(periods, cast(decay_rate, rate.dtype)), 1))


def polynomial_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    end_learning_rate: TensorLike = 0.0001,
    power: TensorLike = 1.0,
    cycle: bool = False,
) -> Tensor:
    """(rate - end) * (1 - min(step, decay_steps) / decay_steps)^power + end.

    cycle: decay_steps is multiplied by ceil(step / decay_steps), so that the rate rises again after
    each.

    >>> [round(float(wf.train.polynomial_decay(1.0, n, 10, 0.5)), 4) for n in (0, 5, 10, 15)]
    [1.0, 0.75, 0.5, 0.5]
    """
    rate, step = _start(learning_rate, global_step)
    span, end = cast(decay_steps, rate.dtype), cast(end_learning_rate, rate.dtype)
    if cycle:
        span = multiply(span, where(equal(step, 0), 1, ceil(divide(step, span))))
    else:
        step = minimum(step, span)
    left = pow(subtract(1, divide(step, span)), cast(power, rate.dtype))
    return add(multiply(subtract(rate, end), left), end)


def cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    alpha: TensorLike = 0.0,
) -> Tensor:
    """rate * ((1 - alpha) * (1 + cos(pi * min(step, decay_steps) / decay_steps)) / 2 + alpha).

    Loshchilov and Hutter, "SGDR", 2016, equation 5, without restarts.

    >>> [round(float(wf.train.cosine_decay(1.0, n, 10, alpha=0.1)), 4) for n in (0, 5, 10, 15)]
    [1.0, 0.55, 0.1, 0.1]
    """
    rate, step = _start(learning_rate, global_step)
    span, floor_ = cast(decay_steps, rate.dtype), cast(alpha, rate.dtype)
    angle = multiply(divide(minimum(step, span), span), math.pi)
    share = multiply(add(cos(angle), 1), 0.5)
    return multiply(rate, add(multiply(share, subtract(1, floor_)), floor_))


def piecewise_constant(
    global_step: TensorLike, boundaries: Sequence[TensorLike], values: Sequence[TensorLike]
) -> Tensor:
    """values[0] while step <= boundaries[0], values[1] while step <= boundaries[1], ..., else
    the last.

    >>> [float(wf.train.piecewise_constant(n, [5, 20], [1.0, 0.5, 0.25])) for n in (5, 6, 21)]
    [1.0, 0.5, 0.25]
    """
    if len(values) != len(boundaries) + 1:
        raise InvalidArgumentError(
            f"wf.train.piecewise_constant: {len(boundaries)} boundaries need "
            f"{len(boundaries) + 1} values, got {len(values)}",
            location=caller_location(),
        )
    step = strong_tensor(global_step)
    out = inexact_tensor(values[-1], "train.piecewise_constant")
    for boundary, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
        out = where(less_equal(step, boundary), cast(value, out.dtype), out)
    return out


def linear_warmup(
    learning_rate: TensorLike, global_step: TensorLike, warmup_steps: TensorLike
) -> Tensor:
    """learning_rate * (step + 1) / warmup_steps for the first warmup_steps steps, then
    learning_rate.

    learning_rate may be the result of another schedule (Goyal et al. 2017, section 2.2).

    >>> [float(wf.train.linear_warmup(1.0, n, 4)) for n in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    rate, step = _start(learning_rate, global_step)
    span = maximum(cast(warmup_steps, rate.dtype), 1)
    rising = multiply(rate, divide(add(step, 1), span))
    return where(less(add(step, 1), span), rising, rate)
