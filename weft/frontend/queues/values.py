"""What all host-side resources share at their front: eager calls only, and values with declared
dtypes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from weft.frontend.arrays import contiguous
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import current_trace
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.resources.attempts import check_timeout
from weft.runtime.resources.components import Array, ComponentShape, describe_array

P = ParamSpec("P")
R = TypeVar("R")

_ORDER = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation on the host: UnsupportedError while a function is being compiled, and
    every error gets the user's line."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_trace() is not None:
            owner = type(args[0]).__name__
            name = function.__name__
            raise refusal(owner if name == "__init__" else f"{owner}.{name}")
        try:
            return function(*args, **kwargs)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return operation


def refusal(what: str) -> UnsupportedError:
    """The error for `what` in a graph that is being built."""
    trace = current_trace()
    assert trace is not None
    root = trace.root()
    kind = "graph" if root.kind == "graph" else "function"
    return UnsupportedError(
        f"{what} was called while the {kind} {root.describe()} is built: objects of the host are "
        "for plain Python and for a wf.Graph, not for compiled functions",
        hint="call it outside, and pass what it gives as an argument or a feed",
        location=caller_location(),
    )


def value_of(x: Any, dtype: DType, label: Callable[[], str]) -> Array:
    """`x` as an array of `dtype` that nobody writes to.

    Tensors and variables must have the dtype; numbers, lists and NumPy arrays convert within their
    kind or to a higher one, if integers keep their value (as feeds do). TypeRuleError or
    InvalidArgumentError that begins with `label()`.
    """
    try:
        t = as_tensor(x)
    except WeftError as error:
        raise type(error)(f"{label()}: {error.what}", hint=error.hint) from None
    data = t._concrete(label(), "pass a tensor that has a value") if t._data is None else t._data
    given = as_dtype(data.dtype)
    if given is dtype:
        return data
    if not data.size and isinstance(x, (list, tuple)):  # an empty list has no dtype
        return np.empty(data.shape, dtype.numpy)
    typed = isinstance(x, Operators) and not t.weak
    if typed or string in (given, dtype) or _ORDER[given.kind] > _ORDER[dtype.kind]:
        raise TypeRuleError(
            f"{label()}, which takes {dtype.name}, got {describe_array(data)}",
            hint="strings and numbers do not convert"
            if string in (given, dtype)
            else f"convert it with wf.astype(x, wf.{dtype.name})",
        )
    with np.errstate(over="ignore"):
        out = data.astype(dtype.numpy)
    if dtype.is_integer and not np.array_equal(out, data):
        raise InvalidArgumentError(f"{label()}: an integer does not fit {dtype.name}")
    return out


def rows_of(
    x: Any, dtype: DType, label: Callable[[], str]
) -> tuple[Array, Callable[[], list[Array]]]:
    """Several values stacked along a first axis: the stack, to be checked, and a function that
    copies each of them."""
    # an array of the right dtype is copied once, row by row
    plain = type(x) is np.ndarray and x.dtype == dtype.numpy and dtype is not string
    data: Array = x if plain else value_of(x, dtype, label)
    return data, lambda: [contiguous(data[i, ...].copy()) for i in range(len(data))]


def integer(x: Any, what: str, smallest: int = 0) -> int:
    """`x` as an int of at least `smallest`. InvalidArgumentError, naming `what`, for others."""
    try:
        if isinstance(x, bool):
            raise TypeError
        number = x.__index__()
    except (AttributeError, TypeError, WeftError):
        raise InvalidArgumentError(
            f"{what}={x!r:.40} is not an integer"
            if not isinstance(x, Tensor)
            else f"{what} is {x.describe()}, no Python integer"
        ) from None
    if not smallest <= number < 2**63:
        least = f"at least {smallest}" if number < smallest else "less than 2**63"
        raise InvalidArgumentError(f"{what}={number} must be {least}")
    return int(number)


def dtype_list(dtypes: Any) -> list[DType]:
    """One dtype, or a list of them."""
    given = dtypes if isinstance(dtypes, (list, tuple)) else [dtypes]
    return [as_dtype(d) for d in given]


def one_shape(shape: Any, what: str) -> ComponentShape:
    """A shape with None for sizes that vary; None if nothing is known."""
    if shape is None:
        return None
    try:
        sizes = tuple(None if d is None else integer(d, f"{what}: a size", 0) for d in shape)
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: {shape!r} is not a shape", hint="a shape is a list of integers"
        ) from None
    return sizes


def shape_list(shapes: Any, what: str) -> list[ComponentShape] | None:
    """A list of shapes, or one shape (a list of integers), as TensorFlow 1 takes them."""
    if shapes is None:
        return None
    if not isinstance(shapes, (list, tuple)):
        raise InvalidArgumentError(
            f"{what}: shapes={shapes!r} is not a list of shapes", hint="such as [[28, 28], []]"
        )
    if all(d is None or not isinstance(d, (list, tuple)) for d in shapes):
        return [one_shape(shapes, what)]
    return [one_shape(s, what) for s in shapes]


def name_list(names: Any) -> list[str] | None:
    """One name, or a list of them."""
    if names is None or names == []:
        return None
    return [names] if isinstance(names, str) else [str(n) for n in names]


def seconds(timeout: Any) -> float | None:
    """A timeout, checked."""
    check_timeout(timeout)
    return None if timeout is None else float(timeout)


def tensors(arrays: Sequence[Array]) -> list[Tensor]:
    """Arrays that are the caller's from now on."""
    return [Tensor(contiguous(a)) for a in arrays]


def count(number: int) -> Tensor:
    """A number of elements as TensorFlow gives it: int32, no axes."""
    return Tensor(np.asarray(number, np.int32))


_numbers = itertools.count(1)


def label(name: str | None, default: str) -> str:
    """The name given, or one that no other resource has."""
    return name if name is not None else f"{default}_{next(_numbers)}"
