"""Masks of threads: True (all), False (none) or an array of bools; and values under them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Mask = Literal[True, False] | npt.NDArray[np.bool_]
Value = Any

__all__ = [
    "both",
    "choose",
    "count",
    "counted",
    "minus",
    "select",
    "select_all",
    "split",
    "union",
    "within",
]


def split(mask: Mask, condition: Value) -> tuple[Mask, Mask]:
    """Those of `mask` for whom the condition holds, and the others."""
    if not isinstance(condition, np.ndarray):
        return (mask, False) if condition else (False, mask)
    then = condition if mask is True else condition & mask
    taken = np.count_nonzero(then)
    if not taken:
        return False, mask
    if mask is True:
        return (True, False) if taken == then.size else (then, ~condition)
    other = mask & ~condition
    return (then, other) if other.any() else (mask, False)


def union(a: Mask, b: Mask) -> Mask:
    """Those of either."""
    if a is True or b is True:
        return True
    if a is False or b is False:
        return b if a is False else a
    joined: npt.NDArray[np.bool_] = a | b
    return True if joined.all() else joined


def both(a: Mask, b: Mask) -> Mask:
    """Those of both."""
    if a is True or b is True:
        return b if a is True else a
    if a is False or b is False:
        return False
    joined: npt.NDArray[np.bool_] = a & b
    return joined if joined.any() else False


def minus(a: Mask, b: Mask) -> Mask:
    """Those of `a` who are not of `b`."""
    if b is True or a is False:
        return False
    if b is False:
        return a
    left: npt.NDArray[np.bool_] = ~b if a is True else a & ~b
    return left if left.any() else False


def select(mask: Mask, new: Value, old: Value) -> Value:
    """`new` for those of `mask`, `old` (None: there is none yet) for the others."""
    if mask is True or old is None:
        return new
    return np.where(mask, new, old)


def select_all(mask: Mask, new: tuple[Value, ...], old: tuple[Value, ...] | None) -> Value:
    """`select` of each of several values."""
    if old is None:
        return new
    return tuple(select(mask, n, o) for n, o in zip(new, old, strict=True))


def choose(condition: Value, then: Value, other: Value) -> Value:
    """A conditional expression without effects."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, other)
    return then if condition else other


def count(first: Value, last: Value, step: Value, mask: Mask) -> tuple[Value, int]:
    """How often `range` goes round for each thread, and for the one of `mask` that does most."""
    if not any(isinstance(v, np.ndarray) for v in (first, last, step)):
        trips = len(range(int(first), int(last), int(step)))
        return trips, trips
    span = np.asarray(last, np.int64) - first
    trips = np.maximum((span + step - np.sign(step)) // step, 0)
    return trips, int(trips.max() if mask is True else trips[mask].max())


def counted(first: Value, k: int, step: Value, dtype: np.dtype[Any]) -> Value:
    """What a loop's variable is the k-th time."""
    value = first + k * step
    return value.astype(dtype) if isinstance(value, np.ndarray) else dtype.type(value)


def within(mask: Mask, k: int, trips: Value) -> Mask:
    """Those who go round for the k-th time."""
    return split(mask, k < trips)[0] if isinstance(trips, np.ndarray) else mask
