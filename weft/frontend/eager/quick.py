"""Elementwise ops and reductions of few elements: one call of the NumPy function where operands are
plain.

What is plain: tensors of one common dtype, and Python numbers that take it without rounding twice.
The dtype of the result is the type rule's, looked up once for each op and dtype. All else, and all
that raises, goes the interpreter's way, whose results these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.eager import switch
from weft.frontend.eager.switch import SWITCH
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import at_once
from weft.ir.dtypes import as_dtype
from weft.ir.errors import WeftError
from weft.ir.ops import lookup
from weft.ir.ops.elementwise import FUNCTIONS, choose
from weft.ir.spec import QUIET, quietly
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
#: dtype.char of dtypes that NumPy itself computes as weft does.
_CHARS = frozenset("fdlqiIhHbBLQ?")
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
    if a is None or b is None or a.dtype.char not in _CHARS or not at_once():
        return None
    size = chosen.size * a.size * b.size
    if size >= switch.LARGE and chosen.shape != (a if a.ndim else b).shape:
        return None
    try:
        made = choose(chosen, a, b)
    except ValueError:  # shapes that do not broadcast
        return None
    return tensor_of(made)


def quick_fold(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick_where` for a reduction over `axis` whose result has the dtype of x."""
    if not SWITCH.on or type(x) is not Tensor or x.weak:
        return None
    a = x._data
    if a is None or a.size >= switch.LARGE or a.dtype.char not in "fdl" or not at_once():
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
    return tensor_of(made)


def quick_position(op: str, x: Any, axis: Any, keepdims: Any) -> Tensor | None:
    """As `quick_fold` for argmax and argmin, whose NumPy functions are also the faster ones on rows
    of any number."""
    if not SWITCH.on or type(x) is not Tensor or type(axis) is not int:
        return None
    a = x._data
    if a is None or a.dtype.char not in "fdl" or not at_once():
        return None
    if a.size >= switch.LARGE and axis not in (-1, a.ndim - 1):
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
    return size * b.size <= switch.LARGE or (size <= switch.LARGE and a.shape == b.shape)


def quick_number(x: Any, beside: Array) -> Array | None:
    """A Python number as an array of the dtype of the few elements that it meets; None if it would
    not take that dtype, or be rounded twice on the way."""
    if beside.size > switch.LARGE:
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
    function = FUNCTIONS.get(op)
    if function is None or dtype.char not in _CHARS:
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
