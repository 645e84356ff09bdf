"""`wf.initializers`: what variables begin with, as functions of a shape.

Each function here makes an `Initializer`, which `wf.tf1.get_variable`, `wf.tf1.variable_scope` and
models call with a shape and a dtype. Random ones draw from `key=` where one is given, else from the
process-wide generator (`wf.random.default_generator`), of the op seed `seed=` if there is one.
Errors, at the caller's line: InvalidArgumentError, ShapeError, TypeRuleError.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Final

from weft.frontend.control.loops import fori_loop
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import arange, eye, zeros_like
from weft.frontend.ops.creation import full as full_of
from weft.frontend.ops.creation import ones as ones_of
from weft.frontend.ops.creation import zeros as zeros_of
from weft.frontend.ops.elementwise import divide, equal, multiply, subtract, where
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import broadcast_to, expand_dims, matrix_transpose, reshape
from weft.frontend.ops.promotion import TensorLike, cast, check_dtype, check_shape, widened
from weft.frontend.ops.reduction import sum
from weft.frontend.ops.special import sqrt
from weft.frontend.random import distributions
from weft.frontend.random.generator import default_generator
from weft.ir.dims import format_shape
from weft.ir.dtypes import DEFAULT_FLOAT, DType
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

Sizes = tuple[int, ...]
#: (a key, sizes, dtype) -> the values. The key is made when it is asked for.
Draw = Callable[[Callable[[], Tensor], Sizes, DType], Tensor]

#: The standard deviation of a normal distribution that is cut off at +-2 of its own.
_CUT: Final = 0.87962566103423978


class Initializer:
    """A function of a shape: `initializer(shape, dtype=None, key=None)` -> the values.

    dtype: float32 by default. key: of `wf.random.key`, for random initializers; the others take no
    notice of it. What it was made from is its repr.

    >>> initializer = wf.initializers.glorot_uniform()
    >>> initializer
    wf.initializers.variance_scaling(scale=1.0, mode='fan_avg', distribution='uniform', seed=None)
    >>> w = wf.Variable(initializer((20, 30), key=wf.random.key(0)))
    >>> w.shape, bool(wf.all(wf.abs(w) <= (6 / 50) ** 0.5))
    ((20, 30), True)
    """

    def __init__(
        self, name: str, draw: Draw, settings: Mapping[str, Any], seed: int | None = None
    ) -> None:
        self._name, self._draw, self._settings, self._seed = name, draw, dict(settings), seed

    def __repr__(self) -> str:
        given = ", ".join(f"{n}={v!r:.60}" for n, v in self._settings.items())
        return f"wf.initializers.{self._name}({given})"

    def __call__(
        self, shape: Any, dtype: object = None, *, key: TensorLike | None = None
    ) -> Tensor:
        op = f"initializers.{self._name}"
        given = check_shape(op, shape)
        sizes = tuple(n for n in given if isinstance(n, int))
        if len(sizes) < len(given):
            raise ShapeError(
                f"wf.{op}: the shape {format_shape(given)} is not known",
                hint="a parameter has a static shape",
                location=caller_location(),
            )
        kind = check_dtype(dtype, DEFAULT_FLOAT)
        return self._draw(lambda: self._key(key), sizes, kind)

    def _key(self, key: TensorLike | None) -> Tensor:
        return default_generator(self._seed).next_key() if key is None else as_tensor(key)


# --------------------------------------------------------------------------------------- constants
def zeros() -> Initializer:
    """0 everywhere.

    >>> wf.initializers.zeros()([2], wf.int32)
    Tensor([0, 0], dtype=int32)
    """
    return Initializer("zeros", lambda _, sizes, dtype: zeros_of(sizes, dtype=dtype), {})


def ones() -> Initializer:
    """1 everywhere.

    >>> wf.initializers.ones()([2])
    Tensor([1., 1.], dtype=float32)
    """
    return Initializer("ones", lambda _, sizes, dtype: ones_of(sizes, dtype=dtype), {})


def constant(value: TensorLike = 0) -> Initializer:
    """`value` everywhere; an array is broadcast to the shape. ShapeError where it does not fit.

    >>> wf.initializers.constant([1, 2])((2, 2))
    Tensor([[1., 2.],
            [1., 2.]], dtype=float32)
    """

    def draw(_: Callable[[], Tensor], sizes: Sizes, dtype: DType) -> Tensor:
        if isinstance(value, numbers.Number):
            return full_of(sizes, value, dtype=dtype)
        return broadcast_to(cast(as_tensor(value), dtype), sizes)

    return Initializer("constant", draw, {"value": value})


def identity(gain: float = 1.0) -> Initializer:
    """`gain` times the identity matrix; of two axes, which may differ (TF1's).

    >>> wf.initializers.identity(2.0)((2, 3))
    Tensor([[2., 0., 0.],
            [0., 2., 0.]], dtype=float32)
    """

    def draw(_: Callable[[], Tensor], sizes: Sizes, dtype: DType) -> Tensor:
        if len(sizes) != 2:
            raise ShapeError(
                f"wf.initializers.identity: a matrix has two axes, not the shape "
                f"{format_shape(sizes)}",
                location=caller_location(),
            )
        return cast(multiply(eye(*sizes, dtype=dtype), gain), dtype)

    return Initializer("identity", draw, {"gain": gain})


# ------------------------------------------------------------------------------------------ random
def uniform(minval: float = -0.05, maxval: float = 0.05, seed: int | None = None) -> Initializer:
    """Uniform in [minval, maxval).

    >>> x = wf.initializers.uniform(0.0, 1.0)([1000], key=wf.random.key(0))
    >>> bool(wf.all((0 <= x) & (x < 1)))
    True
    """
    settings = {"minval": minval, "maxval": maxval, "seed": seed}
    draw = _floats("uniform", lambda k, n, t: distributions.uniform(k, n, t, minval, maxval))
    return Initializer("uniform", draw, settings, seed)


def normal(mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> Initializer:
    """Normally distributed.

    >>> x = wf.initializers.normal(stddev=0.1)([10_000], key=wf.random.key(0))
    >>> round(float(wf.std(x)), 2)
    0.1
    """
    settings = {"mean": mean, "stddev": stddev, "seed": seed}
    draw = _floats("normal", lambda k, n, t: distributions.normal(k, n, t, mean, stddev))
    return Initializer("normal", draw, settings, seed)


def truncated_normal(
    mean: float = 0.0, stddev: float = 0.05, seed: int | None = None
) -> Initializer:
    """Normally distributed, within two of the `stddev` from the mean.

    >>> x = wf.initializers.truncated_normal(stddev=0.5)([1000], key=wf.random.key(0))
    >>> bool(wf.all(wf.abs(x) <= 1))
    True
    """
    settings = {"mean": mean, "stddev": stddev, "seed": seed}
    cut = lambda k, n, t: distributions.truncated_normal(k, n, t, mean, stddev)  # noqa: E731
    return Initializer("truncated_normal", _floats("truncated_normal", cut), settings, seed)


def variance_scaling(
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
    seed: int | None = None,
) -> Initializer:
    """Of mean 0 and variance scale / n, where n is the number of inputs of a unit ("fan_in"), of
    outputs ("fan_out"), or their mean ("fan_avg").

    The last two axes are inputs and outputs; those before them are a window, as of a convolution,
    whose size counts in both. One axis is both. distribution: "truncated_normal" (cut off at two
    standard deviations of the uncut one), "normal" (or "untruncated_normal") or "uniform".

    >>> x = wf.initializers.variance_scaling(2.0)((1000, 100), key=wf.random.key(0))
    >>> round(float(wf.var(x)) * 1000, 1)
    2.0
    """
    _check_choice("mode", mode, ("fan_in", "fan_out", "fan_avg"))
    names = ("truncated_normal", "normal", "untruncated_normal", "uniform")
    _check_choice("distribution", distribution, names)
    _check_scale(scale)

    def draw(key: Tensor, sizes: Sizes, dtype: DType) -> Tensor:
        inputs, outputs = fans(sizes)
        n = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
        stddev = math.sqrt(scale / max(n, 1.0))
        if distribution == "uniform":
            limit = math.sqrt(3.0) * stddev
            return distributions.uniform(key, sizes, dtype, -limit, limit)
        if distribution == "truncated_normal":
            return distributions.truncated_normal(key, sizes, dtype, 0.0, stddev / _CUT)
        return distributions.normal(key, sizes, dtype, 0.0, stddev)

    settings = {"scale": scale, "mode": mode, "distribution": distribution, "seed": seed}
    return Initializer("variance_scaling", _floats("variance_scaling", draw), settings, seed)


def fans(sizes: Sizes) -> tuple[int, int]:
    """How many inputs and outputs a unit of a parameter of that shape has (`variance_scaling`)."""
    if len(sizes) < 2:
        return (math.prod(sizes),) * 2
    window = math.prod(sizes[:-2])
    return window * sizes[-2], window * sizes[-1]


def glorot_uniform(seed: int | None = None) -> Initializer:
    """Uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, equation 16; Xavier).

    >>> w = wf.initializers.glorot_uniform()((3, 3), key=wf.random.key(0))
    >>> bool(wf.all(wf.abs(w) <= 1))
    True
    """
    return variance_scaling(1.0, "fan_avg", "uniform", seed)


def glorot_normal(seed: int | None = None) -> Initializer:
    """Truncated normal of variance 2 / (inputs + outputs) (Glorot and Bengio 2010; Xavier).

    >>> w = wf.initializers.glorot_normal()((100, 100), key=wf.random.key(0))
    >>> round(float(wf.var(w)) * 100, 1)
    1.0
    """
    return variance_scaling(1.0, "fan_avg", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> Initializer:
    """Uniform in +-sqrt(6 / inputs), for layers before a relu (He et al. 2015; Kaiming).

    >>> w = wf.initializers.he_uniform()((100, 100), key=wf.random.key(0))
    >>> round(float(wf.var(w)) * 100, 1)
    2.0
    """
    return variance_scaling(2.0, "fan_in", "uniform", seed)


def he_normal(seed: int | None = None) -> Initializer:
    """Truncated normal of variance 2 / inputs, for layers before a relu (He et al. 2015; Kaiming).

    >>> w = wf.initializers.he_normal()((3, 3, 100, 100), key=wf.random.key(0))
    >>> round(float(wf.var(w)) * 900, 1)
    2.0
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> Initializer:
    """Uniform in +-sqrt(3 / inputs) (LeCun et al. 1998, "Efficient backprop").

    >>> w = wf.initializers.lecun_uniform()((100, 100), key=wf.random.key(0))
    >>> round(float(wf.var(w)) * 100, 1)
    1.0
    """
    return variance_scaling(1.0, "fan_in", "uniform", seed)


def lecun_normal(seed: int | None = None) -> Initializer:
    """Truncated normal of variance 1 / inputs (LeCun et al. 1998; for selu layers).

    >>> w = wf.initializers.lecun_normal()((100, 100), key=wf.random.key(0))
    >>> round(float(wf.var(w)) * 100, 1)
    1.0
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", seed)


def orthogonal(gain: float = 1.0, seed: int | None = None) -> Initializer:
    """`gain` times a matrix with orthonormal columns, or rows if there are fewer of these,
    uniformly distributed among them (Saxe et al. 2013; Mezzadri 2006).

    The matrix has the last axis as columns, all others as rows; ShapeError for fewer than two axes.
    By Gram and Schmidt's method, each column twice, of a normally distributed matrix: the Q of its
    QR decomposition with a positive diagonal of R.

    >>> q = wf.initializers.orthogonal()((4, 2), key=wf.random.key(0))
    >>> wf.abs(wf.matmul(q.T, q)).numpy().round(3)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    def draw(key: Tensor, sizes: Sizes, dtype: DType) -> Tensor:
        if len(sizes) < 2:
            raise ShapeError(
                f"wf.initializers.orthogonal: needs two axes or more, not the shape "
                f"{format_shape(sizes)}",
                location=caller_location(),
            )
        rows, columns = math.prod(sizes[:-1]), sizes[-1]
        long, short = max(rows, columns), min(rows, columns)
        start = widened(distributions.normal(key, (long, short), dtype))
        q = _orthonormal(start, short) if short else start
        q = matrix_transpose(q) if rows < columns else q
        return cast(multiply(reshape(q, sizes), gain), dtype)

    settings = {"gain": gain, "seed": seed}
    return Initializer("orthogonal", _floats("orthogonal", draw), settings, seed)


def _orthonormal(a: Tensor, count: int) -> Tensor:
    """The columns of `a`, each without its share in those before it, and of length 1."""
    numbers_of_columns = expand_dims(arange(count), 0)

    def step(i: Tensor, q: Tensor) -> Tensor:
        here = equal(numbers_of_columns, i)
        column = sum(where(here, a, 0), 1, keepdims=True)
        for _ in range(2):  # once loses what cancels (Giraud et al. 2005: "twice is enough")
            column = subtract(column, matmul(q, matmul(matrix_transpose(q), column)))
        length = sqrt(sum(multiply(column, column)))
        return where(here, divide(column, length), q)

    made: Tensor = fori_loop(0, count, step, zeros_like(a))
    return made


def _floats(name: str, draw: Callable[[Tensor, Sizes, DType], Tensor]) -> Draw:
    """`draw` with its key; TypeRuleError for dtypes that are not floating."""

    def checked(key: Callable[[], Tensor], sizes: Sizes, dtype: DType) -> Tensor:
        if not dtype.is_floating:
            raise TypeRuleError(
                f"wf.initializers.{name}: gives floats, not {dtype.name}",
                hint="integers and bools begin with wf.initializers.zeros() or constant(value)",
                location=caller_location(),
            )
        return draw(key(), sizes, dtype)

    return checked


def _check_choice(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgumentError(
            f"wf.initializers.variance_scaling: {what} {value!r:.60} is none of "
            f"{', '.join(allowed)}",
            location=caller_location(),
        )


def _check_scale(value: Any) -> None:
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise InvalidArgumentError(
            f"wf.initializers.variance_scaling: scale must be a number > 0, got {value!r:.60}",
            location=caller_location(),
        )
