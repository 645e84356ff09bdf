"""Elementwise ops and reductions of few elements: one call of the NumPy function where operands are
plain.

What is plain: tensors of one common dtype, and Python numbers that take it without rounding twice.
The dtype of the result is the type rule's, looked up once for each op and dtype. All else, and all
that raises, goes the interpreter's way, whose results these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.eager import switch
from weft.frontend.eager.switch import SWITCH
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.device_scope import device_scopes
from weft.frontend.tracing.trace import current_trace
from weft.ir.dtypes import as_dtype
from weft.ir.errors import WeftError
from weft.ir.ops import lookup
from weft.ir.ops.elementwise import FUNCTIONS
from weft.ir.quiet import QUIET
from weft.ir.types import TensorType

#: dtype.char of dtypes that NumPy itself computes as weft does.
_FLOATS, _INTS = "fd", "lqiIhHbBLQ"
_CHARS = frozenset(_FLOATS + _INTS + "?")
_EXACT_INT = 1 << 53  # smaller integers are float64, then rounded once


class _Row(NamedTuple):
    """What computes an op on operands of one dtype, and the dtype of its result."""

    function: Callable[..., Any]
    result: Any
    plain: bool  # whether it takes Python numbers and makes an array of its own


_rows: dict[str, _Row | None] = {}

#: What NumPy's sum, prod, max and min call.
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add.reduce, "prod": np.multiply.reduce,
    "max": np.maximum.reduce, "min": np.minimum.reduce,
}  # fmt: skip


def quick(op: str, xs: Sequence[Any], inexact: bool) -> Tensor | None:
    """The op on concrete operands of few elements; None where it is to be done the long way."""
    given: list[Any] = []
    lead = _plain(xs, given)
    if lead is None:
        return None
    dtype = lead.dtype
    char = dtype.char
    try:
        row = _rows[op + char]
    except KeyError:
        row = _rows[op + char] = _row(op, dtype, len(xs))
    if row is None or (inexact and char not in _FLOATS):
        return None
    function, result, plain = row
    if not plain:
        given = [np.array(a, dtype) if type(a) is not np.ndarray else a for a in given]
    try:
        made = QUIET.run(function, *given)
    except Exception:  # the long way says what is wrong
        return None
    if type(made) is not np.ndarray:
        made = np.asarray(made)
    if made.dtype is not result and made.dtype != result:
        return None
    if not plain and not (made.flags.owndata and made.flags.c_contiguous):
        return None
    return Tensor(made)


def quick_where(condition: Any, x1: Any, x2: Any) -> Tensor | None:
    """As `quick` for the choice."""
    given: list[Any] = []
    lead = _plain((x1, x2), given)
    if lead is None or type(condition) is not Tensor:
        return None
    chosen = condition._data
    if chosen is None or chosen.dtype.char != "?" or lead.dtype.char not in _CHARS:
        return None
    if chosen.shape != lead.shape and chosen.size * math.prod(map(np.size, given)) >= switch.LARGE:
        return None
    try:
        made = np.where(chosen, *given)
    except ValueError:
        return None
    return Tensor(made) if made.dtype == lead.dtype else None


def quick_fold(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick` for a reduction over `axis` whose result has the dtype of x."""
    if not SWITCH.on or type(x) is not Tensor or x.weak:
        return None
    a = x._data
    if a is None or a.size >= switch.LARGE or a.dtype.char not in "fdl":
        return None
    if current_trace() is not None or device_scopes():
        return None
    if axis is not None and type(axis) is not int:
        if type(axis) is not tuple or not all(type(n) is int for n in axis):
            return None
    try:
        made = np.asarray(QUIET.run(REDUCTIONS[op], a, axis=axis, keepdims=bool(keepdims)))
    except Exception:  # no such axis, no elements
        return None
    if made.dtype != a.dtype or not (made.flags.owndata and made.flags.c_contiguous):
        return None
    return Tensor(made)


def quick_position(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick_fold` for argmax and argmin, whose NumPy functions are also the faster ones on rows
    of any number."""
    if not SWITCH.on or type(x) is not Tensor or type(axis) is not int:
        return None
    a = x._data
    if a is None or a.dtype.char not in "fdl" or current_trace() is not None or device_scopes():
        return None
    if a.size >= switch.LARGE and axis not in (-1, a.ndim - 1):
        return None
    try:
        made = np.asarray(QUIET.run(_POSITIONS[op], a, axis=axis, keepdims=bool(keepdims)))
    except Exception:  # no such axis, no elements
        return None
    return Tensor(made) if made.dtype == np.int64 and made.flags.owndata else None


_POSITIONS: dict[str, Callable[..., Any]] = {"argmax": np.argmax, "argmin": np.argmin}


def _plain(xs: Sequence[Any], given: list[Any]) -> Any:
    """The first array among the operands, if all are plain and few; they are put into `given`."""
    if not SWITCH.on:
        return None
    lead: Any = None
    room = switch.LARGE
    numbers = False
    for x in xs:
        kind = type(x)
        if kind is Tensor:
            a = x._data
            if a is None or x.weak or a.size > switch.LARGE:
                return None
            given.append(a)
            if lead is None:
                lead = a
            elif a.dtype != lead.dtype:
                return None
            elif a.shape == lead.shape:
                continue
            room //= a.size or 1  # what they broadcast to has at most their product of elements
            if not room:
                return None
        elif kind is float or kind is int:
            numbers = True
            given.append(x)
        else:
            return None
    if lead is None or current_trace() is not None or device_scopes():
        return None
    if numbers:
        fits = _FITS.get(lead.dtype.char)
        if fits is None or not all(fits(a) for a in given if type(a) is not np.ndarray):
            return None
    return lead


def _fits_float(x: float) -> bool:
    return type(x) is float or -_EXACT_INT < x < _EXACT_INT


def _fits_int(x: float) -> bool:
    return type(x) is int and -(2**63) <= x < 2**63


#: By the dtype that a Python number takes, whether it does so in one rounding.
_FITS = {"f": _fits_float, "d": _fits_float, "l": _fits_int, "q": _fits_int}


def _row(op: str, dtype: Any, count: int) -> _Row | None:
    function = FUNCTIONS.get(op)
    if function is None or dtype.char not in _CHARS:
        return None
    operand = TensorType(as_dtype(dtype), ())
    try:
        (made,) = lookup(op).infer([operand] * count, {}, ())
    except WeftError:
        return None
    assert isinstance(made, TensorType)
    return _Row(function, made.dtype.numpy, isinstance(function, np.ufunc))
