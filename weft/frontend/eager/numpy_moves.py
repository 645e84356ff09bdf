"""Small eager calls that make, move or choose elements, as one NumPy call: fills, parts, reshapes,
transposes, joins, repetitions.

As in `numpy_calls.py`: plain tensors and plain settings take this way. Whatever else there is, and
whatever NumPy raises for, goes the interpreter's way, whose results these are and which says what
is wrong. Results own their memory, and share none with operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import at_once
from weft.frontend.eager.numpy_calls import LARGE, SWITCH, tensor_of
from weft.ir.dtypes import DType

Array = np.ndarray[Any, Any]

_BOUNDS = {int, type(None)}


def quick_filled(shape: Any, value: Any, dtype: DType) -> Tensor | None:
    """An array of one number; None, as of all functions here, where it is to be done the long
    way."""
    if dtype.kind == "string":
        return None
    return quick_made(np.full, shape, value, dtype.numpy)


def quick_made(make: Callable[..., Array], *settings: Any) -> Tensor | None:
    """`make(*settings)`, an array of its own."""
    if not SWITCH.on or not at_once():
        return None
    try:
        return tensor_of(make(*settings))
    except Exception:  # symbolic sizes, no memory
        return None


def counted(start: float, step: float, length: int, work: DType, result: DType) -> Array:
    """start, start + step, ...: computed in `work`, rounded once to `result`."""
    made = np.arange(length, dtype=work.numpy)
    if step != 1:
        made *= step
    if start != 0 or step < 0:
        made += start
    return made.astype(result.numpy, copy=False)


def quick_part(x: Any, key: Any) -> Tensor | None:
    """x[key] of integers, slices, None, `...`, and of tensors of few integers or bools."""
    a = _array(x)
    if a is None:
        return None
    items = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is Tensor:
            item = item._data
            if item is None or item.dtype.kind not in "ib" or not 0 < item.size < LARGE:
                return None
            if not item.ndim:  # NumPy tells it from an integer
                return None
        elif kind is slice:
            if not {type(item.start), type(item.stop), type(item.step)} <= _BOUNDS:
                return None
        elif kind is not int and item is not None and item is not Ellipsis:
            return None
        items.append(item)
    try:
        return tensor_of(_owned(a[tuple(items)]))
    except Exception:  # an index that is out of bounds, or does not fit
        return None


def quick_parts(x: Any, axis: Any) -> tuple[Tensor, ...] | None:
    """The parts of x along an axis."""
    a = _array(x)
    if a is None or type(axis) is not int or not -a.ndim <= axis < a.ndim:
        return None
    parts = a if axis in (0, -a.ndim) else np.moveaxis(a, axis, 0)
    return tuple([tensor_of(np.array(part, a.dtype, order="C")) for part in parts])


def quick_places(x: Any) -> tuple[Tensor, ...] | None:
    """The indices of the elements that are not 0, a vector for each axis."""
    a = _array(x)
    if a is None or not a.ndim or a.size >= LARGE:
        return None
    return tuple([tensor_of(_owned(column)) for column in a.nonzero()])


def quick_moved(move: Callable[..., Array], x: Any, *settings: Any) -> Tensor | None:
    """`move` of an array of few elements, with settings that are integers, None, or tuples or lists
    of integers."""
    a = _array(x)
    if a is None or a.size >= LARGE:
        return None
    for setting in settings:
        if type(setting) in (tuple, list):
            if not all(type(v) is int for v in setting):
                return None
        elif setting is not None and type(setting) is not int:
            return None
    try:
        return tensor_of(_owned(move(a, *settings)))
    except Exception:  # axes that are not there, sizes that do not fit
        return None


def quick_taken(x: Any, indices: Any, axis: Any) -> Tensor | None:
    """The parts of x at a few integers along an axis, or of a vector."""
    a = _array(x)
    i = indices._data if type(indices) is Tensor else None
    if a is None or i is None or i.dtype.kind != "i" or not 0 < i.size < LARGE:
        return None
    if type(axis) is not int and (axis is not None or a.ndim != 1):
        return None
    try:
        return tensor_of(_owned(a.take(i, axis)))
    except Exception:  # an index that is out of bounds
        return None


def quick_joined(join: Callable[..., Array], xs: Any, axis: Any) -> Tensor | None:
    """Several arrays of one dtype and few elements, joined along an axis."""
    if type(xs) not in (tuple, list) or len(xs) < 2 or type(axis) is not int:
        return None
    arrays = [_array(x) for x in xs]
    first = arrays[0]
    if first is None or any(a is None or a.dtype is not first.dtype for a in arrays):
        return None
    if sum(a.size for a in arrays if a is not None) >= LARGE:
        return None
    try:
        return tensor_of(join(arrays, axis))
    except Exception:  # shapes that do not fit
        return None


def reshaped(a: Array, shape: Sequence[int]) -> Array:
    """As NumPy's. ValueError for the shape that it has, too: the tensor itself is the result."""
    made = a.reshape(shape)
    if made.shape == a.shape:
        raise ValueError
    return made


def turned(a: Array, axes: Sequence[int]) -> Array:
    """The axes in another order. ValueError for the one that they have, and for more than an order
    of all."""
    if len(axes) != a.ndim or list(axes) == list(range(a.ndim)):
        raise ValueError
    return a.transpose(axes)


def rolled(a: Array, shift: int, axis: int | None) -> Array:
    """As NumPy's; ValueError for several shifts."""
    if type(shift) is not int or not {type(axis)} <= _BOUNDS:
        raise ValueError
    return np.roll(a, shift, axis)


def triangle(a: Array, k: int, upper: int) -> Array:
    """NumPy's triu or tril of matrices; ValueError for a vector."""
    if a.ndim < 2:
        raise ValueError
    return np.triu(a, k) if upper else np.tril(a, k)


def _array(x: Any) -> Array | None:
    """The elements of a tensor whose ops run at once; None of another, of strings, of a weak
    one."""
    if not SWITCH.on or type(x) is not Tensor or x.weak:
        return None
    a = x._data
    return None if a is None or a.dtype.kind == "O" or not at_once() else a


def _owned(made: Any) -> Array:
    if type(made) is np.ndarray:
        flags = made.flags
        if flags.owndata and flags.c_contiguous and flags.writeable:
            return made
    return np.array(made, order="C")
