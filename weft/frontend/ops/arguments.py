"""Checks of the arguments that many ops share: axes, shapes, sizes, numbers known at trace time."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.ir.dims import Dim, Shape, SymbolicDim, format_shape, product
from weft.ir.errors import InvalidArgumentError, ShapeError, TracerError, WeftError
from weft.ir.locations import caller_location

Axes = int | Sequence[int] | None


def check_axis(op: str, axis: object, rank: int, name: str = "axis") -> int:
    """`axis` in 0 .. rank-1, negative ones counted from the end. InvalidArgumentError otherwise."""
    try:
        value = operator.index(axis)  # type: ignore[arg-type]
    except TypeError as error:
        if isinstance(error, WeftError):
            raise
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be an integer, got {axis!r}", location=caller_location()
        ) from None
    if not -rank <= value < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none: it is a scalar"
        raise InvalidArgumentError(
            f"wf.{op}: {name} {value} is out of range for a tensor of rank {rank}",
            hint=f"the axes of this tensor are {allowed}",
            location=caller_location(),
        )
    return value % rank


def check_axes(op: str, axis: Axes, rank: int, name: str = "axis") -> tuple[int, ...]:
    """`axis` (one, several, or None for all) as sorted, distinct axes in 0 .. rank-1."""
    if axis is None:
        return tuple(range(rank))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [check_axis(op, a, rank, name) for a in given]
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError(
            f"wf.{op}: {name} {tuple(given)} names an axis twice", location=caller_location()
        )
    return tuple(sorted(axes))


def check_shape(op: str, shape: Any, *, infer: bool = False) -> Shape:
    """A `shape` argument (an int or a sequence of sizes) as a tuple; -1 is allowed with `infer`."""
    if isinstance(shape, (Tensor, np.ndarray)):
        shape = concrete_array(op, shape, "shape").tolist()
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    out: list[Dim] = []
    for item in items:
        if item is None or isinstance(item, SymbolicDim):
            out.append(item)
            continue
        size = check_int(op, item, "a size in the shape")
        if size < (-1 if infer else 0):
            raise ShapeError(
                f"wf.{op}: shape {tuple(items)} has the negative size {size}",
                location=caller_location(),
            )
        out.append(size)
    return tuple(out)


def infer_shape(op: str, shape: Shape, given: Shape) -> Shape:
    """`shape` with its one -1 worked out from the number of elements in `given`."""
    unknown = [i for i, d in enumerate(shape) if d == -1]
    if not unknown:
        return shape
    rest = product(d for d in shape if d != -1)
    total = product(given)
    found: Dim = None
    problem = len(unknown) > 1
    if not problem and rest is not None and total is not None:
        try:
            if isinstance(total, int):
                problem = not isinstance(rest, int) or rest == 0 or total % rest != 0
                found = None if problem or not isinstance(rest, int) else total // rest
            else:
                found = total // rest
        except ShapeError:
            problem = True
    if problem:
        raise ShapeError(
            f"wf.{op}: cannot tell the -1 in shape {format_shape(shape)} from a tensor of shape "
            f"{format_shape(given)}",
            hint="at most one -1, and the other sizes must divide the number of elements",
            location=caller_location(),
        )
    return tuple(found if d == -1 else d for d in shape)


def check_int(op: str, value: object, name: str) -> int:
    """`value` as a Python int. InvalidArgumentError, or TracerError for a traced value."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except WeftError as error:
            raise error.at(caller_location()) from None
        except TypeError:
            pass
    raise InvalidArgumentError(
        f"wf.{op}: {name} must be an integer, got {value!r}", location=caller_location()
    )


def concrete_array(op: str, value: object, name: str) -> np.ndarray[Any, Any]:
    """The NumPy value of an argument that must be known at trace time. TracerError if it is
    traced.
    """
    t = as_tensor(value)
    if not is_concrete(t):
        raise TracerError(
            f"wf.{op}: {name} must be known when the function is traced, but it is a traced tensor",
            hint="pass it as a Python value, or name it in static_argnames",
            location=caller_location(),
        )
    return t.numpy()


def is_concrete(t: Tensor) -> bool:
    """Whether the tensor holds a value now (it is not symbolic)."""
    return t._data is not None
