"""Small eager calls as one NumPy call: elementwise ops, reductions, sorts and running sums.

Plain operands take this way: tensors of one common dtype, and Python numbers that take it without
rounding twice. The dtype of the result is the type rule's, looked up once for each op and dtype.
All else, and all that raises, goes the interpreter's way, whose results these are. `LARGE` is the
size from which calls run as native code instead (`native.py`); WEFT_EAGER turns that off.

Sorts along the last axis go to NumPy also for many elements, where NumPy sorts in vectors and few
threads could share the work: its vectors sort two to three times as fast as the compiled kernel,
and as NumPy's stable sort. A stable order shows in the signs of zeros alone, so only operands with
a -0 are left to these two."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import at_once
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.ops import lookup
from weft.ir.ops.elementwise import FUNCTIONS, ON_REALS, choose
from weft.ir.spec import QUIET, quietly
from weft.ir.types import TensorType

#: Calls with an operand of so many elements, or whose operands broadcast to so many, run as native
#: code. Measured by benchmarks/eager.py: from a few thousand elements on native code is the faster
#: one, but a function's first such call compiles it, which programs on small arrays should not pay.
LARGE = 1 << 15

MODES = ("native", "interpreter")


class Switch:
    """`on`: whether large eager calls run as native code. WEFT_EAGER says what it is at first."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = _checked(os.environ.get("WEFT_EAGER") or "native")


def _checked(mode: str) -> bool:
    """Whether the mode is "native". InvalidArgumentError for no mode."""
    if mode not in MODES:
        raise InvalidArgumentError(
            f"WEFT_EAGER={mode!r}", hint=f"one of {', '.join(MODES)}; unset, it is {MODES[0]}"
        )
    return mode == MODES[0]


SWITCH = Switch()


Array = np.ndarray[Any, Any]
#: dtype.char of dtypes that NumPy itself computes as weft does.
PLAIN_CHARS = frozenset("fdlqiIhHbBLQ?FD")
_BOOL = np.dtype(np.bool_)
_EXACT_INT = 1 << 53  # smaller integers are float64, then rounded once

#: By op and dtype of its operands what `quick_row` says.
_rows: dict[str, dict[Any, Callable[..., Any] | None]] = {}

#: By dtype and type of a Python number the arrays of such numbers: NumPy takes an array in half the
#: time of a number.
_numbers: dict[Any, dict[type, dict[Any, Array]]] = {
    np.dtype(np.float32): {float: {}, int: {}}, np.dtype(np.float64): {float: {}, int: {}},
    np.dtype(np.int64): {int: {}},
}  # fmt: skip
#: So many numbers of one type and dtype are kept; then it begins anew.
MOST_NUMBERS = 256

#: What NumPy's sum, prod, max and min call.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce, "prod": np.multiply.reduce,
    "max": np.maximum.reduce, "min": np.minimum.reduce,
}  # fmt: skip
_TRUTHS: dict[str, Callable[..., Any]] = {
    "all": np.logical_and.reduce, "any": np.logical_or.reduce,
}  # fmt: skip
_POSITIONS: dict[str, Callable[..., Any]] = {
    "argmax": np.ndarray.argmax, "argmin": np.ndarray.argmin,
}  # fmt: skip

_new = object.__new__


def tensor_of(data: Array) -> Tensor:
    """`Tensor(data)`, without the call of `__init__`, which is a third of its time."""
    made = _new(Tensor)
    made._data = data
    made._value = made._trace = None
    made.weak = False
    return made


def quick_row(op: str, dtype: Any, count: int) -> Callable[..., Any] | None:
    """What computes an op on so many operands of one dtype: a new array of the dtype that the type
    rule says, or a NumPy scalar; None where it is to be done the long way."""
    try:
        return _rows[op][dtype]
    except KeyError:
        made = _rows.setdefault(op, {})[dtype] = _function(op, dtype, count)
        return made


def quick_where(condition: Any, x1: Any, x2: Any) -> Tensor | None:
    """The choice between operands of few elements; None where it is to be done the long way."""
    if type(condition) is not Tensor or not SWITCH.on:
        return None
    chosen = condition._data
    if chosen is None or chosen.dtype is not _BOOL:
        return None
    a = x1._data if type(x1) is Tensor and not x1.weak else None
    b = x2._data if type(x2) is Tensor and not x2.weak else None
    if a is None:
        a = None if b is None else quick_number(x1, b)
    elif b is None:
        b = quick_number(x2, a)
    elif not alike(a, b):
        return None
    if a is None or b is None or a.dtype.char not in PLAIN_CHARS or not at_once():
        return None
    size = chosen.size * a.size * b.size
    if size >= LARGE and chosen.shape != (a if a.ndim else b).shape:
        return None
    try:
        made = choose(chosen, a, b)
    except ValueError:  # shapes that do not broadcast
        return None
    return tensor_of(made)


def quick_fold(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick_where` for a reduction over `axis` whose result has the dtype of x, or is bool."""
    if not SWITCH.on or type(x) is not Tensor or x.weak:
        return None
    a = x._data
    if a is None or a.size >= LARGE or not at_once():
        return None
    truth = _TRUTHS.get(op)
    if a.dtype.char not in ("fdl" if truth is None else PLAIN_CHARS):
        return None
    if axis is not None and type(axis) is not int:
        if type(axis) is not tuple or not all(type(n) is int for n in axis):
            return None
    fold = truth or REDUCTIONS[op]
    try:
        made = np.asarray(QUIET.run(fold, a, axis=axis, keepdims=bool(keepdims)))
    except Exception:  # no such axis, no elements
        return None
    dtype = a.dtype if truth is None else _BOOL
    if made.dtype != dtype or not (made.flags.owndata and made.flags.c_contiguous):
        return None
    return tensor_of(made)


def quick_position(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick_fold` for argmax and argmin, whose NumPy functions are also the faster ones on rows
    of any number."""
    if not SWITCH.on or type(x) is not Tensor or (axis is not None and type(axis) is not int):
        return None
    a = x._data
    if a is None or a.dtype.char not in "fdl" or not at_once():
        return None
    if a.size >= LARGE and (axis is None or axis not in (-1, a.ndim - 1)):
        return None
    try:
        made = np.asarray(_POSITIONS[op](a, axis, None, keepdims=bool(keepdims)))
    except Exception:  # no such axis, no elements
        return None
    return tensor_of(made) if made.dtype == np.int64 and made.flags.owndata else None


def alike(a: Array, b: Array) -> bool:
    """Whether two arrays have one dtype, and an op on them few elements."""
    if a.dtype is not b.dtype:
        return False
    size = a.size  # what they broadcast to has at most their product of elements
    return size * b.size <= LARGE or (size <= LARGE and a.shape == b.shape)


def quick_number(x: Any, beside: Array) -> Array | None:
    """A Python number as an array of the dtype of the few elements that it meets; None if it would
    not take that dtype, or be rounded twice on the way."""
    if beside.size > LARGE:
        return None
    dtype = beside.dtype
    try:
        known = _numbers[dtype][type(x)]
    except KeyError:
        return None
    found = known.get(x)
    if found is not None:
        return found
    if type(x) is int:
        fits = -(2**63) <= x < 2**63 if dtype.kind == "i" else -_EXACT_INT < x < _EXACT_INT
        if not fits:
            return None
    made: Array = quietly(np.array, x, dtype)
    if x or type(x) is int:  # 0.0 is equal to -0.0
        if len(known) >= MOST_NUMBERS:
            known.clear()
        known[x] = made
    return made


def _function(op: str, dtype: Any, count: int) -> Callable[..., Any] | None:
    function = FUNCTIONS.get(op) if dtype.kind == "c" else ON_REALS.get(op, FUNCTIONS.get(op))
    if function is None or dtype.char not in PLAIN_CHARS:
        return None
    operand = TensorType(as_dtype(dtype), ())
    try:
        (given,) = lookup(op).infer([operand] * count, {}, ())
    except WeftError:
        return None
    assert isinstance(given, TensorType)
    result = given.dtype.numpy
    if isinstance(function, np.ufunc):
        try:
            found = function.resolve_dtypes((dtype,) * count + (None,))[-1]
        except TypeError:
            return None
        return function if found == result else None

    def checked(*arrays: Array) -> Array:
        made = np.asarray(function(*arrays))
        if made.dtype != result or not (made.flags.owndata and made.flags.c_contiguous):
            raise TypeError(f"{op}: an array that is not the op's result as it is")
        return made

    return checked


#: Integers as wide as a float, and the least of them, which is -0.
_BITS = {"f": (np.dtype(np.int32), -(2**31)), "d": (np.dtype(np.int64), -(2**63))}
#: Fewer elements are not looked at for a -0.
FEW = 128
_SORTED_CHARS = frozenset("fdlqiILQ")
_RUNNING = {"cumulative_sum": np.add.accumulate, "cumulative_prod": np.multiply.accumulate}
#: More threads than these sort rows faster with the kernel than NumPy does with one.
MOST_THREADS = 3


def quick_sort(x: Any, axis: Any, descending: Any) -> Tensor | None:
    """The elements in order; None where that is to be done the long way."""
    a = _plain(x, axis)
    if a is None:
        return None
    large = a.size >= LARGE
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
    if a is None or a.size >= LARGE or descending:
        return None
    try:
        made = QUIET.run(_stable_order, a, axis)
    except Exception:  # no such axis
        return None
    return tensor_of(made) if made.dtype == np.int64 else None


def quick_running(op: str, x: Any, axis: Any) -> Tensor | None:
    """As `quick_sort` for running sums and products, of few elements alone."""
    a = _plain(x, -1 if axis is None else axis)
    if a is None or a.size >= LARGE or a.dtype.char not in "fdl":
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
    if a is None or a.dtype.char not in _SORTED_CHARS or not at_once():
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
    from weft.frontend.compile.threads import get_num_threads  # the pool: not for `import weft`

    return get_num_threads()
