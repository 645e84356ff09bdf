"""Sorts and running sums of plain operands as one call of NumPy: those of few elements, and sorts
of many along the last axis where NumPy sorts in vectors and few threads could share the work.

NumPy's vectors sort two to three times as fast as the compiled kernel, and as NumPy's stable sort.
What is stable shows in the signs of zeros alone, so only operands with a -0 are left to these two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from weft.frontend.eager import switch
from weft.frontend.eager.quick import tensor_of
from weft.frontend.eager.switch import SWITCH
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import at_once
from weft.ir.spec import QUIET

#: Integers as wide as a float, and the least of them, which is -0.
_BITS = {"f": (np.dtype(np.int32), -(2**31)), "d": (np.dtype(np.int64), -(2**63))}
#: Fewer elements are not looked at for a -0.
FEW = 128
_CHARS = frozenset("fdlqiILQ")
_RUNNING = {"cumulative_sum": np.add.accumulate, "cumulative_prod": np.multiply.accumulate}
#: More threads than these sort rows faster with the kernel than NumPy does with one.
MOST_THREADS = 3


def quick_sort(x: Any, axis: Any, descending: Any) -> Tensor | None:
    """The elements in order; None where that is to be done the long way."""
    a = _plain(x, axis)
    if a is None:
        return None
    large = a.size >= switch.LARGE
    if large and (axis not in (-1, a.ndim - 1) or not _in_vectors() or _threads() > MOST_THREADS):
        return None
    sort: Callable[..., Any] = _sort
    if a.size < FEW or _has_minus_zero(a):
        if large:
            return None
        sort = _stable
    try:
        return tensor_of(_directed(sort, a, axis) if descending else QUIET.run(sort, a, axis))
    except Exception:  # no such axis
        return None


def quick_argsort(x: Any, axis: Any, descending: Any) -> Tensor | None:
    """As `quick_sort` for the positions, of few elements alone."""
    a = _plain(x, axis)
    if a is None or a.size >= switch.LARGE or descending:
        return None
    try:
        made = QUIET.run(_stable_order, a, axis)
    except Exception:  # no such axis
        return None
    return tensor_of(made) if made.dtype == np.int64 else None


def quick_running(op: str, x: Any, axis: Any) -> Tensor | None:
    """As `quick_sort` for running sums and products, of few elements alone."""
    a = _plain(x, -1 if axis is None else axis)
    if a is None or a.size >= switch.LARGE or a.dtype.char not in "fdl":
        return None
    if axis is None:
        if a.ndim != 1:
            return None
        axis = 0
    try:
        made = QUIET.run(_RUNNING[op], a, axis)
    except Exception:  # no such axis
        return None
    return tensor_of(made) if made.dtype == a.dtype and made.flags.c_contiguous else None


def _has_minus_zero(a: Any) -> bool:
    """Whether there is a -0, which is the least of all bits as integers."""
    if a.dtype.char not in _BITS:
        return False
    dtype, least = _BITS[a.dtype.char]
    bits = a.view(dtype)
    return bool(bits.item(bits.argmin()) == least)  # the method: a third of `np.min`'s time


def _plain(x: Any, axis: Any) -> Any:
    """The array of a tensor that NumPy itself computes on as weft does; None for all else."""
    if not SWITCH.on or type(x) is not Tensor or x.weak or type(axis) is not int:
        return None
    a = x._data
    if a is None or a.dtype.char not in _CHARS or not at_once():
        return None
    return a


def _sort(a: Any, axis: int) -> Any:  # the method: NumPy's functions look at their arguments first
    made = a.copy()
    made.sort(axis)
    return made


def _stable(a: Any, axis: int) -> Any:
    made = a.copy()
    made.sort(axis, "stable")
    return made


def _stable_order(a: Any, axis: int) -> Any:
    return a.argsort(axis, "stable")


def _directed(sort: Callable[..., Any], a: Any, axis: int) -> Any:
    """Descending: the reverse of an ascending order of the reversed data keeps equal elements in
    their order."""
    back = QUIET.run(sort, np.flip(a, axis), axis)
    return np.ascontiguousarray(np.flip(back, axis))


@cache
def _in_vectors() -> bool:
    """Whether NumPy sorts 32 and 64 bits in vectors on this machine, and fast: its code for AVX-512
    stores what is smaller or greater than a pivot by `vpcompress`."""
    from weft.runtime.native.machine import compresses_slowly

    found: dict[str, bool] = import_module("numpy._core._multiarray_umath").__cpu_features__
    return found.get("X86_V3", False) and not (found.get("X86_V4") and compresses_slowly())


def _threads() -> int:
    from weft.frontend.calls.threads import get_num_threads  # the pool: not for `import weft`

    return get_num_threads()
